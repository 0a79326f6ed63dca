"""Time limits for servers that accept connections and do not answer, which many clients would wait for for ever.

Also here: the end of a transaction that waited for a lock of SQLite in vain. Work runs in daemon threads, which Python
does not wait for at its end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Engine

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
_PARALLEL: Final = 8
_LIBPQ_DRIVERS: Final = ("psycopg2", "psycopg")
_CALLS: Final = ("do_execute", "do_executemany", "do_execute_no_params", "do_commit", "do_rollback", "do_ping")
"""Methods of SQLAlchemy's dialect that wait for the server."""


def limit_waits(engine: Engine, connect: float = CONNECT_SECONDS, answer: float = ANSWER_SECONDS) -> None:
    """Let an engine of PostgreSQL raise an error where the server does not answer; other engines are not changed.

    Parameters of the address take precedence: ``connect_timeout`` in seconds, ``tcp_user_timeout`` in milliseconds,
    which is the limit for each answer as well, and ``keepalives...``.

    :param connect: seconds for a connection
    :param answer: seconds for the answer to a statement or a commit
    """
    if engine.driver not in _LIBPQ_DRIVERS:
        return
    # Not for all who import this module: threads need no SQLAlchemy.
    from sqlalchemy import event

    query = engine.url.query
    defaults = {
        "connect_timeout": max(2, round(connect)),  # libpq takes 1 for 2
        "tcp_user_timeout": round(answer * 1000),
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    with suppress(TypeError, ValueError):  # libpq reports a wrong value when it connects
        answer = int(query.get("tcp_user_timeout", defaults["tcp_user_timeout"])) / 1000  # type: ignore[arg-type]

    @event.listens_for(engine, "do_connect")
    def set_defaults(dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
        for name, value in defaults.items():
            parameters.setdefault(name, value)

    if answer <= 0:  # libpq's word for no limit
        return
    # libpq's timeouts end when the network answers, and a frozen server or a proxy still acknowledges what it receives.
    for name in _CALLS:
        setattr(engine.dialect, name, _limited(getattr(engine.dialect, name), answer))


def end_refused_commits(engine: Engine) -> None:
    """Let an engine of SQLite roll back a transaction whose COMMIT was refused; other engines are not changed.

    SQLite refuses it while another process reads, and leaves the transaction open, which SQLAlchemy takes for ended.
    The next user of the pooled connection would see rows that nobody else sees, and might commit them.
    """
    if engine.dialect.name != "sqlite":
        return
    from sqlalchemy import event

    @event.listens_for(engine, "checkin")
    def roll_back(connection: Any, record: object) -> None:
        if connection is not None and connection.in_transaction:
            connection.rollback()


def _limited(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return the dialect's method with a limit; its first argument is a cursor or a connection."""

    @wraps(call)
    def limited(handle: Any, *args: Any, **kwargs: Any) -> Any:
        pooled = getattr(handle, "dbapi_connection", None)
        with _disconnected_after(seconds, pooled or getattr(handle, "connection", handle)):
            return call(handle, *args, **kwargs)

    return limited


@contextmanager
def _disconnected_after(seconds: float, connection: Any) -> Iterator[None]:
    """Shut the connection's socket down if the block takes longer, so that the driver raises an error."""
    if connection.closed:
        yield
        return
    expired = threading.Event()
    # A duplicate, which stays this connection's even if the driver closes its own.
    with socket.socket(fileno=socket.dup(connection.fileno())) as connected:

        def disconnect() -> None:
            expired.set()
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, disconnect)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if not expired.is_set():
                raise
            raise type(error)(f"no answer within {seconds:g} s") from error
        finally:
            timer.cancel()


def within(seconds: float, work: Callable[[], _Result]) -> _Result:
    """Return or raise the result of ``work``. Its thread is left behind where it does not end.

    :raises TimeoutError: it takes longer
    """
    result: Future[_Result] = Future()
    threading.Thread(target=_settle, args=(result, work), daemon=True).start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result.result()


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Call ``work`` for each item, eight at a time; return the results in the order of the items.

    :raises BaseException: the first one that ``work`` raises
    """
    results: list[Future[_Result]] = [Future() for _ in items]
    waiting = iter(list(zip(items, results, strict=True)))

    def settle_all() -> None:
        for item, result in waiting:
            _settle(result, partial(work, item))

    for _ in range(min(_PARALLEL, len(items))):
        threading.Thread(target=settle_all, daemon=True).start()
    return [result.result() for result in results]


def _settle(result: Future[_Result], work: Callable[[], _Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        result.set_exception(error)
