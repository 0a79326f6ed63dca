"""A task and ALTER CONNECTION: it notes what it runs with; if that is altered it goes on with the new settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import TaskDeferred
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.connection_use import ConnectionUse
    from airflow_provider_rfr.store.connections import TaskRef
    from airflow_provider_rfr.store.engine import ControlStore

T = TypeVar("T")

log = logging.getLogger(__name__)


def running_with(
    context: Context,
    kind: str,
    conn_ids: Sequence[str],
    work: Callable[[], T],
    *,
    details: Mapping[str, Any] | None = None,
    stop: Callable[[], None] = lambda: None,
    kind_of: Callable[[Exception], str] = lambda error: type(error).__name__,
    control_store_conn_id: str | None = None,
) -> T:
    """Do a task's work with these connections, which it reads itself; once more if it fails while one is altered.

    :param kind: ``refresh`` or ``sink``
    :param stop: asks the work to end at its next checkpoint; work without one ends by itself
    :param kind_of: names the error that it failed with
    """
    store = control_store(control_store_conn_id)
    if store is None or "ti" not in context:
        return work()
    from airflow_provider_rfr.hooks.connection_use import ConnectionUse

    task = task_of(context)
    try:
        while True:
            use = kept(lambda: ConnectionUse(store, task, kind, conn_ids, details or {}, stop))
            if use is None:
                return work()
            done = _tried(use, work, kind_of)
            if done:
                return done[0]
            log.info("A connection of this %s was altered: it goes on from where it is with the new settings", kind)
    finally:
        store.close()


def task_of(context: Context) -> TaskRef:
    """The task, as the control store knows it."""
    from airflow_provider_rfr.store.connections import TaskRef

    ti = context["ti"]
    return TaskRef(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def _tried(use: ConnectionUse, work: Callable[[], T], kind_of: Callable[[Exception], str]) -> tuple[T] | None:
    """The result; None if there is none because a connection was altered."""
    from airflow_provider_rfr.store.connections import DEFERRED, IDLE, STALLED

    try:
        with use:
            result = work()
    except TaskDeferred:
        kept(lambda: use.end(DEFERRED))
        raise
    except Exception as error:
        if kept(use.is_stale):
            log.info("It ended with: %s", error)
            return None
        kind, said = kind_of(error), str(error)
        kept(lambda: use.end(STALLED, said, kind))
        raise
    kept(lambda: use.end(IDLE))
    return (result,)


def control_store(conn_id: str | None = None) -> ControlStore | None:
    """The control store; without one a task runs all the same, and no alteration restarts it."""
    return kept(lambda: ControlStoreHook(conn_id).get_store())


def kept(work: Callable[[], T]) -> T | None:
    """A store that is away never fails a task."""
    try:
        return work()
    except (ConfigurationError, DBAPIError) as error:
        log.warning("ALTER CONNECTION can't follow this task: %s", type(error).__name__)
        return None
