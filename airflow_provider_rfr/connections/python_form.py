"""A statement as Python gives it: names and values in mappings and lists, as a DAG's author or a form writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_rfr.connections.parser import parse_statement
from airflow_provider_rfr.connections.secret_names import is_secret
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
)
from airflow_provider_rfr.connections.with_part import boolean, duration
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    ConfigurationError,
    StatementError,
)


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
    if not connection or not isinstance(connection, str):
        raise ConfigurationError("connection", "is not named", "give its id, or a statement")
    settings = settings_with(Settings(), drain_timeout=drain_timeout, **switches)
    actions = [
        *(Action(ActionKind.SET, name, _value(value)) for name, value in _flat("", _mapping(set))),
        *(Action(ActionKind.DROP, name) for name in _names("drop", drop)),
        *(Action(ActionKind.RESET, name) for name in _names("reset", reset)),
    ]
    return Statement(Verb.ALTER, connection, bool(_switch("if_exists", if_exists)), tuple(actions), settings)


def settings_with(settings: Settings, *, drain_timeout: Any = None, **switches: Any) -> Settings:
    """The settings of a statement with what is said beside it: what is more careful counts.

    :raises ConfigurationError: the field, and what to write
    """
    given = {name: _switch(name, value) for name, value in switches.items()}
    seconds = settings.drain_timeout
    if drain_timeout is not None:
        said = duration(drain_timeout)
        if said is None:
            raise ConfigurationError("drain_timeout", "is no duration", "write e.g. 10m")
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
    """Texts that are given in the place of secrets, so that they can be masked before they are refused."""
    actions: list[tuple[str, Any]] = []
    try:
        actions += list(_flat("", _mapping(set)))
        actions += list(parse_statement(statement).set.items()) if statement else []
    except ConfigurationError:
        return
    for name, value in actions:
        if is_secret(name) and isinstance(_value(value), str) and len(value) > 2:
            yield value


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            value = None
        if value is None:
            raise ConfigurationError("set", "is no mapping", 'write e.g. {"port": 5433}')
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError("set", f"is {type(value).__name__}, not a mapping", 'write e.g. {"port": 5433}')
    return value


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """``{"extra": {"a": 1}}`` is the option ``extra.a``."""
    for name, value in values.items():
        full = f"{place}.{name}" if place else str(name)
        if isinstance(value, Mapping) and full.split(".")[0] == "extra":
            yield from _flat(full, value)
        else:
            yield full, value


def _value(value: Any) -> Value:
    """A reference or a parameter may be written as in a statement."""
    if isinstance(value, str) and (value.upper().startswith("SECRET ") or value.startswith(":")):
        try:
            return parse_statement(f"ALTER CONNECTION c SET (a = {value})").set["a"]
        except StatementError:
            return value
    made: Value = value
    return made


def _names(field: str, names: Sequence[str] | str | None) -> list[str]:
    found = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names or ())
    if not all(isinstance(name, str) for name in found):
        raise ConfigurationError(field, "is no list of options", 'write e.g. ["schema"]')
    return [name for name in found if name]


def _switch(field: str, value: Any) -> bool:
    found = boolean(value)
    if found is None:
        raise ConfigurationError(field, "is neither true nor false", "write true or false")
    return found
