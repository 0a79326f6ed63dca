"""The state of a refresh, read from the ledger's newest snapshot summary alone.

Its own module, so that what only shows progress (a trigger, the UI) imports nothing of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.refresh.header import GENERATION_KEY, LedgerHeader, read_header

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

RefreshStatus = LedgerHeader


def read_status(settings: LakeSettings, target: str, replace_where: str | None = None) -> RefreshStatus | None:
    """The newest generation's header; None before the first refresh.

    :param replace_where: the part of the target, as in the refresh's options
    :raises LedgerError: the ledger was written by a newer version of this package
    """
    return status_in(open_catalog(settings), target, replace_where)


def status_in(catalog: Catalog, target: str, replace_where: str | None = None) -> RefreshStatus | None:
    """As :func:`read_status`, in a catalog that is open already."""
    table = LedgerTable.load(catalog, target, part_of(replace_where))
    return None if table is None else read_header(table.summary(GENERATION_KEY))
