"""Tasks of a merge: find the table's rows that have keys of the batch, and rewrite their files without these rows.

The batch is the rows that a sync read. Each data file that it wrote has an index: key, cursor value and time of every
row. Of the rows with one key, the newest by cursor value counts, and of equal ones the last in the order of pages. A
deletion without a cursor value is newer than all that was fetched before it.

Keys are compared exactly, not by a hash: a single column in its native type, several columns as bytes that no two
different keys share. The driver sorts the keys once and writes them to files of a bounded size, which tasks search one
after the other, so that a task's memory does not grow with the batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile, conform, load_file, storage_of
from airflow_provider_rfr.lake.files import OWN_FILE, FileStore
from airflow_provider_rfr.lake.schemas import is_system_column
from airflow_provider_rfr.lake.table_reader import TableReader
from airflow_provider_rfr.refresh.cursor_values import comparable
from airflow_provider_rfr.streams.incremental import CursorColumn

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

Paths = tuple[tuple[str, ...], ...]
Bounds = list[tuple[Any, Any]]
"""Ranges in ascending order, as pairs of least and greatest value, that together contain all values of a column."""
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Mask = np.ndarray[Any, np.dtype[np.bool_]]

PLACE_COLUMN: Final = "_rfr_place"
"""Temporary column of rows before they are written: the place of the record in its page."""
_INDEX_COLUMNS: Final = ("cursor", "fetched", "place", "row", "deleted")
_EXTRACTED_AT: Final = "_rfr_extracted_at"
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes of rows in memory after which they are written; also the limit of the keys in one file."""
_ROWS_AT_ONCE: Final = 2_000_000
"""Rows of the table that are searched by one call of ``index_in``, which builds a hash table of keys each time."""
_KEYS_AT_ONCE: Final = 1_000_000
"""Limit of the number of keys in one file."""
_MOST_BOUNDS: Final = 10_000
_HOUR: Final = 3_600_000_000
"""Microseconds of an hour."""


def key_columns_of(rows: pa.Table, paths: Paths) -> pa.Table:
    """Return a table of the key's columns in the order of the paths; a column's name is its path with dots."""
    return pa.table({".".join(path): column_at(rows, path) for path in paths})


def column_at(rows: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """Return the column, or the field of a struct, at a path."""
    column = rows[path[0]]
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def one_zero(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the values with 0.0 for -0.0: Arrow sorts the two as equal, and searches them as different values."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The columns that identify a row, and the cursor column, which orders its versions.

    :ivar paths: paths of the columns that identify a row
    :ivar cursor: the cursor column; None if versions are ordered by the time at which they were fetched
    :ivar primary_key: those of the paths that are the stream's primary key, whose values are never null
    :ivar end: exclusive end of the window that is read, as a comparable cursor value; None without a window. Rows from
        there on are newer than a deletion without a cursor value
    :ivar is_one_partition: whether all records are of one partition, so that the order in which they were fetched tells
        which is newer: a deletion without a cursor value, or a version with one
    """

    paths: Paths
    cursor: CursorColumn | None
    primary_key: Paths
    end: int | None = None
    is_one_partition: bool = False

    @property
    def is_whole_row(self) -> bool:
        """Tell whether the stream has no primary key, so that all columns identify a row, and equal rows all count."""
        return not self.primary_key

    @property
    def is_one_column(self) -> bool:
        """Tell whether the primary key is a single column, whose values are compared in their own type."""
        return len(self.paths) == 1 and self.primary_key == self.paths

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the top-level columns of the table that a search reads."""
        names = [path[0] for path in self.paths]
        return tuple(dict.fromkeys([*names, *([self.cursor.name] if self.cursor is not None else [])]))

    def key_columns(self, rows: pa.Table) -> list[pa.Array]:
        """Return the columns of the key as arrays, in the order of the paths."""
        return [one_zero(storage_of(column_at(rows, path).combine_chunks())) for path in self.paths]

    def keys(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return a sortable value for each row, equal only for equal keys; never null."""
        if self.is_one_column:
            large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
            return columns[0].cast(large.get(columns[0].type, columns[0].type))
        parts: list[pa.Array] = []
        for column in columns:
            # As bytes that are equal for equal values.
            if pa.types.is_nested(column.type):
                values = (None if value is None else json.dumps(value, default=str) for value in column.to_pylist())
                column = pa.array(list(values), pa.large_string())
            elif not pa.types.is_binary(column.type) and not pa.types.is_fixed_size_binary(column.type):
                column = column.cast(pa.large_string())
            content = column.cast(pa.large_binary())
            # Each value follows its length, so that ("ab", "c") and ("a", "bc") differ, and null differs from "".
            length = pc.binary_length(content).fill_null(-1).cast(pa.large_string()).cast(pa.large_binary())
            parts += [length, content.fill_null(b"")]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"\x00", pa.large_binary()))

    def keys_of(self, rows: pa.Table) -> pa.Array:
        """Return :meth:`keys` of the rows of a table.

        They are computed by batches, because columns of all rows can't always be combined: Arrow's arrays of texts and
        lists hold at most 2 GiB, unless their type is a large one.
        """
        parts = [pa.Table.from_batches([batch]) for batch in rows.to_batches()] or [rows]
        return pa.concat_arrays([self.keys(self.key_columns(part)) for part in parts])

    def cursors(self, rows: pa.Table) -> pa.Array:
        """Return the rows' :func:`versions_of`; nulls if there is no cursor column."""
        return pa.nulls(rows.num_rows, pa.int64()) if self.cursor is None else versions_of(rows, self.cursor)


def versions_of(rows: pa.Table, cursor: CursorColumn) -> pa.Array:
    """Return the rows' cursor values in their comparable form, as they order the versions of a row.

    Where clocks are put back, an hour comes twice, and a local time does not tell which of the two it means. So all
    local times of such an hour are equal, and the order in which they were fetched counts.
    """
    values = comparable(rows[cursor.name], cursor)
    if cursor.kind != "datetime" or cursor.timezone == "UTC":
        return values
    local = pc.local_timestamp(values.cast(pa.timestamp("us", cursor.timezone)))
    later = pc.assume_timezone(local, cursor.timezone, ambiguous="latest").cast(pa.int64())
    apart = pc.fill_null(pc.subtract(later, values), 0).to_numpy()
    moments = np.array(pc.fill_null(values, 0).to_numpy())
    twice = np.flatnonzero(apart > 0)
    # Lord Howe Island puts its clocks back by half an hour.
    moments[twice] -= local.cast(pa.int64()).take(pa.array(twice)).to_numpy() % np.minimum(apart[twice], _HOUR)
    return pa.array(moments, mask=values.is_null().to_numpy(zero_copy_only=False))


def write_index(store: FileStore, location: str, rows: pa.Table, rules: KeyRules, deleted: bool) -> None:
    """Write the index of rows, in their order.

    :param deleted: whether the rows are deletions of rows of the table
    """
    count, keys = rows.num_rows, rules.key_columns(rows)
    columns = {f"key_{place}": column for place, column in enumerate(keys)}
    columns |= {
        "cursor": rules.cursors(rows),
        "fetched": rows[_EXTRACTED_AT].cast(pa.int64()).combine_chunks(),
        "place": rows[PLACE_COLUMN].combine_chunks(),
        "row": pa.array(np.arange(count, dtype=np.int32)),
        "deleted": pa.repeat(pa.scalar(deleted), count),
    }
    store.write_parquet(location, pa.table(columns), {})


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A part of the batch: the locations of its index, and of the data file with its rows.

    :ivar file: None for deletions, which have no data file
    """

    index: str
    file: str | None


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file with a share of the winners: keys, cursor values, and whether they delete; sorted by key.

    :ivar start: the place of its first key among the winners
    """

    location: str
    start: int


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """The batch as the driver holds it, without keys.

    :ivar winners: ``part``, ``row`` and ``deleted`` of the newest row of each key, in the order of the keys
    :ivar losers: the same of the other rows, and ``winner``, the place of their key's winner
    :ivar key_files: files with the winners' keys
    :ivar bounds: ranges of the values of each key column, in the order of the rules' paths; None where unknown
    """

    parts: tuple[IndexedFile, ...]
    winners: pa.Table
    losers: pa.Table
    key_files: tuple[KeyFile, ...]
    bounds: tuple[Bounds | None, ...]

    @classmethod
    def load(cls, store: FileStore, scratch: str, parts: Sequence[IndexedFile], rules: KeyRules) -> ChangeBatch:
        """Load the indexes of all parts, and write the keys of the newest rows.

        :param scratch: folder for the files
        """
        names = [f"key_{place}" for place in range(len(rules.paths))]
        tables = [store.read_table(part.index, [*names, *_INDEX_COLUMNS]) for part in parts]
        if not tables or not any(table.num_rows for table in tables):
            nothing = pa.table({"part": _ints(), "row": _ints(), "deleted": pa.array([], pa.bool_())})
            return cls(tuple(parts), nothing, nothing.append_column("winner", pa.array(_ints())), (), ())
        places = np.repeat(np.arange(len(tables), dtype=np.int32), [table.num_rows for table in tables])
        rows = pa.concat_tables(tables)
        del tables
        columns = rows.select(names)
        bounds = _bounds(columns.columns)
        rows = rows.drop_columns(names).append_column("part", pa.array(places))
        # By batches, as in keys_of().
        keys = pa.concat_arrays([rules.keys(part.columns) for part in columns.to_batches()])
        del columns
        keys, rows, wins = _sorted(keys, rows, rules)
        winner = np.cumsum(np.concatenate([[False], wins[:-1]]))
        mask, versions = pa.array(wins), rows.select(["cursor", "deleted"])
        rows = rows.select(["part", "row", "deleted"])
        losers = rows.append_column("winner", pa.array(winner)).filter(pa.array(~wins))
        keys, versions = keys.filter(mask), versions.filter(mask)
        if rules.is_one_column and bounds[0] is not None:
            bounds = (_segments(keys),)
        # Limited in bytes, too, because keys that are whole rows may be long.
        files, share_rows = [], max(1, min(_KEYS_AT_ONCE, _BYTES_AT_ONCE * len(keys) // max(1, keys.nbytes)))
        for start in range(0, len(keys), share_rows):
            location = f"{scratch}/{uuid.uuid4().hex}{OWN_FILE}"
            share = versions.slice(start, share_rows).append_column("key", keys.slice(start, share_rows))
            store.write_parquet(location, share, {})
            files.append(KeyFile(location, start))
        return cls(tuple(parts), rows.filter(mask), losers, tuple(files), bounds)

    @property
    def records(self) -> int:
        """Return the number of the batch's records."""
        return int(self.winners.num_rows + self.losers.num_rows)


def _ints() -> _Numbers:
    return np.zeros(0, dtype=np.int64)


def _sorted(keys: pa.Array, rows: pa.Table, rules: KeyRules) -> tuple[pa.Array, pa.Table, _Mask]:
    """Sort keys and rows by key and version; return them, and for each row whether it is the newest of its key."""
    # A version without a cursor value is older than any with one.
    versions = {"has_cursor": rows["cursor"].is_valid(), "cursor": rows["cursor"]}
    fetched = {name: rows[name] for name in ("fetched", "place", "part", "row")}
    stubs = pc.and_not(rows["deleted"], versions["has_cursor"]).to_numpy()
    if rules.is_one_partition and stubs.any():
        places = _order({"key": keys, **fetched})
        counts = np.empty(len(keys), dtype=bool)
        counts[places] = ~is_before_stub(_ends(keys.take(places)), stubs[places])
        versions = {"counts": pa.array(counts), **versions}
    places = _order({"key": keys, **versions, **fetched})
    del versions, fetched
    keys = keys.take(places)
    return keys, rows.drop_columns(["fetched", "place"]).take(places), _ends(keys)


def _order(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the rows' places in ascending order of the columns."""
    return pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])


def _ends(keys: pa.Array) -> _Mask:
    """Tell for each of the sorted keys whether it is the last of its value."""
    differs = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.append(differs.astype(bool), True)


def is_before_stub(ends: _Mask, stubs: _Mask) -> _Mask:
    """Tell for each version whether a later one of its key is a stub: a deletion without a cursor value.

    The versions are in the order of their keys, and of one key in the order in which they were fetched.

    :param ends: whether the version is the last of its key
    :param stubs: whether it is a stub
    """
    groups: _Numbers = np.cumsum(ends) - ends
    last, places = np.full(int(ends.sum()), -1), np.flatnonzero(stubs)
    np.maximum.at(last, groups[places], places)
    return np.asarray(np.arange(len(ends)) < last[groups])


def _bounds(columns: Sequence[pa.ChunkedArray]) -> tuple[Bounds | None, ...]:
    """Return one range for each column, in the form of a data file's statistics.

    It is None for a column with nulls, or of a type whose statistics are of no use.
    """
    bounds: list[Bounds | None] = []
    for column in columns:
        values = _as_statistics(column)
        if values is None or values.null_count:
            bounds.append(None)
        else:
            span = pc.min_max(values)
            bounds.append([(span["min"].as_py(), span["max"].as_py())])
    return tuple(bounds)


def _segments(keys: pa.Array) -> Bounds:
    """Return narrow ranges that together contain all keys; each key has a range of its own if there are few.

    :param keys: sorted
    """
    values = _as_statistics(keys)
    assert values is not None
    starts = np.linspace(0, len(values), min(len(values), _MOST_BOUNDS) + 1).astype(np.int64)
    lower, upper = values.take(pa.array(starts[:-1])), values.take(pa.array(starts[1:] - 1))
    return list(zip(lower.to_pylist(), upper.to_pylist(), strict=True))


def _as_statistics(values: pa.Array) -> pa.Array | None:
    """Return the values as Iceberg keeps bounds of a column; None for a type whose bounds are of no use."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return values.cast(pa.int64())
    if pa.types.is_date32(kind):
        return values.cast(pa.int32())
    known = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_large_string)
    return values if any(is_known(kind) for is_known in known) else None


@dataclass(frozen=True, slots=True)
class Hits:
    """The rows of one data file of the table that have keys of the batch.

    :ivar rows: the rows' places in the file
    :ivar winners: for each of them, the place of the batch's row in :attr:`ChangeBatch.winners`
    :ivar is_newer: for each of them, whether its cursor value is greater than that of the batch's row
    :ivar total: rows of the file, without those that delete files remove
    """

    rows: _Numbers
    winners: _Numbers
    is_newer: _Mask
    total: int

    @classmethod
    def none(cls, total: int) -> Hits:
        """Return the hits of a file without keys of the batch."""
        nothing: _Numbers = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing.astype(bool), total)


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A share of the table's files to search for keys of the batch."""

    reader: TableReader
    store: FileStore
    keys: tuple[KeyFile, ...]
    rules: KeyRules
    files: tuple[FileScanTask, ...]


def find_hits(task: SearchTask) -> list[Hits]:
    """Search the files of a task; return the hits of each file, in the task's order."""
    # A sync without records has no keys; its files are read only to count their rows, which takes any column.
    names = task.rules.columns or [task.reader.columns().fields[0].name]
    columns, found = task.reader.columns(names), list[Hits]()
    for tables in _read_some(task, columns):
        if not task.keys:
            found.extend(Hits.none(table.num_rows) for table in tables)
            continue
        rows = pa.concat_tables(tables)
        places, newer = _places_of(task, task.rules.keys_of(rows), task.rules.cursors(rows))
        start = 0
        for table in tables:
            part = slice(start, start + table.num_rows)
            hit = np.flatnonzero(places[part] >= 0)
            found.append(Hits(hit, places[part][hit], newer[part][hit], table.num_rows))
            start += table.num_rows
    return found


def _read_some(task: SearchTask, columns: Any) -> Iterator[list[pa.Table]]:
    """Yield the key columns of several files at a time."""
    tables: list[pa.Table] = []
    for file in task.files:
        tables.append(task.reader.read(file, columns))
        if sum(table.num_rows for table in tables) >= _ROWS_AT_ONCE:
            yield tables
            tables = []
    if tables:
        yield tables


def _places_of(task: SearchTask, keys: pa.Array, cursors: pa.Array) -> tuple[_Numbers, _Mask]:
    """Return for each row of the table the place of its key among the winners, or -1, and whether the row is newer.

    A row is newer if its cursor value is greater than that of the winner. As in a batch, a version without a cursor
    value is older than any with one. But a deletion without one is newer than all rows that were fetched before it,
    except rows beyond the window that is read.
    """
    end = task.rules.end
    places, newer = np.full(len(keys), -1, dtype=np.int64), np.zeros(len(keys), dtype=bool)
    for file in task.keys:
        batch = task.store.read_table(file.location, ("key", "cursor", "deleted"))
        values = batch["key"].combine_chunks().cast(keys.type)
        some = np.arange(len(keys))
        if len(task.keys) > 1:
            inside = pc.and_(pc.greater_equal(keys, values[0]), pc.less_equal(keys, values[-1]))
            some = np.flatnonzero(inside.fill_null(False).to_numpy(zero_copy_only=False))
        found = pc.index_in(keys.take(pa.array(some)) if len(some) < len(keys) else keys, value_set=values)
        hit = some[found.is_valid().to_numpy(zero_copy_only=False)]
        at = found.drop_null().to_numpy().astype(np.int64)
        places[hit] = file.start + at
        winners, present = batch.select(["cursor", "deleted"]).take(pa.array(at)), cursors.take(pa.array(hit))
        versions, deletes = (winners[name].combine_chunks() for name in ("cursor", "deleted"))
        beyond = pa.scalar(False) if end is None else pc.greater_equal(present, pa.scalar(end).cast(present.type))
        without_cursor = pc.if_else(deletes, beyond, present.is_valid())
        is_newer = pc.if_else(versions.is_null(), without_cursor, pc.greater(present.cast(versions.type), versions))
        newer[hit] = is_newer.fill_null(False).to_numpy(zero_copy_only=False)
    return places, newer


@dataclass(frozen=True, slots=True)
class Replaced:
    """The rows of one data file of the table that the batch may replace or remove.

    :ivar rows: the rows' places in the file
    :ivar compares: for each of them, whether it stays if it equals the batch's row
    :ivar parts: for each of them, the number of the batch's part that has the new row
    :ivar places: for each of them, the place of the new row in that part
    """

    file: FileScanTask
    rows: _Numbers
    compares: _Mask
    parts: _Numbers
    places: _Numbers


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Data files of the table to rewrite as fewer files, without the rows that the batch replaces.

    :ivar parts: parts of the batch
    :ivar keys: paths of the key's columns
    :ivar sent: paths of the columns, and of fields inside them, that the batch has, with or without a value
    """

    reader: TableReader
    parts: tuple[IndexedFile, ...]
    target: FileTarget
    replaced: tuple[Replaced, ...]
    keys: Paths
    sent: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome of a :class:`RewriteTask`.

    :ivar kept: by file of the task, whether it stays as it is, because all its rows do
    :ivar stays: by file of the task, for each of its replaced rows, whether it stays
    :ivar written: files in place of those that are not kept
    :ivar removed: rows that the new files lack
    :ivar deleted: keys of the removed rows that the batch deletes
    """

    kept: tuple[bool, ...]
    stays: tuple[_Mask, ...]
    written: tuple[StoredFile, ...]
    removed: int
    deleted: tuple[pa.Table, ...]


def rewrite(task: RewriteTask) -> Rewritten:
    """Rewrite the files of a task. A file that turns out to keep all its rows stays, unless it is to be compacted."""
    writer, kept, stays = _Writer(task.target, task.keys), [], []
    deletes = np.array([part.file is None for part in task.parts], dtype=bool)
    for replaced in task.replaced:
        # The whole file is kept in memory: PyIceberg reads all of it before it yields the first rows, anyway.
        tables = list(task.reader.tables(replaced.file, task.reader.columns()))
        mask = _stays(task, replaced, tables)
        stays.append(mask)
        gone = replaced.rows[~mask]
        kept.append(len(replaced.rows) > 0 and not len(gone))
        if not kept[-1]:
            writer.copy(tables, gone, deletes[replaced.parts[~mask]])
    written = tuple(writer.finish())
    return Rewritten(tuple(kept), tuple(stays), written, writer.removed, tuple(writer.deleted))


class _Writer:
    """A writer of the rows that stay, which buffers a bounded part of them in memory.

    :ivar removed: number of rows that do not stay
    :ivar deleted: keys of the rows that do not stay and that no row replaces
    """

    def __init__(self, target: FileTarget, keys: Paths) -> None:
        self._target = target
        self._keys = keys
        self._held: list[pa.Table] = []
        self._written: list[StoredFile] = []
        self.removed = 0
        self.deleted: list[pa.Table] = []

    def copy(self, tables: Iterable[pa.Table], gone: _Numbers, is_deleted: _Mask) -> None:
        """Write the rows of a file without those at the places ``gone``, which are in ascending order.

        :param is_deleted: for each of them, whether no row replaces it
        """
        start = 0
        for table in tables:
            part = slice(np.searchsorted(gone, start), np.searchsorted(gone, start + table.num_rows))
            inside, deleted = gone[part], gone[part][is_deleted[part]]
            mask = np.ones(table.num_rows, dtype=bool)
            mask[inside - start] = False
            if len(deleted):
                self.deleted.append(key_columns_of(table.take(pa.array(deleted - start)), self._keys))
            start += table.num_rows
            self._held.append(table.filter(pa.array(mask)))
            self.removed += len(inside)
            if sum(held.nbytes for held in self._held) >= _BYTES_AT_ONCE:
                self._flush()

    def finish(self) -> list[StoredFile]:
        """Write the rows that are left, and return all files."""
        self._flush()
        return self._written

    def _flush(self) -> None:
        if any(table.num_rows for table in self._held):
            self._written += [file for file, _ in self._target.write(pa.concat_tables(self._held))]
        self._held = []


def _stays(task: RewriteTask, replaced: Replaced, tables: Iterable[pa.Table]) -> _Mask:
    """Tell for each replaced row whether it may stay, because it equals the batch's row in all columns of the batch.

    :param tables: the rows of the file
    """
    stays = np.zeros(len(replaced.rows), dtype=bool)
    asked = np.flatnonzero(replaced.compares)
    if not len(asked):
        return stays
    rows, parts, places = (numbers[asked] for numbers in (replaced.rows, replaced.parts, replaced.places))
    # The batch's rows are read part by part, and then brought into the order of the table's rows.
    found, order = [], []
    for number in np.unique(parts):
        location = task.parts[number].file
        assert location is not None, "a deletion has no row"
        mine = np.flatnonzero(parts == number)
        found.append(load_file(task.target.store, location, task.target.layout).take(pa.array(places[mine])))
        order.append(mine)
    back = np.empty(len(parts), dtype=np.int64)
    back[np.concatenate(order)] = np.arange(len(parts))
    new, start = pa.concat_tables(found).take(pa.array(back)), 0
    del found
    for table in tables:
        inside = np.flatnonzero((rows >= start) & (rows < start + table.num_rows))
        if len(inside):
            old = table.take(pa.array(rows[inside] - start))
            stays[asked[inside]] = equal_rows(old, new.take(pa.array(inside)), task.sent)
        start += table.num_rows
    return stays


def equal_rows(old: pa.Table, new: pa.Table, sent: Collection[str]) -> _Mask:
    """Tell for each pair of rows whether they are equal in the columns that were sent; null equals null.

    Other columns may be filled by another writer, and system columns differ in each load. Neither says that the source
    changed.

    :param sent: paths of columns, and of fields inside them
    """
    equal = np.ones(old.num_rows, dtype=bool)
    names = [name for name in old.column_names if name in sent and not is_system_column(name)]
    present = new.select([name for name in names if name in new.column_names])
    shaped = conform(present, pa.schema([old.schema.field(name) for name in names]))
    for name in names:
        before, after = old[name].combine_chunks(), shaped[name].combine_chunks()
        kind = before.type
        if pa.types.is_nested(kind):
            pairs: Iterable[tuple[Any, Any]] = zip(before.to_pylist(), after.to_pylist(), strict=True)
            equal &= np.fromiter((_is_equal(*pair, kind, name, sent) for pair in pairs), bool, old.num_rows)
            continue
        before, after = storage_of(before), storage_of(after)
        same = pc.equal(before, after).fill_null(False)
        if pa.types.is_floating(before.type):
            same = pc.or_(same, pc.and_(pc.is_nan(before), pc.is_nan(after)).fill_null(False))
        both_null = pc.and_(before.is_null(), after.is_null())
        equal &= np.asarray(pc.or_(same, both_null).to_numpy(zero_copy_only=False), dtype=bool)
    return equal


def _is_equal(old: Any, new: Any, kind: pa.DataType, path: str, sent: Collection[str]) -> bool:
    """Compare two nested values; of structs, only fields that were sent."""
    if old is None or new is None or not pa.types.is_nested(kind) or pa.types.is_map(kind):
        return bool(old == new)
    if pa.types.is_struct(kind):
        fields = ((field, f"{path}.{field.name}") for field in kind)
        return all(
            _is_equal(old[field.name], new[field.name], field.type, place, sent)
            for field, place in fields
            if place in sent
        )
    inside = f"{path}.element"
    return len(old) == len(new) and all(
        _is_equal(*pair, kind.value_type, inside, sent) for pair in zip(old, new, strict=True)
    )
