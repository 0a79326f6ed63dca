"""A minimal HTTP/1.1 server with keep-alive: a general server would use more CPU than the reader under test.

A connection answers one request at a time; pipelined requests wait in the buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from airflow_provider_rfr.sample_api.admin import PREFIX, administer
from airflow_provider_rfr.sample_api.app import Manner, ReceivedRequest, ReplyPlan, SampleApp
from airflow_provider_rfr.sample_api.pages import error_reply

_END = b"\r\n\r\n"
_LARGEST_HEAD = 65_536


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, app: SampleApp) -> None:
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._received = b""
        self._busy = False
        self._paused = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._current: ReplyPlan | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Without a write buffer, resume_writing means that the operating system has the whole answer.
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._current = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._current is not None and self._timer is None:
            self._finished()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while not self._busy and not self._closing and self._received:
            if not self._take():
                return

    def _take(self) -> bool:
        """Answer the next request; return False if it is not complete yet."""
        end = self._received.find(_END)
        if end < 0:
            if len(self._received) > _LARGEST_HEAD:
                self._transport.abort()
            return False
        method, target, headers = _parse(self._received[:end])
        stop = end + len(_END) + int(headers.get("content-length", 0))
        if len(self._received) < stop:
            return False
        body, self._received = self._received[end + len(_END) : stop], self._received[stop:]
        self._busy = True
        self._closing = headers.get("connection", "").lower() == "close"
        self._answer(ReceivedRequest(method, target, headers, body))
        return True

    def _answer(self, request: ReceivedRequest) -> None:
        handle = administer if request.target.startswith(PREFIX) else SampleApp.serve
        try:
            delivery = handle(self._app, request)
        except Exception as error:  # noqa: BLE001 - show the client an error of the sample API
            delivery = ReplyPlan(error_reply(500, f"sample API: {error!r}"))
        self._current = delivery
        if delivery.subscribe is not None:
            delivery.subscribe(self._send)
        elif delivery.delay > 0:
            self._later(delivery.delay, self._send)
        else:
            self._send()

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._timer = None
            callback()

        self._timer = self._loop.call_later(seconds, fire)

    def _send(self) -> None:
        delivery = self._current
        if delivery is None or self._transport.is_closing():
            return
        reply, fault = delivery.reply, delivery.fault
        if fault is None or delivery.manner is Manner.WHOLE:
            self._transport.write(reply.head + reply.body)
            self._written()
        elif delivery.manner is Manner.DRIP:
            self._transport.write(reply.head)
            self._drip(0)
        elif delivery.manner is Manner.TRUNCATE:
            self._current = None
            self._transport.write(reply.head + reply.body[: int(len(reply.body) * fault.keep)])
            self._transport.close()
        elif delivery.manner is Manner.DISCONNECT:
            self._transport.abort()
        elif fault.seconds:
            self._later(fault.seconds, self._transport.abort)

    def _drip(self, start: int) -> None:
        delivery = self._current
        if delivery is None or delivery.fault is None:
            return
        stop = start + delivery.fault.chunk
        self._transport.write(delivery.reply.body[start:stop])
        if stop >= len(delivery.reply.body):
            self._written()
        else:
            self._later(delivery.fault.seconds, partial(self._drip, stop))

    def _written(self) -> None:
        if not self._paused:
            self._finished()

    def _finished(self) -> None:
        """Record that the operating system has the whole answer, and take the next request."""
        delivery, self._current = self._current, None
        if delivery is not None and delivery.entry is not None:
            self._app.journal.finish(delivery.entry)
        self._busy = False
        if self._closing:
            self._transport.close()
        elif self._received:
            self._loop.call_soon(self.data_received, b"")


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target = rest.partition(" ")[0]
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return method, target, headers
