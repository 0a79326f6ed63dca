"""The outcome of one request: its answer, or why there is none; and bodies that strict JSON refuses.

``NaN``, numbers beyond a double, halves of surrogate pairs, bytes that are not UTF-8 and control characters in strings
are read all the same, because repeating the request would not change them.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.json_numbers import loads, read_integer, read_number

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SEPARATORS: Final = (",", ";", "\t")
_PEEK: Final = 65536
_LINES_TYPES: Final = frozenset({"x-ndjson", "ndjson", "jsonl", "x-jsonl", "jsonlines", "x-jsonlines", "stream+json"})
# Gzip files are unpacked before a body gets here.
_FILES: Final = {b"PK\x03\x04": "a ZIP file", b"\x28\xb5\x2f\xfd": "Zstandard"}
_DECODED: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_TABLE_TYPES: Final = frozenset({"csv", "tab-separated-values", "x-csv", "tsv"})


def _read_leniently(body: bytes, charset: str) -> tuple[Any, list[str]]:
    """Return the value of a body that isn't strict JSON, and a list of the replacements.

    Null replaces numbers that JSON doesn't have, and U+FFFD bytes that are not text. Control characters are kept, and
    are
    not in the list.

    :raises ValueError: it isn't nearly JSON either
    :raises RecursionError: it is too deep
    """
    found: list[str] = []
    try:
        text = body.decode(charset)
    except UnicodeDecodeError as error:
        found.append(f"a byte that is not {charset.upper()}, at {error.start} of {len(body)}")
        text = body.decode(charset, "replace")

    def note(what: str) -> None:
        if what not in found:
            found.append(what)

    def number(digits: str) -> float | None:
        value = read_number(digits)
        if math.isfinite(value):
            return value
        note("a number beyond 1.8e308")
        return None

    value = json.loads(text, parse_int=read_integer, parse_float=number, parse_constant=note, strict=False)
    if _HALF.search(text):
        value = _whole_texts(value, lambda: note("half of a surrogate pair"))
    return value, found


def format_of(body: bytes, media_type: str) -> str | None:
    """Return the name of a body's format other than JSON; None if it is unknown."""
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
        whole = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if whole != value:
            note()
        return whole
    if isinstance(value, dict):
        return {_whole_texts(key, note): _whole_texts(item, note) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_texts(item, note) for item in value]
    return value


_UNREAD: Final = object()
_EXCERPT: Final = 200


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
    if body.startswith(BOM_UTF8):
        body = body[3:]
    charset = charset_of(headers)
    try:
        plain = is_utf8(charset)
        return loads(body if plain else body.decode(charset).encode())
    except (orjson.JSONDecodeError, UnicodeError, LookupError) as error:
        problem = type(error).__name__ if not isinstance(error, orjson.JSONDecodeError) else error.msg
    if not body.strip():
        raise UnreadableBody("the answer's body is empty")
    shown = shown_size(body, headers)
    try:
        value, found = _read_leniently(body, "utf-8" if plain else charset)
    except (ValueError, LookupError, RecursionError):
        pass
    else:
        if lenient:
            return value
        raise BadValues(f"the answer is not strict JSON ({', '.join(found) or problem}; {shown})")
    form = format_of(body, media_type_of(headers))
    if form == "HTML":
        raise UnreadableBody(f"the answer is HTML, not JSON ({shown}): a login page?")
    if form is not None:
        known = {"CSV": "declare records: {format: csv}", "JSON Lines": "declare records: {format: jsonl}"}
        remedy = known.get(form, "read the stream by a Python class")
        raise AnotherFormat(
            f"the answer is {form}, not JSON ({shown}): {remedy}, or ask the API for JSON, e.g. by request.headers:"
            " {Accept: application/json}"
        )
    raise UnreadableBody(f"the answer is not JSON ({problem}; {shown})")


BodyReader: TypeAlias = Callable[[bytes, Mapping[str, str], bool], Any]
"""Makes the content of a body, its headers and whether values may be replaced; raises UnreadableBody."""


@dataclass(slots=True)
class Answer:
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
        """Return the value for predicates: the content, else the body as JSON (many errors are); else None."""
        for read in (self.content, self.json) if self.status // 100 == 2 else (self.json,):
            with contextlib.suppress(UnreadableBody):
                return read()
        return None

    def text(self) -> str:
        """Return the body as text; bytes that aren't UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def describe(self, redactor: Redactor) -> str:
        """Return the status and the beginning of the body, for messages."""
        shown = excerpt(self.text(), redactor)
        return f"{self.status} {self.reason}".strip() + (f": {shown}" if shown else "")


def excerpt(text: str, redactor: Redactor) -> str:
    """Return the beginning of a text on one line, without secrets."""
    text = " ".join(redactor.text(text).split())
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer, or none that can be used.

    :ivar permanent: asking again can't help
    """

    message: str
    request: str
    permanent: bool = False
