"""The operator in Airflow's own task runner, with real Spark, a real API and a real lake."""

from __future__ import annotations

import importlib
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_rfr.operators import table_asset
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.headers import read_status
from tests.integration.airflow_tasks import execute, items_operator, set_connections
from tests.integration.conftest import Lake, start_python
from tests.soon import PATIENCE

KEY = "canary-51c07e-key"
SIZES = Sizes(partitions=8, pages=10, page_records=25)
FAULT = {"kind": "error", "status": 400, "path": "/partitions/3/items", "after": 4}
KEPT = {
    "task_state": "select value from task_state_store where key = 'rfr' and run_id = :run",
    "variable": "select val from variable where key like 'rfr_checkpoint.%' and description like '%' || :run || '%'",
    "xcom": "select value from xcom where key = 'rfr_checkpoint.refresh.-1' and task_id = 'report' and run_id = :run",
}
FIRST, *OTHERS = KEPT


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=5, api_key=KEY) as running:
        yield running


@pytest.fixture
def connections(airflow: None, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connections(monkeypatch, lake, api)


def start(dag: str = "shop_refresh") -> Any:
    """Run a DAG of ``tests/integration/dags/refreshes.py`` to its end."""
    refreshes = importlib.import_module("tests.integration.dags.refreshes")
    return getattr(refreshes, dag).test(run_conf={"config": {"partitions": 8, "page_size": 25}})


def task(run: Any, task_id: str = "refresh") -> Any:
    [instance] = [one for one in run.get_task_instances() if one.task_id == task_id]
    return instance


def select(sql: str, **parameters: Any) -> list[Any]:
    """Rows of Airflow's database."""
    from airflow.utils.session import create_session
    from sqlalchemy import text

    with create_session() as session:
        return [tuple(row) for row in session.execute(text(sql), parameters)]


def everything() -> str:
    tables = select("select name from sqlite_master where type = 'table'")
    return "".join(str(select(f'select * from "{name}"')) for (name,) in tables)


@pytest.mark.gate
def test_a_run_publishes_the_table_and_tells_xcom_asset_and_state(
    connections: None, api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start()
    assert task(run).state == "success"
    result = task(run).xcom_pull(task_ids="refresh")
    assert sorted(lake.rows("raw.items")["id"].to_pylist()) == api.truth("/partitions/items")["ids"]
    assert (result["generation"], result["rows"], result["pages"], result["attempts"]) == (1, 2000, 80, 1)
    assert result["snapshot_id"] == str(lake.table("raw.items").current_snapshot().snapshot_id)

    event = "select a.uri, e.extra from asset_event e join asset a on a.id = e.asset_id where e.source_run_id = :run"
    [(uri, extra)] = select(event, run=run.run_id)
    assert uri == table_asset("raw.items", lake_conn_id="lake").uri
    assert json.loads(extra)["snapshot_id"] == result["snapshot_id"]

    kept = "select value, expires_at from task_state_store where key = 'rfr' and run_id = :run"
    [(checkpoint, expires_at)] = select(kept, run=run.run_id)
    assert expires_at is None
    state = json.loads(checkpoint)["tables"]["raw.items"]
    assert (state["state"], state["pages"], state["partitions_done"]) == ("published", 80, 8)

    log = capfd.readouterr().out
    assert "raw.items: generation 1, round 1: " in log
    assert KEY not in log + everything()


@pytest.mark.gate
def test_wrong_credentials_fail_at_once_in_one_sentence(
    connections: None, monkeypatch: pytest.MonkeyPatch, api: SampleApi, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = {"conn_type": "rfr_api", "host": api.base_url, "password": "canary-wrong-key"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(wrong))
    failed = task(start())
    assert (failed.state, failed.try_number) == ("failed", 1)
    log = capfd.readouterr().out
    assert "401" in log
    assert "check the credentials and clear the task" in log
    assert "canary-wrong-key" not in log + everything()


def kept(store: str, run: Any) -> list[Any]:
    """Checkpoints in a store."""
    return [json.loads(row) if isinstance(row, str) else row for (row,) in select(KEPT[store], run=run.run_id)]


@pytest.mark.parametrize("store", KEPT)
def test_the_second_try_finds_the_checkpoint_of_the_first(
    store: str,
    connections: None,
    api: SampleApi,
    lake: Lake,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.set_faults({**FAULT, "times": 1})
    run = start(f"checkpointed_{store}")
    assert (task(run).state, task(run).try_number) == ("success", 2)
    log = capfd.readouterr().out + caplog.text
    assert "agrees with the ledger" in log
    assert KEY not in log
    assert kept(store, run) == []
    assert task(run, "report").xcom_pull(task_ids="report") == ({"raw.items": 80} if store == "xcom" else None)
    result = task(run).xcom_pull(task_ids="refresh")
    assert (result["attempts"], result["generation"]) == (2, 1)
    assert sorted(lake.rows("raw.items")["id"].to_pylist()) == api.truth("/partitions/items")["ids"]
    # Pages that were read side by side with the failing one are read again, and the declared overlap check.
    assert api.counts(path="/partitions/*")["refetched"] <= 8


@pytest.mark.parametrize("store", [FIRST, *(pytest.param(store, marks=pytest.mark.full) for store in OTHERS)])
def test_a_refresh_that_makes_no_progress_fails_and_leaves_its_checkpoint(
    store: str, connections: None, api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    api.set_faults(FAULT)
    run = start(f"checkpointed_{store}")
    assert task(run).state == "failed"
    assert task(run).try_number < 5
    assert "no progress since the last try" in capfd.readouterr().out
    [checkpoint] = kept(store, run)
    table = checkpoint["tables"]["raw.items"]
    assert (table["state"], table["partitions_done"], table["partitions"]) == ("open", 7, 8)
    assert table["pointer"]["snapshot"] == str(lake.table("raw.items__rfr_ledger").current_snapshot().snapshot_id)
    assert KEY not in json.dumps(checkpoint)


def run_stoppable_task() -> None:
    """Make one try of one run, which SIGTERM asks to stop, as Airflow does."""
    options = {"concurrency": 4, "round_seconds": 2, "head_start": False}
    operator = items_operator({"partitions": 4, "page_size": 10}, options)
    signal.signal(signal.SIGTERM, lambda number, frame: operator.on_kill())
    execute(operator)


@pytest.mark.gate
def test_a_task_that_is_told_to_stop_keeps_what_it_has_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with SampleApi(Sizes(partitions=4, pages=40, page_records=10), latency_ms=100) as api:
        set_connections(monkeypatch, lake, api)
        task = start_python("-c", f"from {__name__} import run_stoppable_task as run; run()")
        api.wait_for_pages(20)
        began = time.monotonic()
        task.terminate()
        output, _ = task.communicate(timeout=PATIENCE)
        print(f"it ended after {time.monotonic() - began:.1f} s; Airflow ends a task hard after five")
        assert "Asking the Spark driver" in output
        assert task.returncode != 0
        assert read_status(lake.settings, "raw.items").pages == api.counts(path="/partitions/*")["pages"]
