"""Runs a sink, and is killed by SIGKILL at a named place; run as a process by the crash tests.

``kill`` names the place: there it kills itself as the kernel would, with no handler
and no finally.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_rfr.sinks import SinkSpec
from airflow_provider_rfr.sinks import run as sinks_run
from airflow_provider_rfr.sinks.run import HttpTarget, Run, run_sink
from airflow_provider_rfr.store.engine import open_store
from tests.unit.sinks.exporting import LOOPBACK, SOURCE, declared, open_lake

PLACES = (
    "before the window",
    "after the window",
    "before the batch",
    "after the batch",
    "before the cursor",
    "after the cursor",
)


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Counts calls of what a run does outside, and kills in the named one.

    :ivar number: of the batch, from 1, at which it kills
    """

    def __init__(self, place: str, number: int) -> None:
        self._place = place
        self._number = number
        self._batches = 0

    def reached(self, place: str) -> None:
        if place == self._place and self._batches == self._number:
            _die()

    def around_sending(self, sender: Any) -> None:
        send = sender.send

        def wrapped(this: Any, batch: Any) -> None:
            self._batches += 1
            self.reached("before the batch")
            send(this, batch)
            self.reached("after the batch")

        sender.send = wrapped

    def around_moving(self) -> None:
        move = Run.move

        def wrapped(this: Run, **values: Any) -> None:
            what = "cursor" if "last_batch" in values else "window" if "window" in values else ""
            self.reached(f"before the {what}")
            move(this, **values)
            self.reached(f"after the {what}")

        Run.move = wrapped  # type: ignore[assignment,method-assign]


def main(task: dict[str, Any]) -> None:
    """Run the sink to its end, or to the place."""
    if task.get("kill") == "half a file":
        os.replace = _die
    elif task.get("kill"):
        killer = Killer(task["kill"], task["number"])
        for sender in (sinks_run.HttpSender, sinks_run.FileSender):
            killer.around_sending(sender)
        killer.around_moving()
    folder = Path(task["folder"])
    store = open_store(task["store"])
    sink = declared(str(folder / "out"), batch_size=2)
    target = None
    if task.get("url"):
        sink = replace(sink, spec=SinkSpec(SOURCE, "http", {"connection": "c", "path": "in", "batch_size": 2}))
        target = HttpTarget(task["url"], timeout=30, patience=0, allowed_hosts=LOOPBACK)
    run_sink(sink.id, sink.name, sink.spec, catalog=open_lake(folder), store=store, target=target)
    store.close()
