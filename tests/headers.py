"""The header of a table's newest refresh, read as a test reads it."""

from __future__ import annotations

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.refresh.state import GENERATION_KEY, LedgerHeader, read_header


def read_status(settings: LakeSettings, target: str, replace_where: str | None = None) -> LedgerHeader | None:
    """Return the newest generation's header; None before the first refresh."""
    table = LedgerTable.load(open_catalog(settings), target, part_of(replace_where))
    return None if table is None else read_header(table.summary(GENERATION_KEY))
