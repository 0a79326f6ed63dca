"""What deploys do to sinks: each step once or several times with the same result, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from airflow_provider_rfr.exceptions import ConfigurationError, SinkBusyError, SinkLeaseLostError
from airflow_provider_rfr.sinks import SinkSpec, SinkState
from airflow_provider_rfr.sinks.run import release_sink, sink_states
from airflow_provider_rfr.sinks.windows import SentColumn, SentColumns, SinkWindow, batch_id
from airflow_provider_rfr.store.deploys import SinkRow, load_sink, move_sink, take_sink_lease
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import Lease
from airflow_provider_rfr.store.tables import LEASES, SINKS
from tests.integration.postgres import PostgresServer
from tests.unit.messages import raises
from tests.unit.sinks.exporting import COLUMNS, SINK, SOURCE_ID, Sink, decide, declared

OBJ = declared("/out")
OTHER = UUID(int=7)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlStore]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path_factory.mktemp('store')}/control.db"
        if request.param == "postgres":
            url = stack.enter_context(PostgresServer()).new_database()
        opened = open_store(url)
        yield opened
        opened.close()


@pytest.fixture
def store(database: ControlStore) -> ControlStore:
    for table in (SINKS, LEASES):
        database.run(lambda value, table=table: value.execute(delete(table)))  # type: ignore[misc]
    return database


def do(store: ControlStore, how: str, sink: Sink = OBJ, now: int = 5, deploy: str = "d1", **more: Any) -> None:
    given = {"columns": COLUMNS, **more}
    store.run(lambda value: decide(value, how, sink, now, about=deploy, **given))


def row(store: ControlStore) -> SinkRow:
    with store.read() as connection:
        row = load_sink(connection, OBJ.id)
    assert row is not None
    return row


def kept(store: ControlStore) -> list[dict[str, Any]]:
    with store.read() as connection:
        return [dict(mapping) for mapping in connection.execute(select(SINKS)).mappings()]


def leased(store: ControlStore) -> Lease:
    """As a run has the sink."""
    grant = store.run(lambda value: take_sink_lease(value, store.now(value), OBJ.id, "run", 60_000))
    assert grant is not None
    return Lease(store, grant, lambda ours, present: SinkLeaseLostError(SINK))


def write(store: ControlStore, **values: Any) -> None:
    with leased(store) as lease:
        lease.write(lambda connection, now: move_sink(connection, OBJ.id, **values))


@pytest.mark.parametrize("how", ["metadata", "hold", "resume_from_new", "resend", "remove"])
def test_a_step_that_is_done_again_changes_nothing(store: ControlStore, how: str) -> None:
    do(store, "create")
    write(store, cursor=7, physical="p")
    do(store, how, now=6)
    once = kept(store)
    do(store, how, now=8)
    assert kept(store) == once


def test_a_sink_is_registered_with_its_sources_columns_and_no_cursor(store: ControlStore) -> None:
    for now in (5, 6):
        do(store, "create", now=now)
    with store.read() as connection:
        assert sink_states(connection) == (SinkState(OBJ.id, SINK, SOURCE_ID, None, "hold"),)
    assert SentColumns.loads(row(store).pins) == SentColumns((SentColumn("id", "id"), SentColumn("v", "v")))
    assert row(store).created_at == 5
    do(store, "remove")
    with store.read() as connection:
        assert sink_states(connection) == ()


def test_other_metadata_leaves_cursor_and_window(store: ControlStore) -> None:
    do(store, "create")
    write(store, cursor=7, physical="p", window="w")
    sink = SinkSpec("ops.t", "files", {"path": "/x"}, ("V",), on_replace="resend")
    do(store, "metadata", replace(OBJ, spec=sink), columns=["v"])
    changed = row(store)
    assert (changed.cursor, changed.physical, changed.window, changed.on_replace) == (7, "p", "w", "resend")
    assert SentColumns.loads(changed.pins) == SentColumns((SentColumn("V", "v"),), named=True)


def test_another_source_ends_the_cursor(store: ControlStore) -> None:
    do(store, "create")
    write(store, cursor=7, physical="p", window="w")
    do(store, "metadata", source=OTHER, columns=["n"])
    changed = row(store)
    assert (changed.source, changed.cursor, changed.physical, changed.window) == (OTHER, None, None, None)
    assert SentColumns.loads(changed.pins) == SentColumns((SentColumn("n", "n"),))


def test_a_store_that_lost_a_sink_makes_it_again(store: ControlStore) -> None:
    do(store, "metadata")
    assert row(store).name == SINK
    do(store, "remove")
    for how in ("hold", "resume_from_new", "resend", "remove"):
        do(store, how)
    assert kept(store) == []


def test_a_choice_that_is_none_is_refused(store: ControlStore) -> None:
    do(store, "create")
    do(store, "hold")
    with raises(ConfigurationError):
        store.run(lambda value: release_sink(value, OBJ.id, "hold", 9))


def test_one_run_holds_a_sink_until_its_lease_ends(store: ControlStore) -> None:
    do(store, "create")
    first = store.run(lambda value: take_sink_lease(value, 100, OBJ.id, "one", 5000))
    with raises(SinkBusyError):
        store.run(lambda value: take_sink_lease(value, 900, OBJ.id, "two", 5000))
    with pytest.raises(SinkBusyError):
        store.run(lambda value: take_sink_lease(value, 5099, OBJ.id, "two", 5000))
    second = store.run(lambda value: take_sink_lease(value, 5100, OBJ.id, "two", 5000))
    assert first is not None and second is not None and second.token == first.token + 1
    store.run(second.release)
    assert store.run(lambda value: take_sink_lease(value, 1, OBJ.id, "three", 5000)) is not None


def test_a_lease_by_a_clock_that_ran_ahead_does_not_count(store: ControlStore) -> None:
    do(store, "create")
    store.run(lambda value: take_sink_lease(value, 10**9, OBJ.id, "one", 5000))
    assert store.run(lambda value: take_sink_lease(value, 100, OBJ.id, "two", 5000)) is not None


@pytest.mark.parametrize("how", ["hold", "resend", "metadata", "remove"])
def test_a_deploys_decision_takes_the_sink_from_the_run_that_is_at_it(store: ControlStore, how: str) -> None:
    do(store, "create")
    lease = leased(store)
    do(store, how)
    with raises(SinkLeaseLostError):
        lease.write(lambda connection, now: move_sink(connection, OBJ.id, cursor=1))
    with pytest.raises(SinkLeaseLostError):
        lease.ensure()
    assert not [item for item in kept(store) if item["cursor"] == 1]


def test_a_batchs_id_tells_its_sink_its_window_its_part_and_its_round() -> None:
    window = SinkWindow(1, 2, (("id", 1),), None, (), 5)
    for item in (window, replace(window, earlier=(("id", 3),), keys=("id",), part=2)):
        assert SinkWindow.loads(item.dumps()) == item
    known = batch_id(OBJ.id, "p", window, 3, 0)
    assert known == batch_id(OBJ.id, "p", replace(window, size=9, columns=(("id", 4),)), 3, 0)
    others = [
        batch_id(SOURCE_ID, "p", window, 3, 0),
        batch_id(OBJ.id, "q", window, 3, 0),
        batch_id(OBJ.id, "p", replace(window, before=None), 3, 0),
        batch_id(OBJ.id, "p", replace(window, after=3), 3, 0),
        batch_id(OBJ.id, "p", replace(window, part=1), 3, 0),
        batch_id(OBJ.id, "p", window, 3, 1),
    ]
    assert len({known, *others}) == 7
    assert batch_id(OBJ.id, "p", window, 10, 0) > batch_id(OBJ.id, "p", window, 9, 0)
