"""Columns of a stream's rows (declared, given a type by name, or inferred), its primary key, and typed rows from pages.

Whole batches go through Arrow's JSON reader. A batch that does not fit is read in smaller steps until the mismatch is
one page, and that page record by record; then the steps grow again.

Columns are built from buffers: ``pa.array(list)`` imports pandas where it is installed, which stops every reading
thread for more than a second.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, LedgerError
from airflow_provider_rfr.lake.inference import MAX_DEPTH, InferredSchema, Place, arrow_schema, infer_records, merge
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS
from airflow_provider_rfr.numbers import LongNumber, read_number
from airflow_provider_rfr.refresh.json_columns import (
    BlockMismatchError,
    BlockReader,
    Loss,
    json_text,
    read_columns,
    record_coercer,
)
from airflow_provider_rfr.streams.columns import hinted_schema
from airflow_provider_rfr.streams.core import PrimaryKey, Stream, key_paths
from airflow_provider_rfr.text import cut

_SHRINK, _GROW = 8, 2
_SHOWN_CHARACTERS = 77
_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    LongNumber: "number",
    str: "string",
    dict: "object",
    list: "array",
}


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page as the ledger holds it.

    :ivar partition: key of its partition
    :ivar page: its number in the chain, from 1
    :ivar records: newline-delimited JSON objects (bytes or anything with their buffer), with no integer beyond 64 bits
    :ivar extracted_at_us: when the page arrived, in microseconds since the epoch
    """

    partition: str
    page: int
    records: Any
    record_count: int
    extracted_at_us: int


@dataclass(frozen=True, slots=True)
class _Offender:
    """A value that does not fit its column.

    :ivar record: its number in the page, from 1
    :ivar column: path of the column, ``$`` for the record as a whole
    :ivar value: its JSON, cut to 80 characters
    """

    partition: str
    page: int
    record: int
    column: str
    value: str
    expected: str


@dataclass(frozen=True, slots=True)
class TypedRows:
    """The pages' rows in their order, every record as one row.

    :ivar table: the schema's columns and the system columns; a value that did not fit is null. Under ``fail`` a table
        with offenders is not to be published
    :ivar offenders: the first values that did not fit, in the order of rows
    :ivar offender_count: how many there were
    """

    table: pa.Table
    offenders: tuple[_Offender, ...] = ()
    offender_count: int = 0


def type_pages(
    pages: Sequence[LedgerPage],
    schema: pa.Schema,
    *,
    generation: int,
    on_type_error: Literal["fail", "null"] = "fail",
    max_offenders: int = 10,
    casts: bool = False,
) -> TypedRows:
    """Read pages into the schema's columns; fields that the schema lacks are dropped (the ledger keeps them).

    ``_rfr_meta`` notes each number that a double column rounded; ``on_type_error`` decides whether also each value that
    became null.

    :param pages: with less than two GiB of records, which is what a column of strings can hold
    :param schema: without system columns; fields marked by :func:`~airflow_provider_rfr.lake.schemas.json_text_field`
        take any value as JSON text
    :param casts: whether a value of another type than its column's is cast, where nothing is lost by it
    :raises LedgerError: a page does not hold as many lines as it says
    """
    reader = _PageReader(schema, max_offenders, note_changes=on_type_error == "null", casts=casts)
    pieces = list(reader.read([page for page in pages if page.record_count or len(page.records)]))
    # Not empty_table(), which imports pandas.
    empty = pa.Table.from_arrays([pa.nulls(0, column.type) for column in schema], schema=schema)
    found = pa.concat_tables(pieces) if pieces else empty
    generations, extracted_at, meta = (column.type for column in SYSTEM_COLUMNS)
    counts = np.fromiter((page.record_count for page in pages), np.int64, len(pages))
    times = np.fromiter((page.extracted_at_us for page in pages), np.int64, len(pages))
    notes = [reader.changes.get(row) for row in range(reader.rows)] if reader.changes else None
    system = (
        # From buffers: pa.array(list) imports pandas, which takes longer than all the rest.
        pa.Array.from_buffers(
            generations, reader.rows, [None, pa.py_buffer(np.full(reader.rows, generation, np.int64))]
        ),
        pa.Array.from_buffers(extracted_at, reader.rows, [None, pa.py_buffer(np.repeat(times, counts))]),
        pa.nulls(reader.rows, meta) if notes is None else arrow_column(notes, meta),
    )
    table = pa.Table.from_arrays([*found.columns, *system], schema=pa.schema([*schema, *SYSTEM_COLUMNS]))
    return TypedRows(table, tuple(reader.offenders), reader.offender_count)


class _PageReader:
    """A reader that reads pages one after another, and keeps the values that did not fit.

    :ivar rows: read so far
    :ivar offenders: the first of them
    :ivar changes: by row, the JSON of what was rounded there and, where ``note_changes`` says so, of what became null
    """

    def __init__(self, schema: pa.Schema, max_offenders: int, *, note_changes: bool, casts: bool = False) -> None:
        self._schema = schema
        self._blocks = BlockReader(schema)
        self._coerce = record_coercer(schema, casts=casts)
        self._max_offenders = max_offenders
        self._note_changes = note_changes
        self.rows = 0
        self.offenders: list[_Offender] = []
        self.offender_count = 0
        self.changes: dict[int, str] = {}

    def read(self, pages: Sequence[LedgerPage]) -> Iterator[pa.Table]:
        """Yield the pages' rows, in pieces."""
        step = len(pages)
        while pages:
            batch = pages[:step]
            # Not the table's own count: a table without columns has none.
            rows = sum(page.record_count for page in batch)
            try:
                table = self._blocks.read(b"\n".join(page.records for page in batch), rows)
            except BlockMismatchError:
                if step > 1:
                    step = max(1, step // _SHRINK)
                    continue
                page = batch[0]
                lines = [line for line in bytes(page.records).split(b"\n") if line.strip()]
                if len(lines) != rows:
                    raise LedgerError(
                        f"partition {page.partition}, page {page.page} holds {len(lines)} records, not {rows}"
                    ) from None
                table = read_columns(self.rewrite(lines, page.partition, page.page), rows, self._schema)
            else:
                step *= _GROW
            self.rows += rows
            pages = pages[len(batch) :]
            yield table

    def rewrite(self, lines: Sequence[bytes], partition: str, page: int) -> bytes:
        """Rewrite the next lines as newline-delimited JSON that fits the schema for certain, one line for each."""
        records = []
        for number, line in enumerate(lines, start=1):
            losses: list[Loss] = []
            try:
                value = _DECODER.decode(line.decode())
            except (ValueError, RecursionError):
                losses.append(Loss("$", line.decode(errors="replace"), "a JSON object"))
                records.append(b"{}")
            else:
                records.append(orjson.dumps(self._coerce(value, losses)))
            changes = [self._change(loss, partition, page, number) for loss in losses]
            if any(changes):
                noted = [change for change in changes if change is not None]
                self.changes[self.rows + number - 1] = orjson.dumps({"changes": noted}).decode()
        return b"\n".join(records)

    def _change(self, loss: Loss, partition: str, page: int, record: int) -> dict[str, str] | None:
        """Return the entry of ``_rfr_meta`` for a loss; count a value that does not fit, too."""
        if loss.expected is None:
            return {"field": loss.path, "change": "ROUNDED", "reason": f"a double can't hold {json_text(loss.value)}"}
        self.offender_count += 1
        if len(self.offenders) < self._max_offenders:
            shown = cut(json_text(loss.value), _SHOWN_CHARACTERS)
            self.offenders.append(_Offender(partition, page, record, loss.path, shown, loss.expected))
        if not self._note_changes:
            return None
        reason = f"expected {loss.expected}, got {_KINDS[type(loss.value)]}"
        return {"field": loss.path, "change": "NULLED", "reason": reason}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=read_number)


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of integers, microseconds, booleans, or (large) strings; None is null, bytes are UTF-8."""
    valid = None if None not in values else _bits([value is not None for value in values])
    if pa.types.is_boolean(kind):
        buffers = [_bits([bool(value) for value in values])]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        data = [b"" if value is None else value if isinstance(value, bytes) else value.encode() for value in values]
        offsets = np.zeros(len(data) + 1, np.int64 if pa.types.is_large_string(kind) else np.int32)
        np.cumsum([len(item) for item in data], out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    else:
        code = "q" if kind.bit_width == 64 else "i"
        buffers = [pa.py_buffer(array(code, [0 if value is None else value for value in values]))]
    return pa.Array.from_buffers(kind, len(values), [valid, *buffers])


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))


_CONSTANT_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """A stream's rules for its columns.

    :ivar declared: columns of its ``json_schema`` and ``columns``; None without a ``json_schema``
    :ivar hints: columns of its ``columns``
    :ivar infers: whether fields beside the declared ones become columns
    :ivar constants: by name, values of columns besides the stream's that are the same in all rows; a null, like a field
        without any value, makes no column
    """

    declared: pa.Schema | None
    hints: Mapping[str, pa.Field]
    infers: bool
    constants: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: Stream, constants: Mapping[str, Any] | None = None) -> ColumnRules:
        """Read the rules from the stream's declarations.

        :raises ConfigurationError: a table can't have the columns, a type is unknown, or a constant has the name of a
            column of the stream
        """
        rules = cls._declared(stream, constants or {})
        rules.columns(SeenColumns())
        return rules

    @classmethod
    def _declared(cls, stream: Stream, constants: Mapping[str, Any]) -> ColumnRules:
        hints = {}
        if stream.columns:
            hints = {column.name: column for column in arrow_schema(hinted_schema(stream.columns), "columns")}
        if stream.json_schema is None:
            return cls(None, hints, infers=True, constants=constants)
        columns = {column.name: column for column in arrow_schema(stream.json_schema, "json_schema")}
        declared = pa.schema(list({**columns, **hints}.values()))
        return cls(declared, hints, infers=stream.additional_fields == "keep", constants=constants)

    def columns(self, seen: SeenColumns) -> pa.Schema:
        """Return the columns of the rows: declared ones first, then others in the order of the source, then constants.

        :raises ConfigurationError: a constant has the name of a column of the stream
        """
        columns = self.declared if self.declared is not None else pa.schema([])
        if self.infers:
            types = {**self.hints, **{column.name: column for column in columns}}
            inferred = seen.schema.to_arrow(seen.places, types)
            columns = pa.schema([*columns, *(column for column in inferred if column.name not in columns.names)])
        taken = {name.casefold() for name in (*columns.names, *self.hints)}
        for name in self.constants:
            if name.casefold() in taken:
                remedy = "name the constant otherwise, or leave it out"
                raise ConfigurationError(f"options.constants.{name}", "the stream has a column of that name", remedy)
        return pa.schema([*columns, *self.constant_columns()])

    def constant_columns(self) -> pa.Schema:
        """Return the columns of the constants that are not null."""
        values = ((name, value) for name, value in self.constants.items() if value is not None)
        return pa.schema([pa.field(name, _CONSTANT_TYPES[type(value)]) for name, value in values])

    def typed_names(self) -> frozenset[str]:
        """Return the columns whose types the stream declares; the table must take these types."""
        declared = self.declared.names if self.declared is not None else ()
        return frozenset((*self.hints, *declared, *self.constants))


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns that appear in records.

    :ivar places: the first place of each field, by path. So columns have the order of the source, whichever task
        read them
    """

    schema: InferredSchema = field(default_factory=InferredSchema)
    places: Mapping[str, Place] = field(default_factory=dict)

    def __add__(self, other: SeenColumns) -> SeenColumns:
        places = dict(self.places)
        for path, place in other.places.items():
            places[path] = min(place, places.get(path, place))
        return SeenColumns(merge(self.schema, other.schema), places)


def see_columns(batches: Iterable[tuple[Sequence[LedgerPage], Sequence[int]]]) -> SeenColumns:
    """Infer the columns from the records of pages, which come with the ordinals of their partitions."""
    schema, places = InferredSchema(), dict[str, Place]()
    for pages, ordinals in batches:
        batch = infer_records(b"\n".join(page.records for page in pages))
        numbered = sorted(
            (((ordinal, page.page), page.records) for ordinal, page in zip(ordinals, pages, strict=True)),
            key=lambda item: item[0],
        )
        _locate(frozenset(batch.paths()), numbered, places)
        schema = merge(schema, batch)
    return SeenColumns(schema, places)


def _locate(paths: frozenset[str], pages: Sequence[tuple[tuple[int, int], Any]], places: dict[str, Place]) -> None:
    """Record the first place of each path in ordered pages. Most fields appear in the first record already."""
    for number, records in pages:
        wanted = {path for path in paths if path not in places or places[path][:2] > number}
        if not wanted:
            return
        position, text = 0, bytes(records)
        if not any(_end_of_name(path) in text for path in wanted):
            continue  # parse only pages that may have a wanted field
        for line in text.split(b"\n"):
            with suppress(orjson.JSONDecodeError):
                for path in _paths(orjson.loads(line), "", MAX_DEPTH):
                    if path in wanted:
                        wanted.remove(path)
                        places[path] = (*number, position)
                        position += 1
            if not wanted:
                break


def _end_of_name(path: str) -> bytes:
    """Return the end of a field's name in the ledger's JSON; the name itself may have dots."""
    return orjson.dumps(path.rpartition(".")[2])[1:]


def _paths(value: Any, prefix: str, depth: int) -> Iterator[str]:
    """Yield the paths of a value's fields in their order."""
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield prefix + name
            yield from _paths(inner, f"{prefix}{name}.", depth - 1)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, f"{prefix}element.", depth - 1)


def key_columns(primary_key: PrimaryKey, rows: pa.Schema) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the key's columns.

    :raises ConfigurationError: the rows lack one
    """
    paths = key_paths(primary_key)
    for path in paths:
        kind: pa.DataType = pa.struct(list(rows))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise _missing(path, "the rows have no column", rows.names)
            kind = kind.field(name).type
    return paths


def check_key_of_page(primary_key: PrimaryKey, records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a first page if all its records lack a field of the key, before the other pages are read in vain.

    One record with the field is enough. Null counts as a value, because such rows are published.

    :raises ConfigurationError: a field of the key is missing; the error lists the fields of the records
    """
    if not records:
        return
    for path in key_paths(primary_key):
        if not any(_has(record, path) for record in records):
            fields = dict.fromkeys(name for record in records for name in record)
            raise _missing(path, "no record of the first page has the field", fields)


def _has(record: Any, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(record, Mapping) or name not in record:
            return False
        record = record[name]
    return True


def _missing(path: Sequence[str], problem: str, names: Iterable[str]) -> ConfigurationError:
    return ConfigurationError("primary_key", f"{problem} {'.'.join(path)}", suggestion(path[0], names))
