"""A refresh and ALTER CONNECTION: what runs with an old copy stops at its checkpoint and goes on with the new one.

All in one try of the task: the driver is asked to stop, it commits what it has, and when it has ended the connections
are read anew and the refresh goes on. No retry is spent, and no scheduler is waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import TaskDeferred
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.hooks.spark import RefreshSparkHook
from airflow_provider_rfr.operators.arguments import shipped_source, stream_names, tables_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.connection_use import ConnectionUse
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
    from airflow_provider_rfr.store.connections import TaskRef
    from airflow_provider_rfr.store.engine import ControlStore

T = TypeVar("T")

log = logging.getLogger(__name__)


def in_touch(
    operator: ResumableFullRefreshOperator, context: Context, refresh: Callable[[Context], dict[str, Any]]
) -> dict[str, Any]:
    """Run the refresh, and again for each alteration of a connection of its that comes meanwhile."""
    conn_ids = [each for each in (operator.api_conn_id, operator.lake_conn_id, operator._conn_id) if each]
    try:
        checks = _checks(operator)
    except ConfigurationError:
        # The refresh itself says what is wrong.
        checks = {}
    return running_with(
        context,
        "refresh",
        conn_ids,
        lambda: refresh(context),
        details={"check": checks},
        stop=lambda: _drain(operator),
        kind_of=lambda error: _kind_of(operator, error),
    )


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
    store = _kept(lambda: ControlStoreHook(control_store_conn_id).get_store())
    if store is None:
        return work()
    from airflow_provider_rfr.hooks.connection_use import ConnectionUse

    task = task_of(context)
    try:
        while True:
            use = _kept(lambda: ConnectionUse(store, task, kind, conn_ids, details or {}, stop))
            if use is None:
                return work()
            done = _tried(use, work, kind_of)
            if done:
                return done[0]
            log.info("A connection of this %s was altered: it goes on from where it is with the new settings", kind)
    finally:
        store.close()


def going_on(context: Context, go_on: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run the end of a refresh whose driver ran in a cluster, and note how it ended."""
    from airflow_provider_rfr.store.connections import IDLE, STALLED, end_use

    state, error = IDLE, None
    try:
        return go_on()
    except Exception as failure:
        state, error = STALLED, str(failure)
        raise
    finally:
        store = _store()
        if store is not None:
            _kept(
                lambda: store.run(
                    lambda connection: end_use(connection, store.now(connection), task_of(context), None, state, error)
                )
            )
            store.close()


def moved(api_conn_id: str | None) -> list[dict[str, Any]]:
    """Where the API of this connection was before; empty if that is not known."""
    store = _store() if api_conn_id else None
    if store is None or api_conn_id is None:
        return []
    from airflow_provider_rfr.hooks import connection_use

    try:
        return _kept(lambda: connection_use.moved(store, api_conn_id)) or []
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
        _kept(lambda: use.end(DEFERRED))
        raise
    except Exception as error:
        if _kept(use.is_stale):
            log.info("It ended with: %s", error)
            return None
        kind, said = kind_of(error), str(error)
        _kept(lambda: use.end(STALLED, said, kind))
        raise
    _kept(lambda: use.end(IDLE))
    return (result,)


def _checks(operator: ResumableFullRefreshOperator) -> dict[str, Any]:
    """How this refresh is tried with other settings: by the first page of a stream, and by its tables."""
    streams = stream_names(operator.streams)
    tables = list(tables_of(streams, operator.target).values())
    checks: dict[str, Any] = {operator.lake_conn_id: {"tables": tables}}
    if operator.api_conn_id and streams:
        source = shipped_source(operator.source, operator._dag_folder())
        checks[operator.api_conn_id] = {"source": source, "stream": streams[0]}
    return checks


def _drain(operator: ResumableFullRefreshOperator) -> None:
    hook = operator._hook
    if not isinstance(hook, RefreshSparkHook):
        return
    if hook.in_cluster:
        operator.on_kill()
        return
    for driver in hook.driver_processes():
        driver.terminate()


def _kind_of(operator: ResumableFullRefreshOperator, error: Exception) -> str:
    hook = operator._hook
    word = hook.last_word if isinstance(hook, RefreshSparkHook) else None
    told = (word or {}).get("error") or {}
    return str(told.get("cause") or told.get("type") or type(error).__name__)


def _store() -> ControlStore | None:
    """The control store; without one the refresh runs all the same, and no alteration restarts it."""
    return _kept(lambda: ControlStoreHook().get_store())


def _kept(work: Callable[[], T]) -> T | None:
    """A store that is away never fails a refresh."""
    try:
        return work()
    except (ConfigurationError, DBAPIError) as error:
        log.warning("ALTER CONNECTION can't follow this refresh: %s", type(error).__name__)
        return None
