"""Every store keeps what an attempt leaves for the next one, and nothing that it finds there can do harm."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    RateLimitedError,
    RefreshBusyError,
    RefreshStoppedError,
    RfrError,
)
from airflow_provider_rfr.operators import ResumableFullRefreshOperator, _attempt
from airflow_provider_rfr.operators._attempt import (
    Checkpoint,
    ProgressMonitor,
    _neighbour,
    _TaskStateStore,
    _VariableStore,
    check_store,
)
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.sample_api import SHOP
from tests.unit.messages import check_messages, raises
from tests.unit.operators.airflow_stores import IN_EVERY_STORE, STORES, Airflow, airflow, installed
from tests.unit.operators.test_progress_monitor import FakeLedgers, header

__all__ = ["airflow"]

ROOT = Path(__file__).resolve().parents[3]
OWNER = "shop/manual__1/refresh/-1"
TABLE = "raw.orders"
Log = pytest.LogCaptureFixture


def monitor(airflow: Airflow, *states: LedgerHeader | Exception | None, first: bool = False) -> ProgressMonitor:
    """Of an attempt that has looked at the ledger and at the last checkpoint."""
    made = ProgressMonitor(FakeLedgers(*states), airflow.store(), OWNER, is_first=first)
    made.begin(made.read_checkpoint())
    return made


def take(made: ProgressMonitor) -> None:
    """Look at the ledger again."""
    if made._ledgers.poll():
        made.write()


def attempt(
    airflow: Airflow, before: LedgerHeader | None, after: LedgerHeader | None, error: Exception | None = None
) -> ProgressMonitor:
    """A try that fails, and leaves its checkpoint."""
    made = monitor(airflow, before, after)
    with contextlib.suppress(OSError, RfrError), made:
        if after is not None:
            take(made)
        raise error or OSError("gone")
    return made


def verdict(airflow: Airflow, caplog: Log, state: LedgerHeader | None) -> str:
    """The one line that the next try logs of what it finds."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made = monitor(airflow, state)
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("airflow_provider_rfr")]
    assert made.stalled is None
    return str(line).replace(airflow.store().place, "the store")


def stored(airflow: Airflow) -> Any:
    content = airflow.store().read()
    return json.loads(content) if isinstance(content, str) else content


NOW = header(10, rounds=1, pages=40, records=400, partitions_done=2)
ELSEWHERE = "the checkpoint in the store is ignored: the ledger is in another state"


@IN_EVERY_STORE
def test_the_next_try_finds_what_the_last_one_left_unless_it_is_missing_or_was_changed(
    airflow: Airflow, caplog: Log
) -> None:
    check_messages(verdict(airflow, caplog, NOW))
    attempt(airflow, None, NOW)
    check_messages(verdict(airflow, caplog, NOW))
    edited = stored(airflow)
    edited["tables"][TABLE]["pages"] = 41
    airflow.plant(edited)
    assert verdict(airflow, caplog, NOW) == ELSEWHERE


def test_the_first_try_misses_nothing(airflow: Airflow, caplog: Log) -> None:
    with caplog.at_level(logging.INFO):
        monitor(airflow, None, first=True)
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        *("not JSON {", "a text", 7, [1, 2], {"mine": True}, "[" * 100_000),
        Checkpoint(owner="shop/other/refresh/-1").model_dump(),
        {**Checkpoint(owner=OWNER).model_dump(), "stalled": -1},
        {**Checkpoint(owner=OWNER).model_dump(), "tables": {TABLE: 3}},
    ],
    ids=["broken", "text", "number", "list", "object", "deep", "other run", "negative", "not a table"],
)
def test_what_somebody_else_wrote_is_ignored(airflow: Airflow, caplog: Log, content: Any) -> None:
    airflow.plant(content)
    line = verdict(airflow, caplog, NOW)
    assert line == "the content of the store is ignored: it is not a checkpoint of this task"


@pytest.mark.parametrize(
    "now",
    [
        *(header(20, rounds=2, pages=60), header(20, rounds=1, pages=39)),
        *(header(20, generation=2, pages=40), header(20, epoch=2, pages=40), None),
    ],
    ids=["behind", "ahead", "older generation", "older epoch", "gone"],
)
def test_a_stale_checkpoint_is_ignored(airflow: Airflow, caplog: Log, now: LedgerHeader | None) -> None:
    attempt(airflow, None, NOW)
    assert verdict(airflow, caplog, now) == ELSEWHERE


def test_the_count_of_a_stale_checkpoint_is_not_carried_on(airflow: Airflow) -> None:
    resumed = header(20, epoch=2, attempts=2, rounds=1, pages=40, records=400, partitions_done=2)
    assert attempt(airflow, NOW, resumed).stalled == 1
    assert attempt(airflow, header(30, epoch=3, rounds=2, pages=60), None).stalled == 1


@IN_EVERY_STORE
def test_a_store_that_fails_is_named_by_the_kind_of_its_error_alone(
    airflow: Airflow, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: Any) -> None:
        raise RuntimeError("postgresql://me:s3cret@db")

    monkeypatch.setattr(airflow.supervisor, "send", refuse)
    with caplog.at_level(logging.INFO):
        made = monitor(airflow, NOW)
        with raises(OSError), made:
            raise OSError("gone")
        made.published(keep=False)
    assert "s3cret" not in caplog.text
    assert "can't be written (RuntimeError); the refresh continues" in caplog.text
    assert "can't be removed (RuntimeError); the refresh continues" in caplog.text


@IN_EVERY_STORE
def test_a_published_refresh_leaves_nothing_for_a_next_try_unless_that_is_wished(airflow: Airflow, caplog: Log) -> None:
    made = monitor(airflow, None, NOW, header(20, rounds=2, pages=50))
    take(made)
    made.published(keep=False)
    take(made)
    assert airflow.store().read() is None
    attempt(airflow, None, NOW).published(keep=True)
    assert "agrees" in verdict(airflow, caplog, NOW)


@pytest.mark.parametrize("kind", ["variable", "xcom"])
def test_the_instances_of_a_mapped_task_do_not_share_a_checkpoint(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the task's state, Airflow's own id of the instance tells them apart."""
    airflow = installed(Airflow(kind), monkeypatch)
    airflow.map_index = 0
    airflow.store().write({"of": 0})
    airflow.map_index = 1
    assert airflow.store().read() is None
    airflow.store().write({"of": 1})
    airflow.map_index = 0
    assert stored(airflow) == {"of": 0}


def test_tries_without_progress_are_counted_until_one_makes_some(airflow: Airflow) -> None:
    resumed = header(20, epoch=2, attempts=2, rounds=1, pages=40, records=400, partitions_done=2)
    further = header(30, epoch=3, attempts=3, rounds=2, pages=41, records=410, partitions_done=2)
    published = header(40, rounds=1, pages=40, partitions_done=2, state=RefreshState.PUBLISHED, snapshot_id=7)
    tries = [(None, None, 1), (None, NOW, 0), (NOW, resumed, 1), (resumed, None, 2), (resumed, further, 0)]
    for before, after, stalled in [*tries, (NOW, published, 0)]:
        assert attempt(airflow, before, after).stalled == stalled


@pytest.mark.parametrize(
    "error", [RateLimitedError("429", retry_after=60), RefreshBusyError("another run"), RefreshStoppedError("stopped")]
)
def test_an_attempt_that_was_not_let_read_counts_neither_way(airflow: Airflow, error: Exception) -> None:
    assert attempt(airflow, None, None).stalled == 1
    assert attempt(airflow, None, None, error).stalled == 1
    assert attempt(airflow, None, NOW, error).stalled == 0


def test_nothing_is_said_of_progress_while_the_ledger_cannot_be_read(airflow: Airflow, caplog: Log) -> None:
    attempt(airflow, None, NOW)
    with caplog.at_level(logging.INFO):
        made = monitor(airflow, OSError("no ledger"))
        with raises(OSError), made:
            raise OSError("gone")
    assert made.stalled is None
    assert "can't be compared with the ledger now" in caplog.text


@pytest.mark.skipif(not AIRFLOW_V_3_3_PLUS, reason="Airflow has a task state since 3.3")
def test_task_state_never_expires_and_an_airflow_without_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("task_state"), monkeypatch)
    airflow.store().write({"any": "thing"})
    assert list(airflow.supervisor.extras.values()) == [None]
    store = _TaskStateStore({})  # type: ignore[typeddict-item]
    store.write({"any": "thing"})
    store.clear()
    assert store.read() is None


def test_a_variable_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("variable"), monkeypatch)
    airflow.map_index = 3
    airflow.store().write({"any": "thing"})
    [(key, description)] = airflow.supervisor.extras.items()
    assert key[-1].startswith("rfr_checkpoint.shop.refresh.")
    assert description.startswith("Progress of the refresh by task refresh of DAG shop (run manual__1, map index 3).")
    assert "safe to delete" in description


def test_a_variables_key_fits_into_every_database() -> None:
    def key(map_index: int) -> str:
        ti = SimpleNamespace(dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250, map_index=map_index)
        return _VariableStore({"ti": ti}).key  # type: ignore[typeddict-item]

    assert len(key(-1)) <= 250
    assert key(-1) != key(0)


def test_xcom_is_kept_by_the_task_after_and_shown_by_the_task_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("xcom", before=True), monkeypatch)
    store = airflow.store()
    store.write({"any": "thing"})
    store.clear()
    assert list(airflow.supervisor.rows) == [("xcom", "refresh", -1, "rfr_checkpoint")]
    assert store.place == "the XCom rfr_checkpoint.refresh.-1 of task report"


def test_xcom_is_kept_by_the_task_before_where_none_comes_after_and_by_no_mapped_one() -> None:
    from airflow.providers.standard.operators.bash import BashOperator

    assert _neighbour(Airflow("xcom", after=False, before=True).dag.get_task("refresh")) == "prepare"
    airflow = Airflow("xcom", after=False)
    airflow.dag.get_task("refresh") >> BashOperator.partial(task_id="many", dag=airflow.dag).expand(bash_command=["a"])
    assert _neighbour(airflow.dag.get_task("refresh")) is None


def test_a_task_without_neighbours_has_its_own_xcom_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("xcom", after=False), monkeypatch)
    store = airflow.store()
    store.write({"any": "thing"})
    assert list(airflow.supervisor.rows) == [("xcom", "refresh", -1, "rfr_checkpoint")]
    assert airflow.store().read() is None
    store.clear()


def test_an_unknown_store_is_refused_while_the_dag_is_parsed() -> None:
    with raises(ConfigurationError):
        ResumableFullRefreshOperator(
            task_id="refresh", source={"class": "a:B"}, streams="a", target="raw.a", checkpoint_store="variables"
        )


def test_a_store_that_this_airflow_lacks_is_refused_while_the_dag_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attempt, "AIRFLOW_V_3_3_PLUS", False)
    monkeypatch.setattr(_attempt, "airflow_version", lambda: "3.2.2")
    with raises(ConfigurationError) as caught:
        check_store("task_state")
    assert caught.value.field == "checkpoint_store"
    check_store("xcom")


@pytest.mark.parametrize("store", STORES)
def test_the_documented_example_is_a_dag_with_each_documented_store(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SHOP.parent)
    page = (ROOT / "docs" / "follow_loads.md").read_text()
    assert f" | `{store}`" in page
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example.count('checkpoint_store="xcom"') == 1
    example = example.replace('checkpoint_store="xcom"', f'checkpoint_store="{store}"')
    names: dict[str, Any] = {"__name__": "example"}
    exec(example.replace("max_active_runs=1):", "max_active_runs=1) as dag:"), names)
    assert names["dag"].dag_id == "shop_checkpoint"
    assert names["dag"].get_task("refresh").checkpoint_store == store
