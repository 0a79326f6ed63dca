"""Paginators whose next token comes with the page: cursor, next URL, Link header, keyset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.injection import Put
from airflow_provider_rfr.streams.rest.interpolation import Template, UndefinedValue
from airflow_provider_rfr.streams.rest.paginators import COMPLETE, Finder, Reply, SizedPaginator, Step, to
from airflow_provider_rfr.streams.rest.paths import MISSING, Path, describe, lookup
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.stop_policies import Seen, StopPolicy
from airflow_provider_rfr.streams.rest.transport import Draft
from airflow_provider_rfr.streams.state import Complete

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


class NextUrl(SizedPaginator):
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
            raise SourceError(f"page token {token!r} is no address")
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


class Keyset(SizedPaginator):
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


def link_of(header: str, rel: str) -> Callable[[Reply], Any]:
    """Finds the address with a relation in a Link header."""
    from requests.utils import parse_header_links

    def find(reply: Reply) -> Any:
        for link in parse_header_links(reply.answer.headers.get(header, "")):
            if rel in link.get("rel", "").split():
                return link["url"]
        return MISSING

    return find


def found_by(finder: Finder) -> Callable[[Reply], Any]:
    """A finder as a function of the reply."""
    return lambda reply: finder.find(reply.answer)


def computed_by(expression: Template, *, of_records: bool) -> Callable[[Reply], Any]:
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
