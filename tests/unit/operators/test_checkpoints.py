"""Every store keeps what an attempt leaves for the next one, and nothing that it finds there can do harm."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    RateLimitedError,
    RefreshBusyError,
    RefreshStoppedError,
    RfrError,
)
from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.checkpoints import (
    _MAX_BYTES,
    _PARTITION_BYTES,
    STATES,
    Checkpoint,
    CheckpointManager,
    TaskKey,
    _neighbour,
    _variable_key,
)
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.progress import Progress, Start
from tests.unit.operators.airflow_stores import Airflow, airflow, installed
from tests.unit.operators.test_follower import header

__all__ = ["airflow"]

ROOT = Path(__file__).resolve().parents[3]
OWNER = "shop/manual__1/refresh/-1"
TABLE = "raw.orders"
Log = pytest.LogCaptureFixture


def keeper(airflow: Airflow, *, first: bool = False, details: Any = None, known: bool = True) -> CheckpointManager:
    return CheckpointManager(
        airflow.store(), OWNER, details=details or (lambda table: {}), known=lambda: known, first=first
    )


def counts(state: LedgerHeader) -> dict[str, Any]:
    return {"version": 1, "tables": {TABLE: Progress.of(state, Start.of(state, None)).checkpoint()}}


def attempt(
    airflow: Airflow, before: LedgerHeader | None, after: LedgerHeader | None, error: Exception | None = None
) -> CheckpointManager:
    """A try that fails, and leaves its checkpoint."""
    made = keeper(airflow)
    with contextlib.suppress(OSError, RfrError), made:
        made.recall({TABLE: before})
        if after is not None:
            made.remember(counts(after))
        raise error or OSError("gone")
    return made


def verdict(airflow: Airflow, caplog: Log, state: LedgerHeader | None) -> str:
    """The one line that the next try logs of what it finds."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made = keeper(airflow)
        made.recall({TABLE: state})
    [line] = [record.getMessage() for record in caplog.records if record.name.startswith("airflow_provider_rfr")]
    assert made.stalled is None
    return str(line).replace(airflow.store().place, "the store")


def stored(airflow: Airflow) -> Any:
    content = airflow.store().read()
    return json.loads(content) if isinstance(content, str) else content


NOW = header(10, rounds=1, pages=40, records=400, partitions_done=2)


def test_the_next_try_finds_what_the_last_one_left(airflow: Airflow, caplog: Log) -> None:
    attempt(airflow, None, NOW)
    assert verdict(airflow, caplog, NOW) == "the checkpoint in the store agrees with the ledger"


def test_the_first_try_misses_nothing(airflow: Airflow, caplog: Log) -> None:
    with caplog.at_level(logging.INFO):
        keeper(airflow, first=True).recall({TABLE: None})
    assert not caplog.records


def test_a_missing_checkpoint_is_told(airflow: Airflow, caplog: Log) -> None:
    assert verdict(airflow, caplog, NOW) == "the checkpoint in the store is ignored: there is none; the ledger wins"


def test_a_checkpoint_that_was_changed_by_hand_is_ignored(airflow: Airflow, caplog: Log) -> None:
    attempt(airflow, None, NOW)
    edited = stored(airflow)
    edited["tables"][TABLE]["pages"] = 41
    airflow.plant(edited)
    line = verdict(airflow, caplog, NOW)
    assert line == "the checkpoint in the store is ignored: it was changed by hand; the ledger wins"


@pytest.mark.parametrize(
    "content",
    ["not JSON {", "a text", 7, [1, 2], {"mine": True}, Checkpoint("shop/other/refresh/-1").content()],
    ids=["broken", "text", "number", "list", "object", "other run"],
)
def test_what_somebody_else_wrote_is_ignored(airflow: Airflow, caplog: Log, content: Any) -> None:
    airflow.plant(content)
    line = verdict(airflow, caplog, NOW)
    assert line == "the checkpoint in the store is ignored: it is not of this task; the ledger wins"


def test_a_checkpoint_that_is_too_large_is_ignored_before_it_is_read(airflow: Airflow, caplog: Log) -> None:
    airflow.plant({"version": 1, "owner": OWNER, "tables": {}, "padding": "x" * 5 * _MAX_BYTES})
    line = verdict(airflow, caplog, NOW)
    assert (
        line == "the checkpoint in the store is ignored: it is larger than any that a refresh writes; the ledger wins"
    )


@pytest.mark.parametrize(
    ("now", "how"),
    [
        (header(20, rounds=2, pages=60), "pages 40, in the ledger 60"),
        (header(20, rounds=1, pages=39), "pages 40, in the ledger 39"),
        (header(20, generation=2, pages=40), "generation 1, in the ledger 2"),
        (header(20, epoch=2, pages=40), "epoch 1, in the ledger 2"),
        (None, "no such ledger"),
    ],
    ids=["behind", "ahead", "older generation", "older epoch", "gone"],
)
def test_a_stale_checkpoint_is_ignored(airflow: Airflow, caplog: Log, now: LedgerHeader | None, how: str) -> None:
    attempt(airflow, None, NOW)
    line = verdict(airflow, caplog, now)
    assert line == (
        f"the checkpoint in the store is ignored: the ledger is elsewhere ({TABLE}: {how}); the ledger wins"
    )


def test_a_store_that_fails_is_told_by_the_kind_of_its_error_alone(
    airflow: Airflow, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: Any) -> None:
        raise RuntimeError("postgresql://me:s3cret@db")

    monkeypatch.setattr(airflow.supervisor, "send", refuse)
    made = keeper(airflow)
    with caplog.at_level(logging.INFO), pytest.raises(OSError, match="gone"), made:
        made.recall({TABLE: NOW})
        raise OSError("gone")
    made.published()
    assert "s3cret" not in caplog.text
    assert "can't be written or removed: RuntimeError; the refresh goes on" in caplog.text


def test_a_published_refresh_leaves_nothing_for_a_next_try(airflow: Airflow) -> None:
    made = attempt(airflow, None, NOW)
    made.published()
    made.remember(counts(NOW))
    assert airflow.store().read() is None


def test_a_published_refresh_leaves_its_checkpoint_where_that_is_wished(airflow: Airflow, caplog: Log) -> None:
    made = attempt(airflow, None, NOW)
    made.published(keep=True)
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


def test_the_states_of_few_partitions_are_kept_and_those_of_many_only_as_a_digest(airflow: Airflow) -> None:
    def left(partitions: int) -> Any:
        states = {f"{n:012x}": {"pages": n, "done": True} for n in range(partitions)}
        details = {"pointer": {"ledger": "l", "snapshot": 2**62}, "digest": "d", STATES: states}
        made = keeper(airflow, details=lambda table: details)
        made.recall({TABLE: None})
        made.remember(counts(NOW))
        return stored(airflow)["tables"][TABLE]

    few, many = left(3), left(_PARTITION_BYTES // 20)
    assert few[STATES]["000000000002"] == {"pages": 2, "done": True}
    assert few["pointer"] == {"ledger": "l", "snapshot": 2**62}
    assert STATES not in many
    assert (many["digest"], many["partitions"], many["partitions_done"]) == ("d", 8, 2)


def test_a_checkpoint_that_would_be_too_large_is_not_written(airflow: Airflow, caplog: Log) -> None:
    made = keeper(airflow, details=lambda table: {"pointer": "x" * _MAX_BYTES})
    made.recall({TABLE: None})
    made.remember(counts(NOW))
    assert airflow.store().read() is None
    assert "it would be too large; the refresh goes on" in caplog.text


def test_counts_are_written_where_the_partitions_cannot_be_told(airflow: Airflow, caplog: Log) -> None:
    def broken(table: str) -> Any:
        raise FileNotFoundError("s3://bucket/key")

    made = keeper(airflow, details=broken)
    made.recall({TABLE: None})
    made.remember(counts(NOW))
    assert "agrees" in verdict(airflow, caplog, NOW)


def test_tries_without_progress_are_counted_until_one_makes_some(airflow: Airflow) -> None:
    resumed = header(20, epoch=2, attempts=2, rounds=1, pages=40, records=400, partitions_done=2)
    further = header(30, epoch=3, attempts=3, rounds=2, pages=41, records=410, partitions_done=2)
    assert attempt(airflow, None, None).stalled == 1
    assert attempt(airflow, None, NOW).stalled == 0
    assert attempt(airflow, NOW, resumed).stalled == 1
    assert attempt(airflow, resumed, None).stalled == 2
    assert attempt(airflow, resumed, further).stalled == 0


@pytest.mark.parametrize(
    "error", [RateLimitedError("429", retry_after=60), RefreshBusyError("another run"), RefreshStoppedError("stopped")]
)
def test_an_attempt_that_was_not_let_read_counts_neither_way(airflow: Airflow, error: Exception) -> None:
    assert attempt(airflow, None, None).stalled == 1
    assert attempt(airflow, None, None, error).stalled == 1
    assert attempt(airflow, None, NOW, error).stalled == 0


def test_nothing_is_said_of_progress_while_the_ledger_cannot_be_read(airflow: Airflow, caplog: Log) -> None:
    attempt(airflow, None, NOW)
    made = keeper(airflow, known=False)
    with caplog.at_level(logging.INFO), pytest.raises(OSError, match="gone"), made:
        made.recall({TABLE: None})
        raise OSError("gone")
    assert made.stalled is None
    assert "can't be compared now: the ledger can't be read" in caplog.text


def test_a_publish_is_progress(airflow: Airflow) -> None:
    published = header(40, rounds=1, pages=40, partitions_done=2, state=RefreshState.PUBLISHED, snapshot_id=7)
    assert attempt(airflow, NOW, published).stalled == 0


def test_task_state_never_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("task_state"), monkeypatch)
    airflow.store().write({"any": "thing"})
    assert list(airflow.supervisor.extras.values()) == [None]


def test_an_airflow_without_task_state_is_no_error() -> None:
    from airflow_provider_rfr.operators.checkpoints import _TaskStateStore

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
    assert description.startswith("How far the refresh of task refresh of DAG shop is (run manual__1, map index 3).")
    assert "safe to delete" in description


def test_a_variables_key_fits_into_every_database() -> None:
    long = _variable_key(TaskKey("d" * 250, "r" * 250, "t" * 250, -1))
    assert len(long) <= 250
    assert long != _variable_key(TaskKey("d" * 250, "r" * 250, "t" * 250, 0))


def test_xcom_is_kept_by_the_task_after_and_shown_by_the_task_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = installed(Airflow("xcom", before=True), monkeypatch)
    store = airflow.store()
    store.write({"any": "thing"})
    store.clear()
    assert list(airflow.supervisor.rows) == [("xcom", "refresh", -1, "rfr_checkpoint")]
    assert store.place == "the XCom rfr_checkpoint.refresh.-1 of task report"


def test_xcom_is_kept_by_the_task_before_where_none_comes_after() -> None:
    assert _neighbour(Airflow("xcom", after=False, before=True).dag.get_task("refresh")) == "prepare"


def test_a_mapped_neighbour_keeps_nothing() -> None:
    from airflow.providers.standard.operators.bash import BashOperator

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
    with pytest.raises(ConfigurationError, match="checkpoint_store: there is no store 'variables'; did you mean 'var"):
        ResumableFullRefreshOperator(
            task_id="refresh", source={"class": "a:B"}, streams="a", target="raw.a", checkpoint_store="variables"
        )


@pytest.mark.parametrize("store", ["task_state", "variable", "xcom"])
def test_the_documented_example_of_each_store_is_a_dag(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "demo")
    chapter = (ROOT / "docs" / "full_refresh.md").read_text().split(f"### `{store}`")[1].split("###")[0]
    [example] = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(example.replace("max_active_runs=1):", "max_active_runs=1) as dag:"), names)
    assert names["dag"].dag_id == f"shop_{store}"
    assert names["dag"].get_task("refresh").checkpoint_store == store
