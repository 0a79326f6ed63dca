"""Tasks of a merge: find the table's rows that have keys of the batch, and write their files again without them.

The batch is the rows that a sync read. Each data file that it wrote has an index: key, cursor value and time of every
row. Of the rows with one key, the newest by cursor value counts, and of equal ones the one that was fetched last.

Keys are searched as they are, not by a hash: by the native type of a single column, and of several columns by a text
that no two different keys share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile, conform, load_file
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS
from airflow_provider_rfr.lake.table_reader import TableReader
from airflow_provider_rfr.refresh.cursor_values import comparable
from airflow_provider_rfr.streams.incremental import CursorColumn

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask

Paths = tuple[tuple[str, ...], ...]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Mask = np.ndarray[Any, np.dtype[np.bool_]]

_INDEX_COLUMNS: Final = ("key", "cursor", "fetched", "row", "deleted")
_NOTHING: Final = pa.schema(
    [(name, pa.int64()) for name in ("key", "cursor", "fetched", "row")]
    + [("deleted", pa.bool_()), ("part", pa.int64())]
)
_EXTRACTED_AT: Final = "_rfr_extracted_at"
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""Of rows in memory before they are written."""
_ROWS_AT_ONCE: Final = 4_000_000
"""Of the table, whose keys are searched by one call: each call builds its table of the batch's keys again."""


def row_keys(rows: pa.Table, paths: Paths) -> pa.Array:
    """Return a value for each row that is equal for equal keys alone; null where a part of the key is null."""
    columns = [column_at(rows, path).combine_chunks() for path in paths]
    if len(columns) == 1:
        return columns[0]
    parts: list[pa.Array] = []
    for column in columns:
        text = column.cast(pa.large_string())
        # With its length before it, so that ("ab", "c") and ("a", "bc") differ.
        parts += [pc.binary_length(text).cast(pa.large_string()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar("\x00", pa.large_string()))


def column_at(rows: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    """Return the column, or the field of a struct, at a path."""
    column = rows[path[0]]
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The columns that identify a row, and the cursor column, which orders its versions.

    :ivar paths: of the key's columns
    :ivar cursor: None where versions are ordered by the time at which they were fetched
    """

    paths: Paths
    cursor: CursorColumn | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the top-level columns of the table that are needed."""
        names = [path[0] for path in self.paths]
        return tuple(dict.fromkeys([*names, *([self.cursor.name] if self.cursor is not None else [])]))

    def cursors(self, rows: pa.Table) -> pa.Array:
        """Return the rows' cursor values, as they compare."""
        if self.cursor is None:
            return pa.nulls(rows.num_rows, pa.int64())
        return comparable(rows[self.cursor.name], self.cursor)


def write_index(store: FileStore, location: str, rows: pa.Table, rules: KeyRules, deleted: bool) -> None:
    """Write the index of rows, in their order.

    :param deleted: the rows remove those of the table
    """
    count = rows.num_rows
    columns = [
        row_keys(rows, rules.paths),
        rules.cursors(rows),
        rows[_EXTRACTED_AT].cast(pa.int64()).combine_chunks(),
        pa.array(np.arange(count, dtype=np.int64)),
        pa.repeat(pa.scalar(deleted), count),
    ]
    store.write_parquet(location, pa.Table.from_arrays(columns, names=list(_INDEX_COLUMNS)), {})


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A part of the batch: its index, and the data file with its rows.

    :ivar file: None for rows that only remove rows of the table
    """

    index: str
    file: str | None


@dataclass(frozen=True)
class ChangeBatch:
    """The batch; picklable, and loaded where it is used."""

    store: FileStore
    parts: tuple[IndexedFile, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("store", "parts")}

    @cached_property
    def rows(self) -> pa.Table:
        """Return all rows by key, cursor value and time, so that the last of each key counts; with ``part``."""
        tables = []
        for number, part in enumerate(self.parts):
            table = self.store.read_table(part.index, _INDEX_COLUMNS)
            tables.append(table.append_column("part", pa.array(np.full(table.num_rows, number, np.int64))))
        table = pa.concat_tables(tables) if tables else _NOTHING.empty_table()
        # A version without a cursor value is older than any with one.
        table = table.append_column("has_cursor", table["cursor"].is_valid())
        names = ("key", "has_cursor", "cursor", "fetched", "part", "row")
        return table.sort_by([(name, "ascending") for name in names])

    @cached_property
    def wins(self) -> _Mask:
        """Return for each of the rows whether it is the newest with its key."""
        keys = self.rows["key"].combine_chunks()
        if not len(keys):
            return np.zeros(0, dtype=bool)
        differs = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
        return np.append(differs.astype(bool), True)

    @cached_property
    def winners(self) -> pa.Table:
        """Return the newest row of each key, by key."""
        return self.rows.filter(pa.array(self.wins))

    @cached_property
    def losers(self) -> pa.Table:
        """Return the older versions."""
        return self.rows.filter(pa.array(~self.wins))


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


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A share of the table's files to search for keys of the batch."""

    reader: TableReader
    batch: ChangeBatch
    rules: KeyRules
    files: tuple[FileScanTask, ...]


def find_hits(task: SearchTask) -> list[Hits]:
    """Search the files of a task; return the hits of each file, in the task's order."""
    winners = task.batch.winners
    keys, cursors = winners["key"].combine_chunks(), winners["cursor"].combine_chunks()
    columns, found = task.reader.columns(task.rules.columns), []
    for tables in _read_some(task, columns):
        rows = pa.concat_tables(tables)
        places = pc.index_in(row_keys(rows, task.rules.paths), value_set=keys)
        newer = _newer(task.rules.cursors(rows), cursors, places)
        matches = places.is_valid().to_numpy(zero_copy_only=False)
        numbers = places.fill_null(-1).to_numpy().astype(np.int64)
        start = 0
        for table in tables:
            part = slice(start, start + table.num_rows)
            hit = np.flatnonzero(matches[part])
            found.append(Hits(hit, numbers[part][hit], newer[part][hit], table.num_rows))
            start += table.num_rows
    return found


def _read_some(task: SearchTask, columns: Any) -> Iterator[list[pa.Table]]:
    """Yield the key columns of files, several files at once."""
    tables: list[pa.Table] = []
    for file in task.files:
        tables.append(task.reader.read(file, columns))
        if sum(table.num_rows for table in tables) >= _ROWS_AT_ONCE:
            yield tables
            tables = []
    if tables:
        yield tables


def _newer(present: pa.Array, cursors: pa.Array, places: pa.Array) -> _Mask:
    """Tell for each row of the table whether its cursor value is greater than that of the batch's row."""
    newer = pc.greater(present.cast(cursors.type), cursors.take(places))
    return np.asarray(newer.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


@dataclass(frozen=True, slots=True)
class Replaced:
    """The rows of one data file of the table that the batch may replace or remove.

    :ivar rows: the rows' places in the file
    :ivar compares: for each of them, whether it stays if it equals the batch's row
    :ivar parts: for each of them, the part of the batch that has the new row, and ``places`` its place in there
    """

    file: FileScanTask
    rows: _Numbers
    compares: _Mask
    parts: _Numbers
    places: _Numbers


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Data files of the table that are written again without the rows that the batch replaces, as fewer files.

    :ivar parts: of the batch
    """

    reader: TableReader
    parts: tuple[IndexedFile, ...]
    target: FileTarget
    replaced: tuple[Replaced, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome of a :class:`RewriteTask`.

    :ivar kept: by file of the task, whether it stays as it is, because all its rows do
    :ivar stays: by file of the task, for each of its replaced rows, whether it stays
    :ivar written: files in place of those that are not kept
    :ivar removed: rows that the new files lack
    """

    kept: tuple[bool, ...]
    stays: tuple[_Mask, ...]
    written: tuple[StoredFile, ...]
    removed: int


def rewrite(task: RewriteTask) -> Rewritten:
    """Write the files of a task again. A file that keeps all its rows is written only where it was to be folded in."""
    writer, kept, stays = _Writer(task.target), [], []
    for replaced in task.replaced:
        mask = _stays(task, replaced)
        stays.append(mask)
        gone = replaced.rows[~mask]
        kept.append(len(replaced.rows) > 0 and not len(gone))
        if not kept[-1]:
            writer.copy(task.reader.tables(replaced.file, task.reader.columns()), gone)
    return Rewritten(tuple(kept), tuple(stays), tuple(writer.finish()), writer.removed)


class _Writer:
    """A writer of rows that stay, with a bounded part of them in memory."""

    def __init__(self, target: FileTarget) -> None:
        self._target = target
        self._held: list[pa.Table] = []
        self._written: list[StoredFile] = []
        self.removed = 0

    def copy(self, tables: Iterable[pa.Table], gone: _Numbers) -> None:
        """Write the rows of a file without those at the places ``gone``, which are in ascending order."""
        start = 0
        for table in tables:
            inside = gone[np.searchsorted(gone, start) : np.searchsorted(gone, start + table.num_rows)]
            mask = np.ones(table.num_rows, dtype=bool)
            mask[inside - start] = False
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


def _stays(task: RewriteTask, replaced: Replaced) -> _Mask:
    """Tell for each replaced row whether it may stay, since it equals the batch's row in all columns but our own."""
    stays = np.zeros(len(replaced.rows), dtype=bool)
    asked = np.flatnonzero(replaced.compares)
    if not len(asked):
        return stays
    rows, new = replaced.rows[asked], _rows_at(task, replaced.parts[asked], replaced.places[asked])
    start = 0
    for table in task.reader.tables(replaced.file, task.reader.columns()):
        inside = np.flatnonzero((rows >= start) & (rows < start + table.num_rows))
        if len(inside):
            old = table.take(pa.array(rows[inside] - start))
            stays[asked[inside]] = equal_rows(old, new.take(pa.array(inside)))
        start += table.num_rows
    return stays


def _rows_at(task: RewriteTask, parts: _Numbers, places: _Numbers) -> pa.Table:
    """Return rows of the batch by their parts and places, in that order."""
    tables, order = [], []
    for number in np.unique(parts):
        location = task.parts[number].file
        assert location is not None, "a deletion has no row"
        mine = np.flatnonzero(parts == number)
        rows = load_file(task.target.store, location, task.target.layout)
        tables.append(rows.take(pa.array(places[mine])))
        order.append(mine)
    back = np.empty(len(parts), dtype=np.int64)
    back[np.concatenate(order)] = np.arange(len(parts))
    return pa.concat_tables(tables).take(pa.array(back))


def equal_rows(old: pa.Table, new: pa.Table) -> _Mask:
    """Tell for each pair of rows whether they are equal in all columns but the system columns; null equals null."""
    equal = np.ones(old.num_rows, dtype=bool)
    shaped = conform(new, old.schema)
    for name in old.column_names:
        if name not in SYSTEM_COLUMNS.names:
            equal &= _equal_values(old[name].combine_chunks(), shaped[name].combine_chunks())
    return equal


def _equal_values(old: pa.Array, new: pa.Array) -> _Mask:
    if pa.types.is_nested(old.type):
        pairs: Iterable[tuple[Any, Any]] = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.fromiter((first == second for first, second in pairs), bool, len(old))
    same = pc.equal(old, new).fill_null(False)
    if pa.types.is_floating(old.type):
        same = pc.or_(same, pc.and_(pc.is_nan(old), pc.is_nan(new)).fill_null(False))
    both_null = pc.and_(old.is_null(), new.is_null())
    return np.asarray(pc.or_(same, both_null).to_numpy(zero_copy_only=False), dtype=bool)
