"""A statement from Python arguments: names and values in mappings and lists, as in DAGs and forms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    boolean,
    duration,
    name_of,
    parse_statement,
    parts_of,
)
from airflow_provider_rfr.connections.types import may_be_secret, type_named
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConfigurationError, Problem, StatementError
from airflow_provider_rfr.http.redaction import is_secret_extra


def statement_from(
    statement: str | None = None,
    *,
    connection: str | None = None,
    set: Mapping[str, Any] | str | None = None,
    drop: Sequence[str] | str | None = None,
    reset: Sequence[str] | str | None = None,
    if_exists: Any = False,
    **settings: Any,
) -> Statement:
    """Return the statement, from its text or from a connection's id and options.

    :param set: values by option; text must be a JSON object
    :param drop: options, as ``reset``; text may name several, separated by commas
    :param settings: those of :func:`settings_with`
    :raises ConfigurationError: the field, the problem, and the remedy
    """
    may_be_missing = _boolean("if_exists", if_exists)
    if statement:
        if connection or set or drop or reset:
            problem = "can't be combined with connection, set, drop or reset"
            raise ConfigurationError("statement", problem, "use one form")
        parsed = parse_statement(statement)
        if_exists = parsed.if_exists or may_be_missing
        return replace(parsed, settings=settings_with(parsed.settings, **settings), if_exists=if_exists)
    if connection and not isinstance(connection, str):
        # A DAG that renders templates to native types makes a number of an id such as 42.
        problem = f"must be text, not {type(connection).__name__}"
        raise ConfigurationError("connection", problem, 'use a statement, with the id as "..." in it')
    if not connection:
        raise ConfigurationError("connection", "must be set", "give its id, or a statement")
    actions = [
        *(Action(ActionKind.SET, name, _value(value)) for name, value in _flat("", _mapping(set))),
        *(Action(ActionKind.DROP, name) for name in _names("drop", drop)),
        *(Action(ActionKind.RESET, name) for name in _names("reset", reset)),
    ]
    return Statement(Verb.ALTER, connection, may_be_missing, tuple(actions), settings_with(Settings(), **settings))


def settings_with(
    settings: Settings,
    *,
    validate: Any = True,
    restart: Any = True,
    dry_run: Any = False,
    new_identity: Any = False,
    drain_timeout: Any = None,
) -> Settings:
    """Combine the settings of a statement with arguments: the more careful of two booleans counts.

    :param drain_timeout: counts where the statement has the default
    :raises ConfigurationError: the field, the problem, and the remedy
    """
    seconds = duration(DRAIN_SECONDS if drain_timeout is None else drain_timeout)
    if seconds is None:
        raise ConfigurationError("drain_timeout", "must be a duration", "write e.g. 10m")
    return Settings(
        validate=_boolean("validate", validate) and settings.validate,
        restart=_boolean("restart", restart) and settings.restart,
        dry_run=_boolean("dry_run", dry_run) or settings.dry_run,
        new_identity=_boolean("new_identity", new_identity) or settings.new_identity,
        drain_timeout=seconds if settings.drain_timeout == DRAIN_SECONDS else settings.drain_timeout,
    )


def check_plain(statement: Statement) -> None:
    """Refuse plain secrets while the DAG is parsed, as far as names show them: DAGs are shown to their readers.

    :raises AlterationRefusedError: with every such option
    """
    remedy = "write SECRET 'env:NAME', or use parameters"
    problems = [
        Problem(name, "is secret and must not be plain text", remedy)
        for name, value in statement.set.items()
        if is_secret_extra(name) and not isinstance(value, (SecretReference, Parameter))
    ]
    if problems:
        raise AlterationRefusedError(statement.connection, problems)


def plain_texts(statement: Statement, conn_type: str | None) -> Iterator[str]:
    """Yield plain values that may be secret, so that they can be masked before the statement is refused.

    :param conn_type: of the connection; None where it is unknown, which hides the most
    """
    connection_type = type_named(conn_type or "http")
    for action in statement.actions:
        value = action.value
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            is_named = may_be_secret(action.option)
            option = connection_type.full_name(action.option)
            values = [value] if is_named else connection_type.secret_values(option, value)
            yield from (str(secret) for secret in values if len(str(secret)) > 2)


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError:
            value = value.strip()
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError("set", "must be a mapping", 'write e.g. {"port": 5433}')
    return value


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield options with full names: ``{"extra": {"a": 1}}`` is the option ``extra.a``.

    A dot in the name of a nested field is part of that name.
    """
    for name, value in values.items():
        full = f"{place}.{name_of([str(name)])}" if place else _lower(str(name))
        if isinstance(value, Mapping) and value and parts_of(full)[0] == "extra":
            yield from _flat(full, value)
        else:
            yield full, value


def _lower(option: str) -> str:
    """Convert a field's name to lower case: it may be written in any case, as in a statement."""
    first, *more = parts_of(option)
    return name_of([first.lower(), *more])


def _value(value: Any) -> Value:
    """Return the value; a reference or a parameter may be written as in a statement."""
    if isinstance(value, str) and (value.upper().startswith("SECRET ") or value.startswith(":")):
        try:
            actions = parse_statement(f"ALTER CONNECTION c SET (a = {value})").actions
        except StatementError:
            return value
        return actions[0].value if len(actions) == 1 else value
    plain: Value = value
    return plain


def _names(field: str, names: Sequence[str] | str | None) -> list[str]:
    options = [part.strip() for part in names.split(",")] if isinstance(names, str) else names or ()
    if not isinstance(options, (list, tuple)) or not all(isinstance(name, str) for name in options):
        raise ConfigurationError(field, "must be a list of options", 'write e.g. ["schema"]')
    return [_lower(name) for name in options if name]


def _boolean(field: str, value: Any) -> bool:
    result = boolean(value)
    if result is None:
        raise ConfigurationError(field, "must be a boolean", "write true or false")
    return result
