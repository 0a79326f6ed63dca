"""Tasks of the publish: infer the columns of rows, write data files of the target, find duplicate keys.

Rows with the same primary key are found without moving rows: each data file gets a companion, a file with the hashed
key and the time of each row, and only data files that hold a losing row are written again. The row with the greatest
cursor value wins; without a cursor, the row that was fetched last. In a load of one partition, a deletion without a
cursor value wins over all rows that were fetched before it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ReconciliationError, SchemaError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile, conform, load_file
from airflow_provider_rfr.lake.files import OWN_FILE, FileStore
from airflow_provider_rfr.lake.inference import is_marked
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.lake.schemas import local_time_field
from airflow_provider_rfr.numbers import EXACT_INTEGERS, dumps, json_text, loads
from airflow_provider_rfr.refresh.cursor_values import comparable
from airflow_provider_rfr.refresh.merge_task import (
    PLACE_COLUMN,
    KeyRules,
    Paths,
    column_at,
    is_before_stub,
    one_zero,
    versions_of,
    write_index,
)
from airflow_provider_rfr.refresh.page_rows import SeenColumns, see_columns
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, TypedRows, type_pages
from airflow_provider_rfr.streams.incremental import DELETED_FIELD, CursorColumn
from airflow_provider_rfr.text import page_place

_KEY_BYTES = 16
_OLDEST = np.iinfo(np.int64).min
_EXTRACTED_AT = "_rfr_extracted_at"
_META = "_rfr_meta"
_PAGE_COLUMNS = ("partition_ordinal", "partition_key", "chain", "page", "record_count", "fetched_at", "records")
# Limits of JSON, which is in memory three times while it is typed; and of typed rows, whose compressed file is smaller.
_MAX_BATCH_BYTES = 16 * 1024 * 1024
_MAX_FILE_BYTES = 64 * 1024 * 1024
_KEYS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A task's share of the search for duplicates: the keys in one of ``buckets`` hash buckets.

    :ivar deletions: companions of deletion records
    :ivar is_one_partition: as of :class:`KeyRules`
    """

    store: FileStore
    companions: tuple[str, ...]
    bucket: int
    buckets: int
    deletions: tuple[str, ...] = ()
    is_one_partition: bool = False


def _write_keys(
    store: FileStore,
    location: str,
    table: pa.Table,
    key_columns: Sequence[Sequence[str]],
    cursor: CursorColumn | None = None,
) -> None:
    """Write the companion of a data file: hashed key, time and cursor value of each of its rows, in the file's order.

    A hashed key has sixteen bytes. They are zero for a row with a null in its key, which has no duplicates. If the rows
    have their places in their pages, these follow, because deletions have a companion of their own.

    :param cursor: the column whose values order the versions of a row. Equal values are ordered by the time at which
        they were fetched, and so are all versions without a cursor
    """
    import pyarrow.compute as pc

    keys = _hashed([one_zero(column_at(table, path)) for path in key_columns])
    times = pc.fill_null(table[_EXTRACTED_AT].cast(pa.int64()), _OLDEST).to_numpy()
    form, versions = b"", b""
    if cursor is not None:
        # As numbers or bytes that sort in the same way; null sorts first.
        sortable: np.ndarray[Any, Any]
        values = versions_of(table, cursor)
        if values.type == pa.int64():
            sortable = np.asarray(pc.fill_null(values, _OLDEST).to_numpy(), dtype=np.int64)
        elif pa.types.is_decimal(values.type):
            texts = (None if number is None else b"%039d" % (int(number) + 10**38) for number in values.to_pylist())
            sortable = np.array([text or b"" for text in texts], "S")
        else:
            sortable = np.array([text or b"" for text in values.to_pylist()], "S")
        form, versions = sortable.dtype.str.encode(), sortable.tobytes()
    if PLACE_COLUMN in table.column_names:
        versions += table[PLACE_COLUMN].to_numpy().tobytes()
    store.write(location, len(times).to_bytes(8, "big") + form.ljust(8) + keys + times.tobytes() + versions)


def _hashed(columns: Sequence[pa.ChunkedArray]) -> bytes:
    """Return the hashed keys.

    Those of a single column of integers differ for different integers, with evenly distributed bits (splitmix64).
    """
    import pyarrow.compute as pc

    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        mixed = pc.fill_null(columns[0].cast(pa.int64()), 0).to_numpy().astype(np.int64).view(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        valid = columns[0].is_valid().to_numpy().astype(np.uint64)
        return np.column_stack([(mixed ^ (mixed >> np.uint64(31))) * valid, valid]).tobytes()
    keys = bytearray()
    # Converted in slices, because Python objects take much more memory than the columns.
    for start in range(0, len(columns[0]), _KEYS_AT_ONCE):
        for values in zip(*(column.slice(start, _KEYS_AT_ONCE).to_pylist() for column in columns), strict=True):
            if None in values:
                keys += bytes(_KEY_BYTES)
            else:
                keys += hashlib.blake2b(orjson.dumps(values, default=str), digest_size=_KEY_BYTES).digest()
    return bytes(keys)


_Columns = tuple[np.ndarray[Any, Any], ...]


def _read_keys(search: KeySearch, location: str) -> _Columns:
    """Return keys, times, versions, places in pages and places in the file of a companion's rows in the bucket."""
    data = search.store.read(location)
    count, form = int.from_bytes(data[:8], "big"), data[8:16].decode().rstrip()
    end = 16 + count * _KEY_BYTES
    key = np.frombuffer(data, np.uint64, 2 * count, 16).reshape(-1, 2)
    time = np.frombuffer(data, np.int64, count, end)
    end += time.nbytes
    version = np.frombuffer(data, form, count, end) if form else np.zeros(count, np.int64)
    end += version.nbytes if form else 0
    place = np.frombuffer(data, np.int32, count, end) if end < len(data) else np.zeros(count, np.int32)
    rows = np.flatnonzero((key[:, 0] >> np.uint64(48)) % np.uint64(search.buckets) == search.bucket)
    rows = rows[(key[rows] != 0).any(axis=1)]
    return key[rows], time[rows], version[rows], place[rows], rows


def find_losers(search: KeySearch) -> dict[str, list[int]]:
    """Find the rows to drop, by companion: of the rows with one key, all but the newest version.

    Of versions that were fetched at the same time, the last row of the last file stays.
    """
    found = [_read_keys(search, location) for location in (*search.companions, *search.deletions)]
    number = np.repeat(np.arange(len(found)), [len(rows) for *_, rows in found])
    key, time, version, place, row = map(np.concatenate, zip(*found, strict=True))
    fetched, by_key = (row, number, place, time), (key[:, 1], key[:, 0])
    versions: _Columns = (version,)
    # As in the merge of a sync.
    stubs = (number >= len(search.companions)) & (version == (b"" if version.dtype.kind == "S" else _OLDEST))
    if search.is_one_partition and stubs.any():
        order = np.lexsort((*fetched, *by_key))
        counts = np.empty(len(key), dtype=bool)
        counts[order] = ~is_before_stub(_ends(key[order]), stubs[order])
        versions = (version, counts)
    order = np.lexsort((*fetched, *versions, *by_key))
    lost = order[~_ends(key[order])]
    lost = lost[number[lost] < len(search.companions)]
    losers: dict[str, list[int]] = {}
    for file, dropped in zip(number[lost].tolist(), row[lost].tolist(), strict=True):
        losers.setdefault(search.companions[file], []).append(dropped)
    return losers


def _ends(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell for each of the sorted keys whether it is the last of its value."""
    return np.append((keys[1:] != keys[:-1]).any(axis=1), True)[: len(keys)]


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """A task's share of the ledger files.

    :ivar files: their locations
    :ivar live_chains: number of the live chain, by ordinal, of partitions that restarted; it is 0 for all others
    """

    store: FileStore
    files: tuple[str, ...]
    live_chains: Mapping[int, int]

    def batches(self) -> Iterator[tuple[list[LedgerPage], list[int]]]:
        """Yield live pages that have records, with their partitions' ordinals: up to 16 MiB of records, or one page."""
        pages: list[LedgerPage] = []
        ordinals: list[int] = []
        size = 0
        for location in self.files:
            table = self.store.read_table(location, _PAGE_COLUMNS)
            if not table.num_rows:
                continue
            records = table["records"].combine_chunks()
            times = table["fetched_at"].cast("int64").to_pylist()
            rows = table.drop_columns(["records", "fetched_at"]).to_pylist()
            for index, (row, time) in enumerate(zip(rows, times, strict=True)):
                if not row["record_count"] or row["chain"] != self.live_chains.get(row["partition_ordinal"], 0):
                    continue
                # A view of Arrow's buffer saves a copy: records may be large, and joining pages copies them anyway.
                content = memoryview(records[index].as_buffer())
                if pages and size + len(content) > _MAX_BATCH_BYTES:
                    yield pages, ordinals
                    pages, ordinals, size = [], [], 0
                pages.append(LedgerPage(row["partition_key"], row["page"], content, row["record_count"], time))
                ordinals.append(row["partition_ordinal"])
                size += len(content)
        if pages:
            yield pages, ordinals


@dataclass(frozen=True, slots=True)
class PublishTask:
    """The work of one task of a publish.

    :ivar max_offenders: number of misfitting values that the result lists
    :ivar schema: columns to read from the records, without constants
    :ivar constants: columns that have one value in all rows, with their values
    :ivar key_columns: paths of the primary key's columns; empty without a key
    :ivar scratch: folder for the companions and indexes of the written files
    :ivar note_fields: whether the result names the fields of the records
    :ivar casts: as of :class:`~airflow_provider_rfr.streams.core.Stream`
    :ivar cursor: the column whose greatest values the result has; None without a cursor
    :ivar index: rules of the index that is written beside each file for a merge; None to write companions instead
    :ivar window: start and end of the cursor window, as comparable values; the end is exclusive. None for all rows
    :ivar deletion_fields: the fields that count in a deletion record: its mark, its key and its cursor value. Empty if
        deletion records are rows, as in an append
    """

    source: LedgerFiles
    target: FileTarget
    schema: pa.Schema
    generation: int
    on_type_error: Literal["fail", "null"]
    max_offenders: int
    key_columns: tuple[tuple[str, ...], ...]
    row_filter: RowFilter | None
    scratch: str
    note_fields: bool = False
    casts: bool = False
    constants: tuple[tuple[str, pa.Scalar], ...] = ()
    cursor: CursorColumn | None = None
    index: KeyRules | None = None
    window: tuple[int, int] | None = None
    deletion_fields: frozenset[str] = frozenset()

    @property
    def key(self) -> Paths:
        """Return the paths of the primary key's columns."""
        return self.index.primary_key if self.index is not None else self.key_columns


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no commit names yet.

    :ivar keys: location of its companion or its index; None without a key
    """

    file: StoredFile
    keys: str | None


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The files that one task wrote, and the values that did not fit.

    :ivar outside_filter: rows that ``replace_where`` does not match
    :ivar fields: paths of the records' fields, if the task asks for them
    :ivar changes: findings for an incremental sync
    """

    written: tuple[WrittenFile, ...]
    rows_by_partition: Mapping[int, int]
    offenders: tuple[Mapping[str, Any], ...] = ()
    offender_count: int = 0
    outside_filter: int = 0
    fields: frozenset[str] = frozenset()
    changes: TaskChanges = field(default_factory=lambda: TaskChanges())


@dataclass(slots=True)
class TaskChanges:
    """The findings in a task's rows that an incremental sync needs.

    :ivar deletions: locations of the indexes, or companions, of deletion records
    :ivar deleted: number of deletion records
    :ivar seen: the greatest comparable cursor value of each partition, by ordinal
    :ivar without_cursor: records without a usable cursor value, except deletion records
    :ivar without_key: the first record without a whole key, as the error names it, and the field that is null; None if
        all have one
    :ivar outside: records outside of the window, which are left out
    """

    deletions: list[str] = field(default_factory=list)
    deleted: int = 0
    seen: dict[int, Any] = field(default_factory=dict)
    without_cursor: int = 0
    without_key: tuple[str, str] | None = None
    outside: int = 0


def run_publish_task(task: PublishTask) -> PublishResult:
    """Type and write every live page of the task's ledger files."""
    rows: dict[int, int] = {}
    changes = _ChangeCollector(task)
    offenders: list[Mapping[str, Any]] = []
    offender_count = outside = 0
    written: list[WrittenFile] = []
    held: list[pa.Table] = []
    fields = FieldNames(task.schema)
    for pages, ordinals in task.source.batches():
        typed = _type_batch(task, pages, fields, task.max_offenders - len(offenders))
        _check_double_keys(task, typed.table, pages)
        for ordinal, page in zip(ordinals, pages, strict=True):
            rows[ordinal] = rows.get(ordinal, 0) + page.record_count
        offenders += map(asdict, typed.offenders)
        offender_count += typed.offender_count
        kept = changes.take(typed.table, pages, ordinals)
        outside += task.row_filter.count_outside(kept) if task.row_filter is not None else 0
        held.append(kept)
        if sum(table.nbytes for table in held) >= _MAX_FILE_BYTES:
            written += _write_files(task, pa.concat_tables(held))
            held = []
    if held and not (offender_count and task.on_type_error == "fail"):
        written += _write_files(task, pa.concat_tables(held))
    names = fields.paths() - {DELETED_FIELD}
    return PublishResult(tuple(written), rows, tuple(offenders), offender_count, outside, names, changes.found)


class _ChangeCollector:
    """A collector of cursor values, missing keys and deletion records among a task's rows."""

    def __init__(self, task: PublishTask) -> None:
        self._task = task
        self.found = TaskChanges()

    def take(self, table: pa.Table, pages: Sequence[LedgerPage], ordinals: Sequence[int]) -> pa.Table:
        """Inspect the rows of some pages, and return those to write."""
        import pyarrow.compute as pc

        cursor, window = self._task.cursor, self._task.window
        if self._task.index is not None or self._task.deletion_fields:
            # Rows of a page have the same time, so their places order them. The places are noted before rows are split
            # into deletions and other rows, and by the table's partitions.
            numbers = [np.arange(page.record_count, dtype=np.int32) for page in pages]
            table = table.append_column(PLACE_COLUMN, pa.array(np.concatenate(numbers)))
        if cursor is not None:
            self._note_cursors(table, cursor, pages, ordinals)
        for path in self._task.key if self.found.without_key is None else ():
            column = column_at(table, path)
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy())[0])
                self.found.without_key = _record_at(row, pages), ".".join(path)
                break
        if cursor is not None and window is not None:
            # A row without a cursor value is kept, as in every sync.
            values = comparable(table[cursor.name], cursor)
            start, end = (pa.scalar(value).cast(values.type) for value in window)
            inside = pc.and_(pc.greater_equal(values, start), pc.less(values, end))
            kept = table.filter(pc.fill_null(inside, True))
            self.found.outside += table.num_rows - kept.num_rows
            table = kept
        if self._task.deletion_fields:
            return self._without_deletions(table)
        return table.drop_columns([DELETED_FIELD]) if DELETED_FIELD in table.column_names else table

    def _note_cursors(
        self, table: pa.Table, column: CursorColumn, pages: Sequence[LedgerPage], ordinals: Sequence[int]
    ) -> None:
        import pyarrow.compute as pc

        values, start = comparable(table[column.name], column), 0
        missing = values.is_null()
        if DELETED_FIELD in table.column_names:
            missing = pc.and_not(missing, pc.fill_null(table[DELETED_FIELD], False))
        self.found.without_cursor += pc.sum(missing).as_py() or 0
        for ordinal, page in zip(ordinals, pages, strict=True):
            greatest = pc.max(values.slice(start, page.record_count)).as_py()
            start += page.record_count
            if greatest is not None and (ordinal not in self.found.seen or greatest > self.found.seen[ordinal]):
                self.found.seen[ordinal] = greatest

    def _without_deletions(self, table: pa.Table) -> pa.Table:
        """Return the rows that are no deletions; write the index, or the companion, of the deletions."""
        import pyarrow.compute as pc

        marked = pc.fill_null(table[DELETED_FIELD], False)
        gone, kept = table.filter(marked), table.filter(pc.invert(marked)).drop_columns([DELETED_FIELD])
        self.found.deleted += gone.num_rows
        task = self._task
        if gone.num_rows and (task.index is not None or task.key_columns):
            location = f"{task.scratch}/{uuid.uuid4().hex}{OWN_FILE}"
            if task.index is not None:
                write_index(task.source.store, location, _in_types_of(gone, task), task.index, deleted=True)
            else:
                _write_keys(task.source.store, location, gone, task.key_columns, task.cursor)
            self.found.deletions.append(location)
        return kept


def _record_at(row: int, pages: Sequence[LedgerPage]) -> str:
    """Return the partition, page and number of the record that a row was made from, as errors name it.

    :param row: its place among the rows of all the pages
    """
    for page in pages:
        if row < page.record_count:
            return page_place(page.partition, page.page, row + 1)
        row -= page.record_count
    raise IndexError(row)


def _check_double_keys(task: PublishTask, table: pa.Table, pages: Sequence[LedgerPage]) -> None:
    """Check that no key is a rounded double, by which records with different keys would become one row.

    :raises SchemaError: a number of a key was rounded, or is at least 2^53, from where doubles skip integers
    """
    import pyarrow.compute as pc

    for path in task.key:
        column, name = column_at(table, path), ".".join(path)
        if not pa.types.is_floating(column.type):
            continue
        meta = table[_META]
        inexact = {
            row: f"was rounded ({change['reason']})"
            for row in np.flatnonzero(meta.is_valid().to_numpy()).tolist()
            for change in orjson.loads(meta[row].as_py())["changes"]
            if change["field"] == name and change["change"] == "ROUNDED"
        }
        large = pc.fill_null(pc.greater_equal(pc.abs(column), EXACT_INTEGERS), False).to_numpy()
        for row in np.flatnonzero(large)[:1].tolist():
            inexact.setdefault(row, f"is {json_text(column[row].as_py())}, and doubles from 2^53 on are rounded")
        if inexact:
            row = min(inexact)
            raise SchemaError(
                f"{_record_at(row, pages)}: {name} {inexact[row]}, so records with different keys might become one"
                f" row; declare the key's column {name} as bigint, decimal or string; nothing was published"
            )


def _in_types_of(rows: pa.Table, task: PublishTask) -> pa.Table:
    """Return the columns that an index needs, in the types of the table's files.

    They are the columns of the key, the cursor, the time, and each row's place in its page.
    """
    assert task.index is not None
    layout = task.target.layout.arrow
    names = (*task.index.columns, _EXTRACTED_AT)
    present = rows.select([name for name in names if name in rows.column_names])
    shaped = conform(present, pa.schema([layout.field(name).with_nullable(True) for name in names]))
    return shaped.append_column(PLACE_COLUMN, rows[PLACE_COLUMN])


def _type_batch(task: PublishTask, pages: Sequence[LedgerPage], fields: FieldNames, max_offenders: int) -> TypedRows:
    """Return the typed rows of some pages, one for each record; note their fields if the task asks for them."""
    if task.note_fields:
        for page in pages:
            fields.note(bytes(page.records))
    if task.deletion_fields:
        pages = [_with_bare_deletions(page, task.deletion_fields) for page in pages]
    schema, cursor = task.schema, task.cursor
    if cursor is not None and cursor.timezone != "UTC" and cursor.name in schema.names:
        place = schema.get_field_index(cursor.name)
        if schema.field(place).type == pa.timestamp("us"):
            # A time with an offset would be converted to UTC, and then compared as if it were a local time.
            schema = schema.set(place, local_time_field(schema.field(place)))
    typed = type_pages(
        pages,
        schema,
        generation=task.generation,
        on_type_error=task.on_type_error,
        max_offenders=max_offenders,
        casts=task.casts,
    )
    expected = sum(page.record_count for page in pages)
    if typed.table.num_rows != expected:
        raise ReconciliationError(
            f"{expected} records are staged, {typed.table.num_rows} were read; nothing is published"
        )
    table = typed.table
    for place, (name, value) in enumerate(task.constants, start=len(task.schema)):
        table = table.add_column(place, pa.field(name, value.type), pa.repeat(value, expected))
    return replace(typed, table=table)


def _with_bare_deletions(page: LedgerPage, names: frozenset[str]) -> LedgerPage:
    """Return the page without the other fields of its deletion records, which become no rows and need fit no column."""
    content = bytes(page.records)
    if DELETED_FIELD.encode() not in content:
        return page
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        if is_marked(line, DELETED_FIELD):
            lines[number] = dumps({name: value for name, value in loads(line).items() if name in names})
    return replace(page, records=b"\n".join(lines))


def _write_files(task: PublishTask, table: pa.Table) -> list[WrittenFile]:
    """Write rows as data files, each with an index or, if there is a primary key, a companion."""
    files, beside = [], None
    if PLACE_COLUMN in table.column_names:
        table, beside = table.drop_columns([PLACE_COLUMN]), table.select([PLACE_COLUMN])
    for file, rows in task.target.write(table, beside=beside):
        keys = None
        if task.index is not None or task.key_columns:
            keys = f"{task.scratch}/{uuid.uuid4().hex}{OWN_FILE}"
        if keys is not None and task.index is not None:
            write_index(task.source.store, keys, _in_types_of(rows, task), task.index, deleted=False)
        elif keys is not None:
            _write_keys(task.source.store, keys, rows, task.key_columns, task.cursor)
        files.append(WrittenFile(file, keys))
    return files


def drop_rows(task: PublishTask, file: WrittenFile, rows: Sequence[int]) -> list[WrittenFile]:
    """Write a data file again without the rows at these places; return the new files."""
    table = load_file(task.target.store, file.file.location, task.target.layout)
    keep = np.ones(table.num_rows, dtype=bool)
    keep[np.asarray(rows, dtype=np.int64)] = False  # the companion's rows are in the file's order
    return _write_files(task, table.filter(pa.array(keep)))


def see_share(share: LedgerFiles) -> SeenColumns:
    """Infer the columns from the records of a share of the ledger's files."""
    return see_columns(share.batches())


_Note = Callable[[Any], None]


class FieldNames:
    """The names of the fields in records, and in nested objects that the schema has as columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names: dict[str, set[str]] = {}
        self._note = self._struct(list(schema), "")

    def note(self, ndjson: bytes) -> None:
        """Note the fields of newline-delimited records; ignore invalid JSON, which reading the values reports."""
        for line in ndjson.split(b"\n"):
            with suppress(orjson.JSONDecodeError):
                self._note(orjson.loads(line))

    def paths(self) -> frozenset[str]:
        """Return the path of every field, in the form of the table's column names."""
        return frozenset(prefix + name for prefix, names in self._names.items() for name in names)

    def _struct(self, columns: Sequence[pa.Field], prefix: str) -> _Note:
        names = self._names.setdefault(prefix, set())
        inner = [
            (column.name, note)
            for column in columns
            if (note := self._value(column.type, f"{prefix}{column.name}.")) is not None
        ]

        def note_fields(record: Any) -> None:
            if isinstance(record, dict):
                names.update(record)
                for name, note in inner:
                    if (value := record.get(name)) is not None:
                        note(value)

        return note_fields

    def _value(self, kind: pa.DataType, prefix: str) -> _Note | None:
        """Return a function that notes the fields of a column's values; None if the values have no fields."""
        if pa.types.is_struct(kind):
            return self._struct(list(kind), prefix)
        if not pa.types.is_list(kind):
            return None
        element = self._value(kind.value_type, f"{prefix}element.")
        if element is None:
            return None

        def note_items(items: Any) -> None:
            if isinstance(items, list):
                for item in items:
                    element(item)

        return note_items
