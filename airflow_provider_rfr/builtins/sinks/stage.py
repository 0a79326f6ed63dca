"""Where a sink has to read: in its source's table, or in the one whose place that took, until it has sent the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.builtins.sinks.course import Hold, Move
from airflow_provider_rfr.builtins.sinks.window import Window
from airflow_provider_rfr.exceptions.sinks import SinkError
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.sinks import CursorMap, SinkRow, load_map

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Stage:
    """A table to send from.

    :ivar until: the last snapshot to send; None: whatever comes
    :ivar onward: values of the sink's row that lead to the next table, when everything until then is sent
    """

    table: SourceTable
    until: int | None = None
    onward: Mapping[str, Any] | None = None


def find_stage(row: SinkRow, catalog: Catalog, store: ControlStore, name: str) -> Stage | Move | Hold:
    """The table to send from, or what has to be written first.

    :param name: of the source's table
    :raises SinkError: there is none
    """
    table = SourceTable.load(catalog, name)
    if table is None:
        raise SinkError(row.name, f"its source {name} has no table", "deploy it, or name another source")
    if row.start == "new":
        return Move(_from_now_on(row, table))
    if row.physical is None or row.physical == table.uuid:
        return Stage(table)
    with store.read() as connection:
        onward = load_map(connection, row.physical)
    if onward is None:
        # A deploy that is switching tables may not have come to say so yet.
        return Hold("its source is another table now, and nothing says where its cursor goes on", lasting=False)
    return _leave(row, onward, catalog)


def _leave(row: SinkRow, onward: CursorMap, catalog: Catalog) -> Stage | Move | Hold:
    values = {"physical": onward.new_physical, "cursor": onward.new_snapshot}
    if row.window is None:
        if row.cursor is None:
            return Move({"physical": None})
        if row.cursor == onward.old_snapshot or onward.old_snapshot is None:
            return Move(values)
    old = SourceTable.load(catalog, onward.old_name) if onward.old_name is not None else None
    if old is None or old.uuid != row.physical:
        return Hold("rows that it has not sent are in a table that is gone")
    if row.window is None and old.has_passed(onward.old_snapshot, row.cursor):
        return Move(values)
    return Stage(old, onward.old_snapshot, values)


def _from_now_on(row: SinkRow, table: SourceTable) -> dict[str, Any]:
    """A cursor behind what was there when it was decided that this is not to be sent.

    What was sent after that, by a run that came before the decision, is left where it is.
    """
    decided = {"start": None, "since": None, "deploy_id": None, "physical": table.uuid}
    if row.deploy_id is not None and row.physical not in (None, table.uuid):
        return {**decided, "cursor": None, "window": None}
    cursor = table.last_of(row.deploy_id) if row.deploy_id is not None else None
    if cursor is None:
        cursor = table.last_before(row.since or 0)
    if row.physical == table.uuid and _is_past(row, table, cursor):
        return decided
    return {**decided, "cursor": cursor, "window": None}


def _is_past(row: SinkRow, table: SourceTable, snapshot_id: int | None) -> bool:
    if row.window is None:
        return row.cursor is not None and table.has_passed(snapshot_id, row.cursor)
    window = Window.loads(row.window)
    return table.has_passed(snapshot_id, window.after if window.before is None else window.before)
