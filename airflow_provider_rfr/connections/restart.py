"""After a change: what runs with the old copy stops at its next checkpoint, and goes on from there with the new one.

Which copy a task ought to have is written into the control store; a task that runs looks there, stops its driver,
reads its connections anew and goes on, all in the same try. So the old driver has ended before the new one begins,
and whoever dies meanwhile leaves nothing behind that a later look would not find: wanted and running hash differ.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_rfr.connections.plan import Dependent, Verdict
from airflow_provider_rfr.connections.ports import Services
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.store.connections import IDLE, RUNNING, STALLED, TaskRef, Use, load_use

_LOOK_SECONDS: Final = 0.5
_SILENT_SECONDS: Final = 60.0
"""After which a task that says nothing is not believed to run, where Airflow can't be asked."""
_STARTABLE: Final = frozenset({"up_for_retry", "failed", "deferred", "upstream_failed"})
_ON_ITS_WAY: Final = frozenset({"queued", "scheduled", "restarting", "up_for_reschedule"})
_OWN_FAULT: Final = frozenset(
    {"SchemaError", "TypeMismatchError", "SchemaEvolutionError", "PublishRefusedError", "SourceChangedError"}
)
"""Failures that no other connection mends."""


@dataclass(frozen=True, slots=True)
class Restarter:
    """Restarts what a change concerns."""

    world: Services

    def follow(self, name: str, wanted: str, dependents: Sequence[Dependent], timeout: float) -> dict[str, str]:
        """See to it that each goes on, for so many seconds; returns what became of each, by consumer."""
        ends = {each.use.task.consumer: "next run" for each in dependents if each.verdict is not Verdict.RESTART}
        waiting = [each.use.task for each in dependents if each.verdict is Verdict.RESTART]
        deadline = time.monotonic() + timeout
        while True:
            for task in list(waiting):
                end = self._look(task, name, wanted)
                if end is not None:
                    self.world.tell(f"{task}: {end}")
                    ends[task.consumer] = end
                    waiting.remove(task)
            if not waiting or time.monotonic() >= deadline:
                break
            self.world.sleep(_LOOK_SECONDS)
        late = "still stops; it takes the new settings by itself"
        return {**ends, **{task.consumer: late for task in waiting}}

    def _look(self, task: TaskRef, name: str, wanted: str) -> str | None:
        """What became of the task; None while that is open."""
        with self.world.store.read() as connection:
            use, now = load_use(connection, task), self.world.store.now(connection)
        if use is None:
            return "gone"
        own = use.of(name)
        if own is not None and own.running == wanted:
            return "restarted" if use.state == RUNNING else "has the new settings"
        if own is not None and own.wanted not in (None, wanted):
            return "superseded by a later change"
        if use.state == IDLE:
            return "next run"
        state = self.world.tasks.state(task)
        if state is None:
            silent = now - use.seen_at > _SILENT_SECONDS * 1000
            return "unknown: Airflow could not be asked" if silent or use.state == STALLED else None
        if state == "running":
            return None
        return self._started(task, use, state)

    def _started(self, task: TaskRef, use: Use, state: str) -> str | None:
        if state in _ON_ITS_WAY:
            return "started"
        if state not in _STARTABLE:
            return "next run"
        if state == "failed" and use.error_kind in _OWN_FAULT:
            return f"stays failed: {use.error_kind} is not the connection's fault"
        try:
            self.world.tasks.start(task)
        except RfrError as error:
            return f"could not be started: {error}"
        return "started"
