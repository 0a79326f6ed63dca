"""What uses a connection, by any number of steps, and what a change means for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_rfr.connections.references import Find, users_of
from airflow_provider_rfr.store.connections import IDLE, Use


class Verdict(str, Enum):
    """What a change means for a task."""

    UNAFFECTED = "unaffected"
    RESTART = "restart"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Dependent:
    """A task that uses the connection.

    :ivar via: ids on the way from the connection that it names to the one that is altered
    :ivar reason: why it is so
    """

    use: Use
    via: tuple[str, ...]
    verdict: Verdict
    reason: str

    def to_json(self, outcome: str = "") -> dict[str, Any]:
        """As audit and the task's result tell it."""
        task = self.use.task
        told: dict[str, Any] = {
            "kind": self.use.kind,
            "dag_id": task.dag_id,
            "task_id": task.task_id,
            "run_id": task.run_id,
            "map_index": task.map_index,
            "via": list(self.via),
            "verdict": self.verdict.value,
            "reason": self.reason,
        }
        return {**told, "outcome": outcome} if outcome else told


def judged(
    name: str, new_hash: str | None, options: Collection[str], uses: Sequence[Use], find: Find
) -> tuple[Dependent, ...]:
    """Everything that uses the connection, and what the change means for it.

    :param new_hash: of the content as it would be; None where nothing is to change
    :param options: names of what changes
    :param find: connections as they are stored now
    """
    ways = reaching(name, uses, find)
    return tuple(
        Dependent(use, ways[use.task.consumer], *_verdict(name, new_hash, options, use))
        for use in uses
        if use.task.consumer in ways
    )


def reaching(name: str, uses: Sequence[Use], find: Find) -> Mapping[str, tuple[str, ...]]:
    """The way to the connection, by consumer; as it was registered, else as the connections now refer to it."""
    known = {each.conn_id for use in uses for each in use.connections}
    ways = users_of(name, sorted(known), find)
    found: dict[str, tuple[str, ...]] = {}
    for use in uses:
        own = use.of(name)
        if own is not None:
            found[use.task.consumer] = tuple(own.via.split(" > "))
            continue
        way = next((ways[each.conn_id] for each in use.connections if each.conn_id in ways), None)
        if way is not None:
            found[use.task.consumer] = way
    return found


def _verdict(name: str, new_hash: str | None, options: Collection[str], use: Use) -> tuple[Verdict, str]:
    own = use.of(name)
    if new_hash is None:
        return Verdict.UNAFFECTED, _STATES.get(use.state, use.state)
    fixed = sorted(set(options) & set(use.details.get("fixed", {}).get(name, ())))
    if fixed:
        return Verdict.INCOMPATIBLE, f"it can't adopt another {', '.join(fixed)}"
    if own is not None and own.running == new_hash and own.wanted in (None, new_hash):
        return Verdict.UNAFFECTED, "it has these settings already"
    if use.state == IDLE:
        return Verdict.UNAFFECTED, "it does not run; its next run takes the new settings"
    return Verdict.RESTART, _STATES.get(use.state, use.state)


_STATES = {
    "running": "it runs",
    "deferred": "it runs in a cluster",
    "stalled": "it failed",
    "idle": "it does not run",
}
