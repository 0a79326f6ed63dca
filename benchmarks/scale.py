"""A benchmark of time and memory, as partitions, rounds and pages grow.

``python -m benchmarks.scale`` prints a table for people and, as its last line, one JSON object for scripts.

Each measurement is a process of its own, so that its memory can be measured. ``slope`` is the exponent by which the
time grows between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshConfig, parse_config
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import FlushLabel, FlushWriter, PageFile, PageRow, page_row
from airflow_provider_rfr.refresh.partitions import check_gapless, cursors_of, live_pages
from airflow_provider_rfr.refresh.side_by_side import StreamRuns
from airflow_provider_rfr.streams import Complete, NextPage, Page, PagedStream

SIZES: dict[str, tuple[int, ...]] = {
    "open": (1_000, 10_000, 100_000),
    "rounds": (10, 100, 1_000),
    "resume": (10_000, 100_000, 1_000_000),
    "check": (10_000, 100_000, 1_000_000),
    "publish": (10_000, 100_000),
}
TITLES = {
    "open": "open a refresh of n partitions",
    "rounds": "commit of the last of n rounds",
    "resume": "resume with n page rows",
    "check": "check n page rows before the publish",
    "publish": "publish n pages of one record, Spark's start left out",
}
ROOT = Path(__file__).resolve().parents[1]
TARGET = "scale.items"
PAGES_A_FILE = 10_000
ROWS_A_ROUND = 50


class OneRecordAPage(PagedStream):
    """A source without an API, because reading is not measured."""

    name = "items"

    def __init__(self, partitions: int = 1) -> None:
        self._partitions = partitions

    def stream_slices(self, **_: Any) -> Iterator[dict[str, int]]:
        return ({"n": number} for number in range(self._partitions))

    def read_page(self, stream_slice: Any, token: Any) -> Page:
        return Page([{"id": int(stream_slice["n"])}], Complete())


def items(config: dict[str, Any]) -> list[OneRecordAPage]:
    """Return the source's streams. The application calls this."""
    return [OneRecordAPage(config["partitions"])]


def lake(folder: str) -> LakeSettings:
    return LakeSettings("scale", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})


def ledger_with(folder: str, partitions: int) -> Ledger:
    """Return a ledger with an open generation of ``partitions`` partitions."""
    ledger = Ledger(LedgerTable.load_or_create(open_catalog(lake(folder)), TARGET))
    slices = ((f'{{"n":{number}}}', {"n": number}) for number in range(partitions))
    ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key=None)
    return ledger


def writer_of(ledger: Ledger, round_number: int) -> FlushWriter:
    label = FlushLabel(1, 1, round_number, 0, 0, 0)
    return FlushWriter(ledger.store, ledger.folder, label)


def rows_of(partition: int, pages: int, first: int = 1, *, ends: bool = True) -> list[PageRow]:
    """Return consecutive pages of one partition."""
    last = first + pages - 1
    return [
        page_row(
            Page([{"id": partition * 1_000_000 + n}], Complete() if ends and n == last else NextPage(n + 1)),
            generation=1,
            epoch=1,
            ordinal=partition,
            key=f'{{"n":{partition}}}',
            chain=0,
            number=n,
            token=None if n == 1 else n,
        )
        for n in range(first, last + 1)
    ]


def filled(folder: str, pages: int) -> None:
    """Fill a ledger with ``pages`` page rows: partitions of a thousand pages, of which all but a tenth are complete."""
    partitions = pages // 1_000
    ledger = ledger_with(folder, partitions)
    writer, waiting = writer_of(ledger, 1), list[PageRow]()
    for number in range(partitions):
        waiting += rows_of(number, 1_000, ends=number < partitions * 0.9)
        if len(waiting) >= PAGES_A_FILE:
            writer.write(waiting)
            waiting = []
    writer.write(waiting)
    ledger.commit(writer.files, rounds=1, pages=pages)


def measure_open(size: int, folder: str) -> float:
    open_catalog(lake(folder))
    return timed(lambda: ledger_with(folder, size))


def measure_rounds(size: int, folder: str) -> float:
    ledger, last = ledger_with(folder, 1), 0.0
    for number in range(size):
        writer = writer_of(ledger, number)
        writer.write(rows_of(0, ROWS_A_ROUND, 1 + number * ROWS_A_ROUND, ends=False))

        def commit(files: list[PageFile] = writer.files, rounds: int = number + 1) -> None:
            ledger.commit(files, rounds=rounds, pages=rounds * ROWS_A_ROUND)

        # The mean of the last ten: one commit in eight trims, and one in some dozens merges manifests.
        took = timed(commit)
        last += took / 10 if number >= size - 10 else 0.0
    return last


def measure_resume(size: int, folder: str) -> float:
    in_a_process_of_its_own("fill", size, folder)

    def resume() -> None:
        ledger = Ledger(LedgerTable.load_or_create(open_catalog(lake(folder)), TARGET))
        book = ledger.take_over("p")
        table = ledger.read_pages()
        assert table is not None
        book.remember(table, addressable=True)

    return timed(resume)


def measure_check(size: int, folder: str) -> float:
    in_a_process_of_its_own("fill", size, folder)

    def check() -> None:
        ledger = Ledger(LedgerTable.load_or_create(open_catalog(lake(folder)), TARGET))
        table = ledger.read_pages()
        assert table is not None
        cursors = cursors_of(table)
        check_gapless(live_pages(table, cursors), cursors)

    return timed(check)


def measure_publish(size: int, folder: str) -> float:
    """Run a whole refresh of ``size`` partitions of one page, and return the seconds of its publish."""
    cluster = Cluster("scale", {"spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[1])})
    cluster.start()
    config = config_of(folder, size)
    runs = StreamRuns(
        config,
        cluster,
        stopping=threading.Event(),
        report=lambda *_: None,
        report_failure=lambda *_: None,
        open_history=None,
    )
    figures, errors = runs.run()
    if errors:
        raise errors["items"]
    return float(figures["items"]["seconds"]["publish"])


def config_of(folder: str, partitions: int) -> RefreshConfig:
    settings = lake(folder)
    return parse_config(
        {
            "source": {"class": "benchmarks.scale:items", "config": {"partitions": partitions}},
            "streams": ["items"],
            "target": TARGET,
            "lake": {"name": settings.name, "properties": dict(settings.properties)},
        }
    )


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_a_process_of_its_own(name: str, size: int, folder: str) -> None:
    """Run a step in a process of its own, so that its memory does not count."""
    subprocess.run([sys.executable, "-m", "benchmarks.scale", "--step", name, str(size), folder], check=True)


STEPS: dict[str, Callable[[int, str], float]] = {
    "open": measure_open,
    "rounds": measure_rounds,
    "resume": measure_resume,
    "check": measure_check,
    "publish": measure_publish,
}


def step(name: str, size: int, folder: str) -> None:
    """Run one step in this process, and print its cost."""
    if name == "fill":
        filled(folder, size)
        return
    seconds = STEPS[name](size, folder)
    files = [file for file in Path(folder, "w").rglob("*") if file.is_file()]
    metadata = [file.stat().st_size for file in files if "/metadata/" in str(file)]
    figures = {
        "seconds": seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files": len(files),
        "metadata_kb": sum(metadata) / 1024,
    }
    print(json.dumps(figures), flush=True)


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SIZES, action="append", help="one measurement; may be repeated")
    parser.add_argument("--small", action="store_true", help="only the smallest size, to show that everything works")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        name, size, folder = options.step
        step(name, int(size), folder)
        return 0
    measurements: dict[str, list[dict[str, Any]]] = {}
    for name in options.only or SIZES:
        sizes = SIZES[name][:1] if options.small else SIZES[name]
        measurements[name] = [measure(name, size) for size in sizes]
        show(name, measurements[name])
    print(json.dumps(measurements))
    return 0


def measure(name: str, size: int) -> dict[str, Any]:
    """Measure a step in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rfr-scale-") as folder:
        command = [sys.executable, "-m", "benchmarks.scale", "--step", name, str(size), folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} {size}: {done.stderr[-3000:]}")
    return {"size": size, **json.loads(done.stdout.strip().splitlines()[-1])}


def slope(runs: list[dict[str, Any]]) -> float | None:
    """Return the exponent between the two largest sizes, or None for one size."""
    if len(runs) < 2:
        return None
    small, large = runs[-2:]
    return math.log(large["seconds"] / small["seconds"]) / math.log(large["size"] / small["size"])


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """Print a table of one measurement."""
    print(f"\n{TITLES[name]}")
    print(f"{'n':>12}{'seconds':>12}{'peak MB':>12}{'files':>10}{'metadata kB':>14}")
    for run in runs:
        print(
            f"{run['size']:>12,}{run['seconds']:>12.3f}{run['peak_mb']:>12,.0f}"
            f"{run['files']:>10,}{run['metadata_kb']:>14,.0f}"
        )
    if (exponent := slope(runs)) is not None:
        print(f"slope {exponent:.2f}")


if __name__ == "__main__":
    sys.exit(main())
