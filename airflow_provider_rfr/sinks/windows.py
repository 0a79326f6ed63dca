"""The next data that a sink sends: the snapshots, the columns and their names, and the batches.

Snapshots that add rows are sent, and compactions are skipped. The merge of an incremental sync records new versions and
deletions of rows: these are sent, and not the rows that it only moved. Any other snapshot that replaces rows (a full
refresh, an overwrite, another engine's merge, a deletion of everything) may contain rows that were sent before: then
``emit: diff`` sends the differences by the keys, and any other sink does as ``on_replace`` says. ``diff`` also compares
after migrations, deletions, and merges by other keys than the sink's; any other sink skips migrations and deletions.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

import orjson
import pyarrow as pa
from pydantic import TypeAdapter

from airflow_provider_rfr.exceptions import ConfigurationError, SinkError
from airflow_provider_rfr.lake.rows import DeletedRows, Increment, SnapshotKind, SourcePart, SourceTable
from airflow_provider_rfr.sinks import SinkSpec
from airflow_provider_rfr.store.deploys import SinkRow

if TYPE_CHECKING:
    from typing_extensions import Self


Columns = tuple[tuple[str, int], ...]
"""Name and field id of each column: in a table's schema, or in what is sent."""


class _Stored:
    """A value that the control store's row of a sink holds as JSON."""

    __slots__ = ()

    @classmethod
    def loads(cls, text: str) -> Self:
        return TypeAdapter(cls).validate_json(text)

    def dumps(self) -> str:
        return orjson.dumps(self).decode()


@dataclass(frozen=True, slots=True)
class SentColumn:
    """A column that a sink sends.

    :ivar name: its declared name, or the one that it had at registration
    :ivar called: its last known name in the source
    :ivar ids: its Iceberg field ids, the newest first; empty before the first run. A rewrite to another type gives the
        column a new id, and older rows have the older one
    """

    name: str
    called: str
    ids: tuple[int, ...] = ()

    def find(self, columns: Columns) -> tuple[str, int] | None:
        """Return name and id of the column in a schema, found by its ids or its names; None if it is absent."""
        columns_by_key = {key: column for column in columns for key in (column[1], column[0].casefold())}
        keys = (*self.ids, self.called.casefold(), self.name.casefold())
        return next((columns_by_key[key] for key in keys if key in columns_by_key), None)


@dataclass(frozen=True, slots=True)
class SentColumns(_Stored):
    """All sent columns, in their order; none before the first run of a sink that sends all.

    :ivar named: whether the payload has the declared names, and not those of the source
    :ivar table: UUID of the table that the ids belong to, None before the first run; in another table only names count
    """

    columns: tuple[SentColumn, ...] = ()
    named: bool = False
    table: str | None = None

    @classmethod
    def of(
        cls,
        spec: SinkSpec,
        present: Sequence[str],
        before: Self | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the sent columns of a declaration.

        :param present: names of the sent columns in the source; empty if unknown
        :param before: the former columns for the same source, whose ids are kept
        :param renamed: new names of columns that were renamed since, by their old names
        """
        if spec.follow_schema:
            return cls()
        sent, table = (before.columns, before.table) if before is not None else ((), None)
        if sent and not spec.columns:
            called = present if len(present) == len(sent) else [column.called for column in sent]
            return cls(
                tuple(replace(column, called=now) for column, now in zip(sent, called, strict=True)), table=table
            )
        names = spec.columns or tuple(present)
        called = present or names
        was = {new.casefold(): old for old, new in (renamed or {}).items()}
        keys = [name.casefold() for name in called]
        # If an old name is now the name of another sent column, a repetition of this would confuse the two columns.
        ids_by_name = {} if set(was.values()) & set(keys) else {column.called.casefold(): column.ids for column in sent}
        ids = [ids_by_name.get(was.get(key, key), ids_by_name.get(key, ())) for key in keys]
        return cls(tuple(map(SentColumn, names, called, ids)), bool(spec.columns), table=table)

    def seen(self, now: Columns, table: str) -> SentColumns:
        """Return the columns with this table's ids and spelling; if there are none yet, all columns of the table.

        :param now: columns of the table's schema
        :param table: UUID of the table
        """
        columns = [] if self.columns else [SentColumn(name, name, (number,)) for name, number in now]
        for column in self.columns:
            here = column if self.table in (None, table) else replace(column, ids=())
            called, *ids = here.find(now) or (column.called,)
            columns.append(SentColumn(column.name, called, tuple(dict.fromkeys((*ids, *here.ids)))))
        return replace(self, columns=tuple(columns), table=table)

    def resolve(self, then: Columns, now: Columns, sink: str) -> Columns:
        """Return payload name and field id of each column, for rows that were written with the schema ``then``.

        The table's present schema is ``now``. A column that is only in ``now`` was added later, and has no value in
        these rows.

        :raises SinkError: the source has one of the columns no more
        """
        sent = []
        for column in self.columns:
            field = column.find(then) or column.find(now)
            if field is None:
                remedy = "declare sink.columns without it, or follow_schema: true"
                raise SinkError(sink, f"its source has no column {column.called} any more", remedy)
            sent.append((self._payload_name(column), field[1]))
        return tuple(sent)

    def payload_names(self) -> Mapping[str, str]:
        """Return the payload name of each sent column, by each of its names, case-folded."""
        names = {
            name.casefold(): self._payload_name(column)
            for column in self.columns
            for name in (column.name, column.called)
        }
        return names | {name.casefold(): name for name in map(self._payload_name, self.columns)}

    def _payload_name(self, column: SentColumn) -> str:
        return column.name if self.named else column.called


@dataclass(frozen=True, slots=True)
class SinkWindow(_Stored):
    """The snapshots that a sink is sending, and all that their division into batches depends on.

    It is stored before the first batch is sent, so that a run after a crash makes the same batches with the same ids.

    :ivar before: the snapshot after which the window begins; None to send all rows of ``after``
    :ivar after: the last snapshot of the window
    :ivar earlier: the columns of the rows at ``before``, to send the differences by the keys; None to send added rows
    :ivar keys: payload names of the keys; empty if rows are sent without their kind of change
    :ivar size: rows of a batch
    :ivar part: number of the next batch, from 0
    """

    before: int | None
    after: int
    columns: Columns
    earlier: Columns | None
    keys: tuple[str, ...]
    size: int
    part: int = 0

    @property
    def needs(self) -> int:
        """Return the oldest snapshot that the window reads."""
        return self.after if self.before is None else self.before


def batch_id(sink: UUID, physical: str, window: SinkWindow, ordinal: int, again: int) -> str:
    """Return the id of the window's next batch.

    A retry of the batch has the same id. Ids of later batches sort after it.

    :param physical: UUID of the source's table
    :param ordinal: number of the sink's batches that were acknowledged before
    :param again: number of decisions to send all rows again
    """
    identity = f"{physical}/{window.before}/{window.after}/{window.part}/{again}"
    return f"{ordinal:010d}-{uuid5(sink, identity).hex}"


_SIZES: Final[Mapping[str, int]] = {"files": 100_000, "http": 500}
_SENDS: Final = (SnapshotKind.ADDS_ROWS, SnapshotKind.CHANGES_ROWS)


def next_values(row: SinkRow, table: SourceTable, spec: SinkSpec) -> dict[str, Any] | None:
    """Return the values to store for a sink without a window: a window, a cursor or a hold; None if all is sent."""
    if row.since is not None:
        # The cursor passes the rows that must not be sent; a cursor that is further stays.
        is_made_anew = row.deploy_id is not None and row.physical not in (None, table.uuid)
        cursor = None if is_made_anew else table.last_of(row.deploy_id) or table.last_before(row.since)
        at = row.cursor if row.window is None else SinkWindow.loads(row.window).needs
        is_behind = row.physical == table.uuid and at is not None and table.has_passed(cursor, at)
        moved = {} if is_behind else cursor_at(cursor, table)
        return {**moved, "since": None, "deploy_id": None, "physical": table.uuid}
    size, is_diff = int(spec.settings.get("batch_size", _SIZES[spec.to])), spec.settings.get("emit") == "diff"
    window = partial(_window, row, table, spec, size)
    if row.cursor is None:
        return None if table.head is None else window(None, table.head)
    line = table.increments(row.cursor, None, row.sequence)
    if not line:
        return None
    skipped = {SnapshotKind.COMPACTS}
    if is_diff:
        line = _with_other_keys_as_replaced(line, row, table, spec)
    else:
        skipped |= {SnapshotKind.DELETES_ROWS, SnapshotKind.MIGRATES}
    if passed := list(takewhile(lambda increment: increment.kind in skipped, line)):
        return cursor_at(passed[-1].snapshot_id, table)
    first = line[0]
    if first.kind in _SENDS:
        return window(row.cursor, _last_added(line, skipped, size))
    if is_diff:
        return window(row.cursor, line[-1].snapshot_id, compare=True)
    if spec.on_replace == "resume_from_new":
        return cursor_at(first.snapshot_id, table)
    if spec.on_replace == "resend":
        last = [increment for increment in line if increment.kind is SnapshotKind.REPLACES_ROWS][-1]
        return {**window(None, last.snapshot_id), "round": row.round + 1}
    reason = f"snapshot {first.snapshot_id} replaced the rows of its source, and on_replace is {spec.on_replace}"
    return hold_values(reason, first.snapshot_id)


def cursor_at(snapshot_id: int | None, table: SourceTable) -> dict[str, Any]:
    """Return the values that end a window: all rows up to this snapshot were sent, or are not to be sent."""
    return {"window": None, "cursor": snapshot_id, "sequence": table.sequence(snapshot_id)}


def hold_values(reason: str, behind: int | None) -> dict[str, Any]:
    """Return the values that hold a sink.

    :param behind: the snapshot after which the sink continues if the decision is ``resume_from_new``
    """
    return {"held_reason": reason, "behind": behind, "deploy_id": None, "window": None}


def _last_added(line: Sequence[Increment], skipped: Collection[SnapshotKind], size: int) -> int:
    """Return the last snapshot of a window that begins with the first increment, which adds rows.

    The window ends when it has ``size`` rows, and before a change of the schema.
    """
    last, rows = line[0], 0
    for increment in line:
        if increment.kind in _SENDS:
            if rows >= size or increment.schema_id != last.schema_id:
                break
            last, rows = increment, rows + increment.rows
        elif increment.kind is SnapshotKind.MIGRATES or increment.kind not in skipped:
            # A window ends before a migration, because a decision about the rows before it does not hold for those
            # after it.
            break
    return last.snapshot_id


def _window(
    row: SinkRow, table: SourceTable, spec: SinkSpec, size: int, before: int | None, after: int, compare: bool = False
) -> dict[str, Any]:
    now, sent = table.columns(), _sent_columns(row, table, spec, after)
    columns = sent.resolve(table.columns(after), now, row.name)
    keys = _sent_keys(sent, table, spec) if spec.settings.get("emit") == "diff" else ()
    earlier = sent.resolve(table.columns(before), now, row.name) if compare else None
    window = SinkWindow(before, after, columns, earlier, keys, size)
    return {"window": window.dumps(), "physical": table.uuid, "pins": row.pins if spec.follow_schema else sent.dumps()}


def _sent_columns(row: SinkRow, table: SourceTable, spec: SinkSpec, snapshot_id: int | None) -> SentColumns:
    """Return the sent columns with the table's ids and spelling; if all are sent, the columns of the snapshot."""
    if spec.follow_schema:
        return SentColumns().seen(table.columns(snapshot_id), table.uuid)
    return SentColumns.loads(row.pins).seen(table.columns(), table.uuid)


def _sent_keys(sent: SentColumns, table: SourceTable, spec: SinkSpec) -> tuple[str, ...]:
    """Return the payload names of the keys.

    :raises ConfigurationError: there are no keys, or one of them is not sent
    """
    keys, names = tuple(spec.settings.get("keys", ())) or table.keys, sent.payload_names()
    remedy = "declare keys of the source, or settings.keys of the sink, and send them, too"
    if not keys:
        raise ConfigurationError("sink.settings.emit", f"{table.name} has no keys to determine changes by", remedy)
    if missing := [key for key in keys if key.casefold() not in names]:
        problem = f"the key {', '.join(missing)} is not among the sent columns"
        raise ConfigurationError("sink.columns", problem, remedy)
    return tuple(names[key.casefold()] for key in keys)


def _with_other_keys_as_replaced(
    line: Sequence[Increment], row: SinkRow, table: SourceTable, spec: SinkSpec
) -> list[Increment]:
    """Return the increments, with merges by other keys as replacements, because they do not record the sink's keys."""
    if not any(increment.kind is SnapshotKind.CHANGES_ROWS for increment in line):
        return list(line)
    now, sent = table.columns(), _sent_columns(row, table, spec, None)
    ids = dict(sent.resolve(now, now, row.name))
    keys = frozenset(ids[name] for name in _sent_keys(sent, table, spec))
    return [
        replace(increment, kind=SnapshotKind.REPLACES_ROWS)
        if increment.kind is SnapshotKind.CHANGES_ROWS and increment.keys != keys
        else increment
        for increment in line
    ]


_Batches = Iterable[pa.RecordBatch]
_OP: Final = "_op"
"""Name of the field with the kind of change, ``upsert`` or ``delete``, in exports of changes."""
_UPSERT: Final = "upsert"
_DELETE: Final = "delete"
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of rows that is sent at once, as part ``window.part``.

    If ``again`` is above 0, the batch says that its rows were sent before.
    """

    id: str
    sink: str
    window: SinkWindow
    rows: pa.Table
    last: bool
    again: int


def batches_of(window: SinkWindow, table: SourceTable, row: SinkRow) -> Iterator[Batch]:
    """Yield the window's batches from ``window.part`` on; none if there are no rows."""
    if window.keys and _OP in dict(window.columns):
        problem = f"its source has a column {_OP}, the name of the column that marks changes"
        raise SinkError(row.name, problem, "name other columns")
    # The first rows of the window are skipped, because they were sent.
    wanted, sent = table.projection(window.columns, window.after), window.part * window.size
    rows: _Batches
    if window.before is not None and window.earlier is not None:
        earlier = table.projection(window.earlier, window.before)
        before = table.read(table.contents(window.before), earlier)
        after = table.read(table.contents(window.after), wanted)
        rows = _changes(row.name, window.keys, table.arrow(wanted), before, after)
    else:
        # The cursor stays at ``before`` until the window's end, so ``row.sequence`` is that of ``before``.
        parts: Sequence[SourcePart]
        if window.before is None:
            parts = table.contents(window.after)
        else:
            parts = table.added(window.before, window.after, row.sequence)
        if not window.keys:
            parts = [part for part in parts if not isinstance(part, DeletedRows)]
        parts, sent = table.skip(parts, sent)
        rows = (
            _with_op(batch, _DELETE if isinstance(part, DeletedRows) else _UPSERT) if window.keys else batch
            for part in parts
            for batch in table.read([part], wanted)
        )
    for number, (part, last) in enumerate(_cut(rows, sent, window.size)):
        at = replace(window, part=window.part + number)
        identity = batch_id(row.uuid, table.uuid, at, row.batches + number, row.round)
        yield Batch(identity, row.name, at, part, last, row.round)


def _changes(sink: str, keys: Sequence[str], shape: pa.Schema, before: _Batches, after: _Batches) -> _Batches:
    """Yield upserts in the later state's order, then deletes in the earlier one's; rows are compared by their keys.

    The earlier state's keys are held in memory with a digest of each row, about 400 bytes a row. Its values are cast to
    the later types where that is possible, so that a changed type is not a difference by itself.

    :raises SinkError: several rows of one state have the same key
    """
    problem = f"several rows have the same {', '.join(keys)}, so changes can't be determined"
    twice = SinkError(sink, problem, "name columns in settings.keys that tell rows apart")
    known: dict[bytes, tuple[bytes, tuple[Any, ...]]] = {}
    met = set[bytes]()
    for batch in before:
        columns = [_cast(batch.column(field.name), field.type) for field in shape]
        shaped = pa.RecordBatch.from_arrays(columns, names=shape.names)
        values = (tuple(row.values()) for row in shaped.select(keys).to_pylist())
        for (key, digest), raw in zip(_digests(shaped, keys), values, strict=True):
            if key in known:
                raise twice
            known[key] = (digest, raw)
    for batch in after:
        changed = []
        for key, digest in _digests(batch, keys):
            if key in met:
                raise twice
            met.add(key)
            changed.append(known.pop(key, (b"",))[0] != digest)
        yield _with_op(batch.filter(pa.array(changed, pa.bool_())), _UPSERT)
    # A deleted row is sent with its keys alone.
    left = [dict(zip(keys, raw, strict=True)) for _, raw in known.values()]
    yield _with_op(pa.RecordBatch.from_pylist(left, schema=shape), _DELETE)


def _digests(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the digests of each row's key and of the whole row.

    The key is digested, too, because its JSON text would stay in a buffer that is much larger than the text.
    """
    for row in rows_of(batch):
        key, whole = (blake2b(dumps(part), digest_size=16).digest() for part in ([row[name] for name in keys], row))
        yield key, whole


def _with_op(batch: pa.RecordBatch, op: str) -> pa.RecordBatch:
    return batch.add_column(0, pa.field(_OP, pa.string()), pa.array([op] * batch.num_rows, pa.string()))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _cut(batches: _Batches, skip: int, size: int) -> Iterator[tuple[pa.Table, bool]]:
    """Yield tables of ``size`` rows, after the first ``skip`` rows, each with whether it is the last."""
    waiting, count = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch.slice(min(skip, batch.num_rows)))
        skip -= batch.num_rows - waiting[-1].num_rows
        count += waiting[-1].num_rows
        while count > size:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, size), False
            waiting, count = table.slice(size).to_batches(), count - size
    if count:
        yield pa.Table.from_batches(waiting), True


def rows_of(table: pa.Table | pa.RecordBatch, keys: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows as mappings by column, with values that :func:`dumps` takes; a deleted row has only its keys."""
    columns = [map(_writer(column.type), column.to_pylist()) for column in table.columns]
    for values in zip(*columns, strict=True):
        row = dict(zip(table.schema.names, values, strict=True))
        yield {name: row[name] for name in (_OP, *keys)} if row.get(_OP) == _DELETE and keys else row


def dumps(value: Any) -> bytes:
    """Return JSON in one line: dates and times are ISO 8601 (UTC is ``Z``), decimals are texts, bytes are base64."""
    return orjson.dumps(value, default=_text, option=orjson.OPT_UTC_Z)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        # A subclass with nanoseconds, such as pandas', which orjson does not take.
        return value.isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _writer(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts values of a type to JSON values; maps without text keys become lists of pairs."""
    types = pa.types
    if types.is_floating(kind):
        return lambda value: value if value is None or math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if types.is_map(kind):
        make = dict if kind.key_type in (pa.string(), pa.large_string()) else list
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        return lambda pairs: None if pairs is None else make((key(name), item(value)) for name, value in pairs)
    if types.is_list(kind) or types.is_large_list(kind):
        part = _writer(kind.value_type)
        return lambda values: None if values is None else list(map(part, values))
    if types.is_struct(kind):
        parts = {field.name: _writer(field.type) for field in kind}
        return lambda record: None if record is None else {name: write(record[name]) for name, write in parts.items()}
    return lambda value: value
