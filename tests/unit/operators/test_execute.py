"""The operator with an application that only plays a driver, started by the real spark-submit or a double of it."""

from __future__ import annotations

import contextvars
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.supervisor import WatchedSubprocess
from openlineage.client.transport.http import HttpConfig, HttpTransport

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from airflow_provider_rfr.exceptions import RefreshFailedError, SourceError
from airflow_provider_rfr.hooks.spark import STOP_GRACE_SECONDS
from airflow_provider_rfr.operators import ResumableFullRefreshOperator, table_asset
from airflow_provider_rfr.operators.full_refresh import store_url
from airflow_provider_rfr.refresh.process import process_started
from airflow_provider_rfr.sample_api import SHOP
from tests.airflow_versions import DagBag
from tests.soon import SOON, wait_until
from tests.unit.messages import raises

pytestmark = pytest.mark.test

#: Seconds between the driver's last breath and the end of the task's own process.
SPARK_SUBMIT_ENDS_WITHIN = 1.0
STUB = Path(__file__).with_name("stub_app.py")
Capture = pytest.CaptureFixture[str]
CANARY = "canary-8f1d2c-api"
LAKE_CANARY = "canary-8f1d2c-lake"
KEY = "d/r/refresh/-1/2026-01-01T06:00:00Z"
FIGURES = {
    "stream": "orders",
    "target": "raw.orders",
    "generation": 1,
    "snapshot_id": 4540142085846866945,
    "pages": 3,
    "rows": 4,
    "pages_refetched": 0,
    "attempts": 1,
}


KEEPS_TASK_STATE = pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow has a task state since 3.3")


class FakeStateStore:
    """Keeps JSON, as Airflow's does."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.values[key]) if key in self.values else default

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        if value is None:
            raise ValueError("None")
        self.values[key] = json.dumps(value)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Bench:
    """Runs the operator as a task would, and reads what the driver saw."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "report.json"
        self.store = FakeStateStore()
        self.events = OutletEventAccessors()
        self.operator: ResumableFullRefreshOperator | None = None
        self.conf: dict[str, Any] = {}
        self.tries_before_clear = 0
        self.clears_of_the_run = 0
        self.started = datetime(2026, 1, 1, 6, tzinfo=timezone.utc)

    def make(self, play: dict[str, Any], **arguments: Any) -> ResumableFullRefreshOperator:
        whole: dict[str, Any] = {
            "source": {"file": str(SHOP), "config": {"report": str(self.report), "last_word": FIGURES, **play}},
            "streams": ["orders"],
            "target": "raw.orders",
            "api_conn_id": "shop",
            "application": str(STUB),
            **arguments,
        }
        self.operator = ResumableFullRefreshOperator(task_id="refresh", **whole)
        return self.operator

    def run(self, play: dict[str, Any] | None = None, **arguments: Any) -> Any:
        return self.execute(self.make(play or {}, **arguments))

    def execute(self, operator: ResumableFullRefreshOperator) -> Any:
        tries = operator.retries + self.tries_before_clear
        ti = SimpleNamespace(dag_id="d", run_id="r", task_id="refresh", map_index=-1, stats_tags={}, max_tries=tries)
        context = {
            "ti": ti,
            "task": operator,
            "dag_run": SimpleNamespace(clear_number=self.clears_of_the_run, start_date=self.started, conf=self.conf),
            "task_state_store": self.store,
            "outlet_events": self.events,
        }
        inside = contextvars.copy_context()
        inside.run(ExecutorSafeguard.tracker.set, operator)
        return inside.run(operator.execute, context)  # type: ignore[arg-type]

    @property
    def seen(self) -> dict[str, Any]:
        return dict(json.loads(self.report.read_text()))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    connections = {
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[1]"},
        "SHOP": {"conn_type": "rfr_api", "host": "http://127.0.0.1:1", "login": "me", "password": CANARY},
        "RFR_LAKE_DEFAULT": {
            "conn_type": "rfr_lake",
            "host": f"sqlite:///{tmp_path}/catalog.db",
            "extra": json.dumps({"warehouse": f"file://{tmp_path}/w", "s3_secret_access_key": LAKE_CANARY}),
        },
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return Bench(tmp_path)


@pytest.fixture
def without_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a spark-submit first on the path that starts the application at once; the real one takes two JVMs for it."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f'#!/bin/sh\nwhile [ "$1" != {STUB} ]; do shift; done\nexec {sys.executable} "$@"\n')
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{submit.parent}:{os.environ['PATH']}")


def test_the_drivers_figures_are_returned_and_told_to_the_asset(bench: Bench) -> None:
    assert bench.run() == {**FIGURES, "snapshot_id": str(FIGURES["snapshot_id"])}
    assert bench.events[table_asset("raw.orders")].extra["rows"] == 4


@pytest.mark.usefixtures("without_jvm")
def test_a_run_of_one_table_sends_no_event_of_the_tasks_other_tables(bench: Bench) -> None:
    bench.conf = {"rfr": {"table": "raw.orders"}}
    own = Asset("own")
    bench.run(streams=["orders", "items"], target="raw.{stream}", outlets=[own])
    assert bench.operator is not None
    assert bench.operator.outlets == [own, table_asset("raw.orders")]


@pytest.mark.usefixtures("without_jvm")
def test_the_driver_gets_the_whole_document(bench: Bench) -> None:
    bench.run(options={"concurrency": 3})
    document = bench.seen["document"]
    assert document["source"]["config"]["base_url"] == "http://127.0.0.1:1"
    assert document["source"]["secrets"]["api_key"] == CANARY
    assert document["source"]["definition"]["version"] == 1
    assert document["lake"]["properties"]["s3.secret-access-key"] == LAKE_CANARY
    assert document["options"]["concurrency"] == 3
    assert document["run"] == {
        "key": f"{KEY}-0",
        "airflow": {
            "dag_id": "d",
            "dag_run_id": "r",
            "task_id": "refresh",
            "map_index": -1,
            "try_number": None,
            "logical_date": None,
        },
        "supervisor": {"pid": os.getpid(), "started": process_started(os.getpid()), "host": os.uname().nodename},
    }


@pytest.mark.usefixtures("without_jvm")
def test_the_key_tells_runs_clears_of_the_task_and_no_other_clears_apart(bench: Bench) -> None:
    bench.clears_of_the_run = 1
    bench.run()
    assert bench.seen["document"]["run"]["key"] == f"{KEY}-0"
    bench.tries_before_clear = 2
    bench.run()
    assert bench.seen["document"]["run"]["key"] == f"{KEY}-2"
    # A run that was deleted and created again under the same id.
    bench.started += timedelta(microseconds=1)
    bench.run()
    assert bench.seen["document"]["run"]["key"] != f"{KEY}-2"


@pytest.mark.usefixtures("without_jvm")
def test_a_refresh_that_its_run_published_before_is_not_logged_as_read(bench: Bench, capfd: Capture) -> None:
    result = bench.run({"last_word": {**FIGURES, "already_published": True}})
    assert result["already_published"] is True
    log = capfd.readouterr().out
    assert "raw.orders was published already by this run; nothing was read" in log
    assert "Published 4 rows" not in log


def test_secrets_are_in_the_shipped_file_and_nowhere_else(bench: Bench, capfd: Capture) -> None:
    result = bench.run()
    seen = bench.seen
    assert seen["mode"] == 0o600
    assert not Path(seen["path"]).exists()
    operator = bench.operator
    assert operator is not None
    shown = {
        "result": result,
        "command lines": seen["commands"],
        "environment": seen["environment"],
        "task state": bench.store.values,
        "log": list(capfd.readouterr()),
        "rendered fields": {name: repr(getattr(operator, name)) for name in operator.template_fields},
        "asset": bench.events[table_asset("raw.orders")].extra,
    }
    for place, value in shown.items():
        assert "canary-8f1d2c" not in json.dumps(value), place


def test_the_driver_gets_the_control_store_in_its_private_file_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/canary-8f1d2c-store.db"
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", url)
    bench.run()
    assert bench.seen["document"]["store"] == url
    assert "canary-8f1d2c" not in json.dumps([bench.seen["commands"], bench.seen["environment"]])


@pytest.mark.parametrize(
    ("url", "store"), [("sqlite:////x/rfr.db", None), ("postgresql://h/rfr", "postgresql://h/rfr")]
)
def test_a_driver_in_a_cluster_gets_no_control_store_that_is_a_file_of_this_machine(
    url: str, store: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", url)
    assert store_url(elsewhere=True) == store


def test_the_driver_runs_this_python_and_none_of_airflows_settings(bench: Bench) -> None:
    bench.run(env_vars={"MINE": "1"})
    environment = bench.seen["environment"]
    assert environment["MINE"] == "1"
    assert not [name for name in environment if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))]


REFUSED = {"type": "RefreshFailedError", "cause": "AuthenticationError", "message": "401", "stream": "orders"}


@pytest.mark.usefixtures("without_jvm")
@pytest.mark.parametrize(
    ("last_word", "kind"),
    [
        ({"error": {"type": "SourceError", "message": "the API is down"}}, SourceError),
        ({"error": {"type": "SchemaError", "message": "no 100% match"}}, AirflowFailException),
        ({"error": REFUSED, "errors": [REFUSED]}, AirflowFailException),
    ],
)
def test_a_failed_task_raises_and_logs_its_reason_last_without_sparks_shutdown_rounds_and_figures(
    bench: Bench, capfd: Capture, last_word: dict[str, Any], kind: type[Exception]
) -> None:
    with raises(kind) as failure:
        bench.run({"last_word": last_word})
    log = capfd.readouterr().out
    lines = log.splitlines()
    assert str(failure.value) in lines[-1]
    assert "error" in lines[-1].lower()
    assert "a line of the driver" in log
    assert [text for text in ("MapOutputTracker", "round 1", '"type": "') if text in log] == []
    assert not Path(bench.seen["path"]).exists()


@pytest.mark.usefixtures("without_jvm")
@pytest.mark.parametrize(
    "line",
    [
        '{"error": "text"}',
        '{"error": {"type": "ConfigurationError", "message": "of an API"}}',
        '{"generation": 2, "collected": 9}',
        '{"rfr": "result", "error": "text"}',
        '{"rfr": "result", "str',
    ],
)
def test_json_of_another_library_is_not_taken_for_the_drivers_last_line(
    bench: Bench, capfd: Capture, line: str
) -> None:
    with pytest.raises(RefreshFailedError, match="SIGKILL"):
        bench.run({"foreign_line": line, "kill": True})
    log = capfd.readouterr().out
    assert [text for text in (line, "a line of the driver") if text not in log] == []


@pytest.mark.usefixtures("without_jvm")
@KEEPS_TASK_STATE
def test_a_try_that_never_reached_the_ledger_is_known_to_have_stalled(bench: Bench) -> None:
    for tries in (1, 2):
        with raises(RefreshFailedError):
            bench.run({"kill": True})
        assert bench.operator is not None
        assert bench.operator.stalled_tries == tries
        assert bench.store.get("rfr")["stalled"] == tries
        assert not Path(bench.seen["path"]).exists()


@KEEPS_TASK_STATE
@pytest.mark.usefixtures("without_jvm")
def test_a_published_refresh_leaves_no_checkpoint_unless_it_is_to_be_kept(bench: Bench) -> None:
    bench.store.set("rfr", {"mine": True})
    bench.run(keep_checkpoint=True)
    assert bench.store.get("rfr") == {"mine": True}
    bench.run()
    assert bench.store.get("rfr") is None


def test_in_a_cluster_the_configuration_travels_as_a_file_and_the_package_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A spark-submit that only notes its command line: no YARN runs here."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    submit = scripts / "spark-submit"
    submit.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\nexit 1\n')
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scripts}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn"}))
    with raises(RefreshFailedError):
        bench.run(deploy_mode="cluster", durable=False, files="given.txt")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    files = arguments[arguments.index("--files") + 1].split(",")
    assert files[0] == "given.txt"
    assert arguments[-2:] == ["--config", Path(files[1]).name]
    assert arguments[arguments.index("--py-files") + 1].endswith("airflow_provider_rfr.zip")
    assert not any("extraJavaOptions" in argument or "canary" in argument for argument in arguments)
    assert not Path(files[1]).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *({"lake_conn_id": "nowhere"}, {"api_conn_id": "nobody"}, {"conn_id": "nowhere"}),
        {"conn_id": "standalone", "deploy_mode": "cluster"},
        *({"conn_id": "connect"}, {"conn_id": "connect_of_provider"}, {"conn_id": "connect_as_uri"}),
        {"conf": {"spark.remote": "sc://127.0.0.1:15002"}},
    ],
)
def test_a_setting_that_is_wrong_fails_the_task_before_anything_is_submitted(
    bench: Bench, capfd: Capture, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", json.dumps({"conn_type": "spark", "host": "spark://127.0.0.1:1"}))
    connect = {"conn_type": "spark", "host": "sc://127.0.0.1", "port": 15002}
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT", json.dumps(connect))
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT_OF_PROVIDER", json.dumps({**connect, "conn_type": "spark_connect"}))
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT_AS_URI", "sc://127.0.0.1:15002")
    with raises(AirflowFailException) as failure:
        bench.run(**arguments)
    assert not bench.report.exists()
    assert str(failure.value) in capfd.readouterr().out.splitlines()[-1]


@pytest.fixture
def injected(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Give OpenLineage a transport, which the parent operator copies into Spark's settings."""

    def set_transport(settings: dict[str, Any]) -> None:
        transport = HttpTransport(HttpConfig.from_dict({"type": "http", "url": "http://127.0.0.1:1", **settings}))
        client = SimpleNamespace(transport=transport)
        listener = SimpleNamespace(adapter=SimpleNamespace(get_or_create_openlineage_client=lambda: client))
        monkeypatch.setattr("airflow.providers.openlineage.utils.spark.get_openlineage_listener", lambda: listener)

    return set_transport


@pytest.mark.parametrize(
    "settings",
    [
        {"auth": {"type": "api_key", "apiKey": CANARY}},
        {"custom_headers": {"X-Account": CANARY}},
        {"url": f"http://me:{CANARY}@127.0.0.1:1"},
    ],
)
def test_secrets_of_openlineages_transport_are_refused_before_a_command_line_has_them(
    bench: Bench, capfd: Capture, injected: Callable[[dict[str, Any]], None], settings: dict[str, Any]
) -> None:
    injected(settings)
    with raises(AirflowFailException):
        bench.run(openlineage_inject_transport_info=True)
    assert not bench.report.exists()
    assert CANARY not in str(capfd.readouterr())


@pytest.mark.usefixtures("without_jvm")
def test_a_transport_of_openlineage_without_secrets_is_injected(
    bench: Bench, capfd: Capture, injected: Callable[[dict[str, Any]], None]
) -> None:
    injected({})
    bench.run(openlineage_inject_transport_info=True)
    assert "spark.openlineage.transport.url=http://127.0.0.1:1" in capfd.readouterr().out


@pytest.mark.usefixtures("without_jvm")
def test_spark_settings_of_the_user_win(bench: Bench, capfd: Capture) -> None:
    bench.run(conf={"spark.driver.extraJavaOptions": "-Xss4m"})
    command = next(line for line in capfd.readouterr().out.splitlines() if "Spark-Submit cmd" in line)
    assert "extraJavaOptions=-Xss4m" in command
    assert "TieredStopAtLevel" not in command


@pytest.mark.parametrize("manner", ["politely", "deaf"])
def test_a_kill_asks_first_and_ends_in_time(bench: Bench, capfd: Capture, manner: str) -> None:
    spent: list[float] = []

    def kill() -> None:
        wait_until(bench.report.exists)
        began = time.monotonic()
        assert bench.operator is not None
        bench.operator.on_kill()
        spent.append(time.monotonic() - began)

    killer = threading.Thread(target=kill)
    killer.start()
    if manner == "deaf":
        with raises(RefreshFailedError):
            bench.run({"until_stopped": manner})
    else:
        bench.run({"until_stopped": manner})
    killer.join()
    assert spent[0] < SOON
    assert ("stopped in good order" in capfd.readouterr().out) is (manner == "politely")
    wait_until(lambda: not any(str(bench.seen["path"]) in command for command in command_lines()))


def test_a_kill_leaves_the_driver_its_time_also_where_airflow_signals_the_whole_process_group(bench: Bench) -> None:
    def kill() -> None:
        wait_until(bench.report.exists)
        assert bench.operator is not None
        submitted = bench.operator._submitted
        assert submitted is not None
        threading.Timer(0.1, submitted._submit_sp.terminate).start()
        bench.operator.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with raises(RefreshFailedError):
        bench.run({"until_stopped": "slowly"})
    killer.join()
    assert Path(f"{bench.report}.ended").exists(), "the driver was killed before it had ended"


def test_a_stopped_driver_has_less_time_than_airflow_gives_its_task() -> None:
    airflows = inspect.signature(WatchedSubprocess.kill).parameters["escalation_delay"].default
    assert airflows > STOP_GRACE_SECONDS + SPARK_SUBMIT_ENDS_WITHIN


def test_a_kill_before_the_submit_does_nothing(bench: Bench) -> None:
    bench.make({}).on_kill()


def command_lines() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


FACTORY = """
from airflow.sdk import DAG
from airflow_provider_rfr.operators import ResumableFullRefreshOperator
def make(arguments):
    with DAG("made") as dag:
        ResumableFullRefreshOperator(task_id="refresh", **arguments)
    return dag
"""


@pytest.mark.parametrize("place", ["teams", "near"])
def test_a_factorys_dag_reads_the_same_relative_file_in_the_parse_and_in_the_task(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder in ("teams", "near"):
        (tmp_path / folder).mkdir()
    (tmp_path / place / "shop.yaml").write_text(SHOP.read_text())
    (tmp_path / "near" / f"factory_for_{place}.py").write_text(FACTORY)
    operator = bench.make({})
    arguments = {name: getattr(operator, name) for name in ("streams", "target", "api_conn_id", "application")}
    arguments["source"] = {"file": "shop.yaml", "config": operator.source["config"]}  # type: ignore[index]
    file = tmp_path / "teams" / "dag.py"
    file.write_text(f"# airflow DAG\nfrom near.factory_for_{place} import make\ndag = make({arguments!r})\n")
    bag = DagBag(str(file))
    assert not bag.import_errors
    assert bench.execute(bag.dags["made"].get_task("refresh"))["rows"] == 4
