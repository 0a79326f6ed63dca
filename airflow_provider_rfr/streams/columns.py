"""Types of single columns, as a stream names them: ``created_at: timestamp``. Each is a part of a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError

_INTEGER: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_INSTANT: Final = {"type": "string", "format": "date-time"}
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    **dict.fromkeys(("int", "long", "bigint"), _INTEGER),
    **dict.fromkeys(("float", "double"), _NUMBER),
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    **dict.fromkeys(("timestamp", "timestamptz"), _INSTANT),
    "timestamp_ntz": {**_INSTANT, "airbyte_type": "timestamp_without_timezone"},
    "json": {},
}
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)", re.ASCII)
_MOST_DIGITS: Final = 38


def column_schema(kind: str) -> Mapping[str, Any]:
    """Return the JSON schema of a column of that type.

    :raises ValueError: unknown type; the text lists the types
    """
    name = kind.strip().lower()
    if name in _TYPES:
        return _TYPES[name]
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2] or 0)
        if 1 <= precision <= _MOST_DIGITS and scale <= precision:
            return {"type": "number", "format": f"decimal({precision},{scale})"}
        raise ValueError(
            f"{kind!r}: a decimal has 1 to {_MOST_DIGITS} digits, and not more than those behind the point"
        )
    quotes = '; quote a type that holds a comma: "decimal(10, 2)"' if name.startswith("decimal") else ""
    raise ValueError(f"{kind!r} is not a type; write one of {', '.join(_TYPES)}, decimal(p, s){quotes}")


def hinted_schema(columns: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Return the JSON schema of the columns that a stream gives types.

    :raises ConfigurationError: a type does not exist
    """
    properties = {}
    for name, kind in (columns or {}).items():
        try:
            properties[name] = column_schema(kind)
        except ValueError as error:
            raise ConfigurationError(f"columns.{name}", str(error)) from None
    return {"type": "object", "properties": properties}
