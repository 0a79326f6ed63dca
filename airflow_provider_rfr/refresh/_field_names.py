"""Collects the names of the fields in records, to warn of fields that a declared schema drops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa

_Note = Callable[[Any], None]


class FieldNames:
    """The names of the fields in records, and in nested objects that the schema has as columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self._found: dict[str, set[str]] = {}
        self._note = self._struct(list(schema), "")

    def note(self, ndjson: bytes) -> None:
        """Note the fields of newline-delimited records; ignore invalid JSON, which reading the values reports."""
        for line in ndjson.split(b"\n"):
            with suppress(orjson.JSONDecodeError):
                self._note(orjson.loads(line))

    def paths(self) -> frozenset[str]:
        """Return the path of every field, in the form of the table's column names."""
        return frozenset(prefix + name for prefix, names in self._found.items() for name in names)

    def _struct(self, columns: Sequence[pa.Field], prefix: str) -> _Note:
        names = self._found.setdefault(prefix, set())
        inner = [
            (column.name, note)
            for column in columns
            if (note := self._value(column.type, f"{prefix}{column.name}.")) is not None
        ]

        def note_fields(record: Any) -> None:
            if isinstance(record, dict):
                names.update(record)
                for name, note in inner:
                    if (value := record.get(name)) is not None:
                        note(value)

        return note_fields

    def _value(self, kind: pa.DataType, prefix: str) -> _Note | None:
        """Return a function that notes the fields of a column's values; None if the values have no fields."""
        if pa.types.is_struct(kind):
            return self._struct(list(kind), prefix)
        if not pa.types.is_list(kind):
            return None
        element = self._value(kind.value_type, f"{prefix}element.")
        if element is None:
            return None

        def note_items(items: Any) -> None:
            if isinstance(items, list):
                for item in items:
                    element(item)

        return note_items
