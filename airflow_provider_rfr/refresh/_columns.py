"""Decides the columns that a stream's rows are read into: declared, given a type by name, or inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.inference import MAX_DEPTH, InferredSchema, Place, arrow_schema, infer_records, merge
from airflow_provider_rfr.refresh._typed_rows import LedgerPage
from airflow_provider_rfr.streams.columns import hinted_schema
from airflow_provider_rfr.streams.core import Stream

_CONSTANT_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """A stream's rules for its columns.

    :ivar declared: columns of its ``json_schema`` and ``columns``; None without a ``json_schema``
    :ivar hints: columns of its ``columns``
    :ivar infers: whether fields beside the declared ones become columns
    :ivar constants: by name, values of columns besides the stream's that are the same in all rows; a null, like a field
        without any value, makes no column
    """

    declared: pa.Schema | None
    hints: Mapping[str, pa.Field]
    infers: bool
    constants: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, stream: Stream, constants: Mapping[str, Any] | None = None) -> ColumnRules:
        """Read the rules from the stream's declarations.

        :raises ConfigurationError: a table can't have the columns, a type is unknown, or a constant has the name of a
            column of the stream
        """
        rules = cls._declared(stream, constants or {})
        rules.columns(SeenColumns())
        return rules

    @classmethod
    def _declared(cls, stream: Stream, constants: Mapping[str, Any]) -> ColumnRules:
        hints = {}
        if stream.columns:
            hints = {column.name: column for column in arrow_schema(hinted_schema(stream.columns), "columns")}
        if stream.json_schema is None:
            return cls(None, hints, infers=True, constants=constants)
        columns = {column.name: column for column in arrow_schema(stream.json_schema, "json_schema")}
        declared = pa.schema(list({**columns, **hints}.values()))
        return cls(declared, hints, infers=stream.additional_fields == "keep", constants=constants)

    def columns(self, seen: SeenColumns) -> pa.Schema:
        """Return the columns of the rows: declared ones first, then others in the order of the source, then constants.

        :raises ConfigurationError: a constant has the name of a column of the stream
        """
        columns = self.declared if self.declared is not None else pa.schema([])
        if self.infers:
            types = {**self.hints, **{column.name: column for column in columns}}
            inferred = seen.schema.to_arrow(seen.places, types)
            columns = pa.schema([*columns, *(column for column in inferred if column.name not in columns.names)])
        taken = {name.casefold() for name in (*columns.names, *self.hints)}
        for name in self.constants:
            if name.casefold() in taken:
                remedy = "name the constant otherwise, or leave it out"
                raise ConfigurationError(f"options.constants.{name}", "the stream has a column of that name", remedy)
        return pa.schema([*columns, *self.constant_columns()])

    def constant_columns(self) -> pa.Schema:
        """Return the columns of the constants that are not null."""
        values = ((name, value) for name, value in self.constants.items() if value is not None)
        return pa.schema([pa.field(name, _CONSTANT_TYPES[type(value)]) for name, value in values])

    def typed_names(self) -> frozenset[str]:
        """Return the columns whose types the stream declares; the table must take these types."""
        declared = self.declared.names if self.declared is not None else ()
        return frozenset((*self.hints, *declared, *self.constants))


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns that appear in records.

    :ivar places: the first place of each field, by path. So columns have the order of the source, whichever task
        read them
    """

    schema: InferredSchema = field(default_factory=InferredSchema)
    places: Mapping[str, Place] = field(default_factory=dict)

    def __add__(self, other: SeenColumns) -> SeenColumns:
        places = dict(self.places)
        for path, place in other.places.items():
            places[path] = min(place, places.get(path, place))
        return SeenColumns(merge(self.schema, other.schema), places)


def see_columns(batches: Iterable[tuple[Sequence[LedgerPage], Sequence[int]]]) -> SeenColumns:
    """Infer the columns from the records of pages, which come with the ordinals of their partitions."""
    schema, places = InferredSchema(), dict[str, Place]()
    for pages, ordinals in batches:
        batch = infer_records(b"\n".join(page.records for page in pages))
        numbered = sorted(
            (((ordinal, page.page), page.records) for ordinal, page in zip(ordinals, pages, strict=True)),
            key=lambda item: item[0],
        )
        _locate(frozenset(batch.paths()), numbered, places)
        schema = merge(schema, batch)
    return SeenColumns(schema, places)


def _locate(paths: frozenset[str], pages: Sequence[tuple[tuple[int, int], Any]], places: dict[str, Place]) -> None:
    """Record the first place of each path in ordered pages. Most fields appear in the first record already."""
    for number, records in pages:
        wanted = {path for path in paths if path not in places or places[path][:2] > number}
        if not wanted:
            return
        position, text = 0, bytes(records)
        if not any(_end_of_name(path) in text for path in wanted):
            continue  # parse only pages that may have a wanted field
        for line in text.split(b"\n"):
            with suppress(orjson.JSONDecodeError):
                for path in _paths(orjson.loads(line), "", MAX_DEPTH):
                    if path in wanted:
                        wanted.remove(path)
                        places[path] = (*number, position)
                        position += 1
            if not wanted:
                break


def _end_of_name(path: str) -> bytes:
    """Return the end of a field's name in the ledger's JSON; the name itself may have dots."""
    return orjson.dumps(path.rpartition(".")[2])[1:]


def _paths(value: Any, prefix: str, depth: int) -> Iterator[str]:
    """Yield the paths of a value's fields in their order."""
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield prefix + name
            yield from _paths(inner, f"{prefix}{name}.", depth - 1)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, f"{prefix}element.", depth - 1)
