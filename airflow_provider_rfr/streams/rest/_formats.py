"""Bodies in other formats than JSON: JSON Lines and CSV, read line by line."""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._responses import (
    AnotherFormat,
    BadValues,
    BodyReader,
    UnreadableBody,
    charset_of,
    format_of,
    is_utf8,
    media_type_of,
    read_json,
    shown_size,
)

ACCEPTED: Final = {"jsonl": "application/x-ndjson, application/jsonl, */*;q=0.5", "csv": "text/csv, */*;q=0.5"}
"""What a request for a format accepts, unless the source says it."""

# Python's csv has one limit for all fields of the process; an answer has a limit of its own.
_FIELD_LIMIT: Final = 2**31 - 1


def reader_of(records: model.Records) -> BodyReader:
    """Return the reader for the answers of a definition."""
    if records.format == "jsonl":
        return read_json_lines
    if records.format == "csv":
        return CsvReader(records.columns, records.delimiter or ",", records.on_missing == "empty")
    return read_json


def read_json_lines(body: bytes, headers: Mapping[str, str], lenient: bool) -> list[Any]:
    """Return the value of each line; empty lines don't count, and a body without lines is an empty list.

    :param lenient: replace values that strict JSON refuses
    :raises UnreadableBody: a line isn't JSON; the error has its number, from 1
    """
    _check_markup(body, headers, "JSON Lines")
    values: list[Any] = []
    for number, line in enumerate(_lines_of(body, headers, lenient), start=1):
        if line.isspace():
            continue
        problem: UnreadableBody
        try:
            values.append(read_json(line, {}, lenient))
            continue
        except BadValues as error:
            problem = BadValues(f"line {number} of JSON Lines: {error}")
        except UnreadableBody:
            shown = shown_size(body, headers)
            problem = UnreadableBody(f"line {number} of JSON Lines is not a whole JSON value ({shown})")
        # Out here: only what was said may become part of the error.
        raise problem
    return values


@dataclass(frozen=True, slots=True)
class CsvReader:
    """A reader of CSV that returns rows as objects whose values are texts.

    :ivar columns: names of the columns; None if the first row has them
    :ivar missing_is_empty: a body without even that row has no records
    """

    columns: list[str] | None
    delimiter: str
    missing_is_empty: bool

    def __call__(self, body: bytes, headers: Mapping[str, str], lenient: bool) -> list[dict[str, str]]:
        """Return the rows; empty lines don't count.

        :param lenient: replace bytes that are no text
        :raises UnreadableBody: a row doesn't fit its columns, or its quotes are wrong; the error has its line, from 1
        """
        _check_markup(body, headers, "CSV")
        _check_not_json(body, headers)
        csv.field_size_limit(max(csv.field_size_limit(), _FIELD_LIMIT))
        rows = list(self._rows(_texts_of(body, headers, lenient), shown_size(body, headers)))
        columns = self.columns or (rows.pop(0) if rows else None)
        if columns is None:
            if self.missing_is_empty:
                return []
            raise UnreadableBody(
                f"CSV has no row with the names of its columns ({shown_size(body, headers)}); where that means no "
                "records, write on_missing: empty in records; where there never is one, write columns"
            )
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _rows(self, texts: Iterator[str], shown: str) -> Iterator[list[str]]:
        """Yield all rows, the one with the names too; each as long as that one."""
        # Strict: otherwise a quote that is never closed takes all further rows into one value.
        reader = csv.reader(texts, delimiter=self.delimiter, strict=True)
        width, problem = len(self.columns or ()), ""
        try:
            for row in reader:
                if not row:
                    continue
                if not width:
                    _check_names(row, shown)
                    width = len(row)
                if len(row) != width:
                    problem = f"has {len(row)} values for {width} columns; is records.delimiter right?"
                    break
                yield row
        except csv.Error as error:
            problem = f"is not CSV: {error}"
        if problem:
            raise UnreadableBody(f"line {reader.line_num} of CSV {problem} ({shown})")


def _check_names(names: list[str], shown: str) -> None:
    """Check the names of columns.

    :raises AnotherFormat: a column has no name, or that of another one
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    problem = "an empty name" if "" in names else f"the name {twice!r} twice" if twice is not None else ""
    if problem:
        raise AnotherFormat(f"the first row of CSV has {problem} ({shown}); name all columns in records.columns")


def _texts_of(body: bytes, headers: Mapping[str, str], lenient: bool) -> Iterator[str]:
    """Yield the lines as text.

    :raises BadValues: a line is not UTF-8
    """
    for number, line in enumerate(_lines_of(body, headers, lenient), start=1):
        try:
            yield line.decode("utf-8", "replace" if lenient else "strict")
            continue
        except UnicodeDecodeError as error:
            problem = f"line {number} of CSV has a byte that is not UTF-8, at {error.start} of {len(line)}"
        raise BadValues(f"{problem} ({shown_size(body, headers)})")


def _lines_of(body: bytes, headers: Mapping[str, str], lenient: bool) -> Iterator[bytes]:
    """Return the lines as UTF-8, with their line feeds.

    :raises AnotherFormat: the answer's charset is unknown
    :raises BadValues: the body isn't in that charset
    """
    charset = charset_of(headers)
    if is_utf8(charset):
        # A view of the body, not a copy.
        return iter(BytesIO(body[len(BOM_UTF8) :] if body.startswith(BOM_UTF8) else body))
    try:
        return iter(BytesIO(body.decode(charset, "replace" if lenient else "strict").encode("utf-8", "replace")))
    except UnicodeError:
        problem: UnreadableBody = BadValues(f"the answer has bytes that are not {charset.upper()}")
    except LookupError:
        problem = AnotherFormat(f"the answer's charset {charset!r} is unknown")
    raise problem


def _check_markup(body: bytes, headers: Mapping[str, str], wanted: str) -> None:
    """Refuse HTML, XML and packed files instead of the wanted format.

    :raises UnreadableBody: the answer is a page for people, XML or a packed file
    """
    form = format_of(body, media_type_of(headers))
    shown = shown_size(body, headers)
    if form == "HTML":
        raise UnreadableBody(f"the answer is HTML, not {wanted} ({shown}): a login page?")
    if form not in (None, "JSON Lines", "CSV"):
        raise AnotherFormat(f"the answer is {form}, not {wanted} ({shown}): read the stream by a Python class")


def _check_not_json(body: bytes, headers: Mapping[str, str]) -> None:
    """Refuse JSON instead of CSV.

    :raises UnreadableBody: the answer is JSON, e.g. an error: as CSV, it would be a row of names, and no records
    """
    if body[:64].lstrip()[:1] not in (b"{", b"["):
        return
    is_json = "json" in media_type_of(headers).lower()
    if not is_json:
        try:
            read_json(body, headers, True)
            is_json = True
        except UnreadableBody:
            pass
    if is_json:
        raise UnreadableBody(f"the answer is JSON, not CSV ({shown_size(body, headers)})")
