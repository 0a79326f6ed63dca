"""Each checkpoint store over a failed and a second try, in Airflow's own task runner, with Airflow's own tables."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_rfr.sample_api.client import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake

KEY = "canary-77ab10-key"
SIZES = Sizes(records=400, customers=10, partitions=8, pages=10, page_records=25)
CONFIG = {"partitions": 8, "page_size": 25}
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


@pytest.fixture(autouse=True)
def connections(airflow: None, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connections(monkeypatch, lake, api)


def start(store: str) -> Any:
    module = importlib.import_module("tests.integration.dags.checkpointed_refresh")
    return getattr(module, f"checkpointed_{store}").test(run_conf={"config": CONFIG})


def kept(store: str, run: Any) -> list[Any]:
    from airflow.utils.session import create_session
    from sqlalchemy import text

    with create_session() as session:
        rows = [row[0] for row in session.execute(text(KEPT[store]), {"run": run.run_id})]
    return [json.loads(row) if isinstance(row, str) else row for row in rows]


def task(run: Any, task_id: str) -> Any:
    [instance] = [one for one in run.get_task_instances() if one.task_id == task_id]
    return instance


@pytest.mark.parametrize("store", KEPT)
def test_the_second_try_finds_the_checkpoint_of_the_first(
    store: str, api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    api.set_faults({**FAULT, "times": 1})
    run = start(store)
    assert (task(run, "refresh").state, task(run, "refresh").try_number) == ("success", 2)
    log = capfd.readouterr().out + caplog.text
    assert "agrees with the ledger" in log
    assert KEY not in log
    assert kept(store, run) == []
    assert task(run, "report").xcom_pull(task_ids="report") == ({"raw.items": 80} if store == "xcom" else None)


@pytest.mark.parametrize("store", [FIRST, *(pytest.param(store, marks=pytest.mark.full) for store in OTHERS)])
def test_a_refresh_that_makes_no_progress_fails_and_leaves_its_checkpoint(
    store: str, api: SampleApi, lake: Lake, capfd: pytest.CaptureFixture[str]
) -> None:
    api.set_faults(FAULT)
    run = start(store)
    assert task(run, "refresh").state == "failed"
    assert task(run, "refresh").try_number < 5
    assert "no progress since the last try" in capfd.readouterr().out
    [checkpoint] = kept(store, run)
    table = checkpoint["tables"]["raw.items"]
    assert (table["state"], table["partitions_done"], table["partitions"]) == ("open", 7, 8)
    assert table["pointer"]["snapshot"] == str(lake.table("raw.items__rfr_ledger").current_snapshot().snapshot_id)
    assert KEY not in json.dumps(checkpoint)
