"""The part of a table that ``replace_where`` names.

Executors use this module: it imports nothing that they may lack.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, EqualTo, Reference, parser
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.schemas import target_schema


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter such as ``day = '2026-01-01'``."""

    text: str
    schema: Schema

    def count_outside(self, table: pa.Table) -> int:
        """Count the rows that don't match. Once published, they would double when the same part is replaced again.

        :raises ConfigurationError: as :meth:`bound`
        """
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        bound = self.bound()
        # A column of the table that these rows lack is null in them.
        absent = [column for column in self.schema.as_arrow() if column.name not in table.column_names]
        for column in absent:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
        return int(table.num_rows - table.filter(expression_to_pyarrow(bound)).num_rows)

    def bound(self) -> BooleanExpression:
        """Return the filter, bound to the table's columns.

        :raises ConfigurationError: it names a column that does not exist, or compares one with an unsuitable value
        """
        try:
            return bind(self.schema, parser.parse(self.text), case_sensitive=True)
        except (ValueError, TypeError) as error:
            columns = ", ".join(column.name for column in self.schema.fields)
            raise ConfigurationError(
                "options.replace_where", f"{self.text!r}: {error}", f"the columns are {columns}"
            ) from None


def part_of(replace_where: str | None) -> str | None:
    """Return a digest of the filter as the name of its part, independent of spacing; None for the whole table.

    :raises ConfigurationError: the text is not a filter
    """
    if replace_where is None:
        return None
    return hashlib.blake2b(str(_parsed(replace_where)).encode(), digest_size=6).hexdigest()


def _parsed(replace_where: str) -> BooleanExpression:
    try:
        return parser.parse(replace_where)
    except Exception:  # noqa: BLE001 - the grammar's own errors have no common base, and repeat all of the grammar
        raise ConfigurationError(
            "options.replace_where",
            f"{replace_where!r} is not a row filter",
            "compare columns with values, e.g. day = '2026-01-01' AND region IN ('eu', 'us')",
        ) from None


def equalities(replace_where: str) -> list[tuple[str, Any]]:
    """Return the columns for which the filter requires a certain value, each with that value.

    :raises ConfigurationError: the text is not a filter
    """
    equal, left = [], [_parsed(replace_where)]
    while left:
        part = left.pop()
        if isinstance(part, And):
            left += (part.left, part.right)
        elif isinstance(part, EqualTo) and isinstance(part.term, Reference):
            equal.append((part.term.name, part.literal.value))
    return equal


def check_filter(text: str, rows: pa.Schema) -> None:
    """Raise :class:`ConfigurationError` if the filter can't be applied to rows with these columns."""
    RowFilter(text, target_schema(rows)).bound()
