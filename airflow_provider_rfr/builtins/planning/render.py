"""A plan for people: text for a terminal, Markdown for a pull request. One line an object, with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import Final
from uuid import UUID

from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Plan, Step, summary
from airflow_provider_rfr.builtins.reasons import Reason
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
_KINDS: Final = {Kind.MATERIALIZED_VIEW: "mview"}
_DEEPER: Final = 4
"""By so many characters a dependent's name begins further to the right."""
_SHOWN_STALE: Final = 5
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def render(plan: Plan, *, markdown: bool = False) -> str:
    return "\n".join(_markdown(plan) if markdown else _text(plan))


def _text(plan: Plan) -> Iterator[str]:
    recorded = f"recorded at rev {plan.base_revision} ({plan.recorded_version})" if plan.recorded_version else "new"
    base = f"plan {plan.plan_hash[:12]}  base rev {plan.base_revision}"
    yield f'Catalog "{plan.project}" {recorded}, wanted {plan.version}    {base}'
    nested: dict[UUID, list[Dependent]] = defaultdict(list)
    for dependent in plan.dependents:
        nested[dependent.on].append(dependent)
    said = {(each.uuid, each.name) for each in plan.dependents if each.how in ("rebind", "break")}
    steps = [each for each in plan.steps if not _said_elsewhere(each, said)]
    own = {each.uuid for each in steps}
    names = [len(_name(each)) for each in steps] + [len(each.name) for each in plan.blocked]
    width = max((24, *names, *(len(_name(each)) + _DEEPER for each in plan.dependents)))
    for step in steps:
        first, *rest = (*step.changes, *_hints(step)) or ("",)
        if step.how in _REASON_FIRST or not step.changes:
            first, rest = _reason(step), [*step.changes, *_hints(step)]
        start = f"  {_SIGNS.get(step.how, '~')} {_kind(step.kind):<6} {_name(step):<{width}} {step.how.value:<15} "
        yield f"{start}{first}".rstrip()
        yield from (f"{'':<{len(start)}}{line}" for line in rest)
        yield from _below(step.uuid, nested, own, width)
    for blocked in plan.blocked:
        yield from _blocked(blocked, width)
        yield from _below(blocked.uuid, nested, own, width)
    for on in list(nested):
        yield from _below(on, nested, own, width)
    yield from (f"  # drift  {each.name}: {_joined(each.problems)}  (policy: {each.policy})" for each in plan.drift)
    yield from (f"  # note   {note}" for note in _notes(plan))
    yield _last_line(plan)


def _notes(plan: Plan) -> Iterator[str]:
    yield from plan.warnings
    if plan.stale:
        more = f" and {len(plan.stale) - _SHOWN_STALE} more" if len(plan.stale) > _SHOWN_STALE else ""
        names = f"{', '.join(plan.stale[:_SHOWN_STALE])}{more}"
        yield f"`was` and `removed` meet nothing here any more: {names}; delete them once no lake needs them"


def _joined(problems: Iterable[Reason]) -> str:
    return "; ".join(map(str, problems))


def _last_line(plan: Plan) -> str:
    found = summary(plan)
    if not plan.steps and plan.applicable and plan.done:
        return f"Nothing left but to record {_count(plan.done, 'object')} that an unfinished deploy changed."
    if not plan.steps and plan.applicable:
        return f"No changes: {_count(found['unchanged'], 'object')} as declared."
    parts = [
        f"{found['add']} to add",
        f"{found['change']} to change",
        f"{found['remove']} to remove",
        _count(found["rebind"], "rebind"),
        *([f"{found['blocked']} blocked"] if found["blocked"] else []),
        *([f"{found['drift']} drifted"] if found["drift"] else []),
        f"{found['data_loss']} data loss",
    ]
    stopped = "" if plan.applicable else " Nothing is done until what is blocked is decided."
    return f"Plan: {', '.join(parts)}.{stopped}"


def _name(each: Step | Dependent) -> str:
    return f"{each.name}{'  (user)' if each.user else ''}"


def _below(
    on: UUID | None, nested: dict[UUID, list[Dependent]], own: Container[UUID | None], width: int
) -> Iterator[str]:
    """The dependents of an object, and theirs where they have no line of their own; each once."""
    if on is None:
        return
    for each in nested.pop(on, ()):
        yield _dependent(each, width)
        if each.uuid is not None and each.uuid not in own:
            yield from _below(each.uuid, nested, own, width)


def _said_elsewhere(step: Step, said: Container[tuple[UUID | None, str]]) -> bool:
    """Whether a step is a line below the object that is its cause."""
    if step.how is Action.BRIDGE:
        return True
    if step.kind is Kind.SINK and step.how in (Action.HOLD, Action.RESUME_FROM_NEW, Action.RESEND):
        return True
    return step.how in (Action.REBIND, Action.MARK_BROKEN) and (step.uuid, step.name) in said


def _reason(step: Step) -> str:
    if step.how is Action.RENAME:
        return f"-> {step.details['to']}"
    if step.how in (Action.REMOVE, Action.DROP) and step.kind in STORED:
        return f"{step.reason}; physical kept {step.details['keep_days']} days{_size(step)}"
    return step.reason


def _hints(step: Step) -> Iterator[str]:
    for column, expression in dict(step.details.get("expressions", {})).items():
        yield f"= {column}: {expression}"
    if step.how in _HINTS:
        yield f"{_HINTS[step.how]}{_size(step)}"
    for lost in step.losses:
        yield f"LOST: {lost}"


def _size(step: Step) -> str:
    parts = []
    if step.rows is not None:
        units = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))
        shown = (f"{step.rows / limit:.1f}{unit}" for limit, unit in units if step.rows >= limit)
        parts.append(f"~{next(shown, step.rows)} rows")
    if step.bytes is not None:
        size, unit = float(step.bytes), 0
        while size >= 1000 and unit < len(_UNITS) - 1:
            size, unit = size / 1000, unit + 1
        parts.append(f"{size:.0f} {_UNITS[unit]}")
    return f"   {' / '.join(parts)}" if parts else ""


def _dependent(each: Dependent, width: int = 0) -> str:
    return (
        f"      -> {_kind(each.kind):<5} {_name(each):<{max(0, width - _DEEPER)}} {each.how:<15} {each.reason}".rstrip()
    )


def _blocked(blocked: Blocked, width: int) -> Iterator[str]:
    first, *rest = map(str, blocked.problems)
    start = f"  ! {_kind(blocked.kind):<6} {blocked.name:<{width}} {'BLOCKED':<15} "
    yield f"{start}{first}"
    yield from (f"{'':<{len(start)}}{line}" for line in (*rest, *blocked.changes))
    for line in blocked.paste:
        yield f"        write:  {line}{f'    # {blocked.place}' if blocked.place else ''}"


def _markdown(plan: Plan) -> Iterator[str]:
    mark = "❌" if not plan.applicable else "✅" if not plan.steps else "📝"
    yield f"### {mark} Built-in objects: {_escaped(_last_line(plan))}"
    yield ""
    yield f"`{plan.project}` {plan.recorded_version or 'new'} → {plan.version}, base revision {plan.base_revision}"
    if plan.steps:
        yield from ("", "| | object | how | why | lost |", "|---|---|---|---|---|")
        for step in plan.steps:
            name = f"`{step.name}`{' (user)' if step.user else ''}"
            why = "<br>".join(_escaped(each) for each in (_reason(step), *step.changes) if each)
            lost = _escaped(", ".join(step.losses)) or "nothing"
            yield f"| {_SIGNS.get(step.how, '~')} | {step.kind.value} {name} | {step.how.value} | {why} | {lost} |"
    lines = [_dependent(each) for each in plan.dependents]
    if lines:
        yield from (
            "",
            "<details><summary>Dependents</summary>",
            "",
            "```",
            *map(str.strip, lines),
            "```",
            "</details>",
        )
    for blocked in plan.blocked:
        yield from ("", f"**Blocked: {_escaped(blocked.name)}**", "")
        yield from (f"- {_escaped(str(each))}" for each in (*blocked.problems, *blocked.changes))
        if blocked.paste:
            yield from ("", "```yaml", *blocked.paste, "```")
    notes = [f"drift: {each.name}: {_joined(each.problems)} ({each.policy})" for each in plan.drift]
    if notes := [*notes, *_notes(plan)]:
        yield from ("", *(f"- {_escaped(each)}" for each in notes))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _kind(kind: Kind) -> str:
    return _KINDS.get(kind, kind.value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
