"""References between connections, followed in both directions, and the verdict of a change on each task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.connections.types import Definition, type_named
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.connections import IDLE, Use

Find = Callable[[str], Definition | None]
"""The connection of that id, as its users see it; None if there is none."""


@dataclass(frozen=True, slots=True)
class _Reached:
    """A connection that something uses, and the ids on the way to it; no definition where it can't be read."""

    name: str
    path: tuple[str, ...]
    definition: Definition | None


def references_of(definition: Definition) -> dict[str, str]:
    """Return the ids of other connections, by the option that names them."""
    known = type_named(definition.conn_type)
    found = {}
    for name, value in definition.options():
        option = known.option(name)
        if option is not None and option.is_reference and isinstance(value, str):
            found[name] = value
    return found


def closure(names: Iterable[str], find: Find) -> dict[str, _Reached]:
    """Return those connections and all that they refer to, by id."""
    reached: dict[str, _Reached] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    while todo:
        name, path = todo.pop(0)
        if name in reached:
            continue
        definition = find_readable(find, name)
        reached[name] = _Reached(name, path, definition)
        if definition is not None:
            todo += [(other, (*path, other)) for other in references_of(definition).values()]
    return reached


def find_readable(find: Find, name: str) -> Definition | None:
    """Return the connection; None also if it can't be read, which concerns only its users."""
    try:
        return find(name)
    except ConfigurationError:
        return None


def cycle(candidate: Definition, find: Find) -> tuple[str, ...] | None:
    """Return the path of references from the candidate back to itself; None if there is none."""
    reached = closure(references_of(candidate).values(), find).get(candidate.name)
    return None if reached is None else (candidate.name, *reached.path)


def paths_to(name: str, uses: Sequence[Use], find: Find) -> Mapping[str, tuple[str, ...]]:
    """Return the path to the connection, by consumer; as it was registered, else by the present references."""
    paths: dict[str, tuple[str, ...]] = {}
    for other in sorted({connection.conn_id for use in uses for connection in use.connections}):
        reached = closure([other], find).get(name)
        if reached is not None:
            paths[other] = reached.path
    found: dict[str, tuple[str, ...]] = {}
    for use in uses:
        own = use.of(name)
        if own is not None:
            found[use.task.consumer] = tuple(own.via.split(" > "))
            continue
        path = next((paths[connection.conn_id] for connection in use.connections if connection.conn_id in paths), None)
        if path is not None:
            found[use.task.consumer] = path
    return found


class Verdict(str, Enum):
    """The consequence of a change for a task."""

    UNAFFECTED = "unaffected"
    RESTART = "restart"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Dependent:
    """A task that uses the connection; ``via``: ids from the connection that it names to the one that is altered."""

    use: Use
    via: tuple[str, ...]
    verdict: Verdict
    reason: str

    def to_json(self, outcome: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {
            "kind": self.use.kind,
            **asdict(self.use.task),
            "via": list(self.via),
            "verdict": self.verdict.value,
            "reason": self.reason,
        }
        return {**values, "outcome": outcome} if outcome else values

    def line(self, word: str, detail: str) -> str:
        way = f" by {' > '.join(self.via)}" if len(self.via) > 1 else ""
        return f"{word}{self.use.kind} {self.use.task}{way}: {detail}"


_STATES: Final = {
    "running": "it runs",
    "deferred": "it runs in a cluster",
    "failed": "it failed",
    "idle": "it does not run",
}


def judge(
    name: str, new_hash: str | None, options: Collection[str], uses: Sequence[Use], find: Find
) -> tuple[Dependent, ...]:
    """Return all tasks that use the connection, and the verdict of a change of these options on each.

    :param new_hash: of the content as it would be; None if nothing is to change
    """
    paths = paths_to(name, uses, find)
    found = []
    for use in uses:
        if use.task.consumer not in paths:
            continue
        verdict, reason = Verdict.RESTART, _STATES.get(use.state, use.state)
        own, fixed = use.of(name), sorted(set(options) & set(use.details.get("fixed", {}).get(name, ())))
        if new_hash is None:
            verdict = Verdict.UNAFFECTED
        elif fixed:
            verdict, reason = Verdict.INCOMPATIBLE, f"it can't adopt another {', '.join(fixed)}"
        elif own is not None and own.running == new_hash and own.wanted in (None, new_hash):
            verdict, reason = Verdict.UNAFFECTED, "it has these settings already"
        elif use.state == IDLE:
            verdict, reason = Verdict.UNAFFECTED, "it does not run; its next run takes the new settings"
        found.append(Dependent(use, paths[use.task.consumer], verdict, reason))
    return tuple(found)
