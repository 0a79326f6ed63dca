"""The partitions of a stream: values of a list, records of a parent stream, windows of time, or combinations.

A partition is identified by its key fields alone: what else it carries (extra fields of a parent record)
may change between two attempts without making it another partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timezone
from itertools import product
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.paged import AbsentFieldGuard, PagedStream, iter_pages
from airflow_provider_rfr.streams.rest import _definition_partitions as model
from airflow_provider_rfr.streams.rest._definition import Request
from airflow_provider_rfr.streams.rest._definition_parts import Place
from airflow_provider_rfr.streams.rest._windows import Step, TimeFormat, moment_of, windows, zone_of
from airflow_provider_rfr.streams.rest.templates import (
    CONFIG_NAMES,
    MISSING,
    assign,
    compile_value,
    describe,
    lookup,
    nearest,
    parse_path,
)

if TYPE_CHECKING:
    from airflow_provider_rfr.streams.rest.stream import RestStream

_log = logging.getLogger(__name__)


class PartitionRouter:
    """The stream as a whole is its one partition. The base of those with others.

    :ivar key_fields: the fields of a partition that identify it
    :ivar fields: all fields that its partitions have
    """

    key_fields: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    def partitions(self) -> Iterator[dict[str, Any]]:
        """Yield the partitions, in a stable order; the same one may come twice."""
        yield {}

    def parents(self) -> Sequence[PagedStream]:
        """Return the streams that are read for the partitions."""
        return ()


class ListRouter(PartitionRouter):
    """One partition for each value."""

    def __init__(self, field: str, values: Sequence[Any]) -> None:
        self.key_fields = self.fields = (field,)
        self._values = values

    def partitions(self) -> Iterator[dict[str, Any]]:
        for value in self._values:
            yield {self.fields[0]: value}


class SubstreamRouter(PartitionRouter):
    """One partition for each record of the parent: all its partitions and pages are read.

    The key fields are the parent's key and the declared fields of the parent's own partition.
    """

    def __init__(self, definition: model.SubstreamRouter, parent: PagedStream) -> None:
        self._parent = parent
        self._path = parse_path(definition.parent_key)
        self._extra = [(name, parse_path(path)) for name, path in definition.extra_fields.items()]
        self.key_fields = (definition.field, *definition.parent_slice_fields)
        self.fields = (*self.key_fields, *definition.extra_fields)

    def parents(self) -> Sequence[PagedStream]:
        return (self._parent,)

    def partitions(self) -> Iterator[dict[str, Any]]:
        absent_fields = AbsentFieldGuard(self._parent.page_size)
        for parent_slice in self._parent.stream_slices():
            for page in iter_pages(self._parent, parent_slice):
                absent_fields.note(page)
                if page.skipped:
                    _log.warning("%s: an ignored page has no children: %s", self._parent.name, page.skipped)
                for number, record in enumerate(page.records, start=1):
                    problem = self._key_problem(record)
                    if problem:
                        at = f"record {number} of the page of {self._parent.name}"
                        raise SourceError(f"{at} ({self._shown(record)}): {problem}", request=page.request)
                    yield self._partition(record, parent_slice)
        absent_fields.check(f"streams.{self._parent.name}")

    def _key_problem(self, record: Mapping[str, Any]) -> str:
        """Return the problem of a parent's key with its remedy; empty for a valid key."""
        value, path = lookup(record, self._path), ".".join(self._path)
        if value is not MISSING and value is not None and not isinstance(value, (dict, list)):
            return ""
        problem = f"partitions.parent_key {path!r} is {describe(value)}, but a key must be a text or a number"
        if isinstance(value, (dict, list)):
            return problem
        condition = f"record.{path} is defined and record.{path} is not none"
        return f"{problem}; records: {{filter: {condition}}} in the parent leaves such records out"

    def _shown(self, record: Mapping[str, Any]) -> str:
        """Describe a parent's record for messages: by its primary key, else by its fields."""
        declared = self._parent.primary_key or ()
        paths = [parse_path(key) for key in ([declared] if isinstance(declared, str) else declared)]
        keys = {".".join(path): lookup(record, path) for path in paths}
        shown = [f"{name}: {value}" for name, value in keys.items() if isinstance(value, (str, int, float))]
        return ", ".join(shown) or describe(record)

    def _partition(self, record: Mapping[str, Any], parent_slice: Mapping[str, Any]) -> dict[str, Any]:
        value = lookup(record, self._path)
        partition = {self.key_fields[0]: value, **{name: parent_slice[name] for name in self.key_fields[1:]}}
        for name, path in self._extra:
            found = lookup(record, path)
            partition[name] = None if found is MISSING else found
        return partition


class DateWindowRouter(PartitionRouter):
    """One partition for each window of time, with its start and end as they are sent.

    :param place: of the definition, for errors
    :raises SourceDefinitionError: start or end is not a date
    """

    key_fields = fields = model.WINDOW_FIELDS

    def __init__(self, definition: model.DateWindowRouter, place: str, config: Mapping[str, Any]) -> None:
        self._definition = definition
        self._place = place
        self._config = config
        self._zone = zone_of(definition.timezone)
        self._start = self._moment(definition.start, "start")
        # None: the time at which the partitions are listed.
        self._end = None if definition.end is None else self._moment(definition.end, "end")

    def partitions(self) -> Iterator[dict[str, Any]]:
        declared, end = self._definition, self._end or datetime.now(timezone.utc)
        written = TimeFormat(declared.format, self._zone)
        step, problem = Step.parse(declared.step), ""
        try:
            for window in windows(self._start, end, step, written, self._zone, end_inclusive=declared.end_inclusive):
                yield dict(zip(self.fields, (window.start, window.end), strict=True))
        except ValueError as error:
            problem = str(error)
        if problem:
            raise SourceDefinitionError(self._place, problem)

    def _moment(self, text: str, field: str) -> datetime:
        value = compile_value(text, f"{self._place}.{field}", CONFIG_NAMES, self._config)({"config": self._config})
        try:
            return moment_of(str(value), self._zone)
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
        raise SourceDefinitionError(f"{self._place}.{field}", problem, remedy)


class ProductRouter(PartitionRouter):
    """Every combination; the later routers run through for each partition of the earlier ones."""

    def __init__(self, routers: Sequence[PartitionRouter]) -> None:
        self._routers = routers
        self.key_fields = tuple(name for router in routers for name in router.key_fields)
        self.fields = tuple(name for router in routers for name in router.fields)

    def parents(self) -> Sequence[PagedStream]:
        return [parent for router in self._routers for parent in router.parents()]

    def partitions(self) -> Iterator[dict[str, Any]]:
        # The later ones are read once and kept: a parent isn't asked again for each combination.
        rest = [list(router.partitions()) for router in self._routers[1:]]
        for first in self._routers[0].partitions():
            for others in product(*rest):
                yield {name: value for part in (first, *others) for name, value in part.items()}


def build_router(
    router: model.Router | None,
    place: str,
    config: Mapping[str, Any],
    streams: Collection[str],
    stream_named: Callable[[str], RestStream],
) -> PartitionRouter:
    """Build the router of a definition; without one there is a single partition.

    :param config: without secrets, because partitions are stored
    :param streams: names of the source's streams, which ``stream_named`` builds
    :raises SourceDefinitionError: an unknown parent or field of it, values that are not a list, a duplicate field
    """
    if router is None:
        return PartitionRouter()
    if isinstance(router, model.SubstreamRouter):
        if router.parent not in streams:
            problem = f"there is no stream {router.parent!r}"
            raise SourceDefinitionError(f"{place}.parent", problem, nearest(router.parent, streams))
        parent = stream_named(router.parent)
        for name in (
            parent_slice_field
            for parent_slice_field in router.parent_slice_fields
            if parent_slice_field not in parent.slice_fields
        ):
            problem = f"the partitions of {parent.name} have no {name!r}"
            raise SourceDefinitionError(f"{place}.parent_slice_fields", problem, nearest(name, parent.slice_fields))
        return SubstreamRouter(router, parent)
    if isinstance(router, model.ListRouter):
        values = compile_value(router.values, f"{place}.values", CONFIG_NAMES, config)({"config": config})
        if not isinstance(values, list):
            problem, remedy = f"must be a list, is {type(values).__name__}", 'e.g. [a, b] or "{{ config.regions }}"'
            raise SourceDefinitionError(f"{place}.values", problem, remedy)
        return ListRouter(router.field, values)
    if isinstance(router, model.DateWindowRouter):
        return DateWindowRouter(router, place, config)
    parts = [build_router(part, f"{place}.of.{n}", config, streams, stream_named) for n, part in enumerate(router.of)]
    combined = ProductRouter(parts)
    if len(set(combined.fields)) != len(combined.fields):
        raise SourceDefinitionError(place, "two routers use the same field name", "rename one of them")
    return combined


def with_windows(request: Request, router: model.Router | None, place: str) -> Request:
    """Return the request with the windows at ``send_as``, as if it had been written with their templates.

    :param place: of the stream in the document
    :raises SourceDefinitionError: the request has something else there
    """
    if isinstance(router, model.ProductRouter):
        for part in router.of:
            request = with_windows(request, part, place)
    if not isinstance(router, model.DateWindowRouter) or router.send_as is None:
        return request
    for name, sent_as in zip(model.WINDOW_FIELDS, (router.send_as.start, router.send_as.end), strict=True):
        if sent_as is not None:
            request = _with_value(request, sent_as, f"{{{{ stream_slice.{name} }}}}", place)
    return request


def _with_value(request: Request, place: Place, value: str, stream: str) -> Request:
    ((part, name),) = place.model_dump(by_alias=True, exclude_none=True).items()
    declared = {"query": request.query, "header": request.headers, "json": request.json_, "form": request.form}
    values, path = declared[part], parse_path(name) if part == "json" else (name,)
    other_body = (part == "json" and request.form is not None) or (part == "form" and request.json_ is not None)
    field = {"header": "headers"}.get(part, part)
    if other_body or not isinstance(values, (dict, type(None))):
        problem = f"a window is sent in {part}, and the request has another body"
        raise SourceDefinitionError(f"{stream}.request", problem, "write send_as for that body, or as a query")
    if lookup(values or {}, path) is not MISSING:
        problem = f"{name!r} is sent by partitions.send_as, too"
        raise SourceDefinitionError(f"{stream}.request.{field}", problem, "remove one of the two")
    changed = deepcopy(values or {})
    assign(changed, path, value)
    return request.model_copy(update={"json_" if part == "json" else field: changed})
