"""The paginators: page numbers and offsets, whose pages are addressable; cursor, next URL, Link header, keyset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import Complete
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.client import Draft
from airflow_provider_rfr.streams.rest.definition import Origin
from airflow_provider_rfr.streams.rest.expressions import (
    CONFIG_NAMES,
    MISSING,
    RESPONSE_NAMES,
    Path,
    Template,
    UndefinedValue,
    compile_condition,
    compile_value,
    describe,
    lookup,
    parse_path,
)
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.paginator import (
    COMPLETE,
    Finder,
    Paginator,
    Put,
    Reply,
    Seen,
    SinglePage,
    SizedPaginator,
    Step,
    StopPolicy,
    put_at,
    to,
    when_empty,
    when_flagged,
    when_offset_reached,
    when_pages_read,
    when_records_read,
    when_short,
)


class _Numbered(SizedPaginator):
    """A token is a whole number from ``start``; the first page's is None, or ``start`` itself."""

    def __init__(
        self, *, start: int, put: Put, send_first: bool, stop: StopPolicy, page_size: int | None, put_size: Put
    ) -> None:
        super().__init__(page_size, put_size)
        self._start = start
        self._put = put
        self._send_first = send_first
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
            return to({"page": number + 1, "until": "empty"})
        return to(number + 1, ending.total_pages, unconfirmed=ending.unconfirmed)

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

    def __init__(self, *, advance_by_records: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self.addressable = self.page_size is not None
        self._by_records = advance_by_records

    def step(self, token: Any | None, reply: Reply) -> Step:
        offset = self._number(token)
        ending = self._stop(Seen(reply, self.position_of(token), offset - self._start))
        if ending.last:
            return Step(Complete(), ending.total_pages, ending.unconfirmed)
        distance = reply.count if self._by_records and reply.count else self.page_size
        if not distance:
            raise reply.error("an empty page isn't the last one here, and without page_size no offset follows it")
        return to(offset + distance, ending.total_pages, unconfirmed=ending.unconfirmed)

    def after_skipped(self, token: Any | None) -> int | None:
        return None if self.page_size is None else self._number(token) + self.page_size

    def token_at(self, position: int) -> int | None:
        if self.page_size is None:
            return super().token_at(position)
        return self._start + position * self.page_size if position else None

    def position_of(self, token: Any | None) -> int:
        return (self._number(token) - self._start) // self.page_size if self.page_size else 0


_NO_CURSOR: Final = (None, "", False)


def _stops(condition: Template | None, reply: Reply) -> bool:
    if condition is None:
        return False
    problem = ""
    try:
        return bool(condition(reply.all_variables()))
    except SourceDefinitionError as error:
        problem = error.problem
    raise reply.error(f"paginator.stop_when fails: {problem}")


def _is_end(value: Any) -> bool:
    """Null, an empty text and false are no cursor; 0 is one."""
    return any(value is item or (item == "" and value == "") for item in _NO_CURSOR)


class Cursor(SizedPaginator):
    """A token in the body or a header.

    :param find: the token in a reply, or MISSING
    :param end_if_missing: whether an answer without the field is the last
    :param computed: the token is made of the answer, so that a page without records may have none
    """

    def __init__(
        self,
        *,
        find: Callable[[Reply], Any],
        put: Put,
        stop_when: Template | None,
        end_if_missing: bool,
        computed: bool = False,
        page_size: int | None,
        put_size: Put,
    ) -> None:
        super().__init__(page_size, put_size)
        self._find = find
        self._put = put
        self._stop_when = stop_when
        self._end_if_missing = end_if_missing
        self._computed = computed

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is not None:
            self._put(draft, token)

    def step(self, token: Any | None, reply: Reply) -> Step:
        if _stops(self._stop_when, reply):
            return COMPLETE
        value = self._find(reply)
        if value is MISSING and self._computed and not reply.count:
            return Step(Complete(), unconfirmed=True)
        if value is MISSING and not self._end_if_missing:
            raise reply.error(f"paginator.cursor leads to nothing: it is {describe(reply.answer.json())}")
        return COMPLETE if value is MISSING or _is_end(value) else to(value)


class _NextUrl(SizedPaginator):
    """The address of the next page.  The token is that address without credentials."""

    def __init__(
        self,
        *,
        find: Callable[[Reply], Any],
        hosts: HostPolicy,
        redactor: Redactor,
        stop_when: Template | None = None,
        keep_query: bool = False,
        page_size: int | None = None,
        put_size: Put,
    ) -> None:
        super().__init__(page_size, put_size)
        self._find = find
        self._hosts = hosts
        self._redactor = redactor
        self._stop_when = stop_when
        self._keep_query = keep_query

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        if token is None:
            return
        if not isinstance(token, str):
            raise SourceError(f"page token {token!r} is not an address")
        # The token comes from a store: what was checked when it was written is checked again.
        draft.url = self._hosts.checked(token, draft.url, "the page token")
        linked = dict(parse_qsl(urlsplit(draft.url).query, keep_blank_values=True)) if self._keep_query else None
        draft.query = {} if linked is None else {k: v for k, v in draft.query.items() if k not in linked}

    def step(self, token: Any | None, reply: Reply) -> Step:
        if _stops(self._stop_when, reply):
            return COMPLETE
        value = self._find(reply)
        if value is MISSING or _is_end(value):
            return COMPLETE
        if not isinstance(value, str):
            raise reply.error(f"the next page's address is {describe(value)}")
        answer = reply.answer
        absolute = self._hosts.checked(value, answer.url, "the next page's address", answer.request)
        return to(self._redactor.without_credentials(absolute))


class _Keyset(SizedPaginator):
    """The next page begins after the last record of this one."""

    def __init__(self, *, field: Path, put: Put, stop: StopPolicy, page_size: int | None, put_size: Put) -> None:
        super().__init__(page_size, put_size)
        self._field = field
        self._put = put
        self._stop = stop

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
        return to(value)


def _link_of(header: str, rel: str) -> Callable[[Reply], Any]:
    """Finds the address with a relation in a Link header."""
    from requests.utils import parse_header_links

    def find(reply: Reply) -> Any:
        for link in parse_header_links(reply.answer.headers.get(header, "")):
            if rel in link.get("rel", "").split():
                return link["url"]
        return MISSING

    return find


def _found_by(finder: Finder) -> Callable[[Reply], Any]:
    """A finder as a function of the reply."""
    return lambda reply: finder.find(reply.answer)


def _computed_by(expression: Template, *, of_records: bool) -> Callable[[Reply], Any]:
    """An expression as a function of the reply; MISSING where it asks for something that isn't there.

    :param of_records: it asks for something of the last record, which every record must have
    """

    def find(reply: Reply) -> Any:
        problem = ""
        try:
            return expression(reply.all_variables())
        except UndefinedValue as error:
            if not (of_records and reply.count):
                return MISSING
            problem = error.problem
        except SourceDefinitionError as error:
            problem = error.problem
        raise reply.error(f"paginator.cursor.expression fails: {problem}")

    return find


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
        raise SourceDefinitionError(f"{place}.page_size", f"{size!r} is no page size", "allowed: whole numbers from 1")
    return size


def build_paginator(
    definition: model.Paginator | None,
    place: str,
    page_size: int | None,
    config: Mapping[str, Any],
    hosts: HostPolicy,
    redactor: Redactor,
) -> Paginator:
    """The paginator of a definition; without one there is a single page."""
    if definition is None or isinstance(definition, model.NoPaging):
        return SinglePage()
    if isinstance(definition, (model.PageNumber, model.Offset)):
        return _numbered(definition, page_size)
    if isinstance(definition, model.Keyset):
        return _Keyset(
            field=parse_path(definition.field),
            put=put_at(definition.send_as),
            stop=_policy(definition, page_size),
            page_size=page_size,
            put_size=put_at(definition.size_as),
        )
    if isinstance(definition, model.Cursor):
        return _cursor(definition, place, page_size, config)
    if isinstance(definition, model.LinkHeader):
        find, stop_when = _link_of(definition.header, definition.rel), None
    else:
        find = _found_by(_finder_of(definition.url))
        stop_when = _condition(definition.stop_when, f"{place}.stop_when", config)
    return _NextUrl(
        find=find,
        hosts=hosts,
        redactor=redactor,
        stop_when=stop_when,
        keep_query=definition.keep_query,
        page_size=page_size,
        put_size=put_at(definition.size_as),
    )


def _cursor(definition: model.Cursor, place: str, page_size: int | None, config: Mapping[str, Any]) -> Cursor:
    return Cursor(
        find=_cursor_finder(definition.cursor, f"{place}.cursor", config),
        put=put_at(definition.send_as),
        stop_when=_condition(definition.stop_when, f"{place}.stop_when", config),
        end_if_missing=definition.on_missing == "end",
        computed=definition.cursor.expression is not None,
        page_size=page_size,
        put_size=put_at(definition.size_as),
    )


def _finder_of(origin: Origin) -> Finder:
    """How the value of a definition's origin is found."""
    return Finder(None if origin.path is None else parse_path(origin.path), origin.header)


def _numbered(definition: model.PageNumber | model.Offset, page_size: int | None) -> Paginator:
    parts: dict[str, Any] = {
        "start": definition.start,
        "put": put_at(definition.send_as),
        "send_first": definition.send_first,
        "page_size": page_size,
        "put_size": put_at(definition.size_as),
    }
    if isinstance(definition, model.PageNumber):
        return _PageNumber(stop=_policy(definition, page_size), **parts)
    by_records = definition.advance == "records"
    stop = _policy(definition, page_size, offsets_by_records=by_records)
    return _Offset(advance_by_records=by_records, stop=stop, **parts)


def _policy(
    definition: model.PageNumber | model.Offset | model.Keyset,
    page_size: int | None,
    offsets_by_records: bool | None = None,
) -> StopPolicy:
    """:param offsets_by_records: how offsets advance; None if pages are not offsets"""
    policy = definition.stop_policy
    if policy == "short" and page_size is not None:
        return when_short(page_size)
    if policy == "flag" and definition.flag is not None:
        return when_flagged(_finder_of(definition.flag), definition.flag.stop_when)
    if policy == "total" and definition.total is not None:
        finder = _finder_of(definition.total)
        if definition.total.of == "pages" or page_size is None:
            return when_pages_read(finder)
        if offsets_by_records is not None:
            return when_offset_reached(finder, page_size, by_records=offsets_by_records)
        return when_records_read(finder, page_size)
    return when_empty


def _cursor_finder(origin: model.CursorOrigin, place: str, config: Mapping[str, Any]) -> Callable[[Reply], Any]:
    if origin.expression is not None:
        expression = compile_condition(origin.expression, f"{place}.expression", RESPONSE_NAMES, config)
        return _computed_by(expression, of_records="last_record" in origin.expression)
    return _found_by(Finder(None if origin.path is None else parse_path(origin.path), origin.header))


def _condition(text: str | None, place: str, config: Mapping[str, Any]) -> Template | None:
    return None if text is None else compile_condition(text, place, RESPONSE_NAMES, config)
