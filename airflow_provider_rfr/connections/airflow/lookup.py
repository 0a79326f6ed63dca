"""Lookup of Airflow's connections: their origins, fields and addresses; and reading and masking of secrets.

A secrets backend and the environment take precedence over Airflow's database. ALTER CONNECTION can write a backend that
has a method ``set_conn_value(conn_id, value)``. ``SECRET 'backend:key'`` is read from

* ``env:NAME``: environment of the altering process, except Airflow's own settings and connections
* ``variable:NAME``: an Airflow variable
* ``file:NAME``: a file below ``/run/secrets``, or below the folder of ``[rfr] secret_files``
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_provider_rfr.connections.statement import SecretReference
from airflow_provider_rfr.connections.types import ContentHash, Definition, object_in, type_named
from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionConflictError, ConnectionShadowedError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.store.engine import ControlStore

CONNECTION_VARIABLE: Final = "AIRFLOW_CONN_"
_IPV6 = frozenset("0123456789abcdefABCDEF:.")
_is_quiet: ContextVar[bool] = ContextVar("rfr_quiet_masking", default=False)


class _ShortValueFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (_is_quiet.get() and "too short" in str(record.msg))


# Airflow has two copies of its masker, for the server and for tasks.
for _package in ("airflow", "airflow.sdk"):
    logging.getLogger(f"{_package}._shared.secrets_masker.secrets_masker").addFilter(_ShortValueFilter())


@contextmanager
def quiet_masking() -> Iterator[None]:
    """Silence Airflow's warnings about values that are too short to be masked.

    Airflow masks every extra field of a connection, so each task would warn about values such as ``sql``.
    """
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def mask_secrets(values: Iterable[Any]) -> None:
    """Have Airflow mask these values in logs from here on; None and empty values are skipped."""
    with quiet_masking():
        for value in values:
            if value:
                mask_secret(value)


def read_connection(conn_id: str) -> Connection:
    """Return the connection; raise Airflow's own error where there is none."""
    with quiet_masking():
        return BaseHook.get_connection(conn_id)


def connection_named(conn_id: str, field: str, remedy: str) -> Connection:
    """Return the connection of that id.

    :param field: the operator's argument that names it
    :param remedy: advice of the error for a connection that is missing
    :raises ConfigurationError: there is no such connection, or it can't be read
    """
    try:
        return read_connection(conn_id)
    except AirflowNotFoundException:
        problem, cure = why_unreadable(conn_id) or (f"there is no connection {conn_id!r}", remedy)
        raise ConfigurationError(field, problem, cure) from None


def extras_of(connection: Connection) -> dict[str, Any]:
    """Return the extra fields without empty ones, which a form sends as null or as empty text.

    :raises ConfigurationError: they are not a JSON object; the message does not repeat them
    """
    extras = object_in(connection.extra or "{}")
    if extras is None:
        raise ConfigurationError(f"{connection.conn_id}.extra", "is not a JSON object", 'write e.g. {"page_size": 500}')
    return {str(key): value for key, value in extras.items() if value not in (None, "")}


def mapping_extra(connection: Connection, name: str, value: Any) -> dict[str, Any]:
    """Return an extra field that holds a JSON object, which Airflow's API stores as an object and a form as text.

    :raises ConfigurationError: the value is not a JSON object
    """
    mapping = object_in(value)
    if mapping is None:
        raise ConfigurationError(f"{connection.conn_id}.extra.{name}", "is not a JSON object", 'write e.g. {"a": "b"}')
    return dict(mapping)


def require_type(connection: Connection, wanted: str) -> None:
    """Refuse a connection of another type, whose fields would be misread.

    :raises ConfigurationError: it is of another type
    """
    conn_type = (connection.conn_type or "").replace("-", "_")
    if conn_type != wanted:
        raise ConfigurationError(
            f"connection {connection.conn_id}", f"is of type {conn_type!r}", f"make one of type {wanted!r}"
        )


def web_address(connection: Connection, scheme: str) -> str:
    """Return the host field as a URL, with the port of the port field; errors do not repeat the host.

    :param scheme: the scheme if the host has none
    :raises ConfigurationError: the host is not a web address, holds credentials, which would be shown, or has another
        port than the port field
    """
    field, text = f"connection {connection.conn_id}: host", str(connection.host).strip()
    # A URL parser would take the last part of an IPv6 address without brackets for a port.
    if text.count(":") > 1 and set(text) <= _IPV6:
        text = f"[{text}]"
    try:
        parts = urlsplit(text if "://" in text else f"{scheme}://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or parts.scheme not in ("http", "https"):
        raise ConfigurationError(field, "is not a web address", "write e.g. https://api.example.com/v1")
    if parts.username or parts.password:
        raise ConfigurationError(field, "holds credentials", "put them into login and password")
    if connection.port and port is None:
        parts = parts._replace(netloc=f"{parts.netloc}:{connection.port}")
    elif connection.port and port != connection.port:
        problem = f"names port {port}, and the field port is {connection.port}"
        raise ConfigurationError(field, problem, "write the port once")
    return parts.geturl()


def base_url(connection: Connection) -> str:
    """Return the host field as a URL without a trailing slash; its scheme defaults to the schema field, else https.

    :raises ConfigurationError: as :func:`web_address`
    """
    scheme = connection.schema if connection.schema in ("http", "https") else "https"
    return web_address(connection, scheme).rstrip("/")


def http_address(connection: Connection) -> str:
    """Return the host field as a URL, with scheme and port from the schema and port fields where it has none.

    ``generic`` is what ``airflow connections add --conn-type http`` stores without Airflow's HTTP provider.

    :raises ConfigurationError: the type of the connection has no address, the host is empty, or as :func:`web_address`
    """
    kind = (connection.conn_type or "").replace("-", "_")
    # Types other than rfr_http have the default of Airflow's HTTP hook.
    schemes = {"rfr_http": "https", "http": "http", "https": "https", "generic": "http"}
    name = f"connection {connection.conn_id}"
    if kind not in schemes:
        raise ConfigurationError(name, f"is of type {kind!r}", "make one of type 'rfr_http'")
    if not (connection.host or "").strip():
        raise ConfigurationError(f"{name}: host", "is empty", "write e.g. https://hooks.example.com")
    return web_address(connection, connection.schema or schemes[kind])


def has_airflow_database() -> bool:
    """Tell whether this process can open Airflow's database; a task on a worker can't."""
    # Airflow's supervisor sets this address in the process of a task.
    return not str(conf.get("database", "sql_alchemy_conn", fallback="")).startswith("airflow-db-not-allowed")


@contextmanager
def session_of_airflow() -> Iterator[Session]:
    """Open a session of Airflow's database, and commit it at its end."""
    from airflow.utils.session import create_session

    make: Callable[[], Any] = create_session
    with make() as session:
        yield session


def why_unreadable(name: str) -> tuple[str, str] | None:
    """Explain why a connection can't be read that Airflow reports as missing.

    Return the problem and its remedy; None where Airflow is right. Airflow's database is asked only where this process
    has one.
    """
    variable = CONNECTION_VARIABLE + name.upper()
    if os.environ.get(variable):
        return f"{name!r} can't be read from the variable {variable}", "write a connection's URI, or its fields as JSON"
    if not has_airflow_database():
        return None
    from airflow.models import Connection
    from sqlalchemy import inspect, select
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with session_of_airflow() as session:
            # A machine that only runs tasks may be configured with a database that was never created.
            if inspect(session.connection()).has_table(Connection.__tablename__):
                session.execute(select(Connection).where(Connection.conn_id == name)).scalar_one_or_none()
    except SQLAlchemyError:
        return f"{name!r} can't be read, Airflow's database does not answer", "see airflow db check"
    except Exception:  # noqa: BLE001 - Fernet's errors, and Airflow's own for a key that is none
        problem = f"{name!r} can't be decrypted with this machine's [core] fernet_key"
        return problem, "set the key with which it was stored, or store it again"
    return None


def definition_of(connection: Any) -> Definition:
    """Return the definition of one of Airflow's connection objects: the task's, or the database's.

    :raises ConfigurationError: its extra fields are not a JSON object, so none of them can be named
    """
    extra = object_in(connection.extra or "{}")
    if extra is None:
        raise ConfigurationError(
            f"connection {connection.conn_id}: extra", "is not a JSON object", "correct it where it is stored"
        )
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

    return Connection(conn_id=definition.name, extra=definition.extra_text(), **_plain_fields(definition))


def fields_of(definition: Definition) -> dict[str, Any]:
    """Return all fields of a connection but its id, in Airflow's JSON; an update keeps a field that is left out."""
    return {**_plain_fields(definition), "extra": json.dumps(dict(definition.extra))}


def _plain_fields(definition: Definition) -> dict[str, Any]:
    names = ("conn_type", "description", "host", "login", "schema", "port", "password")
    return {name: getattr(definition, name) for name in names}


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

    :ivar backend: Airflow's secrets backend that has it
    :ivar connection: Airflow's connection object
    """

    backend: Any
    connection: Any

    @property
    def is_database(self) -> bool:
        """Tell whether the place is Airflow's own database, reached directly or through the execution API."""
        return type(self.backend).__name__ in _DATABASE

    @property
    def can_write(self) -> bool:
        return callable(getattr(self.backend, "set_conn_value", None))

    @property
    def name(self) -> str:
        """Return the name of the place for messages."""
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
    """Return the error for a connection that changed since it was read."""
    return ConnectionConflictError(name, "another process changed it meanwhile; try again")


def worker_backends() -> list[Any]:
    """Return the secrets backends of a task, in lookup order."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    return list(ensure_secrets_backend_loaded())


def server_backends() -> list[Any]:
    """Return the secrets backends of the command line and the API server, in lookup order."""
    from airflow.configuration import ensure_secrets_loaded

    return list(ensure_secrets_loaded())


def origin_of(name: str, backends: Iterable[Any]) -> ConnectionOrigin | None:
    """Return the origin of the connection: the first backend that has it; None if no backend has it.

    :raises ConfigurationError: a backend does not answer, or has a connection that is not valid
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
"""Airflow's own settings and connections, which no connection may be given."""


def read_secret(variable: Callable[[str], str | None], reference: SecretReference) -> str:
    """Read a secret's value, and have it masked in logs.

    :param variable: returns Airflow's variable of that name, or None
    :raises ConfigurationError: the backend is unknown, or has no value for the key
    """
    readers: dict[str, Callable[[str], str | None]]
    readers = {"env": os.environ.get, "variable": variable, "file": _read_file}
    if reference.backend not in readers:
        remedy = f"use one of {', '.join(readers)}"
        raise ConfigurationError(f"SECRET '{reference}'", "names an unknown backend", remedy)
    value = readers[reference.backend](reference.key)
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
    # Masking a shorter value, such as a version in a header, would make any text unreadable.
    texts = [text for secret in secrets for text in _texts(secret) if len(text) >= _SHORTEST]
    return list(dict.fromkeys(form for text in texts for form in (text, quote(text), quote(text, safe=""))))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value, nested ones included; booleans are not secret."""
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
    """Replace the definition's secrets in the text by asterisks."""
    # The longest first: a secret may contain a shorter one, and the rest of it would stay readable.
    for secret in sorted(secret_texts(definition), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
