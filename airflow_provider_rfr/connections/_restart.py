"""Restarts after a change: a task with the old copy stops at its next checkpoint, and continues with the new settings.

The control store holds which copy a task should have. A running task reads that, stops its driver, reads its
connections again and continues, all in the same try. So the old driver has ended before the new one begins; and if the
altering process dies, the difference between wanted and running hash still shows which tasks are left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from airflow_provider_rfr.connections.dependents import Dependent, Verdict
from airflow_provider_rfr.connections.ports import Services
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.store.connections import FAILED, IDLE, RUNNING, TaskRef, load_use

_LOOK_SECONDS: Final = 0.5
_SILENT_MILLISECONDS: Final = 60_000
"""Where Airflow can't be asked, a task without a sign of life for so long counts as dead."""
_STARTABLE: Final = frozenset({"up_for_retry", "failed", "deferred", "upstream_failed"})
_ON_ITS_WAY: Final = frozenset({"queued", "scheduled", "restarting", "up_for_reschedule"})
_UNRELATED_ERRORS: Final = frozenset(
    {"SchemaError", "TypeMismatchError", "SchemaEvolutionError", "PublishRefusedError", "SourceChangedError"}
)
"""Failures that no change of a connection repairs."""


def restart(
    services: Services, name: str, wanted: str, dependents: Sequence[Dependent], timeout: float
) -> dict[str, str]:
    """Start stopped tasks, and wait until running ones have the new settings; return the outcomes by consumer.

    :param wanted: hash of the new settings
    :param timeout: seconds after which the rest is left to itself
    """
    outcomes = {
        dependent.use.task.consumer: "next run" for dependent in dependents if dependent.verdict is not Verdict.RESTART
    }
    waiting = [dependent.use.task for dependent in dependents if dependent.verdict is Verdict.RESTART]
    deadline = time.monotonic() + timeout
    while True:
        for task in list(waiting):
            outcome = _outcome(services, task, name, wanted)
            if outcome is not None:
                services.report(f"{task}: {outcome}")
                outcomes[task.consumer] = outcome
                waiting.remove(task)
        if not waiting or time.monotonic() >= deadline:
            break
        services.sleep(_LOOK_SECONDS)
    late = "still stops; it takes the new settings by itself"
    return {**outcomes, **{task.consumer: late for task in waiting}}


def _outcome(services: Services, task: TaskRef, name: str, wanted: str) -> str | None:
    """Return the outcome of a task's restart, which is begun here if the task does not run; None while it is open."""
    with services.store.read() as connection:
        use, now = load_use(connection, task), services.store.now(connection)
    if use is None:
        return "gone"
    own = use.of(name)
    if own is not None and own.running == wanted:
        return "restarted" if use.state == RUNNING else "has the new settings"
    if own is not None and own.wanted not in (None, wanted):
        return "superseded by a later change"
    if use.state == IDLE:
        return "next run"
    state = services.tasks.state(task)
    if state is None:
        is_dead = now - use.seen_at > _SILENT_MILLISECONDS or use.state == FAILED
        return "unknown: Airflow could not be asked" if is_dead else None
    if state == "running":
        return None
    return _start(services, task, state, use.error_kind)


def _start(services: Services, task: TaskRef, state: str, error_kind: str | None) -> str:
    if state in _ON_ITS_WAY:
        return "started"
    if state not in _STARTABLE:
        return "next run"
    if state == "failed" and error_kind in _UNRELATED_ERRORS:
        return f"stays failed: {error_kind} is not the connection's fault"
    try:
        services.tasks.start(task)
    except RfrError as error:
        return f"could not be started: {error}"
    return "started"
