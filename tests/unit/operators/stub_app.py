"""A Spark application that keeps the contract with the operator and does as its source's config says; no Spark."""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

from airflow_provider_rfr.lake.spark import result_line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    path = Path(parser.parse_args().config)
    document = json.loads(path.read_text())
    play = document["source"]["config"]
    stopped = listen(deaf=play.get("until_stopped") == "deaf")
    report = {
        "document": document,
        "mode": stat.S_IMODE(path.stat().st_mode),
        "path": str(path),
        "environment": dict(os.environ),
        "executable": sys.executable,
        "commands": [file.read_bytes().decode(errors="replace") for file in Path("/proc").glob("[0-9]*/cmdline")],
    }
    draft = Path(play["report"] + ".draft")
    draft.write_text(json.dumps(report))
    draft.replace(play["report"])
    if play.get("until_stopped"):
        wait_for_the_end(stopped)
    if play.get("until_stopped") == "slowly":
        time.sleep(1)
        Path(play["report"] + ".ended").touch()
    print("orders: generation 1, round 1: 5 pages, 50 records, 1 of 1 partitions, 1 pages/s", flush=True)
    if "foreign_line" in play:
        print(play["foreign_line"], flush=True)
    print("a line of the driver", flush=True)
    if play.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    print(result_line(play["last_word"]), flush=True)
    print("ERROR MapOutputTrackerMaster: Could not tell tracker we are stopping", flush=True)
    print("\tat org.apache.spark.MapOutputTracker.askTracker(MapOutputTracker.scala:560)", flush=True)
    sys.exit(1 if "error" in play["last_word"] else 0)


def listen(deaf: bool) -> list[int]:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda number, frame: stopped.append(number))
    return stopped


def wait_for_the_end(stopped: list[int]) -> None:
    end = time.monotonic() + 250
    while not stopped and time.monotonic() < end:
        time.sleep(0.05)
    print("stopped in good order", flush=True)


if __name__ == "__main__":
    main()
