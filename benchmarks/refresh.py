"""A whole refresh against a script written by hand, and what a SIGKILL at half costs.

``python benchmarks/refresh.py --shape A --runs 3`` prints a table for people and, as its last line, one JSON
object for scripts. It fails when rows are missing or doubled, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.crash import kill_at_half
from benchmarks.product import RunFailed
from benchmarks.report import crash_lines, speed_lines
from benchmarks.shapes import SHAPES, Shape
from benchmarks.speed import Setting, alternate


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
    """All figures of one shape; prints them as they come."""
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
    wrong = [c for one in figures.values() for c in one["crashes"] if c["missing"] or c["duplicates"]]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
