"""A plan for people: one line an object, with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from airflow_provider_rfr.builtins.planning.plan import Action, Dependent, Finding, Plan, Step, summary
from airflow_provider_rfr.builtins.spec import STORED, Kind

_SIGNS: Final = {
    Action.CREATE: "+",
    Action.ADOPT: "+",
    Action.REWRITE: "±",
    Action.RECOMPUTE: "±",
    Action.REPLACE_EMPTY: "∅",
    Action.REMOVE: "-",
    Action.DROP: "-",
}
_HINTS: Final = {
    Action.REWRITE: "in place, history kept",
    Action.RECOMPUTE: "from its query, in place",
    Action.REPLACE_EMPTY: "emptied: its rows may be made again",
}
_REASON_FIRST: Final = frozenset(
    {Action.CREATE, Action.ADOPT, Action.REMOVE, Action.DROP, Action.RENAME, Action.REPLACE, Action.REBIND}
)
"""Their reasons say more than their changes."""
_OF_DEPENDENTS: Final = frozenset({Action.BRIDGE, Action.HOLD, Action.RESUME_FROM_NEW, Action.RESEND})
"""Shown by the line of a dependent, or over with the deploy."""


def render(plan: Plan) -> str:
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    recorded = f"recorded at rev {plan.base_revision} ({plan.recorded_version})" if plan.recorded_version else "new"
    base = f"plan {plan.plan_hash[:12]}  base rev {plan.base_revision}"
    yield f'Catalog "{plan.project}" {recorded}, wanted {plan.version}    {base}'
    yield from _entries(plan)
    yield from (f"  # drift  {finding}  (policy: {plan.policies.drift})" for finding in plan.drift)
    yield from (f"  # note   {warning}" for warning in plan.warnings)
    if plan.stale:
        names = ", ".join(plan.stale)
        yield f"  # note   `was` and `removed` no longer needed here: {names}; delete them once no lake needs them"
    yield _last_line(plan)


def _entries(plan: Plan) -> Iterator[str]:
    """Yield the lines of each object once, with its dependents, and theirs where they have no entry of their own."""
    nested: dict[UUID | None, list[Dependent]] = defaultdict(list)
    for dependent in plan.dependents:
        nested[dependent.on].append(dependent)
    steps = _steps_of_their_own(plan)
    own = {step.uuid for step in steps}
    # Names are behind indent, sign and kind.
    names = [*map(_name, steps), *(finding.name for finding in plan.blocked)]
    deeper = max((len(_name(dependent)) for dependent in plan.dependents), default=0)
    width = max(35, 11 + max(map(len, names), default=0), 15 + deeper)

    def entry(start: str, name: str, how: str, said: Sequence[str]) -> Iterator[str]:
        start = f"{start + name:<{width}} {how:<15} "
        yield f"{start}{said[0] if said else ''}".rstrip()
        yield from (f"{'':<{len(start)}}{line}" for line in said[1:])

    def below(on: UUID | None) -> Iterator[str]:
        for affected in nested.pop(on, ()):
            yield from entry(f"      -> {_kind(affected):<5} ", _name(affected), affected.how, [str(affected.reason)])
            if affected.uuid not in own:
                yield from below(affected.uuid)

    for step in steps:
        sign = _SIGNS.get(step.how, "~")
        yield from entry(f"  {sign} {_kind(step):<6} ", _name(step), step.how.value, [*_said(step)])
        yield from below(step.uuid)
    for finding in plan.blocked:
        said = [*map(str, finding.problems), *finding.changes]
        yield from entry(f"  ! {_kind(finding):<6} ", finding.name, "BLOCKED", said)
        yield from (
            f"        write:  {line}{f'    # {finding.place}' if finding.place else ''}" for line in finding.paste
        )
        yield from below(finding.uuid)
    for on in list(nested):
        yield from below(on)


def _steps_of_their_own(plan: Plan) -> list[Step]:
    """Return the steps that are not shown below their cause, as those of views that are issued again or broken are."""
    shown = {(dependent.uuid, dependent.name) for dependent in plan.dependents if dependent.how in ("rebind", "break")}
    of_views = (step for step in plan.steps if step.how in (Action.REBIND, Action.MARK_BROKEN))
    placed = {step.seq for step in of_views if (step.uuid, step.name) in shown}
    return [step for step in plan.steps if step.seq not in placed and step.how not in _OF_DEPENDENTS]


def _kind(each: Step | Dependent | Finding) -> str:
    return "mview" if each.kind is Kind.MATERIALIZED_VIEW else each.kind.value


def _name(each: Step | Dependent) -> str:
    return f"{each.name}  (user)" if each.user else each.name


def _said(step: Step) -> Iterator[str]:
    if (step.how in _REASON_FIRST or not step.changes) and (reason := _reason(step)):
        yield reason
    yield from step.changes
    for column, expression in dict(step.details.get("expressions", {})).items():
        yield f"= {column}: {expression}"
    if step.how in _HINTS:
        yield f"{_HINTS[step.how]}{_size(step)}"
    for lost in step.losses.values():
        yield f"LOST: {lost}"


def _reason(step: Step) -> str:
    if step.how is Action.RENAME:
        return f"-> {step.details['to']}"
    if step.how in (Action.REMOVE, Action.DROP) and step.kind in STORED:
        return f"{step.reason}; physical kept {step.details['keep_days']} days{_size(step)}"
    return step.reason


def _size(step: Step) -> str:
    rows = [f"~{step.rows:,} rows"] if step.rows is not None else []
    size = [f"{step.bytes / 1000:,.0f} kB"] if step.bytes is not None else []
    return f"   {' / '.join([*rows, *size])}" if rows or size else ""


def _last_line(plan: Plan) -> str:
    found = summary(plan)
    if not plan.steps and plan.applicable:
        if plan.done:
            return f"Nothing left but to record {_count(plan.done, 'object')} that an unfinished deploy changed."
        return f"No changes: {_count(found['unchanged'], 'object')} as declared."
    parts = [
        *(f"{found[name]} to {name}" for name in ("add", "change", "remove")),
        _count(found["rebind"], "rebind"),
        *(f"{found[name]} {word}" for name, word in (("blocked", "blocked"), ("drift", "drifted")) if found[name]),
        f"{found['data_loss']} data loss",
    ]
    stopped = "" if plan.applicable else " Nothing is done until what is blocked is decided."
    return f"Plan: {', '.join(parts)}.{stopped}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
