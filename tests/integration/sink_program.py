"""Runs a sink, and is killed by SIGKILL at the place ``kill``; run as a process by the crash tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.sinks import SinkSpec
from airflow_provider_rfr.sinks import run as sinks_run
from airflow_provider_rfr.sinks.run import HttpTarget, Run, run_sink
from airflow_provider_rfr.store.engine import open_store
from tests.kill_points import die, intercept
from tests.unit.sinks.exporting import LOOPBACK, SOURCE, declared, open_lake


def install(place: str, number: int) -> None:
    """Let it die at the place, once so many batches were begun."""
    batches = 0

    def reach(here: str) -> None:
        if here == place and batches == number:
            die()

    def begin_batch(sender: Any, batch: Any) -> None:
        nonlocal batches
        batches += 1
        reach("before the batch")

    def move(when: str) -> Callable[..., None]:
        def act(run: Run, **values: Any) -> None:
            reach(f"{when} the {'cursor' if 'last_batch' in values else 'window' if 'window' in values else ''}")

        return act

    for sender in (sinks_run.HttpSender, sinks_run.FileSender):
        intercept(sender, "send", before=begin_batch, after=lambda *_: reach("after the batch"))
    intercept(Run, "move", before=move("before"), after=move("after"))


def main(task: dict[str, Any]) -> None:
    """Run the sink to its end, or to the place."""
    if task.get("kill") == "half a file":
        os.replace = die
    elif task.get("kill"):
        install(task["kill"], task["number"])
    folder = Path(task["folder"])
    store = open_store(task["store"])
    sink, catalog = task.get("sink"), open_catalog(task["lake"]) if "lake" in task else open_lake(folder)
    target = HttpTarget(task["url"], timeout=30, patience=0, allowed_hosts=LOOPBACK) if task.get("url") else None
    if sink is None:
        sink = declared(str(folder / "out"), batch_size=2)
        if target is not None:
            sink = replace(sink, spec=SinkSpec(SOURCE, "http", {"connection": "c", "path": "in", "batch_size": 2}))
    run_sink(sink.id, sink.name, sink.spec, catalog=catalog, store=store, target=target)
    store.close()
