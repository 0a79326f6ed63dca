"""Real parts: the sample API as a process, Spark by its application, a SQLite catalog, a local warehouse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.preflight import iceberg_runtime
from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.headers import read_status
from tests.integration.postgres import PostgresServer
from tests.soon import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "spark_apps" / "full_refresh.py"
CRASHING_APP = ROOT / "tests" / "integration" / "crashing_app.py"
PYTHON_PATH = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
FENCED = 3
"""Exit code of a driver that another one has fenced."""


def _has_iceberg_runtime() -> bool:
    try:
        return bool(iceberg_runtime())
    except ConfigurationError:
        return False


needs_sql_on_spark = pytest.mark.skipif(not _has_iceberg_runtime(), reason="Iceberg has no runtime for this Spark")


@dataclass
class Lake:
    """A lake of the test's own.

    :ivar properties: of the catalog
    """

    folder: Path
    properties: dict[str, str] = field(default_factory=dict)
    name: str = "rfr"

    def __post_init__(self) -> None:
        self.properties = self.properties or {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    @property
    def settings(self) -> LakeSettings:
        return LakeSettings(self.name, self.properties)

    def table(self, name: str) -> Any:
        return open_catalog(self.settings).load_table(name)

    def rows(self, name: str) -> pa.Table:
        return self.table(name).scan().to_arrow()

    def has(self, name: str) -> bool:
        return bool(open_catalog(self.settings).table_exists(name))


@dataclass
class Outcome:
    """How a run of the application ended."""

    code: int
    output: str
    figures: dict[str, Any]


class Runner:
    """Runs refreshes as processes of their own, each in its own process group."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self.lake = lake
        self._folder = folder
        self._count = 0

    def config(self, *, source: dict[str, Any], streams: list[str], target: str = "raw.{stream}", **more: Any) -> Path:
        self._count += 1
        path = self._folder / f"refresh-{self._count}.json"
        lake = {"name": self.lake.name, "properties": self.lake.properties}
        # Loads of tests are small: without this, the driver would publish them alone.
        more["options"] = {"spark": "always", **more.get("options", {})}
        path.write_text(json.dumps({"source": source, "streams": streams, "target": target, "lake": lake, **more}))
        return path

    def start(
        self, config: Path, *, app: Path = APP, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return start_python(app, "--config", config, environment=environment)

    def run(self, config: Path, *, expect: int | None = 0, **options: Any) -> Outcome:
        process = self.start(config, **options)
        output, _ = process.communicate(timeout=PATIENCE)
        outcome = Outcome(process.returncode, output, figures_of(output))
        if expect is not None:
            assert outcome.code == expect, f"exit code {outcome.code}, expected {expect}:\n{output[-6000:]}"
        return outcome


def start_python(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a Python in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        start_new_session=True,
        env={**os.environ, **PYTHON_PATH, **(environment or {})},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
    )


def run_python(*arguments: str | Path, expect: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python to its end.

    :param expect: its exit code; None for any
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **PYTHON_PATH},
        **{"cwd": ROOT, "capture_output": True, "text": True, "check": False, "timeout": PATIENCE, **options},
    )
    if expect is not None:
        assert done.returncode == expect, done.stdout[-2000:] + done.stderr[-5000:]
    return done


def figures_of(output: str) -> dict[str, Any]:
    """The JSON object of the last line on stdout."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {}


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs. Who adopts an orphan may take its time to ask how it ended: until then it is a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process of ours and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def assert_whole(lake: Lake, api: SampleApi, table: str = "raw.items") -> None:
    ids = lake.rows(table)["id"].to_pylist()
    assert len(ids) == len(set(ids)), "rows are doubled"
    assert sorted(ids) == sorted(api.truth("/partitions/items")["ids"]), "rows are missing or foreign"


def kill_half_way(runner: Runner, api: SampleApi, config: Path, pages: int) -> float:
    """Kill a driver with half of the pages read from a slow API; return the time in seconds since 1970."""
    # Object stores get the pages of a second at once, so a second has to be a small part of the reading.
    api.set_faults({"kind": "latency", "path": "/partitions/*", "seconds": 1})
    process = runner.start(config)
    api.wait_for_pages(pages // 2)
    kill_group(process)
    killed_at = time.time()
    api.set_faults()
    return killed_at


def assert_one_of_two_publishes(lake: Lake, runner: Runner, api: SampleApi, config: Path, table: str) -> None:
    """Start two drivers at once; check that one publishes and the other is fenced."""
    # The API waits until both have opened the refresh: whichever came first has lost it, and reads on. Where both open
    # it at the same moment, one of them ends at once.
    api.set_faults({"kind": "hold", "path": "/partitions/*"})
    drivers = [runner.start(config) for _ in range(2)]

    def one_has_lost() -> bool:
        status = read_status(lake.settings, table)
        return (status is not None and status.epoch == 2) or any(driver.poll() is not None for driver in drivers)

    try:
        wait_until(one_has_lost, every=0.2)
        api.set_faults()
        outputs = [driver.communicate(timeout=PATIENCE)[0] for driver in drivers]
    finally:
        for driver in drivers:
            kill_group(driver)
    assert sorted(driver.returncode for driver in drivers) == [0, FENCED], outputs[0][-3000:] + outputs[1][-3000:]
    fenced = next(figures_of(text) for text, driver in zip(outputs, drivers, strict=True) if driver.returncode)
    assert fenced["error"]["type"] == "FencedError"
    assert_whole(lake, api, table)
    assert len(lake.table(table).metadata.snapshots) == 1


def shop(api: SampleApi, **config: Any) -> dict[str, Any]:
    """The sample API as a source."""
    return {
        "file": str(SHOP),
        "config": {"base_url": api.base_url, **config},
        "secrets": {"api_key": api.api_key or "any-api-key"},
    }


@pytest.fixture(scope="module")
def airflow() -> None:
    """Airflow's database, in a file of this process."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def runner(lake: Lake, tmp_path: Path) -> Runner:
    return Runner(lake, tmp_path)


@pytest.fixture
def api() -> Iterator[SampleApi]:
    """Eight partitions of 20 pages of 25 records, 40 ms each; and the other resources."""
    sizes = Sizes(records=400, customers=30, partitions=8, pages=20, page_records=25)
    with SampleApi(sizes, latency_ms=40) as running:
        yield running
