"""Correction of refresh states by Airflow's task states. Airflow's database shows a killed task within seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_rfr.connections.airflow.lookup import session_of_airflow
from airflow_provider_rfr.store.connections import IDLE, TaskRef
from airflow_provider_rfr.timeouts import in_threads

if TYPE_CHECKING:
    from airflow.models.dagbag import DBDagBag
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.refresh.state import State, TableStatus
    from airflow_provider_rfr.store.connections import Use

_AT_WORK: Final = frozenset({"running", "deferred", "restarting", "up_for_reschedule"})
_AGAIN: Final = frozenset({"queued", "scheduled", "up_for_retry"})
_AT_ONCE: Final = 200
_log = logging.getLogger(__name__)


class _TaskState(NamedTuple):
    """The state of a task instance in Airflow's database.

    :ivar retry_at: when Airflow tries it again; None where it does not, or where the time is unknown
    """

    state: str | None
    started_at: datetime | None
    retry_at: datetime | None = None


class _TaskVerdict(NamedTuple):
    """The state of a refresh according to its Airflow task, with a sentence that explains it."""

    state: State
    sentence: str
    retry_at: datetime | None = None


class DagSchedule(NamedTuple):
    """The schedule of a DAG.

    :ivar summary: as Airflow shows it; None for a DAG without one
    :ivar next_run_at: None where no run is due, or the DAG is paused
    """

    summary: str | None
    next_run_at: datetime | None
    is_paused: bool


def schedule_of(dag_id: str) -> DagSchedule | None:
    """Return the DAG's schedule; None for a DAG that is gone."""
    from airflow.models.dag import DagModel
    from sqlalchemy import select

    columns = DagModel.timetable_summary, DagModel.next_dagrun_create_after, DagModel.is_paused
    with session_of_airflow() as session:
        row = session.execute(select(*columns).where(DagModel.dag_id == dag_id, ~DagModel.is_stale)).first()
    if row is None:
        return None
    summary, next_run_at, is_paused = row
    # Airflow writes a missing schedule as a word.
    return DagSchedule(None if summary == "None" else summary, None if is_paused else next_run_at, bool(is_paused))


def with_tasks(
    statuses: Sequence[TableStatus], read: Callable[[TableStatus], TableStatus | None]
) -> tuple[TableStatus, ...]:
    """Correct the statuses of ledgers by the states of their Airflow tasks.

    A refresh whose last attempt ended is waiting if Airflow will retry its task. A refresh that is working according
    to its ledger is interrupted if its task ended for good.

    :param read: reads the status of the same ledger again; returns None if the ledger no longer exists
    """
    seen = _states({task for status in statuses if status.is_open and (task := _task_of(status)) is not None})
    judged = {status.ledger: verdict for status in statuses if (verdict := _judged(seen, status)) is not None}
    doubtful = [status for status in statuses if status.ledger in judged]
    # The task may have succeeded between the reads of its ledger and of Airflow's database.
    newest_by_ledger = dict(zip([status.ledger for status in doubtful], in_threads(read, doubtful), strict=True))
    corrected = []
    for status in statuses:
        newest = newest_by_ledger.get(status.ledger)
        if newest is not None and (newest.state is not status.state or _commit_mark(newest) != _commit_mark(status)):
            corrected.append(newest)
        elif newest is not None:
            corrected.append(replace(newest, **judged[status.ledger]._asdict()))
        else:
            corrected.append(status)
    return tuple(corrected)


def is_retried(status: TableStatus) -> bool:
    """Tell whether the task of a refresh runs, or Airflow will try it again."""
    task = _task_of(status)
    if task is None or (state := _states({task}).get(task)) is None:
        return False
    return state.state in _AGAIN | _AT_WORK


def states_of_uses(uses: Sequence[Use]) -> dict[TaskRef, str]:
    """Return the state of each task that uses a connection, by task.

    Airflow's state replaces the recorded one, as a state of a refresh, if the task ended or waits for a retry.
    """
    from airflow_provider_rfr.refresh.state import State

    seen = _states({use.task for use in uses if use.state != IDLE})
    states = {use.task: use.state for use in uses}
    for task, task_state in seen.items():
        state = _state_by_airflow(task_state)
        if state is State.WAITING or (state is State.INTERRUPTED and states[task] != State.FAILED.value):
            states[task] = state.value
    return states


def states_of_refreshes(statuses: Iterable[TableStatus]) -> dict[TaskRef, State]:
    """Return the state of the refresh by task; for several refreshes of a task, the most urgent state."""
    from airflow_provider_rfr.refresh.state import by_urgency

    last_first = sorted(statuses, key=by_urgency, reverse=True)
    return {task: status.state for status in last_first if (task := _task_of(status)) is not None}


def _state_by_airflow(task: _TaskState) -> State | None:
    """Return the state of a refresh whose task waits or ended; None while the task works."""
    from airflow_provider_rfr.refresh.state import State

    if task.state in _AGAIN:
        return State.WAITING
    return None if task.state in _AT_WORK else State.INTERRUPTED


def _task_of(status: TableStatus) -> TaskRef | None:
    header = status.header
    if header is None or header.dag_id is None or header.dag_run_id is None or header.task_id is None:
        return None
    index = -1 if header.map_index is None else header.map_index
    return TaskRef(header.dag_id, header.dag_run_id, header.task_id, index)


def _commit_mark(status: TableStatus) -> tuple[datetime, int] | None:
    """Return the time of the ledger's last commit and the number of its attempt, which show whether it changed."""
    return None if status.header is None else (status.header.committed_at, status.header.attempts)


def _judged(states: Mapping[TaskRef, _TaskState], status: TableStatus) -> _TaskVerdict | None:
    """Return the corrected state and sentence; None if the state in the ledger is right."""
    from airflow_provider_rfr.refresh.state import State

    header, task = status.header, _task_of(status)
    seen = None if task is None else states.get(task)
    if header is None or seen is None or not status.is_open:
        return None
    if status.state is State.STOPPED:
        reason = "was stopped"
    else:
        reason = "ended without a report" if header.ended_at is None else f"failed: {header.error}"
    attempt, kept = f"Attempt {header.attempts} {reason}", "The pages read so far are kept"
    state = _state_by_airflow(seen)
    if state is State.WAITING:
        when = (
            f"({seen.state})" if seen.retry_at is None else f"at {seen.retry_at.astimezone(timezone.utc):%H:%M:%S} UTC"
        )
        return _TaskVerdict(state, f"{attempt}. {kept}, and Airflow tries the task again {when}", seen.retry_at)
    if state is None:
        is_next = seen.started_at is not None and seen.started_at > header.committed_at
        starting = _TaskVerdict(State.WAITING, f"{attempt}. {kept}, and the task's next try is starting")
        return starting if is_next else None
    if not status.is_working:
        return None
    return _TaskVerdict(state, f"{attempt}. {kept}, and the next run continues: the task is {seen.state or 'cleared'}")


def _states(tasks: Iterable[TaskRef]) -> dict[TaskRef, _TaskState]:
    wanted = sorted((task.dag_id, task.run_id, task.task_id, task.map_index) for task in tasks)
    if not wanted:
        # Return before the import of Airflow's models, which takes most of a second.
        return {}
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select, tuple_

    # The table is queried, not the class: the first query of a class configures all of Airflow's models.
    table = TaskInstance.__table__.c
    columns = (table.dag_id, table.run_id, table.task_id, table.map_index)
    states = {}
    with session_of_airflow() as session:
        for start in range(0, len(wanted), _AT_ONCE):
            query = select(*columns, table.state, table.start_date).where(
                tuple_(*columns).in_(wanted[start : start + _AT_ONCE])
            )
            for dag_id, run_id, task_id, map_index, state, started_at in session.execute(query).all():
                text = None if state is None else str(getattr(state, "value", state))
                task = TaskRef(dag_id, run_id, task_id, map_index)
                retry_at = _retry_time(session, task) if text == "up_for_retry" else None
                states[task] = _TaskState(text, started_at, retry_at)
    return states


@cache
def _dags() -> DBDagBag:
    """Return Airflow's cache of serialized DAGs."""
    from airflow.models.dagbag import DBDagBag

    return DBDagBag(load_op_links=False)


def _retry_time(session: Session, task: TaskRef) -> datetime | None:
    """Return the time at which Airflow tries the task again; None where its DAG can't be read."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    query = select(TaskInstance).filter_by(
        dag_id=task.dag_id, run_id=task.run_id, task_id=task.task_id, map_index=task.map_index
    )
    try:
        instance = session.scalars(query).one()
        dag = _dags().get_dag_for_run(instance.dag_run, session)
        if dag is None:
            return None
        instance.task = dag.get_task(task.task_id)
        retry_at: datetime | None = instance.next_retry_datetime()
        return retry_at
    except Exception as error:  # noqa: BLE001 - of code of DAGs and of timetables; the state is known without it
        _log.debug("when %s is tried again can't be read", task, exc_info=error)
        return None
