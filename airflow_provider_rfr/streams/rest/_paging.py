"""The base of all paginators: pure functions from a page's token and answer to the next token.

Addressable paginators know the token of every position beforehand. Paginators keep nothing between two pages, so a
token is all that is needed to continue, in any process.

A field that is absent from an answer is not the same as one that is null or empty. Null says that there is no next
page; an absent field may as well be a wrong path. See :meth:`Paginator.end_without`.

A stop policy says how a page shows that it is the last of its partition: ``empty``, ``short``, ``total`` or ``flag``.
Records are counted as the API sent them, before any filter. A short page ends a partition only under ``short``, because
servers cap page sizes and drop rows after they cut the page. A total ends a partition only if the page does not
contradict it: the totals of some APIs are estimates, count what is left, or count the records of the page.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest._request import HostPolicy, RequestDraft, RequestPlace
from airflow_provider_rfr.streams.rest._responses import Response, ResponseField
from airflow_provider_rfr.streams.rest.templates import MISSING, OF_CONFIG, Part, Path, Scope

if TYPE_CHECKING:
    from typing_extensions import Self

# A link of RFC 8288: an address, which may hold any sign but ``>``, and parameters, whose values may be quoted.
_LINK: Final = re.compile(r'<([^>]*)>((?:[^,"<]|"[^"]*")*)')
_RELATION: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', re.IGNORECASE)
# The meaning of an absent field that leads to the next page. By default that ends a partition only where nothing
# contradicts it; see "Absent fields" in docs/paging.md.
OnMissing: TypeAlias = Literal["end", "fail"]
_StopPolicy: TypeAlias = Literal["empty", "short", "total", "flag"]


@dataclass(frozen=True, slots=True)
class Reply:
    """A page as the API sent it.

    :ivar records: before any filter: a record that is dropped later was on the page all the same
    :ivar variables: the names that expressions may use, apart from the answer itself
    """

    answer: Response
    records: list[dict[str, Any]]
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        return len(self.records)

    def all_variables(self) -> dict[str, Any]:
        """Return the variables of expressions over an answer."""
        return {
            **self.variables,
            "response": self.answer.content(),
            "headers": self.answer.headers,
            "status": self.answer.status,
            "last_record": self.records[-1] if self.records else None,
            "record_count": self.count,
        }

    def links(self, header: str) -> dict[str, str]:
        """Return the addresses of a Link header (RFC 8288) by relation in lower case; empty without such a header."""
        addresses: dict[str, str] = {}
        for address, parameters in _LINK.findall(self.answer.headers.get(header, "")):
            relations = _RELATION.search(parameters)
            for relation in (relations[1] or relations[2]).lower().split() if relations else ():
                addresses.setdefault(relation, address.strip())
        return addresses

    def error(self, message: str) -> SourceError:
        return SourceError(message, status=self.answer.status, request=self.answer.request)


@dataclass(frozen=True, slots=True)
class PageStep:
    """The position after a page. ``total_pages``, ``unconfirmed``, ``promised`` and ``absent`` are those of ``Page``.

    :ivar is_repeat: the API sent the page before once more, so its records do not count
    """

    next: NextPage | Complete
    total_pages: int | None = None
    unconfirmed: bool = False
    promised: int | None = None
    absent: str | None = None
    is_repeat: bool = False


COMPLETE: Final = PageStep(Complete())


@dataclass(frozen=True, slots=True)
class PagingContext:
    """The parts of a stream that its paginator is bound to.

    :ivar scope: a scope without secrets in its configuration, because tokens are stored
    :ivar page_size: records of a page that isn't the last, if known
    :ivar key: paths of the primary key
    """

    scope: Scope
    page_size: int | None
    hosts: HostPolicy
    redactor: Redactor
    key: Sequence[Path] = ()


class Paginator(Part, ABC):
    """A paginator: it makes the requests for pages, and finds the next page in an answer.

    :cvar pages_by: how pages follow each other, in words
    """

    pages_by: ClassVar[str]
    _context: PagingContext = PrivateAttr()

    def bind(self, context: PagingContext) -> Self:
        """Return the paginator for one stream."""
        bound = self.model_copy()
        bound._context = context
        return bound

    @property
    def addressable(self) -> bool:
        """Tell whether the token of every position is known beforehand."""
        return False

    @property
    def records_per_page(self) -> int | None:
        """Return the number of records of a page that isn't the last; None if unknown."""
        return self._context.page_size

    @property
    def most_empty_pages(self) -> int:
        """Return the number of pages without records that may follow each other."""
        return 100

    @property
    def places(self) -> dict[str, RequestPlace]:
        """Return the places of a request that the paginator sends values in, by the fields that name them."""
        named = ((name, getattr(self, name, None)) for name in ("send_as", "size_as"))
        return {name: place for name, place in named if isinstance(place, RequestPlace)}

    @property
    def on_absent_field(self) -> OnMissing | None:
        """Return the meaning of an absent field that leads to the next page; None: see :meth:`end_without`."""
        return None

    def size_in(self, scope: Scope) -> int | None:
        """Return the page size as a number.

        :raises SourceDefinitionError: it isn't a whole number from 1
        """
        return None

    @abstractmethod
    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        """Make the request ask for the page of ``token``; None is the first page.

        :raises SourceError: the token can't belong to this paginator
        """

    @abstractmethod
    def step(self, token: Any | None, reply: Reply) -> PageStep:
        """Return the position after the page of ``token``.

        :raises SourceError: the answer lacks a field that the paginator needs
        """

    def end_without(self, token: Any | None, reply: Reply, problem: str) -> PageStep:
        """Return the end of a partition at a page that lacks the field which leads to the next page.

        The page before proves that the field exists, unless this is the first page. Then the end is marked as
        ``absent``: it holds if the page is short or empty, or if another page of the load has the field.

        :param problem: names the absent field
        :raises SourceError: ``on_missing`` is ``fail``
        """
        if self.on_absent_field == "fail":
            raise reply.error(problem)
        return COMPLETE if self.on_absent_field == "end" or token is not None else PageStep(Complete(), absent=problem)

    def after_no_content(self, token: Any | None) -> PageStep:
        """Return the position after an answer without content, e.g. 204."""
        return PageStep(Complete(), unconfirmed=True)

    def is_beyond_the_end(self, token: Any | None) -> bool:
        """Tell whether the page is after the last one by the API's own count, so that a refusal confirms the end."""
        return False

    def has_count(self, answer: Response) -> bool:
        """Tell whether an answer has the API's own count, by which the last page is recognised."""
        return False

    def after_skipped(self, token: Any | None) -> Any | None:
        """Return the token after an ignored page, without its answer; None if it can't be known."""
        return None

    def token_at(self, position: int) -> Any | None:
        """Return the token of a position, from 0."""
        raise NotImplementedError("the pages are not addressable")

    def position_of(self, token: Any | None) -> int:
        """Return the position of a token; the inverse of ``token_at`` as far as there is one."""
        raise NotImplementedError("the pages are not addressable")


class SinglePagePaginator(Paginator):
    """There is one page."""

    type: Literal["none"]

    pages_by: ClassVar[str] = "one page"

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        if token is not None:
            raise SourceError(f"the stream has one page, but the stored token is {token!r}")

    def step(self, token: Any | None, reply: Reply) -> PageStep:
        return COMPLETE


class SizedPaginator(Paginator):
    """A paginator that sends the page size, if it was declared.

    :ivar page_size: records of a full page. It is sent where ``size_as`` says
    :ivar size_as: the place of the page size in the request; without it no size is sent
    :ivar max_empty_pages: pages without records in a row, each of which names a next page, before the partition fails
    """

    page_size: Annotated[int | str | None, OF_CONFIG] = None
    size_as: RequestPlace | None = None
    max_empty_pages: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _size_to_send(self) -> Self:
        if self.size_as is not None and self.page_size is None:
            raise ValueError("size_as sends page_size, which is missing")
        return self

    @property
    def most_empty_pages(self) -> int:
        return self.max_empty_pages

    def size_in(self, scope: Scope) -> int | None:
        size = self.page_size
        if size is None:
            return None
        if isinstance(size, str):
            size = scope.resolve(size, "page_size")
        if isinstance(size, str) and size.isdigit():
            size = int(size)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise scope.error("page_size", f"invalid page size {size!r}", "allowed: whole numbers from 1")
        return size

    def inject(self, token: Any | None, draft: RequestDraft) -> None:
        page_size = self.records_per_page
        if self.size_as is not None and page_size is not None:
            self.size_as.put(draft, page_size)


@dataclass(frozen=True, slots=True)
class PageSeen:
    """The input of a stop policy.

    :ivar position: position of the page, from 0
    :ivar before: records before this page, if every page before it was full
    :ivar is_first: whether it is the first page of its partition
    """

    reply: Reply
    position: int
    before: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class StopDecision:
    """The decision of a stop policy: whether the page is the last, and the number of pages, if known.

    :ivar doubtful: the number of pages can't be computed, so the partition is read to its first empty page
    :ivar contradicted: the API's count says that this page is the last, and the page is full or beyond that count
    :ivar unconfirmed: the page is empty, and the API itself doesn't say that nothing is missing
    :ivar promised: records of the partition, by the API's count
    :ivar absent: the field that decides is absent; says which, see :meth:`Paginator.end_without`
    """

    last: bool
    total_pages: int | None = None
    doubtful: bool = False
    contradicted: bool = False
    unconfirmed: bool = False
    promised: int | None = None
    absent: str | None = None


_TEXTS: Final = {"true": True, "false": False, "1": True, "0": False}


class NextPageFlag(ResponseField):
    """A field that says whether there is another page.

    :ivar stop_when: the value that means the last page: ``false`` for fields such as ``has_more``, ``true`` for fields
        such as ``is_last``
    :ivar on_missing: what an answer without the field means: ``end`` of the partition, or ``fail``. By default it is
        the end after a page that had the field, on an empty page and on a short one
    """

    stop_when: bool = False
    on_missing: OnMissing | None = None

    @model_validator(mode="after")
    def _absence_can_end(self) -> NextPageFlag:
        if self.stop_when and self.on_missing == "end":
            raise ValueError("on_missing: end needs stop_when: false; an absent is_last does not mean the last page")
        return self

    def decide(self, seen: PageSeen) -> StopDecision:
        """Decide by the flag in the answer.

        :raises SourceError: a flag such as is_last is absent from a page with records, or it is neither true nor false
        """
        value = self.find(seen.reply.answer)
        if value is MISSING:
            problem = f"paginator.flag: {self.describe_absence(seen.reply.answer)}"
            # That a field such as is_last is absent does not make the page the last one.
            if self.stop_when and seen.reply.count:
                raise seen.reply.error(problem)
            return StopDecision(True, unconfirmed=not seen.reply.count, absent=problem)
        if isinstance(value, str):
            value = _TEXTS.get(value.strip().lower(), value)
        if value not in (True, False, None):
            raise seen.reply.error(f"paginator.flag is {value!r}, neither true nor false")
        return StopDecision(bool(value) is self.stop_when)


class PartitionTotal(ResponseField):
    """The number of records or pages of the partition.

    :ivar of: what the API counts: ``records`` or ``pages`` of the partition
    """

    of: Literal["records", "pages"] = "records"

    def decide(self, seen: PageSeen, page_size: int | None, offsets_by_records: bool | None) -> StopDecision:
        """Decide by the answer's number of pages or records.

        :param offsets_by_records: how offsets advance; None if pages are not offsets
        """
        number, count = self._number(seen), seen.reply.count
        if number is None:
            return StopDecision(not count, doubtful=True, unconfirmed=not count)
        if self.of == "pages" or page_size is None:
            pages = max(1, number)
            is_last, is_missing = seen.position + 1 >= pages, seen.position < pages
            is_beyond = seen.position >= number
        elif offsets_by_records is not None:
            pages = max(1, ceil(number / page_size))
            covered = count if offsets_by_records and count else page_size
            is_last, is_missing = seen.before + covered >= number, seen.before < number
            is_beyond = seen.before + count > number
        else:
            pages = max(1, ceil(number / page_size))
            expected = min(page_size, number - seen.position * page_size)
            if 0 < count < expected:
                return StopDecision(False, doubtful=True, promised=number)
            is_last, is_missing = seen.position + 1 >= pages, expected > 0
            is_beyond = seen.before + count > number
        # A number of pages says nothing about the size of the last one.
        is_full = self.of == "records" and page_size is not None and count >= page_size
        return StopDecision(
            is_last,
            pages,
            contradicted=is_last and count > 0 and (is_full or is_beyond),
            unconfirmed=is_missing and not count,
            promised=number if self.of == "records" else None,
        )

    def _number(self, seen: PageSeen) -> int | None:
        """Return the API's count; None where the answer has none, and the partition is read to its first empty page.

        :raises SourceError: the first page has records and no count, so the declared place is probably wrong
        """
        value = self.find(seen.reply.answer)
        if value is MISSING and seen.is_first and seen.reply.count:
            raise seen.reply.error(f"paginator.total: {self.describe_absence(seen.reply.answer)}")
        if value is MISSING or value is None:
            return None
        number = _count_of(value)
        if number is None:
            raise seen.reply.error(f"paginator.total is {value!r}, not a count")
        return number

    def promised(self, reply: Reply) -> int | None:
        """Return how many records the partition has by the API's count; None if the answer does not say."""
        return None if self.of != "records" else _count_of(self.find(reply.answer))


def _count_of(value: Any) -> int | None:
    """Return a count that an answer has as a number or a text; None if it is not a count."""
    if (isinstance(value, str) and value.strip().isdigit()) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return None if isinstance(value, bool) or not isinstance(value, int) or value < 0 else value


class StoppingPaginator(SizedPaginator):
    """A paginator whose last page is recognised by a stop policy.

    :ivar stop: how the last page is recognised: the first ``empty`` page, the first page that is ``short`` of
        ``page_size``, the API's own ``total``, or a ``flag``. Default: ``total`` or ``flag``, whichever is declared,
        else ``empty``
    :ivar total: the place of the API's own count. It ends a partition only if the records do not contradict it
    :ivar flag: the place of a field that says whether there is another page
    """

    stop: _StopPolicy | None = None
    total: PartitionTotal | None = None
    flag: NextPageFlag | None = None

    @property
    def stop_policy(self) -> _StopPolicy:
        """Return the declared policy; else the one that the other fields make possible."""
        if self.stop is not None:
            return self.stop
        return "total" if self.total else "flag" if self.flag else "empty"

    @property
    def on_absent_field(self) -> OnMissing | None:
        return self.flag.on_missing if self.flag is not None else None

    @model_validator(mode="after")
    def _policy_has_its_field(self) -> Self:
        policy = self.stop_policy
        if policy == "total" and self.total is None:
            raise ValueError("stop: total needs the field total")
        if policy == "flag" and self.flag is None:
            raise ValueError("stop: flag needs the field flag")
        if policy == "short" and self.page_size is None:
            raise ValueError("stop: short needs page_size")
        if self.total is not None and self.total.of == "records" and self.page_size is None:
            raise ValueError("total of records needs page_size, to tell how many pages that is")
        return self

    def decide(self, seen: PageSeen, offsets_by_records: bool | None = None) -> StopDecision:
        """Decide by the stop policy whether a page is the last.

        :param offsets_by_records: how offsets advance; None if pages are not offsets
        """
        policy, page_size, count = self.stop_policy, self.records_per_page, seen.reply.count
        if policy == "flag" and self.flag is not None:
            return self.flag.decide(seen)
        if policy == "total" and self.total is not None:
            return self.total.decide(seen, page_size, offsets_by_records)
        # Under "short" the first page with fewer records than asked for is the last, else the first without any.
        is_last = count < page_size if policy == "short" and page_size is not None else not count
        return StopDecision(is_last, unconfirmed=not count)
