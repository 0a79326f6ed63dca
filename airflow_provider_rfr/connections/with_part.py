"""The settings of a statement's ``WITH`` part, and the same as Python gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from airflow_provider_rfr.connections.statement import Settings, Value
from airflow_provider_rfr.connections.tokens import Token
from airflow_provider_rfr.exceptions import StatementError

NAMES: Final = tuple(each.name for each in fields(Settings))
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def read_setting(settings: Settings, name: Token, value: Callable[[], Value], at: Token) -> Settings:
    """One more setting.

    :param value: reads it
    :param at: where it stands
    :raises StatementError: an unknown name, or a value that can't be
    """
    known = name.text.lower()
    if known not in NAMES:
        allowed = ", ".join(each.upper() for each in NAMES)
        raise StatementError("WITH has no such setting", name.line, name.column, f"one of {allowed}")
    given = value()
    if known == "drain_timeout":
        seconds = duration(given)
        if seconds is None:
            raise StatementError("DRAIN_TIMEOUT is no duration", at.line, at.column, "write e.g. '10m'")
        return replace(settings, drain_timeout=seconds)
    switch = boolean(given)
    if switch is None:
        raise StatementError(f"{known.upper()} is neither true nor false", at.line, at.column, f"write {known} = true")
    changes: dict[str, Any] = {known: switch}
    return replace(settings, **changes)


def duration(value: object) -> float | None:
    """Seconds, from a number, a timedelta or text such as ``10m``; None for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if value >= 0 and math.isfinite(value) else None
    found = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def boolean(value: object) -> bool | None:
    """A switch, from a Boolean or its name in text; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "on": True, "false": False, "off": False}.get(str(value).strip().lower())
