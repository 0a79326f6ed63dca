"""Pages of the ledger to typed rows with system columns; and which values do not fit.

Whole batches go through Arrow's JSON reader. A batch that does not fit is read in smaller steps until the mismatch is
one page, and that page record by record; then the steps grow again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS
from airflow_provider_rfr.numbers import LongNumber, read_number
from airflow_provider_rfr.refresh._json_columns import (
    BlockMismatchError,
    BlockReader,
    Loss,
    json_text,
    read_columns,
    record_coercer,
)
from airflow_provider_rfr.refresh.pages import arrow_column

_SHRINK, _GROW = 8, 2
_SHOWN = 80
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
            text = json_text(loss.value)
            shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
            self.offenders.append(_Offender(partition, page, record, loss.path, shown, loss.expected))
        if not self._note_changes:
            return None
        reason = f"expected {loss.expected}, got {_KINDS[type(loss.value)]}"
        return {"field": loss.path, "change": "NULLED", "reason": reason}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=read_number)
