"""Durations as a triggers block writes them: a whole number and one of ``s``, ``m``, ``h``, ``d``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake

PATTERN = r"^\d+(s|m|h|d)$"
_FORM = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(float):
    """Seconds.

    :ivar text: as it was written
    """

    text: str

    def __new__(cls, text: str) -> Duration:
        form = _FORM.fullmatch(text)
        if form is None:
            raise ValueError("no duration")
        made = super().__new__(cls, int(form[1]) * _SECONDS[form[2]])
        made.text = text
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text,)


def read_duration(value: Any) -> Duration:
    """Text to seconds; raises a mistake for anything that is not exactly a number and a unit."""
    if isinstance(value, Duration):
        return value
    if isinstance(value, str) and _FORM.fullmatch(value):
        return Duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        raise mistake("a duration needs its unit", f"write {value}s")
    raise mistake("is no duration", "write a whole number and s, m, h or d, e.g. 45s or 30m")


def between(shortest: str, longest: str) -> Callable[[Any], Duration]:
    """A validator of durations within these bounds."""
    low, high = Duration(shortest), Duration(longest)

    def check(value: Any) -> Duration:
        duration = read_duration(value)
        if not low <= duration <= high:
            raise mistake(f"must be from {shortest} to {longest}")
        return duration

    return check


DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": PATTERN})
Wait = Annotated[Duration, PlainValidator(between("0s", "30d")), DURATION_SCHEMA]
"""Any duration up to a month."""
