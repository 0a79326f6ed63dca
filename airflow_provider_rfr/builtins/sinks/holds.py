"""The snapshots that a sink still has to read, as its source's table says it: an expiry asks nobody else.

Written before a run sends anything and after it ended, so what the table says is never later than the truth. In a table
that has just taken the place of another one, everything is kept until the sink has come to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from airflow_provider_rfr.builtins.sinks.window import Window
from airflow_provider_rfr.lake.commit_log import write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.store.sinks import SinkRow

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)


def hold_snapshots(catalog: Catalog, name: str, row: SinkRow) -> None:
    """Write from which sequence number on the sink needs the table of this name; nothing for no table."""
    table = SourceTable.load(catalog, name)
    if table is not None:
        mine = hold_property(_holder(row.uuid, row.name))
        others = dict.fromkeys(_holds(table, row.uuid) - {mine})
        write_table_properties(catalog, name, {**others, mine: str(_needed(row, table))})


def release_snapshots(catalog: Catalog, name: str, identity: UUID) -> None:
    """The sink needs no snapshot of the table any more."""
    table = SourceTable.load(catalog, name)
    if table is not None and (mine := _holds(table, identity)):
        write_table_properties(catalog, name, dict.fromkeys(mine))


def _holder(identity: UUID, name: str) -> str:
    return f"sink.{name}.{identity.hex[:8]}"


def _holds(table: SourceTable, identity: UUID) -> set[str]:
    """The sink's properties, also under a name that it had."""
    begin, end = _holder(identity, "*").split("*")
    begin = hold_property(begin)
    return {key for key in table.properties if key.startswith(begin) and key.endswith(end)}


def _needed(row: SinkRow, table: SourceTable) -> int:
    if row.start == "new" or row.physical not in (None, table.uuid):
        return 0
    if row.window is not None:
        window = Window.loads(row.window)
        return table.sequence(window.after if window.before is None else window.before) or 0
    return table.sequence(table.head if row.cursor is None else row.cursor) or 0
