"""Rules that every schema of a published table obeys: names of columns, system columns, the mark of JSON text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError

GENERATION = "_rfr_generation"
EXTRACTED_AT = "_rfr_extracted_at"
META = "_rfr_meta"

TIMESTAMP = pa.timestamp("us", tz="UTC")

SYSTEM_COLUMNS = pa.schema(
    [pa.field(GENERATION, pa.int64()), pa.field(EXTRACTED_AT, TIMESTAMP), pa.field(META, pa.string())]
)

_MARK = b"rfr.json"

JSON_TEXT = pa.field("", pa.string(), metadata={_MARK: b"1"})
"""A nameless string column of JSON text: any value of any shape, a string in its quotes."""


def json_text_field(name: str) -> pa.Field:
    """A string column whose values are JSON texts."""
    return JSON_TEXT.with_name(name)


def is_json_text(field: pa.Field) -> bool:
    """Whether the column holds JSON texts instead of plain strings."""
    return _MARK in (field.metadata or {})


def check_names(names: Sequence[str], path: str, *, top_level: bool = False) -> None:
    """Refuse names that no engine, or not every engine, could tell apart.

    :raises ConfigurationError: an empty name, two that differ by case only, or a system column's
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if not name:
            raise ConfigurationError(path, "a column has an empty name", "rename the field by a transformation")
        if folded in seen:
            raise ConfigurationError(
                path,
                f"columns {seen[folded]!r} and {name!r} differ by case only",
                "rename or remove one of them by a transformation: most engines can't tell them apart",
            )
        if top_level and folded in SYSTEM_COLUMNS.names:
            raise ConfigurationError(path, f"{name!r} is a system column", "rename the field by a transformation")
        seen[folded] = name


def check_columns(columns: Sequence[pa.Field], path: str, *, top_level: bool = False) -> None:
    """:func:`check_names`, and no name that is also the path to an inner field: ``a.b`` beside ``a: {b}``.

    :raises ConfigurationError: naming both
    """
    check_names([column.name for column in columns], path, top_level=top_level)
    for name, one, other in _clashes(columns):
        raise ConfigurationError(
            path,
            f"{name!r} would be a name of two columns, in {one.name!r} and in {other.name!r}",
            "rename or remove one of them by a transformation: a dot in a name and the way into an object look alike",
        )


def with_distinct_names(columns: Sequence[pa.Field]) -> list[pa.Field]:
    """The columns; an object or a list that has a name in common with another column is kept as JSON text."""
    mixed = {column.name for _, *both in _clashes(columns) for column in both if pa.types.is_nested(column.type)}
    return [json_text_field(column.name) if column.name in mixed else column for column in columns]


def full_names(name: str, kind: pa.DataType) -> Iterator[str]:
    """The names by which engines reach a column and all that is in it; a list's fields with ``element`` and without."""
    yield name
    if pa.types.is_list(kind):
        yield from full_names(f"{name}.element", kind.value_type)
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for each in kind:
            yield from full_names(f"{name}.{each.name}", each.type)


def _clashes(columns: Sequence[pa.Field]) -> list[tuple[str, pa.Field, pa.Field]]:
    """Names that two columns have in common, with the columns."""
    seen: dict[str, pa.Field] = {}
    found = []
    for column in columns:
        for name in dict.fromkeys(full_names(column.name, column.type)):
            other = seen.setdefault(name.casefold(), column)
            if other is not column:
                found.append((name, other, column))
    return found
