"""Formats for the templates: numbers, times and errors as people read them, and code that reads a table."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.http.redaction import without_credentials
from airflow_provider_rfr.refresh.state import duration_in_words, rate_in_words, size_in_words
from airflow_provider_rfr.streams.repeats import in_words as errors
from airflow_provider_rfr.text import cut, quantity

if TYPE_CHECKING:
    from airflow_provider_rfr.lake import LakeSettings

_SHOWN_PROPERTIES: Final = ("type", "uri", "warehouse")
_LONGEST_KEY: Final = 60
# The password in the address of a database may contain / ? #, which end the login in a web address.
_LOGIN: Final = re.compile(
    r"(://)(?: [^\s/?#]* | (?<!http://)(?<!https://)(?<!hdfs://)[^\s:/?#@]*:(?!//)[^\s@]* )@",
    re.VERBOSE | re.IGNORECASE,
)
# The query of an address, of a path, or of a bare name if it is certainly a query. It ends before the next space, and
# before a bracket, a colon and the like in front of that.
_QUERY: Final = re.compile(
    r"""
    ( https?://[^\s?#]{0,2000}[?#](?=\S) | /[^\s/?#]*\?(?=\S) | \?(?=[\w%.\[\]-]+=) )
    \S*? (?= ["'\])>.,:;]{0,4}(?:\s|\Z) )
    """,
    re.VERBOSE | re.IGNORECASE,
)
# The word before a page token in errors of this package. The token follows as JSON or as Python's repr, perhaps cut.
_TOKEN: Final = re.compile(r"(\btoken(?: is)? )(?=[\"'\[{]|-?\d)")
_PIECE: Final = re.compile(
    r"""
    "(?:[^"\\]|\\.)*(?:"|\\?\Z) | '(?:[^'\\]|\\.)*(?:'|\\?\Z) | (?P<opens>[\[{]) | (?P<closes>[\]}]) | -?\d[^\s\]},]*
    """,
    re.VERBOSE | re.DOTALL,
)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate in pages per second."""
    return "" if value is None else f"{rate_in_words(value)}/s"


def size(value: float | None) -> str:
    return "" if value is None else size_in_words(value)


def duration(seconds: float | None) -> str:
    return "" if seconds is None else duration_in_words(seconds)


def ago(moment: datetime | None) -> str:
    if moment is None:
        return ""
    return f"{duration(max(0.0, (datetime.now(timezone.utc) - moment).total_seconds()))} ago"


def clock(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def date(moment: datetime) -> str:
    """Return a date with hour and minute, for places where seconds do not matter."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def at(milliseconds: int | None) -> datetime | None:
    """Convert a time of the control store; None for None, and for a time out of Python's range."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def short(text: Any) -> str:
    """Return a partition's key, cut if it is long."""
    return cut(str(text), _LONGEST_KEY)


def without_cursors(text: str) -> str:
    """Mask page tokens in an error, and the queries and logins of addresses.

    Queries may hold page tokens, which may be valid for days.
    """
    kept, place = [], 0
    while (found := _TOKEN.search(text, place)) is not None:
        kept += [text[place : found.end()], "***"]
        # The token ends where its brackets are closed, or with the text if it is cut off.
        place, depth = len(text), 0
        for piece in _PIECE.finditer(text, found.end()):
            depth += (piece["opens"] is not None) - (piece["closes"] is not None)
            if depth == 0:
                place = piece.end()
                break
    return _QUERY.sub(r"\1***", _LOGIN.sub(r"\1***@", "".join([*kept, text[place:]])))


FILTERS: Final = {
    function.__name__: function for function in (number, quantity, rate, size, duration, ago, clock, date, at, short)
} | {
    "errors": errors,
    # For shell commands that users copy.
    "quoted": shlex.quote,
}


def snippets(table: str, lake: LakeSettings | None) -> tuple[tuple[str, str], ...]:
    """Return code that reads a table by several tools, as pairs of name and code; nothing if the lake is not known.

    Logins are masked. Only the catalog's type, address and warehouse are shown, because other properties may be secret.
    """
    if lake is None:
        return ()
    shown = {
        key: without_cursors(without_credentials(lake.properties[key]))
        for key in _SHOWN_PROPERTIES
        if key in lake.properties
    }
    lines = "".join(f"    {key}={value!r},\n" for key, value in shown.items())
    load = f"load_catalog(\n    {lake.name!r},\n{lines}).load_table({table!r})"
    names = ".".join(f"`{part.replace('`', '``')}`" for part in (lake.name, *table.split(".")))
    scan = """f"SELECT * FROM iceberg_scan('{table.metadata_location}') LIMIT 10\""""
    loading = f"from pyiceberg.catalog import load_catalog\n\ntable = {load}\n"
    return (
        ("PyIceberg", f"{loading}print(table.scan(limit=10).to_arrow())"),
        ("DuckDB", f'import duckdb\n{loading}duckdb.sql("INSTALL iceberg; LOAD iceberg")\nduckdb.sql({scan}).show()'),
        ("Spark SQL", f"SELECT * FROM {names} LIMIT 10"),
    )
