"""Pages of the ledger to typed rows with system columns; and which values do not fit.

Whole batches go through Arrow's JSON reader. Where a batch does not fit, it is read in smaller steps until the misfit
is one page, and that page record by record; then the steps grow again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.types import SYSTEM_COLUMNS
from airflow_provider_rfr.refresh.json_columns import (
    MisfitError,
    has_doubles,
    json_text,
    read_columns,
    record_coercer,
    rounds_integers,
    text_writer,
)
from airflow_provider_rfr.streams.json_numbers import LongNumber, loses_digits, read_number

_SHOWN = 80
_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    LongNumber: "number",
    str: "string",
    dict: "object",
    list: "array",
}


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


class _PageReader:
    """Rewrites pages so that they fit, and keeps what did not.

    :ivar offenders: the first of them
    :ivar changes: by row, the JSON of what was rounded there and, where ``note_changes`` says so, of what became null
    """

    def __init__(self, schema: pa.Schema, max_offenders: int, *, note_changes: bool) -> None:
        self._coerce = record_coercer(schema)
        self._max_offenders = max_offenders
        self.note_changes = note_changes
        self.offenders: list[_Offender] = []
        self.offender_count = 0
        self.changes: dict[int, str] = {}

    def rewrite(self, lines: Sequence[bytes], partition: str, page: int, first_row: int) -> bytes:
        """The lines as newline-delimited JSON that fits the schema for certain, a line for a line.

        :param first_row: number of the first line among all rows
        """
        return b"\n".join(
            orjson.dumps(self._record(line, partition, page, number, first_row + number - 1))
            for number, line in enumerate(lines, start=1)
        )

    def _record(self, line: bytes, partition: str, page: int, number: int, row: int) -> dict[str, Any]:
        report = _RecordReport(self, partition, page, number)
        record = self._parsed(line, report)
        if report.changes:
            self.changes[row] = orjson.dumps({"changes": report.changes}).decode()
        return record

    def _parsed(self, line: bytes, report: _RecordReport) -> dict[str, Any]:
        try:
            value = _DECODER.decode(line.decode())
        except (ValueError, RecursionError):
            report("$", line.decode(errors="replace"), "a JSON object")
            return {}
        record: dict[str, Any] = self._coerce(value, report)
        return record

    def offend(self, offender: _Offender) -> None:
        """Count a value that does not fit, and keep it if it is one of the first."""
        self.offender_count += 1
        if len(self.offenders) < self._max_offenders:
            self.offenders.append(offender)


@dataclass(slots=True)
class _RecordReport:
    """What could not be kept of one record; see :class:`~.json_coercion.Report`."""

    reader: _PageReader
    partition: str
    page: int
    record: int
    changes: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, path: str, value: Any, expected: str) -> None:
        self.reader.offend(_Offender(self.partition, self.page, self.record, path, _shortened(value), expected))
        if self.reader.note_changes:
            reason = f"expected {expected}, got {_kind(value)}"
            self.changes.append({"field": path, "change": "NULLED", "reason": reason})

    def rounded(self, path: str, value: Any) -> None:
        reason = f"a double can't hold {json_text(value)}"
        self.changes.append({"field": path, "change": "ROUNDED", "reason": reason})


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=read_number)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value)]


def _shortened(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_MAX_BATCH_BYTES = 256 * 1024 * 1024
_SHRINK, _GROW = 8, 2


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page as the ledger holds it.

    :ivar partition: key of its partition
    :ivar page: its number in the chain, from 1
    :ivar records: newline-delimited JSON objects (bytes or anything with their buffer), as orjson writes them: no
        integer beyond 64 bits, and long decimals with all their digits
    :ivar extracted_at_us: when the page arrived, in microseconds since the epoch
    """

    partition: str
    page: int
    records: Any
    record_count: int
    extracted_at_us: int


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
) -> TypedRows:
    """Read pages into the schema's columns; fields that the schema lacks are dropped (the ledger keeps them).

    ``_rfr_meta`` notes each number that a double column rounded; ``on_type_error`` decides whether also each value that
    became null.

    :param schema: without system columns; fields marked by :func:`~airflow_provider_rfr.lake.types.json_text_field`
        take any value as JSON text
    :raises LedgerError: a page does not hold as many lines as it says
    """
    typist = _Typist(schema, _PageReader(schema, max_offenders, note_changes=on_type_error == "null"))
    pieces = [piece for batch in _batches(pages) for piece in typist.read(batch)]
    found = pa.concat_tables(pieces) if pieces else _empty(schema)
    system = _system_columns(pages, generation, typist.reader.changes, typist.rows)
    table = pa.Table.from_arrays([*found.columns, *system], schema=pa.schema([*schema, *SYSTEM_COLUMNS]))
    return TypedRows(table, tuple(typist.reader.offenders), typist.reader.offender_count)


@dataclass(slots=True)
class _Typist:
    schema: pa.Schema
    reader: _PageReader
    write_texts: Any = field(init=False)
    doubles: bool = field(init=False)
    rows: int = 0

    def __post_init__(self) -> None:
        self.write_texts = text_writer(self.schema)
        self.doubles = has_doubles(pa.struct(list(self.schema)))

    def read(self, pages: Sequence[LedgerPage]) -> Iterator[pa.Table]:
        """The pages' rows, in pieces."""
        step = len(pages)
        while pages:
            done = step
            try:
                table = self._read_whole(pages[:step])
            except MisfitError:
                if step > 1:
                    step = max(1, step // _SHRINK)
                    continue
                table = self._read_slowly(pages[0])
            else:
                step *= _GROW
            self.rows += _count(pages[:done])
            pages = pages[done:]
            yield table

    def _read_whole(self, pages: Sequence[LedgerPage]) -> pa.Table:
        block = b"\n".join(page.records for page in pages)
        if self.doubles and loses_digits(block):
            raise MisfitError("a number that a double can't hold")
        if self.write_texts is not None:
            block = self.write_texts(block)
        table = read_columns(block, _count(pages), self.schema)
        if self.doubles and rounds_integers(table, block):
            raise MisfitError("an integer that a double can't hold")
        return table

    def _read_slowly(self, page: LedgerPage) -> pa.Table:
        lines = [line for line in bytes(page.records).split(b"\n") if line.strip()]
        if len(lines) != page.record_count:
            raise LedgerError(
                f"partition {page.partition}, page {page.page} holds {len(lines)} records, not {page.record_count}"
            )
        block = self.reader.rewrite(lines, page.partition, page.page, self.rows)
        return read_columns(block, len(lines), self.schema)


def _batches(pages: Sequence[LedgerPage]) -> Iterator[list[LedgerPage]]:
    """Pages with records, in batches below what a column of strings can hold."""
    batch: list[LedgerPage] = []
    size = 0
    for page in pages:
        if not page.record_count and not len(page.records):
            continue
        if batch and size + len(page.records) > _MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(page)
        size += len(page.records)
    if batch:
        yield batch


def _empty(schema: pa.Schema) -> pa.Table:
    # Not empty_table(), which imports pandas.
    return pa.Table.from_arrays([pa.nulls(0, column.type) for column in schema], schema=schema)


def _count(pages: Sequence[LedgerPage]) -> int:
    # Not the tables' own counts: one without columns has none.
    return sum(page.record_count for page in pages)


def _system_columns(
    pages: Sequence[LedgerPage], generation: int, changes: Mapping[int, str], rows: int
) -> tuple[pa.Array, pa.Array, pa.Array]:
    # From buffers: pa.array(list) imports pandas, which takes longer than all the rest.
    counts = np.fromiter((page.record_count for page in pages), np.int64, len(pages))
    times = np.fromiter((page.extracted_at_us for page in pages), np.int64, len(pages))
    generations, extracted_at, meta = (item.type for item in SYSTEM_COLUMNS)
    return (
        _from_numpy(np.full(rows, generation, np.int64), generations),
        _from_numpy(np.repeat(times, counts), extracted_at),
        _texts(changes, rows, meta),
    )


def _from_numpy(values: np.ndarray[Any, np.dtype[np.int64]], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _texts(changes: Mapping[int, str], rows: int, kind: pa.DataType) -> pa.Array:
    """A column of strings that is null except in a few rows."""
    if not changes:
        return pa.nulls(rows, kind)
    numbers = sorted(changes)
    data = [changes[number].encode() for number in numbers]
    present = np.zeros(rows, np.bool_)
    present[numbers] = True
    lengths = np.zeros(rows + 1, np.int32)
    lengths[np.array(numbers) + 1] = [len(text) for text in data]
    valid = np.packbits(present, bitorder="little")
    offsets = np.cumsum(lengths, dtype=np.int32)
    return pa.Array.from_buffers(kind, rows, [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))])
