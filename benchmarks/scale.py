"""How time and memory grow with partitions, rounds and pages. ``python -m benchmarks.scale`` prints a table for people
and, as its last line, one JSON object for scripts.

Each measurement is a process of its own, so that its memory is its own. ``slope`` is the exponent by which the time
grows between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SIZES, action="append", help="one measurement; may be repeated")
    parser.add_argument("--small", action="store_true", help="only the smallest size, to show that everything works")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in options.only or SIZES:
        sizes = SIZES[name][:1] if options.small else SIZES[name]
        found[name] = [measure(name, size) for size in sizes]
        show(name, found[name])
    print(json.dumps(found))
    return 0


def measure(name: str, size: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rfr-scale-") as folder:
        command = [sys.executable, "-m", "benchmarks.scale_steps", name, str(size), folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} {size}: {done.stderr[-3000:]}")
    return {"size": size, **json.loads(done.stdout.strip().splitlines()[-1])}


def slope(runs: list[dict[str, Any]]) -> float | None:
    """The exponent between the two largest sizes; None for one size."""
    if len(runs) < 2:
        return None
    small, large = runs[-2:]
    return math.log(large["seconds"] / small["seconds"]) / math.log(large["size"] / small["size"])


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """A table of one measurement."""
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
