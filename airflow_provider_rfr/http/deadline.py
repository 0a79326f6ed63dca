"""Ends requests that outlive their deadline, whatever the server does.

A read timeout starts anew with each byte, so a server that drips can hold a reader for ever, even inside
the headers.  One thread per process looks at the requests in flight and shuts the socket of each that is
over its deadline; the reader then fails at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import HTTPResponse

_current = threading.local()


class Deadline:
    """The end of one request; a context manager around it, on the thread that sends it.

    :ivar expired: the watchdog ended the request
    """

    __slots__ = ("at", "expired", "socket")

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.expired = False
        self.socket: Any = None

    def __enter__(self) -> Deadline:
        _current.deadline = self
        _watchdog.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.deadline = None
        _watchdog.discard(self)

    def expire(self) -> None:
        """Shut the socket under the reader."""
        self.expired = True
        if self.socket is not None:
            with contextlib.suppress(OSError):
                # The plain socket's method: TLS must not try to say goodbye from another thread.
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Watchdog:
    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._active: set[Deadline] = set()
        self._changed = threading.Condition()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline) -> None:
        if self._pid != os.getpid():
            # A forked process has no thread, and perhaps a lock that nobody will release.
            self._reset()
        with self._changed:
            self._active.add(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rfr-deadlines", daemon=True)
                self._thread.start()
            elif deadline.at < self._wakes:
                self._changed.notify()

    def discard(self, deadline: Deadline) -> None:
        with self._changed:
            self._active.discard(deadline)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for deadline in [item for item in self._active if item.at <= now]:
                    self._active.discard(deadline)
                    deadline.expire()
                self._wakes = min((item.at for item in self._active), default=float("inf"))
                self._changed.wait(None if self._wakes == float("inf") else max(0.0, self._wakes - now))


_watchdog = _Watchdog()


def _note_socket(connection: HTTPConnection) -> None:
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None and isinstance(connection.sock, socket.socket):
        deadline.socket = connection.sock


class _Connection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 itself does
        _note_socket(self)
        return super().getresponse()


class _SecureConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 itself does
        _note_socket(self)
        return super().getresponse()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOL_CLASSES: dict[str, type[HTTPConnectionPool]] = {"http": _Pool, "https": _SecurePool}
