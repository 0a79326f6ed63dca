"""The parts of a source: streams, their columns, slices, pages, tokens and states.

A page token may be any JSON value except None: ``0``, ``""`` and ``False`` are tokens. States have one JSON form
(``dump_state``), which carries a version; ``load_state`` also reads the forms that Airbyte's Python CDK wrote.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import orjson

from airflow_provider_rfr.exceptions import BackoffInterrupted, ConfigurationError, ReadInterrupted
from airflow_provider_rfr.numbers import dumps, holds_long_number

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.incremental import ChangesRead
    from airflow_provider_rfr.streams.repeats import RetriedErrors
    from airflow_provider_rfr.streams.tokens import TokenOwner

_log = logging.getLogger(__name__)


class Limiter(Protocol):
    """A rate budget that many readers share."""

    def acquire(self) -> None:
        """Block until one request may be sent.

        :raises ReadInterrupted: the reader was stopped while it waited
        """

    def penalize(self, seconds: float) -> None:
        """Make all readers that share the budget wait: the API said "too many requests"."""


class _Unlimited:
    """A budget that never runs out, and ignores penalties: only the reader that got the 429 waits."""

    def acquire(self) -> None:
        return None

    def penalize(self, seconds: float) -> None:
        return None


def _own_tokens() -> TokenOwner:
    # Imported here, because parsing a DAG imports this module and obtains no tokens.
    from airflow_provider_rfr.streams.tokens import OwnTokens

    return OwnTokens()


def _no_errors() -> RetriedErrors:
    # Imported here for the same reason: parsing a DAG sends no requests.
    from airflow_provider_rfr.streams.repeats import RetriedErrors

    return RetriedErrors()


ParentReader: TypeAlias = Callable[[Any], Iterator[tuple[Mapping[str, Any], "Page"]]]
"""Yields all pages of a parent stream, with their slices."""


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The rate budget, the stop signal and the token owner of one process that reads streams.

    A copy that is unpickled in another process has the defaults, which neither limit nor stop.

    :ivar limiter: asked for a permit before each request
    :ivar stop: once set, reads end at the next request or sleep
    :ivar tokens: obtains the tokens of logins and OAuth2 grants
    :ivar retried: counts the errors after which requests are sent again
    :ivar read_parent: reads parent streams, where their pages are shared with other streams; None to read the API
    """

    limiter: Limiter = field(default_factory=_Unlimited)
    stop: threading.Event = field(default_factory=threading.Event)
    tokens: TokenOwner = field(default_factory=_own_tokens)
    read_parent: ParentReader | None = None
    retried: RetriedErrors = field(default_factory=_no_errors)

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, or until the reader is asked to stop.

        :raises BackoffInterrupted: the reader was asked to stop
        """
        if self.stop.wait(seconds):
            raise BackoffInterrupted("the reader was asked to stop")

    def check(self) -> None:
        """Check that the reader may go on.

        :raises ReadInterrupted: the reader was asked to stop
        """
        if self.stop.is_set():
            raise ReadInterrupted("the reader was asked to stop")

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadContext, ()


_JsonValue: TypeAlias = bool | int | float | str | Sequence["_JsonValue"] | Mapping[str, "_JsonValue"] | None


def canonical_json(value: Any, *, field: str = "value") -> str:
    """Return JSON with sorted keys and without whitespace.

    Equal values have equal texts, on every machine and in every attempt.

    :param field: the field that the error names
    :raises ConfigurationError: the value isn't JSON (dates and decimals have to be written as text)
    """
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_mapping_as_dict
        )
        return dumps(value, orjson.OPT_SORT_KEYS).decode() if holds_long_number(value) else text
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            field, f"{value!r} is not a JSON value ({error})", "use text, numbers, lists and mappings"
        ) from error


def _mapping_as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_STATE_VERSION: Final = 1
_COMPLETE_SENTINEL: Final[Mapping[str, Any]] = {"__ab_full_refresh_sync_complete": True}
_NO_CURSOR_SENTINEL: Final[Mapping[str, Any]] = {"__ab_no_cursor_state_message": True}
_VERSIONED_KEYS: Final = frozenset({"version", "state", "token"})


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A state in which no page was read; the next one is the first."""


@dataclass(frozen=True, slots=True)
class NextPage:
    """A state in which every page before ``token`` was read.

    :ivar token: all that is needed to ask for the page, in another process too
    """

    token: _JsonValue

    def __post_init__(self) -> None:
        if self.token is None:
            raise ValueError("None is not a page token; the first page is NotStarted(), the end is Complete()")
        if not isinstance(self.token, (str, int)):
            canonical_json(self.token, field="page token")


@dataclass(frozen=True, slots=True)
class Complete:
    """Every page was read."""


State: TypeAlias = NotStarted | NextPage | Complete


def dump_state(state: State) -> dict[str, Any]:
    """Return the JSON form that is stored; ``load_state`` reads it back to an equal state."""
    if isinstance(state, NextPage):
        return {"version": _STATE_VERSION, "state": "next_page", "token": state.token}
    name = "complete" if isinstance(state, Complete) else "not_started"
    return {"version": _STATE_VERSION, "state": name}


def load_state(value: Any) -> State:
    """Read a state in any form that was ever stored.

    None, ``{}`` and the CDK's "no cursor" marker are NotStarted; the CDK's completion sentinel is Complete;
    ``{"next_page_token": X}`` is NextPage(X). Any other mapping or bare value is the page token itself.

    :raises ConfigurationError: a versioned state has an unknown version, or is malformed
    """
    if isinstance(value, (NotStarted, NextPage, Complete)):
        return value
    if value is None:
        return NotStarted()
    if not isinstance(value, Mapping):
        return NextPage(value)
    if not value or value == _NO_CURSOR_SENTINEL:
        return NotStarted()
    if value == _COMPLETE_SENTINEL:
        return Complete()
    if {"version", "state"} <= value.keys() <= _VERSIONED_KEYS:
        return _load_versioned(value)
    if value.keys() == {"next_page_token"}:
        token = value["next_page_token"]
        return NotStarted() if token is None else NextPage(token)
    return NextPage(dict(value))


def flat_state(state: State) -> dict[str, Any]:
    """Return the state in the CDK's form: ``{}`` at the start, the token's mapping, the sentinel at the end.

    ``load_state(flat_state(s)) == s`` for every state: a token that would be mistaken for something
    else, or is not a mapping, is wrapped as ``{"next_page_token": token}``.
    """
    if isinstance(state, NotStarted):
        return {}
    if isinstance(state, Complete):
        return dict(_COMPLETE_SENTINEL)
    token = state.token
    if not isinstance(token, Mapping) or not token or token in (_COMPLETE_SENTINEL, _NO_CURSOR_SENTINEL):
        return {"next_page_token": token}
    if {"version", "state"} <= token.keys() <= _VERSIONED_KEYS or token.keys() == {"next_page_token"}:
        return {"next_page_token": token}
    return dict(token)


def _load_versioned(value: Mapping[str, Any]) -> State:
    version, name = value["version"], value["state"]
    if version != _STATE_VERSION or isinstance(version, bool):
        raise ConfigurationError(
            "stream_state.version",
            f"{version!r} is unknown; this release reads version {_STATE_VERSION}",
            "use the release that wrote the state, or start again with force_restart",
        )
    if name == "next_page" and value.get("token") is not None:
        return NextPage(value["token"])
    if name in ("not_started", "complete") and "token" not in value:
        return Complete() if name == "complete" else NotStarted()
    raise ConfigurationError(
        "stream_state.state",
        f"{dict(value)!r} is not a state",
        "allowed are not_started, complete, and next_page with a token",
    )


_RESERVED_KEYS = frozenset({"partition", "cursor_slice"})


class SliceError(ConfigurationError, ValueError):
    """A stream slice has the wrong shape."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__("stream_slices", problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.remedy)


class StreamSlice(Mapping[str, Any]):
    """A partition, and the position from which it is read on.

    As a mapping it is flat, and the partition's keys win over a token's keys of the same name; ``partition`` and
    ``cursor_slice`` keep the two apart.  It equals every mapping with the same items.

    :ivar partition: identifies the unit of work; ``{}`` for a stream that isn't divided
    :ivar cursor_slice: state in the flat form, ``{}`` at the start
    """

    __slots__ = ("cursor_slice", "partition")

    def __init__(
        self, partition: Mapping[str, Any] | None = None, cursor_slice: Mapping[str, Any] | None = None
    ) -> None:
        self.partition: Mapping[str, Any] = dict(partition or {})
        self.cursor_slice: Mapping[str, Any] = dict(cursor_slice or {})

    @property
    def state(self) -> State:
        """Return the cursor slice as a structured state."""
        return load_state(self.cursor_slice)

    def __getitem__(self, key: str) -> Any:
        return self.partition[key] if key in self.partition else self.cursor_slice[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.partition
        yield from (key for key in self.cursor_slice if key not in self.partition)

    def __len__(self) -> int:
        return len(self.partition.keys() | self.cursor_slice.keys())

    def __repr__(self) -> str:
        return f"StreamSlice(partition={self.partition!r}, cursor_slice={self.cursor_slice!r})"


def as_stream_slice(value: Any) -> StreamSlice:
    """Return a stream's own slice as a StreamSlice; None, as old streams yield, is the empty one.

    :raises SliceError: it is not a mapping
    """
    if isinstance(value, StreamSlice):
        return value
    if value is None or isinstance(value, Mapping):
        return StreamSlice(partition=value)
    raise SliceError(f"{value!r} is not a mapping", "yield one mapping for each unit of work")


def legacy_slice(stream_slice: StreamSlice) -> dict[str, Any]:
    """Return the dictionary that streams written for the CDK get: flat keys, and both parts by name.

    :raises SliceError: the partition has a key named ``partition`` or ``cursor_slice``
    """
    taken = _RESERVED_KEYS & stream_slice.partition.keys()
    if taken:
        raise SliceError(
            f"a slice may not have the key {sorted(taken)[0]!r}, which is reserved",
            "rename it, or make the stream a PagedStream",
        )
    parts = {"partition": dict(stream_slice.partition), "cursor_slice": dict(stream_slice.cursor_slice)}
    return {**stream_slice, **parts}


PrimaryKey: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]] | None


def key_paths(primary_key: PrimaryKey) -> tuple[tuple[str, ...], ...]:
    """Return the path of each field of the key."""
    if primary_key is None:
        return ()
    parts = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    return tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)


class Stream(ABC):
    """The records of an API that belong in one table.

    ``read_records`` yields the records of one slice.  To be resumed page by page, a stream is a PagedStream, or has a
    ``state`` (see StateMixin).

    :ivar name: without one, the class's name in snake case
    :ivar namespace: distinguishes streams of the same name, e.g. a database schema
    :ivar primary_key: a field, several, or paths of fields; None if there is none
    :ivar json_schema: None lets the schema be inferred from the records
    :ivar columns: types of single columns by name, e.g. ``{"created_at": "timestamp"}``; they win over inferred and
        declared types, see docs/sources.md
    :ivar additional_fields: treatment of fields that ``json_schema`` does not name: ``drop`` or ``keep``
    :ivar casts: whether text that holds a number or a boolean fits a column of that type, and an object fits a string
        column as its JSON text
    :ivar cursor_field: the field (or path) by which the stream reads incrementally; empty if it doesn't
    :ivar cursor_type: type of that field's values: moments of ISO 8601 or of a timestamp column, integers, or texts. Of
        two versions of a record, the one with the greater value is newer
    :ivar incremental: how the stream reads the records that changed; None if it can't
    :ivar why_not_incremental: problem and remedy where it can't
    :ivar partition_fields: the fields of a slice that identify it; None for all of them.  A parent's
        ``updated_at`` must not be among them: a slice that changes between two attempts is a new one
    :ivar page_size: records of a full page; part of the fingerprint, because a refresh can't resume with another size
    :ivar public_config: the source's configuration without secrets, part of the fingerprint too
    :ivar paces_itself: whether the stream itself asks ``context.limiter`` before each of its requests
    :ivar requests_per_second: the API's limit; a refresh keeps to it if its option of this name is not set
    :ivar max_concurrency: most requests in flight that the API allows; bounds the option ``concurrency``
    """

    name: str
    namespace: str | None = None
    primary_key: PrimaryKey = None
    json_schema: Mapping[str, Any] | None = None
    columns: Mapping[str, str] | None = None
    additional_fields: Literal["keep", "drop"] = "drop"
    casts: bool = False
    cursor_field: str | Sequence[str] = ()
    cursor_type: Literal["datetime", "integer", "text"] = "datetime"
    incremental: ChangesRead | None = None
    why_not_incremental: tuple[str, str] = (
        "is not declared",
        "add incremental: {cursor_field, start, send_as}, or to a class cursor_field and state; or load it by"
        " ResumableFullRefreshOperator",
    )
    partition_fields: Sequence[str] | None = None
    page_size: int | None = None
    public_config: Mapping[str, Any] | None = None
    paces_itself: bool = False
    requests_per_second: float | None = None
    max_concurrency: int | None = None
    _context: ReadContext | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        stream = super().__new__(cls)
        if not hasattr(cls, "name"):
            vars(stream)["name"] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return stream

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """Return the units of work; by default the whole stream is one, ``{}``."""
        yield {}

    @abstractmethod
    def read_records(
        self, stream_slice: Mapping[str, Any] | None = None, stream_state: Mapping[str, Any] | None = None
    ) -> Iterable[Mapping[str, Any]]:
        """Read the records of one slice; of one page of it, if the stream has a ``state`` and no cursor field.

        A LogMessage among them is passed on; anything else that is not a mapping is an error.
        """

    @property
    def supports_checkpointing(self) -> bool:
        """Tell whether an attempt can continue where the one before ended, rather than start the slice again."""
        return bool(self.cursor_field) or has_settable_state(self)

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        """Return canonical JSON of the fields that identify a slice; equal in every attempt and process.

        :raises SliceError: a declared field is missing
        :raises ConfigurationError: a value isn't JSON
        """
        if self.partition_fields is None:
            return canonical_json(dict(stream_slice), field="stream_slices")
        missing = [name for name in self.partition_fields if name not in stream_slice]
        if missing:
            raise SliceError(f"{dict(stream_slice)!r} of {self.name} lacks the key field {missing[0]!r}")
        key = {name: stream_slice[name] for name in self.partition_fields}
        return canonical_json(key, field="stream_slices")

    def fingerprint(self) -> Mapping[str, Any]:
        """Return everything that decides which requests are sent: JSON, without secrets, schema and primary key."""
        kind = type(self)
        return {
            "class": f"{kind.__module__}:{kind.__qualname__}",
            "name": self.name,
            "page_size": self.page_size,
            "config": dict(self.public_config or {}),
        }

    def source_for_executors(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the source from which executors build this stream.

        Override it if building the stream from ``source`` sends requests, or reads files that executors do not have.
        """
        return source

    @property
    def context(self) -> ReadContext:
        """Return the context that was bound; before that, one that neither limits nor stops."""
        return self._context or ReadContext()

    def bind(self, context: ReadContext) -> None:
        """Give the stream the rate budget and the stop signal of the process that reads it."""
        self._context = context

    def private_copy(self) -> Stream:
        """Return a copy that shares nothing mutable with this one but the context.

        Override it if the stream holds an object that can't be copied (a lock, an open connection).
        """
        context = self._context
        memo: dict[int, Any] = {} if context is None else {id(context): context}
        return copy.deepcopy(self, memo)


class StateMixin(ABC):
    """A mixin for streams that keep their position themselves.

    The engine sets ``state`` before it reads a page, and gets it afterwards: ``{}`` or NotStarted at the start, a
    mapping or NextPage for the next page, the completion sentinel or Complete at the end.  The setter receives these
    classes if the getter returns them, else mappings.  The state must be all that the next page needs, because another
    instance in another process may read it.  In a stream with several slices it is the state of the slice being read.
    In a stream with a cursor field it is the mapping of JSON values from which the next sync continues the slice, e.g.
    ``{"updated_at": "2026-01-31T06:00:00Z"}``.
    """

    @property
    @abstractmethod
    def state(self) -> Any:
        """Return the position after the records that were read so far."""

    @state.setter
    @abstractmethod
    def state(self, value: Any) -> None:
        """Continue from ``value``."""


class IncrementalMixin(StateMixin):
    """Deprecated name of StateMixin."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        warnings.warn(
            f"{cls.__qualname__}: IncrementalMixin is deprecated, use StateMixin", DeprecationWarning, stacklevel=2
        )
        super().__init_subclass__(**kwargs)


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line for the log, which streams may yield among their records.

    :ivar level: name of a level of Python's logging
    """

    message: str
    level: str = "INFO"


_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_INSTANT: Final = {"type": "string", "format": "date-time"}
_COLUMN_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    **dict.fromkeys(("int", "long", "bigint"), _INTEGER),
    **dict.fromkeys(("float", "double"), _NUMBER),
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    **dict.fromkeys(("timestamp", "timestamptz"), _INSTANT),
    "timestamp_ntz": {**_INSTANT, "airbyte_type": "timestamp_without_timezone"},
    "json": {},
}
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)", re.ASCII)
_MOST_DIGITS: Final = 38


def column_schema(kind: str) -> Mapping[str, Any]:
    """Return the JSON schema of a column of that type.

    :raises ValueError: unknown type; the text lists the types
    """
    name = kind.strip().lower()
    if name in _COLUMN_TYPES:
        return _COLUMN_TYPES[name]
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 1 <= precision <= _MOST_DIGITS and scale <= precision:
            return {"type": "number", "format": f"decimal({precision},{scale})"}
        raise ValueError(
            f"{kind!r}: a decimal has 1 to {_MOST_DIGITS} digits, and not more than those behind the point"
        )
    quotes = '; quote a type that holds a comma: "decimal(10, 2)"' if name.startswith("decimal") else ""
    raise ValueError(f"{kind!r} is not a type; write one of {', '.join(_COLUMN_TYPES)}, decimal(p, s){quotes}")


def hinted_schema(columns: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Return the JSON schema of the columns whose types a stream sets.

    :raises ConfigurationError: a type does not exist
    """
    properties = {}
    for name, kind in (columns or {}).items():
        try:
            properties[name] = column_schema(kind)
        except ValueError as error:
            raise ConfigurationError(f"columns.{name}", str(error)) from None
    return {"type": "object", "properties": properties}


def unique_slices(stream: Stream, slices: Iterable[Mapping[str, Any]] | None = None) -> Iterator[StreamSlice]:
    """Yield the stream's slices, each partition key once; log a warning about the first duplicate.

    :param slices: by default those that the stream lists
    """
    seen: set[str] = set()
    warned = False
    for item in stream.stream_slices() if slices is None else slices:
        stream_slice = as_stream_slice(item)
        key = stream.partition_key(stream_slice.partition)
        if key not in seen:
            seen.add(key)
            yield stream_slice
        elif not warned:
            warned = True
            _log.warning("%s: partition %s is listed twice and read once", stream.name, key)


def has_settable_state(stream: Stream) -> bool:
    """Tell whether the stream keeps its position in ``state``, a property with a setter or an attribute."""
    declared = getattr(type(stream), "state", None)
    if isinstance(declared, property):
        return declared.fset is not None
    return declared is not None or "state" in vars(stream)


@dataclass(frozen=True, slots=True, init=False)
class Page:
    """A page: records, and the state that follows them.

    :ivar records: all records of the page; a page that was read in part is not a Page
    :ivar next: NextPage or Complete, never NotStarted.  The constructor also takes a bare token, and
        None for Complete
    :ivar total_pages: pages of this partition, if the API says so
    :ivar request: method and address, e.g. ``GET /orders?page=3``; never credentials
    :ivar status: HTTP status
    :ivar skipped: reason, when an ignored error left this page without records
    :ivar received: records that the API sent, before any filter; None if unknown
    :ivar unconfirmed: the page is empty, and nothing else in the answer shows that no records are missing: after a
        full page it is requested once more before it counts
    :ivar promised: records that the partition has by the API's own count; None if the API does not say
    :ivar absent: a sentence that names the field and describes the answer, where the first page is taken for the only
        one because it lacks the field that leads to the next page
    :ivar is_beyond: by the API's own count there is no such page, so it is the end if it repeats an earlier one
    """

    records: Sequence[Mapping[str, Any]]
    next: State
    total_pages: int | None
    request: str | None
    status: int | None
    skipped: str | None
    received: int | None
    unconfirmed: bool
    promised: int | None
    absent: str | None
    is_beyond: bool

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        next: State | _JsonValue = None,
        total_pages: int | None = None,
        request: str | None = None,
        status: int | None = None,
        skipped: str | None = None,
        received: int | None = None,
        unconfirmed: bool = False,
        promised: int | None = None,
        absent: str | None = None,
        is_beyond: bool = False,
    ) -> None:
        if isinstance(next, NotStarted):
            raise ValueError("a page is followed by NextPage(token) or Complete(), not by NotStarted()")
        if not isinstance(next, (NextPage, Complete)):
            next = Complete() if next is None else NextPage(next)
        assign = object.__setattr__
        assign(self, "records", records if isinstance(records, (list, tuple)) else list(records))
        assign(self, "next", next)
        assign(self, "total_pages", total_pages)
        assign(self, "request", request)
        assign(self, "status", status)
        assign(self, "skipped", skipped)
        assign(self, "received", received)
        assign(self, "unconfirmed", unconfirmed)
        assign(self, "promised", promised)
        assign(self, "absent", absent)
        assign(self, "is_beyond", is_beyond)

    @property
    def record_count(self) -> int:
        """Return the number of records that the API sent; where that is unknown, of those on the page."""
        return len(self.records) if self.received is None else self.received
