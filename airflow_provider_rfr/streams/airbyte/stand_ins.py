"""Makes up a configuration from a manifest's specification, to build its streams without sending requests."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

_DAY: Final = "2025-12-01"
_DAY_PATTERN: Final = r"\d{4}-\d\d-\d\d"
_TIMES: Final = (
    f"{_DAY}T00:00:00Z",
    f"{_DAY}T00:00:00.000Z",
    _DAY,
    f"{_DAY} 00:00:00",
    f"{_DAY}T00:00:00",
    "12/01/2025",
    "01/12/2025 00:00",
)
_TEXTS: Final = (
    "made-up",
    "madeup",
    "MADEUP",
    "1",
    "12345678",
    "made.up.example",
    "https://made-up.example",
    "2025",
    "P1D",
)


def stand_ins(schema: Mapping[str, Any], *, all_fields: bool = False) -> dict[str, Any]:
    """Return values for the fields that are required, have a default, or look like a start time.

    :param all_fields: also for all other fields
    """
    values: dict[str, Any] = {}
    for part in [schema, *(schema.get("oneOf") or schema.get("anyOf") or [])[:1]]:
        required = set(part.get("required") or ())
        for name, field in (part.get("properties") or {}).items():
            is_needed = name in required or {"const", "default"} & field.keys() or "start" in name
            if all_fields or is_needed or field.get("type") == "object":
                values[name] = _stand_in(field, name, all_fields)
    return values


def _stand_in(schema: Mapping[str, Any], name: str, all_fields: bool) -> Any:
    for key in ("const", "default"):
        if schema.get(key) not in (None, ""):
            return copy.deepcopy(schema[key])
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type") or ("object" if "oneOf" in schema or "properties" in schema else "string")
    kind = kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")
    if kind == "object":
        return stand_ins(schema, all_fields=all_fields)
    if kind == "array":
        return [_stand_in(schema.get("items") or {}, name, all_fields)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return False if kind == "boolean" else _text(schema, name)


def _text(schema: Mapping[str, Any], name: str) -> str:
    """Return a text that fits the pattern, if any candidate does."""
    written = schema.get("examples") or []
    examples = [str(example) for example in (written if isinstance(written, list) else [written])]
    pattern = schema.get("pattern") or ""
    is_time = "date" in str(schema.get("format")) or re.search(r"date|start|since", name) is not None
    if is_time and not pattern and examples and re.fullmatch(_DAY_PATTERN, examples[0]):
        return _DAY
    times = (_DAY,) if schema.get("format") == "date" else _TIMES
    candidates: list[str] = [*(times if is_time else ()), *examples, *_TEXTS, *times]
    return next((text for text in candidates if re.search(pattern, text)), candidates[0])
