"""Finds the records in an answer, filters and transforms them.

``IGNORE`` skips a page. An API that answers 404 beyond its last page would then be asked for ever, so a partition fails
after many ignored pages in a row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._formats import reader_of
from airflow_provider_rfr.streams.rest._responses import Answer, BodyReader, read_json
from airflow_provider_rfr.streams.rest.expressions import (
    MISSING,
    RECORD_NAMES,
    Path,
    Template,
    assign,
    compile_filter,
    compile_value,
    describe,
    guess,
    lookup,
    lookup_each,
    parse_path,
    take,
    where_missing,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selector:
    """A format, a path and an optional condition.

    :ivar expected: the fields that the condition takes from the records
    :ivar missing_is_empty: nothing (or null) at the path means no records, rather than an error
    :ivar read: reads the body
    :ivar by_line: the path is that of each line, or row
    """

    path: Path = ()
    condition: Template | None = None
    expected: frozenset[str] = frozenset()
    missing_is_empty: bool = False
    read: BodyReader = read_json
    by_line: bool = False
    _warned: set[str] = field(default_factory=set, repr=False)

    @classmethod
    def of(
        cls, definition: model.Records, place: str, config: Mapping[str, Any], slice_fields: Sequence[str]
    ) -> Selector:
        """Return the selector of a definition.

        :raises SourceDefinitionError: the filter is not an expression, or uses a name that isn't there
        """
        condition, expected = None, frozenset[str]()
        if definition.filter is not None:
            condition, expected = compile_filter(definition.filter, f"{place}.filter", config, slice_fields)
        return cls(
            parse_path(definition.path),
            condition,
            expected,
            missing_is_empty=definition.on_missing == "empty",
            read=reader_of(definition),
            by_line=definition.format != "json",
        )

    def select(self, answer: Answer) -> list[dict[str, Any]]:
        """Return all records of the answer, before the filter; one object counts as a list of one.

        :raises SourceError: there is nothing at the path, or something that is not a record
        """
        if not answer.has_content:
            return []
        parts: list[list[dict[str, Any]]] = []
        # Without a path, the list of lines is the list of records.
        in_lines = self.by_line and self.path
        for found in lookup_each(answer.content(), ("*", *self.path) if in_lines else self.path):
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
        """Return the records that fulfil the condition.

        :raises SourceError: the condition can't be evaluated for a record
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
                problem = f"{error.problem}; for a field that may be missing or null write e.g. (record.x or 0)"
            if problem:
                raise SourceError(f"records.filter fails at record {number}: {problem}", request=request)
        self._warn_of_absent(records, request)
        return kept

    def _warn_of_absent(self, records: Sequence[Mapping[str, Any]], request: str | None) -> None:
        """Warn, once for each, of fields of the filter that no record of a page has: they may be misspelt."""
        for name in sorted(self.expected - self._warned):
            if records and not any(name in record for record in records):
                self._warned.add(name)
                _log.warning(
                    "%s: records.filter uses record.%s, which no record of this page has: %sthe first one is %s",
                    *(request, name, guess(name, records[0]), describe(records[0])),
                )

    def _not_records(self, found: Any, answer: Answer) -> SourceError:
        place = f"records.path {'.'.join(self.path)!r}" if self.path else "the answer"
        if isinstance(found, list):
            wrong = next((n, item) for n, item in enumerate(found, start=1) if type(item) is not dict)
            problem = f"{place} has {describe(wrong[1])} as item {wrong[0]}, where a record is an object"
            if wrong[1] is None:
                path = ".".join((*self.path, "*"))
                problem += f"; records: {{path: {path}, on_missing: empty}} leaves such items out"
        elif found is MISSING:
            problem = f"{place} leads to nothing: {self._where_missing(answer)}"
        else:
            problem = f"{place} leads to {describe(found)}, not to records"
        return SourceError(problem, status=answer.status, request=answer.request)

    def _where_missing(self, answer: Answer) -> str:
        content = answer.content()
        if not (self.by_line and self.path):
            return where_missing(content, self.path)
        lacking = ((n, line) for n, line in enumerate(content, start=1) if MISSING in lookup_each(line, self.path))
        number, line = next(lacking, (1, content))
        return f"in line {number}, {where_missing(line, self.path)}"


# Changes a record in place; it gets the record and what templates may use besides it.
Transformation: TypeAlias = Callable[[dict[str, Any], Mapping[str, Any]], None]


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
                transformation(record, known)
        except SourceDefinitionError as error:
            problem = f"{error.field}: {error.problem}"
        if problem:
            raise SourceError(f"record {number} can't be transformed: {problem}", request=request)


def build_transformations(
    definitions: Sequence[model.Transformation], place: str, config: Mapping[str, Any] | None
) -> tuple[Transformation, ...]:
    """Compile the transformations of a definition.

    :raises SourceDefinitionError: a template is wrong
    """
    built: list[Transformation] = []
    for number, item in enumerate(definitions):
        if isinstance(item, model.RemoveFields):
            built.append(partial(_remove, list(map(parse_path, item.fields))))
        elif isinstance(item, model.RenameFields):
            built.append(partial(_rename, [(parse_path(old), parse_path(new)) for old, new in item.fields.items()]))
        else:
            at = f"{place}.{number}.fields"
            templates = [
                (parse_path(path), compile_value(value, f"{at}.{path}", RECORD_NAMES, config))
                for path, value in item.fields.items()
            ]
            built.append(partial(_add, templates))
    return tuple(built)


def _add(fields: Sequence[tuple[Path, Template]], record: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Set fields, in order; a later one sees the earlier ones."""
    for path, template in fields:
        assign(record, path, template(variables))


def _remove(fields: Sequence[Path], record: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Remove fields; a missing one is not an error."""
    for path in fields:
        take(record, path)


def _rename(fields: Sequence[tuple[Path, Path]], record: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Move fields; a missing one is not an error, one that would be overwritten is."""
    for old, new in fields:
        if lookup(record, old) is MISSING or old == new:
            continue
        if lookup(record, new) is not MISSING:
            problem = f"rename: {'.'.join(old)} would overwrite {'.'.join(new)}"
            raise SourceDefinitionError("transformations", problem)
        assign(record, new, take(record, old))


class SkipGuard:
    """A counter of ignored pages in a row, by partition.  Thread-safe: pages may be read in any order."""

    def __init__(self, most_in_a_row: int) -> None:
        self._most = most_in_a_row
        self._lock = threading.Lock()
        self._skipped: dict[str, set[int]] = {}

    def note(self, partition: str, position: int, reason: str, request: str | None) -> None:
        """Record an ignored page.

        :raises SourceError: the pages before it were ignored too, as many as are allowed in a row
        """
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
