"""One task of the publish: ledger files to typed rows to data files of the target."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_rfr.exceptions import ReconciliationError
from airflow_provider_rfr.lake.data_files import StoredFile, load_file
from airflow_provider_rfr.lake.file_target import FileTarget
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.refresh.keys import write_keys
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, TypedRows, type_pages

PAGE_COLUMNS = ("partition_ordinal", "partition_key", "chain", "page", "record_count", "fetched_at", "records")
MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_FILE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PublishTask:
    """What one task publishes.

    :ivar files: locations of ledger files
    :ivar live_chains: the chain that counts, for partitions that were started again; 0 for all others
    :ivar key_columns: paths of the primary key's columns; empty for none
    :ivar scratch: folder for the keys of the written rows
    """

    store: FileStore
    files: tuple[str, ...]
    live_chains: Mapping[int, int]
    target: FileTarget
    schema: pa.Schema
    generation: int
    on_type_error: str
    max_offenders: int
    key_columns: tuple[tuple[str, ...], ...]
    row_filter: RowFilter | None
    scratch: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no commit names yet.

    :ivar keys: location of the rows' keys, None without a primary key
    """

    file: StoredFile
    keys: str | None


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What one task wrote, and what did not fit."""

    written: tuple[WrittenFile, ...]
    rows_by_partition: Mapping[int, int]
    offenders: tuple[Mapping[str, Any], ...] = ()
    offender_count: int = 0
    outside_filter: int = 0


@dataclass(slots=True)
class _Counts:
    rows: dict[int, int] = field(default_factory=dict)
    offenders: list[Mapping[str, Any]] = field(default_factory=list)
    offender_count: int = 0
    outside: int = 0


def run_publish_task(task: PublishTask) -> PublishResult:
    """Type and write every live page of the task's ledger files."""
    counts = _Counts()
    written: list[WrittenFile] = []
    held: list[pa.Table] = []
    for pages, ordinals in batches(task.store, task.files, task.live_chains):
        typed = type_pages(
            pages,
            task.schema,
            generation=task.generation,
            on_type_error=task.on_type_error,  # type: ignore[arg-type]
            max_offenders=task.max_offenders,
        )
        _count(task, typed, pages, ordinals, counts)
        held.append(typed.table)
        if sum(table.nbytes for table in held) >= MAX_FILE_BYTES:
            written.extend(write_files(task, pa.concat_tables(held)))
            held = []
    if held and not (counts.offender_count and task.on_type_error == "fail"):
        written.extend(write_files(task, pa.concat_tables(held)))
    return PublishResult(tuple(written), counts.rows, tuple(counts.offenders), counts.offender_count, counts.outside)


def batches(
    store: FileStore, files: Sequence[str], live_chains: Mapping[int, int]
) -> Iterator[tuple[list[LedgerPage], list[int]]]:
    """Live pages with their partitions' ordinals, at most so many bytes at once."""
    pages: list[LedgerPage] = []
    ordinals: list[int] = []
    size = 0
    for location in files:
        for ordinal, page in live_pages(store, location, live_chains):
            pages.append(page)
            ordinals.append(ordinal)
            size += len(page.records)
            if size >= MAX_BATCH_BYTES:
                yield pages, ordinals
                pages, ordinals, size = [], [], 0
    if pages:
        yield pages, ordinals


def live_pages(store: FileStore, location: str, live_chains: Mapping[int, int]) -> Iterator[tuple[int, LedgerPage]]:
    """The pages of one ledger file that count and have records."""
    table = store.read_table(location, PAGE_COLUMNS)
    records = table["records"].combine_chunks() if table.num_rows else None
    small = table.drop_columns(["records"])
    small = small.set_column(
        small.schema.get_field_index("fetched_at"), "fetched_at", small["fetched_at"].cast("int64")
    )
    for index, row in enumerate(small.to_pylist()):
        if row["record_count"] and row["chain"] == live_chains.get(row["partition_ordinal"], 0):
            assert records is not None
            yield (
                row["partition_ordinal"],
                LedgerPage(
                    partition=row["partition_key"],
                    page=row["page"],
                    records=_value(records, index),
                    record_count=row["record_count"],
                    extracted_at_us=row["fetched_at"],
                ),
            )


def _value(column: Any, index: int) -> memoryview:
    """One value of the records column without a copy."""
    scalar = column[index]
    return memoryview(scalar.as_buffer())


def _count(
    task: PublishTask, typed: TypedRows, pages: Sequence[LedgerPage], ordinals: Sequence[int], counts: _Counts
) -> None:
    expected = sum(page.record_count for page in pages)
    if typed.table.num_rows != expected:
        raise ReconciliationError(
            f"{expected} records are staged, {typed.table.num_rows} were read; nothing is published"
        )
    for ordinal, page in zip(ordinals, pages, strict=True):
        counts.rows[ordinal] = counts.rows.get(ordinal, 0) + page.record_count
    counts.offender_count += typed.offender_count
    counts.offenders.extend(_as_mapping(item) for item in typed.offenders[: task.max_offenders - len(counts.offenders)])
    if task.row_filter is not None:
        counts.outside += task.row_filter.count_outside(typed.table)


def _as_mapping(offender: Any) -> Mapping[str, Any]:
    return {name: getattr(offender, name) for name in offender.__slots__}


def write_files(task: PublishTask, table: pa.Table) -> list[WrittenFile]:
    """Write rows as data files, each with its keys where there is a primary key."""
    found = []
    for file, rows in task.target.write(table):
        keys = None
        if task.key_columns:
            keys = f"{task.scratch}/{uuid.uuid4().hex}.keys"
            write_keys(task.store, keys, rows, task.key_columns)
        found.append(WrittenFile(file, keys))
    return found


def drop_rows(task: PublishTask, file: WrittenFile, rows: Sequence[int]) -> list[WrittenFile]:
    """Write a data file again without some of its rows."""
    table = load_file(task.target.store, file.file.location, task.target.layout)
    keep = np.ones(table.num_rows, dtype=bool)
    keep[list(rows)] = False
    return write_files(task, table.filter(pa.array(keep)))
