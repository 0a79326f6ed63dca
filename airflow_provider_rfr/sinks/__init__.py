"""Exports that continue across migrations: rows that were sent are not sent again, and each new row is sent once.

This module has the declaration and the progress of a sink as plain values, which plans compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.http.redaction import is_secret

CHOICES: Final = ("hold", "resume_from_new", "resend")
"""The choices for a sink whose source was emptied or replaced."""
_COMMON: Final = ("batch_size", "emit", "keys")
_SETTINGS: Final = {"files": ("path", "format", *_COMMON), "http": ("connection", "path", *_COMMON)}
"""Names of the settings, by kind of target; the first one is required."""
_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str, str]]] = {
    "batch_size": (lambda value: type(value) is int and value > 0, "is not a number of rows", "e.g. 500"),
    "emit": (("rows", "diff").__contains__, "is unknown", "allowed: rows, diff"),
    "format": (("jsonl", "parquet").__contains__, "is not a format", "allowed: jsonl, parquet"),
    "keys": (lambda keys: type(keys) in (list, tuple) and {*map(type, keys)} <= {str}, "is not a list of columns", ""),
}


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """The declaration of a sink.

    :ivar source: name of the object that is exported
    :ivar to: ``files`` or ``http``
    :ivar settings: ``path`` and ``format`` (jsonl, parquet) of files; ``connection`` and ``path`` of HTTP; of both
        ``batch_size``, ``emit`` (rows, diff) and ``keys``
    :ivar columns: names of the sent columns in the payload; empty for the columns that the source had when the sink
        was registered, under the names that they have there
    :ivar follow_schema: whether every column is sent, including those that are added later
    :ivar on_replace: what to do when the source is emptied or replaced: one of :data:`CHOICES`
    """

    source: str
    to: str
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    columns: tuple[str, ...] = ()
    follow_schema: bool = False
    on_replace: str = "hold"


@dataclass(frozen=True, slots=True)
class SinkState:
    """The progress of a sink that exports the object ``source``; ``cursor`` is None until the first window was sent."""

    uuid: UUID
    name: str
    source: UUID
    cursor: int | None = None
    on_replace: str | None = None


def findings(sink: SinkSpec) -> Iterator[Problem]:
    """Yield the problems with a declaration by itself."""
    settings, names = sink.settings, _SETTINGS.get(sink.to)
    if sink.on_replace not in CHOICES:
        yield Problem("sink.on_replace", f"{sink.on_replace!r} is unknown", f"allowed: {', '.join(CHOICES)}")
    if names is None:
        yield Problem("sink.to", f"{sink.to!r} is not a target", f"allowed: {', '.join(_SETTINGS)}")
        return
    if not isinstance(settings.get(names[0]), str) or not settings[names[0]]:
        yield Problem("sink.settings", f"a sink to {sink.to} has settings.{names[0]}, a text")
    # Plans and the registry show the path, which may be an address.
    try:
        address = urlsplit(str(settings.get("path") or ""))
    except ValueError:
        holds_credentials = True
    else:
        names_of_query = (name for name, _ in parse_qsl(address.query))
        holds_credentials = address.password is not None or any(map(is_secret, names_of_query))
    if holds_credentials:
        remedy = "put them into the connection" if sink.to == "http" else "give them to the workers' file system"
        yield Problem("sink.settings.path", "settings.path holds credentials", remedy)
    for name in sorted(settings.keys() - set(names)):
        allowed = f"allowed: {', '.join(names)}"
        yield Problem(f"sink.settings.{name}", f"is not a setting of a sink to {sink.to}", allowed)
    for name, (fits, problem, remedy) in _CHECKS.items():
        if name in settings and not fits(settings[name]):
            yield Problem(f"sink.settings.{name}", f"{settings[name]!r} {problem}", remedy)
