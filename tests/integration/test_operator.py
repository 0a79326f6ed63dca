"""The operator in Airflow's own task runner, with real Spark, a real API and a real lake."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_rfr.operators import table_asset
from airflow_provider_rfr.sample_api.client import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake

KEY = "canary-51c07e-key"
SIZES = Sizes(records=400, customers=10, partitions=8, pages=10, page_records=25)
CONFIG = {"partitions": 8, "page_size": 25}


@pytest.fixture
def keyed_api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=5, api_key=KEY) as running:
        yield running


class Runs:
    """Runs of the DAG, and what Airflow kept of them."""

    def __init__(self) -> None:
        # Loaded again for each test, because a run leaves its parameters in the DAG.
        self.dag = importlib.reload(importlib.import_module("tests.integration.dags.shop_refresh")).dag
        self.run: Any = None

    def start(self, **conf: Any) -> str:
        self.run = self.dag.test(run_conf={"config": CONFIG, **conf})
        return str(self.task.state)

    @property
    def task(self) -> Any:
        [task] = self.run.get_task_instances()
        return task

    @property
    def result(self) -> dict[str, Any]:
        return dict(self.task.xcom_pull(task_ids="refresh"))

    def rows(self, sql: str, **parameters: Any) -> list[Any]:
        from airflow.utils.session import create_session
        from sqlalchemy import text

        with create_session() as session:
            return [tuple(row) for row in session.execute(text(sql), parameters)]

    @property
    def checkpoint(self) -> dict[str, Any]:
        sql = "select value, expires_at from task_state_store where key = 'rfr' and run_id = :run"
        [(value, expires_at)] = self.rows(sql, run=self.run.run_id)
        assert expires_at is None
        return dict(json.loads(value))

    def everything(self) -> str:
        tables = self.rows("select name from sqlite_master where type = 'table'")
        return "".join(str(self.rows(f'select * from "{name}"')) for (name,) in tables)


@pytest.fixture
def runs(airflow: None, lake: Lake, keyed_api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> Runs:
    set_connections(monkeypatch, lake, keyed_api)
    return Runs()


@pytest.mark.gate
def test_a_run_publishes_the_table_and_tells_xcom_asset_and_state(
    runs: Runs, keyed_api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    assert runs.start() == "success"
    result = runs.result
    assert sorted(lake.rows("raw.items")["id"].to_pylist()) == keyed_api.truth("/partitions/items")["ids"]
    assert (result["generation"], result["rows"], result["pages"], result["attempts"]) == (1, 2000, 80, 1)
    assert result["snapshot_id"] == str(lake.table("raw.items").current_snapshot().snapshot_id)

    event = "select a.uri, e.extra from asset_event e join asset a on a.id = e.asset_id where e.source_run_id = :run"
    [(uri, extra)] = runs.rows(event, run=runs.run.run_id)
    assert uri == table_asset("raw.items", lake_conn_id="lake").uri
    assert json.loads(extra)["snapshot_id"] == result["snapshot_id"]

    state = runs.checkpoint["tables"]["raw.items"]
    assert (state["state"], state["pages"], state["partitions_done"]) == ("published", 80, 8)

    log = capfd.readouterr().out
    assert "raw.items: generation 1, round 1: " in log
    assert KEY not in log
    assert KEY not in runs.everything()


def test_a_retry_goes_on_where_the_failed_try_stopped(
    runs: Runs, keyed_api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    keyed_api.set_faults({"kind": "error", "status": 400, "path": "/partitions/3/items", "after": 4, "times": 1})
    assert runs.start() == "success"
    assert runs.task.try_number == 2
    assert (runs.result["attempts"], runs.result["generation"]) == (2, 1)
    assert sorted(lake.rows("raw.items")["id"].to_pylist()) == keyed_api.truth("/partitions/items")["ids"]
    # Pages that were read side by side with the failing one are read again, and the declared overlap check.
    assert keyed_api.counts(path="/partitions/*")["refetched"] <= 8
    log = capfd.readouterr().out
    assert "1 of 8 partitions could not be read, what was read is kept" in log
    assert "400" in log


@pytest.mark.gate
def test_wrong_credentials_fail_at_once_in_one_sentence(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, keyed_api: SampleApi, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = {"conn_type": "rfr_api", "host": keyed_api.base_url, "password": "canary-wrong-key"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(wrong))
    assert runs.start() == "failed"
    assert runs.task.try_number == 1
    log = capfd.readouterr().out
    assert "401" in log
    assert "check the credentials and clear the task" in log
    assert "canary-wrong-key" not in log + runs.everything()


def test_the_next_run_resumes_what_the_last_one_left(runs: Runs, keyed_api: SampleApi, lake: Lake) -> None:
    keyed_api.set_faults({"kind": "error", "status": 400, "path": "/partitions/3/items", "after": 4})
    assert runs.start() == "failed"
    assert runs.task.try_number == 3
    keyed_api.set_faults()
    assert runs.start() == "success"
    assert (runs.result["generation"], runs.result["attempts"]) == (1, 4)
    assert all(entry["path"] == "/partitions/3/items" for entry in keyed_api.log()[-6:])
    assert runs.start() == "success"
    assert runs.result["generation"] == 2
    assert lake.rows("raw.items").num_rows == 2000


def test_several_streams_have_their_own_figures(runs: Runs, lake: Lake) -> None:
    assert runs.start(streams=["orders", "customers"]) == "success"
    result = runs.result
    assert {name: one["rows"] for name, one in result["streams"].items()} == {"orders": 400, "customers": 10}
    assert result["rows"] == 410
    assert set(runs.checkpoint["tables"]) == {"raw.orders", "raw.customers"}
