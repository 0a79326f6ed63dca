"""The helpers that give a value, and what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from airflow_provider_rfr.webhooks.handlebars import values
from airflow_provider_rfr.webhooks.handlebars.values import (
    UNDEFINED,
    Budget,
    NoText,
    Problem,
    get,
    is_list,
    is_map,
    is_number,
    is_true,
    json_text,
    key_of,
    kind_of,
    size_of,
    text_of,
)

_DEEPEST = 100


class Missing(Enum):
    """What it means that there is no such name."""

    ERROR = 1
    UNDEFINED_AT_THE_END = 2
    """As handlebars.js has it for arguments: ``a.b`` may be missing, and is an error where ``a`` is."""
    UNDEFINED = 3


@dataclass(frozen=True, eq=False)
class Given:
    """One argument.

    :ivar label: as the template writes it
    """

    value: Any
    label: str
    at: int

    def wrong(self, wanted: str) -> Problem:
        return Problem(f"{self.label} is {kind_of(self.value)}; this helper takes {wanted}", self.at)

    def text(self) -> str:
        try:
            return text_of(self.value)
        except NoText:
            pass
        raise self.wrong("text")


@dataclass(frozen=True)
class Arguments:
    """What a helper is called with."""

    all: Sequence[Given]
    named: Mapping[str, Given]
    budget: Budget
    at: int

    def __getitem__(self, index: int) -> Given:
        return self.all[index]


@dataclass(frozen=True, eq=False)
class Helper:
    """A helper that gives a value.

    :ivar usage: how it is called
    :ivar most: of arguments; ``None`` for any number
    :ivar missing: what it means for arguments before ``strict_from``; for others it is an error
    :ivar free_names: arguments by name are not looked at
    """

    name: str
    run: Callable[[Arguments], object]
    usage: str
    least: int
    most: int | None
    missing: Missing = Missing.ERROR
    strict_from: int = 0
    named: tuple[str, ...] = ()
    free_names: bool = False


def _json(given: Arguments) -> object:
    return json_text(given[0].value, given.budget, given[0].label, given[0].at)


def _lookup(given: Arguments) -> object:
    value, name = given[0].value, given[1]
    if not (is_true(value) or is_list(value)):
        return value
    if isinstance(value, str):
        given.budget.read(len(value), given.at)
    try:
        return get(value, key_of(name.value))
    except NoText:
        pass
    raise name.wrong("a name or a number")


def _len(given: Arguments) -> object:
    value = given[0].value
    if isinstance(value, str) or is_list(value) or is_map(value):
        return len(value)
    raise given[0].wrong("a list, a map or text")


def _equal(given: Arguments) -> bool:
    return _alike(given[0].value, given[1].value, given.budget, given.at)


def _alike(one: Any, other: Any, budget: Budget, at: int, depth: int = 0) -> bool:
    """Equal in kind and value, all the way down; null equals undefined."""
    budget.step(at)
    if depth > _DEEPEST:
        raise Problem(f"values with more than {_DEEPEST} lists and maps inside each other can't be compared", at)
    if is_number(one) and is_number(other):
        return bool(one == other)
    if isinstance(one, str) and isinstance(other, str):
        budget.read(min(len(one), len(other)), at)
        return one == other
    if is_list(one) and is_list(other):
        return len(one) == len(other) and all(
            _alike(each, its, budget, at, depth + 1) for each, its in zip(one, other, strict=True)
        )
    if is_map(one) and is_map(other):
        budget.step(at, min(len(one), len(other)))
        return one.keys() == other.keys() and all(_alike(one[key], other[key], budget, at, depth + 1) for key in one)
    return one is other or (_is_nothing(one) and _is_nothing(other))


def _is_nothing(value: object) -> bool:
    return value is None or value is UNDEFINED


def _is_blank(value: object) -> bool:
    return _is_nothing(value) or (isinstance(value, str) and not value)


def _ordered(wanted: Callable[[int], bool]) -> Callable[[Arguments], bool]:
    def run(given: Arguments) -> bool:
        one, other = given[0].value, given[1].value
        if isinstance(one, str) and isinstance(other, str):
            given.budget.read(min(len(one), len(other)), given.at)
            times = values.moment(one), values.moment(other)
            one, other = times if None not in times else (one, other)
        elif not (is_number(one) and is_number(other)):
            raise given[1].wrong(f"two numbers or two texts, and {given[0].label} is {kind_of(given[0].value)}")
        return wanted((one > other) - (one < other))

    return run


def _default(given: Arguments) -> object:
    value = given[0].value
    return given[1].value if _is_blank(value) else value


def _join(given: Arguments) -> object:
    items = given[0].value
    if not is_list(items):
        raise given[0].wrong("a list")
    separator = given[1].text() if len(given.all) > 1 else ","
    given.budget.step(given.at, len(items))
    texts = [Given(item, f"an item of {given[0].label}", given[0].at).text() for item in items]
    size = size_of(separator) * max(0, len(texts) - 1)
    for text in texts:
        given.budget.read(len(text), given.at)
        size += size_of(text)
    given.budget.fits(size, given.at)
    return separator.join(texts)


def _changed(change: Callable[[str], str]) -> Callable[[Arguments], object]:
    """A helper that changes each character; which others stand around it has no part in how long it becomes."""

    def run(given: Arguments) -> object:
        text = given[0].text()
        given.budget.fits(size_of(text), given[0].at)
        characters = Counter(text)
        given.budget.step(given.at, len(characters))
        given.budget.fits(sum(count * size_of(change(each)) for each, count in characters.items()), given.at)
        return change(text)

    return run


def _date(given: Arguments) -> object:
    value = given[0].value
    if _is_blank(value):
        return ""
    when = values.moment(value) if isinstance(value, str) else None
    if when is None:
        raise Problem(f"{given[0].label} is not a time as in 2024-05-06T07:08:09Z", given[0].at)
    zone_name = given.named.get("timezone")
    where = values.zone(zone_name.text()) if zone_name else values.zone("UTC")
    if where is None:
        assert zone_name is not None
        raise Problem("there is no such time zone", zone_name.at)
    form = (values.LOCAL_FORMAT if zone_name else values.UTC_FORMAT) if len(given.all) < 2 else given[1].text()
    # Two characters, as %s or %B, become twelve at most.
    given.budget.fits(6 * size_of(form), given.at)
    if values.unknown_field(form) is not None:
        raise Problem(f"a format of date has these fields alone: {values.FIELDS}", given.at)
    text = values.formatted(when, form, where)
    if text is None:
        raise Problem(f"{given[0].label} is beyond the years 1 to 9999 in that time zone", given[0].at)
    return text


_LENIENT, _LOOSE = Missing.UNDEFINED, Missing.UNDEFINED_AT_THE_END
_ALL = 1_000_000
_TWO = "(%s one other)"
HELPERS: Mapping[str, Helper] = {
    helper.name: helper
    for helper in (
        Helper("json", _json, "{{json name}}", 1, 1),
        Helper("lookup", _lookup, "{{lookup map name}}", 2, 2, free_names=True),
        Helper("len", _len, "{{len name}}", 1, 1),
        Helper("eq", _equal, _TWO % "eq", 2, 2),
        Helper("ne", lambda given: not _equal(given), _TWO % "ne", 2, 2),
        Helper("gt", _ordered(lambda order: order > 0), _TWO % "gt", 2, 2),
        Helper("gte", _ordered(lambda order: order >= 0), _TWO % "gte", 2, 2),
        Helper("lt", _ordered(lambda order: order < 0), _TWO % "lt", 2, 2),
        Helper("lte", _ordered(lambda order: order <= 0), _TWO % "lte", 2, 2),
        Helper(
            "and",
            lambda given: all(is_true(each.value) for each in given.all),
            "(and one other)",
            2,
            None,
            _LENIENT,
            _ALL,
        ),
        Helper(
            "or",
            lambda given: any(is_true(each.value) for each in given.all),
            "(or one other)",
            2,
            None,
            _LENIENT,
            _ALL,
        ),
        Helper("not", lambda given: not is_true(given[0].value), "(not name)", 1, 1),
        Helper("default", _default, "{{default name 'text'}}", 2, 2, _LENIENT, 1),
        Helper("join", _join, "{{join names ', '}}", 1, 2),
        Helper("upper", _changed(str.upper), "{{upper name}}", 1, 1),
        Helper("lower", _changed(str.lower), "{{lower name}}", 1, 1),
        Helper("urlencode", _changed(lambda text: quote(text, safe="", errors="replace")), "{{urlencode name}}", 1, 1),
        Helper("date", _date, "{{date name '%Y-%m-%d' timezone='UTC'}}", 1, 2, named=("timezone",)),
        Helper("log", lambda given: UNDEFINED, "{{log name}}", 0, None, _LOOSE, _ALL, free_names=True),
    )
}
