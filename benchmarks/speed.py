"""The product and the baseline in turns, on the same API."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from airflow_provider_rfr.sample_api import SampleApi
from benchmarks.processes import Tree, Usage
from benchmarks.product import ROOT, Product, RunFailed, last_line
from benchmarks.shapes import Shape

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Setting:
    """How often, and with how many requests in flight on each side."""

    runs: int
    threads: int
    concurrency: int
    with_product: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One whole process, and what the API spent on it.

    :ivar seconds: by phase, as the process itself says
    :ivar api_cpu: CPU seconds of the API meanwhile, which compete for the same cores
    """

    usage: Usage
    rows: int
    seconds: Mapping[str, float]
    api_cpu: float
    refetched: int

    @property
    def session(self) -> float | None:
        """Seconds from the start of the process until the Spark session was up; None without one."""
        return self.seconds.get("session_ready")


@dataclass(slots=True)
class Runs:
    """All runs of one side; a figure is the median of its runs."""

    name: str
    runs: list[Run] = field(default_factory=list)

    def figures(self, records: int) -> dict[str, float]:
        wall = median(run.usage.wall for run in self.runs)
        figures = {
            "wall_s": wall,
            "wall_min_s": min(run.usage.wall for run in self.runs),
            "wall_max_s": max(run.usage.wall for run in self.runs),
            "cpu_s": median(run.usage.cpu for run in self.runs),
            "peak_mb": median(run.usage.peak_bytes for run in self.runs) / 1e6,
            "records_per_s": records / wall,
            "api_cpu_s": median(run.api_cpu for run in self.runs),
        }
        if all(run.session is not None for run in self.runs):
            figures["session_s"] = median(run.session or 0.0 for run in self.runs)
            figures["after_session_s"] = median(run.usage.wall - (run.session or 0.0) for run in self.runs)
        return {name: round(value, 3) for name, value in figures.items()}

    def phases(self) -> dict[str, float]:
        """Median seconds by phase, in the order in which the first run reports them."""
        names = self.runs[0].seconds if self.runs else {}
        return {name: round(median(run.seconds.get(name, 0.0) for run in self.runs), 3) for name in names}


def baseline(shape: Shape, api: SampleApi, threads: int, folder: Path) -> Run:
    command = [sys.executable, str(ROOT / "benchmarks" / "baseline.py"), f"--base-url={api.base_url}"]
    command += [f"--partitions={shape.partitions}", f"--page-size={shape.page_records}"]
    command += [f"--threads={threads}", f"--out={folder}"]
    return _run(shape, api, Tree(command))


def product(shape: Shape, api: SampleApi, concurrency: int, folder: Path) -> Run:
    return _run(shape, api, Product(shape, api.base_url, folder, concurrency).start())


def alternate(shape: Shape, api: SampleApi, setting: Setting, folder: Path) -> tuple[Runs, Runs]:
    """Product and baseline in turns on empty folders, so that what disturbs the machine disturbs both."""
    ours, theirs = Runs("product"), Runs("baseline")
    for number in range(setting.runs):
        place = folder / f"{shape.name}{number}"
        theirs.runs.append(baseline(shape, api, setting.threads, place / "parquet"))
        if setting.with_product:
            ours.runs.append(product(shape, api, setting.concurrency, place / "lake"))
        shutil.rmtree(place)
    return ours, theirs


def _run(shape: Shape, api: SampleApi, tree: Tree) -> Run:
    api.reset()
    before = _cpu_of(api.pid)
    with tree:
        usage = tree.wait()
    said, counts = last_line(usage), api.counts()
    if counts["pages"] < shape.total_pages or said["rows"] != shape.records:
        raise RunFailed(f"read {counts['pages']} pages of {shape.total_pages}, {said['rows']} rows")
    seconds = {name: float(value) for name, value in said["seconds"].items() if value is not None}
    return Run(usage, said["rows"], seconds, _cpu_of(api.pid) - before, counts["refetched"])


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
