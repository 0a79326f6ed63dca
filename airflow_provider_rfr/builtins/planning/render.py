"""A plan for people: one line an object, with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from airflow_provider_rfr.builtins.planning.plan import Action, Dependent, Plan, Step, summary
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
"""Actions whose reason says more than their changes."""
_OF_DEPENDENTS: Final = frozenset({Action.BRIDGE, Action.HOLD, Action.RESUME_FROM_NEW, Action.RESEND})
"""Actions that the line of a dependent shows, or that end with the deploy."""
_DEEPER: Final = 4
"""Characters by which a dependent is indented."""
_SHOWN_STALE: Final = 5
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object, or a dependent below it.

    :ivar said: lines about it
    :ivar paste: lines of YAML for its declaration, which is at ``place``
    """

    sign: str
    kind: Kind
    name: str
    how: str
    said: tuple[str, ...]
    paste: tuple[str, ...] = ()
    place: str | None = None
    below: bool = False


def render(plan: Plan) -> str:
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    recorded = f"recorded at rev {plan.base_revision} ({plan.recorded_version})" if plan.recorded_version else "new"
    base = f"plan {plan.plan_hash[:12]}  base rev {plan.base_revision}"
    yield f'Catalog "{plan.project}" {recorded}, wanted {plan.version}    {base}'
    entries = list(_entries(plan))
    width = max((24, *(len(each.name) + _DEEPER * each.below for each in entries)))
    for each in entries:
        indent, kind = " " * (6 if each.below else 2), each.kind.value.replace("materialized_view", "mview")
        name = f"{kind:<{6 - each.below}} {each.name:<{width - _DEEPER * each.below}}"
        start = f"{indent}{each.sign} {name} {each.how:<15} "
        yield f"{start}{each.said[0]}".rstrip()
        yield from (f"{'':<{len(start)}}{line}" for line in each.said[1:])
        yield from (f"        write:  {line}{f'    # {each.place}' if each.place else ''}" for line in each.paste)
    yield from (f"  # {what:<6} {note}" for what, note in _notes(plan))
    yield _last_line(plan)


def _entries(plan: Plan) -> Iterator[_Entry]:
    """Each object with its dependents, and theirs where they have no entry of their own; each once."""
    nested: dict[UUID | None, list[Dependent]] = defaultdict(list)
    for dependent in plan.dependents:
        nested[dependent.on].append(dependent)
    shown = {(each.uuid, each.name) for each in plan.dependents if each.how in ("rebind", "break")}
    steps = [each for each in plan.steps if not _is_shown(each, shown)]
    own = {each.uuid for each in steps}

    def below(on: UUID | None) -> Iterator[_Entry]:
        for each in nested.pop(on, ()):
            yield _Entry("->", each.kind, _name(each), each.how, (str(each.reason),), below=True)
            if each.uuid not in own:
                yield from below(each.uuid)

    for step in steps:
        said = tuple(_said(step)) or ("",)
        yield _Entry(_SIGNS.get(step.how, "~"), step.kind, _name(step), step.how.value, said)
        yield from below(step.uuid)
    for blocked in plan.blocked:
        said = (*map(str, blocked.problems), *blocked.changes)
        yield _Entry("!", blocked.kind, blocked.name, "BLOCKED", said, blocked.paste, blocked.place)
        yield from below(blocked.uuid)
    for on in list(nested):
        yield from below(on)


def _name(each: Step | Dependent) -> str:
    return f"{each.name}  (user)" if each.user else each.name


def _is_shown(step: Step, shown: set[tuple[UUID | None, str]]) -> bool:
    """Whether the entry of a dependent shows it, below the object that is its cause."""
    of_view = step.how in (Action.REBIND, Action.MARK_BROKEN) and (step.uuid, step.name) in shown
    return of_view or step.how in _OF_DEPENDENTS


def _said(step: Step) -> Iterator[str]:
    if (step.how in _REASON_FIRST or not step.changes) and (reason := _reason(step)):
        yield reason
    yield from step.changes
    for column, expression in dict(step.details.get("expressions", {})).items():
        yield f"= {column}: {expression}"
    if step.how in _HINTS:
        yield f"{_HINTS[step.how]}{_size(step)}"
    for lost in step.losses:
        yield f"LOST: {lost}"


def _reason(step: Step) -> str:
    if step.how is Action.RENAME:
        return f"-> {step.details['to']}"
    if step.how in (Action.REMOVE, Action.DROP) and step.kind in STORED:
        return f"{step.reason}; physical kept {step.details['keep_days']} days{_size(step)}"
    return step.reason


def _size(step: Step) -> str:
    rows = [f"~{''.join(_scaled(step.rows, 1))} rows"] if step.rows is not None else []
    size = [f"{' '.join(_scaled(step.bytes, 0))}B"] if step.bytes is not None else []
    return f"   {' / '.join([*rows, *size])}" if rows or size else ""


def _scaled(number: int, digits: int) -> tuple[str, str]:
    """The number as a person reads it, and the prefix of its unit."""
    power = min((len(str(number)) - 1) // 3, len(_PREFIXES) - 1)
    return f"{number / 1000**power:.{digits if power else 0}f}", _PREFIXES[power]


def _notes(plan: Plan) -> Iterator[tuple[str, str]]:
    """What is worth a look, each with its kind."""
    for each in plan.drift:
        yield "drift", f"{each}  (policy: {plan.policies.drift})"
    yield from (("note", warning) for warning in plan.warnings)
    if plan.stale:
        more = [f"and {len(plan.stale) - _SHOWN_STALE} more"] if len(plan.stale) > _SHOWN_STALE else []
        names = " ".join([", ".join(plan.stale[:_SHOWN_STALE]), *more])
        yield "note", f"`was` and `removed` no longer needed here: {names}; delete them once no lake needs them"


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
