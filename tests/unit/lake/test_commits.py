"""Commits of a real table, as the outbox reads them; and where answers of the catalog are lost.

Every kind of commit is sent where the answer is lost, or where the commit is sent again and its repeat refused.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, LedgerError
from airflow_provider_rfr.lake import commits
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError, CommitLog, CommitRecord, write_table_properties
from airflow_provider_rfr.lake.target import TargetTable
from tests.strict_commits import KINDS, CommitKind, write_files
from tests.unit.lake.conftest import once, repeated
from tests.unit.messages import raises

NAME = "raw.orders"
ROWS = pa.table({"id": pa.array([1], pa.int64())})
SCHEMA = Schema(NestedField(1, "id", LongType()))


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
        own = SqlCatalog("rfr", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
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


STRICT_NAME = "raw.t"


def unanswered(method: Callable[..., Any], *arguments: Any) -> Any:
    method(*arguments)
    raise CatalogError("504")


def refused(method: Callable[..., Any], catalog: Catalog, table: Table, *arguments: Any) -> Any:
    """Let a commit of somebody else come first."""
    other = catalog.load_table(".".join(table.name()))
    other.append(other.scan().to_arrow())
    return method(catalog, table, *arguments)


def metadata_files(folder: Path) -> set[str]:
    return {path.as_uri() for path in folder.rglob("*.avro")}


def metadata_of(table: Table) -> set[str]:
    """Return the manifests and manifest lists of all snapshots."""
    snapshots = table.metadata.snapshots
    manifests = {manifest.manifest_path for snapshot in snapshots for manifest in snapshot.manifests(table.io)}
    return manifests | {snapshot.manifest_list for snapshot in snapshots}


@pytest.mark.parametrize("fault", [repeated, unanswered])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_commit_that_landed_is_a_success(
    settings: LakeSettings, kind: CommitKind, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = kind.prepare(catalog, STRICT_NAME)
    once(monkeypatch, catalog, fault)
    commit()
    kind.check(open_catalog(settings), STRICT_NAME)


def test_a_commit_behind_another_one_is_refused_and_leaves_no_manifest(
    settings: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["target: replace"].prepare(catalog, STRICT_NAME)
    once(monkeypatch, catalog, refused)
    with pytest.raises(CommitConflictError):
        commit()
    table = catalog.load_table(STRICT_NAME)
    assert metadata_files(tmp_path) == metadata_of(table)
    assert table.scan().to_arrow().num_rows == 6


def on_a_branch(method: Callable[..., Any], catalog: Catalog, table: Table, *arguments: Any) -> Any:
    """Let a commit of somebody else on another branch come first, which leaves the main branch as it was."""
    other = catalog.load_table(".".join(table.name()))
    snapshot = other.current_snapshot()
    assert snapshot is not None
    other.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    other.append(other.scan().to_arrow(), branch="audit")
    return method(catalog, table, *arguments)


def rolled_back(method: Callable[..., Any], catalog: Catalog, table: Table, *arguments: Any) -> Any:
    """Let somebody else commit and roll that back, which leaves the main branch as it was."""
    other = catalog.load_table(".".join(table.name()))
    before = other.current_snapshot()
    assert before is not None
    other.append(other.scan().to_arrow())
    other.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    return method(catalog, table, *arguments)


@pytest.mark.parametrize("first", [on_a_branch, rolled_back])
def test_a_snapshot_of_others_that_main_does_not_show_is_a_conflict(
    settings: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[..., Any]
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["target: replace"].prepare(catalog, STRICT_NAME)
    once(monkeypatch, catalog, first)
    with pytest.raises(CommitConflictError):
        commit()
    assert metadata_files(tmp_path) == metadata_of(catalog.load_table(STRICT_NAME))


def test_nothing_is_deleted_where_nobody_can_say_whether_the_commit_landed(
    settings: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["target: replace"].prepare(catalog, STRICT_NAME)
    with monkeypatch.context() as patched:
        once(patched, catalog, repeated)
        patched.setattr(commits, "load_table", Mock(side_effect=CatalogError("silent")))
        patched.setattr("tenacity.nap.time.sleep", lambda _: None)
        with raises(CatalogError):
            commit()
    KINDS["target: replace"].check(open_catalog(settings), STRICT_NAME)


def test_an_attempt_that_was_taken_over_after_its_lost_answer_is_fenced(
    settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["ledger: round"].prepare(catalog, STRICT_NAME)

    def taken_over(method: Callable[..., Any], *arguments: Any) -> Any:
        method(*arguments)
        KINDS["ledger: take over"].check(open_catalog(settings), STRICT_NAME)
        raise CatalogError("504")

    once(monkeypatch, catalog, taken_over)
    with raises(LedgerError):
        commit()


def test_appends_merge_their_manifests(settings: LakeSettings) -> None:
    catalog = open_catalog(settings)
    KINDS["target: create"].prepare(catalog, STRICT_NAME)()
    assert write_table_properties(catalog, STRICT_NAME, {"commit.manifest.min-count-to-merge": "10"})
    target, rows = TargetTable(catalog, STRICT_NAME), pa.table({"day": ["monday"], "id": [1]})
    for number in range(2, 25):
        target.reload()
        files = write_files(target, rows, rows_stay=True)
        target.commit(files, ("ledger", number), mode="append", replace_where=None, summary={})
    table = catalog.load_table(STRICT_NAME)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 10
    assert table.scan().to_arrow().num_rows == 25


def test_a_commit_that_sqlite_refuses_while_another_process_reads_has_not_landed(tmp_path: Path) -> None:
    """A stopped process may read for ever; SQLite leaves a refused transaction open for the next user of it."""
    file = tmp_path / "catalog.db"
    address = f"sqlite:///{file}?timeout=0.1"
    properties = {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog(LakeSettings("rfr", properties))
    catalog.create_namespace("raw")
    table = committed(catalog, "a")  # type: ignore[arg-type]
    before = table.metadata_location
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        # Not to its end, after which SQLite would let go of the rows.
        rows = reader.execute("SELECT name FROM sqlite_master")
        assert rows.fetchone()
        with pytest.raises(CatalogError, match="locked"):
            commits.append_files(table, [], {"rfr.word": "b"})
        assert catalog.load_table(NAME).metadata_location == before
        rows.close()
    assert words(catalog) == ["a"]  # type: ignore[arg-type]
    commits.append_files(catalog.load_table(NAME), [], {"rfr.word": "c"})
    assert words(catalog) == ["a", "c"]  # type: ignore[arg-type]
