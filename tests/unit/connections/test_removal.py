"""DROP and RENAME: refused while anything is known to use the connection, whole or not at all, and tidied up after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from airflow_provider_rfr.builtins import BuiltinObject, Kind
from airflow_provider_rfr.builtins.desired import DesiredObject
from airflow_provider_rfr.builtins.model import SinkSpec, dumps
from airflow_provider_rfr.builtins.planner import record_of
from airflow_provider_rfr.connections._journal import _REMOVED
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConnectionNotFoundError,
    ConnectionRightsError,
)
from airflow_provider_rfr.store.deliveries import EndpointKey, ensure_endpoint, load_endpoints
from airflow_provider_rfr.store.deploys import Entry, write_registry
from airflow_provider_rfr.webhooks.block import TriggerBlock
from airflow_provider_rfr.webhooks.operations import resume
from airflow_provider_rfr.webhooks.outbox import endpoints_of, register_endpoints
from tests.unit.connections.worlds import CANARY, Bench, Killed
from tests.unit.messages import check_messages, raises

API = Definition("api", "rfr_api", host="http://one", password=CANARY)
TUNNEL = Definition("tunnel", "ssh", host="bastion")
BROKER = Definition("broker", "kafka", host="broker", extra={"ssh_conn_id": "tunnel"})
DROP = "DROP CONNECTION api"
RENAME = "ALTER CONNECTION api RENAME TO shop"
REFER = "ALTER CONNECTION broker SET (extra.registry_conn_id = 'api')"
KEEP_SECRET = "ALTER CONNECTION api SET (password = SECRET 'env:NEW')"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, API, TUNNEL, BROKER)
    made.shelf.secrets = {"env:NEW": "new-secret"}
    return made


def test_a_connection_that_nothing_uses_is_dropped_with_what_was_noted_of_it(bench: Bench) -> None:
    bench.alter(KEEP_SECRET)
    outcome = bench.alter(DROP)
    assert (outcome.result, outcome.lines()) == ("dropped", ["connection api: dropped"])
    assert "api" not in bench.shelf.connections
    assert bench.references("api") == {}
    row = bench.audit()[0]
    assert (row.id, row.state, row.statement, row.actor) == (outcome.alteration, "applied", DROP, "tester")
    assert row.options == {"name": {"before": "api", "after": None}}


@pytest.mark.parametrize("text", ["DROP CONNECTION {}", "ALTER CONNECTION {} RENAME TO other"])
def test_a_task_keeps_its_connections_however_far_away(bench: Bench, text: str) -> None:
    bench.run("load", "api")
    bench.run("sink", "broker", kind="sink")
    done = "dropped" if text.startswith("DROP") else "renamed"
    (problem,) = bench.refused(text.format("api"))
    assert problem.startswith(f"can't be {done}: used by refresh load.refresh (run): it runs; run it with another")
    assert [problem.partition(";")[0] for problem in bench.refused(text.format("tunnel"))] == [
        f"can't be {done}: used by sink sink.refresh (run) by broker > tunnel: it runs",
        f"can't be {done}: connection broker refers to it",
    ]
    assert [row.state for row in bench.audit()] == ["refused", "refused"]


@pytest.mark.parametrize("state", ["idle", "stalled", "running"])
def test_a_task_that_ended_keeps_its_connection_until_airflow_no_longer_has_it(bench: Bench, state: str) -> None:
    bench.run("load", "api")
    bench.end("load", state, "success")
    check_messages(bench.refused(DROP))
    bench.shelf.states.clear()
    check_messages(bench.refused(DROP))
    bench.end("load", state, "gone")
    assert bench.alter(DROP).result == "dropped"


def deploy(bench: Bench, *objects: BuiltinObject) -> None:
    """The registry as a deploy of these objects leaves it."""
    recorded = [record_of(DesiredObject(declared), 1) for declared in objects]
    entries = [
        Entry(str(record.uuid), record.name, record.kind.value, record.name, dumps(record).decode())
        for record in recorded
    ]

    def write(connection: Connection) -> None:
        write_registry(
            connection, "rfr", base_revision=0, version="1", deploy_id="d", entries=entries, forgotten=(), now=1
        )

    bench.store.run(write)


def test_deployed_sources_and_sinks_keep_the_connections_that_they_name(bench: Bench) -> None:
    definition = {"api_conn_id": "api", "streams": ["tunnel"]}
    source = BuiltinObject(kind=Kind.SOURCE, name="raw.orders", id=uuid4(), source=definition)
    settings = {"connection": "broker", "path": "tunnel"}
    export = SinkSpec(source="raw.orders", to="http", settings=settings)
    deploy(bench, source, BuiltinObject(kind=Kind.SINK, name="out.orders", id=uuid4(), sink=export))
    check_messages(bench.refused(DROP))
    check_messages(bench.refused("DROP CONNECTION broker"))
    assert len(bench.refused("DROP CONNECTION tunnel")) == 1, "only the broker: a stream's name is no connection"


def declare_triggers(bench: Bench, **connections: str) -> list[EndpointKey]:
    """What a delivery does: it enqueues, then it notes where its endpoints, called with these, are declared."""
    config = {name: {"connection": connection, "payload": {"a": 1}} for name, connection in connections.items()}
    endpoints = endpoints_of("lake", "raw.orders", TriggerBlock.model_validate({"config": config}), "shop")
    bench.store.run(lambda connection: [ensure_endpoint(connection, key) for key in endpoints])
    register_endpoints(bench.store, endpoints, "a place")
    return list(endpoints)


def test_a_trigger_keeps_its_connection_until_it_is_forgotten(bench: Bench) -> None:
    declare_triggers(bench, notify="api", other="broker")
    check_messages(bench.refused(DROP))
    resume(bench.store, [EndpointKey("lake", "raw.orders", "notify", "shop")])
    assert bench.alter(DROP).result == "dropped"


def test_a_dry_run_drops_nothing(bench: Bench) -> None:
    assert bench.alter(DROP, dry_run=True).notice == "it would be dropped"
    with raises(AlterationRefusedError):
        bench.alter("DROP CONNECTION tunnel", dry_run=True)
    assert ("api" in bench.shelf.connections, bench.audit()) == (True, [])


def test_nobody_can_refer_to_a_connection_while_it_is_dropped(bench: Bench) -> None:
    tried = bench.conflicting(REFER, "api is renamed or dropped just now")
    bench.alter(DROP)
    assert tried == ["broker"]


def test_a_connection_that_gets_a_reference_just_now_is_not_dropped(bench: Bench) -> None:
    tried = bench.conflicting(DROP, "broker gets another reference just now")
    bench.alter(REFER)
    assert tried == ["api"]
    check_messages(bench.refused(DROP))


def test_a_reference_to_what_was_dropped_meanwhile_is_refused(bench: Bench) -> None:
    def meanwhile(definition: Definition) -> None:
        bench.shelf.connections.pop("api", None)

    bench.shelf.identify = meanwhile  # type: ignore[method-assign]
    with raises(AlterationRefusedError):
        bench.alter(REFER)
    assert bench.shelf.connections["broker"] == BROKER


@pytest.mark.parametrize("again", [DROP, "DROP CONNECTION IF EXISTS api", "VALIDATE CONNECTION tunnel"])
def test_a_drop_that_died_after_it_was_done_is_finished(bench: Bench, again: str) -> None:
    bench.alter(KEEP_SECRET)
    with bench.killed("after", "drop"):
        bench.alter(DROP)
    assert bench.references("api") == {"password": "env:NEW"}
    if again == DROP:
        with pytest.raises(ConnectionNotFoundError):
            bench.alter(again)
    else:
        bench.alter(again)
    if "tunnel" in again:
        # Nobody asked for it again, but somebody made another connection of that name.
        bench.shelf.connections["api"] = replace(API, host="http://another")
        bench.alter("COMMENT ON CONNECTION api IS 'another one'")
    assert bench.references("api") == {}
    row = bench.audit()[-2]
    assert (row.statement, row.state, row.detail) == (DROP, "applied", _REMOVED)


def test_a_drop_that_was_paused_after_it_was_done_keeps_the_notes_of_the_next_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = bench.shelf.drop

    def paused(expected: str, definition: Definition) -> None:
        drop(expected, definition)
        bench.lose_leases()
        bench.shelf.connections["api"] = replace(API, host="http://new")
        bench.alter(KEEP_SECRET)

    monkeypatch.setattr(bench.shelf, "drop", paused)
    assert bench.alter(DROP).result == "dropped"
    assert bench.references("api") == {"password": "env:NEW"}
    assert bench.audit()[-1].detail == _REMOVED


def test_a_drop_that_died_before_it_was_done_changed_nothing(bench: Bench) -> None:
    bench.alter(KEEP_SECRET)
    with bench.killed("before", "drop"):
        bench.alter(DROP)
    bench.alter("COMMENT ON CONNECTION api IS 'still there'")
    assert bench.references("api") == {"password": "env:NEW"}
    assert [row.state for row in bench.audit()] == ["applied", "failed", "applied"]
    assert bench.alter(DROP).result == "dropped"


@pytest.mark.parametrize("dies", [False, True])
def test_a_rename_takes_the_notes_along_also_if_it_died_after_it_was_done(bench: Bench, dies: bool) -> None:
    bench.alter(KEEP_SECRET)
    if dies:
        with bench.killed("after", "rename"):
            bench.alter(RENAME)
        with pytest.raises(ConnectionNotFoundError):
            bench.alter(RENAME)
    else:
        assert bench.alter(RENAME).result == "renamed"
    assert "api" not in bench.shelf.connections
    assert bench.references("shop") == {"password": "env:NEW"}
    assert bench.audit()[0].state == "applied"


CASCADE = "DROP CONNECTION tunnel CASCADE"


def used_by_all(bench: Bench) -> EndpointKey:
    """Make a task that ended, a connection that refers to the tunnel, and a trigger that is called with that one."""
    bench.run("load", "broker")
    bench.end("load", "idle", "success")
    return declare_triggers(bench, notify="broker")[0]


def test_cascade_says_what_it_does_to_each_user_before_it_does_it(bench: Bench) -> None:
    key = used_by_all(bench)
    effects = (
        "refresh load.refresh (run): forgotten; its next run fails"
        "; trigger shop/notify of lake.raw.orders: paused; its deliveries wait for airflow rfr triggers resume"
        " raw.orders shop/notify; connection broker: dropped as well"
    )
    check_messages(bench.alter(CASCADE, dry_run=True).notice)
    reported: list[str] = []
    bench.shelf.before_commit = lambda: reported.extend(bench.said)
    outcome = bench.alter(CASCADE)
    assert reported[0] == f"connection tunnel is about to be dropped; {effects}"
    assert (outcome.result, outcome.notice) == ("dropped", effects)
    assert set(bench.shelf.connections) == {"api"}
    with bench.store.read() as connection:
        row = load_endpoints(connection, [key])[key]
    assert (row.conn_id, row.is_enabled, bench.use("load").connections) == (None, False, ())
    inner, outer = bench.audit()
    assert (outer.conn_id, outer.statement, outer.state, outer.actor) == ("tunnel", CASCADE, "applied", "tester")
    assert (inner.conn_id, inner.state, inner.actor) == ("broker", "applied", f"tester, by {CASCADE}")
    assert inner.options["trigger shop/notify of lake.raw.orders"]["after"].startswith("paused")


@pytest.mark.parametrize("state", ["running", "queued", "deferred", "up_for_retry", None])
def test_cascade_stops_no_task(bench: Bench, state: str | None) -> None:
    used_by_all(bench)
    if state is None:
        bench.shelf.states.clear()
    else:
        bench.end("load", "running", state)
    check_messages(bench.refused(CASCADE))
    assert [row.state for row in bench.audit()] == ["refused"]


def test_cascade_changes_no_declaration_and_needs_the_right_to_each_connection(bench: Bench) -> None:
    bench.shelf.forbidden.add("broker")
    with raises(ConnectionRightsError):
        bench.alter(CASCADE)
    bench.shelf.forbidden.clear()
    settings = {"connection": "broker", "path": "x"}
    export = SinkSpec(source="raw.orders", to="http", settings=settings)
    deploy(bench, BuiltinObject(kind=Kind.SINK, name="out.orders", id=uuid4(), sink=export))
    check_messages(bench.refused(CASCADE))
    bench.world = replace(bench.world, store_conn_id="broker")
    check_messages(bench.refused(CASCADE))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("drops", [1, 2])
def test_a_cascade_that_died_is_finished_by_the_same_statement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str, drops: int
) -> None:
    key = used_by_all(bench)
    work, count = bench.shelf.drop, 0

    def dying(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count < drops or when == "after":
            work(*arguments)
        if count == drops:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(bench.shelf, "drop", dying)
        bench.alter(CASCADE)
    bench.lose_leases()
    bench.alter("DROP CONNECTION IF EXISTS tunnel CASCADE")
    bench.alter("DROP CONNECTION IF EXISTS broker CASCADE")
    assert set(bench.shelf.connections) == {"api"}
    with bench.store.read() as connection:
        row = load_endpoints(connection, [key])[key]
    assert (row.conn_id, row.is_enabled, bench.use("load").connections) == (None, False, ())


def test_connections_that_refer_to_each_other_in_a_chain_go_from_its_end(bench: Bench) -> None:
    bench.shelf.connections["far"] = Definition("far", "kafka", extra={"a_conn_id": "tunnel", "b_conn_id": "broker"})
    bench.alter(CASCADE)
    newest_first = [(row.conn_id, row.state) for row in bench.audit()]
    assert newest_first == [("broker", "applied"), ("far", "applied"), ("tunnel", "applied")]
