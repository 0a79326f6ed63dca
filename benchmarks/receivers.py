"""Endpoints on loopback: healthy ones, one that is dead and one that drips. A process of their own.

``python -m benchmarks.receivers HEALTHY`` prints their ports, and then, for each line on its standard input, what they
got since the line before: one JSON object each.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_DRIP = 0.3


@dataclass
class Got:
    """What the healthy endpoints got."""

    ids: dict[int, list[str]] = field(default_factory=dict)
    first: float = 0.0
    last: float = 0.0

    def note(self, port: int, delivery_id: str) -> None:
        """One request, whole."""
        self.last = time.time()
        self.first = self.first or self.last
        self.ids.setdefault(port, []).append(delivery_id)

    def figures(self) -> dict[str, Any]:
        """Counts and moments; then both are reset."""
        ids = [each for found in self.ids.values() for each in found]
        found = {
            "calls": len(ids),
            "distinct": len(set(ids)),
            "fewest": min(map(len, self.ids.values()), default=0),
            "first": self.first,
            "last": self.last,
        }
        self.ids, self.first, self.last = {}, 0.0, 0.0
        return found


class Healthy(asyncio.Protocol):
    """Answers each request as soon as it is there."""

    def __init__(self, got: Got) -> None:
        self._got = got
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of the base."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        """As of the base."""
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, _, rest = self._data.partition(b"\r\n\r\n")
            lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
            headers = {name.strip().lower(): value.strip() for name, _, value in lines}
            length = int(headers[b"content-length"])
            if len(rest) < length:
                return
            self._got.note(self._port, headers[b"webhook-id"].decode())
            self._data = rest[length:]
            self._transport.write(_ANSWER)


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, and never answers."""
    while await reader.read(65536):
        pass
    writer.close()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a byte at a time."""
    for byte in _ANSWER:
        writer.write(bytes([byte]))
        try:
            await writer.drain()
        except ConnectionError:
            return
        await asyncio.sleep(_DRIP)


async def serve(count: int) -> None:
    """Until the standard input ends."""
    got, loop = Got(), asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Healthy(got), "127.0.0.1", 0, backlog=64) for _ in range(count)]
    others = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (silent, dripping)]
    ports = [server.sockets[0].getsockname()[1] for server in [*servers, *others]]
    print(json.dumps({"healthy": ports[:count], "silent": ports[count], "dripping": ports[count + 1]}), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(got.figures()), flush=True)


def closed_port() -> int:
    """A port that refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
