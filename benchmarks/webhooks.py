"""A benchmark of the webhooks that one process delivers, and of the delay that dead or slow endpoints cause to others.

``python -m benchmarks.webhooks`` prints a table for people and, as its last line, one JSON object for scripts. Each
pair runs the healthy endpoints by themselves, and then with two more: one that is dead and one that drips. Dispatcher
and endpoints are a process each, on loopback. The time is measured for the healthy endpoints alone: from the start of
the delivery to the last call that they get.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = "2s"
DEAD = ("refusing", "silent")
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_DRIP = 0.3


@dataclass
class ReceivedCalls:
    """The calls that the healthy endpoints received."""

    ids: dict[int, list[str]] = field(default_factory=dict)
    first: float = 0.0
    last: float = 0.0

    def note(self, port: int, delivery_id: str) -> None:
        """Count a whole request."""
        self.last = time.time()
        self.first = self.first or self.last
        self.ids.setdefault(port, []).append(delivery_id)

    def figures(self) -> dict[str, Any]:
        """Return counts and times, and reset them."""
        ids = [delivery_id for delivery_ids in self.ids.values() for delivery_id in delivery_ids]
        delivery_ids = {
            "calls": len(ids),
            "distinct": len(set(ids)),
            "fewest": min(map(len, self.ids.values()), default=0),
            "first": self.first,
            "last": self.last,
        }
        self.ids, self.first, self.last = {}, 0.0, 0.0
        return delivery_ids


class Healthy(asyncio.Protocol):
    """A connection whose requests are answered as soon as they are there."""

    def __init__(self, got: ReceivedCalls) -> None:
        self._got = got
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and the port."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        """Count and answer each complete request."""
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
    """Accept, and never answer."""
    while await reader.read(65536):
        pass
    writer.close()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a byte at a time."""
    for byte in _ANSWER:
        writer.write(bytes([byte]))
        try:
            await writer.drain()
        except ConnectionError:
            return
        await asyncio.sleep(_DRIP)


async def serve(count: int) -> None:
    """Serve until standard input ends; for each line of it, print the figures of the calls."""
    calls, loop = ReceivedCalls(), asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Healthy(calls), "127.0.0.1", 0, backlog=64) for _ in range(count)]
    others = [await asyncio.start_server(behaviour, "127.0.0.1", 0) for behaviour in (silent, dripping)]
    ports = [server.sockets[0].getsockname()[1] for server in [*servers, *others]]
    print(json.dumps({"healthy": ports[:count], "silent": ports[count], "dripping": ports[count + 1]}), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(calls.figures()), flush=True)


def closed_port() -> int:
    """Return a port that refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Receivers:
    """The process of the endpoints."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.webhooks", "--receive", str(count)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = self._line()

    def figures(self) -> dict[str, Any]:
        """Return figures of the calls to the healthy endpoints since the last request for them."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return dict(json.loads(self._process.stdout.readline()))


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webhooks", description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoints", type=int, default=10, help="two of them are the dead and the dripping one")
    parser.add_argument("--each", type=int, default=100, help="deliveries for each endpoint")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--store", help="SQLAlchemy address of a database; by default a new SQLite file for each run")
    parser.add_argument("--deliver", help=argparse.SUPPRESS)
    parser.add_argument("--receive", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.deliver:
        print(json.dumps(deliver(json.loads(options.deliver))))
        return 0
    if options.receive is not None:
        asyncio.run(serve(options.receive))
        return 0
    healthy = options.endpoints - 2
    with receivers(healthy) as endpoints:
        pairs: dict[str, list[dict[str, Any]]] = {dead: [] for dead in DEAD}
        for number in range(options.pairs):
            for dead in DEAD:
                pairs[dead].append(pair(endpoints, dead, options, alone_first=number % 2 == 0))
    figures = {dead: summed_up(runs) for dead, runs in pairs.items()}
    show(figures, healthy * options.each)
    print(json.dumps({"deliveries": options.endpoints * options.each, "load": os.getloadavg()[0], **figures}))
    return 0 if all(figure["lost"] == figure["doubled"] == 0 for figure in figures.values()) else 1


@contextmanager
def receivers(count: int) -> Iterator[Receivers]:
    """Run the endpoints until the end of the block."""
    endpoints = Receivers(count)
    try:
        yield endpoints
    finally:
        endpoints.close()


def pair(endpoints: Receivers, dead: str, options: argparse.Namespace, *, alone_first: bool) -> dict[str, Any]:
    """Deliver to the healthy endpoints alone, and to all endpoints; return the figures of both runs."""
    urls = {f"healthy{n}": port for n, port in enumerate(endpoints.ports["healthy"])}
    bad = {"dead": closed_port() if dead == "refusing" else endpoints.ports["silent"]}
    bad["dripping"] = endpoints.ports["dripping"]
    sides = {"alone": urls, "all": {**urls, **bad}}
    order = sides if alone_first else reversed(sides)
    return {side: run(endpoints, sides[side], options) for side in order}


def run(endpoints: Receivers, ports: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """Deliver in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rfr-webhooks-") as folder:
        task = {"ports": ports, "each": options.each, "store": options.store or f"sqlite:///{folder}/control.db"}
        command = [sys.executable, "-m", "benchmarks.webhooks", "--deliver", json.dumps(task)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    sender, calls = json.loads(done.stdout.strip().splitlines()[-1]), endpoints.figures()
    owed = options.each * sum(name.startswith("healthy") for name in ports)
    return {
        **sender,
        "seconds": calls["last"] - sender["began"],
        "lost": owed - calls["distinct"],
        "doubled": calls["calls"] - calls["distinct"],
    }


def deliver(task: dict[str, Any]) -> dict[str, Any]:
    """Enqueue the commits, then deliver them; only the delivery is timed."""
    import logging

    from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
    from airflow_provider_rfr.store.engine import open_store
    from airflow_provider_rfr.webhooks.block import parse_triggers
    from airflow_provider_rfr.webhooks.dispatcher import Dispatcher
    from airflow_provider_rfr.webhooks.outbox import endpoints_of, enqueue

    logging.disable(logging.CRITICAL)
    payload = {"id": "{{delivery_id}}", "collections": "{{collection_names}}", "rows": "{{totals.documents}}"}
    block = parse_triggers(
        {
            "config": {
                name: {
                    "url": f"http://127.0.0.1:{port}/hooks/{name}",
                    "payload": payload,
                    "timeout": TIMEOUT,
                    "headers": {"Authorization": "Bearer a-token-of-some-length"},
                    "signing": {"secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
                }
                for name, port in task["ports"].items()
            }
        }
    )
    store, run_id = open_store(task["store"]), os.urandom(8).hex()
    bindings = (Binding("raw.orders", "orders", 1000, 65536),)
    events = [
        CommitEvent(
            commit_id=f"{run_id}-{number}",
            target="raw.orders",
            lake=run_id,
            target_name="shop/orders",
            run_id=run_id,
            sequence=number,
            collection_names=("orders",),
            bindings=bindings,
        )
        for number in range(1, task["each"] + 1)
    ]
    endpoints = endpoints_of(run_id, "raw.orders", block)
    enqueue(store, events, endpoints)
    began, cpu = time.time(), time.process_time()
    tally = Dispatcher(store, endpoints, allowed_hosts=["127.0.0.1"]).deliver_due()
    whole = time.time() - began
    return {
        "began": began,
        "whole": whole,
        "cpu": time.process_time() - cpu,
        "delivered": tally.delivered,
        "pending": tally.pending,
    }


def summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the pairs; the slowdown is the median of the slowdowns within the pairs."""
    alone, together = [run["alone"] for run in runs], [run["all"] for run in runs]
    delivered = together[0]["delivered"]
    seconds = median(run["seconds"] for run in together)
    slowdowns = [b["seconds"] / a["seconds"] - 1 for a, b in zip(alone, together, strict=True)]
    return {
        "alone_s": median(run["seconds"] for run in alone),
        "all_s": seconds,
        "per_s": delivered / seconds,
        "fastest_alone_s": min(run["seconds"] for run in alone),
        "fastest_all_s": min(run["seconds"] for run in together),
        "slowdown": median(slowdowns),
        "slowdown_best": min(slowdowns),
        "slowdown_worst": max(slowdowns),
        "cpu_alone_s": median(run["cpu"] for run in alone),
        "cpu_all_s": median(run["cpu"] for run in together),
        "whole_s": median(run["whole"] for run in together),
        "lost": sum(run["lost"] for run in (*alone, *together)),
        "doubled": sum(run["doubled"] for run in (*alone, *together)),
    }


def show(figures: dict[str, dict[str, Any]], deliveries: int) -> None:
    """Print a table."""
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"\n{deliveries} deliveries to the healthy endpoints; load average {load}")
    print(f"{'the dead one is':20}" + "".join(f"{name:>12}" for name in figures))
    rows = (
        ("alone_s", "healthy alone, s", "{:.2f}"),
        ("all_s", "with the two, s", "{:.2f}"),
        ("per_s", "deliveries/s", "{:.0f}"),
        ("slowdown", "slowed by", "{:+.1%}"),
        ("fastest_alone_s", "fastest alone, s", "{:.2f}"),
        ("fastest_all_s", "fastest with two, s", "{:.2f}"),
        ("cpu_alone_s", "CPU alone, s", "{:.2f}"),
        ("cpu_all_s", "CPU with the two, s", "{:.2f}"),
        ("whole_s", "until it returns, s", "{:.2f}"),
        ("lost", "lost", "{:.0f}"),
        ("doubled", "doubled", "{:.0f}"),
    )
    for name, label, form in rows:
        print(f"{label:20}" + "".join(f"{form.format(figure[name]):>12}" for figure in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
