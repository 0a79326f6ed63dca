"""An incremental sync's merge against Spark's ``MERGE INTO``, PyIceberg's ``Table.upsert`` and dlt's ``merge``.

``python -m benchmarks.merge --rows 10000000`` prints a table for people and, as its last line, one JSON object. It
fails when a table has other rows than expected, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.refresh.process import driver_java_options
from benchmarks.merge_lake import NAMESPACE, Case, MergeLake, rows_of, served
from benchmarks.merge_sides import changes_file
from benchmarks.peers import PYTHON
from benchmarks.processes import Tree, Usage
from benchmarks.product import ROOT, RunFailed, last_line

_SIDES_FILE: Final = str(ROOT / "benchmarks" / "merge_sides.py")
_CASES: Final = ("newest:1000", "newest:100000", "random:100000")
_HOURLY: Final = Case("newest", 50)
_APPLICATION: Final = str(ROOT / "spark_apps" / "full_refresh.py")
_SUBMIT: Final = (str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]")
_COMMANDS: Final = {
    # With the Java options that the operator sets.
    "spark-submit": [*_SUBMIT, f"--driver-java-options={' '.join(driver_java_options())}", _APPLICATION],
    "python": [sys.executable, _APPLICATION],
}
_SMALLER: Final = {"upsert": (1_000_000, "newest:10000"), "dlt": (200_000, "newest:2000")}
"""Rows and changes that the other sides can handle: they compare row by row in Python."""


def _filled(folder: Path, keys: str, rows: int, files: int) -> MergeLake:
    """Return a lake with a table of ``rows`` rows, which a sync of the product created with its first row."""
    lake = MergeLake(folder, keys, rows, files)
    (folder / "warehouse").mkdir(parents=True)
    first = rows_of(np.zeros(1, dtype=np.int64), keys, 0).append_column("is_deleted", pa.array([False]))
    _sync(lake, first)
    lake.fill()
    return lake


def _sync(lake: MergeLake, changes: pa.Table, **document: Any) -> dict[str, Any]:
    """Run an incremental sync; return the figures of its merge."""
    usage = _run(lake, changes, [sys.executable, _SIDES_FILE, "sync"], **document)
    last = last_line(usage)
    lines = [json.loads(line) for line in usage.stdout.splitlines() if line.startswith('{"cost_of"')]
    costs: dict[str, Any] = {line["cost_of"]: line for line in lines}
    merge, publish = costs.get("_merge_and_commit", {}), costs.get("publish", {})
    return {
        "cpu_s": merge.get("cpu_s"),
        "wall_s": merge.get("wall_s"),
        "publish_cpu_s": publish.get("cpu_s"),
        "peak_mb": _mb(usage),
        "changes": last.get("changes"),
    }


def _run(lake: MergeLake, changes: pa.Table, command: Sequence[str], **document: Any) -> Usage:
    """Run a command on the document of a sync, while the changes are served."""
    with served(changes) as address:
        config = lake.folder / "sync.json"
        config.write_text(json.dumps(lake.document(address, **document)))
        with Tree([*command, f"--config={config}"]) as tree:
            usage = tree.wait()
    last_line(usage)
    return usage


def _mb(usage: Usage) -> int:
    return round(usage.peak_bytes / 1e6)


def _product(lake: MergeLake, cases: Sequence[Case]) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in cases:
        lake.reset()
        figures = _sync(lake, pq.read_table(changes_file(lake, case)))
        _check(case, lake, "product", lake.counts())
        yield case.name, figures


def _other(side: str, lake: MergeLake, cases: Sequence[Case]) -> Iterator[tuple[str, dict[str, Any]]]:
    names, python = [case.name for case in cases], str(PYTHON) if side == "dlt" else sys.executable
    place = [f"--folder={lake.folder}", f"--keys={lake.keys}", f"--rows={lake.rows}", "--case", *names]
    with Tree([python, _SIDES_FILE, side, *place]) as tree:
        usage = tree.wait()
    last_line(usage)
    lines = [json.loads(line) for line in usage.stdout.splitlines() if line.startswith('{"case"')]
    for case, line in zip(cases, lines, strict=True):
        if side == "merge_into":
            _check(case, lake, side, line["counts"])
        yield case.name, {"cpu_s": line["cpu_s"], "wall_s": line["wall_s"], "peak_mb": _mb(usage)}


def _check(case: Case, lake: MergeLake, side: str, counts: Sequence[int]) -> None:
    if tuple(counts) != case.expected(lake.rows):
        raise RunFailed(f"{side}, {case.name}: {counts} rows and changed rows, expected {case.expected(lake.rows)}")


def _hourly(lake: MergeLake, times: int) -> dict[str, dict[str, float]]:
    """Return the CPU seconds of a refresh of 50 records, of a sync of 50 changes, and of the same sync again.

    Each is a whole process: by spark-submit, as Airflow runs it every hour, and by Python, which starts no Spark for so
    few rows.

    :param times: runs of each process; the figures are their medians
    """
    changes = pq.read_table(changes_file(lake, _HOURLY))
    merge: dict[str, Any] = {"mode": "merge"}
    costs: dict[str, dict[str, float]] = {}
    for name, command in _COMMANDS.items():
        runs = []
        for _ in range(times):
            lake.reset()
            refresh = _run(lake, changes, command, options={}, sync="full", target=f"{NAMESPACE}.small")
            sync = _run(lake, changes, command, options=merge)
            _check(_HOURLY, lake, "product", lake.counts())
            snapshot = lake.table.metadata.current_snapshot_id
            again = _run(lake, changes, command, options=merge)
            if lake.table.metadata.current_snapshot_id != snapshot:
                raise RunFailed("a sync without changes made a commit")
            runs.append([usage.cpu for usage in (refresh, sync, again)])
        medians = [round(median(figures), 2) for figures in zip(*runs, strict=True)]
        costs[name] = dict(zip(("refresh of 50", "sync of 50", "50 unchanged"), medians, strict=True))
    return costs


def _report(title: str, figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print the figures of each case, and the ratio to the first side's."""
    print(f"\n{title}\n{'':18}{'':12}{'CPU, s':>10}{'ratio':>8}{'wall, s':>10}{'peak, MB':>10}")
    first = figures[next(iter(figures))]
    for name in first:
        for side, cases in figures.items():
            cost = cases[name]
            ratio = cost["cpu_s"] / first[name]["cpu_s"]
            print(f"{name:18}{side:12}{cost['cpu_s']:>10.2f}{ratio:>8.2f}{cost['wall_s']:>10.2f}{cost['peak_mb']:>10}")


def _compare(lake: MergeLake, others: Sequence[str], cases: Sequence[Case]) -> dict[str, Any]:
    """Run all sides on one table."""
    figures = {side: dict(_other(side, lake, cases)) for side in others}
    figures["product"] = dict(_product(lake, cases))
    _report(f"{lake.rows:,} rows in {lake.files} files, {lake.keys} keys", figures)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table (10,000,000)")
    parser.add_argument("--files", type=int, default=30, help="data files of the table (30)")
    parser.add_argument("--keys", nargs="*", choices=("int", "text"), default=["int"], help="types of the key (int)")
    parser.add_argument("--case", nargs="*", type=Case.of, default=[Case.of(text) for text in _CASES])
    parser.add_argument("--runs", type=int, default=3, help="runs of each whole process (3)")
    parser.add_argument("--product-only", action="store_true", help="leave the others out")
    parser.add_argument("--peers", action="store_true", help="compare with dlt, which make bench-peers installs, too")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {}
    for keys in options.keys:
        with tempfile.TemporaryDirectory() as folder:
            lake = _filled(Path(folder), keys, options.rows, options.files)
            result[keys] = _compare(lake, () if options.product_only else ("merge_into",), options.case)
            result[keys]["hourly"] = hourly = _hourly(lake, options.runs)
        for command, costs in hourly.items():
            for name, cost in costs.items():
                print(f"{name:18}{command:12}{cost:>10.2f}{cost / costs['refresh of 50']:>8.2f}  whole process")
    for side in () if options.product_only else ("upsert", *(["dlt"] if options.peers else [])):
        rows, case = _SMALLER[side]
        with tempfile.TemporaryDirectory() as folder:
            result[side] = _compare(_filled(Path(folder), "int", rows, 4), (side,), [Case.of(case)])
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
