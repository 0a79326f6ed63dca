"""What is worth a look in a plan and stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from airflow_provider_rfr.builtins.planning import chain
from airflow_provider_rfr.builtins.planning.instruction import short
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.planning.steps import Outcome
from airflow_provider_rfr.builtins.spec import STORED, BuiltinObject, Contents, Kind, Stability
from airflow_provider_rfr.builtins.state import Live, Recorded
from airflow_provider_rfr.builtins.wanted import Tools, Want, Wanted


def lints(outcome: Outcome, wanted: Wanted, recorded: Recorded, live: Live, tools: Tools) -> tuple[str, ...]:
    """All of them, in words."""
    found = [
        *_instructions(wanted),
        *_policies(outcome),
        *_empties(outcome),
        *_user_sinks(wanted, recorded),
        *_user_views(wanted, live),
        *_restamped(wanted, recorded, tools),
        *_unlisted(wanted),
        *_put_aside(outcome),
    ]
    return tuple(dict.fromkeys((*sorted(found), *outcome.removed.warnings, *outcome.user_views.warnings)))


def sink_problem(obj: BuiltinObject) -> str | None:
    """Why a user may not attach a sink to the object; None: they may."""
    if obj.stability is Stability.UNSTABLE:
        return f"{obj.name} is unstable: it may change or go at any time"
    if not obj.exportable:
        return f"{obj.name} is not exportable; make a materialized view over it and export that"
    return None


def view_problem(obj: BuiltinObject) -> str | None:
    """Why a user may not keep a view over the object; None: they may."""
    if obj.stability is Stability.UNSTABLE:
        return f"{obj.name} is unstable: it may change or go at any time"
    return None


def _instructions(wanted: Wanted) -> Iterator[str]:
    for want in wanted.wants.values():
        for each in chain.unused(want.obj.migrations, want.fingerprints.contract.digest):
            yield (
                f"{want.obj.name}: the instruction from {short(each.before)} to {short(each.after)} is unused: it does "
                f"not lead to {short(want.fingerprints.contract.digest)}"
            )


def _policies(outcome: Outcome) -> Iterator[str]:
    """Permissions that nobody needs are not kept for another day."""
    lossy, adopted = set[str](), set[str]()
    for decision in outcome.decisions.values():
        names = {decision.want.key, str(decision.want.uuid)}
        if decision.loses:
            lossy |= names
        if decision.how is Verb.ADOPT:
            adopted.add(decision.want.key)
    for name in sorted(outcome.policies.accept_data_loss - lossy):
        yield f"accept_data_loss names {name}, which loses nothing"
    for name in sorted(outcome.policies.adopt - adopted):
        yield f"adopt names {name}, which is not there to be adopted"


def _empties(outcome: Outcome) -> Iterator[str]:
    for decision in outcome.decisions.values():
        updates = decision.details.get("updates")
        if decision.how is Verb.REPLACE_EMPTY and not _incompatible(decision.words):
            yield f"{decision.want.obj.name} is emptied, though {'evolve' if updates else 'nothing'} would do"


def _incompatible(words: list[str]) -> bool:
    return any(each.startswith("!") or each.endswith(", required") for each in words)


def _user_sinks(wanted: Wanted, recorded: Recorded) -> Iterator[str]:
    for state in recorded.sinks:
        source = wanted.wants.get(state.source)
        if source is not None and state.uuid not in wanted.wants and (problem := sink_problem(source.obj)):
            yield f"sink {state.name} (user): {problem}"


def _user_views(wanted: Wanted, live: Live) -> Iterator[str]:
    by_key: dict[str, Want] = {each.key: each for each in wanted.wants.values()}
    for view in live.user_views:
        for each in view.reads or ():
            if each.name in by_key and (problem := view_problem(by_key[each.name].obj)):
                yield f"view {view.name} (user): {problem}"


def _put_aside(outcome: Outcome) -> Iterator[str]:
    """Nothing is lost by the deploy, but by the collection that comes after it."""
    for each in outcome.decisions.values():
        known, there = each.want.recorded, each.want.live
        if not each.leaves or known is None or known.kind not in STORED or known.contents is Contents.DERIVABLE:
            continue
        if there is not None and there.snapshot_id is not None and there.rows != 0:
            days = outcome.policies.keep_days
            yield f"{known.name}: its rows ({known.contents.value}) are put aside, and deleted by gc after {days} days"


def _unlisted(wanted: Wanted) -> Iterator[str]:
    for each in wanted.unlisted:
        said = f"{each.name} is one object for each {each.per_instance}, and nothing says which there are"
        yield f"{said}: none is made; declare a document of kind instances"


def _restamped(wanted: Wanted, recorded: Recorded, tools: Tools) -> Iterator[str]:
    known: dict[UUID, str] = {
        each.uuid: each.canonicalizer
        for each in recorded.objects
        if each.kind in (Kind.VIEW, Kind.MATERIALIZED_VIEW) and each.uuid in wanted.wants
    }
    others = sorted({each for each in known.values() if each and each != tools.canonicalizer})
    if others:
        count = sum(each in others for each in known.values())
        yield f"{count} queries are written down anew by {tools.canonicalizer}, before by {', '.join(others)}"
