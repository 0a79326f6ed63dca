"""Arguments whose values are known only when the task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_pending(value: Any) -> bool:
    """Whether Airflow has yet to render the value, or something in it."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_pending(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(is_pending(item) for item in value)
    return hasattr(value, "resolve")
