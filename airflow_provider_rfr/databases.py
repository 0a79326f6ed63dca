"""Time limits for databases that accept connections and do not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Final

from sqlalchemy import Engine, event

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
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
