"""A stream that is declared rather than written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage, Page, PrimaryKey, ReadContext
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.streams.rest.client import Requester
from airflow_provider_rfr.streams.rest.error_handler import Action, Verdict
from airflow_provider_rfr.streams.rest.paginator import Paginator, Reply
from airflow_provider_rfr.streams.rest.partition_routers import NoRouter, PartitionRouter, distinct
from airflow_provider_rfr.streams.rest.records import Selector, SkipGuard, Transformation, transform


@dataclass(frozen=True, slots=True)
class RestParts:
    """What a RestStream is made of.

    :ivar variables: what filters and transformations may use besides the record: no secrets, because what
        they make ends in a table
    :ivar fingerprint: what decides which requests are sent, without secrets
    :ivar rebuild: makes the stream again in another process
    """

    requester: Requester
    selector: Selector
    paginator: Paginator
    fingerprint: Mapping[str, Any]
    router: PartitionRouter = field(default_factory=NoRouter)
    transformations: tuple[Transformation, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    rebuild: tuple[Callable[..., Any], tuple[Any, ...]] | None = field(default=None, repr=False)


class RestStream(PagedStream):
    """Reads pages by HTTP as a source definition says; see docs/sources.md.

    Stateless: any page of any partition can be read on any thread.  The pages of a parent stream are read
    by the parent's own RestStream.
    """

    paces_itself = True

    def __init__(
        self,
        name: str,
        parts: RestParts,
        primary_key: PrimaryKey = None,
        json_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.primary_key = primary_key
        self.json_schema = json_schema
        self.addressable = parts.paginator.addressable
        self.page_size = parts.paginator.page_size
        self.partition_fields = parts.router.key_fields
        self._parts = parts
        self._skips = SkipGuard(parts.requester.handler.max_skipped_pages)

    @property
    def slice_fields(self) -> tuple[str, ...]:
        """All fields that the stream's partitions have."""
        return self._parts.router.fields

    @classmethod
    def from_definition(
        cls,
        definition: Mapping[str, Any],
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
    ) -> RestStream:
        """One stream of a source definition.

        :raises SourceDefinitionError: the definition is wrong, or has no such stream
        """
        from airflow_provider_rfr.streams.rest.build import build_stream

        return build_stream(definition, name, dict(config or {}), dict(secrets or {}))

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """The partitions; a parent stream is read for it, page by page."""
        return distinct(self._parts.router, self.name)

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        parts = self._parts
        verdict = parts.requester.fetch(stream_slice, token, parts.paginator, self.context)
        answer = verdict.answer
        if verdict.action is Action.END:
            return Page((), Complete(), request=verdict.request, status=verdict.status)
        if verdict.action is Action.IGNORE or answer is None:
            return self._skipped(stream_slice, token, verdict)
        records = parts.selector.select(answer)
        received = len(records)
        variables = {**parts.variables, "stream_slice": stream_slice}
        step = parts.paginator.step(token, Reply(answer, records, {**variables, "token": token}))
        if parts.selector.condition is not None:
            records = parts.selector.keep(records, variables, answer.request)
        if parts.transformations:
            transform(records, parts.transformations, variables, answer.request)
        return Page(
            records,
            step.next,
            step.total_pages,
            answer.request,
            answer.status,
            received=received,
            unconfirmed=step.unconfirmed,
        )

    def token_at(self, position: int) -> Any | None:
        return self._parts.paginator.token_at(position)

    def fingerprint(self) -> Mapping[str, Any]:
        return self._parts.fingerprint

    def bind(self, context: ReadContext) -> None:
        super().bind(context)
        for parent in self._parts.router.parents():
            parent.bind(context)

    def _skipped(self, stream_slice: Mapping[str, Any], token: Any | None, verdict: Verdict) -> Page:
        paginator = self._parts.paginator
        following = paginator.after_skipped(token)
        if following is not None:
            position = paginator.position_of(token)
            self._skips.note(self.partition_key(stream_slice), position, verdict.reason, verdict.request)
        elif token is not None:
            raise SourceError(
                f"the page was to be ignored, but without it the next one can't be known: {verdict.reason}",
                status=verdict.status,
                request=verdict.request,
            )
        after = Complete() if following is None else NextPage(following)
        return Page((), after, None, verdict.request, verdict.status, skipped=verdict.reason)

    def __reduce__(self) -> Any:
        if self._parts.rebuild is None:
            raise TypeError(f"{self!r} was not made from a definition and can't be sent to another process")
        return self._parts.rebuild

    def __repr__(self) -> str:
        return f"RestStream({self.name!r})"
