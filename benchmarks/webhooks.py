"""How fast one process drains webhooks, and whether endpoints that are dead or slow hold up the others.

``python -m benchmarks.webhooks`` prints a table for people and, as its last line, one JSON object for scripts. Each
pair runs the healthy endpoints by themselves, and then with two more: one that is dead and one that drips. Dispatcher
and endpoints are a process each, on loopback. What is timed is the healthy endpoints' share: from the start of the
delivery to the last call that they get.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.receivers import closed_port

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = "2s"
DEAD = ("refusing", "silent")


class Receivers:
    """The endpoints' process."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "benchmarks.receivers", str(count)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports = self._line()

    def figures(self) -> dict[str, Any]:
        """What the healthy ones got since the last time."""
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
    options = parser.parse_args()
    if options.deliver:
        print(json.dumps(deliver(json.loads(options.deliver))))
        return 0
    healthy = options.endpoints - 2
    with receivers(healthy) as endpoints:
        found: dict[str, list[dict[str, Any]]] = {dead: [] for dead in DEAD}
        for number in range(options.pairs):
            for dead in DEAD:
                found[dead].append(pair(endpoints, dead, options, alone_first=number % 2 == 0))
    figures = {dead: summed_up(runs) for dead, runs in found.items()}
    show(figures, healthy * options.each)
    print(json.dumps({"deliveries": options.endpoints * options.each, "load": os.getloadavg()[0], **figures}))
    return 0 if all(each["lost"] == each["doubled"] == 0 for each in figures.values()) else 1


@contextmanager
def receivers(count: int) -> Iterator[Receivers]:
    """The endpoints, until the end of the block."""
    endpoints = Receivers(count)
    try:
        yield endpoints
    finally:
        endpoints.close()


def pair(endpoints: Receivers, dead: str, options: argparse.Namespace, *, alone_first: bool) -> dict[str, Any]:
    """The healthy alone, and all; in turns, so that neither always meets what the other left."""
    urls = {f"healthy{n}": port for n, port in enumerate(endpoints.ports["healthy"])}
    bad = {"dead": closed_port() if dead == "refusing" else endpoints.ports["silent"]}
    bad["dripping"] = endpoints.ports["dripping"]
    sides = {"alone": urls, "all": {**urls, **bad}}
    order = sides if alone_first else reversed(sides)
    return {side: run(endpoints, sides[side], options) for side in order}


def run(endpoints: Receivers, ports: dict[str, int], options: argparse.Namespace) -> dict[str, Any]:
    """One process that delivers."""
    with tempfile.TemporaryDirectory(prefix="rfr-webhooks-") as folder:
        task = {"ports": ports, "each": options.each, "store": options.store or f"sqlite:///{folder}/control.db"}
        command = [sys.executable, "-m", "benchmarks.webhooks", "--deliver", json.dumps(task)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    told, got = json.loads(done.stdout.strip().splitlines()[-1]), endpoints.figures()
    owed = options.each * sum(name.startswith("healthy") for name in ports)
    return {
        **told,
        "seconds": got["last"] - told["began"],
        "lost": owed - got["distinct"],
        "doubled": got["calls"] - got["distinct"],
    }


def deliver(task: dict[str, Any]) -> dict[str, Any]:
    """Enrol the commits, then deliver: only the latter is timed."""
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
    """Medians over the pairs; the slowdown is the median of the pairs' own."""
    alone, together = [each["alone"] for each in runs], [each["all"] for each in runs]
    delivered = together[0]["delivered"]
    seconds = median(each["seconds"] for each in together)
    slowdowns = [b["seconds"] / a["seconds"] - 1 for a, b in zip(alone, together, strict=True)]
    return {
        "alone_s": median(each["seconds"] for each in alone),
        "all_s": seconds,
        "per_s": delivered / seconds,
        "fastest_alone_s": min(each["seconds"] for each in alone),
        "fastest_all_s": min(each["seconds"] for each in together),
        "slowdown": median(slowdowns),
        "slowdown_best": min(slowdowns),
        "slowdown_worst": max(slowdowns),
        "cpu_alone_s": median(each["cpu"] for each in alone),
        "cpu_all_s": median(each["cpu"] for each in together),
        "whole_s": median(each["whole"] for each in together),
        "lost": sum(each["lost"] for each in (*alone, *together)),
        "doubled": sum(each["doubled"] for each in (*alone, *together)),
    }


def show(figures: dict[str, dict[str, Any]], deliveries: int) -> None:
    """A table."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
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
        print(f"{label:20}" + "".join(f"{form.format(each[name]):>12}" for each in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
