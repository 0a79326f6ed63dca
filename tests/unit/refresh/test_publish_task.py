"""Data files of the target, and writing one again without the rows that lose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, load_file
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS, target_schema
from airflow_provider_rfr.refresh import publish_task
from airflow_provider_rfr.refresh.page_rows import write_rows
from airflow_provider_rfr.refresh.publish_task import (
    KeySearch,
    LedgerFiles,
    PublishTask,
    _write_files,
    drop_rows,
    find_losers,
)
from airflow_provider_rfr.streams import NextPage, Page
from tests.unit.refresh.paged_sources import row_of

STORE = FileStore({})
ROWS = pa.schema([("order-no", pa.int64()), ("nest", pa.struct([("a b", pa.string())])), ("1st", pa.string())])


def task(folder: Path, *key: tuple[str, ...]) -> PublishTask:
    target = FileTarget(FileLayout(target_schema(ROWS)), STORE, f"{folder}/data", ROWS)
    return PublishTask(
        source=LedgerFiles(STORE, (), {}), target=target, schema=ROWS, generation=1, on_type_error="fail",
        max_offenders=10, key_columns=key, row_filter=None, scratch=f"{folder}/scratch",
    )  # fmt: skip


def rows(count: int) -> pa.Table:
    system = {
        "_rfr_generation": pa.array([1] * count),
        "_rfr_extracted_at": pa.array(range(count), pa.timestamp("us", tz="UTC")),
        "_rfr_meta": pa.nulls(count, pa.string()),
    }
    own = {
        "order-no": pa.array([number % 4 for number in range(count)]),
        "nest": pa.array([{"a b": str(number % 4)} for number in range(count)]),
        "1st": pa.array([f"row {number}" for number in range(count)]),
    }
    return pa.table({**own, **system}, schema=pa.schema([*ROWS, *SYSTEM_COLUMNS]))


def test_columns_whose_names_files_can_not_hold_survive_being_keys_and_being_written_again(tmp_path: Path) -> None:
    for number, key in enumerate([("order-no",), ("nest", "a b")]):
        subject = task(tmp_path / str(number), key)
        (written,) = _write_files(subject, rows(10))
        assert written.keys is not None
        losers = find_losers(KeySearch(STORE, (written.keys,), 0, 1))[written.keys]
        assert sorted(losers) == [0, 1, 2, 3, 4, 5]
        (again,) = drop_rows(subject, written, losers)
        kept = load_file(STORE, again.file.location, subject.target.layout)
        assert kept["1st"].to_pylist() == ["row 6", "row 7", "row 8", "row 9"]
        assert kept["order-no"].to_pylist() == [2, 3, 0, 1]
        assert kept["nest"].to_pylist() == [{"a b": "2"}, {"a b": "3"}, {"a b": "0"}, {"a b": "1"}]


def ledger_file(location: Path, *pages: tuple[int, int, int, int]) -> str:
    """A ledger file with pages: ordinal, chain, number, and bytes of records."""
    rows = [
        row_of(
            Page([{"a": "x" * (size - 8)}] if size else [], NextPage(number + 1)), number, ordinal=ordinal, chain=chain
        )
        for ordinal, chain, number, size in pages
    ]
    write_rows(STORE, str(location), rows, footer="{}")
    return str(location)


def test_live_pages_come_in_batches_of_which_only_a_single_page_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_task, "_MAX_BATCH_BYTES", 100)
    first = ledger_file(tmp_path / "1.parquet", (0, 0, 1, 40), (0, 0, 2, 60), (0, 0, 3, 40))
    second = ledger_file(tmp_path / "2.parquet", (1, 0, 1, 50), (1, 1, 1, 150), (0, 0, 4, 0), (0, 0, 5, 30))
    batches = LedgerFiles(STORE, (first, second), {1: 1}).batches()
    found = [
        [(ordinal, page.page, len(page.records)) for page, ordinal in zip(*batch, strict=True)] for batch in batches
    ]
    assert found == [[(0, 1, 40), (0, 2, 60)], [(0, 3, 40)], [(1, 1, 150)], [(0, 5, 30)]]


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    assert _write_files(task(tmp_path), rows(0)) == []


def test_files_that_no_commit_names_are_collected_by_attempt_and_by_generation(tmp_path: Path) -> None:
    subject = task(tmp_path)
    first = replace(subject.target, family="rfr-1-g7-", label="e1-")
    second = replace(first, label="e2-")
    other = replace(first, family="rfr-1-g6-")
    for target in (first, second, other):
        list(target.write(rows(3)))
    second.discard()
    assert kinds(tmp_path) == ["rfr-1-g6-e1", "rfr-1-g7-e1"]
    kept = [file for file, _ in second.write(rows(3))]
    second.collect(kept)
    assert kinds(tmp_path) == ["rfr-1-g6-e1", "rfr-1-g7-e2"]


def kinds(folder: Path) -> list[str]:
    return sorted(file.name.rpartition("-")[0].rpartition("-")[0] for file in (folder / "data").iterdir())
