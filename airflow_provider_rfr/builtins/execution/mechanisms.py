"""Mechanisms of the actions: how a step is done, and how the catalog shows that it is. The journal is never asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.desired import instance_id
from airflow_provider_rfr.builtins.execution import _tables, _views
from airflow_provider_rfr.builtins.execution.work import Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.sinks.registry import decide_sink, register_sink, release_snapshots
from airflow_provider_rfr.store.sinks import delete_sink


@dataclass(frozen=True)
class Mechanism:
    """How an action is done.

    :ivar probe: whether it is done; None: the catalog can't show it, and it is done again
    :ivar do: may be called again after it was called, in part or whole
    :ivar evidence: figures of the finished step for the journal, as JSON
    :ivar settle: writes to the store in the transaction in which the step is marked as done
    """

    probe: Callable[[Work, Step], bool | None]
    do: Callable[[Work, Step], None]
    evidence: Callable[[Work, Step], dict[str, Any]] = lambda work, step: {}
    settle: Callable[[Connection, int, Work, Step], None] = lambda connection, now, work, step: None


def mechanism_of(step: Step) -> Mechanism:
    """The mechanism of a step.

    :raises StepError: there is none
    """
    if step.kind is Kind.SINK:
        return _SINK
    if step.user:
        return replace(_VIEW, do=_OF_USERS.get(step.how, _views.rebind_users))
    found = (_VIEWS if step.kind is Kind.VIEW else _TABLES).get(step.how)
    if found is None:
        raise StepError(step.name, step.how.value, f"a {step.kind.value} has no such step", "plan again")
    if step.how is Action.CREATE and (step.kind is Kind.MATERIALIZED_VIEW or step.details.get("lists_objects")):
        return replace(found, do=_tables.create_filled)
    return found


def takes_sql(step: Step) -> bool:
    """Whether the step runs SQL, which takes an engine."""
    if step.kind is Kind.VIEW or step.how is Action.REWRITE:
        return True
    return step.how in (Action.CREATE, Action.RECOMPUTE) and "sql" in step.details


def _let_go(work: Work, step: Step) -> None:
    """A sink is nothing but rows of the store, written when the step is marked as done; one that goes needs no more."""
    sink = next((each for each in work.recorded.sinks if each.uuid == step.uuid), None)
    source = work.recorded.by_uuid.get(sink.source) if sink is not None else None
    if step.how is Action.REMOVE and sink is not None and source is not None:
        release_snapshots(work.catalog, source.name, sink.uuid)


def _settle_sink(connection: Connection, now: int, work: Work, step: Step) -> None:
    """Write the sink's row, by its declaration or by that of the template which it was made from."""
    assert step.uuid is not None
    if step.how is Action.REMOVE:
        delete_sink(connection, step.uuid)
        return
    if step.how not in (Action.CREATE, Action.METADATA):
        about = str(step.details.get("since", work.deploy_id))
        decide_sink(connection, step.uuid, step.how.value, step.reason, now, about=about)
        return
    obj = next((each for each in work.spec.objects if each.id == step.uuid), None)
    record = work.records.get(step.uuid)
    if obj is None and record is not None and (instance := record.instance) is not None:
        obj = next((each for each in work.spec.objects if instance_id(each.id, instance) == step.uuid), None)
    if obj is None or obj.sink is None:
        raise StepError(step.name, step.how.value, "its declaration is missing", "plan again")
    source, columns, renamed = UUID(step.details["source"]), step.details["columns"], step.details.get("renamed", {})
    register_sink(connection, step.uuid, step.name, obj.sink, source, columns, renamed, now)


_SINK = Mechanism(lambda work, step: None, _let_go, settle=_settle_sink)
_ALTER = Mechanism(_tables.probe, _tables.alter, _tables.evidence)
_REPLACE = Mechanism(_tables.probe, _tables.replace_rows, _tables.evidence)
_RETIRE = Mechanism(_tables.probe_retire, _tables.retire, _tables.retired)
_TABLES: dict[Action, Mechanism] = {
    Action.CREATE: Mechanism(_tables.probe, _tables.create, _tables.evidence),
    Action.ADOPT: _ALTER,
    Action.METADATA: _ALTER,
    Action.EVOLVE: _ALTER,
    Action.REWRITE: _REPLACE,
    Action.RECOMPUTE: _REPLACE,
    Action.REPLACE_EMPTY: _REPLACE,
    Action.RENAME: Mechanism(
        _tables.probe_rename, _tables.rename, lambda work, step: {"to": step.details["to"]}, _tables.take_from_garbage
    ),
    Action.DROP: _RETIRE,
    Action.REMOVE: _RETIRE,
}
_VIEW = Mechanism(_views.probe_view, _views.define)
_OF_USERS = {Action.BRIDGE: _views.bridge, Action.MARK_BROKEN: _views.mark_broken}
_DROP = Mechanism(_views.probe_drop, _views.drop)
_VIEWS: dict[Action, Mechanism] = {
    Action.CREATE: _VIEW,
    Action.REPLACE: _VIEW,
    Action.REBIND: _VIEW,
    Action.BRIDGE: replace(_VIEW, do=_views.bridge),
    Action.METADATA: replace(_VIEW, do=_views.describe),
    Action.ADOPT: replace(_VIEW, do=_views.describe),
    Action.RENAME: Mechanism(_views.probe_rename, _views.rename, lambda work, step: {"to": step.details["to"]}),
    Action.DROP: _DROP,
    Action.REMOVE: _DROP,
}
