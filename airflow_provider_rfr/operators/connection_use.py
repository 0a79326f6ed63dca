"""A refresh and ALTER CONNECTION: what runs with an old copy stops at its checkpoint and goes on with the new one.

All in one try of the task: the driver is asked to stop, it commits what it has, and when it has ended the connections
are read anew and the refresh goes on. No retry is spent, and no scheduler is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import dag_folder
from airflow_provider_rfr.hooks.spark import RefreshSparkHook
from airflow_provider_rfr.operators.arguments import shipped_source, stream_names, tables_of
from airflow_provider_rfr.operators.restarts import control_store, kept, running_with, task_of

if TYPE_CHECKING:
    from airflow.sdk import Context


class _Refreshing(Protocol):
    """The operator of a refresh, as much of it as is asked here."""

    source: Mapping[str, Any] | str
    streams: Sequence[str] | str
    target: str
    api_conn_id: str | None
    lake_conn_id: str
    _conn_id: str
    _hook: Any
    _dag: Any

    def on_kill(self) -> None: ...


def in_touch(operator: _Refreshing, context: Context, refresh: Callable[[Context], dict[str, Any]]) -> dict[str, Any]:
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
        store = control_store()
        if store is not None:
            kept(
                lambda: store.run(
                    lambda connection: end_use(connection, store.now(connection), task_of(context), None, state, error)
                )
            )
            store.close()


def moved(api_conn_id: str | None) -> list[dict[str, Any]]:
    """Where the API of this connection was before; empty if that is not known."""
    store = control_store() if api_conn_id else None
    if store is None or api_conn_id is None:
        return []
    from airflow_provider_rfr.hooks import connection_use

    try:
        return kept(lambda: connection_use.moved(store, api_conn_id)) or []
    finally:
        store.close()


def _checks(operator: _Refreshing) -> dict[str, Any]:
    """How this refresh is tried with other settings: by the first page of a stream, and by its tables."""
    streams = stream_names(operator.streams)
    tables = list(tables_of(streams, operator.target).values())
    checks: dict[str, Any] = {operator.lake_conn_id: {"tables": tables}}
    if operator.api_conn_id and streams:
        source = shipped_source(operator.source, dag_folder(operator))
        checks[operator.api_conn_id] = {"source": source, "stream": streams[0]}
    return checks


def _drain(operator: _Refreshing) -> None:
    hook = operator._hook
    if not isinstance(hook, RefreshSparkHook):
        return
    if hook.in_cluster:
        operator.on_kill()
        return
    for driver in hook.driver_processes():
        driver.terminate()


def _kind_of(operator: _Refreshing, error: Exception) -> str:
    hook = operator._hook
    word = hook.last_word if isinstance(hook, RefreshSparkHook) else None
    told = (word or {}).get("error") or {}
    return str(told.get("cause") or told.get("type") or type(error).__name__)
