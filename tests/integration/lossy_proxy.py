"""Proxies in front of REST, Glue and PostgreSQL that forward a commit, and lose or spoil its answer."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

Answer = tuple[int, str, bytes]
"""Status, content type and body."""

FAULTS: Final = ("500", "502", "503", "504", "reset", "half", "silent", "twice")
"""How the answer of one commit is spoiled after the commit was forwarded."""
LOST_THEN_REFUSED: Final = "500, then refused"
"""As Glue refuses the repeat that botocore sends by itself after a 500; moto would take it."""
_GLUE_REFUSAL: Final = b'{"__type": "ConcurrentModificationException", "Message": "concurrent modifications"}'
_ERROR: Final = '{"error": {"message": "of the proxy", "type": "ServerError", "code": %s}}'


class LossyProxy:
    """A context manager around an HTTP proxy.

    :param upstream: port of the server on 127.0.0.1
    :param is_commit: tells of a method, path, target header and body whether the request commits
    :ivar port: of the proxy
    :ivar fault: of :data:`FAULTS`, for the next commit only; None for none
    :ivar commits: that were forwarded
    """

    def __init__(self, upstream: int, is_commit: Callable[[str, str, str, bytes], bool]) -> None:
        self._upstream = upstream
        self._is_commit = is_commit
        self._released = threading.Event()
        self.fault: str | None = None
        self.commits = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_request(self) -> None:
                proxy._handle(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

            do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = handle_request

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def __enter__(self) -> LossyProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        fault = None
        if self._is_commit(request.command, request.path, request.headers.get("X-Amz-Target", ""), body):
            self.commits += 1
            fault, self.fault = self.fault, None
        if fault == "refused":
            _reply(request, (400, "application/x-amz-json-1.1", _GLUE_REFUSAL))
            return
        answer = self._forward(request, body)
        if fault == LOST_THEN_REFUSED:
            self.fault, fault = "refused", "500"
        if fault == "twice":
            answer = self._forward(request, body)
        if fault == "silent":
            self._released.wait()
        if fault in ("reset", "silent"):
            _reset(request.connection)
            request.close_connection = True
            return
        _reply(request, _spoiled(answer, fault))

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> Answer:
        left_out = ("host", "connection", "accept-encoding")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in left_out}
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream)
        try:
            connection.request(request.command, request.path, body, headers)
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type") or "application/json", response.read()
        finally:
            connection.close()


def _spoiled(answer: Answer, fault: str | None) -> Answer:
    status, kind, body = answer
    if fault == "half":
        return status, kind, body[: len(body) // 2]
    if fault == "502":
        return 502, "text/html", b"<html>Bad Gateway</html>"
    if fault is not None and fault.isdecimal():
        return int(fault), "application/json", (_ERROR % fault).encode()
    return answer


def _reply(request: BaseHTTPRequestHandler, answer: Answer) -> None:
    status, kind, body = answer
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _reset(connection: socket.socket) -> None:
    """Close it so that the other side gets a reset, and not an end of file."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
        connection.close()


def commits_to_rest(method: str, path: str, target: str, body: bytes) -> bool:
    """Tell whether a request commits to a table of a REST catalog."""
    if method != "POST" or "/tables" not in path or not body:
        return False
    return bool(json.loads(body).get("updates"))


def commits_to_glue(method: str, path: str, target: str, body: bytes) -> bool:
    """Tell whether a request commits to a table of Glue."""
    return target.endswith((".UpdateTable", ".CreateTable"))


class PostgresProxy:
    """Forwards connections, and resets one when the server has answered its ``COMMIT``.

    :ivar armed: whether the next answer to a ``COMMIT`` of a transaction that wrote is lost
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.armed = False
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways; what a client sends is small and comes in one piece."""
        commits, writes = threading.Event(), threading.Event()

        def to_client() -> None:
            with suppress(OSError):
                while data := server.recv(65536):
                    if commits.is_set():
                        self.lost += 1
                        _reset(client)
                        server.close()
                        return
                    client.sendall(data)
            _reset(client)

        threading.Thread(target=to_client, daemon=True).start()
        with suppress(OSError):
            while data := client.recv(65536):
                if any(word in data for word in (b"UPDATE iceberg_tables", b"INSERT INTO iceberg_tables")):
                    writes.set()
                if self.armed and writes.is_set() and data.startswith(b"Q") and b"COMMIT" in data:
                    self.armed = False
                    commits.set()
                server.sendall(data)
        server.close()
