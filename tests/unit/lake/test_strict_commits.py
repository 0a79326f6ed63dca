"""Every kind of commit where the catalog's answer is lost, or where the commit is sent again and its repeat refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from airflow_provider_rfr.exceptions import CatalogError, LedgerError
from airflow_provider_rfr.lake import commits
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError, write_table_properties
from airflow_provider_rfr.lake.target import TargetTable
from tests.strict_commits import KINDS, CommitKind
from tests.unit.messages import raises

NAME = "raw.t"


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/warehouse"}
    return LakeSettings("rfr", properties)


def once(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, fault: Callable[..., Any]) -> None:
    """Send the next commit through ``fault``, which gets the catalog's own method before its arguments."""
    method = type(catalog).commit_table

    def faulty(*arguments: Any) -> Any:
        monkeypatch.setattr(type(catalog), "commit_table", method)
        return fault(method, *arguments)

    monkeypatch.setattr(type(catalog), "commit_table", faulty)


def repeated(method: Callable[..., Any], *arguments: Any) -> Any:
    """Do the commit, and return the answer to its repeat."""
    method(*arguments)
    return method(*arguments)


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
    commit = kind.prepare(catalog, NAME)
    once(monkeypatch, catalog, fault)
    commit()
    kind.check(open_catalog(settings), NAME)


def test_a_commit_behind_another_one_is_refused_and_leaves_no_manifest(
    settings: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["target: replace"].prepare(catalog, NAME)
    once(monkeypatch, catalog, refused)
    with pytest.raises(CommitConflictError):
        commit()
    table = catalog.load_table(NAME)
    assert metadata_files(tmp_path) == metadata_of(table)
    assert table.scan().to_arrow().num_rows == 6


def test_nothing_is_deleted_where_nobody_can_say_whether_the_commit_landed(
    settings: LakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["target: replace"].prepare(catalog, NAME)
    with monkeypatch.context() as patched:
        once(patched, catalog, repeated)
        patched.setattr(commits, "load_table", Mock(side_effect=CatalogError("silent")))
        patched.setattr("tenacity.nap.time.sleep", lambda _: None)
        with raises(CatalogError):
            commit()
    KINDS["target: replace"].check(open_catalog(settings), NAME)


def test_an_attempt_that_was_taken_over_after_its_lost_answer_is_fenced(
    settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_catalog(settings)
    commit = KINDS["ledger: round"].prepare(catalog, NAME)

    def taken_over(method: Callable[..., Any], *arguments: Any) -> Any:
        method(*arguments)
        KINDS["ledger: take over"].check(open_catalog(settings), NAME)
        raise CatalogError("504")

    once(monkeypatch, catalog, taken_over)
    with raises(LedgerError):
        commit()


def test_appends_merge_their_manifests(settings: LakeSettings) -> None:
    catalog = open_catalog(settings)
    KINDS["target: create"].prepare(catalog, NAME)()
    assert write_table_properties(catalog, NAME, {"commit.manifest.min-count-to-merge": "10"})
    target, rows = TargetTable(catalog, NAME), pa.table({"day": ["monday"], "id": [1]})
    for number in range(2, 25):
        target.reload()
        prepared = target.prepare(rows.schema, "evolve", inferred=False, rows_stay=True)
        files = [stored.describe(prepared.layout) for stored, _ in prepared.write(rows)]
        target.commit(files, ("ledger", number), mode="append", replace_where=None, summary={})
    table = catalog.load_table(NAME)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 10
    assert table.scan().to_arrow().num_rows == 25
