"""A benchmark of a whole refresh against a script written by hand and other tools, and of a SIGKILL at half.

``python -m benchmarks.refresh --shape A B --runs 3`` prints tables for people and, as its last line, one JSON object
for scripts. It fails when rows are missing or doubled, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from airflow_provider_rfr import __version__
from benchmarks import kept, page, peers
from benchmarks.kills import kill_at_half
from benchmarks.plain import read_chain
from benchmarks.product import RunFailed
from benchmarks.runs import alternate, sides
from benchmarks.shapes import SHAPES, Shape
from benchmarks.tables import kill_lines, shape_lines, summary_lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refresh", description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help=_names())
    parser.add_argument("--runs", type=int, default=3, help="of each side; figures are medians")
    parser.add_argument("--kills", type=int, default=1, help="at half, each with its resume; 0: none")
    parser.add_argument("--peers", action="store_true", help="measure dlt and Airbyte's CDK too (make bench-peers)")
    parser.add_argument("--keep", action="store_true", help="write figures to kept.json and docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.peers and not peers.PYTHON.exists():
        parser.error("--peers needs `make bench-peers` first")
    return options


def _names() -> str:
    return f"of {', '.join(SHAPES)}; default: all"


def measure(shape: Shape, options: argparse.Namespace, last: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return all figures of one shape, and print them as they come."""
    with shape.api() as api:
        if shape.source == "chain":
            # The API caches its pages. Without this, the first measured reader would wait until they are made.
            read_chain(api.base_url, shape.page_records)
        measured = alternate(shape, api, sides(shape, options.peers), options.runs, folder)
        figures: dict[str, Any] = {"runs": options.runs}
        figures |= {name: {**runs.figures(), "seconds": runs.phases()} for name, runs in measured.items()}
        print(*shape_lines(shape, figures, last), sep="\n", flush=True)
        kills = []
        for number in range(options.kills if shape.is_killed else 0):
            kills.append(kill_at_half(shape, api, folder / f"{shape.name}-killed-{number}"))
            print(*kill_lines(kills[-1]), sep="\n", flush=True)
    if any(kill.is_wrong for kill in kills):
        raise RunFailed(f"{shape.name}: rows are missing or doubled after a kill")
    return {**figures, "kills": [asdict(kill) for kill in kills]}


def machine() -> dict[str, Any]:
    """Describe the machine and its load."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    options, last = parse(arguments), kept.read()
    figures: dict[str, Any] = {"release": __version__, "machine": machine(), "shapes": {}}
    print(f"{figures['machine']['cores']} cores, load before the first run {figures['machine']['load_before']}")
    try:
        with tempfile.TemporaryDirectory(prefix="rfr-bench-") as folder:
            for name in options.shape:
                before = last["shapes"].get(name, {})
                figures["shapes"][name] = measure(SHAPES[name], options, before, Path(folder))
    except RunFailed as error:
        print(f"a measured run failed: {error}", file=sys.stderr)
        return 1
    print(*summary_lines(figures, last), sep="\n")
    if options.keep:
        kept.write(figures)
        page.write()
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
