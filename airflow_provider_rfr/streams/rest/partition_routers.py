"""The partitions of a stream: values of a list, records of a parent stream, or combinations of both.

A partition is identified by its key fields alone: what else it carries (extra fields of a parent record)
may change between two attempts without making it another partition.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import canonical_json
from airflow_provider_rfr.streams.paged import PagedStream, iter_pages
from airflow_provider_rfr.streams.rest.expressions import MISSING, Path, describe, lookup

log = logging.getLogger(__name__)


class PartitionRouter(ABC):
    """:ivar key_fields: the fields of a partition that identify it
    :ivar fields: all fields that its partitions have
    """

    key_fields: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @abstractmethod
    def partitions(self) -> Iterator[dict[str, Any]]:
        """The partitions, in a stable order; the same one may come twice."""

    def parents(self) -> Sequence[PagedStream]:
        """The streams that are read for it."""
        return ()


class NoRouter(PartitionRouter):
    """One partition."""

    def partitions(self) -> Iterator[dict[str, Any]]:
        yield {}


class ListRouter(PartitionRouter):
    """One partition for each value."""

    def __init__(self, field: str, values: Sequence[Any]) -> None:
        self.key_fields = self.fields = (field,)
        self._values = values

    def partitions(self) -> Iterator[dict[str, Any]]:
        for value in self._values:
            yield {self.fields[0]: value}


@dataclass(frozen=True, slots=True)
class ParentKey:
    """What of a parent goes into a partition.

    :ivar path: of the key in the parent's record
    :ivar field: the key's name in the partition
    :ivar extra: further fields, by name, with their paths in the parent's record
    :ivar slice_fields: fields of the parent's own partition; they are part of the key
    """

    path: Path
    field: str
    extra: tuple[tuple[str, Path], ...] = ()
    slice_fields: tuple[str, ...] = ()


class SubstreamRouter(PartitionRouter):
    """One partition for each record of the parent: all its partitions and pages are read."""

    def __init__(self, parent: PagedStream, key: ParentKey) -> None:
        self._parent = parent
        self._key = key
        self.key_fields = (key.field, *key.slice_fields)
        self.fields = (*self.key_fields, *(name for name, _ in key.extra))

    def parents(self) -> Sequence[PagedStream]:
        return (self._parent,)

    def partitions(self) -> Iterator[dict[str, Any]]:
        for parent_slice in self._parent.stream_slices():
            for page in iter_pages(self._parent, parent_slice):
                if page.skipped:
                    log.warning("%s: an ignored page has no children: %s", self._parent.name, page.skipped)
                for record in page.records:
                    yield self._partition(record, parent_slice, page.request)

    def _partition(
        self, record: Mapping[str, Any], parent_slice: Mapping[str, Any], request: str | None
    ) -> dict[str, Any]:
        key = self._key
        value = lookup(record, key.path)
        if value is MISSING or value is None or isinstance(value, (dict, list)):
            raise SourceError(
                f"partitions.parent_key {'.'.join(key.path)!r} of a record of {self._parent.name} is "
                f"{describe(value)}; a key is a text or a number",
                request=request,
            )
        partition = {key.field: value}
        for name in key.slice_fields:
            partition[name] = parent_slice[name]
        for name, path in key.extra:
            found = lookup(record, path)
            partition[name] = None if found is MISSING else found
        return partition


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
            yield from _combine(first, rest)


def _combine(partition: dict[str, Any], rest: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    if not rest:
        yield partition
        return
    for item in rest[0]:
        yield from _combine({**partition, **item}, rest[1:])


def distinct(router: PartitionRouter, stream: str) -> Iterator[dict[str, Any]]:
    """The router's partitions, each once: of those with the same key the first counts."""
    seen: set[str] = set()
    warned = False
    for partition in router.partitions():
        key = canonical_json({name: partition[name] for name in router.key_fields}, field="partitions")
        if key not in seen:
            seen.add(key)
            yield partition
        elif not warned:
            warned = True
            log.warning("%s: the partition %s comes more than once; only the first one is read", stream, key)
