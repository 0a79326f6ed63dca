"""Where a connection and its secrets come from.

A secrets backend and the environment take precedence over Airflow's database. A backend that has a method
``set_conn_value(conn_id, value)`` can be altered there. ``SECRET 'backend:key'`` is read from

* ``env:NAME``: environment of the altering process, except Airflow's own settings and connections
* ``variable:NAME``: an Airflow variable
* ``file:NAME``: a file below ``/run/secrets``, or below the folder of ``[rfr] secret_files``
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow.providers.common.compat.sdk import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets, read_connection
from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import ContentHash, Definition, parsed_extra, type_named
from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionConflictError, ConnectionShadowedError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.store.engine import ControlStore


def definition_of(connection: Any) -> Definition:
    """Return the definition of one of Airflow's connection objects: the task's, or the database's.

    :raises ConfigurationError: its extra fields are not a JSON object, so none of them can be named
    """
    try:
        extra = parsed_extra(connection.extra)
    except ValueError:
        raise ConfigurationError(
            f"connection {connection.conn_id}: extra", "is not a JSON object", "correct it where it is stored"
        ) from None
    return Definition(
        str(connection.conn_id),
        str(connection.conn_type or ""),
        connection.host or None,
        connection.port,
        connection.login or None,
        connection.password or None,
        connection.schema or None,
        getattr(connection, "description", None),
        extra,
    )


def find_definition(name: str) -> Definition | None:
    """Find the connection as tasks here see it, wherever it comes from; return None if there is none.

    :raises ConfigurationError: it can't be read as a connection
    """
    try:
        return definition_of(read_connection(name))
    except AirflowNotFoundException:
        return None
    except (TypeError, ValueError) as error:
        # The error may hold the whole text, password included.
        kind = type(error).__name__
        raise ConfigurationError(
            f"connection {name}", f"can't be read: {kind}", "write it as Airflow's JSON or URI"
        ) from None


def as_connection(definition: Definition) -> Connection:
    """Return the definition as the connection object that hooks take; store nothing."""
    from airflow.sdk import Connection

    return Connection(
        conn_id=definition.name,
        conn_type=definition.conn_type,
        description=definition.description,
        host=definition.host,
        login=definition.login,
        password=definition.password,
        schema=definition.schema,
        port=definition.port,
        extra=definition.extra_text(),
    )


def fields_of(definition: Definition) -> dict[str, Any]:
    """Return all fields of a connection but its id, in Airflow's JSON: one that is left out would stay as it was."""
    names = ("conn_type", "description", "host", "login", "schema", "port", "password")
    return {**{name: getattr(definition, name) for name in names}, "extra": json.dumps(dict(definition.extra))}


def content_hash(store: ControlStore) -> ContentHash:
    """Return a hash with the installation's key: Airflow's Fernet key, which workers and command line must share."""
    from airflow_provider_rfr.store.connections import installation_salt

    # Of several keys, the first one encrypts, and the others are being replaced.
    key = conf.get("core", "fernet_key", fallback="") or ""
    return ContentHash(key.partition(",")[0].encode(), store.run(installation_salt))


_DATABASE: Final = ("MetastoreBackend", "ExecutionAPISecretsBackend")


@dataclass(frozen=True, slots=True)
class ConnectionOrigin:
    """The place that a connection comes from.

    :ivar backend: the secrets backend of Airflow's that has it
    :ivar connection: Airflow's connection object
    """

    backend: Any
    connection: Any

    @property
    def is_database(self) -> bool:
        """Tell whether it is Airflow's own database, reached directly or through the execution API."""
        return type(self.backend).__name__ in _DATABASE

    @property
    def can_write(self) -> bool:
        return callable(getattr(self.backend, "set_conn_value", None))

    @property
    def name(self) -> str:
        """Return the name for messages."""
        if self.is_database:
            return "Airflow's database"
        kind = type(self.backend).__name__
        return "the environment" if kind == "EnvironmentVariablesBackend" else f"the secrets backend {kind}"

    def refuse_shadowed(self, name: str) -> None:
        """Refuse a connection that takes precedence over Airflow's database and can't be written from here.

        :raises ConnectionShadowedError: the connection comes from a place that can't be written
        """
        if self.is_database or self.can_write:
            return
        place = f"AIRFLOW_CONN_{name.upper()}" if self.name == "the environment" else type(self.backend).__name__
        raise ConnectionShadowedError(
            name,
            f"comes from {self.name} ({place}), which goes before Airflow's database and can't be written from here:"
            " a change in the database would have no effect; change it there, or remove it there",
        )

    def require_database(self, name: str) -> None:
        """Refuse a connection that is to be renamed or dropped, and is not in Airflow's database.

        :raises ConnectionShadowedError: it comes from another place
        """
        if not self.is_database:
            raise ConnectionShadowedError(name, f"comes from {self.name}: rename or drop it there")

    def write(self, candidate: Definition) -> None:
        """Store the candidate in the secrets backend."""
        self.backend.set_conn_value(candidate.name, json.dumps(fields_of(candidate)))


def changed_meanwhile(name: str) -> ConnectionConflictError:
    """Return the error of a connection that is not as it was read."""
    return ConnectionConflictError(name, "another process changed it meanwhile; try again")


def worker_backends() -> list[Any]:
    """Return the backends of a task, in the order in which they are asked."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    return list(ensure_secrets_backend_loaded())


def server_backends() -> list[Any]:
    """Return the backends of the command line and the API server, in the order in which they are asked."""
    from airflow.configuration import ensure_secrets_loaded

    return list(ensure_secrets_loaded())


def origin_of(name: str, backends: Iterable[Any]) -> ConnectionOrigin | None:
    """Return the first backend that has the connection; None if none has.

    :raises ConfigurationError: a backend does not answer, or does not have a valid connection
    """
    for backend in backends:
        try:
            connection = backend.get_connection(conn_id=name)
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own; they may hold the password
            kind, place = type(error).__name__, ConnectionOrigin(backend, None).name
            raise ConfigurationError(
                f"connection {name}",
                f"can't be read from {place}: {kind}",
                "write it as Airflow's JSON or URI, and see that this answers",
            ) from None
        if connection is not None:
            return ConnectionOrigin(backend, connection)
    return None


_SHORTEST: Final = 4
_NEVER: Final = ("env:AIRFLOW_*", "env:_AIRFLOW*")
"""Airflow's own settings and connections."""


class SecretReader:
    """A reader of secrets; each is masked in this process's log from then on.

    :param variable: returns Airflow's variable of that name, or None
    """

    def __init__(self, variable: Callable[[str], str | None]) -> None:
        self._readers: dict[str, Callable[[str], str | None]] = {
            "env": os.environ.get,
            "variable": variable,
            "file": _read_file,
        }

    def read(self, reference: SecretReference) -> str:
        """Read a secret's value, and have it masked in logs.

        :raises ConfigurationError: there is no such backend, or nothing there
        """
        reader = self._readers.get(reference.backend)
        if reader is None:
            remedy = f"use one of {', '.join(self._readers)}"
            raise ConfigurationError(f"SECRET '{reference}'", "names an unknown backend", remedy)
        value = reader(reference.key)
        if not value:
            raise ConfigurationError(f"SECRET '{reference}'", "is not there, or empty", "set it where this runs")
        mask_secrets([value])
        return value


def not_allowed(secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
    """Return the secrets that connections may not be given: ``[rfr] connection_secrets`` lists the allowed ones.

    A user who chooses both host and secret of a connection could read the secret at that host.
    """
    text = conf.get("rfr", "connection_secrets", fallback="") or "*"
    allowed = [pattern.strip() for pattern in text.split(",") if pattern.strip()]

    def matches(reference: SecretReference, patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(str(reference), pattern) for pattern in patterns)

    return [secret for secret in secrets if matches(secret, _NEVER) or not matches(secret, allowed)]


def _read_file(name: str) -> str | None:
    folder = Path(conf.get("rfr", "secret_files", fallback="") or "/run/secrets").resolve()
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return None
        return file.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        # A decoding error holds the file's content.
        raise ConfigurationError(
            f"SECRET 'file:{name}'", f"can't be read: {type(error).__name__}", "give a readable file of UTF-8 text"
        ) from None


def secret_texts(definition: Definition) -> list[str]:
    """Return secret values of the definition, also those within lists and JSON, plain and as quoted in URLs."""
    connection_type = type_named(definition.conn_type)
    secrets = [secret for name, value in definition.options() for secret in connection_type.secret_values(name, value)]
    # To mask a shorter one, such as a header with a version, would spoil any text.
    texts = [text for secret in secrets for text in _texts(secret) if len(text) >= _SHORTEST]
    return list(dict.fromkeys(form for text in texts for form in (text, quote(text), quote(text, safe=""))))


def _texts(value: Any) -> Iterator[str]:
    """Yield the value's text, and that of its parts; booleans are not secret."""
    if isinstance(value, str):
        with suppress(ValueError):
            parsed = json.loads(value)
            if isinstance(parsed, (dict, list)):
                yield from _texts(parsed)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif not isinstance(value, bool) and value not in (None, ""):
        yield str(value)


def masked(text: str, definition: Definition) -> str:
    """Remove the definition's secrets from the text."""
    # The longest first: a secret may contain another one, and its rest would be left readable.
    for secret in sorted(secret_texts(definition), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
