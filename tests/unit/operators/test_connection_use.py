"""A refresh whose connection is altered while it runs: it stops, and goes on with the new settings in the same try."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.connections.airflow.lookup import content_hash, find_definition
from airflow_provider_rfr.exceptions import RefreshStoppedError, SchemaError, SourceError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.operators.connections import finishing_deferred, running_with
from airflow_provider_rfr.store.connections import (
    FAILED,
    IDLE,
    ConnectionNotes,
    TaskRef,
    Use,
    load_use,
    set_wanted_hash,
)
from airflow_provider_rfr.store.engine import ControlStore
from tests.soon import wait_until
from tests.unit.operators.test_execute import CANARY, Bench, bench, without_jvm

pytestmark = pytest.mark.test

__all__ = ["bench", "without_jvm"]
TASK = TaskRef("d", "r", "refresh")
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="refresh", map_index=-1)}
STOPPED = {"error": {"type": "RefreshStoppedError", "message": "stopped"}}


@pytest.fixture
def store(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlStore]:
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", f"sqlite:///{tmp_path}/control.db")
    opened = ControlStoreHook().get_store()
    yield opened
    opened.close()


def use(store: ControlStore) -> Use:
    with store.read() as connection:
        found = load_use(connection, TASK)
    assert found is not None
    return found


def shop(host: str) -> str:
    return json.dumps({"conn_type": "rfr_api", "host": host, "login": "me", "password": CANARY})


def test_it_goes_on_in_the_same_try_and_its_former_driver_has_ended_before(
    bench: Bench, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Use] = []
    former: list[str] = []

    def alter() -> None:
        wait_until(bench.report.exists)
        former.append(bench.seen["path"])
        before = find_definition("shop")
        os.environ["AIRFLOW_CONN_SHOP"] = shop("http://127.0.0.1:2")
        new = content_hash(store).of(find_definition("shop"))
        assert before is not None
        place = {name: getattr(before, name) for name in ("conn_type", "host", "schema", "port", "login")}
        store.run(lambda connection: ConnectionNotes(connection, "shop").set_former_places(new, [place]))
        store.run(lambda connection: set_wanted_hash(connection, [TASK], "shop", new))
        wait_until(lambda: bench.seen["document"]["source"]["config"]["base_url"] == "http://127.0.0.1:2")
        seen.append(use(store))
        assert bench.operator is not None
        bench.operator.on_kill()

    monkeypatch.setenv("AIRFLOW_CONN_SHOP", shop("http://127.0.0.1:1"))
    other = threading.Thread(target=alter)
    other.start()
    with pytest.raises(RefreshStoppedError):
        bench.run({"until_stopped": "politely", "last_word": STOPPED})
    other.join()
    (running,) = seen
    assert (running.state, running.token, running.is_stale) == ("running", 2, False)
    assert bench.seen["document"]["run"]["moved"] == [
        {"base_url": "http://127.0.0.1:1", "login": "me"},
        {"base_url": "http://127.0.0.1:2", "login": "me"},
    ]
    commands = "\n".join(bench.seen["commands"])
    assert bench.seen["path"] in commands
    assert former[0] not in commands
    ended = use(store)
    assert (ended.state, ended.token, ended.error_kind) == (FAILED, 2, "RefreshStoppedError")


@pytest.mark.usefixtures("without_jvm")
def test_the_driver_is_told_that_the_connection_leads_to_another_upstream(bench: Bench, store: ControlStore) -> None:
    present = content_hash(store).of(find_definition("shop"))
    store.run(lambda connection: ConnectionNotes(connection, "shop").set_former_places(present, [{"upstream": "abc"}]))
    bench.run()
    assert bench.seen["document"]["run"]["moved"] == [
        {"upstream": "abc"},
        {"login": "me", "base_url": "http://127.0.0.1:1"},
    ]


def test_what_it_uses_is_noted_without_any_secret(bench: Bench, store: ControlStore, tmp_path: Path) -> None:
    bench.run()
    noted = use(store)
    assert (noted.state, noted.kind) == (IDLE, "refresh")
    assert {connection.conn_id for connection in noted.connections} == {"shop", "rfr_lake_default", "spark_default"}
    assert noted.details["check"]["rfr_lake_default"] == {"tables": ["raw.orders"]}
    store.close()
    for file in tmp_path.glob("control.db*"):
        assert CANARY.encode() not in file.read_bytes()


def test_an_error_is_noted_where_dependents_are_listed(bench: Bench, store: ControlStore) -> None:
    word = {"error": {"type": "SourceError", "message": "nothing answers"}}
    with pytest.raises(SourceError):
        bench.run({"last_word": word})
    assert (use(store).state, use(store).error, use(store).error_kind) == (FAILED, "nothing answers", "SourceError")


def test_the_kind_of_error_of_a_deferred_refresh_is_noted_too(bench: Bench, store: ControlStore) -> None:
    bench.run()

    def finish() -> None:
        raise SchemaError("amount does not fit")

    with pytest.raises(SchemaError):
        finishing_deferred(CONTEXT, finish)
    assert (use(store).state, use(store).error, use(store).error_kind) == (FAILED, "amount does not fit", "SchemaError")


def test_an_error_of_somebody_elses_is_noted_without_the_secrets_in_it(bench: Bench, store: ControlStore) -> None:
    def work() -> None:
        raise RuntimeError(f"GET /?key={CANARY} failed")

    with pytest.raises(RuntimeError):
        running_with(CONTEXT, "sink", ["shop"], work)
    assert use(store).error == "GET /?key=*** failed"


def test_a_control_store_that_is_away_fails_no_refresh(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_rfr.operators.webhooks.blocked", lambda lake, tables: None)
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", "sqlite:////nowhere/control.db")
    assert bench.run()["rows"] == 4


def test_work_that_fails_while_its_connection_is_altered_is_done_once_more_and_a_sink_is_noted_as_one(
    bench: Bench, store: ControlStore
) -> None:
    tries: list[str] = []

    def work() -> str:
        tries.append(str(use(store).of("shop")))
        if len(tries) == 1:
            store.run(lambda connection: set_wanted_hash(connection, [TASK], "shop", "another"))
            raise SourceError("refused")
        return "sent"

    assert running_with(CONTEXT, "sink", ["shop"], work) == "sent"
    assert len(tries) == 2
    assert (use(store).kind, use(store).state, use(store).token) == ("sink", IDLE, 2)


def test_connections_that_can_no_longer_be_named_at_a_restart_end_the_task(bench: Bench, store: ControlStore) -> None:
    named = [["shop"]]

    def work() -> None:
        store.run(lambda connection: set_wanted_hash(connection, [TASK], "shop", "another"))
        raise SourceError("refused")

    with pytest.raises(IndexError):
        running_with(CONTEXT, "sink", named.pop, work)
    assert (use(store).state, use(store).token, use(store).error_kind) == (FAILED, 1, "IndexError")
