"""Times as RFC 3339 writes them: compared as instants, and formatted."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
# English, whatever the locale.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WINTER_TO_SUMMER = ("January", "February", "March", "April", "May", "June")
_MONTHS = (*_WINTER_TO_SUMMER, "July", "August", "September", "October", "November", "December")
_LONGEST_ZONE = 64
UTC_FORMAT, LOCAL_FORMAT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z"

# strftime itself depends on locale and C library, and takes widths like %999999999d.
_FIELDS: dict[str, Callable[[datetime], str]] = {
    "Y": lambda when: f"{when.year:04d}",
    "y": lambda when: f"{when.year % 100:02d}",
    "m": lambda when: f"{when.month:02d}",
    "d": lambda when: f"{when.day:02d}",
    "j": lambda when: f"{when.timetuple().tm_yday:03d}",
    "H": lambda when: f"{when.hour:02d}",
    "I": lambda when: f"{when.hour % 12 or 12:02d}",
    "p": lambda when: "AM" if when.hour < 12 else "PM",
    "M": lambda when: f"{when.minute:02d}",
    "S": lambda when: f"{when.second:02d}",
    "L": lambda when: f"{when.microsecond // 1000:03d}",
    "f": lambda when: f"{when.microsecond:06d}",
    "A": lambda when: _DAYS[when.weekday()],
    "a": lambda when: _DAYS[when.weekday()][:3],
    "B": lambda when: _MONTHS[when.month - 1],
    "b": lambda when: _MONTHS[when.month - 1][:3],
    "z": lambda when: _offset(when),
    "s": lambda when: str(int((when - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1))),
    "%": lambda when: "%",
}
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)
FIELDS = " ".join(f"%{letter}" for letter in _FIELDS)


def moment(text: str) -> tuple[datetime, str] | None:
    """The whole second in UTC, and the digits behind it without zeros at the end: pairs compare as instants."""
    found = _RFC3339.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    fraction, sign, hours, minutes = found.group(7, 9, 10, 11)
    if sign and (hours > "23" or minutes > "59"):
        return None
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        return local + offset if sign == "-" else local - offset, (fraction or "").rstrip("0")
    except (ValueError, OverflowError):
        return None


def zone(name: str) -> tzinfo | None:
    """The time zone of that name, if there is one."""
    if name in ("UTC", "Z"):
        return timezone.utc
    if len(name) > _LONGEST_ZONE:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def unknown_field(form: str) -> str | None:
    """The first directive of a format that is none of :data:`FIELDS`."""
    return next((found.group() for found in _DIRECTIVE.finditer(form) if found.group(1) not in _FIELDS), None)


def formatted(when: tuple[datetime, str], form: str, where: tzinfo) -> str | None:
    """The time in that zone; ``None`` where the zone puts it beyond the years 1 to 9999."""
    second, digits = when
    try:
        local = second.replace(microsecond=int(digits[:6].ljust(6, "0"))).astimezone(where)
        return _DIRECTIVE.sub(lambda found: _FIELDS[found.group(1)](local), form)
    except (ValueError, OverflowError):
        return None


def _offset(when: datetime) -> str:
    minutes = int((when.utcoffset() or timedelta()) / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
