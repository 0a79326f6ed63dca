"""The command that serves the sample API. Once it listens, it prints one JSON line with its address and a source.

The server is a minimal HTTP/1.1 with keep-alive: a general one would use more CPU than the reader under test. A
connection answers one request at a time; pipelined requests wait in the buffer.

``/_admin``: faults, the journal and the truth, for tests and demos. It needs no key and is never faulty.

* ``GET /_admin/health``
* ``GET | POST | DELETE /_admin/faults``: the faults in force; POST replaces them by a JSON list
* ``GET /_admin/log?since=N&path=GLOB``: the data requests
* ``GET /_admin/counts?since=N&path=GLOB&detail=1``: pages served once, and more often
* ``GET /_admin/wait?pages=N``: answers after N different pages were served
* ``POST /_admin/change``: a fault of a kind that changes data (``shrink``, ``edit``, ``change_shipments``), at once
* ``POST /_admin/reset``: forget requests, faults and changes of the data
* ``GET /_admin/truth/COLLECTION``: ids and checksum as they are now; ``/customers/orders`` and
  ``/partitions/items`` stand for the children of all
* ``GET /_admin/records/COLLECTION``: the records themselves; those of ``/shipments`` without the deleted ones
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import orjson

from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.sample_api.app import (
    Fault,
    FaultKind,
    ReceivedRequest,
    ReplyPlan,
    SampleApp,
    split_target,
)
from airflow_provider_rfr.sample_api.dataset import EncodedReply, Sizes, checksum, error_reply, reply_of

_PREFIX = "/_admin/"
_END = b"\r\n\r\n"
_LARGEST_HEAD = 65_536


def administer(app: SampleApp, request: ReceivedRequest) -> ReplyPlan:
    path, query = split_target(request.target)
    name = path.removeprefix(_PREFIX)
    try:
        if name == "wait":
            pages = int(query["pages"])
            return ReplyPlan(reply_of({"pages": pages}), subscribe=partial(app.journal.when, pages))
        return ReplyPlan(_reply(app, request, name, query))
    except (ValueError, TypeError) as error:
        return ReplyPlan(error_reply(400, str(error)))
    except KeyError as error:
        return ReplyPlan(error_reply(404, f"nothing exists at {error.args[0]}"))


def _reply(app: SampleApp, request: ReceivedRequest, name: str, query: Mapping[str, str]) -> EncodedReply:
    since, path = int(query.get("since", 0)), query.get("path", "*")
    if name.startswith(("truth/", "records/")):
        kind, _, place = name.partition("/")
        collections = app.dataset.family(f"/{place}")
        records = [record for collection in collections for record in collection.part(0, len(collection.numbers))]
        if kind == "records":
            return reply_of(records)
        ids = [record["id"] for record in records]
        return reply_of({"count": len(records), "ids": ids, "checksum": checksum(records)})
    if name == "faults":
        if request.method in ("POST", "DELETE"):
            app.faults.replace(orjson.loads(request.body) if request.method == "POST" else [])
        return reply_of([fault.to_json() for fault in app.faults.faults])
    if name == "counts":
        return reply_of(app.journal.counts(path, since, query.get("detail", "0") != "0"))
    if name == "log":
        return reply_of([entry.to_json() for entry in app.journal.since(since, path)])
    if name == "reset" and request.method == "POST":
        app.reset()
    elif name == "change" and request.method == "POST":
        app.change(Fault.from_json(orjson.loads(request.body)))
    elif name != "health":
        raise KeyError(_PREFIX + name)
    return reply_of({"ok": True})


class HttpProtocol(asyncio.Protocol):
    """A connection of a client."""

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
        """Answer the requests that are complete."""
        self._received += data
        while not self._busy and not self._closing and self._received:
            end = self._received.find(_END)
            if end < 0:
                if len(self._received) > _LARGEST_HEAD:
                    self._transport.abort()
                return
            first, *lines = self._received[:end].decode("latin-1").split("\r\n")
            method, target, *_ = [*first.split(" "), ""]
            fields = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in fields}
            stop = end + len(_END) + int(headers.get("content-length", 0))
            if len(self._received) < stop:
                return
            body, self._received = self._received[end + len(_END) : stop], self._received[stop:]
            self._busy = True
            self._closing = headers.get("connection", "").lower() == "close"
            request = ReceivedRequest(method, target, headers, body)
            handle = administer if target.startswith(_PREFIX) else SampleApp.serve
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
        if fault is None:
            self._transport.write(reply.head + reply.body)
            self._written()
        elif fault.kind is FaultKind.DRIP:
            self._transport.write(reply.head)
            self._drip(fault, reply.body)
        elif fault.kind is FaultKind.TRUNCATE:
            self._current = None
            self._transport.write(reply.head + reply.body[: int(len(reply.body) * fault.keep)])
            self._transport.close()
        elif fault.kind is FaultKind.DISCONNECT:
            self._transport.abort()
        elif fault.seconds:
            self._later(fault.seconds, self._transport.abort)

    def _drip(self, fault: Fault, rest: bytes) -> None:
        if self._current is None:
            return
        self._transport.write(rest[: fault.chunk])
        if len(rest) <= fault.chunk:
            self._written()
        else:
            self._later(fault.seconds, partial(self._drip, fault, rest[fault.chunk :]))

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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    sizes = Sizes()
    program = "python -m airflow_provider_rfr.sample_api"
    parser = argparse.ArgumentParser(prog=program, description="A sample API with faults.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--records", type=int, default=sizes.records, help="number of /orders and of /invoices")
    parser.add_argument("--customers", type=int, default=sizes.customers)
    parser.add_argument("--partitions", type=int, default=sizes.partitions)
    parser.add_argument("--pages", type=int, default=sizes.pages, help="pages of each partition")
    parser.add_argument("--page-records", type=int, default=sizes.page_records, help="records of a partition's page")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="latency of each answer")
    parser.add_argument("--api-key", help="required in X-Api-Key or as a bearer token")
    parser.add_argument("--faults", default="[]", help="JSON list, as for POST /_admin/faults")
    parser.add_argument("--changes", default="[]", help="JSON list, each as for POST /_admin/change")
    parser.add_argument("--diary", help="file that records each served page and survives a kill")
    parser.add_argument("--warm", action="store_true", help="make the pages of the partitions before the start")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when stdin closes")
    return parser.parse_args(arguments)


def build(options: argparse.Namespace) -> SampleApp:
    sizes = Sizes(options.records, options.customers, options.partitions, options.pages, options.page_records)
    app = SampleApp(sizes, options.latency_ms / 1000, options.api_key, options.diary)
    app.faults.replace(json.loads(options.faults))
    for change in json.loads(options.changes):
        app.change(Fault.from_json(change))
    return app


async def run(app: SampleApp, options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _at_end_of_stdin, stop)
    server = await loop.create_server(lambda: HttpProtocol(app), options.host, options.port, backlog=1024)
    host, port = server.sockets[0].getsockname()[:2]
    if options.warm:
        app.warm(f"{host}:{port}", options.page_records)
    gc.freeze()
    ready = {"port": port, "base_url": f"http://{host}:{port}", "pid": os.getpid(), "source": str(SHOP)}
    print(json.dumps(ready), flush=True)
    await stop.wait()
    server.close()


def _at_end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        stop.set()


def main() -> None:
    options = parse()
    app = build(options)
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    try:
        asyncio.run(run(app, options))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sys.exit(f"The sample API can't listen on {options.host}:{options.port}: {reason}; choose another --port")


if __name__ == "__main__":
    main()
