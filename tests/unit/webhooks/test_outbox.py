"""What is owed for the commits of a real table, and that losing the store loses nothing."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import _MAX_AGE, _MIN_SNAPSHOTS, expire_table, hold_property
from airflow_provider_rfr.store.deliveries import Selection, load_endpoints, set_cancelled
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.operations import deliveries, forget
from airflow_provider_rfr.webhooks.outbox import (
    _since_property,
    delivery_id,
    endpoints_of,
    enqueue,
    enqueue_commits,
    release_snapshots,
)
from tests.webhook_receiver import LAKE, TABLE, endpoint, events, key

ROWS = pa.table({"id": pa.array([1], pa.int64())})
SCHEMA = Schema(NestedField(1, "id", LongType()))
URL = "https://example.com/hook"


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    lake = SqlCatalog("rfr", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    lake.create_namespace("raw")
    lake.create_table(TABLE, SCHEMA)
    return lake


@pytest.fixture
def store(tmp_path: Path) -> ControlStore:
    return open_store(f"sqlite:///{tmp_path}/control.db")


def commit(catalog: SqlCatalog, *numbers: int, collections: tuple[str, ...] = ("orders",)) -> None:
    for event in events(*numbers, collections=collections):
        catalog.load_table(TABLE).append(ROWS, snapshot_properties=event.to_summary())


def maintain(catalog: SqlCatalog) -> None:
    """A commit that owes nothing."""
    catalog.load_table(TABLE).append(ROWS)


def look(store: ControlStore, catalog: SqlCatalog, *names: str, start_from="latest", **fields) -> int:
    wanted = {key(name): endpoint(URL, name, **fields) for name in names or ("hook",)}
    return enqueue_commits(store, catalog, LAKE, TABLE, wanted, start_from=start_from)


def owed(store: ControlStore, name: str = "hook") -> list[str]:
    rows = deliveries(store, Selection(trigger=name), None)
    return sorted(delivery.last_commit for delivery in rows)


def ids(store: ControlStore) -> set[str]:
    return {delivery.id for delivery in deliveries(store, limit=None)}


def properties(catalog: SqlCatalog) -> dict[str, str]:
    return dict(catalog.load_table(TABLE).properties)


def since(catalog: SqlCatalog, value: str | None = None) -> str:
    """The first commit that the table keeps for the hook; ``value``: written before."""
    if value is not None:
        with catalog.load_table(TABLE).transaction() as transaction:
            transaction.set_properties({_since_property("hook"): value})
    return properties(catalog)[_since_property("hook")]


def test_a_block_is_part_of_ids_and_of_what_a_table_keeps(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, 2)
    blocks = [parse_triggers({"name": name, "config": [{"url": URL, "payload": {}}]}) for name in ("a", "b")]
    for block in blocks:
        enqueue_commits(store, catalog, LAKE, TABLE, endpoints_of(LAKE, TABLE, block), start_from="earliest")
    assert ids(store) == {delivery_id(f"commit-{n}", f"{name}/trigger0") for n in (1, 2) for name in "ab"}
    kept = {name for name in properties(catalog) if name.startswith("rfr.webhooks.")}
    assert kept == {_since_property("a/trigger0"), _since_property("b/trigger0")}


def test_all_endpoints_that_are_new_to_a_table_take_one_commit_of_the_catalog(
    store: ControlStore, catalog: SqlCatalog
) -> None:
    commit(catalog, 1)
    before = len(catalog.load_table(TABLE).metadata.metadata_log)
    look(store, catalog, *(f"hook{n}" for n in range(20)))
    assert len(catalog.load_table(TABLE).metadata.metadata_log) == before + 1


def test_the_first_look_begins_with_the_newest_commit(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, 2, 3)
    maintain(catalog)
    assert look(store, catalog) == 1
    assert owed(store) == ["commit-3"]
    commit(catalog, 4, 5)
    assert (look(store, catalog), look(store, catalog)) == (2, 0)
    assert owed(store) == ["commit-3", "commit-4", "commit-5"]
    assert since(catalog) == "3"


def test_or_with_all_that_there_are(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, 2, 3)
    assert look(store, catalog, start_from="earliest") == 3
    assert since(catalog) == "0"


def test_a_table_without_commits_owes_all_that_will_come(store: ControlStore, catalog: SqlCatalog) -> None:
    assert look(store, catalog) == 0
    commit(catalog, 1, 2)
    assert look(store, catalog) == 2


def test_a_table_that_is_not_there_owes_nothing(store: ControlStore, catalog: SqlCatalog) -> None:
    assert enqueue_commits(store, catalog, LAKE, "raw.none", {key(table="raw.none"): endpoint(URL)}) == 0


def test_the_row_holds_the_event_as_the_snapshot_has_it(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 7)
    look(store, catalog)
    snapshot = load_table(catalog, TABLE).current_snapshot()
    (row,) = deliveries(store)
    assert (row.id, row.sequence, row.state) == (delivery_id("commit-7", "hook"), 1, "pending")
    assert row.snapshot_id == snapshot.snapshot_id
    assert f'"snapshot_id":{snapshot.snapshot_id}' in row.event


def test_a_lost_store_is_filled_with_the_same_rows_again(
    store: ControlStore, catalog: SqlCatalog, tmp_path: Path
) -> None:
    commit(catalog, 1, 2)
    look(store, catalog, "hook", "other")
    commit(catalog, 3, 4)
    look(store, catalog, "hook", "other")
    again = open_store(f"sqlite:///{tmp_path}/new.db")
    assert look(again, catalog, "hook", "other") == 6
    assert ids(again) == ids(store)


def test_a_store_lost_between_the_decision_and_the_rows_decides_the_same(
    store: ControlStore, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(catalog, 1)
    monkeypatch.setattr(store, "run", lambda work: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        look(store, catalog)
    commit(catalog, 2)
    assert look(open_store(f"sqlite:///{tmp_path}/new.db"), catalog) == 2


def test_a_catalog_that_forbids_properties_is_no_obstacle(
    store: ControlStore, catalog: SqlCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly(SqlCatalog):
        def commit_table(self, *args: object, **kwargs: object):
            raise PermissionError("no")

    commit(catalog, 1)
    forbidding = ReadOnly("rfr", **catalog.properties)
    with caplog.at_level(logging.WARNING):
        assert look(store, forbidding) == 1
    assert "rfr.webhooks.hook.since, rfr.hold.webhook.hook can't be written (PermissionError)" in caplog.text
    commit(catalog, 2)
    assert look(store, forbidding) == 1
    assert owed(store) == ["commit-1", "commit-2"]


def test_of_two_decisions_the_earlier_one_holds(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, 2, 3)
    look(store, catalog)
    since(catalog, "2")
    assert look(store, catalog) == 1
    assert owed(store) == ["commit-2", "commit-3"]
    for later in ("9", "x"):
        since(catalog, later)
        look(store, catalog)
        assert since(catalog) == "2", "also where somebody spoiled it"


def test_a_trigger_that_comes_later_begins_with_the_newest_commit_then(
    store: ControlStore, catalog: SqlCatalog
) -> None:
    commit(catalog, 1)
    look(store, catalog, "hook")
    commit(catalog, 2, 3)
    look(store, catalog, "hook", "late")
    assert owed(store, "hook") == ["commit-1", "commit-2", "commit-3"]
    assert owed(store, "late") == ["commit-3"]


def test_a_table_made_anew_owes_all_its_commits(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, 2, 3)
    look(store, catalog)
    catalog.drop_table(TABLE)
    catalog.create_table(TABLE, SCHEMA)
    commit(catalog, 11, 12)
    assert look(store, catalog) == 2
    assert owed(store) == ["commit-11", "commit-12", "commit-3"]
    commit(catalog, 13)
    assert look(store, catalog) == 1
    assert since(catalog) == "0"


def test_what_does_not_match_or_has_no_documents_makes_no_row(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1, collections=("items",))
    when = {"collections": ["ord*"]}
    assert look(store, catalog, start_from="earliest", when=when) == 0
    commit(catalog, 2, collections=("orders", "items"))
    assert look(store, catalog, when=when) == 1
    assert enqueue(store, events(3, collections=()), {key(): endpoint(URL)}) == 0


def test_a_trigger_that_is_switched_off_is_owed_nothing_of_what_comes_meanwhile(
    store: ControlStore, catalog: SqlCatalog
) -> None:
    commit(catalog, 1)
    assert look(store, catalog, enabled=False) == 0
    with store.read() as connection:
        assert not load_endpoints(connection, [key()])
    look(store, catalog)
    commit(catalog, 2)
    look(store, catalog, enabled=False)
    commit(catalog, 3)
    look(store, catalog)
    assert owed(store) == ["commit-1", "commit-3"]


def test_a_commit_at_hand_is_enrolled_without_hiding_those_before_it(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1)
    look(store, catalog)
    commit(catalog, 2, 3)
    assert enqueue(store, events(3), {key(): endpoint(URL)}) == 1
    assert look(store, catalog) == 1
    assert owed(store) == ["commit-1", "commit-2", "commit-3"]


def test_enrolling_is_for_the_table_and_lake_of_the_event(store: ControlStore) -> None:
    both = {key(): endpoint(URL), key(table="raw.items"): endpoint(URL)}
    assert enqueue(store, events(1, 2), both) == 2
    assert enqueue(store, [*events(2), *events(3, table="raw.items")], both) == 1
    assert enqueue(store, events(4, table="raw.others"), both) == 0


def test_a_rolled_back_commit_that_was_never_looked_at_owes_nothing(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1)
    look(store, catalog)
    commit(catalog, 2)
    table = catalog.load_table(TABLE)
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    commit(catalog, 3)
    look(store, catalog)
    assert owed(store) == ["commit-1", "commit-3"]


def test_many_who_look_at_once_make_each_row_once(catalog: SqlCatalog, tmp_path: Path) -> None:
    commit(catalog, 1, 2, 3)
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        own = SqlCatalog("rfr", **catalog.properties)
        mine = open_store(f"sqlite:///{tmp_path}/control.db")
        barrier.wait()
        counts.append(look(mine, own, "a", "b", start_from="earliest"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(counts) == 6
    assert len(ids(open_store(f"sqlite:///{tmp_path}/control.db"))) == 6


def test_publishers_go_on_while_the_first_look_writes_its_properties(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1)
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            for number in range(2, 12):
                commit(SqlCatalog("rfr", **catalog.properties), number)
        except BaseException as error:
            failures.append(error)

    publisher = threading.Thread(target=publish)
    publisher.start()
    for number in range(5):
        look(store, catalog, f"hook{number}")
    publisher.join(120)
    assert not failures
    look(store, catalog, "hook0")
    assert owed(store, "hook0")[-1:] == ["commit-9"]
    assert {"commit-10", "commit-11"} <= set(owed(store, "hook0"))


def test_an_expiry_keeps_the_commits_that_are_not_sent(
    store: ControlStore, catalog: SqlCatalog, tmp_path: Path
) -> None:
    """Not yet looked at, or pending: a store that is lost is filled with them again."""
    commit(catalog, 1, 2, 3)
    look(store, catalog, start_from="earliest")
    wanted = {key("hook"): endpoint(URL, "hook")}
    with catalog.load_table(TABLE).transaction() as transaction:
        transaction.set_properties({_MAX_AGE: "0", _MIN_SNAPSHOTS: "1"})
    assert expired(catalog) == 0, "nothing was said yet of what is sent"
    release_snapshots(store, catalog, LAKE, TABLE, wanted)
    assert expired(catalog) == 0
    done = {row.id for row in deliveries(store, limit=None) if row.last_commit in ("commit-1", "commit-2")}
    store.run(lambda connection: set_cancelled(connection, 1, done, ""))
    release_snapshots(store, catalog, LAKE, TABLE, wanted)
    before = catalog.load_table(TABLE).metadata_location
    release_snapshots(store, catalog, LAKE, TABLE, wanted)
    assert catalog.load_table(TABLE).metadata_location == before, "it is written only where it changed"
    commit(catalog, 4)
    assert expired(catalog) == 2
    store.close()
    lost = open_store(f"sqlite:///{tmp_path}/new.db")
    assert look(lost, catalog) == 2
    assert owed(lost) == ["commit-3", "commit-4"]


def test_snapshots_of_a_trigger_that_is_gone_stay_released(store: ControlStore, catalog: SqlCatalog) -> None:
    commit(catalog, 1)
    look(store, catalog, "gone", "hook")
    left, gone = {key("hook"): endpoint(URL, "hook")}, hold_property("webhook.gone")
    release_snapshots(store, catalog, LAKE, TABLE, left)
    assert properties(catalog)[gone] == "1"
    # As airflow rfr tables expire --release does it.
    write_table_properties(catalog, TABLE, {gone: None})
    commit(catalog, 2)
    look(store, catalog, "hook")
    done = {row.id for row in deliveries(store, limit=None)}
    store.run(lambda connection: set_cancelled(connection, 1, done, ""))
    release_snapshots(store, catalog, LAKE, TABLE, left)
    assert gone not in properties(catalog)
    assert properties(catalog)[hold_property("webhook.hook")] == "3"


def test_a_table_that_was_renamed_keeps_what_is_pending_and_repeats_nothing(
    store: ControlStore, catalog: SqlCatalog
) -> None:
    commit(catalog, 1, 2)
    look(store, catalog, start_from="earliest")
    [sent] = [row.id for row in deliveries(store, limit=None) if row.last_commit == "commit-1"]
    # Commit 1 was sent so long ago that its row is deleted.
    store.run(lambda connection: set_cancelled(connection, 1, [sent], ""))
    assert forget(store, 0) == 1
    catalog.rename_table(TABLE, "raw.renamed")
    renamed = key("hook")._replace(table="raw.renamed")
    assert enqueue_commits(store, catalog, LAKE, "raw.renamed", {renamed: endpoint(URL, "hook")}) == 0
    assert [(row.key, row.last_commit) for row in deliveries(store, limit=None)] == [(renamed, "commit-2")]


def expired(catalog: SqlCatalog) -> int:
    return expire_table(catalog, TABLE, now_ms=int(time.time() * 1000) + 1).snapshots
