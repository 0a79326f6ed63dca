"""Rules that every schema of a published table obeys: names of columns, system columns, the mark of JSON text."""

from __future__ import annotations

from collections.abc import Sequence

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
