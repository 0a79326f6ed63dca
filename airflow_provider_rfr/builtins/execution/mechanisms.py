"""Mechanisms of the actions: probe how far a step is, do it, verify it. Probes ask the catalog, never the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.desired import instance_id
from airflow_provider_rfr.builtins.execution import _shadow_tables, _tables, _views
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plan import Action, Step
from airflow_provider_rfr.builtins.sinks import apply_sink_step, release_snapshots
from airflow_provider_rfr.builtins.spec import BuiltinObject, Kind
from airflow_provider_rfr.exceptions import StepError


def _engine(step: Step) -> bool:
    return True


@dataclass(frozen=True)
class Mechanism:
    """How an action is done.

    :ivar do: may be called again after it was called, in part or whole
    :ivar verify: raises StepError where the step is not done
    :ivar leaves: names of tables that the step leaves next to the object
    :ivar needs_engine: whether SQL has to run
    """

    probe: Callable[[Work, Step], Probe]
    do: Callable[[Work, Step], None]
    verify: Callable[[Work, Step], Done]
    leaves: Callable[[Work, Step], tuple[str, ...]] = lambda work, step: ()
    needs_engine: Callable[[Step], bool] = lambda step: False


def mechanism_of(step: Step) -> Mechanism:
    """The mechanism of a step.

    :raises StepError: there is none
    """
    if step.kind is Kind.SINK:
        return _SINK
    if step.user:
        return replace(_VIEW, do=_views.rebind_users)
    found = (_VIEWS if step.kind is Kind.VIEW else _TABLES).get(step.how)
    if found is None:
        raise StepError(step.name, step.how.value, f"a {step.kind.value} has no such step", "plan again")
    if step.how is Action.CREATE and (step.kind is Kind.MATERIALIZED_VIEW or "generated" in step.details):
        return _FILLED
    return found


def _is_query(step: Step) -> bool:
    return "sql" in step.details


def _let_go(work: Work, step: Step) -> None:
    """A sink is nothing but rows of the store, written when the step is marked as done; one that goes needs no more."""
    sink = next((each for each in work.recorded.sinks if each.uuid == step.uuid), None)
    source = work.recorded.by_uuid.get(sink.source) if sink is not None else None
    if step.how is Action.REMOVE and sink is not None and source is not None:
        release_snapshots(work.catalog, source.physical, sink.uuid)


def _settle_sink(work: Work, step: Step) -> Done:
    obj = _declared(work, step)

    def settle(connection: Connection, now: int) -> None:
        apply_sink_step(connection, step, obj, now, deploy_id=work.deploy_id)

    return Done(settle=settle)


def _declared(work: Work, step: Step) -> BuiltinObject | None:
    """The object as it is declared; one of several, if it was generated from a template."""
    found = next((each for each in work.spec.objects if each.id == step.uuid), None)
    record = work.records.get(step.uuid) if isinstance(step.uuid, UUID) else None
    if found is not None or record is None or record.instance is None:
        return found
    instance = record.instance
    template = next((each for each in work.spec.objects if instance_id(each.id, instance) == step.uuid), None)
    return None if template is None else replace(template, id=record.uuid, name=record.name)


_SINK = Mechanism(lambda work, step: Probe.NOT_DONE, _let_go, _settle_sink)
_ALTER = Mechanism(_tables.probe, _tables.alter, _tables.verify)
_RETIRE = Mechanism(
    _shadow_tables.probe_retire,
    _shadow_tables.retire,
    _shadow_tables.verify_retire,
    lambda work, step: (work.retired_name(step.name),),
)
_FILLED = Mechanism(_tables.probe, _tables.create_filled, _tables.verify, needs_engine=_is_query)
_TABLES: dict[Action, Mechanism] = {
    Action.CREATE: Mechanism(_tables.probe, _tables.create, _tables.verify),
    Action.ADOPT: _ALTER,
    Action.METADATA: _ALTER,
    Action.EVOLVE: _ALTER,
    Action.REWRITE: Mechanism(_tables.probe, _tables.rewrite, _tables.verify, needs_engine=_engine),
    Action.SHADOW: Mechanism(
        _shadow_tables.probe_shadow,
        _shadow_tables.shadow,
        _shadow_tables.verify_shadow,
        lambda work, step: (work.retired_name(step.name), str(step.details["shadow"])),
        _engine,
    ),
    Action.RECOMPUTE: Mechanism(_tables.probe, _tables.recompute, _tables.verify, needs_engine=_is_query),
    Action.REPLACE_EMPTY: Mechanism(_tables.probe, _tables.empty, _tables.verify),
    Action.RENAME: Mechanism(_shadow_tables.probe_rename, _shadow_tables.rename, _shadow_tables.verify_rename),
    Action.DROP: _RETIRE,
    Action.REMOVE: _RETIRE,
}
_VIEW = Mechanism(_views.probe_view, _views.define, _views.verify_view, needs_engine=_engine)
_DROP = Mechanism(_views.probe_drop, _views.drop, _views.verify_drop, needs_engine=_engine)
_VIEWS: dict[Action, Mechanism] = {
    Action.CREATE: _VIEW,
    Action.REPLACE: _VIEW,
    Action.REBIND: _VIEW,
    Action.METADATA: replace(_VIEW, do=_views.describe),
    Action.ADOPT: replace(_VIEW, do=_views.describe),
    Action.RENAME: Mechanism(_views.probe_rename, _views.rename, _views.verify_rename, needs_engine=_engine),
    Action.DROP: _DROP,
    Action.REMOVE: _DROP,
}
