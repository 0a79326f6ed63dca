"""A small real HTTP server that answers what a test tells it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    """One request, as the server got it."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))

    @property
    def page(self) -> int:
        return int(self.query.get("page", 1))


@dataclass
class Reply:
    """``body``: bytes as they are, anything else as JSON.  ``raw`` writes to the connection itself."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: Callable[[Any], None] | None = None


class Api:
    """An API whose answers are a function of the request, or a list of replies that are used up."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Reply | Any] = lambda asked: Reply({"data": []})
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answers(self, *replies: Any) -> None:
        """Each reply once, the last one for ever."""
        left = list(replies)

        def next_reply(asked: Asked) -> Any:
            with self._lock:
                return left.pop(0) if len(left) > 1 else left[0]

        self.answer = next_reply

    def pages(self, size: int, count: int, *, total: str | None = None, leave_out: Mapping[int, int] = {}) -> None:
        """``count`` records numbered from 1, in pages of ``size`` by ``page``, or by ``offset``."""

        def page(asked: Asked) -> Reply:
            start = int(asked.query["offset"]) if "offset" in asked.query else (asked.page - 1) * size
            ids = list(range(start + 1, min(start + size, count) + 1))
            body: dict[str, Any] = {"data": [{"id": i} for i in ids[: len(ids) - leave_out.get(asked.page, 0)]]}
            if total == "records":
                body["total"] = count
            if total == "pages":
                body["total"] = -(-count // size)
            return Reply(body)

        self.answer = page

    @property
    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def _handler_of(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        timeout = 30

        def _any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            parts = urlsplit(self.path)
            asked = Asked(
                self.command,
                self.path,
                dict(parse_qsl(parts.query, keep_blank_values=True)),
                self.headers,
                self.rfile.read(length),
                id(self),
            )
            api.asked.append(asked)
            reply = api.answer(asked)
            reply = reply if isinstance(reply, Reply) else Reply(reply)
            if reply.raw is not None:
                self.close_connection = True
                reply.raw(self.wfile)
                return
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            if reply.status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if reply.status != 204:
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = _any

        def log_message(self, *args: Any) -> None:
            return None

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client went away, as many tests want it to
                super().handle()

    return Handler


QUICK: dict[str, Any] = {"backoff": [{"type": "constant", "seconds": 0.01}]}


class CountingLimiter:
    """Counts what a stream asks, never makes it wait."""

    def __init__(self) -> None:
        self.acquired = 0
        self.penalties: list[float] = []

    def acquire(self) -> None:
        self.acquired += 1

    def penalize(self, seconds: float) -> None:
        self.penalties.append(seconds)


def ids(records: Any) -> list[int]:
    return [record["id"] for record in records]


def drip(out: Any, chunks: Iterator[bytes], every: float, closing: threading.Event) -> None:
    for chunk in chunks:
        if closing.wait(every):
            return
        out.write(chunk)
        out.flush()
