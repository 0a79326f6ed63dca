"""Three functions for each verb: look how far it is, do it, look whether it is done.

``probe`` asks the catalog and never the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.execution import shadow_tables as names
from airflow_provider_rfr.builtins.execution import shadow_tables as shadows
from airflow_provider_rfr.builtins.execution import tables, views
from airflow_provider_rfr.builtins.execution import tables as rows
from airflow_provider_rfr.builtins.execution.work import Done, Probe, Work
from airflow_provider_rfr.builtins.planning.plan import Step, Verb
from airflow_provider_rfr.builtins.sinks import apply_sink_step, release_snapshots
from airflow_provider_rfr.builtins.spec import BuiltinObject, Kind
from airflow_provider_rfr.builtins.wanted import instance_id
from airflow_provider_rfr.exceptions import StepError


def _leaves_nothing(work: Work, step: Step) -> tuple[str, ...]:
    return ()


def _no_engine(step: Step) -> bool:
    return False


def _engine(step: Step) -> bool:
    return True


@dataclass(frozen=True)
class Mechanism:
    """How a verb is done.

    :ivar do: may be called again after it was called, in part or whole
    :ivar verify: raises StepError where the step is not done
    :ivar leaves: names of tables that the step leaves beside the object
    :ivar needs_engine: whether SQL has to run
    """

    probe: Callable[[Work, Step], Probe]
    do: Callable[[Work, Step], None]
    verify: Callable[[Work, Step], Done]
    leaves: Callable[[Work, Step], tuple[str, ...]] = _leaves_nothing
    needs_engine: Callable[[Step], bool] = _no_engine


def mechanism_of(step: Step) -> Mechanism:
    """What does the step.

    :raises StepError: nothing does
    """
    if step.kind is Kind.SINK:
        return _SINK
    if step.user:
        return replace(_VIEW, do=views.rebind_users)
    found = (_VIEWS if step.kind is Kind.VIEW else _TABLES).get(step.how)
    if found is None:
        raise StepError(step.name, step.how.value, f"a {step.kind.value} has no such step", "plan again")
    if step.how is Verb.CREATE and (step.kind is Kind.MATERIALIZED_VIEW or "generated" in step.details):
        return _FILLED
    return found


def _shadow_and_aside(work: Work, step: Step) -> tuple[str, ...]:
    return (*names.aside_names(work, step), str(step.details["shadow"]))


def _is_query(step: Step) -> bool:
    return "sql" in step.details


def _let_go(work: Work, step: Step) -> None:
    """A sink is nothing but rows of the store, written when the step is marked as done; one that goes needs no more."""
    sink = next((each for each in work.recorded.sinks if each.uuid == step.uuid), None)
    source = work.recorded.by_uuid.get(sink.source) if sink is not None else None
    if step.how is Verb.REMOVE and sink is not None and source is not None:
        release_snapshots(work.catalog, source.physical, sink.uuid)


def _not_done(work: Work, step: Step) -> Probe:
    return Probe.NOT_DONE


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


_SINK = Mechanism(_not_done, _let_go, _settle_sink)
_ALTER = Mechanism(tables.probe, tables.alter, tables.verify)
_ASIDE = Mechanism(names.probe_aside, names.put_aside, names.verify_aside, names.aside_names)
_FILLED = Mechanism(tables.probe, rows.create_filled, tables.verify, needs_engine=_is_query)
_TABLES: dict[Verb, Mechanism] = {
    Verb.CREATE: Mechanism(tables.probe, tables.create, tables.verify),
    Verb.ADOPT: _ALTER,
    Verb.METADATA: _ALTER,
    Verb.EVOLVE: _ALTER,
    Verb.REWRITE: Mechanism(tables.probe, rows.rewrite, tables.verify, needs_engine=_engine),
    Verb.SHADOW: Mechanism(shadows.probe_shadow, shadows.shadow, shadows.verify_shadow, _shadow_and_aside, _engine),
    Verb.RECOMPUTE: Mechanism(tables.probe, rows.recompute, tables.verify, needs_engine=_is_query),
    Verb.REPLACE_EMPTY: Mechanism(tables.probe, rows.empty, tables.verify),
    Verb.RENAME: Mechanism(names.probe_rename, names.rename, names.verify_rename),
    Verb.DROP: _ASIDE,
    Verb.REMOVE: _ASIDE,
}
_VIEW = Mechanism(views.probe_view, views.define, views.verify_view, needs_engine=_engine)
_DROP = Mechanism(views.probe_drop, views.drop, views.verify_drop, needs_engine=_engine)
_VIEWS: dict[Verb, Mechanism] = {
    Verb.CREATE: _VIEW,
    Verb.REPLACE: _VIEW,
    Verb.REBIND: _VIEW,
    Verb.METADATA: replace(_VIEW, do=views.describe),
    Verb.ADOPT: replace(_VIEW, do=views.describe),
    Verb.RENAME: Mechanism(views.probe_rename, views.rename, views.verify_rename, needs_engine=_engine),
    Verb.DROP: _DROP,
    Verb.REMOVE: _DROP,
}
