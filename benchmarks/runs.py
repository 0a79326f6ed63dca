"""Measured runs of one shape: the product, the script written by hand, and the peers, in turns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from airflow_provider_rfr.sample_api import SampleApi
from benchmarks import peers
from benchmarks.processes import Tree, Usage, cpu_of
from benchmarks.product import ROOT, Product, RunFailed, last_line
from benchmarks.shapes import Shape

PLAIN, PRODUCT = "plain", "product"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One whole process, and the API's share of its cost.

    :ivar seconds: seconds by phase, as the process itself reports them
    :ivar api_cpu: CPU seconds of the API meanwhile, which compete for the same cores
    """

    usage: Usage
    seconds: Mapping[str, float]
    api_cpu: float

    @property
    def session(self) -> float | None:
        """Return the seconds from the start of the process until the Spark session was up; None without one."""
        return self.seconds.get("session_ready")


@dataclass(slots=True)
class MeasuredRuns:
    """All runs of one side; a figure is the median of its runs."""

    shape: Shape
    runs: list[MeasuredRun] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return medians of whole processes."""
        walls = [run.usage.wall for run in self.runs]
        wall = median(walls)
        figures = {
            "wall_s": wall,
            "wall_min_s": min(walls),
            "wall_max_s": max(walls),
            "cpu_s": median(run.usage.cpu for run in self.runs),
            "peak_mb": median(run.usage.peak_bytes for run in self.runs) / 1e6,
            "records_per_s": self.shape.records / wall,
            "api_cpu_s": median(run.api_cpu for run in self.runs),
        }
        if all(run.session is not None for run in self.runs):
            figures["session_s"] = median(run.session or 0.0 for run in self.runs)
        if (most := self.shape.most_pages_per_s) is not None:
            figures["share_of_limit"] = self.shape.total_pages / wall / most
            figures["reading_share_of_limit"] = self.shape.total_pages / self.phases()["read"] / most
        return {name: round(value, 3) for name, value in figures.items()}

    def phases(self) -> dict[str, float]:
        """Return median seconds by phase, in the order in which the first run reports them."""
        return {
            name: round(median(run.seconds.get(name, 0.0) for run in self.runs), 3) for name in self.runs[0].seconds
        }


def sides(shape: Shape, with_peers: bool) -> list[str]:
    """Return the names of the sides that are compared."""
    return [PLAIN, PRODUCT, *(peers.PEERS if with_peers and shape.has_peers else ())]


def alternate(shape: Shape, api: SampleApi, names: Sequence[str], runs: int, folder: Path) -> dict[str, MeasuredRuns]:
    """Run all sides in turns on empty folders, so that a disturbance of the machine disturbs all of them."""
    measured = {name: MeasuredRuns(shape) for name in names}
    for number in range(runs):
        for name in names:
            place = folder / f"{shape.name}-{name}-{number}"
            (place / "warehouse").mkdir(parents=True)
            measured[name].runs.append(_run(shape, api, name, place))
            shutil.rmtree(place)
    return measured


def _start(shape: Shape, api: SampleApi, name: str, lake: Path) -> Tree:
    if name == PRODUCT:
        return Product(shape, api.base_url, lake).start()
    if name != PLAIN:
        return Tree(peers.command(name, api.base_url, shape.partitions, shape.in_flight, lake))
    # The script written by hand knows no manifests; their pages are those of ``items``.
    source = "items" if shape.source == "manifest" else shape.source
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "plain.py"),
        f"--base-url={api.base_url}",
        f"--source={source}",
    ]
    command += [f"--partitions={shape.partitions}", f"--page-size={shape.page_records}"]
    return Tree([*command, f"--threads={shape.in_flight}", f"--lake={lake}"])


def _run(shape: Shape, api: SampleApi, name: str, lake: Path) -> MeasuredRun:
    api.reset()
    before = cpu_of(api.pid)
    with _start(shape, api, name, lake) as tree:
        usage = tree.wait()
    summary, counts = last_line(usage), api.counts()
    if counts["pages"] < shape.total_pages or summary["rows"] != shape.records:
        raise RunFailed(f"read {counts['pages']} pages of {shape.total_pages}, {summary['rows']} rows")
    seconds = {name: float(value) for name, value in summary["seconds"].items() if value is not None}
    return MeasuredRun(usage, seconds, cpu_of(api.pid) - before)
