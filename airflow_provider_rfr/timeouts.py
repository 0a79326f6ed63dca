"""Time limits for servers that accept connections and never answer, for which many clients would wait for ever.

Also the rollback of SQLite transactions whose COMMIT was refused. Work runs in daemon threads, for which Python does
not wait when it exits.
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
    """Make an engine of PostgreSQL raise an error if the server does not answer; other engines are not changed.

    Parameters of the engine's URL take precedence: ``connect_timeout`` in seconds, ``tcp_user_timeout`` in
    milliseconds, which is the limit for each answer as well, and ``keepalives...``.

    :param connect: seconds to establish a connection
    :param answer: seconds for the answer to a statement or a commit
    """
    if engine.driver not in _LIBPQ_DRIVERS:
        return
    # Imported here, because modules that only use the thread functions need no SQLAlchemy.
    from sqlalchemy import event

    query = engine.url.query
    defaults = {
        "connect_timeout": max(2, round(connect)),  # libpq treats 1 as 2
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

    if answer <= 0:  # libpq's value for no limit
        return
    # libpq's timeouts only limit how long data stays unacknowledged. A frozen server or a proxy still acknowledges it.
    for name in _CALLS:
        setattr(engine.dialect, name, _limited(getattr(engine.dialect, name), answer))


def end_refused_commits(engine: Engine) -> None:
    """Make an engine of SQLite roll back a transaction whose COMMIT was refused; other engines are not changed.

    SQLite refuses a COMMIT while another process reads. The transaction stays open, but SQLAlchemy considers it ended.
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
    """Wrap a method of the dialect with a time limit; its first argument is a cursor or a connection."""

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
    # A duplicate of the descriptor, which stays valid if the driver closes its own.
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
    """Run ``work`` in a thread; return its result, or raise its error. A thread that does not end is left behind.

    :raises TimeoutError: ``work`` takes longer than ``seconds``
    """
    result: Future[_Result] = Future()
    threading.Thread(target=_settle, args=(result, work), daemon=True).start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result.result()


def in_threads(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """Call ``work`` for each item, eight at a time; return the results in the order of the items.

    :raises BaseException: the error of the first item for which ``work`` failed
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
