"""Conversions of moments from and to text: the forms that users and APIs write, and the one form of a state."""

from __future__ import annotations

import re
from datetime import datetime, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import TypeAdapter, ValidationError

_YEARS: Final = range(1900, 3000)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].+)?")
# Python before 3.11 reads fewer forms of ISO 8601 itself.
_MOMENT: Final = TypeAdapter(datetime)

OFFSET: Final = r"[Tt ].*([Zz]|[+-]\d\d(:?\d\d)?)$"
"""Regular expression, also Arrow's, that finds the offset of a moment."""


def zone_of(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    :raises ValueError: the name is unknown
    """
    if name == "UTC":
        return timezone.utc  # also where a machine has no time zone data
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ValueError(f"timezone: {name!r} is unknown; write an IANA name such as UTC or Europe/Zurich")


def moment_of(text: str, zone: tzinfo) -> datetime:
    """Parse a date, or a date and time, of ISO 8601; return it in UTC.

    :param zone: time zone of a text without an offset
    :raises ValueError: the text is not a date, or its year is before 1900 or after 2999
    """
    try:
        moment = _MOMENT.validate_python(text.strip()) if _DATE.fullmatch(text.strip()) else None
    except ValidationError:
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is not a date; write e.g. 2026-01-31 or 2026-01-31T06:00:00Z")
    if moment.year not in _YEARS:
        raise ValueError(f"{text!r} is not in the years {_YEARS[0]} to {_YEARS[-1]}")
    return in_utc(moment if moment.tzinfo else moment.replace(tzinfo=zone))


def without_offset(text: str) -> str:
    """Return the text of a local time unchanged.

    :raises ValueError: it has an offset
    """
    if re.search(OFFSET, text):
        raise ValueError(f"{text!r} has an offset")
    return text


def in_utc(moment: datetime) -> datetime:
    """Convert a moment to UTC. A local time that the clocks skip is moved forward by the skipped hour."""
    return moment.astimezone(timezone.utc)


def write_moment(moment: datetime) -> str:
    """Return the text of a moment in a state, e.g. ``2026-01-31T06:00:00.000000Z``.

    :param moment: with a time zone
    """
    # Not by strftime, which writes the year 1 as "1".
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def read_moment(value: str) -> datetime:
    """Parse a text of :func:`write_moment`, whose fraction may be missing, and return the moment in UTC.

    :raises ValueError: the text has another form
    """
    # Python 3.10 does not read a Z.
    moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{value!r} is not in the years 1 to 9999") from None
