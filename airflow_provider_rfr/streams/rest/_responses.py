"""The outcome of one request, a response or a failure; and the readers of bodies in JSON, JSON Lines and CSV.

A body is JSON with bad values (:class:`BadValues`) if it has ``NaN``, numbers beyond a double, halves of surrogate
pairs, bytes that are not UTF-8, or control characters in strings. Repeating the request would not change them, so a
lenient reader accepts such a body.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final, TypeAlias

import orjson
from pydantic import model_validator

from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.numbers import loads, read_integer, read_number
from airflow_provider_rfr.streams.rest.templates import MISSING, Part, lookup, parse_path, similar_path, where_missing
from airflow_provider_rfr.text import one_line, well_formed

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SEPARATORS: Final = (",", ";", "\t")
_PEEK: Final = 65536
_LINES_TYPES: Final = frozenset({"x-ndjson", "ndjson", "jsonl", "x-jsonl", "jsonlines", "x-jsonlines", "stream+json"})
# Gzip files are unpacked before a body gets here.
_FILES: Final = {b"PK\x03\x04": "a ZIP file", b"\x28\xb5\x2f\xfd": "Zstandard"}
_DECODED: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
# A mark of UTF-32 begins like one of UTF-16.
_MARKS: Final = {
    BOM_UTF8: "utf-8",
    BOM_UTF32_LE: "utf-32-le",
    BOM_UTF32_BE: "utf-32-be",
    BOM_UTF16_LE: "utf-16-le",
    BOM_UTF16_BE: "utf-16-be",
}
_TABLE_TYPES: Final = frozenset({"csv", "tab-separated-values", "x-csv", "tsv"})


def _read_leniently(body: bytes, charset: str) -> tuple[Any, list[str]]:
    """Return the value of a body that isn't strict JSON, and a list of the replacements.

    Null replaces numbers that JSON doesn't have, and U+FFFD bytes that are not text. Control characters are kept, and
    are not in the list.

    :raises ValueError: it isn't nearly JSON either
    :raises RecursionError: it is too deep
    """
    replaced: list[str] = []
    try:
        text = body.decode(charset)
    except UnicodeDecodeError as error:
        replaced.append(f"a byte that is not {charset.upper()}, at {error.start} of {len(body)}")
        text = body.decode(charset, "replace")

    def note(what: str) -> None:
        if what not in replaced:
            replaced.append(what)

    def number(digits: str) -> float | None:
        value = read_number(digits)
        if math.isfinite(value):
            return value
        note("a number beyond 1.8e308")
        return None

    value = json.loads(text, parse_int=read_integer, parse_float=number, parse_constant=note, strict=False)
    if _HALF.search(text):
        value = _whole_texts(value, lambda: note("half of a surrogate pair"))
    return value, replaced


def format_of(body: bytes, media_type: str) -> str | None:
    """Detect the format of a body that is not JSON, and return its name; None if it is unknown."""
    for beginning, name in _FILES.items():
        if body.startswith(beginning):
            return name
    kind = media_type.lower().rpartition("/")[2]
    head = body[:_PEEK].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if "html" in kind or re.match(r"<!doctype html|<html", head, re.IGNORECASE):
        return "HTML"
    if kind == "xml" or kind.endswith("+xml") or head.startswith("<?xml"):
        return "XML"
    if kind in _LINES_TYPES or _is_several_values(head):
        return "JSON Lines"
    if kind in _TABLE_TYPES:
        return "CSV"
    lines = head.splitlines()[:2]
    if "json" in kind or len(lines) < 2 or head[0] in "{[<":
        return None
    # A table without a media type: as many separators in the second line as in the first.
    return "CSV" if any(lines[0].count(sign) == lines[1].count(sign) > 0 for sign in _SEPARATORS) else None


def _is_several_values(head: str) -> bool:
    """Tell whether another value follows the first one; False if the first one is longer than ``head``."""
    try:
        value, end = json.JSONDecoder().raw_decode(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, (dict, list)) and head[end:].lstrip("\x1e \t\r\n")[:1] in ("{", "[")


def _whole_texts(value: Any, note: Callable[[], None]) -> Any:
    """Return the value with U+FFFD for each half of a surrogate pair."""
    if isinstance(value, str):
        whole = well_formed(value)
        if whole != value:
            note()
        return whole
    if isinstance(value, dict):
        return {_whole_texts(key, note): _whole_texts(item, note) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_texts(item, note) for item in value]
    return value


_UNREAD: Final = object()
LONGEST_EXCERPT: Final = 200


class UnreadableBody(ValueError):
    """A body that isn't in the declared format; the text names the format it has, without its content."""


class AnotherFormat(UnreadableBody):
    """The body is in another format; asking again can't help."""


class BadValues(UnreadableBody):
    """The body is in its format but for some values; asking again can't help."""


def media_type_of(headers: Mapping[str, str]) -> str:
    """Return the media type, e.g. ``text/csv``; empty if the answer has none."""
    return headers.get("Content-Type", "").partition(";")[0].strip()


def charset_of(headers: Mapping[str, str]) -> str:
    """Return the charset in lower case; empty if the answer has none."""
    return headers.get("Content-Type", "").lower().partition("charset=")[2].partition(";")[0].strip(" \"'")


def _without_mark(body: bytes, charset: str) -> tuple[bytes, str]:
    """Return the body without a byte order mark, and its charset, which a mark tells better than the header."""
    mark = next(filter(body.startswith, _MARKS), b"")
    return body[len(mark) :], _MARKS.get(mark, charset)


def is_utf8(charset: str) -> bool:
    """Tell whether a charset, or none, means UTF-8."""
    return not charset or charset in ("utf-8", "utf8", "us-ascii", "ascii")


def shown_size(body: bytes, headers: Mapping[str, str]) -> str:
    """Describe type, encoding and size of a body for messages."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    packed = "" if encoding in _DECODED else f", Content-Encoding: {encoding}"
    return f"{media_type_of(headers) or 'no content type'}{packed}, {len(body)} bytes"


def read_json(body: bytes, headers: Mapping[str, str], lenient: bool) -> Any:
    """Return the value of a JSON body.

    :param lenient: replace values that strict JSON refuses
    :raises UnreadableBody: it isn't JSON
    """
    body, charset = _without_mark(body, charset_of(headers))
    try:
        plain = is_utf8(charset)
        return loads(body if plain else body.decode(charset).encode())
    except (orjson.JSONDecodeError, UnicodeError, LookupError) as error:
        problem = type(error).__name__ if not isinstance(error, orjson.JSONDecodeError) else error.msg
    if not body.strip():
        raise UnreadableBody("the answer's body is empty")
    shown = shown_size(body, headers)
    try:
        value, replaced = _read_leniently(body, "utf-8" if plain else charset)
    except (ValueError, LookupError, RecursionError):
        pass
    else:
        if lenient:
            return value
        raise BadValues(f"the answer is not strict JSON ({', '.join(replaced) or problem}; {shown})")
    form = format_of(body, media_type_of(headers))
    if form == "HTML":
        raise UnreadableBody(f"the answer is HTML, not JSON ({shown}): a login page?")
    if form is not None:
        remedies = {"CSV": "declare records: {format: csv}", "JSON Lines": "declare records: {format: jsonl}"}
        remedy = remedies.get(form, "read the stream by a Python class")
        raise AnotherFormat(
            f"the answer is {form}, not JSON ({shown}): {remedy}, or ask the API for JSON, e.g. by request.headers:"
            " {Accept: application/json}"
        )
    raise UnreadableBody(f"the answer is not JSON ({problem}; {shown})")


BodyReader: TypeAlias = Callable[[bytes, Mapping[str, str], bool], Any]
"""Reads a body, by its headers; the last argument permits the replacement of bad values. Raises UnreadableBody."""


ACCEPTED: Final = {"jsonl": "application/x-ndjson, application/jsonl, */*;q=0.5", "csv": "text/csv, */*;q=0.5"}
"""The header ``Accept`` of requests for a format, unless the source sets one."""

# Python's csv has one limit for all fields of the process; an answer has a limit of its own.
_FIELD_LIMIT: Final = 2**31 - 1


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
        # Raised outside of the handler: the first error holds the line, and must not become the context.
        raise problem
    return values


@dataclass(frozen=True, slots=True)
class CsvReader:
    """A reader of CSV that returns rows as objects whose values are texts.

    :ivar columns: names of the columns; None if the first row has them
    :ivar missing_is_empty: whether a body without that row has no records, rather than being an error
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
        if _without_mark(body, "")[0][:64].lstrip()[:1] in (b"{", b"["):
            is_json = "json" in media_type_of(headers).lower()
            with contextlib.suppress(UnreadableBody):
                is_json = is_json or read_json(body, headers, True) is not None
            # E.g. an error object: as CSV, it would be a row of names, and no records.
            if is_json:
                raise UnreadableBody(f"the answer is JSON, not CSV ({shown_size(body, headers)})")
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
        """Yield all rows, the one with the names included; all have the same number of values."""
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
    body, charset = _without_mark(body, charset_of(headers))
    if is_utf8(charset):
        # A view of the body, not a copy.
        return iter(BytesIO(body))
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


@dataclass(slots=True)
class Response:
    """A complete HTTP response.

    :ivar request: method and address without credentials
    :ivar url: the address that answered, credentials included
    :ivar lenient: values that make the body nearly JSON are replaced, see ``on_bad_json``
    :ivar read: reads a page's body; JSON unless ``records.format`` says otherwise
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    request: str
    url: str = field(repr=False)
    lenient: bool = False
    read: BodyReader = field(default=read_json, repr=False)
    _json: Any = field(default=_UNREAD, repr=False)
    _content: Any = field(default=_UNREAD, repr=False)

    @property
    def has_content(self) -> bool:
        """Tell whether an answer of this status has a body."""
        return self.status not in (204, 205)

    def json(self) -> Any:
        """Return the body as JSON, parsed once; None if there is no content.

        :raises UnreadableBody: it isn't JSON
        """
        if self._json is _UNREAD:
            self._json = read_json(self.body, self.headers, self.lenient) if self.has_content else None
        return self._json

    def content(self) -> Any:
        """Return the body of a page, read once: JSON, or the list of its lines or rows; None if there is no content.

        :raises UnreadableBody: it isn't in that format
        """
        if self.read is read_json:
            return self.json()
        if self._content is _UNREAD:
            self._content = self.read(self.body, self.headers, self.lenient) if self.has_content else None
        return self._content

    def for_conditions(self) -> Any:
        """Return the value for predicates: the content, else the body as JSON, as of many errors, else None."""
        for read in (self.content, self.json) if self.status // 100 == 2 else (self.json,):
            with contextlib.suppress(UnreadableBody):
                return read()
        return None

    def text(self) -> str:
        """Return the body as text; bytes that aren't UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def describe(self, redactor: Redactor) -> str:
        """Return the status and the beginning of the body, for messages."""
        shown = one_line(redactor.text(self.text()), LONGEST_EXCERPT)
        return f"{self.status} {self.reason}".strip() + (f": {shown}" if shown else "")


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """The failure of a request: no answer, or one that can't be used.

    :ivar permanent: asking again can't help
    :ivar kind: kind of the error in the counts of retried errors
    """

    message: str
    request: str
    permanent: bool = False
    kind: str = "other"


class ResponseField(Part):
    """The place of a value in a response: a path of the body, or a header.

    :ivar path: path in the body; a list of keys is for keys with dots
    :ivar header: name of a header
    """

    path: str | list[str] | None = None
    header: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> ResponseField:
        names = [name for name in ("path", "header", "expression") if name in type(self).model_fields]
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"name exactly one origin: {', '.join(names[:-1])} or {names[-1]}")
        return self

    def find(self, response: Response) -> Any:
        """Return the value at a path of the body or in a header; MISSING if it is absent.

        A null on the path counts as null: with ``"paging": null``, ``paging.next`` is null.
        """
        if self.header is not None:
            return response.headers.get(self.header, MISSING)
        path = parse_path(self.path or ())
        content = response.content()
        value = lookup(content, path)
        if value is MISSING and any(lookup(content, path[:length]) is None for length in range(1, len(path))):
            return None
        return value

    def describe_absence(self, response: Response) -> str:
        """Describe a response that lacks the field: the field, the content in its place, the likely path."""
        if self.header is not None:
            return f"the answer has no header {self.header}"
        content, path = response.content(), parse_path(self.path or ())
        similar = similar_path(content, path)
        hint = f"; did you mean {similar}?" if similar else ""
        return f"the answer has no {'.'.join(path)}: {where_missing(content, path)}{hint}"
