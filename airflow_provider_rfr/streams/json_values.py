"""JSON values, and the one text form by which they are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from airflow_provider_rfr.exceptions import ConfigurationError

JsonValue: TypeAlias = bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None


def canonical_json(value: Any, *, field: str = "value") -> str:
    """Sorted keys, no blanks: equal values have equal texts, on every machine and in every attempt.

    :param field: what the error names
    :raises ConfigurationError: the value isn't JSON (dates and decimals have to be written as text)
    """
    try:
        return json.dumps(
            value,
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
            default=_plain,
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            field, f"{value!r} is not a JSON value ({error})", "use text, numbers, lists and mappings"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
