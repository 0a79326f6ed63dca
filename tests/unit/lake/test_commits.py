"""Commits of a real table, as the outbox reads them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord, write_table_properties
from tests.unit.messages import raises

NAME = "raw.orders"
ROWS = pa.table({"id": pa.array([1], pa.int64())})
SCHEMA = Schema(NestedField(1, "id", LongType()))


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("rfr", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("raw")
    return made


def committed(catalog: SqlCatalog, *words: str) -> Table:
    table = catalog.create_table_if_not_exists(NAME, SCHEMA)
    for word in words:
        table.append(ROWS, snapshot_properties={"rfr.word": word})
    return table


def read_commits(catalog: SqlCatalog, name: str, after: int | None = None) -> list[CommitRecord]:
    found = CommitLog.load(catalog, name)
    return [] if found is None else found.commits(after)


def words(catalog: SqlCatalog, after: int | None = None) -> list[str]:
    return [record.summary["rfr.word"] for record in read_commits(catalog, NAME, after)]


def test_commits_are_read_oldest_first_and_after_a_sequence_number(catalog: SqlCatalog) -> None:
    committed(catalog, "a", "b", "c")
    assert words(catalog) == ["a", "b", "c"]
    assert [record.sequence for record in read_commits(catalog, NAME)] == [1, 2, 3]
    assert words(catalog, 1) == ["b", "c"]
    assert words(catalog, 3) == []


def test_a_table_that_is_not_there_and_one_without_commits_have_none(catalog: SqlCatalog) -> None:
    assert read_commits(catalog, NAME) == []
    assert CommitLog.load(catalog, NAME) is None
    committed(catalog)
    assert read_commits(catalog, NAME) == []


def test_a_commit_that_was_rolled_back_is_not_on_the_main_line(catalog: SqlCatalog) -> None:
    table = committed(catalog, "a", "b")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    committed(catalog, "c")
    assert words(catalog) == ["a", "c"]
    assert [record.sequence for record in read_commits(catalog, NAME)] == [1, 3]


def test_commits_of_branches_are_not_on_the_main_line(catalog: SqlCatalog) -> None:
    table = committed(catalog, "a")
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "trial").commit()
    table.append(ROWS, snapshot_properties={"rfr.word": "trial"}, branch="trial")
    assert words(catalog) == ["a"]


def test_expired_commits_are_skipped_and_told_of(catalog: SqlCatalog, caplog: pytest.LogCaptureFixture) -> None:
    table = committed(catalog, "a", "b", "c", "d")
    doomed = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:2]]
    table.maintenance.expire_snapshots().by_ids(doomed).commit()
    assert words(catalog) == ["c", "d"]
    assert words(catalog, 2) == ["c", "d"]
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert words(catalog, 1) == ["c", "d"]
    assert "snapshots between 1 and 3 have expired" in caplog.text


def test_a_table_that_does_not_number_its_commits_is_refused(catalog: SqlCatalog) -> None:
    catalog.create_table(NAME, SCHEMA, properties={"format-version": "1"}).append(ROWS)
    with raises(ConfigurationError):
        read_commits(catalog, NAME)


def test_a_table_made_anew_has_another_uuid_and_counts_from_one(catalog: SqlCatalog) -> None:
    committed(catalog, "a", "b")
    first = CommitLog.load(catalog, NAME)
    catalog.drop_table(NAME)
    committed(catalog, "c")
    second = CommitLog.load(catalog, NAME)
    assert first.table_uuid != second.table_uuid
    assert [record.sequence for record in second.commits()] == [1]


def test_a_property_is_written_in_a_commit_that_makes_no_snapshot(catalog: SqlCatalog) -> None:
    committed(catalog, "a")
    assert write_table_properties(catalog, NAME, {"rfr.webhooks.hook.since": "1"})
    found = CommitLog.load(catalog, NAME)
    assert found.properties["rfr.webhooks.hook.since"] == "1"
    assert len(found.commits()) == 1
    assert write_table_properties(catalog, NAME, {"rfr.webhooks.hook.since": None, "rfr.other": "2"})
    properties = CommitLog.load(catalog, NAME).properties
    assert "rfr.webhooks.hook.since" not in properties and properties["rfr.other"] == "2"


def test_a_property_is_written_while_others_commit_all_the_time(catalog: SqlCatalog, tmp_path: Path) -> None:
    committed(catalog, "a")
    over = threading.Event()
    failures: list[str] = []

    def publish() -> None:
        own = SqlCatalog("rfr", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/warehouse")
        while not over.is_set():
            try:
                own.load_table(NAME).append(ROWS, snapshot_properties={"rfr.word": "x"})
            except Exception as error:
                failures.append(type(error).__name__)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        written = [write_table_properties(catalog, NAME, {f"rfr.p{n}": "1"}) for n in range(5)]
    finally:
        over.set()
        publisher.join()
    assert written == [True] * 5
    assert not failures
    assert {f"rfr.p{n}" for n in range(5)} <= set(CommitLog.load(catalog, NAME).properties)


def test_a_catalog_that_forbids_it_costs_a_warning_and_nothing_else(
    catalog: SqlCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    committed(catalog, "a")

    class ReadOnly(SqlCatalog):
        def commit_table(self, *args: object, **kwargs: object):
            raise PermissionError("no: token=hunter22")

    forbidding = ReadOnly("rfr", **catalog.properties)
    with caplog.at_level(logging.WARNING):
        assert not write_table_properties(forbidding, NAME, {"rfr.p": "1"})
    assert "PermissionError" in caplog.text
    assert "hunter22" not in caplog.text
