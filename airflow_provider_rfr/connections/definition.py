"""A connection as it is stored, and its options by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_provider_rfr.connections import names

EXTRA: Final = "extra."
CORE: Final = ("host", "port", "login", "password", "schema", "description")
TYPE: Final = "conn_type"


@dataclass(frozen=True, slots=True)
class Definition:
    """What Airflow keeps of a connection; its values are never shown.

    :ivar extra: the extra fields, as their JSON says
    """

    name: str
    conn_type: str
    host: str | None = field(default=None, repr=False)
    port: int | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    schema: str | None = field(default=None, repr=False)
    description: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def get(self, option: str) -> Any:
        """The option's value; None where it has none."""
        if not option.startswith(EXTRA):
            return getattr(self, option)
        found: Any = self.extra
        for part in parts_of(option):
            found = as_mapping(found).get(part)
        return found

    def having(self, option: str, value: Any) -> Definition:
        """The same with that option; None takes it away."""
        if not option.startswith(EXTRA):
            changes: dict[str, Any] = {option: value}
            return replace(self, **changes)
        return replace(self, extra=_with(self.extra, parts_of(option), value))

    def options(self) -> Iterator[tuple[str, Any]]:
        """Every option that has a value; of nested extra fields the leaves."""
        for name in CORE:
            if getattr(self, name) not in (None, ""):
                yield name, getattr(self, name)
        yield from _leaves(EXTRA.rstrip("."), self.extra)

    def extra_text(self) -> str | None:
        """The extra fields as Airflow stores them."""
        return json.dumps(self.extra) if self.extra else None


def parts_of(option: str) -> list[str]:
    """The path of an extra field."""
    return names.parts_of(option.removeprefix(EXTRA))


def parsed_extra(text: str | None) -> dict[str, Any]:
    """Extra fields from their text; what is no JSON object can't be altered field by field.

    :raises ValueError: it is none; the message does not repeat it
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("extra is no JSON object")
    return found


def _with(extra: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    made, first = dict(extra), path[0]
    if len(path) == 1:
        made.pop(first, None)
        return made if value is None else {**extra, first: value}
    below = _with(as_mapping(made.get(first)), path[1:], value)
    if below or value is not None:
        made[first] = below
    else:
        made.pop(first, None)
    return made


def as_mapping(value: Any) -> Mapping[str, Any]:
    """An object, also one that a form stored as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _leaves(place: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        full = f"{place}.{names.name_of([str(name)])}"
        if isinstance(each, Mapping) and each:
            yield from _leaves(full, each)
        elif each not in (None, ""):
            yield full, each
