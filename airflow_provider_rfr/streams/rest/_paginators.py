"""The paginators: page numbers and offsets, whose pages are addressable; cursor, next URL, Link header, keyset."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import orjson
from pydantic import Field, PrivateAttr, model_validator

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.numbers import LongNumber, dumps
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest._paging import (
    COMPLETE,
    OnMissing,
    PageSeen,
    PageStep,
    PagingContext,
    PartitionTotal,
    Reply,
    SinglePagePaginator,
    SizedPaginator,
    StoppingPaginator,
)
from airflow_provider_rfr.streams.rest._request import RequestDraft, RequestPlace
from airflow_provider_rfr.streams.rest._responses import Response, ResponseField
from airflow_provider_rfr.streams.rest.templates import (
    MISSING,
    RESPONSE_NAMES,
    SourceTemplate,
    Templated,
    UndefinedValue,
    compile_condition,
    describe,
    lookup,
    parse_path,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_RESPONSE_CONDITION: Final = Templated(RESPONSE_NAMES, compile_condition)
_EMPTY_PAGES_WITHIN_A_TOTAL: Final = 5


@dataclass(frozen=True, slots=True)
class _PagePosition:
    """A page of a numbered paginator; its token is the number alone unless one of the other fields is set.

    :ivar number: number of the page, or of the records before it
    :ivar until: ``empty``: the API's count can't be used any more, so the first empty page is the last
    :ivar beyond: a digest of the page before, which was full, or had too many records, and was the last by the API's
        count. So this page is asked for, too. With ``until``, a page after that last one had records
    :ivar empty: pages without records directly before it, where the API's count promises more
    """

    number: int
    until: str | None = None
    beyond: str | None = None
    empty: int = 0


class _NumberedPaginator(StoppingPaginator):
    """A paginator that requests pages by a number from ``start``; the first token is None, or ``start`` itself.

    Where the API's own count can't be trusted, the token is a mapping with the number and the reason, e.g.
    ``{"page": 7, "until": "empty"}``: it carries the doubt along, and nothing is lost to a server that caps page sizes
    or whose total is too low.

    :ivar send_as: the place of the number in the request
    :ivar send_first: whether the request for the first page has the number, too
    """

    type: Literal["page_number", "offset"]
    start: int
    send_as: RequestPlace
    send_first: bool = True

    _unit: ClassVar[str]
    _has_warned: bool = PrivateAttr(default=False)

    @property
    def _believed(self) -> PartitionTotal | None:
        """Return the API's count, where it decides which page is the last."""
        return self.total if self.stop_policy == "total" else None

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        super().inject(token, draft)
        number = self._at(token).number
        if self.send_first or number != self.start:
            self.send_as.put(draft, number)

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        at = self._at(token)
        # Doubts of the pages before come first: this answer, too, has the count that raised them.
        if at.beyond is not None:
            return self._beyond(at, reply)
        if at.until is not None:
            promised = self._promised(reply)
            if not reply.count:
                return PageStep(Complete(), unconfirmed=True, promised=promised)
            following = _PagePosition(self._number_after(at.number, reply), until="empty")
            return PageStep(NextPage(self._token(following)), promised=promised)
        seen = PageSeen(reply, self.position_of(token), self._before(at), token is None)
        ending = self.decide(seen, self._by_records)
        if ending.absent is not None:
            step = self.end_without(token, reply, ending.absent)
            return replace(step, unconfirmed=ending.unconfirmed)
        if ending.last and not ending.contradicted:
            return PageStep(Complete(), ending.total_pages, ending.unconfirmed, ending.promised)
        if ending.total_pages is not None and not reply.count:
            return replace(self._within_total(at, ending.total_pages), promised=ending.promised)
        following = _PagePosition(self._number_after(at.number, reply))
        total_pages: int | None = ending.total_pages
        if ending.contradicted:
            following, total_pages = replace(following, beyond=self._digest(reply)), None
        elif ending.doubtful:
            following, total_pages = replace(following, until="empty"), None
        return PageStep(NextPage(self._token(following)), total_pages, ending.unconfirmed, ending.promised)

    def after_no_content(self, token: Any | None) -> PageStep:
        at = self._at(token)
        if self._believed is None or token is None or at.until is not None or at.beyond is not None:
            return PageStep(Complete(), unconfirmed=not self.is_beyond_the_end(token))
        return self._within_total(at, None)

    def _within_total(self, at: _PagePosition, total_pages: int | None) -> PageStep:
        """Return the position after an empty page that is not the last by the API's count.

        Some APIs count records that they don't show, so a few such pages in a row end a partition; the records that
        are missing then are reported. A count of pages, in contrast, is trusted.
        """
        empty = at.empty + 1
        counts_records = self._believed is not None and self._believed.of == "records"
        if counts_records and empty > _EMPTY_PAGES_WITHIN_A_TOTAL:
            return PageStep(Complete(), total_pages, unconfirmed=True)
        number = self._number_after(at.number, None)
        if number is None:
            raise SourceError("an empty page isn't the last one here, and without page_size no offset follows it")
        following = _PagePosition(number, empty=empty)
        return PageStep(NextPage(self._token(following)), total_pages, unconfirmed=True)

    def _beyond(self, at: _PagePosition, reply: Reply) -> PageStep:
        """Return the position after a page that does not exist by the API's count."""
        if not reply.count:
            return PageStep(Complete(), unconfirmed=at.until is not None, promised=self._promised(reply))
        digest = self._digest(reply)
        if digest == at.beyond:
            # Servers that clamp the page number send their last page again.
            return PageStep(Complete(), is_repeat=True)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: by the API's own count, paginator.total, the page before was the last, but this page has %d"
                " records; such partitions are read to the first page that is empty or repeated",
                *(reply.answer.request, reply.count),
            )
        promised = self._promised(reply)
        # Records that were added meanwhile are in the count of a short page, too; any other count was wrong.
        is_exact = promised == self._before(at) + reply.count and reply.count < (self.records_per_page or 0)
        until = None if is_exact else "empty"
        following = _PagePosition(self._number_after(at.number, reply), until, digest)
        return PageStep(NextPage(self._token(following)), promised=promised)

    def _before(self, at: _PagePosition) -> int:
        """Return the number of records before a page, if every page before it was full."""
        before = at.number - self.start
        return before * (self.records_per_page or 0) if self._by_records is None else before

    def _promised(self, reply: Reply) -> int | None:
        total = self._believed
        return None if total is None else total.promised(reply)

    def is_beyond_the_end(self, token: Any | None) -> bool:
        at = self._at(token)
        return at.beyond is not None and at.until is None

    def has_count(self, answer: Response) -> bool:
        return self._believed is not None and self._believed.find(answer) is not MISSING

    def after_skipped(self, token: Any | None) -> Any:
        at = self._at(token)
        following = self._number_after(at.number, None)
        return None if following is None else self._token(replace(at, number=following))

    def _digest(self, reply: Reply) -> str:
        """Return a digest by which a repeated page is recognised: of its keys, or of its records without keys."""
        keys = [[lookup(record, path) for path in self._context.key] for record in reply.records]
        has_keys = self._context.key and not any(value is MISSING for key in keys for value in key)
        return hashlib.blake2b(dumps(keys if has_keys else reply.records), digest_size=8).hexdigest()

    @property
    def _by_records(self) -> bool | None:
        """Tell whether offsets advance by the records of a page; None if pages are not offsets."""
        return None

    @abstractmethod
    def _number_after(self, number: int, reply: Reply | None) -> Any:
        """Return the number of the next page; None if an ignored page leaves it unknown."""

    def _token(self, position: _PagePosition) -> Any:
        extra = {name: getattr(position, name) for name in ("until", "beyond", "empty")}
        extra = {name: value for name, value in extra.items() if value}
        return {self._unit: position.number, **extra} if extra else position.number

    def _at(self, token: Any | None) -> _PagePosition:
        if token is None:
            return _PagePosition(self.start)
        # A token comes from a store, and may be another paginator's after a change of the definition.
        number, extra = token, {}
        if isinstance(token, Mapping) and token.keys() <= {self._unit, "until", "beyond", "empty"}:
            number, extra = token.get(self._unit), {name: token[name] for name in token if name != self._unit}
        if isinstance(number, bool) or not isinstance(number, int) or number < self.start:
            raise SourceError(f"page token {token!r} is not a whole number from {self.start}")
        return _PagePosition(number, **extra)


class PageNumberPaginator(_NumberedPaginator):
    """Page 1, page 2, ...

    :ivar start: number of the first page
    """

    type: Literal["page_number"]
    start: int = 1
    send_as: RequestPlace = Field(default_factory=lambda: RequestPlace(query="page"))

    pages_by: ClassVar[str] = "page numbers"
    _unit: ClassVar[str] = "page"

    @property
    def addressable(self) -> bool:
        return True

    def token_at(self, position: int) -> int | None:
        return self.start + position if position else None

    def position_of(self, token: Any | None) -> int:
        return self._at(token).number - self.start

    def _number_after(self, number: int, reply: Reply | None) -> int:
        return number + 1


class OffsetPaginator(_NumberedPaginator):
    """Pages that begin at the number of records before them.

    After a short page the next offset is that of the record after it (``advance: records``): if the server caps the
    page size nothing is lost, and if it drops rows from a page, some rows come twice. ``advance: page_size`` is for
    servers of the second kind.

    :ivar start: offset of the first page
    :ivar advance: how the next offset is computed: by the ``records`` that came, or by ``page_size`` for servers that
        drop rows after they cut the page
    """

    type: Literal["offset"]
    start: int = 0
    send_as: RequestPlace = Field(default_factory=lambda: RequestPlace(query="offset"))
    advance: Literal["records", "page_size"] = "records"

    pages_by: ClassVar[str] = "offsets"
    _unit: ClassVar[str] = "offset"

    @model_validator(mode="after")
    def _step_is_known(self) -> OffsetPaginator:
        if self.advance == "page_size" and self.page_size is None:
            raise ValueError("advance: page_size needs page_size")
        return self

    @property
    def addressable(self) -> bool:
        return self.records_per_page is not None

    @property
    def _by_records(self) -> bool:
        return self.advance == "records"

    def token_at(self, position: int) -> int | None:
        page_size = self.records_per_page
        if page_size is None:
            return super().token_at(position)
        return self.start + position * page_size if position else None

    def position_of(self, token: Any | None) -> int:
        page_size = self.records_per_page
        return (self._at(token).number - self.start) // page_size if page_size else 0

    def _number_after(self, number: int, reply: Reply | None) -> int | None:
        page_size = self.records_per_page
        if reply is None:
            return None if page_size is None else number + page_size
        distance = reply.count if self._by_records and reply.count else page_size
        if not distance:
            raise reply.error("the offset after an empty page is unknown: set paginator.page_size")
        return number + distance


def _condition(text: str | None, name: str, context: PagingContext) -> SourceTemplate | None:
    return None if text is None else context.scope.compile(text, name, RESPONSE_NAMES, compile_condition)


def _stops(condition: SourceTemplate | None, reply: Reply) -> bool:
    if condition is None:
        return False
    problem = ""
    try:
        return bool(condition(reply.all_variables()))
    except SourceDefinitionError as error:
        problem = error.problem
    # Raised outside of the handler: the error must not hold the page as its context.
    raise reply.error(f"paginator.stop_when fails: {problem}")


def _is_end(value: Any) -> bool:
    """Tell whether a value stands for no cursor: null, false, an empty text, list or object. 0 is a cursor."""
    return value is None or value is False or value in ("", [], {})


def _as_sent(value: Any) -> Any:
    """Return a token that goes into the next request as it came, if a number has more digits than a double."""
    return value.text if isinstance(value, LongNumber) else value


def _check_moved(value: Any, token: Any | None, reply: Reply, page_size: int | None, field: str) -> None:
    """Check that a token taken from the last record leads to another page.

    On a short page the chain decides: APIs that send the records of the token again end this way.

    :raises SourceError: the page was requested with the same token and is full, so no request would get further
    """
    count = reply.count
    # Without a page size, only a page of one record is surely the record of the token alone.
    if token is None or count < (page_size or 2):
        return
    before, after = (dumps(_as_sent(one), orjson.OPT_SORT_KEYS) for one in (token, value))
    if before != after:
        return
    full = "is full" if page_size else "may be full, because paginator.page_size is missing"
    remedy = "set a larger paginator.page_size" if page_size else "set it to the number of records of a full page"
    raise reply.error(
        f"paginator.{field} gives the value that this page was requested with, and the page of {count} records {full}:"
        " more records share the value than a page holds, or the API ignores paginator.send_as;"
        f" {remedy}, or take a field with unique values"
    )


class CursorField(ResponseField):
    """The place of the next cursor: a path of the body, a header, or an expression.

    :ivar expression: an expression that computes the cursor from the answer, e.g. ``last_record.id``
    """

    expression: Annotated[str | None, _RESPONSE_CONDITION] = None

    def describe_absence(self, response: Response) -> str:
        if self.expression is None:
            return super().describe_absence(response)
        return f"{self.expression} uses a field that is absent; the answer is {describe(response.content())}"


class CursorPaginator(SizedPaginator):
    """A token in the body or a header, or computed from the answer by an expression.

    :ivar cursor: the place of the next cursor in the answer. A value that is null, false or empty means that there is
        no next page
    :ivar send_as: the place of the cursor in the request
    :ivar stop_when: condition for the last page, e.g. ``record_count < 100``
    :ivar on_missing: what an answer without the cursor means: ``end`` of the partition, or ``fail``. By default it is
        the end after a page that had one, on an empty page and on a short one
    """

    type: Literal["cursor"]
    cursor: CursorField
    send_as: RequestPlace = Field(default_factory=lambda: RequestPlace(query="cursor"))
    stop_when: Annotated[str | None, _RESPONSE_CONDITION] = None
    on_missing: OnMissing | None = None

    pages_by: ClassVar[str] = "cursors"

    _expression: SourceTemplate | None = PrivateAttr(default=None)
    _stop_condition: SourceTemplate | None = PrivateAttr(default=None)

    def bind(self, context: PagingContext) -> Self:
        bound = super().bind(context)
        bound._expression = _condition(self.cursor.expression, "cursor.expression", context)
        bound._stop_condition = _condition(self.stop_when, "stop_when", context)
        return bound

    @property
    def on_absent_field(self) -> OnMissing | None:
        return self.on_missing

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        super().inject(token, draft)
        if token is not None:
            self.send_as.put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        if _stops(self._stop_condition, reply):
            return COMPLETE
        expression = self._expression
        value = self.cursor.find(reply.answer) if expression is None else self._computed(expression, reply)
        if value is MISSING:
            # An expression that takes the token from a record finds none on an empty page.
            if expression is not None and not reply.count:
                return PageStep(Complete(), unconfirmed=True)
            return self.end_without(token, reply, f"paginator.cursor: {self.cursor.describe_absence(reply.answer)}")
        if _is_end(value):
            return COMPLETE
        if "last_record" in (self.cursor.expression or ""):
            _check_moved(value, token, reply, self.records_per_page, "cursor.expression")
        return PageStep(NextPage(_as_sent(value)))

    def _computed(self, expression: SourceTemplate, reply: Reply) -> Any:
        """Return the expression's value; MISSING if it uses an absent field."""
        problem = ""
        try:
            return expression(reply.all_variables())
        except UndefinedValue as error:
            # Every record must have what the expression takes from the last one.
            if not (reply.count and "last_record" in (self.cursor.expression or "")):
                return MISSING
            problem = error.problem
        except SourceDefinitionError as error:
            problem = error.problem
        raise reply.error(f"paginator.cursor.expression fails: {problem}")


class _LinkedPaginator(SizedPaginator):
    """A paginator whose token is the address of the next page, without credentials."""

    if TYPE_CHECKING:
        # Fields of the subclasses, because problems are reported in the order of the fields.
        on_missing: OnMissing | None
        keep_query: bool

    @property
    def on_absent_field(self) -> OnMissing | None:
        return self.on_missing

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        super().inject(token, draft)
        if token is None:
            return
        if not isinstance(token, str):
            raise SourceError(f"page token {token!r} is not an address")
        # The token comes from a store, so its host is checked again, as when it was written.
        draft.url = self._context.hosts.checked(token, draft.url, "the page token")
        if not self.keep_query:
            # The address usually has the whole query, and APIs may refuse a parameter that comes twice.
            draft.query = {}
            return
        linked = dict(parse_qsl(urlsplit(draft.url).query, keep_blank_values=True))
        draft.query = {name: value for name, value in draft.query.items() if name not in linked}

    def _step_to(self, value: Any, token: Any | None, reply: Reply, absent: str) -> PageStep:
        """Return the position after a page that names an address, or lacks the field that ``absent`` describes."""
        if value is MISSING:
            return self.end_without(token, reply, absent)
        if _is_end(value):
            return COMPLETE
        if not isinstance(value, str):
            raise reply.error(f"the next page's address is {describe(value)}")
        answer = reply.answer
        absolute = self._context.hosts.checked(value, answer.url, "the next page's address", answer.request)
        return PageStep(NextPage(self._context.redactor.without_credentials(absolute)))


class NextUrlPaginator(_LinkedPaginator):
    """Each answer has the address of the next page in its body or a header.

    :ivar url: the place of the next page's address in the answer
    :ivar stop_when: condition for the last page
    :ivar on_missing: what an answer without the address means, as of ``cursor``
    :ivar keep_query: send the stream's own query besides that of the address
    """

    type: Literal["next_url"]
    url: ResponseField
    stop_when: Annotated[str | None, _RESPONSE_CONDITION] = None
    on_missing: OnMissing | None = None
    keep_query: bool = False

    pages_by: ClassVar[str] = "addresses in answers"

    _stop_condition: SourceTemplate | None = PrivateAttr(default=None)

    def bind(self, context: PagingContext) -> Self:
        bound = super().bind(context)
        bound._stop_condition = _condition(self.stop_when, "stop_when", context)
        return bound

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        if _stops(self._stop_condition, reply):
            return COMPLETE
        absent = f"paginator.url: {self.url.describe_absence(reply.answer)}"
        return self._step_to(self.url.find(reply.answer), token, reply, absent)


class LinkHeaderPaginator(_LinkedPaginator):
    """The address of the next page is in the header Link (RFC 8288).

    :ivar rel: relation of the link to the next page
    :ivar header: name of the header
    :ivar on_missing: what an answer without the link means, as of ``cursor``
    :ivar keep_query: send the stream's own query besides that of the address
    """

    type: Literal["link_header"]
    rel: str = "next"
    header: str = "Link"
    on_missing: OnMissing | None = None
    keep_query: bool = False

    pages_by: ClassVar[str] = "addresses in the header Link"

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        links = reply.links(self.header)
        absent = f"paginator: the answer has no header {self.header} with links"
        if links:
            absent = f"paginator.rel: {self.header} has no {self.rel!r}; did you mean one of {', '.join(links)}?"
        # Links without a next one are how an API with such a header ends. Beside a link to the next page, an absent
        # relation is probably misspelt.
        missing = None if links and "next" not in links else MISSING
        return self._step_to(links.get(self.rel.lower(), missing), token, reply, absent)


class KeysetPaginator(StoppingPaginator):
    """The next page begins after the last record of this one.

    :ivar field: path in the last record of a page to the value after which the next page begins
    :ivar send_as: the place of that value in the request
    """

    type: Literal["keyset"]
    field: str
    send_as: RequestPlace

    pages_by: ClassVar[str] = "the last record's key"

    @model_validator(mode="after")
    def _no_total(self) -> KeysetPaginator:
        if self.total is not None:
            raise ValueError("a keyset's pages can't be counted; use stop: empty, short or flag")
        return self

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        super().inject(token, draft)
        if token is not None:
            self.send_as.put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        if not reply.count:
            return PageStep(Complete(), unconfirmed=True)
        ending = self.decide(PageSeen(reply, 0, 0, token is None))
        if ending.absent is not None:
            return self.end_without(token, reply, ending.absent)
        if ending.last:
            return COMPLETE
        path = parse_path(self.field)
        value = lookup(reply.records[-1], path)
        if value is MISSING or value is None or isinstance(value, (dict, list, bool)):
            raise reply.error(f"paginator.field {'.'.join(path)!r} of the last record is {describe(value)}, not a key")
        _check_moved(value, token, reply, self.records_per_page, "field")
        return PageStep(NextPage(_as_sent(value)))


AnyPaginator = Annotated[
    SinglePagePaginator
    | PageNumberPaginator
    | OffsetPaginator
    | CursorPaginator
    | NextUrlPaginator
    | LinkHeaderPaginator
    | KeysetPaginator,
    Field(discriminator="type"),
]
