"""What a sink declares, and how far it is: plain values, which plans compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from airflow_provider_rfr.exceptions import Problem

CHOICES: Final = ("hold", "resume_from_new", "resend")
"""What can become of a sink whose source was emptied or replaced."""
_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {"files": ("path", "format"), "http": ("connection", "path")}
"""By target; the first has to be given."""
_COMMON: Final = ("batch_size", "emit", "keys")
_WORDS: Final = (("format", "is not a format", ("jsonl", "parquet")), ("emit", "is unknown", ("rows", "diff")))
"""Settings that are one of some words, the default first."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """An export.

    :ivar source: name of the object that is exported
    :ivar to: ``files`` or ``http``
    :ivar settings: ``path`` and ``format`` (jsonl, parquet) of files; ``connection`` and ``path`` of HTTP; of both
        ``batch_size``, ``emit`` (rows, diff) and ``keys``
    :ivar columns: names of the sent columns in the payload; empty for the columns that the source had when the sink
        was registered, under the names that they have there
    :ivar follow_schema: every column is sent, those that come later too
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
    """How far an export is.

    :ivar source: id of the object that it exports
    :ivar cursor: snapshot up to which everything was sent; None before the first batch
    :ivar on_replace: what to do when its source is emptied; None: undecided
    """

    uuid: UUID
    name: str
    source: UUID
    cursor: int | None = None
    on_replace: str | None = None


def findings(sink: SinkSpec) -> Iterator[Problem]:
    """What is wrong with a declaration by itself."""
    if sink.on_replace not in CHOICES:
        yield Problem("sink.on_replace", f"{sink.on_replace!r} is unknown", _one_of(CHOICES))
    if sink.to not in _SETTINGS:
        yield Problem("sink.to", f"{sink.to!r} is not a target", _one_of(_SETTINGS))
        return
    needed, settings = _SETTINGS[sink.to][0], sink.settings
    known = (*_SETTINGS[sink.to], *_COMMON)
    for name in sorted(settings.keys() - set(known)):
        yield Problem(f"sink.settings.{name}", f"is not a setting of a sink to {sink.to}", _one_of(known))
    if not isinstance(settings.get(needed), str) or not settings[needed]:
        yield Problem("sink.settings", f"a sink to {sink.to} has settings.{needed}, a text")
    for name, problem, words in _WORDS:
        if (word := settings.get(name, words[0])) not in words:
            yield Problem(f"sink.settings.{name}", f"{word!r} {problem}", _one_of(words))
    keys = settings.get("keys", ())
    if not isinstance(keys, (list, tuple)) or not all(isinstance(each, str) for each in keys):
        yield Problem("sink.settings.keys", f"{keys!r} is not a list of columns")
    size = settings.get("batch_size", 1)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        yield Problem("sink.settings.batch_size", f"{size!r} is not a number of rows", "e.g. 500")


def _one_of(names: Iterable[str]) -> str:
    return f"allowed: {', '.join(names)}"
