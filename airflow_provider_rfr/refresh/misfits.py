"""Which values do not fit, found record by record, and the same records with null in their place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_rfr.refresh.json_coercion import json_text, record_coercer
from airflow_provider_rfr.streams.json_numbers import LongNumber, read_number

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
class Offender:
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


class PageReader:
    """Rewrites pages so that they fit, and keeps what did not.

    :ivar offenders: the first of them
    :ivar changes: by row, the JSON of what was rounded there and, where ``note_changes`` says so, of what became null
    """

    def __init__(self, schema: pa.Schema, max_offenders: int, *, note_changes: bool) -> None:
        self._coerce = record_coercer(schema)
        self._max_offenders = max_offenders
        self.note_changes = note_changes
        self.offenders: list[Offender] = []
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

    def offend(self, offender: Offender) -> None:
        """Count a value that does not fit, and keep it if it is one of the first."""
        self.offender_count += 1
        if len(self.offenders) < self._max_offenders:
            self.offenders.append(offender)


@dataclass(slots=True)
class _RecordReport:
    """What could not be kept of one record; see :class:`~.json_coercion.Report`."""

    reader: PageReader
    partition: str
    page: int
    record: int
    changes: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, path: str, value: Any, expected: str) -> None:
        self.reader.offend(Offender(self.partition, self.page, self.record, path, _shortened(value), expected))
        if self.reader.note_changes:
            reason = f"expected {expected}, got {_kind(value)}"
            self.changes.append({"field": path, "change": "NULLED", "reason": reason})

    def rounded(self, path: str, value: Any) -> None:
        reason = f"a double can't hold {json_text(value)}"
        self.changes.append({"field": path, "change": "ROUNDED", "reason": reason})


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=read_number)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value)]


def _shortened(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
