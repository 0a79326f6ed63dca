"""One Airflow for all tests of this folder: scheduler with its workers, dag-processor, API server, triggerer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.lake.catalog import load_table, open_catalog
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from demo.airflow_stack import AirflowStack, free_port
from demo.cleanup import processes_of
from demo.run import is_driver
from tests.clusters.yarn import ResourceManager
from tests.integration.conftest import ROOT, SHOP, Lake, assert_whole
from tests.integration.postgres import PostgresServer
from tests.soon import PATIENCE, answers, wait_until

KEY = "canary-7d20b1-key"
PASSWORD = "canary-aa41f0-password"
SIZES = Sizes(partitions=8, pages=20, page_records=25)
TOTAL = SIZES.partitions * SIZES.pages
IN_FLIGHT = 4
#: Pages that a kill may cost: those in flight, one that is compared in each open partition, and those not yet written.
COST_OF_KILL = 2 * IN_FLIGHT + SIZES.partitions + TOTAL // 20
LATENCY_MS = 60.0
wait_for = partial(wait_until, seconds=PATIENCE, every=0.3)
LINEAGE = "lineage.jsonl"
ENDED = frozenset({"success", "failed"})
SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "12",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__CORE__PARALLELISM": "2",
}


@dataclass
class Story:
    """What a test does to Airflow and sees of it.

    :ivar lake: where the tables are
    :ivar yarn: where the drivers of the DAG ``deferred`` run
    """

    airflow: AirflowStack
    api: SampleApi
    lake: Lake
    yarn: ResourceManager | None = None

    def trigger(self, dag: str, run: str, **conf: Any) -> None:
        """Start a run as soon as the DAG was parsed."""
        self.airflow.wait_for_dag(dag)
        self.airflow.call("POST", f"/dags/{dag}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf})

    def start(self, dag: str, run: str, *, table: str = "items", **options: Any) -> None:
        """Start a run of a DAG that refreshes the sample API's items."""
        config = {"partitions": SIZES.partitions, "page_size": 25}
        self.trigger(dag, run, table=table, config=config, options={"round_seconds": 1, "concurrency": 4, **options})

    def hold_after(self, pages: int) -> None:
        """Let the API answer so many pages, and no more until its faults are set again."""
        self.api.set_faults({"kind": "hold", "path": "/partitions/*", "after": pages})

    def task(self, dag: str, run: str) -> dict[str, Any]:
        return self.airflow.task(dag, run, "refresh")

    def wait_for_state(self, dag: str, run: str, *states: str) -> dict[str, Any]:
        """The task as soon as it is in one of the states."""

        def found() -> dict[str, Any] | None:
            task = self.task(dag, run)
            return task if task["state"] in states else None

        return wait_for(
            found, describe=lambda: f"not {states}: {dag} {run}: {self.task(dag, run)}\n{self.log(dag, run)[-3000:]}"
        )

    def runs(self, dag: str) -> list[dict[str, Any]]:
        return list(self.airflow.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"])

    def wait_for_run(self, dag: str, run: str) -> str:
        """Return a run's state when it has ended."""

        def ended() -> str | None:
            state = str(self.airflow.call("GET", f"/dags/{dag}/dagRuns/{run}")["state"])
            return state if state in ENDED else None

        return str(wait_for(ended, describe=lambda: f"{dag} {run} did not end: {self.log(dag, run)[-3000:]}"))

    def wait_for_end(self, dag: str, run: str, task: str = "refresh") -> dict[str, Any]:
        """The task when its run has ended."""
        self.wait_for_run(dag, run)
        return self.airflow.task(dag, run, task)

    def succeed(self, dag: str, run: str, task: str = "refresh") -> dict[str, Any]:
        """The task of a run that has to end well."""
        ended = self.wait_for_end(dag, run, task)
        assert ended["state"] == "success", self.log(dag, run)[-6000:]
        return ended

    def clear(self, dag: str, run: str) -> None:
        body = {"dag_run_id": run, "task_ids": ["refresh"], "dry_run": False, "only_failed": False}
        self.airflow.call("POST", f"/dags/{dag}/clearTaskInstances", body)

    @contextmanager
    def unpaused(self, *dags: str) -> Iterator[None]:
        """Let DAGs that are paused at first run inside."""
        try:
            for dag in dags:
                self.airflow.wait_for_dag(dag)
                self.airflow.call("PATCH", f"/dags/{dag}", {"is_paused": False})
            yield
        finally:
            for dag in dags:
                self.airflow.call("PATCH", f"/dags/{dag}", {"is_paused": True})

    def scheduled_run(self, dag: str) -> str:
        """Return the run that the schedule makes as soon as a DAG is not paused."""

        def scheduled() -> list[str]:
            return [run["dag_run_id"] for run in self.runs(dag) if run["run_type"] == "scheduled"]

        return str(wait_for(scheduled, describe=lambda: f"{dag} has no scheduled run")[0])

    def mark(self, dag: str, run: str, state: str) -> None:
        self.airflow.call("PATCH", f"/dags/{dag}/dagRuns/{run}/taskInstances/refresh", {"new_state": state})

    def forget_state(self, dag: str, run: str) -> None:
        """What Airflow 3.4 does with a clear: the task's state is gone."""
        self.airflow.call("DELETE", f"/dags/{dag}/dagRuns/{run}/taskInstances/refresh/state-store?map_index=-1")

    def result(self, dag: str, run: str, task: str = "refresh") -> dict[str, Any]:
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return dict(self.airflow.call("GET", path)["value"])

    def links(self, dag: str, run: str) -> dict[str, str | None]:
        """The buttons of the task in Airflow's UI."""
        return dict(self.airflow.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/refresh/links")["extra_links"])

    def lineage(self, dag: str, table: str) -> list[dict[str, Any]]:
        """What OpenLineage was told of the task that writes that table, by the DAGs that are to tell it."""
        file = self.airflow.home / LINEAGE
        events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        ours = [event for event in events if event.get("job", {}).get("name") == f"{dag}.refresh"]
        return [event for event in ours if table in [one["name"] for one in event["outputs"]]]

    def log(self, dag: str, run: str) -> str:
        folder = self.airflow.home / "logs" / f"dag_id={dag}" / f"run_id={run}"
        return "\n".join(file.read_text(errors="replace") for file in sorted(folder.rglob("*.log")))

    def files_with(self, *texts: str) -> list[Path]:
        """Files of Airflow, of the lake and of the control store that hold one of the texts in plain."""
        files = [path for path in (*self.airflow.home.rglob("*"), *self.lake.folder.rglob("*")) if path.is_file()]
        return [path for path in files if any(text.encode() in path.read_bytes() for text in texts)]

    def assert_whole(self, table: str) -> None:
        assert_whole(self.lake, self.api, table)

    def has(self, table: str) -> bool:
        return load_table(open_catalog(self.lake.settings), table) is not None

    def processes(self) -> list[psutil.Process]:
        """Everything below Airflow's components, and orphans of it: they have its home in their environment."""
        return processes_of(self.airflow.home)

    def drivers(self) -> list[psutil.Process]:
        return [process for process in self.processes() if is_driver(process)]

    def wait_for_no_driver(self) -> None:
        """Return when no process of a refresh is left."""
        wait_for(lambda: not self.drivers(), describe=lambda: f"drivers are left: {self.drivers()}")

    def supervisors(self) -> list[psutil.Process]:
        """The task's supervisor and the process that runs the operator: the JVM's parents up to the scheduler's own."""
        lines = []
        for driver in self.drivers():
            with suppress(psutil.Error):
                lines += [parent for parent in driver.parents() if "airflow worker" in " ".join(parent.cmdline())]
        return lines

    def kill(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def connections(api: SampleApi, lake: Lake) -> dict[str, dict[str, Any]]:
    """Return the connections that the DAGs of all tests use, by id."""
    extra = {"catalog_type": "sql", "warehouse": lake.properties["warehouse"]}
    of_lake = {"conn_type": "rfr_lake", "host": lake.properties["uri"], "extra": extra}
    shop = {"conn_type": "rfr_api", "host": api.base_url, "password": KEY}
    spark = {"conn_type": "spark", "host": "local[2]"}
    return {
        "spark_default": spark,
        "shop": shop,
        "shop_api": shop,
        "lake": of_lake,
        "rfr_api_default": shop,
        "rfr_lake_default": of_lake,
    }


@contextmanager
def new_airflow(
    folder: Path, postgres: PostgresServer, dags: Iterable[Path], settings: Mapping[str, str], **more: Any
) -> Iterator[Story]:
    """Run an Airflow with these DAG files, the sample API, and an empty lake in the folder.

    :param more: connections
    """
    lake, home = Lake(folder), folder / "airflow"
    home.mkdir()
    (folder / "dags").mkdir(exist_ok=True)
    for file in dags:
        (folder / "dags" / file.name).symlink_to(file)
    settings = {**SETTINGS, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.new_database(), **settings}
    with (
        SampleApi(SIZES, latency_ms=LATENCY_MS, api_key=KEY) as api,
        AirflowStack(home, folder / "dags", {**connections(api, lake), **more}, settings) as airflow,
    ):
        yield Story(airflow, api, lake)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """For Airflow's own database: on SQLite, which locks no rows, its scheduler may end beside a backfill."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("system")
    names = ("full_refresh", "incremental_sync", "deliver_webhooks", "manage_webhooks", "try_webhook")
    ready = (ROOT / "dags" / f"{name}.py" for name in names)
    with ResourceManager(folder / "cluster") as yarn:
        # A name of its own: the other DAGs submit with the real one.
        submit = yarn.install(folder / "bin", "spark3-submit")
        extra = {"yarn_resourcemanager_webapp_address": yarn.url, "spark-binary": "spark3-submit"}
        transport = {"type": "file", "log_file_path": str(folder / "airflow" / LINEAGE), "append": True}
        settings = {
            # No DAG file changes here, and parsing all of them again takes a core from what is tested.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
            "AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
            "RFR_SOURCE_FILE": str(SHOP),
            "PATH": f"{Path(sys.executable).parent}:{submit}:{os.environ['PATH']}",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
        }
        dags = (*(Path(__file__).parent / "dags").glob("*.py"), *ready)
        connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
        with new_airflow(folder, postgres, dags, settings, yarn=connection) as story:
            story.yarn = yarn
            story.airflow.call("POST", "/pools", {"name": "narrow", "slots": 1})
            for dag in ("on_demand", "resumable_full_refresh", "deliver_webhooks"):
                story.airflow.wait_for_dag(dag)
            # It has a schedule, and its own test is its only business here.
            story.airflow.call("PATCH", "/dags/deliver_webhooks", {"is_paused": True})
            yield story


@pytest.fixture
def story(stack: Story) -> Iterator[Story]:
    stack.api.reset()
    yield stack
    stack.api.set_faults()


@contextmanager
def api_server(
    airflow: AirflowStack, people: Mapping[str, str], password: str = PASSWORD, **settings: str
) -> Iterator[str]:
    """One more API server of the same Airflow, which wants the password; yields its address.

    :param people: role by name
    """
    port, passwords = free_port(), airflow.home / "passwords.json"
    url = f"http://127.0.0.1:{port}"
    passwords.write_text(json.dumps(dict.fromkeys(people, password)))
    environment = {
        **airflow.environment,
        **settings,
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in people.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }
    with (airflow.home / "second-api-server.log").open("wb") as log:
        server = subprocess.Popen(
            ["airflow", "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_for(lambda: answers(f"{url}/api/v2/version"))
            yield url
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            passwords.unlink()
