"""A stream's rules for its columns: declared, given a type by name, or inferred from the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.inference import arrow_schema
from airflow_provider_rfr.refresh.page_rows import SeenColumns
from airflow_provider_rfr.streams.core import Stream, hinted_schema
from airflow_provider_rfr.streams.incremental import DELETED_FIELD

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.typed_rows import TypedRows

_CONSTANT_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_KINDS: Final = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
"""Kinds of values by the first characters of their JSON; all others are numbers."""


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """A stream's rules for its columns.

    :ivar declared: columns of its ``json_schema`` and ``columns``; None without a ``json_schema``
    :ivar hints: columns of its ``columns``, by name
    :ivar infers: whether fields besides the declared ones become columns
    :ivar constants: values of additional columns that are the same in all rows, by name; a null makes no column, like a
        field without any value
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
        hints: dict[str, pa.Field] = {}
        declared = None
        if stream.columns:
            hints = {column.name: column for column in arrow_schema(hinted_schema(stream.columns), "columns")}
        if stream.json_schema is not None:
            columns = {column.name: column for column in arrow_schema(stream.json_schema, "json_schema")}
            declared = pa.schema(list({**columns, **hints}.values()))
        infers = declared is None or stream.additional_fields == "keep"
        rules = cls(declared, hints, infers, constants or {})
        # Computed only for its errors.
        rules.columns(SeenColumns())
        return rules

    def columns(self, seen: SeenColumns, present: Mapping[str, pa.Field] = {}) -> pa.Schema:
        """Return the columns of the rows: declared ones first, then others in the order of the source, then constants.

        :param present: the table's columns by name. Fields whose only values are empty lists or objects get their types
            from these
        :raises ConfigurationError: a constant has the name of a column of the stream
        """
        columns = self.declared if self.declared is not None else pa.schema([])
        if self.infers:
            types = {**self.hints, **{column.name: column for column in columns}}
            inferred = seen.schema.to_arrow(seen.places, types, present)
            known = {DELETED_FIELD, *columns.names}
            columns = pa.schema([*columns, *(column for column in inferred if column.name not in known)])
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


def misfits_in_words(rows: TypedRows) -> str:
    """Describe the values of one page that do not fit their columns: the first ones, and how many more there are."""
    named = "; ".join(
        f"record {offender.record}: {offender.column} is the {_KINDS.get(offender.value[0], 'number')}"
        f" {offender.value}, expected {offender.expected}"
        for offender in rows.offenders
    )
    count = rows.offender_count - len(rows.offenders)
    return f"{named} (and {count} more)" if count else named
