"""DROP and RENAME: refused while anything is known to use the connection, whole or not at all, and tidied up after."""

from __future__ import annotations

from collections.abc import Callable
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
from airflow_provider_rfr.connections import parse_statement
from airflow_provider_rfr.connections._journal import _REMOVED
from airflow_provider_rfr.connections.alteration import execute
from airflow_provider_rfr.connections.statement import Settings
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
)
from airflow_provider_rfr.store.connections import ConnectionNotes
from airflow_provider_rfr.store.deliveries import EndpointKey, ensure_endpoint, load_endpoints
from airflow_provider_rfr.store.deploys import Entry, write_registry
from airflow_provider_rfr.webhooks.block import TriggerBlock
from airflow_provider_rfr.webhooks.operations import resume
from airflow_provider_rfr.webhooks.outbox import endpoints_of, register_endpoints
from tests.unit.connections.worlds import CANARY, Bench
from tests.unit.messages import check_messages, raises

API = Definition("api", "rfr_api", host="http://one", password=CANARY)
TUNNEL = Definition("tunnel", "ssh", host="bastion")
BROKER = Definition("broker", "kafka", host="broker", extra={"ssh_conn_id": "tunnel"})
DROP = "DROP CONNECTION api"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, API, TUNNEL, BROKER)
    made.shelf.secrets = {"env:NEW": "new-secret"}
    return made


def refused(bench: Bench, text: str) -> list[str]:
    before = dict(bench.shelf.connections)
    with pytest.raises(AlterationRefusedError) as caught:
        bench.alter(text)
    assert bench.shelf.connections == before
    return [str(problem) for problem in caught.value.problems]


def references(bench: Bench, name: str) -> dict[str, str]:
    with bench.store.read() as connection:
        return ConnectionNotes(connection, name).secret_references()


def test_a_connection_that_nothing_uses_is_dropped_with_what_was_noted_of_it(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    outcome = bench.alter(DROP)
    assert (outcome.result, outcome.lines()) == ("dropped", ["connection api: dropped"])
    assert "api" not in bench.shelf.connections
    assert references(bench, "api") == {}
    row = bench.audit()[0]
    assert (row.id, row.state, row.statement, row.actor) == (outcome.alteration, "applied", DROP, "tester")
    assert row.options == {"name": {"before": "api", "after": None}}


def test_what_is_missing_is_an_error_unless_it_may_be_missing(bench: Bench) -> None:
    with pytest.raises(ConnectionNotFoundError):
        bench.alter("DROP CONNECTION none")
    assert bench.alter("DROP CONNECTION IF EXISTS none").result == "missing"
    bench.alter("DROP CONNECTION IF EXISTS api")
    assert bench.alter("DROP CONNECTION IF EXISTS api").result == "missing"


@pytest.mark.parametrize("text", ["DROP CONNECTION {}", "ALTER CONNECTION {} RENAME TO other"])
def test_a_task_keeps_its_connections_however_far_away(bench: Bench, text: str) -> None:
    bench.run("load", "api")
    bench.run("sink", "broker", kind="sink")
    done = "dropped" if text.startswith("DROP") else "renamed"
    (problem,) = refused(bench, text.format("api"))
    assert problem.startswith(f"can't be {done}: used by refresh load.refresh (run): it runs; run it with another")
    assert [problem.partition(";")[0] for problem in refused(bench, text.format("tunnel"))] == [
        f"can't be {done}: used by sink sink.refresh (run) by broker > tunnel: it runs",
        f"can't be {done}: connection broker refers to it",
    ]
    assert [row.state for row in bench.audit()] == ["refused", "refused"]


@pytest.mark.parametrize("state", ["idle", "stalled", "running"])
def test_a_task_that_ended_keeps_its_connection_until_airflow_no_longer_has_it(bench: Bench, state: str) -> None:
    bench.run("load", "api")
    bench.end("load", state, "success")
    check_messages(refused(bench, DROP))
    bench.shelf.states.clear()
    check_messages(refused(bench, DROP))
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
    check_messages(refused(bench, DROP))
    check_messages(refused(bench, "DROP CONNECTION broker"))
    assert len(refused(bench, "DROP CONNECTION tunnel")) == 1, "only the broker: a stream's name is no connection"


def test_a_trigger_keeps_its_connection_until_it_is_forgotten(bench: Bench) -> None:
    endpoint = {"connection": "api", "payload": {"a": 1}}
    block = TriggerBlock.model_validate({"config": {"notify": endpoint, "other": {**endpoint, "connection": "broker"}}})
    endpoints = endpoints_of("lake", "raw.orders", block, "shop")
    # What a delivery does: it enqueues, then it notes where its endpoints are declared.
    bench.store.run(lambda connection: [ensure_endpoint(connection, key) for key in endpoints])
    register_endpoints(bench.store, endpoints, "a place")
    check_messages(refused(bench, DROP))
    resume(bench.store, [EndpointKey("lake", "raw.orders", "notify", "shop")])
    assert bench.alter(DROP).result == "dropped"


def test_the_connection_of_the_control_store_stays(bench: Bench) -> None:
    bench.world = replace(bench.world, store_conn_id="api")
    check_messages(refused(bench, DROP))


def test_everything_that_uses_it_is_named_at_once(bench: Bench) -> None:
    bench.run("load", "tunnel")
    bench.run("sink", "broker", kind="sink")
    assert len(refused(bench, "DROP CONNECTION tunnel")) == 3


def test_who_may_not_edit_a_connection_may_not_drop_it(bench: Bench) -> None:
    bench.shelf.forbidden.add("api")
    with raises(ConnectionRightsError):
        bench.alter(DROP)
    assert bench.audit()[0].state == "refused"


def test_a_dry_run_drops_nothing(bench: Bench) -> None:
    def dry(text: str) -> str:
        statement = replace(parse_statement(text), settings=Settings(dry_run=True))
        return execute(bench.world, statement, actor="tester").notice

    assert dry(DROP) == "it would be dropped"
    with raises(AlterationRefusedError):
        dry("DROP CONNECTION tunnel")
    assert ("api" in bench.shelf.connections, bench.audit()) == (True, [])


def test_what_somebody_changed_meanwhile_is_not_dropped(bench: Bench) -> None:
    def other_hand() -> None:
        bench.shelf.connections["api"] = replace(API, login="by-hand")

    bench.shelf.before_commit = other_hand
    with pytest.raises(ConnectionConflictError):
        bench.alter(DROP)
    assert bench.shelf.connections["api"].login == "by-hand"
    assert bench.audit()[0].state == "conflict"


def test_nobody_can_refer_to_a_connection_while_it_is_dropped(bench: Bench) -> None:
    told: list[str] = []

    def meanwhile() -> None:
        bench.shelf.before_commit = lambda: None
        with pytest.raises(ConnectionConflictError, match="api is renamed or dropped just now") as caught:
            bench.alter("ALTER CONNECTION broker SET (extra.registry_conn_id = 'api')")
        told.append(caught.value.connection)

    bench.shelf.before_commit = meanwhile
    bench.alter(DROP)
    assert told == ["broker"]


def test_a_connection_that_gets_a_reference_just_now_is_not_dropped(bench: Bench) -> None:
    def meanwhile() -> None:
        bench.shelf.before_commit = lambda: None
        with pytest.raises(ConnectionConflictError, match="broker gets another reference just now"):
            bench.alter(DROP)

    bench.shelf.before_commit = meanwhile
    bench.alter("ALTER CONNECTION broker SET (extra.registry_conn_id = 'api')")
    check_messages(refused(bench, DROP))


def test_a_reference_to_what_was_dropped_meanwhile_is_refused(bench: Bench) -> None:
    def meanwhile(definition: Definition) -> None:
        bench.shelf.connections.pop("api", None)

    bench.shelf.identify = meanwhile  # type: ignore[method-assign]
    with raises(AlterationRefusedError):
        bench.alter("ALTER CONNECTION broker SET (extra.registry_conn_id = 'api')")
    assert bench.shelf.connections["broker"] == BROKER


class Killed(BaseException):
    """The process is gone."""


def kill(bench: Bench, victim: str, when: str) -> Callable[[], None]:
    """A process that is killed right before or after a step; returns what makes the next one as any other."""
    work = getattr(bench.shelf, victim)

    def dying(*arguments: object) -> None:
        if when == "after":
            work(*arguments)
        raise Killed

    setattr(bench.shelf, victim, dying)
    return lambda: setattr(bench.shelf, victim, work)


@pytest.mark.parametrize("again", [DROP, "DROP CONNECTION IF EXISTS api", "VALIDATE CONNECTION tunnel"])
def test_a_drop_that_died_after_it_was_done_is_finished(bench: Bench, again: str) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    mend = kill(bench, "drop", "after")
    with pytest.raises(Killed):
        bench.alter(DROP)
    mend()
    assert references(bench, "api") == {"password": "env:NEW"}
    if again == DROP:
        with pytest.raises(ConnectionNotFoundError):
            bench.alter(again)
    else:
        bench.alter(again)
    if "tunnel" in again:
        # Nobody asked for it again, but somebody made another connection of that name.
        bench.shelf.connections["api"] = replace(API, host="http://another")
        bench.alter("COMMENT ON CONNECTION api IS 'another one'")
    assert references(bench, "api") == {}
    row = bench.audit()[-2]
    assert (row.statement, row.state, row.detail) == (DROP, "applied", _REMOVED)


def test_a_drop_that_died_before_it_was_done_changed_nothing(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    mend = kill(bench, "drop", "before")
    with pytest.raises(Killed):
        bench.alter(DROP)
    mend()
    bench.alter("COMMENT ON CONNECTION api IS 'still there'")
    assert references(bench, "api") == {"password": "env:NEW"}
    assert [row.state for row in bench.audit()] == ["applied", "failed", "applied"]
    assert bench.alter(DROP).result == "dropped"


def test_a_rename_that_died_after_it_was_done_is_finished(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    mend = kill(bench, "rename", "after")
    with pytest.raises(Killed):
        bench.alter("ALTER CONNECTION api RENAME TO shop")
    mend()
    with pytest.raises(ConnectionNotFoundError):
        bench.alter("ALTER CONNECTION api RENAME TO shop")
    assert references(bench, "shop") == {"password": "env:NEW"}
    assert bench.audit()[0].state == "applied"


def test_a_connection_that_nothing_uses_is_renamed(bench: Bench) -> None:
    bench.alter("ALTER CONNECTION api SET (password = SECRET 'env:NEW')")
    assert bench.alter("ALTER CONNECTION api RENAME TO shop").result == "renamed"
    assert "api" not in bench.shelf.connections
    assert references(bench, "shop") == {"password": "env:NEW"}


CASCADE = "DROP CONNECTION tunnel CASCADE"


def used_by_all(bench: Bench) -> EndpointKey:
    """Make a task that ended, a connection that refers to the tunnel, and a trigger that is called with that one."""
    bench.run("load", "broker")
    bench.end("load", "idle", "success")
    endpoint = {"connection": "broker", "payload": {"a": 1}}
    block = TriggerBlock.model_validate({"config": {"notify": endpoint}})
    endpoints = endpoints_of("lake", "raw.orders", block, "shop")
    bench.store.run(lambda connection: [ensure_endpoint(connection, key) for key in endpoints])
    register_endpoints(bench.store, endpoints, "a place")
    return next(iter(endpoints))


def test_cascade_says_what_it_does_to_each_user_before_it_does_it(bench: Bench) -> None:
    key = used_by_all(bench)
    effects = (
        "refresh load.refresh (run): forgotten; its next run fails"
        "; trigger shop/notify of lake.raw.orders: paused; its deliveries wait for airflow rfr triggers resume"
        " raw.orders shop/notify; connection broker: dropped as well"
    )
    statement = replace(parse_statement(CASCADE), settings=Settings(dry_run=True))
    check_messages(execute(bench.world, statement, actor="tester").notice)
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
    check_messages(refused(bench, CASCADE))
    assert [row.state for row in bench.audit()] == ["refused"]


def test_cascade_changes_no_declaration_and_needs_the_right_to_each_connection(bench: Bench) -> None:
    bench.shelf.forbidden.add("broker")
    with raises(ConnectionRightsError):
        bench.alter(CASCADE)
    bench.shelf.forbidden.clear()
    settings = {"connection": "broker", "path": "x"}
    export = SinkSpec(source="raw.orders", to="http", settings=settings)
    deploy(bench, BuiltinObject(kind=Kind.SINK, name="out.orders", id=uuid4(), sink=export))
    check_messages(refused(bench, CASCADE))
    bench.world = replace(bench.world, store_conn_id="broker")
    check_messages(refused(bench, CASCADE))


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
