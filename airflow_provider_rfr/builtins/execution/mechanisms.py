"""The mechanism of each action, and that of sinks."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.desired import instance_id
from airflow_provider_rfr.builtins.execution import _tables, _views
from airflow_provider_rfr.builtins.execution.work import Mechanism, Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.spec import BuiltinObject, Kind
from airflow_provider_rfr.sinks.registry import decide_sink, hold_snapshots, register_sink
from airflow_provider_rfr.store.sinks import delete_sink


class SinkStep(Mechanism):
    """A sink is nothing but rows of the store, written when the step is marked as done; one that goes needs no more
    snapshots."""

    def probe(self) -> None:
        return None

    def do(self) -> None:
        recorded = self.work.recorded
        sink = next((each for each in recorded.sinks if each.uuid == self.step.uuid), None)
        source = recorded.by_uuid.get(sink.source) if sink is not None else None
        if self.step.how is Action.REMOVE and sink is not None and source is not None:
            hold_snapshots(self.work.catalog, source.name, sink.uuid)

    def settle(self, connection: Connection, now: int) -> None:
        identity, how, details = self.step.uuid, self.step.how, self.step.details
        assert identity is not None
        if how is Action.REMOVE:
            delete_sink(connection, identity)
        elif how in (Action.CREATE, Action.METADATA):
            spec, source = self._declared().sink, UUID(details["source"])
            assert spec is not None
            columns, renamed = details["columns"], details.get("renamed", {})
            register_sink(connection, identity, self.name, spec, source, columns, renamed, now)
        else:
            about = str(details.get("since", self.work.deploy_id))
            decide_sink(connection, identity, how.value, self.step.reason, now, about=about)

    def _declared(self) -> BuiltinObject:
        """Its declaration, or that of the template which it was made from."""
        instance = self.record.instance
        return next(
            each
            for each in self.work.spec.objects
            if self.step.uuid == (each.id if instance is None else instance_id(each.id, instance))
        )


_TABLES: Final[dict[Action, type[Mechanism]]] = {
    Action.CREATE: _tables.CreateTable,
    Action.ADOPT: _tables.AlterTable,
    Action.METADATA: _tables.AlterTable,
    Action.EVOLVE: _tables.AlterTable,
    Action.REWRITE: _tables.ReplaceRows,
    Action.RECOMPUTE: _tables.ReplaceRows,
    Action.REPLACE_EMPTY: _tables.ReplaceRows,
    Action.RENAME: _tables.RenameTable,
    Action.DROP: _tables.RetireTable,
    Action.REMOVE: _tables.RetireTable,
}
_VIEWS: Final[dict[Action, type[Mechanism]]] = {
    Action.CREATE: _views.DefineView,
    Action.REPLACE: _views.DefineView,
    Action.REBIND: _views.DefineView,
    Action.BRIDGE: _views.BridgeView,
    Action.METADATA: _views.DescribeView,
    Action.ADOPT: _views.DescribeView,
    Action.RENAME: _views.RenameView,
    Action.DROP: _views.DropView,
    Action.REMOVE: _views.DropView,
}
_USERS_VIEWS: Final[dict[Action, type[Mechanism]]] = {
    Action.REBIND: _views.RebindUsersView,
    Action.BRIDGE: _views.BridgeView,
    Action.MARK_BROKEN: _views.MarkBrokenView,
}


def mechanism_of(work: Work, step: Step) -> Mechanism:
    """What does the step."""
    if step.kind is Kind.SINK:
        return SinkStep(work, step)
    of = _USERS_VIEWS if step.user else _VIEWS if step.kind is Kind.VIEW else _TABLES
    return of[step.how](work, step)


def takes_sql(step: Step) -> bool:
    """Whether the step runs SQL, which takes an engine."""
    if step.kind is Kind.VIEW or step.how is Action.REWRITE:
        return True
    return step.how in (Action.CREATE, Action.RECOMPUTE) and "sql" in step.details
