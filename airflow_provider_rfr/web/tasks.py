"""What Airflow knows of the tasks behind refreshes: it hears of a killed attempt in seconds, the ledger never does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select, tuple_

from airflow_provider_rfr.threads import in_threads

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.status import TableStatus

_AT_WORK: Final = frozenset({"running", "deferred", "restarting", "up_for_reschedule"})
_AGAIN: Final = frozenset({"queued", "scheduled", "up_for_retry"})
_AT_ONCE: Final = 200


class _Task(NamedTuple):
    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class _Seen(NamedTuple):
    state: str | None
    started_at: datetime | None


def with_tasks(
    statuses: Sequence[TableStatus], read: Callable[[TableStatus], TableStatus | None]
) -> tuple[TableStatus, ...]:
    """The same, but what the ledger takes for work is interrupted where the task is not at it any more.

    :param read: the same ledger's status, read again; None where it is gone
    """
    seen = _states({task for each in statuses if each.is_working and (task := _task_of(each)) is not None})
    said = {each.ledger: words for each in statuses if (words := _said(seen, each)) is not None}
    doubtful = [each for each in statuses if each.ledger in said]
    # The task may have ended well after its ledger was read, and before Airflow was asked.
    pairs = zip(doubtful, in_threads(read, doubtful), strict=True)
    corrected = {each.ledger: _corrected(each, said[each.ledger], newest) for each, newest in pairs}
    return tuple(corrected.get(each.ledger, each) for each in statuses)


def _task_of(status: TableStatus) -> _Task | None:
    header = status.header
    if header is None or header.dag_id is None or header.dag_run_id is None or header.task_id is None:
        return None
    return _Task(header.dag_id, header.dag_run_id, header.task_id, -1 if header.map_index is None else header.map_index)


def _corrected(status: TableStatus, said: str, newest: TableStatus | None) -> TableStatus:
    from airflow_provider_rfr.refresh.status import State

    if newest is None:
        return status
    if not newest.is_working or _signs(newest) != _signs(status):
        return newest
    return replace(newest, state=State.INTERRUPTED, sentence=said)


def _signs(status: TableStatus) -> tuple[datetime, int] | None:
    """Of life: the last commit, and the attempt that made it."""
    return None if status.header is None else (status.header.committed_at, status.header.attempts)


def _said(states: Mapping[_Task, _Seen], status: TableStatus) -> str | None:
    """What became of the attempt that the ledger takes for a working one; None where it works."""
    header, task = status.header, _task_of(status)
    seen = None if task is None else states.get(task)
    if header is None or seen is None or not status.is_working:
        return None
    kept = f"Attempt {header.attempts} ended without reporting it; the pages read so far are kept"
    if seen.state in _AT_WORK:
        is_next = seen.started_at is not None and seen.started_at > header.committed_at
        return f"{kept}, and the task's next try is starting" if is_next else None
    if seen.state in _AGAIN:
        return f"{kept}, and the task's next try is due ({seen.state})"
    return f"{kept}, and the next run continues: the task is {seen.state or 'cleared'}"


def _states(tasks: Iterable[_Task]) -> dict[_Task, _Seen]:
    wanted, found = sorted(tasks), {}
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    with create_session() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            query = select(*columns, TaskInstance.state, TaskInstance.start_date).where(
                tuple_(*columns).in_(wanted[start : start + _AT_ONCE])
            )
            for dag_id, run_id, task_id, map_index, state, started_at in session.execute(query):
                said = None if state is None else str(getattr(state, "value", state))
                found[_Task(dag_id, run_id, task_id, map_index)] = _Seen(said, started_at)
    return found
