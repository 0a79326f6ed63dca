"""A task whose connection is altered stops at its checkpoint, and continues with the new settings.

All in one try of the task: the work is asked to stop, it keeps what it has done, and when it has ended the connections
are read again and it runs once more. No retry is spent, and no scheduler is waited for. A control store that can't be
reached never fails a task; then no alteration restarts it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.sdk.exceptions import TaskDeferred
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.store.connections import TaskRef

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def running_with(
    context: Context,
    kind: str,
    conn_ids: Sequence[str],
    work: Callable[[], _T],
    *,
    details: Mapping[str, Any] | None = None,
    stop: Callable[[], None] = lambda: None,
    kind_of: Callable[[Exception], str] = lambda error: type(error).__name__,
    control_store_conn_id: str | None = None,
) -> _T:
    """Do a task's work with these connections; once more if one of them was altered and the work failed meanwhile.

    :param kind: ``refresh`` or ``sink``
    :param work: reads the connections itself, each time that it is called
    :param details: what else is noted of the task, see ``ConnectionUse``; no secrets
    :param stop: asks the work to end at its next checkpoint, from another thread; by default it ends by itself
    :param kind_of: name of the error that the work failed with
    :param control_store_conn_id: connection of the control store; None for the default
    """
    store = _unless_away(ControlStoreHook(control_store_conn_id).get_store)
    if store is None or "ti" not in context:
        return work()
    from airflow_provider_rfr.connections.airflow.use import ConnectionUse
    from airflow_provider_rfr.hooks.connections import upstream_identity
    from airflow_provider_rfr.store.connections import DEFERRED, FAILED, IDLE

    task = task_of(context)
    with closing(store):
        while True:
            use = _unless_away(ConnectionUse, store, task, kind, conn_ids, details or {}, upstream_identity, stop)
            if use is None:
                return work()
            try:
                with use:
                    result = work()
            except TaskDeferred:
                _unless_away(use.end, DEFERRED)
                raise
            except Exception as error:
                # Of any kind: the stop that was asked for, or what the old settings led to.
                if not _unless_away(use.is_stale):
                    _unless_away(use.end, FAILED, str(error), kind_of(error))
                    raise
                _log.info("It ended with: %s", error)
                _log.info("A connection of this %s was altered: it continues with the new settings", kind)
            else:
                _unless_away(use.end, IDLE)
                return result


def finishing_deferred(context: Context, work: Callable[[], _T]) -> _T:
    """Do the rest of the work of a task whose driver ran in a cluster, and record how the task ended."""
    from airflow_provider_rfr.store.connections import FAILED, IDLE, end_use

    state, error = IDLE, None
    try:
        return work()
    except Exception as failure:
        state, error = FAILED, str(failure)
        raise
    finally:
        store = _unless_away(ControlStoreHook().get_store)
        if store is not None:
            task = task_of(context)
            _unless_away(
                store.run, lambda connection: end_use(connection, store.now(connection), task, None, state, error)
            )
            store.close()


def moved(api_conn_id: str | None) -> list[dict[str, Any]]:
    """Return the former addresses of this connection's API and the present one; an empty list if unknown.

    They are for the refresh's document.
    """
    store = _unless_away(ControlStoreHook().get_store) if api_conn_id else None
    if store is None or api_conn_id is None:
        return []
    from airflow_provider_rfr.connections.airflow.use import addresses_of

    with closing(store):
        return _unless_away(addresses_of, store, api_conn_id) or []


def task_of(context: Context) -> TaskRef:
    """Return a reference to the running task instance that stays the same over all its attempts and clears.

    Airflow's own id does not stay the same.
    """
    from airflow_provider_rfr.store.connections import TaskRef

    ti = context["ti"]
    return TaskRef(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)


def _unless_away(action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
    try:
        return action(*args, **kwargs)
    except (ConfigurationError, DBAPIError) as error:
        _log.warning("ALTER CONNECTION can't follow this task: %s", type(error).__name__)
        return None
