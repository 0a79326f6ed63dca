"""Finds the records in an answer, filters and transforms them.

``IGNORE`` skips a page. An API that answers 404 beyond its last page would so be asked for ever, so a partition whose
pages are all ignored ends.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.expressions import (
    MISSING,
    RECORD_NAMES,
    Path,
    Template,
    assign,
    compile_value,
    describe,
    lookup,
    lookup_each,
    parse_path,
    take,
    where_missing,
)
from airflow_provider_rfr.streams.rest.responses import Answer


@dataclass(frozen=True, slots=True)
class Selector:
    """A path and an optional condition.

    :ivar missing_is_empty: nothing (or null) at the path means no records, rather than an error
    """

    path: Path = ()
    condition: Template | None = None
    missing_is_empty: bool = False

    def select(self, answer: Answer) -> list[dict[str, Any]]:
        """All records of the answer, before the filter; one object counts as a list of one.

        :raises SourceError: there is nothing at the path, or something that is no record
        """
        if not answer.has_content:
            return []
        parts: list[list[dict[str, Any]]] = []
        for found in lookup_each(answer.json(), self.path):
            if isinstance(found, list):
                parts.append(found)
            elif isinstance(found, dict):
                parts.append([found])
            elif not (self.missing_is_empty and (found is None or found is MISSING)):
                raise self._not_records(found, answer)
        # The usual case: the parsed list itself, not a copy.
        records = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
        for record in records:
            if type(record) is not dict:
                raise self._not_records(records, answer)
        return records

    def keep(
        self, records: list[dict[str, Any]], variables: Mapping[str, Any], request: str | None
    ) -> list[dict[str, Any]]:
        """The records that fulfil the condition.

        :raises SourceError: the condition can't be told for a record
        """
        if self.condition is None:
            return records
        kept: list[dict[str, Any]] = []
        known = dict(variables)
        for number, record in enumerate(records, start=1):
            known["record"] = record
            problem = ""
            try:
                if self.condition(known):
                    kept.append(record)
            except SourceDefinitionError as error:
                problem = error.problem
            if problem:
                raise SourceError(f"records.filter fails at record {number}: {problem}", request=request)
        return kept

    def _not_records(self, found: Any, answer: Answer) -> SourceError:
        place = f"records.path {'.'.join(self.path)!r}" if self.path else "the answer"
        if isinstance(found, list):
            wrong = next((n, item) for n, item in enumerate(found, start=1) if type(item) is not dict)
            problem = f"{place} has {describe(wrong[1])} as item {wrong[0]}, where a record is an object"
        elif found is MISSING:
            problem = f"{place} leads to nothing: {where_missing(answer.json(), self.path)}"
        else:
            problem = f"{place} leads to {describe(found)}, not to records"
        return SourceError(problem, status=answer.status, request=answer.request)


class Transformation(ABC):
    """One change."""

    @abstractmethod
    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        """:raises SourceDefinitionError: the record lacks what a template needs"""


@dataclass(frozen=True, slots=True)
class Add(Transformation):
    """Set fields, in order; a later one sees the earlier ones."""

    fields: tuple[tuple[Path, Template], ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for path, template in self.fields:
            assign(record, path, template(variables))


@dataclass(frozen=True, slots=True)
class _Remove(Transformation):
    """Remove fields; one that isn't there is no error."""

    fields: tuple[Path, ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for path in self.fields:
            take(record, path)


@dataclass(frozen=True, slots=True)
class _Rename(Transformation):
    """Move fields; one that isn't there is no error, one that is in the way is."""

    fields: tuple[tuple[Path, Path], ...]

    def apply(self, record: dict[str, Any], variables: Mapping[str, Any]) -> None:
        for old, new in self.fields:
            if lookup(record, old) is MISSING or old == new:
                continue
            if lookup(record, new) is not MISSING:
                raise SourceDefinitionError(
                    "transformations", f"rename: {'.'.join(old)} would overwrite {'.'.join(new)}"
                )
            assign(record, new, take(record, old))


def transform(
    records: Sequence[dict[str, Any]],
    transformations: Sequence[Transformation],
    variables: Mapping[str, Any],
    request: str | None,
) -> None:
    """Apply all transformations to all records.

    :raises SourceError: one fails; the error names the record
    """
    known = dict(variables)
    for number, record in enumerate(records, start=1):
        known["record"] = record
        problem = ""
        try:
            for transformation in transformations:
                transformation.apply(record, known)
        except SourceDefinitionError as error:
            problem = f"{error.path}: {error.problem}"
        if problem:
            raise SourceError(f"record {number} can't be transformed: {problem}", request=request)


def build_transformations(
    definitions: Sequence[model.Transformation], place: str, config: Mapping[str, Any] | None
) -> tuple[Transformation, ...]:
    """The transformations of a definition, compiled."""
    return tuple(_build(item, f"{place}.{number}", config) for number, item in enumerate(definitions))


def _build(item: model.Transformation, place: str, config: Mapping[str, Any] | None) -> Transformation:
    if isinstance(item, model.RemoveFields):
        return _Remove(tuple(parse_path(path) for path in item.fields))
    if isinstance(item, model.RenameFields):
        return _Rename(tuple((parse_path(old), parse_path(new)) for old, new in item.fields.items()))
    return Add(
        tuple(
            (parse_path(path), compile_value(value, f"{place}.fields.{path}", RECORD_NAMES, config))
            for path, value in item.fields.items()
        )
    )


class SkipGuard:
    """Remembers which positions of which partition were ignored.  Thread-safe."""

    def __init__(self, most_in_a_row: int) -> None:
        self._most = most_in_a_row
        self._lock = threading.Lock()
        self._skipped: dict[str, set[int]] = {}

    def note(self, partition: str, position: int, reason: str, request: str | None) -> None:
        """:raises SourceError: so many pages before this one were ignored, too"""
        with self._lock:
            positions = self._skipped.setdefault(partition, set())
            positions.add(position)
            first = position
            while first - 1 in positions and position - first < self._most:
                first -= 1
            too_many = position - first >= self._most
        if too_many:
            raise SourceError(
                f"{self._most} pages in a row were ignored ({reason}); "
                "if this answer means that there are no more pages, let the rule say END",
                request=request,
            )
