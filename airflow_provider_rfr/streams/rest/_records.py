"""The selection of the records in an answer, their filter and their transformations.

``IGNORE`` skips a page. An API that answers 404 beyond its last page would then be asked for ever, so a partition fails
after many ignored pages in a row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from airflow_provider_rfr.documents import nearest
from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.rest._responses import BodyReader, CsvReader, Response, read_json, read_json_lines
from airflow_provider_rfr.streams.rest.templates import (
    MISSING,
    RECORD_NAMES,
    Part,
    Path,
    Scope,
    Templated,
    assign,
    compile_condition,
    compile_filter,
    describe,
    lookup,
    lookup_each,
    parse_path,
    paths_of_lists,
    take,
    where_missing,
)

_log = logging.getLogger(__name__)


class RecordCondition:
    """A condition for records, in which a field that a record lacks counts as null.

    :param name: name of the stream's field that holds it, for messages
    :param scope: scope of that field
    """

    def __init__(self, text: str, name: str, scope: Scope, slice_fields: Sequence[str]) -> None:
        self._name = name
        self._holds, self._expected = compile_filter(text, scope.place, scope.config, slice_fields)
        # Expected fields about which a warning was logged.
        self._warned: set[str] = set()

    def select(
        self, records: list[dict[str, Any]], variables: Mapping[str, Any], request: str | None
    ) -> list[dict[str, Any]]:
        """Return the records that fulfil the condition.

        :raises SourceError: it can't be evaluated for a record
        """
        selected: list[dict[str, Any]] = []
        names = dict(variables)
        for number, record in enumerate(records, start=1):
            names["record"] = record
            problem = ""
            try:
                if self._holds(names):
                    selected.append(record)
            except SourceDefinitionError as error:
                problem = f"{error.problem}; for a field that may be missing or null write e.g. (record.x or 0)"
            if problem:
                raise SourceError(f"{self._name} fails at record {number}: {problem}", request=request)
        # Warn once about each field that no record of the page has: it may be misspelt.
        for name in sorted(self._expected - self._warned):
            if records and not any(name in record for record in records):
                self._warned.add(name)
                near = nearest(name, records[0])
                _log.warning(
                    "%s: %s uses record.%s, which no record of this page has: %sthe first one is %s",
                    *(request, self._name, name, f"did you mean {near}? " if near else "", describe(records[0])),
                )
        return selected


class Records(Part):
    """The place of the records in a response, its format, and an optional filter.

    :ivar path: where the records are in the body: dots lead inside, ``*`` is each item, and a list of keys is for keys
        with dots. An empty path is the body itself
    :ivar format: format of the body
    :ivar filter: condition for the records that are kept. A field that a record lacks counts as null
    :ivar on_missing: what an answer without anything at the path means: ``fail``, or ``empty``, no records
    :ivar columns: names of the columns of ``csv``, if the first row does not have them
    :ivar delimiter: sign between the values of ``csv``; a comma by default
    """

    path: str | list[str] = ""
    format: Literal["json", "jsonl", "csv"] = "json"
    filter: Annotated[str | None, Templated(RECORD_NAMES, compile_condition)] = None
    on_missing: Literal["fail", "empty"] = "fail"
    columns: list[str] | None = Field(default=None, min_length=1)
    delimiter: str | None = None

    _condition: RecordCondition | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _of_its_format(self) -> Records:
        if self.format == "csv" and self.path:
            raise ValueError("path: each row of CSV is a record; remove path")
        if self.format != "csv" and not (self.columns is None and self.delimiter is None):
            raise ValueError(f"columns and delimiter are for CSV, and format is {self.format}; write format: csv")
        if self.columns is not None and (not all(self.columns) or len(set(self.columns)) < len(self.columns)):
            raise ValueError("columns: write a name for each column, and none twice")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\ufeff'):
            raise ValueError(
                f"delimiter: {self.delimiter!r} is not one sign between columns; write e.g. ';' or \"\\t\""
            )
        return self

    def bind(self, scope: Scope, slice_fields: Sequence[str]) -> Records:
        """Return the records' declaration with its filter compiled."""
        bound = self.model_copy()
        if self.filter is not None:
            bound._condition = RecordCondition(self.filter, "records.filter", scope.at("filter"), slice_fields)
        return bound

    @property
    def place(self) -> Path:
        """Return the path as its keys."""
        return parse_path(self.path)

    @property
    def by_line(self) -> bool:
        """Tell whether the path is that of each line, or row."""
        return self.format != "json"

    @property
    def missing_is_empty(self) -> bool:
        """Tell whether nothing (or null) at the path means no records, rather than an error."""
        return self.on_missing == "empty"

    @property
    def reader(self) -> BodyReader:
        """Return the reader of bodies in the format."""
        if self.format == "jsonl":
            return read_json_lines
        if self.format == "csv":
            return CsvReader(self.columns, self.delimiter or ",", self.missing_is_empty)
        return read_json

    def select(self, answer: Response) -> list[dict[str, Any]]:
        """Return all records of the answer, before the filter; one object counts as a list of one.

        :raises SourceError: there is nothing at the path, or something that is not a record
        """
        if not answer.has_content:
            return []
        parts: list[list[dict[str, Any]]] = []
        # Without a path, the list of lines is the list of records.
        path = ("*", *self.place) if self.by_line and self.path else self.place
        for value in lookup_each(answer.content(), path):
            if isinstance(value, list):
                parts.append(value)
            elif isinstance(value, dict):
                parts.append([value])
            elif not (self.missing_is_empty and (value is None or value is MISSING)):
                raise self._not_records(value, answer)
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
        return records if self._condition is None else self._condition.select(records, variables, request)

    def _not_records(self, value: Any, answer: Response) -> SourceError:
        place = f"records.path {'.'.join(self.place)!r}" if self.path else "the answer"
        if isinstance(value, list):
            wrong = next((n, item) for n, item in enumerate(value, start=1) if type(item) is not dict)
            problem = f"{place} has {describe(wrong[1])} as item {wrong[0]}, where a record is an object"
            if wrong[1] is None:
                path = ".".join((*self.place, "*"))
                problem += f"; records: {{path: {path}, on_missing: empty}} leaves such items out"
        elif value is MISSING:
            content, where = answer.content(), ""
            if self.by_line and self.path:
                lines = enumerate(content, start=1)
                lacking = ((n, line) for n, line in lines if MISSING in lookup_each(line, self.place))
                number, content = next(lacking, (1, content))
                where = f"in line {number}, "
            lists = ", ".join(paths_of_lists(content))
            hint = f"; there are lists of objects at: {lists}" if lists else ""
            problem = f"{place} leads to nothing: {where}{where_missing(content, self.place)}{hint}"
        else:
            problem = f"{place} leads to {describe(value)}, not to records"
        return SourceError(problem, status=answer.status, request=answer.request)


# Changes a record in place; it gets the record and the other variables of templates. A function rather than a method
# of the model: it runs for each record, and a private attribute of a model takes a microsecond to read.
BoundTransformation: TypeAlias = Callable[[dict[str, Any], Mapping[str, Any]], None]


class _AddFields(Part):
    """Set fields of each record.

    :ivar fields: path and value of each field, which may be a template
    """

    type: Literal["add"]
    fields: Annotated[dict[str, Any], Templated(RECORD_NAMES)] = Field(min_length=1)

    def bind(self, scope: Scope) -> BoundTransformation:
        """Return the transformation; a later field sees the earlier ones."""
        inner = scope.at("fields")
        templates = [
            (parse_path(path), inner.compile(value, path, RECORD_NAMES)) for path, value in self.fields.items()
        ]

        def add(record: dict[str, Any], variables: Mapping[str, Any]) -> None:
            for path, template in templates:
                assign(record, path, template(variables))

        return add


class _RemoveFields(Part):
    """Remove fields of each record.

    :ivar fields: paths of the fields; a missing one is no error
    """

    type: Literal["remove"]
    fields: list[str] = Field(min_length=1)

    def bind(self, scope: Scope) -> BoundTransformation:
        """Return the transformation; a missing field is not an error."""
        paths = [parse_path(path) for path in self.fields]

        def remove(record: dict[str, Any], variables: Mapping[str, Any]) -> None:
            for path in paths:
                take(record, path)

        return remove


class _RenameFields(Part):
    """Move fields of each record: old path to new path.

    :ivar fields: old and new path of each field. A new one that exists already is an error
    """

    type: Literal["rename"]
    fields: dict[str, str] = Field(min_length=1)

    def bind(self, scope: Scope) -> BoundTransformation:
        """Return the transformation; a missing field is not an error, one that would be overwritten is."""
        paths = [(parse_path(old), parse_path(new)) for old, new in self.fields.items()]

        def rename(record: dict[str, Any], variables: Mapping[str, Any]) -> None:
            for old, new in paths:
                if lookup(record, old) is MISSING or old == new:
                    continue
                if lookup(record, new) is not MISSING:
                    problem = f"rename: {'.'.join(old)} would overwrite {'.'.join(new)}"
                    raise SourceDefinitionError("transformations", problem)
                assign(record, new, take(record, old))

        return rename


Transformation = Annotated[_AddFields | _RemoveFields | _RenameFields, Field(discriminator="type")]


def transform(
    records: Sequence[dict[str, Any]],
    transformations: Sequence[BoundTransformation],
    variables: Mapping[str, Any],
    request: str | None,
) -> None:
    """Apply all transformations to all records.

    :raises SourceError: one fails; the error names the record
    """
    names = dict(variables)
    for number, record in enumerate(records, start=1):
        names["record"] = record
        problem = ""
        try:
            for apply in transformations:
                apply(record, names)
        except SourceDefinitionError as error:
            problem = f"{error.field}: {error.problem}"
        if problem:
            raise SourceError(f"record {number} can't be transformed: {problem}", request=request)


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
            # Pages are read ahead and in any order, so a run of ignored ones may be completed from its middle.
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
