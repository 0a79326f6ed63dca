"""What a source is made of: streams, with or without a state of their own."""

from __future__ import annotations

import copy
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.json_values import canonical_json
from airflow_provider_rfr.streams.slices import SliceError

PrimaryKey: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]] | None


class Stream(ABC):
    """One table's worth of records at an API.

    ``read_records`` yields the records of one slice.  A stream that wants to be resumed page by page is
    a PagedStream, or has a ``state`` (see StateMixin).

    :ivar name: without one, the class's name in snake case
    :ivar namespace: tells streams of one name apart, e.g. a database schema
    :ivar primary_key: a field, several, or paths of fields; None if there is none
    :ivar json_schema: None lets the schema be inferred from the records
    :ivar cursor_field: the field (or path) by which the stream reads incrementally; empty if it doesn't
    :ivar partition_fields: the fields of a slice that identify it; None for all of them.  A parent's
        ``updated_at`` must not be among them: a slice that changes between two attempts is a new one
    :ivar page_size: part of the fingerprint: pages of another size don't join the old ones
    :ivar public_config: the source's configuration without secrets, part of the fingerprint too
    :ivar paces_itself: the stream asks ``context.limiter`` itself, before each of its requests
    """

    name: str
    namespace: str | None = None
    primary_key: PrimaryKey = None
    json_schema: Mapping[str, Any] | None = None
    cursor_field: str | Sequence[str] = ()
    partition_fields: Sequence[str] | None = None
    page_size: int | None = None
    public_config: Mapping[str, Any] | None = None
    paces_itself: bool = False
    _context: ReadContext | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        stream = super().__new__(cls)
        if not hasattr(cls, "name"):
            vars(stream)["name"] = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        return stream

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """The units of work; by default the stream is one, with nothing to tell it by."""
        yield {}

    @abstractmethod
    def read_records(
        self,
        stream_slice: Mapping[str, Any] | None = None,
        stream_state: Mapping[str, Any] | None = None,
    ) -> Iterable[Mapping[str, Any]]:
        """The records of one slice; of one page of it, if the stream has a ``state`` and no cursor field.

        A LogMessage among them is passed on; anything else that is no mapping is an error.
        """

    @property
    def supports_checkpointing(self) -> bool:
        """Whether an attempt can go on where the one before ended, rather than start the slice again."""
        return bool(self.cursor_field) or has_settable_state(self)

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        """Canonical JSON of the fields that identify a slice; equal in every attempt and process.

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
        """What decides which requests are sent: JSON, without secrets, schema and primary key."""
        kind = type(self)
        return {
            "class": f"{kind.__module__}:{kind.__qualname__}",
            "name": self.name,
            "page_size": self.page_size,
            "config": dict(self.public_config or {}),
        }

    @property
    def context(self) -> ReadContext:
        """What ``bind`` gave; before that, one that neither limits nor stops."""
        return self._context or ReadContext()

    def bind(self, context: ReadContext) -> None:
        """Give the stream the rate budget and the stop signal of the process that reads it."""
        self._context = context

    def private_copy(self) -> Stream:
        """A copy that shares nothing mutable with this one but the context.

        Override it if the stream holds what can't be copied (a lock, an open connection).
        """
        context = self._context
        memo: dict[int, Any] = {} if context is None else {id(context): context}
        return copy.deepcopy(self, memo)


class StateMixin(ABC):
    """For streams that keep their position themselves.

    ``state`` is set before a page is read, and taken after it: ``{}`` or NotStarted at the start, a
    mapping or NextPage for the next page, the completion sentinel or Complete at the end.  Which of the
    two kinds the stream gets is the kind that its getter returns.  The state must say everything: the
    next page may be read by another instance, in another process.  In a stream with several slices it is
    the state of the slice being read.  In a stream with a cursor field it's the mapping that an
    incremental read goes on from.
    """

    @property
    @abstractmethod
    def state(self) -> Any:
        """The position after what was read so far."""

    @state.setter
    @abstractmethod
    def state(self, value: Any) -> None:
        """Go on from ``value``."""


class IncrementalMixin(StateMixin):
    """Deprecated name of StateMixin."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        warnings.warn(
            f"{cls.__qualname__}: IncrementalMixin is deprecated, use StateMixin",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init_subclass__(**kwargs)


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A line for the log; streams may yield it among their records, and it never is one.

    :ivar level: a level's name of Python's logging
    """

    message: str
    level: str = "INFO"


def has_settable_state(stream: Stream) -> bool:
    """Whether the stream keeps its position in ``state``, a property with a setter or an attribute."""
    declared = getattr(type(stream), "state", None)
    if isinstance(declared, property):
        return declared.fset is not None
    return declared is not None or "state" in vars(stream)
