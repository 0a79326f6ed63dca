"""The paginators: page numbers and offsets, whose pages are addressable; cursor, next URL, Link header, keyset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._client import Draft
from airflow_provider_rfr.streams.rest._hosts import HostPolicy
from airflow_provider_rfr.streams.rest._paginator import (
    COMPLETE,
    Paginator,
    Reply,
    Seen,
    SinglePage,
    SizedPaginator,
    Step,
    StopPolicy,
    put_at,
    stop_policy,
    when_empty,
)
from airflow_provider_rfr.streams.rest.expressions import (
    CONFIG_NAMES,
    MISSING,
    RESPONSE_NAMES,
    Template,
    UndefinedValue,
    compile_condition,
    compile_value,
    describe,
    lookup,
    parse_path,
)


class _Numbered(SizedPaginator):
    """A token is a whole number from ``start``; the first page's is None, or ``start`` itself."""

    def __init__(self, definition: model.PageNumber | model.Offset, page_size: int | None, stop: StopPolicy) -> None:
        super().__init__(definition, page_size)
        self._start = definition.start
        self._put = put_at(definition.send_as)
        self._send_first = definition.send_first
        self._stop = stop

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        number = self._number(token)
        if self._send_first or number != self._start:
            self._put(draft, number)

    def _number(self, token: Any | None) -> int:
        if token is None:
            return self._start
        if isinstance(token, bool) or not isinstance(token, int) or token < self._start:
            raise SourceError(f"page token {token!r} is not a whole number from {self._start}")
        return token


class _PageNumber(_Numbered):
    """Page 1, page 2, ...

    Where the API counts its records but sends fewer of them, the number of pages is in doubt.  From there on
    the token is ``{"page": n, "until": "empty"}``: it carries the doubt along, and the stream ends with
    the first empty page, so that nothing is lost to a server that caps the page size.
    """

    addressable = True

    def __init__(self, definition: model.PageNumber, page_size: int | None) -> None:
        super().__init__(definition, page_size, stop_policy(definition, page_size))

    def step(self, token: Any | None, reply: Reply) -> Step:
        number, position = self._number(token), self.position_of(token)
        doubtful = isinstance(token, Mapping)
        if doubtful:
            ending = when_empty(Seen(reply, position, 0))
        else:
            ending = self._stop(Seen(reply, position, position * (self.page_size or 0)))
        if ending.last:
            return Step(Complete(), ending.total_pages, ending.unconfirmed)
        if doubtful or ending.doubtful:
            return Step(NextPage({"page": number + 1, "until": "empty"}))
        return Step(NextPage(number + 1), ending.total_pages, ending.unconfirmed)

    def _number(self, token: Any | None) -> int:
        if isinstance(token, Mapping) and token.keys() <= {"page", "until"}:
            token = token.get("page")
        return super()._number(token)

    def after_skipped(self, token: Any | None) -> Any:
        following = self._number(token) + 1
        return {"page": following, "until": "empty"} if isinstance(token, Mapping) else following

    def token_at(self, position: int) -> int | None:
        return self._start + position if position else None

    def position_of(self, token: Any | None) -> int:
        return self._number(token) - self._start


class _Offset(_Numbered):
    """The number of records before the page.

    After a short page the next offset is that of the record after it (``advance: records``): if the server
    caps the page size nothing is lost, and if it drops rows from a page, some rows come twice.
    ``advance: page_size`` is for servers of the second kind.
    """

    def __init__(self, definition: model.Offset, page_size: int | None) -> None:
        self._by_records = definition.advance == "records"
        super().__init__(definition, page_size, stop_policy(definition, page_size, self._by_records))
        self.addressable = page_size is not None

    def step(self, token: Any | None, reply: Reply) -> Step:
        offset = self._number(token)
        ending = self._stop(Seen(reply, self.position_of(token), offset - self._start))
        if ending.last:
            return Step(Complete(), ending.total_pages, ending.unconfirmed)
        distance = reply.count if self._by_records and reply.count else self.page_size
        if not distance:
            raise reply.error("an empty page isn't the last one here, and without page_size no offset follows it")
        return Step(NextPage(offset + distance), ending.total_pages, ending.unconfirmed)

    def after_skipped(self, token: Any | None) -> int | None:
        return None if self.page_size is None else self._number(token) + self.page_size

    def token_at(self, position: int) -> int | None:
        if self.page_size is None:
            return super().token_at(position)
        return self._start + position * self.page_size if position else None

    def position_of(self, token: Any | None) -> int:
        return (self._number(token) - self._start) // self.page_size if self.page_size else 0


def _stops(condition: Template | None, reply: Reply) -> bool:
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
    """Null, an empty text and false are no cursor; 0 is one."""
    return value is MISSING or value is None or value is False or value == ""


class _Cursor(SizedPaginator):
    """A token in the body or a header, or computed from the answer by an expression."""

    def __init__(
        self, definition: model.Cursor, page_size: int | None, stop_when: Template | None, expression: Template | None
    ) -> None:
        super().__init__(definition, page_size)
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
            reply.find(self._definition.cursor) if self._expression is None else self._computed(self._expression, reply)
        )
        if value is MISSING:
            # An expression that takes the token from a record finds none on an empty page.
            if self._expression is not None and not reply.count:
                return Step(Complete(), unconfirmed=True)
            if self._definition.on_missing != "end":
                raise reply.error(f"paginator.cursor leads to nothing: it is {describe(reply.answer.content())}")
        return COMPLETE if _is_end(value) else Step(NextPage(value))

    def _computed(self, expression: Template, reply: Reply) -> Any:
        """The expression's value; MISSING where it uses something that isn't there."""
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
        find: Callable[[Reply], Any],
        stop_when: Template | None,
        hosts: HostPolicy,
        redactor: Redactor,
    ) -> None:
        super().__init__(definition, page_size)
        self._keep_query = definition.keep_query
        self._find = find
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
        value = self._find(reply)
        if _is_end(value):
            return COMPLETE
        if not isinstance(value, str):
            raise reply.error(f"the next page's address is {describe(value)}")
        answer = reply.answer
        absolute = self._hosts.checked(value, answer.url, "the next page's address", answer.request)
        return Step(NextPage(self._redactor.without_credentials(absolute)))


class _Keyset(SizedPaginator):
    """The next page begins after the last record of this one."""

    def __init__(self, definition: model.Keyset, page_size: int | None) -> None:
        super().__init__(definition, page_size)
        self._field = parse_path(definition.field)
        self._put = put_at(definition.send_as)
        self._stop = stop_policy(definition, page_size)

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is not None:
            self._put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> Step:
        if not reply.count:
            return Step(Complete(), unconfirmed=True)
        if self._stop(Seen(reply, 0, 0)).last:
            return COMPLETE
        value = lookup(reply.records[-1], self._field)
        if value is MISSING or value is None or isinstance(value, (dict, list, bool)):
            raise reply.error(
                f"paginator.field {'.'.join(self._field)!r} of the last record is {describe(value)}, not a key"
            )
        return Step(NextPage(value))


def resolved_page_size(definition: model.Paginator | None, place: str, config: Mapping[str, Any]) -> int | None:
    """The page size as a number.

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
) -> Paginator:
    """The paginator of a definition; without one there is a single page.

    :raises SourceDefinitionError: an expression is wrong
    """

    def condition(text: str | None, field: str) -> Template | None:
        return None if text is None else compile_condition(text, f"{place}.{field}", RESPONSE_NAMES, config)

    if definition is None or isinstance(definition, model.NoPaging):
        return SinglePage()
    if isinstance(definition, model.PageNumber):
        return _PageNumber(definition, page_size)
    if isinstance(definition, model.Offset):
        return _Offset(definition, page_size)
    if isinstance(definition, model.Keyset):
        return _Keyset(definition, page_size)
    if isinstance(definition, model.Cursor):
        expression = condition(definition.cursor.expression, "cursor.expression")
        return _Cursor(definition, page_size, condition(definition.stop_when, "stop_when"), expression)
    if isinstance(definition, model.LinkHeader):
        header, rel = definition.header, definition.rel
        return _NextUrl(definition, page_size, lambda reply: reply.link(header, rel), None, hosts, redactor)
    url, stop_when = definition.url, condition(definition.stop_when, "stop_when")
    return _NextUrl(definition, page_size, lambda reply: reply.find(url), stop_when, hosts, redactor)
