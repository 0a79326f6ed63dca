"""A whole refresh against a script written by hand, and the cost of a SIGKILL at half.

``python benchmarks/refresh.py --shape A --runs 3`` prints a table for people and, as its last line, one JSON
object for scripts. It fails when rows are missing or doubled, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from airflow_provider_rfr.sample_api import SampleApi

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.processes import Tree, Usage
from benchmarks.product import ROOT, SHAPES, Product, RunFailed, Shape, last_line

_TICKS = os.sysconf("SC_CLK_TCK")
_HALF_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of runs, and of requests in flight on each side."""

    runs: int
    threads: int
    concurrency: int
    with_product: bool


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One whole process, and the API's share of its cost.

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
        """Return the seconds from the start of the process until the Spark session was up; None without one."""
        return self.seconds.get("session_ready")


@dataclass(slots=True)
class MeasuredRuns:
    """All runs of one side; a figure is the median of its runs."""

    name: str
    runs: list[MeasuredRun] = field(default_factory=list)

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
        """Return median seconds by phase, in the order in which the first run reports them."""
        names = self.runs[0].seconds if self.runs else {}
        return {name: round(median(run.seconds.get(name, 0.0) for run in self.runs), 3) for name in names}


def baseline(shape: Shape, api: SampleApi, threads: int, folder: Path) -> MeasuredRun:
    command = [sys.executable, str(ROOT / "benchmarks" / "baseline.py"), f"--base-url={api.base_url}"]
    command += [f"--partitions={shape.partitions}", f"--page-size={shape.page_records}"]
    command += [f"--threads={threads}", f"--out={folder}"]
    return _run(shape, api, Tree(command))


def product(shape: Shape, api: SampleApi, concurrency: int, folder: Path) -> MeasuredRun:
    return _run(shape, api, Product(shape, api.base_url, folder, concurrency).start())


def alternate(shape: Shape, api: SampleApi, setting: Setting, folder: Path) -> tuple[MeasuredRuns, MeasuredRuns]:
    """Run product and baseline in turns on empty folders, so that a disturbance of the machine disturbs both."""
    ours, theirs = MeasuredRuns("product"), MeasuredRuns("baseline")
    for number in range(setting.runs):
        place = folder / f"{shape.name}{number}"
        theirs.runs.append(baseline(shape, api, setting.threads, place / "parquet"))
        if setting.with_product:
            ours.runs.append(product(shape, api, setting.concurrency, place / "lake"))
        shutil.rmtree(place)
    return ours, theirs


def _run(shape: Shape, api: SampleApi, tree: Tree) -> MeasuredRun:
    api.reset()
    before = _cpu_of(api.pid)
    with tree:
        usage = tree.wait()
    summary, counts = last_line(usage), api.counts()
    if counts["pages"] < shape.total_pages or summary["rows"] != shape.records:
        raise RunFailed(f"read {counts['pages']} pages of {shape.total_pages}, {summary['rows']} rows")
    seconds = {name: float(value) for name, value in summary["seconds"].items() if value is not None}
    return MeasuredRun(usage, summary["rows"], seconds, _cpu_of(api.pid) - before, counts["refetched"])


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True, slots=True)
class Crash:
    """A kill and its resume, as counted by the API and in the table; the product tells only ``overlap_checks``.

    :ivar pages_before_kill: served by the API before the kill, the ones still in flight included
    :ivar pages_refetched: served again afterwards
    :ivar overlap_checks: of these, pages that the resume read again on purpose
    :ivar pages_lost: of these, all others: what the kill cost
    :ivar lost_share: ``pages_lost`` of ``pages_before_kill``
    :ivar resume_wall_s: seconds of the second run
    """

    pages_total: int
    pages_before_kill: int
    pages_refetched: int
    overlap_checks: int
    pages_lost: int
    refetched_share: float
    lost_share: float
    resume_wall_s: float
    rows_source: int
    rows_published: int
    missing: int
    duplicates: int

    def figures(self) -> dict[str, float]:
        return asdict(self)


def kill_at_half(shape: Shape, api: SampleApi, concurrency: int, folder: Path) -> Crash:
    """Kill a refresh at half of its pages, and resume it."""
    api.reset()
    product = Product(shape, api.base_url, folder, concurrency)
    with product.start() as tree:
        _wait_for_pages(api, tree, shape.total_pages // 2)
        tree.kill()
    before = api.counts()["pages"]
    with product.start() as tree:
        usage = tree.wait()
    checks = int(last_line(usage).get("overlap_checks", 0))
    refetched = api.counts()["refetched"]
    ids = Counter(product.published_ids())
    source = set(api.truth("/partitions/items")["ids"])
    return Crash(
        pages_total=shape.total_pages,
        pages_before_kill=before,
        pages_refetched=refetched,
        overlap_checks=checks,
        pages_lost=refetched - checks,
        refetched_share=round(refetched / before, 4),
        lost_share=round((refetched - checks) / before, 4),
        resume_wall_s=round(usage.wall, 3),
        rows_source=len(source),
        rows_published=ids.total(),
        missing=len(source - ids.keys()),
        duplicates=ids.total() - len(ids),
    )


def _wait_for_pages(api: SampleApi, tree: Tree, pages: int) -> None:
    """Wait until so many pages are served.

    :raises RunFailed: the refresh ended before, or did not get so far in time
    """
    until = time.monotonic() + _HALF_WITHIN
    while time.monotonic() < until:
        try:
            api.wait_for_pages(pages, timeout=0.5)
            return
        except TimeoutError:
            if not tree.running():
                last_line(tree.wait())
                raise RunFailed("the refresh ended before half of its pages were read") from None
    raise RunFailed(f"half of the pages were not read within {_HALF_WITHIN:g} s")


_ROWS = (
    ("wall_s", "wall, s", "{:.2f}"),
    ("wall_min_s", "  fastest run", "{:.2f}"),
    ("wall_max_s", "  slowest run", "{:.2f}"),
    ("session_s", "  until session is up", "{:.2f}"),
    ("after_session_s", "  after that", "{:.2f}"),
    ("cpu_s", "CPU of the tree, s", "{:.2f}"),
    ("peak_mb", "peak memory, MB", "{:.0f}"),
    ("records_per_s", "records/s", "{:.0f}"),
    ("api_cpu_s", "CPU of the API, s", "{:.2f}"),
)


def speed_lines(shape: Shape, ours: MeasuredRuns, theirs: MeasuredRuns) -> Iterator[str]:
    """Return a table with the ratio of the product to the baseline, then the seconds by phase."""
    yield f"\n{shape.title} ({shape.records} records, median of {len(theirs.runs)})"
    yield f"{'':24}{'product':>12}{'baseline':>12}{'ratio':>9}"
    left = ours.figures(shape.records) if ours.runs else {}
    right = theirs.figures(shape.records) if theirs.runs else {}
    for name, label, form in _ROWS:
        a, b = left.get(name), right.get(name)
        ratio = f"{a / b:.2f}" if a and b else "-"
        yield f"{label:24}{_cell(a, form):>12}{_cell(b, form):>12}{ratio:>9}"
    for side in (ours, theirs):
        if side.runs:
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in side.phases().items())
            yield f"{side.name}, s by phase: {phases}"


def crash_lines(crash: Crash) -> Iterator[str]:
    yield f"SIGKILL at half: {crash.pages_before_kill} of {crash.pages_total} pages were served before it"
    yield (
        f"  served again: {crash.pages_refetched} ({crash.refetched_share:.1%}), of which overlap checks "
        f"{crash.overlap_checks}, lost by the kill {crash.pages_lost} ({crash.lost_share:.1%})"
    )
    yield (
        f"  rows: {crash.rows_published} published of {crash.rows_source}, "
        f"{crash.missing} missing, {crash.duplicates} doubled; the resume took {crash.resume_wall_s:.2f} s"
    )


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/refresh.py", description=__doc__)
    parser.add_argument(
        "--shape", choices=[*SHAPES, "both"], default="both", help="both: A and B; M: A by an Airbyte manifest"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each side; figures are medians")
    parser.add_argument("--threads", type=int, default=32, help="of the baseline")
    parser.add_argument("--concurrency", type=int, default=16, help="of the product (16: its default)")
    parser.add_argument("--crashes", type=int, default=1, help="kills at half, each with its resume; 0: none")
    parser.add_argument("--baseline-only", action="store_true")
    return parser.parse_args(arguments)


def measure(shape: Shape, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures of one shape, and print them as they come."""
    with shape.api() as api:
        setting = Setting(options.runs, options.threads, options.concurrency, not options.baseline_only)
        ours, theirs = alternate(shape, api, setting, folder)
        print(*speed_lines(shape, ours, theirs), sep="\n", flush=True)
        crashes = []
        for number in range(0 if options.baseline_only else options.crashes):
            crashes.append(kill_at_half(shape, api, options.concurrency, folder / f"crash-{shape.name}{number}"))
            print(*crash_lines(crashes[-1]), sep="\n", flush=True)
    figures: dict[str, Any] = {"baseline": theirs.figures(shape.records) if theirs.runs else None}
    if ours.runs:
        figures["product"] = {**ours.figures(shape.records), "seconds": ours.phases()}
    return {**figures, "crashes": [crash.figures() for crash in crashes]}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = [SHAPES["A"], SHAPES["B"]] if options.shape == "both" else [SHAPES[options.shape]]
    machine = {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}
    print(f"{machine['cores']} cores, load before the first run {machine['load_before']}")
    try:
        with tempfile.TemporaryDirectory(prefix="rfr-bench-") as folder:
            figures = {shape.name: measure(shape, options, Path(folder)) for shape in chosen}
    except RunFailed as error:
        print(f"a measured run failed: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**figures, "machine": machine}))
    wrong = [
        crash
        for shape_figures in figures.values()
        for crash in shape_figures["crashes"]
        if crash["missing"] or crash["duplicates"]
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
