"""``python -m tests.matrix``: install the wheel with each Airflow and each Spark, and run its main jobs there.

Each cell has an environment of its own, which the resolver fills from the wheel's metadata. In it run the demo (a DAG
whose driver is killed, Airflow's retry, a webhook) and the tests of CI that use a running Airflow: deploy, ALTER
CONNECTION, form, pages, deferral, SQL on Spark; and those marked ``matrix``. The rows of docs/compatibility.md are
replaced by the results; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
#: All that the tests need of the checkout; the package itself comes from the wheel.
COPIED = ("tests", "demo", "dags", "spark_apps", "docs", "README.md", "pyproject.toml")
TESTS = ("tests/system", "tests/integration/test_sql_on_spark.py")
EXTRAS = "postgres,sops,openlineage,airbyte,dev"
AIRFLOWS = ("3.1", "3.2", "3.3")
SPARKS = ("3.5", "4.0", "4.1", "4.2", "4.3")
#: The Python of the Sparks in turn, so that each Python has a cell with each Airflow; Spark 4.3 has left 3.10 behind.
PYTHONS = ("3.10", "3.12", "3.11", "3.13", "3.14")
#: Airflow 3.1 knows no Python 3.14.
NEWEST_PYTHON = {"3.1": "3.13"}
#: Airflow 3.2 does not start with newer ones. Its constraints pin them, its metadata does not.
PINS = {"3.2": ("fastapi<0.137", "cadwyn<8")}
RULE = "|---|---|---|---|---|---|"
VERSIONS = """
import importlib.metadata, json, platform
names = ("apache-airflow", "pyspark", "pyarrow", "pyiceberg", "apache-airflow-providers-apache-spark")
print(json.dumps({"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}))
"""


@dataclass(frozen=True, order=True)
class Cell:
    """One combination of minor versions."""

    airflow: str
    spark: str
    python: str

    @property
    def requirements(self) -> list[str]:
        return [f"apache-airflow~={self.airflow}.0", *PINS.get(self.airflow, ())]


@dataclass
class Result:
    """The outcome of one cell.

    :ivar versions: of the installed packages
    :ivar demo: the last line of the demo
    :ivar failed: tests that failed, by name
    :ivar error: the first step that could not be done, and the end of its output
    """

    cell: Cell
    versions: dict[str, str] = field(default_factory=dict)
    demo: dict[str, Any] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    error: str = ""
    seconds: int = 0

    @property
    def good(self) -> bool:
        return not self.error and not self.failed and self.passed > 0


class StepError(Exception):
    """A step of a cell ended with an error; the text has the end of its output."""


def cells(airflows: Sequence[str], sparks: Sequence[str]) -> list[Cell]:
    """Return all combinations of these versions, each with its Python."""
    pythons = dict(zip(SPARKS, PYTHONS, strict=True))
    return [
        Cell(airflow, spark, min(pythons[spark], NEWEST_PYTHON.get(airflow, "4"), key=_version))
        for airflow in airflows
        for spark in sparks
    ]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], folder / "wheel.log")
    return next(folder.glob("*.whl"))


def copy_tests(folder: Path) -> Path:
    """Copy the tests to a folder without the package, so that they import the wheel's."""
    for name in COPIED:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder)
    return folder


def run_cell(cell: Cell, wheel: Path, checkout: Path, folder: Path) -> Result:
    """Install the environment of a cell, and run its demo and its tests."""
    folder.mkdir(parents=True)
    began, result = time.monotonic(), Result(cell)
    environment = folder / "env"
    python = str(environment / "bin" / "python")
    try:
        install(cell, wheel, environment, folder / "install.log")
        result.versions = json.loads(run([python, "-c", VERSIONS], folder / "versions.log"))
        result.demo = json.loads(
            run_in(environment, checkout, ["-m", "demo.run"], folder / "demo.log").splitlines()[-1]
        )
        tests = ["-m", "pytest", "-q", "-m", "gate or matrix", "-p", "no:cacheprovider", "-p", "no:xdist"]
        report = folder / "tests.xml"
        run_in(environment, checkout, [*tests, f"--junitxml={report}", *TESTS], folder / "tests.log", codes=(0, 1))
        read_report(report, result)
    except StepError as error:
        result.error = str(error)
    result.seconds = round(time.monotonic() - began)
    return result


def install(cell: Cell, wheel: Path, environment: Path, log: Path) -> None:
    """Fill an environment by the resolver; nothing is forced, and no lock is used."""
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "-q", "--python", cell.python, str(environment)], log)
    spark = f"spark{cell.spark.replace('.', '')}"
    wanted = [f"airflow-provider-rfr[{spark},{EXTRAS}] @ {wheel.as_uri()}", *cell.requirements]
    run([*uv, "pip", "install", "-q", "--python", str(environment / "bin" / "python"), *wanted], log)


def run_in(environment: Path, checkout: Path, arguments: list[str], log: Path, codes: tuple[int, ...] = (0,)) -> str:
    """Run Python in the environment, as a user who has activated it, and return its output."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "PYTHON"))}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(environment)}
    return run([str(environment / "bin" / "python"), *arguments], log, codes, cwd=checkout, env=variables)


def run(command: list[str], log: Path, codes: tuple[int, ...] = (0,), **options: Any) -> str:
    """Run a command, add its output to a log, and return it.

    :raises StepError: it ended with another code
    """
    with log.open("a+") as output:
        begin = output.seek(0, os.SEEK_END)
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, **options).returncode
        output.seek(begin)
        text = output.read()
    if code not in codes:
        raise StepError(f"{log.stem}: exit code {code}: {' '.join(text[-600:].split())}")
    return text


def read_report(report: Path, result: Result) -> None:
    """Count the tests of a report in JUnit's format."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed.append(str(case.get("name")))
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1


def row_of(result: Result, today: date) -> str:
    """Return the row of the table in the docs."""
    versions, demo = result.versions, result.demo
    parts = [versions.get("apache-airflow", result.cell.airflow), versions.get("pyspark", result.cell.spark)]
    parts.append(versions.get("python", result.cell.python))
    lost = f"{demo['rows_published']:,} of {demo['rows_source']:,}" if demo else "-"
    tests = f"{result.passed} passed" + (f", {result.skipped} skipped" if result.skipped else "")
    if result.failed:
        tests += f", {len(result.failed)} failed"
    reason = result.error.partition(":")[0]
    return f"| {' | '.join(parts)} | {lost} | {f'{reason} failed' if reason else tests} | {today} |"


def write_page(results: list[Result], today: date) -> None:
    """Replace the rows of these cells in docs/compatibility.md; rows of other cells stay."""
    head, table, tail = re.split(rf"(?<={re.escape(RULE)}\n)((?:\|.*\n)*)", PAGE.read_text(), maxsplit=1)
    rows = {_key(row): row for row in table.splitlines()}
    for result in results:
        row = row_of(result, today)
        rows[_key(row)] = row
    PAGE.write_text(head + "".join(f"{rows[key]}\n" for key in sorted(rows)) + tail)


def _key(row: str) -> tuple[tuple[int, ...], ...]:
    """Return the minor versions of Airflow and Spark of a row."""
    return tuple(_version(part.strip())[:2] for part in row.split("|")[1:3])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def main() -> int:
    """Run the cells that the arguments name, one after another, and return 0 if all of them are good."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description="Try all supported versions.")
    parser.add_argument("--airflow", nargs="+", choices=AIRFLOWS, default=AIRFLOWS)
    parser.add_argument("--spark", nargs="+", choices=SPARKS, default=SPARKS)
    parser.add_argument("--keep", type=Path, help="a new folder for environments and logs, which stays")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="rfr-matrix-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        wheel = build_wheel(folder)
        checkout = copy_tests(folder / "checkout")
        for cell in cells(options.airflow, options.spark):
            result = run_cell(cell, wheel, checkout, folder / f"airflow-{cell.airflow}-spark-{cell.spark}")
            results.append(result)
            print(row_of(result, date.today()), f"{result.seconds} s", result.error, *result.failed, flush=True)
            write_page([result], date.today())
            if not options.keep:
                shutil.rmtree(folder / f"airflow-{cell.airflow}-spark-{cell.spark}")
    good = sum(result.good for result in results)
    print(json.dumps({"cells": len(results), "good": good, "results": [asdict(result) for result in results]}))
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
