"""What a body is that a strict reader of JSON refuses: nearly JSON, another format, or something broken.

Nearly JSON is what most readers take all the same, and what no repetition of the request changes: ``NaN``, numbers
beyond a double, halves of surrogate pairs, bytes that are not UTF-8, control characters in texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final

from airflow_provider_rfr.streams.json_numbers import read_integer, read_number

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SEPARATORS: Final = (",", ";", "\t")
_PEEK: Final = 65536
_LINES_TYPES: Final = frozenset({"x-ndjson", "ndjson", "jsonl", "x-jsonl", "jsonlines", "x-jsonlines", "stream+json"})
_TABLE_TYPES: Final = frozenset({"csv", "tab-separated-values", "x-csv", "tsv"})


def read_leniently(body: bytes, charset: str) -> tuple[Any, list[str]]:
    """The value, with null for numbers that aren't any and U+FFFD for what is no text; and what that was.

    Control characters stay as they are, and are not in the list.

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
    """The name of the format that the body has instead of JSON; None if it is none that is known here."""
    kind = media_type.lower().rpartition("/")[2]
    head = body[:_PEEK].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if "html" in kind or re.match(r"<!doctype html|<html", head, re.IGNORECASE):
        return "HTML"
    if kind == "xml" or kind.endswith("+xml") or head.startswith("<?xml"):
        return "XML"
    if kind in _LINES_TYPES or _is_several_values(head):
        return "JSON Lines"
    return "CSV" if kind in _TABLE_TYPES or ("json" not in kind and _is_table(head)) else None


def _is_several_values(head: str) -> bool:
    """Whether another value follows the first one; a first value that is longer than what is looked at says no."""
    try:
        value, end = json.JSONDecoder().raw_decode(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, (dict, list)) and head[end:].lstrip("\x1e \t\r\n")[:1] in ("{", "[")


def _is_table(head: str) -> bool:
    lines = head.splitlines()[:2]
    if len(lines) < 2 or head[0] in "{[<":
        return False
    return any(lines[0].count(sign) == lines[1].count(sign) > 0 for sign in _SEPARATORS)


def _whole_texts(value: Any, note: Callable[[], None]) -> Any:
    """The value with U+FFFD for each half of a surrogate pair."""
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
