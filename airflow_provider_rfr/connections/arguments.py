"""A statement as Python gives it: names and values in mappings and lists, as a DAG's author or a form writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from airflow_provider_rfr.connections.parser import boolean, duration, parse_statement
from airflow_provider_rfr.connections.statement import (
    DRAIN_SECONDS,
    Action,
    ActionKind,
    Parameter,
    SecretReference,
    Settings,
    Statement,
    Value,
    Verb,
    name_of,
    parts_of,
)
from airflow_provider_rfr.connections.types import may_be_secret
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    ConfigurationError,
    StatementError,
)
from airflow_provider_rfr.secret_names import is_secret

_SETTING: Final = re.compile(r"""([\w."-]+)\s*[=:]?\s*(?:'((?:[^']|'')*)|"([^"]*)|([^\s,()'"{}=:]+))""")
"""A name and what follows it, in text that is not a statement, nor JSON."""


def statement_of(
    connection: str | None,
    *,
    set: Mapping[str, Any] | str | None = None,
    drop: Sequence[str] | str | None = None,
    reset: Sequence[str] | str | None = None,
    if_exists: Any = False,
    drain_timeout: Any = "10m",
    **switches: Any,
) -> Statement:
    """The statement; text is taken for what a form makes of the same values.

    :raises ConfigurationError: the field, and what to write
    """
    if connection and not isinstance(connection, str):
        # A DAG that renders templates to Python's own types makes a number of an id such as 42.
        kind = type(connection).__name__
        raise ConfigurationError("connection", f"is {kind}, not text", 'use a statement, with the id as "..." in it')
    if not connection:
        raise ConfigurationError("connection", "is not named", "give its id, or a statement")
    settings = settings_with(Settings(), drain_timeout=drain_timeout, **switches)
    actions = [
        *(Action(ActionKind.SET, name, _value(value)) for name, value in _flat("", _mapping(set))),
        *(Action(ActionKind.DROP, name) for name in _names("drop", drop)),
        *(Action(ActionKind.RESET, name) for name in _names("reset", reset)),
    ]
    return Statement(Verb.ALTER, connection, bool(switch("if_exists", if_exists)), tuple(actions), settings)


def settings_with(settings: Settings, *, drain_timeout: Any = None, **switches: Any) -> Settings:
    """The settings of a statement with what is said beside it: what is more careful counts.

    :raises ConfigurationError: the field, and what to write
    """
    given = {name: switch(name, value) for name, value in switches.items()}
    seconds = settings.drain_timeout
    if drain_timeout is not None:
        said = duration(drain_timeout)
        if said is None:
            raise ConfigurationError("drain_timeout", "is not a duration", "write e.g. 10m")
        seconds = said if seconds == DRAIN_SECONDS else seconds
    return Settings(
        validate=settings.validate and given.get("validate", True),
        restart=settings.restart and given.get("restart", True),
        dry_run=settings.dry_run or given.get("dry_run", False),
        new_identity=settings.new_identity or given.get("new_identity", False),
        drain_timeout=seconds,
    )


def check_plain(statement: Statement) -> None:
    """Refuse a plain secret while the DAG is parsed, as far as names tell: DAGs are shown to their readers.

    :raises AlterationRefusedError: with every such option
    """
    problems = [
        AlterationProblem(name, "is secret and stands here in plain text", "write SECRET 'env:NAME', or use parameters")
        for name, value in statement.set.items()
        if is_secret(name) and not isinstance(value, (SecretReference, Parameter))
    ]
    if problems:
        raise AlterationRefusedError(statement.connection, problems)


def plain_texts(statement: str | None, set: Any) -> Iterator[str]:
    """Texts that are given in the place of secrets, so that they can be masked before they are refused.

    What can't be read is searched for what looks like one: Airflow stores and shows it all the same.
    """
    named: list[tuple[str, Any]] = []
    try:
        named += _flat("", _mapping(set))
    except ConfigurationError:
        named += _guessed(str(set))
    try:
        named += [(each.option, each.value) for each in parse_statement(statement).actions] if statement else []
    except ConfigurationError:
        named += _guessed(str(statement))
    for name, value in named:
        found = _value(value)
        if may_be_secret(name) and isinstance(found, (str, int, float)) and len(str(found)) > 2:
            yield str(found)


def _guessed(text: str) -> Iterator[tuple[str, str]]:
    for found in _SETTING.finditer(text):
        name, value = found[1], found[2] or found[3] or found[4] or ""
        if "SECRET" not in (name.upper(), value.upper()):
            yield name.strip('."'), value.replace("''", "'")


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            value = None
        if value is None:
            raise ConfigurationError("set", "is not a mapping", 'write e.g. {"port": 5433}')
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError("set", f"is {type(value).__name__}, not a mapping", 'write e.g. {"port": 5433}')
    return value


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """``{"extra": {"a": 1}}`` is the option ``extra.a``; a dot in the name of a nested field is part of that name."""
    for name, value in values.items():
        full = f"{place}.{name_of([str(name)])}" if place else _lower(str(name))
        if isinstance(value, Mapping) and value and parts_of(full)[0] == "extra":
            yield from _flat(full, value)
        else:
            yield full, value


def _lower(option: str) -> str:
    """Statements take the names of fields in any case, too."""
    first, *more = parts_of(option)
    return name_of([first.lower(), *more])


def _value(value: Any) -> Value:
    """A reference or a parameter may be written as in a statement."""
    if isinstance(value, str) and (value.upper().startswith("SECRET ") or value.startswith(":")):
        try:
            found = parse_statement(f"ALTER CONNECTION c SET (a = {value})").actions
        except StatementError:
            return value
        return found[0].value if len(found) == 1 else value
    made: Value = value
    return made


def _names(field: str, names: Sequence[str] | str | None) -> list[str]:
    found = [each.strip() for each in names.split(",")] if isinstance(names, str) else names or ()
    if not isinstance(found, (list, tuple)) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(field, "is not a list of options", 'write e.g. ["schema"]')
    return [_lower(name) for name in found if name]


def switch(field: str, value: Any) -> bool:
    """:raises ConfigurationError: it is no Boolean, nor the name of one"""
    found = boolean(value)
    if found is None:
        raise ConfigurationError(field, "is neither true nor false", "write true or false")
    return found
