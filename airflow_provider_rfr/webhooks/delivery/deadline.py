"""The end of an attempt, which no server can put off.

A socket's timeout starts anew with each byte, so a server that drips could hold its caller for ever. These sockets
set the time that is left before every operation; each operation then ends in time by itself, TLS handshakes and
large bodies included.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.webhooks.delivery.address_guard import AddressGuard

if TYPE_CHECKING:
    from typing_extensions import Buffer

_thread = threading.local()


class DeadlineExceeded(TimeoutError):
    """The attempt's time is up."""


class Deadline:
    """A moment by the monotonic clock."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than 0; raises :class:`DeadlineExceeded` where there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the attempt's time is up")
        return left

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._at


@contextmanager
def attempt_of_this_thread(deadline: Deadline, guard: AddressGuard) -> Iterator[None]:
    """What this thread's sockets go by until the end of the block."""
    _thread.attempt = (deadline, guard)
    try:
        yield
    finally:
        _thread.attempt = None


def this_attempt() -> tuple[Deadline, AddressGuard] | None:
    """What this thread's sockets go by."""
    attempt: tuple[Deadline, AddressGuard] | None = getattr(_thread, "attempt", None)
    return attempt


def _set_time_left(sock: socket.socket) -> None:
    attempt = this_attempt()
    if attempt is not None:
        sock.settimeout(attempt[0].left())


class PlainSocket(socket.socket):
    """A TCP socket that ends with its thread's attempt."""

    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        """As of the base."""
        _set_time_left(self)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of the base."""
        _set_time_left(self)
        return super().recv_into(buffer, nbytes, flags)


class TlsSocket(ssl.SSLSocket):
    """The same in TLS."""

    def do_handshake(self, block: bool = False) -> None:
        """As of the base."""
        _set_time_left(self)
        super().do_handshake(block)

    def send(self, data: Buffer, flags: int = 0) -> int:
        """As of the base."""
        _set_time_left(self)
        return super().send(data, flags)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """As of the base."""
        _set_time_left(self)
        return super().read(len, buffer)
