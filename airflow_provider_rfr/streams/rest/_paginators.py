"""The paginators: page numbers and offsets, whose pages are addressable; cursor, next URL, Link header, keyset."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.json_numbers import LongNumber, dumps
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._client import Draft
from airflow_provider_rfr.streams.rest._hosts import HostPolicy
from airflow_provider_rfr.streams.rest._paginator import (
    COMPLETE,
    Paginator,
    Reply,
    SinglePage,
    SizedPaginator,
    Step,
    put_at,
)
from airflow_provider_rfr.streams.rest._stopping import Seen, StopPolicy, promised_records, stop_policy
from airflow_provider_rfr.streams.rest.templates import (
    CONFIG_NAMES,
    MISSING,
    RESPONSE_NAMES,
    CompiledTemplate,
    Path,
    UndefinedValue,
    compile_condition,
    compile_value,
    describe,
    lookup,
    parse_path,
)

_log = logging.getLogger(__name__)

_EMPTY_PAGES_WITHIN_A_TOTAL = 5


@dataclass(frozen=True, slots=True)
class _Position:
    """A page of a numbered paginator; its token is the number alone unless one of the other fields is set.

    :ivar number: of the page, or of the records before it
    :ivar until: ``empty``: the API's count can't be used any more, so the first empty page is the last
    :ivar beyond: by the API's count the page before was the last, but it was full, so this page is asked for, too; a
        digest of the page before
    :ivar empty: pages without records directly before it, where the API's count promises more
    """

    number: int
    until: str | None = None
    beyond: str | None = None
    empty: int = 0


class _Numbered(SizedPaginator):
    """Pages that are asked for by a number from ``start``; the first page's token is None, or ``start`` itself.

    Where the API's own count can't be trusted, the token is a mapping with the number and the reason, e.g.
    ``{"page": 7, "until": "empty"}``: it carries the doubt along, and nothing is lost to a server that caps page sizes
    or whose total is too low.
    """

    _unit: str

    def __init__(
        self, definition: model.PageNumber | model.Offset, page_size: int | None, key: Sequence[Path], stop: StopPolicy
    ) -> None:
        super().__init__(definition, page_size)
        self._start = definition.start
        self._put = put_at(definition.send_as)
        self._send_first = definition.send_first
        self._key = key
        self._stop = stop
        self._total = definition.total if definition.stop_policy == "total" else None
        self.on_missing = definition.flag.on_missing if definition.flag is not None else None
        self._has_warned = False

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        number = self._at(token).number
        if self._send_first or number != self._start:
            self._put(draft, number)

    def step(self, token: Any | None, reply: Reply) -> Step:
        at = self._at(token)
        if at.beyond is not None:
            return self._beyond(at, reply)
        if at.until is not None:
            return self._until_empty(at, reply)
        seen = Seen(reply, self.position_of(token), self._records_before(at.number), token is None)
        ending = self._stop(seen)
        if ending.absent is not None:
            step = self.end_without(token, reply, ending.absent)
            return replace(step, unconfirmed=ending.unconfirmed)
        if ending.last and not ending.contradicted:
            return Step(Complete(), ending.total_pages, ending.unconfirmed, ending.promised)
        if ending.total_pages is not None and not reply.count:
            return replace(self._within_total(at, ending.total_pages), promised=ending.promised)
        following = _Position(self._number_after(at.number, reply))
        total_pages: int | None = ending.total_pages
        if ending.contradicted:
            following, total_pages = replace(following, beyond=self._digest(reply)), None
        elif ending.doubtful:
            following, total_pages = replace(following, until="empty"), None
        return Step(NextPage(self._token(following)), total_pages, ending.unconfirmed, ending.promised)

    def after_no_content(self, token: Any | None) -> Step:
        at = self._at(token)
        if self._total is None or token is None or at.until is not None or at.beyond is not None:
            return Step(Complete(), unconfirmed=at.beyond is None)
        return self._within_total(at, None)

    def _within_total(self, at: _Position, total_pages: int | None) -> Step:
        """Return the position after an empty page that is not the last by the API's count.

        Some APIs count records that they don't show, so a few such pages in a row end a partition; the records that
        are missing then are reported. A number of pages is believed.
        """
        empty = at.empty + 1
        counts_records = self._total is not None and self._total.of == "records"
        if counts_records and empty > _EMPTY_PAGES_WITHIN_A_TOTAL:
            return Step(Complete(), total_pages, unconfirmed=True)
        number = self._number_after(at.number, None)
        if number is None:
            raise SourceError("an empty page isn't the last one here, and without page_size no offset follows it")
        following = _Position(number, empty=empty)
        return Step(NextPage(self._token(following)), total_pages, unconfirmed=True)

    def _beyond(self, at: _Position, reply: Reply) -> Step:
        """Return the position after a page that does not exist by the API's count."""
        if not reply.count:
            return Step(Complete(), promised=promised_records(self._total, reply))
        digest = self._digest(reply)
        if digest == at.beyond:
            # Servers that clamp the page number send their last page again.
            return Step(Complete(), is_repeat=True)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: by the API's own count, paginator.total, the page before was the last, but this page has %d"
                " records; such partitions are read to the first page that is empty, refused or repeated",
                *(reply.answer.request, reply.count),
            )
        following = _Position(self._number_after(at.number, reply), beyond=digest)
        return Step(NextPage(self._token(following)), promised=promised_records(self._total, reply))

    def _until_empty(self, at: _Position, reply: Reply) -> Step:
        promised = promised_records(self._total, reply)
        if not reply.count:
            return Step(Complete(), unconfirmed=True, promised=promised)
        following = _Position(self._number_after(at.number, reply), until="empty")
        return Step(NextPage(self._token(following)), promised=promised)

    def is_beyond_the_end(self, token: Any | None) -> bool:
        return self._at(token).beyond is not None

    def after_skipped(self, token: Any | None) -> Any:
        at = self._at(token)
        following = self._number_after(at.number, None)
        return None if following is None else self._token(replace(at, number=following))

    def _digest(self, reply: Reply) -> str:
        """Return a digest by which a repeated page is recognised: of its keys, or of its records without keys."""
        keys = [[lookup(record, path) for path in self._key] for record in reply.records]
        has_keys = self._key and not any(value is MISSING for key in keys for value in key)
        return hashlib.blake2b(dumps(keys if has_keys else reply.records), digest_size=8).hexdigest()

    def _number_after(self, number: int, reply: Reply | None) -> Any:
        """Return the number of the next page; None if an ignored page leaves it unknown."""
        raise NotImplementedError

    def _records_before(self, number: int) -> int:
        raise NotImplementedError

    def _token(self, position: _Position) -> Any:
        extra = {name: getattr(position, name) for name in ("until", "beyond", "empty")}
        extra = {name: value for name, value in extra.items() if value}
        return {self._unit: position.number, **extra} if extra else position.number

    def _at(self, token: Any | None) -> _Position:
        if token is None:
            return _Position(self._start)
        number, extra = token, {}
        if isinstance(token, Mapping) and token.keys() <= {self._unit, "until", "beyond", "empty"}:
            number, extra = token.get(self._unit), {name: token[name] for name in token if name != self._unit}
        if isinstance(number, bool) or not isinstance(number, int) or number < self._start:
            raise SourceError(f"page token {token!r} is not a whole number from {self._start}")
        return _Position(number, **extra)


class _PageNumber(_Numbered):
    """Page 1, page 2, ..."""

    addressable = True
    _unit = "page"

    def __init__(self, definition: model.PageNumber, page_size: int | None, key: Sequence[Path]) -> None:
        super().__init__(definition, page_size, key, stop_policy(definition, page_size))

    def token_at(self, position: int) -> int | None:
        return self._start + position if position else None

    def position_of(self, token: Any | None) -> int:
        return self._at(token).number - self._start

    def _number_after(self, number: int, reply: Reply | None) -> int:
        return number + 1

    def _records_before(self, number: int) -> int:
        return (number - self._start) * (self.page_size or 0)


class _Offset(_Numbered):
    """The number of records before the page.

    After a short page the next offset is that of the record after it (``advance: records``): if the server caps the
    page size nothing is lost, and if it drops rows from a page, some rows come twice. ``advance: page_size`` is for
    servers of the second kind.
    """

    _unit = "offset"

    def __init__(self, definition: model.Offset, page_size: int | None, key: Sequence[Path]) -> None:
        self._by_records = definition.advance == "records"
        super().__init__(definition, page_size, key, stop_policy(definition, page_size, self._by_records))
        self.addressable = page_size is not None

    def token_at(self, position: int) -> int | None:
        if self.page_size is None:
            return super().token_at(position)
        return self._start + position * self.page_size if position else None

    def position_of(self, token: Any | None) -> int:
        return (self._at(token).number - self._start) // self.page_size if self.page_size else 0

    def _number_after(self, number: int, reply: Reply | None) -> int | None:
        if reply is None:
            return None if self.page_size is None else number + self.page_size
        distance = reply.count if self._by_records and reply.count else self.page_size
        if not distance:
            raise reply.error("the offset after an empty page is unknown: set paginator.page_size")
        return number + distance

    def _records_before(self, number: int) -> int:
        return number - self._start


def _stops(condition: CompiledTemplate | None, reply: Reply) -> bool:
    if condition is None:
        return False
    problem = ""
    try:
        return bool(condition(reply.all_variables()))
    except SourceDefinitionError as error:
        problem = error.problem
    # Out here: the error must not hold the page as its context.
    raise reply.error(f"paginator.stop_when fails: {problem}")


def _is_end(value: Any) -> bool:
    """Tell whether a value stands for no cursor: null, false, an empty text, list or object. 0 is a cursor."""
    return value is None or value is False or value in ("", [], {})


class _Cursor(SizedPaginator):
    """A token in the body or a header, or computed from the answer by an expression."""

    def __init__(
        self,
        definition: model.Cursor,
        page_size: int | None,
        stop_when: CompiledTemplate | None,
        expression: CompiledTemplate | None,
    ) -> None:
        super().__init__(definition, page_size)
        self.on_missing = definition.on_missing
        self._definition = definition
        self._put = put_at(definition.send_as)
        self._stop_when = stop_when
        self._expression = expression

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is not None:
            self._put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> Step:
        if _stops(self._stop_when, reply):
            return COMPLETE
        value = (
            self._definition.cursor.find(reply.answer)
            if self._expression is None
            else self._computed(self._expression, reply)
        )
        if value is MISSING:
            # An expression that takes the token from a record finds none on an empty page.
            if self._expression is not None and not reply.count:
                return Step(Complete(), unconfirmed=True)
            problem = f"paginator.cursor: {self._without(reply)}"
            return self.end_without(token, reply, problem)
        if _is_end(value):
            return COMPLETE
        # A number with more digits than a double has goes into the next request as it came.
        return Step(NextPage(value.text if isinstance(value, LongNumber) else value))

    def _without(self, reply: Reply) -> str:
        expression = self._definition.cursor.expression
        if expression is None:
            return self._definition.cursor.absence(reply.answer)
        return f"{expression} uses a field that is absent; the answer is {describe(reply.answer.content())}"

    def _computed(self, expression: CompiledTemplate, reply: Reply) -> Any:
        """Return the expression's value; MISSING if it uses an absent field."""
        problem = ""
        try:
            return expression(reply.all_variables())
        except UndefinedValue as error:
            # Every record must have what the expression takes from the last one.
            if not (reply.count and "last_record" in (self._definition.cursor.expression or "")):
                return MISSING
            problem = error.problem
        except SourceDefinitionError as error:
            problem = error.problem
        raise reply.error(f"paginator.cursor.expression fails: {problem}")


class _NextUrl(SizedPaginator):
    """The address of the next page.  The token is that address without credentials."""

    def __init__(
        self,
        definition: model.NextUrl | model.LinkHeader,
        page_size: int | None,
        stop_when: CompiledTemplate | None,
        hosts: HostPolicy,
        redactor: Redactor,
    ) -> None:
        super().__init__(definition, page_size)
        self.on_missing = definition.on_missing
        self._definition = definition
        self._keep_query = definition.keep_query
        self._stop_when = stop_when
        self._hosts = hosts
        self._redactor = redactor

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is None:
            return
        if not isinstance(token, str):
            raise SourceError(f"page token {token!r} is not an address")
        # The token comes from a store: what was checked when it was written is checked again.
        draft.url = self._hosts.checked(token, draft.url, "the page token")
        if not self._keep_query:
            draft.query = {}
            return
        linked = dict(parse_qsl(urlsplit(draft.url).query, keep_blank_values=True))
        draft.query = {name: value for name, value in draft.query.items() if name not in linked}

    def step(self, token: Any | None, reply: Reply) -> Step:
        if _stops(self._stop_when, reply):
            return COMPLETE
        value, absent = self._find(reply)
        if value is MISSING:
            return self.end_without(token, reply, absent)
        if _is_end(value):
            return COMPLETE
        if not isinstance(value, str):
            raise reply.error(f"the next page's address is {describe(value)}")
        answer = reply.answer
        absolute = self._hosts.checked(value, answer.url, "the next page's address", answer.request)
        return Step(NextPage(self._redactor.without_credentials(absolute)))

    def _find(self, reply: Reply) -> tuple[Any, str]:
        """Return the next page's address, or MISSING with a description of the absent field."""
        declared = self._definition
        if isinstance(declared, model.NextUrl):
            return declared.url.find(reply.answer), f"paginator.url: {declared.url.absence(reply.answer)}"
        links = reply.links(declared.header)
        if not links:
            return MISSING, f"paginator: the answer has no header {declared.header} with links"
        if "next" in links:
            lacks = f"paginator.rel: {declared.header} has no {declared.rel!r}; did you mean one of {', '.join(links)}?"
            return links.get(declared.rel.lower(), MISSING), lacks
        # Links without a next one are how an API with such a header ends.
        return links.get(declared.rel.lower()), ""


class _Keyset(SizedPaginator):
    """The next page begins after the last record of this one."""

    def __init__(self, definition: model.Keyset, page_size: int | None) -> None:
        super().__init__(definition, page_size)
        self._field = parse_path(definition.field)
        self._put = put_at(definition.send_as)
        self._stop = stop_policy(definition, page_size)
        self.on_missing = definition.flag.on_missing if definition.flag is not None else None

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is not None:
            self._put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> Step:
        if not reply.count:
            return Step(Complete(), unconfirmed=True)
        ending = self._stop(Seen(reply, 0, 0, token is None))
        if ending.absent is not None:
            return self.end_without(token, reply, ending.absent)
        if ending.last:
            return COMPLETE
        value = lookup(reply.records[-1], self._field)
        if value is MISSING or value is None or isinstance(value, (dict, list, bool)):
            raise reply.error(
                f"paginator.field {'.'.join(self._field)!r} of the last record is {describe(value)}, not a key"
            )
        return Step(NextPage(value))


def resolved_page_size(definition: model.Paginator | None, place: str, config: Mapping[str, Any]) -> int | None:
    """Return the page size as a number.

    :raises SourceDefinitionError: it isn't a whole number from 1
    """
    size = getattr(definition, "page_size", None)
    if size is None:
        return None
    if isinstance(size, str):
        size = compile_value(size, f"{place}.page_size", CONFIG_NAMES, config)({"config": config})
    if isinstance(size, str) and size.isdigit():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        problem = f"invalid page size {size!r}"
        raise SourceDefinitionError(f"{place}.page_size", problem, "allowed: whole numbers from 1")
    return size


def build_paginator(
    definition: model.Paginator | None,
    place: str,
    page_size: int | None,
    config: Mapping[str, Any],
    hosts: HostPolicy,
    redactor: Redactor,
    key: Sequence[Path] = (),
) -> Paginator:
    """Return the paginator of a definition; without one there is a single page.

    :param key: paths of the primary key
    :raises SourceDefinitionError: an expression is wrong
    """

    def condition(text: str | None, field: str) -> CompiledTemplate | None:
        return None if text is None else compile_condition(text, f"{place}.{field}", RESPONSE_NAMES, config)

    if definition is None or isinstance(definition, model.NoPaging):
        return SinglePage()
    if isinstance(definition, model.PageNumber):
        return _PageNumber(definition, page_size, key)
    if isinstance(definition, model.Offset):
        return _Offset(definition, page_size, key)
    if isinstance(definition, model.Keyset):
        return _Keyset(definition, page_size)
    if isinstance(definition, model.Cursor):
        expression = condition(definition.cursor.expression, "cursor.expression")
        return _Cursor(definition, page_size, condition(definition.stop_when, "stop_when"), expression)
    stop_when = None if isinstance(definition, model.LinkHeader) else condition(definition.stop_when, "stop_when")
    return _NextUrl(definition, page_size, stop_when, hosts, redactor)
