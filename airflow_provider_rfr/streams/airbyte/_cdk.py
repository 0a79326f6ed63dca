"""Streams of a manifest as ``airbyte-cdk`` builds and reads them, by its private names.

The private names of tokens are used in ``_guard``, those of cursors in ``_cursors``, and those of patched functions in
``_installed``. Written for 7.34 to 7.x. Its classes are imported in functions: the extra may be missing, and the import
takes a second.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, Final

import requests

from airflow_provider_rfr.exceptions import SourceError, TokenExpiredError
from airflow_provider_rfr.streams.airbyte import _cursors
from airflow_provider_rfr.streams.airbyte._guard import LoggedMessages
from airflow_provider_rfr.streams.airbyte._installed import building, refuse_unknown, replace_name

# As in the CDK, a slice begins at most twice, so its first page is requested once more.
_MOST_BEGINNINGS: Final = 2
_DELEGATING: Final = "StateDelegatingStream"


class Interpreter:
    """A manifest with its configuration, interpreted by the CDK; it sends no request before ``definitions``.

    Create and use it within ``registering``.

    :param components: text of ``components.py``, which is executed; without it no class that a manifest names is used
    :param states: states of streams that are read incrementally, by name, in the form of the CDK
    :ivar definition: the manifest with references resolved
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        config: Mapping[str, Any],
        components: str | None,
        states: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if components:
            _register(components)
        messages = LoggedMessages()
        self._source = _silent_source()(
            config=dict(config),
            state=[_state_message(name, state) for name, state in (states or {}).items()],
            source_config=copy.deepcopy(dict(manifest)),
            custom_components_trusted=components is not None,
        )
        for owner in (self._source, self._source._constructor):
            replace_name(owner, "_message_repository", messages)
        # The cache holds all pages of a parent in memory for children that read it again; our engine reads it once.
        replace_name(self._source._constructor, "_disable_cache", True)
        self.definition: Mapping[str, Any] = self._source._source_config

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the configuration as the manifest's rules have changed it."""
        config: Mapping[str, Any] = self._source._config
        return config

    @property
    def listings(self) -> list[Mapping[str, Any]]:
        """Return the definitions of streams that only the API can list."""
        dynamic = self._source._source_config.get("dynamic_streams") or []
        return [stream for stream in dynamic if stream["components_resolver"].get("type") == "HttpComponentsResolver"]

    @cached_property
    def concurrency(self) -> int | None:
        """Return the number of partitions that the manifest allows to read at the same time; None if it sets none."""
        from airbyte_cdk.sources.declarative.models import ConcurrencyLevel

        definition = self.definition.get("concurrency_level")
        if not definition:
            return None
        level = self._source._constructor.create_component(ConcurrencyLevel, definition, self.config)
        configured: int = level.get_concurrency_level()
        return max(1, configured)

    def definitions(self, name: str | None = None, *, asking: bool = True) -> list[Mapping[str, Any]]:
        """Return the definitions of all streams, or of the declared stream with this name.

        :param asking: whether to request the list of streams from the API; if False, nothing is requested
        """
        source = self._source
        if not asking:
            dynamic = [
                dynamic_stream
                for dynamic_stream in source._source_config.get("dynamic_streams") or []
                if dynamic_stream not in self.listings
            ]
            source._source_config = {**source._source_config, "dynamic_streams": dynamic}
        static = source._stream_configs(source._source_config)
        named = [stream for stream in static if stream.get("name") == name]
        return named or [*static, *source.dynamic_streams]

    def built(self, definitions: Sequence[Mapping[str, Any]]) -> list[Interpreted]:
        """Build the streams of these definitions."""
        # Without dynamic streams: the CDK would ask the API for their list a second time. Without files: each attempt
        # would fetch them anew, and leave them on its executor. Without the budget, which the CDK would apply in each
        # process: a refresh has limits for all of them, see ``spec``.
        changes = {"streams": _without_files(definitions), "dynamic_streams": [], "api_budget": None}
        self._source._source_config = {**self._source._source_config, **changes}
        streams = self._source.streams(self._source._config)
        return [
            Interpreted(definition, self._chosen(definition), stream)
            for definition, stream in zip(definitions, streams, strict=True)
        ]

    def _chosen(self, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the definition from which the CDK built a stream; where there are two, it chose one by the state."""
        if definition.get("type") != _DELEGATING:
            return definition
        # Looked up after the build, which removes a state that is older than the API's retention.
        has_state = self._source._connector_state_manager.get_stream_state(definition["name"], None)
        chosen: Mapping[str, Any] = definition["incremental_stream" if has_state else "full_refresh_stream"]
        return chosen

    def rendered(self, template: str, parameters: Mapping[str, Any]) -> str:
        """Render a template with nothing but the configuration; return empty text if that is not enough."""
        from airbyte_cdk.sources.declarative.interpolation.interpolated_string import InterpolatedString

        try:
            return str(InterpolatedString.create(template, parameters=parameters).eval(self.config))
        except Exception:  # noqa: BLE001 - a template may fail in any way
            return ""


def _state_message(name: str, state: Mapping[str, Any]) -> Any:
    from airbyte_cdk.models import (
        AirbyteStateBlob,
        AirbyteStateMessage,
        AirbyteStateType,
        AirbyteStreamState,
        StreamDescriptor,
    )

    stream = AirbyteStreamState(StreamDescriptor(name), AirbyteStateBlob(copy.deepcopy(dict(state))))
    return AirbyteStateMessage(type=AirbyteStateType.STREAM, stream=stream)


def _without_files(value: Any) -> Any:
    """Return the definitions without the uploaders of files, those of parents included."""
    if isinstance(value, Mapping):
        return {name: _without_files(item) for name, item in value.items() if name != "file_uploader"}
    return [_without_files(item) for item in value] if isinstance(value, list) else value


@cache
def _silent_source() -> Any:
    from airbyte_cdk.sources.declarative.concurrent_declarative_source import ConcurrentDeclarativeSource

    class SilentSource(ConcurrentDeclarativeSource):  # type: ignore[misc]  # the CDK may be missing
        """A source that does not print the configuration, with its secrets, when a rule of the manifest changes it."""

        def _migrate_and_transform_config(self, config_path: Any, config: Any) -> Any:
            changed = dict(config or {})
            if self._spec_component:
                self._spec_component.migrate_config(changed)
                self._spec_component.transform_config(changed)
            return changed

    return SilentSource


@contextmanager
def registering() -> Iterator[None]:
    """Register ``components.py`` in this block as the module that a manifest's class names mean.

    No other source is built meanwhile: the CDK has one name for the module in the whole process.
    """
    from airbyte_cdk.sources.declarative.parsers import custom_code_compiler as compiler

    names = (compiler.COMPONENTS_MODULE_NAME, compiler.SDM_COMPONENTS_MODULE_NAME)
    with building:
        before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
        try:
            yield
        finally:
            for name in names:
                sys.modules.pop(name, None)
            sys.modules.update(before)


def _register(components: str) -> None:
    """Execute the text, and make it the module of its classes."""
    from airbyte_cdk.sources.declarative.parsers import custom_code_compiler as compiler

    checksum = hashlib.sha256(components.encode()).hexdigest()
    compiler.register_components_module_from_string(components, {"sha256": checksum})


@dataclass(frozen=True, slots=True)
class Paging:
    """The paging of a stream.

    :ivar by_page: whether a page's token is all that its request needs; otherwise a slice is one page
    :ivar why: the reason, for people
    :ivar first: token of the first page, if tokens are numbers known beforehand
    :ivar step: difference of two consecutive tokens, if they are such numbers
    :ivar is_one_page: whether a slice has one page, read by one request
    :ivar keeps_state: whether each slice needs objects that have read nothing before
    """

    by_page: bool
    why: str
    page_size: int | None = None
    first: int = 0
    step: int | None = None
    is_one_page: bool = False
    keeps_state: bool = False


class OnePage:
    """A proxy of a stream's paginator that reads one page, and keeps the token after it.

    The CDK limits its own test reads in this way. Where a selector only extracts records, this is its proxy, too, and
    gives the CDK the last record alone, because the CDK passes each one through seven generators.

    :param token: token of the page; None for the first
    :ivar received: number of records in the answer, before any filter; None where the CDK did not get that far
    :ivar following: token of the next page; None if there is none
    """

    def __init__(self, token: Any) -> None:
        self.manifests: Any = None
        self.selector: Any = None
        self.records: list[Any] = []
        self.received: int | None = None
        self.following: Any = None
        self._token = token
        self._begun = 0

    def get_initial_token(self) -> Any:
        self._begun += 1
        if self._begun > 1 and self._token is not None:
            # The CDK begins the slice again (PaginationReset). Our engine starts a new chain instead.
            raise TokenExpiredError("the API no longer accepts the page token: the manifest starts its paging again")
        if self._begun > _MOST_BEGINNINGS:
            raise SourceError("the manifest starts its paging again (RESET_PAGINATION), but this is the first page")
        return self.manifests.get_initial_token() if self._token is None else self._token

    def select_records(self, response: requests.Response, *, stream_slice: Any, **options: Any) -> list[Any]:
        from airbyte_cdk.sources.types import Record

        self.records = list(self.selector.extractor.extract_records(response))
        return [Record(self.records[-1], self.selector.name, stream_slice)] if self.records else []

    def next_page_token(self, **options: Any) -> None:
        from airbyte_cdk.sources.declarative.extractors.record_selector import extracted_record_count

        if self.selector is not None:
            options["last_page_size"] = len(self.records)
        self.received = extracted_record_count(options["response"], default=options["last_page_size"])
        following = self.manifests.next_page_token(**options)
        self.following = following.get("next_page_token") if following else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manifests, name)


class Interpreted:
    """One stream as the CDK reads it; any thread may read any slice.

    :param declared: its definition in the manifest
    :param definition: the one from which it was built; part of ``declared`` where a manifest has two for one stream
    """

    def __init__(self, declared: Mapping[str, Any], definition: Mapping[str, Any], stream: Any) -> None:
        self.declared, self.definition = declared, definition
        self.name: str = stream.name
        self._stream = stream
        factory = stream._stream_partition_generator._partition_factory
        self._retriever, self._schema_loader = factory._retriever, factory._schema_loader
        self._filter = _cursors.FrozenFilter(stream.cursor, self._retriever)
        self.is_listed = False

    @property
    def primary_key(self) -> list[str] | None:
        return list(self._stream._primary_key) or None

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """Return the declared schema of the records; for some streams the API is asked for it."""
        schema: Mapping[str, Any] = self._schema_loader.get_json_schema()
        return schema

    def slices(self) -> Iterator[Any]:
        """Yield the CDK's slices; parents are read for them. Only once: their cursors advance."""
        self.is_listed = True
        if self._is_asynchronous:
            yield from self._retriever.stream_slicer.stream_slicer.stream_slices()
        else:
            yield from (partition.to_slice() for partition in self._stream.generate_partitions())

    def bounds_of(self, stream_slice: Any) -> tuple[datetime, datetime] | None:
        """Return the lower and the upper bound of the records of a slice that was just listed.

        None where the request itself asks for these records only.
        """
        return self._filter.bounds_of(stream_slice) if self._filter.is_used else None

    @property
    def parent_state(self) -> Any:
        """Return the state of the parents after the listing of the slices; None if none is read incrementally."""
        return self._stream.cursor._partition_router.get_stream_state() or None if self.is_per_partition else None

    @property
    def is_per_partition(self) -> bool:
        """Tell whether the state has a value for each partition."""
        return _cursors.is_per_partition(self._stream.cursor)

    def state_after(
        self,
        slices: Iterable[Iterable[tuple[str, Any]]],
        largest: Mapping[int, datetime],
        parent_state: Any,
        seconds: float,
        unread: Collection[int] = (),
    ) -> dict[str, Any]:
        """Return the state after the slices were read. The stream must have been built from the state before.

        Parameters as of :func:`_cursors.state_after`.
        """
        listed = [_slice(parts) for parts in slices]
        return _cursors.state_after(self._stream, listed, largest, parent_state, seconds, unread)

    def read(
        self,
        parts: Iterable[tuple[str, Any]],
        page: OnePage | None = None,
        bounds: tuple[datetime, datetime] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the records of a slice, or of one page of it.

        :param bounds: as of :meth:`bounds_of`; None where they are not frozen
        """
        stream_slice = _slice(parts)
        retriever = self._retriever
        if page is not None:
            # A copy, because other threads read with the same retriever.
            retriever = copy.copy(retriever)
            page.manifests, retriever._paginator = retriever._paginator, page
            if self._only_extracts:
                page.selector, retriever.record_selector = retriever.record_selector, page
        items = (
            self._jobs(stream_slice)
            if self._is_asynchronous
            else retriever.read_records(self._reading_schema, stream_slice)
        )
        with self._filter.within(bounds):
            # A record of the CDK is a mapping that delegates to ``data``, which is faster to read.
            records = [getattr(item, "data", item) for item in items if isinstance(item, Mapping)]
        if page is not None and page.selector is not None:
            records = page.records
        return [record if type(record) is dict else _object(record) for record in records]

    @cached_property
    def _reading_schema(self) -> Mapping[str, Any]:
        """Return the schema for reading: empty if it changes no type, because the CDK would only copy each record."""
        from airbyte_cdk.sources.declarative.extractors.record_selector import RecordSelector
        from airbyte_cdk.sources.utils.transform import TransformConfig, TypeTransformer

        selector = getattr(self._retriever, "record_selector", None)
        changes: Any = getattr(selector, "schema_normalization", None)
        if type(selector) is not RecordSelector or type(changes) is not TypeTransformer:
            return self.schema
        # The schema comes last, because for some streams the API is asked for it.
        return {} if TransformConfig.NoTransform in changes._config else self.schema

    @cached_property
    def _only_extracts(self) -> bool:
        """Tell whether records are exactly those that the extractor finds, and no filter or transformation follows."""
        from airbyte_cdk.sources.declarative.extractors import DpathExtractor, RecordSelector

        retriever, selector = self._retriever, self._retriever.record_selector
        if type(selector) is not RecordSelector or type(selector.extractor) is not DpathExtractor:
            return False
        later = getattr(retriever, "post_pagination_filter", None) or retriever.additional_query_properties
        changed = later or selector.record_filter or selector.transformations or selector.file_uploader
        return not (changed or self._reading_schema)

    @property
    def _is_asynchronous(self) -> bool:
        from airbyte_cdk.sources.declarative.retrievers import AsyncRetriever

        return isinstance(self._retriever, AsyncRetriever)

    def _jobs(self, stream_slice: Any) -> Iterator[Any]:
        """Create the slice's job, wait for it and download it, because only the process that created it knows it."""
        router = copy.copy(self._retriever.stream_slicer)
        router.stream_slicer = SimpleNamespace(stream_slices=lambda: [stream_slice])
        retriever = copy.copy(self._retriever)
        retriever.stream_slicer = router
        for ready in router.stream_slices():
            yield from retriever.read_records(self.schema, ready)

    @cached_property
    def paging(self) -> Paging:
        from airbyte_cdk.sources.declarative.requesters.paginators import DefaultPaginator, NoPagination
        from airbyte_cdk.sources.declarative.retrievers import AsyncRetriever, SimpleRetriever
        from airbyte_cdk.sources.declarative.retrievers.simple_retriever import LazySimpleRetriever

        kind = type(self._retriever)
        if kind is LazySimpleRetriever:
            return Paging(False, "a slice is read whole: its first page came with the parent's record")
        if kind is not SimpleRetriever:
            refuse_unknown(kind, AsyncRetriever)
            return Paging(False, f"a slice is read whole: {kind.__name__} keeps state while it reads")
        if getattr(self._retriever, "request_window_splitting", None):
            return Paging(False, "a slice is read whole: its window may be split while it is read")
        reset = self.definition.get("retriever", {}).get("pagination_reset") or {}
        if reset.get("limits") or reset.get("action") == "SPLIT_USING_CURSOR":
            return Paging(False, "a slice is read whole: its paging starts again within it")
        paginator = self._retriever._paginator
        if type(paginator) is NoPagination:
            return Paging(True, "one page a slice", is_one_page=True)
        if type(paginator) is not DefaultPaginator:
            refuse_unknown(type(paginator))
            return Paging(False, f"a slice is read whole: {type(paginator).__name__} may keep state")
        is_fixed = not (reset or getattr(self._retriever, "page_size_reduction", None))
        return _strategy_paging(paginator.pagination_strategy, is_fixed)


def _slice(parts: Iterable[tuple[str, Any]]) -> Any:
    from airbyte_cdk.sources.types import StreamSlice

    return StreamSlice(**dict(parts))


def _object(record: Any) -> dict[str, Any]:
    """Convert a record to a dict as the CDK does, which also accepts a list of pairs.

    :raises SourceError: it has no fields
    """
    try:
        return dict(record)
    except (TypeError, ValueError):
        problem = f"a record must be an object, is {type(record).__name__}: see record_selector.extractor"
    raise SourceError(problem)


def _strategy_paging(strategy: Any, is_fixed: bool) -> Paging:
    """Return the paging that a strategy allows.

    :param is_fixed: whether nothing else than the strategy decides which page follows
    """
    from airbyte_cdk.sources.declarative.requesters.paginators import strategies as built_in
    from airbyte_cdk.sources.declarative.requesters.paginators.strategies import stop_condition

    while type(strategy) is stop_condition.StopConditionPaginationStrategyDecorator:
        strategy, is_fixed = strategy._delegate, False
    kind = type(strategy)
    if kind not in (built_in.CursorPaginationStrategy, built_in.PageIncrement, built_in.OffsetIncrement):
        refuse_unknown(kind)
        return Paging(False, f"a slice is read whole: {kind.__name__} may keep state")
    size = strategy.get_page_size()
    words = f"page by page, by {kind.__name__}"
    if kind is built_in.PageIncrement and is_fixed:
        return Paging(True, words, size, strategy.start_from_page, 1)
    # A size that is a template may be computed from an answer.
    if kind is built_in.OffsetIncrement and is_fixed and isinstance(strategy.page_size, int):
        return Paging(True, words, size, 0, strategy.page_size)
    return Paging(True, words, size)
