"""A stream that is declared rather than written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from airflow_provider_rfr.exceptions import RateLimitedError, SourceDefinitionError, SourceError, TokenExpiredError
from airflow_provider_rfr.streams.core import Complete, NextPage, Page, PrimaryKey, ReadContext, unique_slices
from airflow_provider_rfr.streams.paged import REMEDY_FOR_ABSENT_FIELD, PagedStream, is_unexplained_end
from airflow_provider_rfr.streams.rest._client import Requester
from airflow_provider_rfr.streams.rest._errors import ResponseAction, ResponseVerdict
from airflow_provider_rfr.streams.rest._paginator import Paginator, Reply, Step
from airflow_provider_rfr.streams.rest._partition_routers import PartitionRouter
from airflow_provider_rfr.streams.rest._records import BoundTransformation, Records, SkipGuard, transform
from airflow_provider_rfr.streams.rest._responses import Response

_log = logging.getLogger(__name__)

#: Statuses by which an API says that it does not know a page, or a page token.
_NO_SUCH_PAGE = frozenset({400, 404, 410, 416, 422})


def _may_pass(error: SourceError) -> bool:
    """Tell whether a refusal is about the credentials or the rate, and not about the page."""
    return isinstance(error, RateLimitedError) or error.status == 401


class RestStream(PagedStream):
    """A stream read by HTTP as a source definition says; see docs/sources.md and :meth:`from_definition`.

    Stateless: any page of any partition can be read on any thread.  The pages of a parent stream are read
    by the parent's own RestStream.

    :param variables: what filters and transformations may use besides the record: no secrets, because what
        they make ends in a table
    :param fingerprint: what decides which requests are sent, without secrets
    :param rebuild: gives a function and its arguments that make the stream again in another process; they hold
        secrets, which therefore are no attribute
    """

    paces_itself = True

    def __init__(
        self,
        name: str,
        *,
        requester: Requester,
        selector: Records,
        paginator: Paginator,
        router: PartitionRouter,
        transformations: Sequence[BoundTransformation],
        variables: Mapping[str, Any],
        fingerprint: Mapping[str, Any],
        rebuild: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]],
        primary_key: PrimaryKey = None,
        json_schema: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        additional_fields: Literal["keep", "drop"] = "drop",
    ) -> None:
        self.name = name
        self.primary_key = primary_key
        self.json_schema = json_schema
        self.columns = columns
        self.additional_fields = additional_fields
        self.addressable = paginator.addressable
        self.page_size = paginator.page_size
        self.max_empty_pages = paginator.max_empty_pages
        self.absent_field_ends = paginator.on_missing == "end"
        self.partition_fields = router.key_fields
        self.slice_fields = router.fields
        self._requester = requester
        self._selector = selector
        self._paginator = paginator
        self._router = router
        self._transformations = transformations
        self._variables = variables
        self._fingerprint = fingerprint
        self._rebuild = rebuild
        self._skips = SkipGuard(requester.handler.max_skipped_pages)

    @classmethod
    def from_definition(
        cls,
        definition: Mapping[str, Any],
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
    ) -> RestStream:
        """Build one stream of a source definition.

        :raises SourceDefinitionError: the definition is wrong, or has no such stream
        """
        from airflow_provider_rfr.streams.rest.build import build_stream

        return build_stream(definition, name, dict(config or {}), dict(secrets or {}))

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """Return the partitions; a parent stream is read for them, page by page."""
        return (stream_slice.partition for stream_slice in unique_slices(self, self._router.partitions()))

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        try:
            verdict = self._requester.fetch(stream_slice, token, self._paginator, self.context)
            return self._page_of(stream_slice, token, verdict)
        except SourceError as error:
            if self._paginator.is_beyond_the_end(token) and not _may_pass(error):
                return self._refused_beyond_the_end(error)
            is_refused = error.status in _NO_SUCH_PAGE and not isinstance(error, TokenExpiredError)
            if token is not None and is_refused and not self.addressable:
                error.message += (
                    f"; if the page token has expired, add {error.status} to error_handler.expired_token_status, and"
                    " the partition is read again from its first page"
                )
            raise

    def _refused_beyond_the_end(self, error: SourceError) -> Page:
        """Return the end of a partition where the API refuses a page that does not exist by its own count."""
        if error.status not in _NO_SUCH_PAGE:
            _log.warning("%s: taken for the end, because the API's own count says so", error)
        return Page((), Complete(), request=error.request, status=error.status)

    def _page_of(self, stream_slice: Mapping[str, Any], token: Any | None, verdict: ResponseVerdict) -> Page:
        answer = verdict.answer
        is_beyond = self._paginator.is_beyond_the_end(token)
        if verdict.action is ResponseAction.END or (verdict.action is ResponseAction.IGNORE and is_beyond):
            return Page((), Complete(), request=verdict.request, status=verdict.status)
        if verdict.action is ResponseAction.IGNORE or answer is None:
            return self._skipped(stream_slice, token, verdict)
        received, records, step = self._content(stream_slice, token, answer)
        page = Page(
            records,
            step.next,
            step.total_pages,
            answer.request,
            answer.status,
            received=received,
            unconfirmed=step.unconfirmed,
            promised=step.promised,
            absent=step.absent,
            is_beyond=is_beyond,
        )
        if not self.slice_fields and is_unexplained_end(page, self.page_size):
            # No other partition can show that the field exists.
            raise SourceDefinitionError(f"streams.{self.name}", page.absent or "", REMEDY_FOR_ABSENT_FIELD)
        return page

    def _content(
        self, stream_slice: Mapping[str, Any], token: Any | None, answer: Response
    ) -> tuple[int, list[dict[str, Any]], Step]:
        """Return how many records came, those of them that count, and the position after the page."""
        if not answer.has_content:
            # 204 and 205 say that there are no records, and have no field that a paginator could look for.
            return 0, [], self._paginator.after_no_content(token)
        records = self._selector.select(answer)
        variables = {**self._variables, "stream_slice": stream_slice}
        # Before the filter: a page that it empties is not the last one.
        step = self._paginator.step(token, Reply(answer, records, {**variables, "token": token}))
        if step.is_repeat:
            return 0, [], step
        received = len(records)
        records = self._selector.keep(records, variables, answer.request)
        if self._transformations:
            transform(records, self._transformations, variables, answer.request)
        return received, records, step

    def _skipped(self, stream_slice: Mapping[str, Any], token: Any | None, verdict: ResponseVerdict) -> Page:
        following = self._paginator.after_skipped(token)
        if following is not None:
            position = self._paginator.position_of(token)
            self._skips.note(self.partition_key(stream_slice), position, verdict.reason, verdict.request)
        elif token is not None:
            raise SourceError(
                f"the page was to be ignored, but without it the next one can't be known: {verdict.reason}",
                status=verdict.status,
                request=verdict.request,
            )
        after = Complete() if following is None else NextPage(following)
        return Page((), after, None, verdict.request, verdict.status, skipped=verdict.reason)

    def token_at(self, position: int) -> Any | None:
        return self._paginator.token_at(position)

    def fingerprint(self) -> Mapping[str, Any]:
        return self._fingerprint

    def bind(self, context: ReadContext) -> None:
        super().bind(context)
        for parent in self._router.parents():
            parent.bind(context)

    def __reduce__(self) -> Any:
        return self._rebuild()

    def __repr__(self) -> str:
        return f"RestStream({self.name!r})"
