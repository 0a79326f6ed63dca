"""The base of streams whose pages can be read in any order, and adapters that make any stream such a one."""

from __future__ import annotations

import copy
import json
import logging
import threading
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

from airflow_provider_rfr.exceptions import ConfigurationError, RepeatedPageError, SourceDefinitionError, SourceError
from airflow_provider_rfr.numbers import read_number
from airflow_provider_rfr.streams.checkpoint import IncrementalCheckpointReader
from airflow_provider_rfr.streams.core import (
    Complete,
    LogMessage,
    NextPage,
    NotStarted,
    Page,
    ReadContext,
    SliceError,
    State,
    Stream,
    StreamSlice,
    as_stream_slice,
    canonical_json,
    flat_state,
    has_settable_state,
    legacy_slice,
    load_state,
    unique_slices,
)
from airflow_provider_rfr.streams.incremental import CursorColumn, StatefulRead

_log = logging.getLogger(__name__)


class PagedStream(Stream):
    """A stream that can read any page of any slice, in any order, on any thread.

    :ivar addressable: the token of every position is known beforehand (page numbers, offsets), so that
        pages of one slice can be read at the same time
    :ivar max_empty_pages: pages without records that may follow each other before the slice counts as endless
    :ivar absent_field_ends: whether a first page without the field that leads to the next page counts as the only one
    :ivar pages_by: how its pages follow each other, as text for people, e.g. ``page numbers``
    :ivar api_host: host and port of the API; None where they are not known
    :ivar resumable: the unit after which an interrupted refresh continues
    """

    addressable: bool = False
    max_empty_pages: int = 100
    absent_field_ends: bool = False
    pages_by: str = "its own code"
    api_host: str | None = None
    resumable: Literal["by page", "by slice", "one request", "no"] = "by page"

    @abstractmethod
    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        """Read one page.  Thread-safe, and without effect on any other page.

        :param token: None for the first page
        :raises TokenExpiredError: the API no longer knows the token; the slice is read from the start
        :raises SourceError: the page couldn't be read
        """

    def token_at(self, position: int) -> Any:
        """Return the token of the page at a position, from 0; None for the first page.

        :raises NotImplementedError: the stream is not ``addressable``
        """
        raise NotImplementedError(f"pages of {self.name} are not addressable")

    @property
    def supports_checkpointing(self) -> bool:
        return True

    def parent_streams(self) -> Sequence[PagedStream]:
        """Return the streams whose records the slices are made of, which :attr:`ReadContext.read_parent` reads."""
        return ()

    def read_records(
        self, stream_slice: Mapping[str, Any] | None = None, stream_state: Mapping[str, Any] | None = None
    ) -> Iterable[Mapping[str, Any]]:
        """Yield all records of the slice, from the page that ``stream_state`` names to the end."""
        for page in iter_pages(self, stream_slice, stream_state):
            yield from page.records


#: The problem of a next-page token that has a secret.
SECRET_IN_TOKEN = (
    "the next page's address or cursor has a secret outside of its query, and it would be stored in the ledger"
)
#: What to do about a chain that ended because its first page lacks the field that leads to the next one.
REMEDY_FOR_ABSENT_FIELD = (
    "correct the path; where the API leaves the field out if there is no next page, set paginator.page_size to the"
    " size of its pages, or on_missing: end"
)


def is_unexplained_end(page: Page, page_size: int | None) -> bool:
    """Tell whether a chain ended at a page that lacks the field of the next one, though more pages may follow.

    A page that is empty, or shorter than ``page_size``, explains itself.
    """
    count = page.record_count
    return page.absent is not None and count > 0 and (page_size is None or count >= page_size)


class AbsentFieldGuard:
    """A guard that refuses a load in which every partition ended at an absent field: its path is probably wrong.

    :param page_size: page size of the stream
    """

    def __init__(self, page_size: int | None) -> None:
        self._page_size = page_size
        self._is_known = False
        self._unexplained: Page | None = None

    def note(self, page: Page) -> None:
        """Take a page into account; the first page of each partition is enough."""
        if page.absent is None:
            # An error that was ignored, or an empty page, does not show that the field exists.
            self._is_known |= isinstance(page.next, NextPage) or (page.record_count > 0 and page.skipped is None)
        elif self._unexplained is None and is_unexplained_end(page, self._page_size):
            self._unexplained = page

    def check(self, place: str) -> None:
        """Check all pages that were noted.

        :raises SourceDefinitionError: no page has the field, and a page that lacks it may not be the last
        """
        page = self._unexplained
        if page is not None and not self._is_known:
            problem = f"no partition has a second page, and {page.absent} [{page.request}]"
            raise SourceDefinitionError(place, problem, REMEDY_FOR_ABSENT_FIELD)


_MAX_REPEATS = 100


class PageGuard:
    """A guard of one chain against pages that would end it too early or never.

    An empty page after a full one is requested once more before it counts: one wrong answer must not end a chain. A
    page is full if it has as many records as were asked for, or as the page before it, because servers cap page sizes.
    Where the page size is unknown, every page with records is full. And a chain fails after too many empty or equal
    pages in a row that each name a next one, because it may never end.

    :param resumed: the page before was read by another attempt, so it may have been full
    :param most: pages without records that may follow each other
    :ivar asked: whether the current page is requested for the second time
    :ivar streak: two numbers of pages directly before this one: empty ones, and ones that repeat their predecessor
    """

    def __init__(
        self,
        page_size: int | None,
        *,
        resumed: bool,
        most: int = 100,
        asked: bool = False,
        streak: tuple[int, int] = (0, 0),
    ) -> None:
        self.asked = asked
        self.streak = streak
        self._page_size = page_size
        self._after_full = resumed
        self._before: int | None = None
        self._most = most

    def endless(self, page: Page, *, is_repeat: bool) -> SourceError | None:
        """Return an error if too many pages in a row are empty or equal; call it with each page that counts.

        :param is_repeat: the page has the records of the page before it
        """
        if not isinstance(page.next, NextPage):
            return None
        empty, repeats = self.streak
        # A stream that does not say what it received may have filtered the page itself.
        empty = empty + 1 if page.received == 0 else 0
        repeats = repeats + 1 if is_repeat else 0
        self.streak = (empty, repeats)
        if repeats >= _MAX_REPEATS:
            problem = f"{_MAX_REPEATS} pages in a row have the same records, so the partition would never end"
            return RepeatedPageError(problem, request=page.request, status=page.status)
        if empty < self._most:
            return None
        return SourceError(
            f"{empty} pages in a row have no records, and each names a next page, so the partition may never"
            " end; set paginator.stop_when to recognise the last page, or max_empty_pages to a larger number",
            request=page.request,
            status=page.status,
        )

    def is_doubtful(self, page: Page) -> bool:
        """Tell whether a chain's next page is empty after a full one, and was requested only once."""
        return page.unconfirmed and self._after_full and not self.asked

    def needs_second_request(self, page: Page) -> bool:
        """Note the next page of the chain, and tell whether it has to be requested again."""
        if self.is_doubtful(page):
            self.asked = True
            return True
        if self.asked and page.received:
            _log.warning("%s: the page was empty, and has %d records when asked again", page.request, page.received)
        self.asked = False
        received = page.received
        if not received or self._page_size is None:
            self._after_full = received != 0
        else:
            # As many as the page before: a server may cap page sizes below the one that was asked for.
            self._after_full = received >= self._page_size or received == self._before
        self._before = received
        return False


class ChainReader:
    """A reader of the pages of one slice, one after another, with the guards that a reading loop needs.

    :param resumed: the first page that is read is not the slice's first
    """

    def __init__(self, stream: PagedStream, partition: Mapping[str, Any], *, resumed: bool) -> None:
        self._stream = stream
        self._partition = partition
        self._guard = PageGuard(stream.page_size, resumed=resumed, most=stream.max_empty_pages)
        self._tokens: set[str] = set()
        self._last: Sequence[Mapping[str, Any]] = ()

    def read(self, state: NotStarted | NextPage) -> Page:
        """Read the page at a position.

        :raises RepeatedPageError: its token was read before, or too many pages in a row have the same records
        :raises SourceError: too many pages in a row are empty
        """
        token = state.token if isinstance(state, NextPage) else None
        text = canonical_json(token, field="page token")
        if text in self._tokens:
            raise RepeatedPageError(f"page token {text} came twice; the stream would never end")
        self._tokens.add(text)
        page = self._stream.read_page(self._partition, token)
        if self._guard.needs_second_request(page):
            page = self._stream.read_page(self._partition, token)
            self._guard.needs_second_request(page)
        is_repeat = bool(page.records) and page.records == self._last
        self._last = page.records
        if (error := self._guard.endless(page, is_repeat=is_repeat)) is not None:
            raise error
        return page


def iter_pages(
    stream: PagedStream,
    stream_slice: Mapping[str, Any] | None = None,
    stream_state: State | Mapping[str, Any] | None = None,
) -> Iterator[Page]:
    """Yield the pages of one slice, from a state on; none if it is complete.

    :raises RepeatedPageError: a token came twice
    """
    state = load_state(stream_state)
    reader = ChainReader(stream, as_stream_slice(stream_slice).partition, resumed=isinstance(state, NextPage))
    while not isinstance(state, Complete):
        page = reader.read(state)
        yield page
        state = page.next


def read_parent(parent: PagedStream) -> Iterator[tuple[Mapping[str, Any], Page]]:
    """Yield all pages of a parent stream, with their slices, by its context's ``read_parent`` if it has one."""
    return (parent.context.read_parent or read_all_pages)(parent)


def read_all_pages(stream: PagedStream) -> Iterator[tuple[Mapping[str, Any], Page]]:
    """Yield all pages of all slices of a stream, with their slices."""
    for stream_slice in stream.stream_slices():
        for page in iter_pages(stream, stream_slice):
            yield stream_slice, page


_COPIED = (
    *("name", "namespace", "primary_key", "json_schema", "columns", "additional_fields", "casts"),
    *("cursor_field", "partition_fields", "page_size", "public_config", "paces_itself"),
    *("requests_per_second", "max_concurrency"),
)


def is_read_by_page(stream: Stream) -> bool:
    """Tell whether the stream can resume at a page: it is a PagedStream, or its ``state`` is its next page."""
    return isinstance(stream, PagedStream) or (has_settable_state(stream) and not stream.cursor_field)


def checked_records(stream: Stream, items: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | LogMessage]:
    """Yield the records and log lines that ``read_records`` yielded.

    :raises ConfigurationError: something is neither
    """
    for item in items:
        if isinstance(item, (Mapping, LogMessage)):
            yield item
        else:
            raise ConfigurationError(
                f"{stream.name}.read_records",
                f"yielded {type(item).__name__}, which is not a mapping",
                "yield each record as a mapping from field to value",
            )


class _Adapter(PagedStream):
    """An adapter that gives each thread its own copy of the stream, because a stream may have mutable state.

    A stream that can't be copied is read by one thread at a time.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._copies = threading.local()
        self._one_at_a_time = threading.Lock()
        self._copyable = True
        for attribute in _COPIED:
            setattr(self, attribute, getattr(stream, attribute))

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return self._stream.stream_slices()

    @property
    def supports_checkpointing(self) -> bool:
        return self._stream.supports_checkpointing

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        return self._stream.partition_key(stream_slice)

    def fingerprint(self) -> Mapping[str, Any]:
        return self._stream.fingerprint()

    def bind(self, context: ReadContext) -> None:
        self._stream.bind(context)
        self._context = context
        # Copies that were made before hold the former context.
        self._copies = threading.local()

    def private_copy(self) -> Stream:
        return type(self)(self._stream.private_copy())

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        stream: Stream | None = getattr(self._copies, "stream", None)
        if stream is None:
            stream = self._copies.stream = self._copy() if self._copyable else self._stream
        if stream is not self._stream:
            return self._read(stream, as_stream_slice(stream_slice), token)
        with self._one_at_a_time:
            return self._read(stream, as_stream_slice(stream_slice), token)

    @abstractmethod
    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        """Read one page with ``stream``, which no other thread uses meanwhile."""

    def _records(self, stream: Stream, *arguments: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
        records = []
        for item in checked_records(stream, stream.read_records(*arguments)):
            if isinstance(item, LogMessage):
                _log.log(logging.getLevelName(item.level), "%s: %s", stream.name, item.message)
            else:
                records.append(item)
        return records

    def _copy(self) -> Stream:
        try:
            return self._stream.private_copy()
        except Exception as error:  # noqa: BLE001 - a user's class may refuse in any way
            _log.warning(
                "%s can't be copied (%s), so its pages are read one at a time; "
                "override private_copy, or make it a PagedStream",
                self.name,
                error,
            )
            self._copyable = False
            return self._stream

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stream,)


class _OnePageASlice(_Adapter):
    """An adapter of a stream that can only be read slice by slice: each slice is one page."""

    pages_by = "one page a slice"

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.resumable = "no" if type(stream).stream_slices is Stream.stream_slices else "by slice"

    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        if token is not None:
            raise ConfigurationError(
                f"{self.name}.state",
                f"page token {token!r} for a stream without pages",
                "start again with force_restart",
            )
        return Page(self._records(stream, stream_slice, None))


class _StatePages(_Adapter):
    """An adapter of a stream that keeps the position of its next page in ``state`` (see StateMixin).

    A state that is empty after a read means that there are no more pages. A stream of the CDK's first protocol ends
    like that, and so does one that never sets its state.
    """

    def __init__(self, stream: Stream, stream_state: Mapping[str, Any] | None = None) -> None:
        super().__init__(stream)
        self._stream_state = stream_state
        stateful: Any = stream
        self._structured = isinstance(stateful.state, (NotStarted, NextPage, Complete))

    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        stateful: Any = stream
        start: State = NotStarted() if token is None else NextPage(token)
        flat = flat_state(start)
        stateful.state = start if self._structured else flat
        at_page = StreamSlice(stream_slice.partition, flat)
        stream_state = flat if self._stream_state is None else self._stream_state
        records = self._records(stream, legacy_slice(at_page), stream_state)
        # A copy, because the stream may change its state in place with the next page.
        after = load_state(copy.deepcopy(stateful.state))
        if after == start and token is not None:
            raise RepeatedPageError(f"{self.name}: state {flat!r} did not move; the stream would never end")
        return Page(records, Complete() if isinstance(after, NotStarted) else after)

    def private_copy(self) -> Stream:
        return _StatePages(self._stream.private_copy(), self._stream_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _StatePages, (self._stream, self._stream_state)


_STATE: Final = "stream_state"
"""The field of a slice that holds the state from which a sync reads the slice."""


class _CursorStatePages(_Adapter):
    """An adapter of a stream with a cursor field that keeps the state of its incremental reads itself.

    The state (see StateMixin) is set before each page is read and taken after it. Between two pages it is in the
    token, so another process may read the next page. The last page of each slice is an empty one, whose token holds
    the state after the slice. The next sync continues from that.
    """

    def __init__(self, stream: Stream, column: CursorColumn) -> None:
        super().__init__(stream)
        if isinstance(stream, PagedStream):
            self.max_empty_pages, self.absent_field_ends = stream.max_empty_pages, stream.absent_field_ends
        self._column = column
        stateful: Any = stream
        self._first_state = copy.deepcopy(stateful.state)
        self.incremental = _OwnStateRead(self, column)

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        return super().partition_key(_without_state(stream_slice))

    def slices_after(self, states: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the slices, each with its state if it has one.

        :param states: states by partition key
        :raises SliceError: a slice has the field that is reserved for the state
        """
        for stream_slice in unique_slices(self):
            if _STATE in stream_slice.partition:
                remedy = "rename it: the state of the slice is given by this name"
                raise SliceError(f"a slice may not have the key {_STATE!r}, which is reserved", remedy)
            state = states.get(self.partition_key(stream_slice))
            yield {**stream_slice.partition, **({} if state is None else {_STATE: state})}

    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        if token is not None and "next" not in token:
            return Page(())
        before = stream_slice.get(_STATE)
        state = token["state"] if token is not None else self._first_state if before is None else before
        stateful: Any = stream
        stateful.state = copy.deepcopy(state)
        at = StreamSlice(_without_state(stream_slice))
        if isinstance(stream, PagedStream):
            page = stream.read_page({**at, _STATE: before or {}}, None if token is None else token["next"])
        else:
            reader = IncrementalCheckpointReader(before or {}, [at])
            page = Page(self._records(stream, reader.next(), before))
            reader.observe(_state_of(stream))
        after = {"state": _state_of(stream)}
        return replace(
            page, next=NextPage({**after, "next": page.next.token} if isinstance(page.next, NextPage) else after)
        )

    def private_copy(self) -> Stream:
        return _CursorStatePages(self._stream.private_copy(), self._column)

    def __reduce__(self) -> tuple[Any, ...]:
        return _CursorStatePages, (self._stream, self._column)


class _OwnStateRead(StatefulRead):
    """The incremental reads of a stream that keeps its state itself: a state for each partition key."""

    def __init__(self, pages: _CursorStatePages, column: CursorColumn, tokens: Mapping[int, Any] | None = None) -> None:
        self.column = column
        self.marks_deleted = bool(pages.primary_key)
        self._pages = pages
        self._tokens = tokens or {}

    def slices_after(self, state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        return self._pages.slices_after(state)

    def with_last_tokens(self, tokens: Mapping[int, Any]) -> _OwnStateRead:
        return _OwnStateRead(self._pages, self.column, tokens)

    def of_connection(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        entries = state.get("states")
        if not isinstance(entries, list):
            entries = [{"partition": {}, "cursor": state}]
        cursors: dict[str, Any] = {}
        for entry in entries:
            partition = {name: value for name, value in entry["partition"].items() if name != "parent_slice"}
            key = self._pages.partition_key(partition)
            if cursors.setdefault(key, entry["cursor"]) != entry["cursor"]:
                problem = f"has several cursors of the partition {key}, which differ in parent_slice alone"
                raise ConfigurationError("file", problem, "leave the one that is furthest behind in the file")
        return cursors

    def state_after(
        self,
        state: Mapping[str, Any] | None,
        slices: Sequence[Mapping[str, Any]],
        largest: Mapping[int, datetime],
        opened_at: datetime,
        unread: Collection[int] = (),
    ) -> Mapping[str, Any]:
        keys = [self._pages.partition_key(stream_slice) for stream_slice in slices]
        read = {ordinal: token for ordinal, token in self._tokens.items() if ordinal not in unread}
        ends = {keys[ordinal]: token["state"] for ordinal, token in read.items() if token is not None}
        return {**(state or {}), **ends}


def _state_of(stream: Stream) -> dict[str, Any]:
    stateful: Any = stream
    if not isinstance(stateful.state, Mapping):
        problem = f"is {type(stateful.state).__name__}, not a mapping"
        raise ConfigurationError(f"{stream.name}.state", problem, 'return e.g. {"updated_at": "2026-01-31T06:00:00Z"}')
    # Checked here, where the error can name the stream; and a copy, because the stream may change it in place.
    text = canonical_json(dict(stateful.state), field=f"{stream.name}.state")
    state: dict[str, Any] = json.loads(text, parse_float=read_number)
    return state


def _without_state(stream_slice: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stream_slice.items() if name != _STATE}


def _cursor_column(stream: Stream) -> CursorColumn | None:
    """Return the cursor column of a stream that keeps a state; None if it can't be read incrementally."""
    path = [stream.cursor_field] if isinstance(stream.cursor_field, str) else list(stream.cursor_field)
    if len(path) != 1 or not path[0] or not has_settable_state(stream):
        return None
    return CursorColumn(path[0], stream.cursor_type)


def as_paged(stream: Stream, *, stream_state: Mapping[str, Any] | None = None) -> PagedStream:
    """Return the stream itself, or an adapter by which the engine can read it page by page.

    A stream with a ``state`` is read by its own pages; one that has a cursor field, too, can be read incrementally.  Of
    any other stream each slice is one page.  Each thread reads with a private copy of the stream.

    :param stream_state: the argument of ``read_records`` of that name; by default the page's own state
    :raises ConfigurationError: it is not a Stream
    """
    if not isinstance(stream, Stream):
        raise ConfigurationError(
            "source", f"{stream!r} is not a Stream", "subclass airflow_provider_rfr.streams.Stream"
        )
    if stream.incremental is None and (column := _cursor_column(stream)) is not None:
        return _CursorStatePages(stream, column)
    if isinstance(stream, PagedStream):
        return stream
    return _StatePages(stream, stream_state) if is_read_by_page(stream) else _OnePageASlice(stream)
