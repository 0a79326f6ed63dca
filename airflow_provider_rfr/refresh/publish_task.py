"""Tasks of the publish: infer columns, write data files of the target, find duplicate keys.

Rows with the same primary key are found without moving rows: each data file gets a companion of sixteen bytes a row,
and only files that hold a losing row are written again. The row that was fetched last wins.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError, ReconciliationError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile, load_file
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.inference import InferredSchema, infer_records, merge
from airflow_provider_rfr.lake.target import RowFilter
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, TypedRows, type_pages

_KEY_BYTES = 16
_EXTRACTED_AT = "_rfr_extracted_at"


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A task's share of the search: keys whose first two bytes fall into one of ``buckets`` classes."""

    store: FileStore
    companions: tuple[str, ...]
    bucket: int
    buckets: int


def key_columns(
    primary_key: str | Sequence[str] | Sequence[Sequence[str]] | None, rows: pa.Schema
) -> tuple[tuple[str, ...], ...]:
    """Paths of the key's columns; raises :class:`ConfigurationError` for a column that the rows lack."""
    if primary_key is None:
        return ()
    parts = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    paths = tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)
    for path in paths:
        kind: pa.DataType = pa.struct(list(rows))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise ConfigurationError(
                    "primary_key", f"the rows have no column {'.'.join(path)}", f"columns are {', '.join(rows.names)}"
                )
            kind = kind.field(name).type
    return paths


def _write_keys(store: FileStore, location: str, table: pa.Table, key_columns: Sequence[Sequence[str]]) -> None:
    """Write the companion of a data file: key and time of each of its rows, in the file's order."""
    times = table[_EXTRACTED_AT].cast(pa.int64()).to_numpy()
    body = _keys(table, key_columns).tobytes() + times.tobytes()
    store.write(location, len(times).to_bytes(8, "big") + body)


def find_losers(search: KeySearch) -> dict[str, list[int]]:
    """Rows to drop, by companion: of equal keys all but the one that was fetched last."""
    keys, times, places = [], [], []
    for number, location in enumerate(search.companions):
        key, time = _read_keys(search.store.read(location))
        rows = np.flatnonzero((key[:, 0] >> np.uint64(48)) % np.uint64(search.buckets) == search.bucket)
        rows = rows[(key[rows] != 0).any(axis=1)]
        keys.append(key[rows])
        times.append(time[rows])
        places.append(np.column_stack([np.full(len(rows), number), rows]))
    key, time, place = np.concatenate(keys), np.concatenate(times), np.concatenate(places)
    order = np.lexsort((place[:, 1], place[:, 0], time, key[:, 1], key[:, 0]))
    ordered = key[order]
    loses = np.append((ordered[1:] == ordered[:-1]).all(axis=1), False)[: len(order)]
    found: dict[str, list[int]] = {}
    for number, row in place[order[loses]].tolist():
        found.setdefault(search.companions[number], []).append(row)
    return found


def _keys(table: pa.Table, key_columns: Sequence[Sequence[str]]) -> np.ndarray[Any, Any]:
    """Sixteen bytes a row; all zero for a row whose key has a null, which equals no other."""
    columns = [_column(table, path).to_pylist() for path in key_columns]
    keys = bytearray()
    for values in zip(*columns, strict=True):
        if None in values:
            keys += bytes(_KEY_BYTES)
        else:
            keys += hashlib.blake2b(orjson.dumps(values, default=str), digest_size=_KEY_BYTES).digest()
    return np.frombuffer(bytes(keys), dtype=np.uint64).reshape(-1, 2)


def _column(table: pa.Table, path: Sequence[str]) -> Any:
    import pyarrow.compute as pc

    column = table[path[0]]
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _read_keys(data: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    count = int.from_bytes(data[:8], "big")
    end = 8 + count * _KEY_BYTES
    return np.frombuffer(data[8:end], dtype=np.uint64).reshape(-1, 2), np.frombuffer(data[end:], dtype=np.int64)


_PAGE_COLUMNS = ("partition_ordinal", "partition_key", "chain", "page", "record_count", "fetched_at", "records")
_MAX_BATCH_BYTES = 64 * 1024 * 1024
_MAX_FILE_BYTES = 256 * 1024 * 1024


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
        if sum(table.nbytes for table in held) >= _MAX_FILE_BYTES:
            written.extend(_write_files(task, pa.concat_tables(held)))
            held = []
    if held and not (counts.offender_count and task.on_type_error == "fail"):
        written.extend(_write_files(task, pa.concat_tables(held)))
    return PublishResult(tuple(written), counts.rows, tuple(counts.offenders), counts.offender_count, counts.outside)


def batches(
    store: FileStore, files: Sequence[str], live_chains: Mapping[int, int]
) -> Iterator[tuple[list[LedgerPage], list[int]]]:
    """Live pages with their partitions' ordinals, at most so many bytes at once."""
    pages: list[LedgerPage] = []
    ordinals: list[int] = []
    size = 0
    for location in files:
        for ordinal, page in _live_pages(store, location, live_chains):
            pages.append(page)
            ordinals.append(ordinal)
            size += len(page.records)
            if size >= _MAX_BATCH_BYTES:
                yield pages, ordinals
                pages, ordinals, size = [], [], 0
    if pages:
        yield pages, ordinals


def _live_pages(store: FileStore, location: str, live_chains: Mapping[int, int]) -> Iterator[tuple[int, LedgerPage]]:
    """The pages of one ledger file that count and have records."""
    table = store.read_table(location, _PAGE_COLUMNS)
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


def _write_files(task: PublishTask, table: pa.Table) -> list[WrittenFile]:
    """Write rows as data files, each with its keys where there is a primary key."""
    found = []
    for file, rows in task.target.write(table):
        keys = None
        if task.key_columns:
            keys = f"{task.scratch}/{uuid.uuid4().hex}.keys"
            _write_keys(task.store, keys, rows, task.key_columns)
        found.append(WrittenFile(file, keys))
    return found


def drop_rows(task: PublishTask, file: WrittenFile, rows: Sequence[int]) -> list[WrittenFile]:
    """Write a data file again without some of its rows."""
    table = load_file(task.target.store, file.file.location, task.target.layout)
    keep = np.ones(table.num_rows, dtype=bool)
    keep[list(rows)] = False
    return _write_files(task, table.filter(pa.array(keep)))


@dataclass(frozen=True, slots=True)
class InferTask:
    """A task's share of the ledger files."""

    store: FileStore
    files: tuple[str, ...]
    live_chains: Mapping[int, int]


def run_infer_task(task: InferTask) -> InferredSchema:
    """The columns of the live records in these files."""
    found = InferredSchema()
    for pages, _ in batches(task.store, task.files, task.live_chains):
        found = merge(found, infer_records(b"\n".join(page.records for page in pages)))
    return found


def merge_schemas(schemas: Sequence[InferredSchema]) -> pa.Schema:
    """The columns of all of them together."""
    return reduce(merge, schemas, InferredSchema()).to_arrow()
