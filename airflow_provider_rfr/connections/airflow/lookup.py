"""Lookup of Airflow's connections: their addresses and extra fields, the masking of secret ones; Airflow's database."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from sqlalchemy.orm import Session

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
    """Silence Airflow's warnings of values that are too short to be masked.

    Airflow masks every extra field of a connection, so that each task would warn of ``type: sql``.
    """
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def mask_secrets(values: Iterable[Any]) -> None:
    """Have Airflow mask these in logs from here on; None and empty values are skipped."""
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
    :raises ConfigurationError: there is none
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
    extras = _json_object(connection.extra or "{}")
    if extras is None:
        raise ConfigurationError(f"{connection.conn_id}.extra", "is not a JSON object", 'write e.g. {"page_size": 500}')
    return {str(key): value for key, value in extras.items() if value not in (None, "")}


def mapping_extra(connection: Connection, name: str, value: Any) -> dict[str, Any]:
    """Return an extra field that holds a JSON object: the API gives the object, a form's text field gives its text.

    :raises ConfigurationError: it is something else
    """
    mapping = _json_object(value)
    if mapping is None:
        raise ConfigurationError(f"{connection.conn_id}.extra.{name}", "is not a JSON object", 'write e.g. {"a": "b"}')
    return mapping


def _json_object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return dict(value) if isinstance(value, Mapping) else None


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
    """Return the host field as an address, with the port of its own field; the errors repeat nothing of it.

    :param scheme: where the host names none
    :raises ConfigurationError: it is not a web address, names credentials, which would be shown, or another port
    """
    field, text = f"connection {connection.conn_id}: host", str(connection.host).strip()
    # An IPv6 address without brackets, of which a parser would take the last part for a port.
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
    """Return the host field as an address; without a scheme it is https, or that of the schema field.

    :raises ConfigurationError: as :func:`web_address`
    """
    scheme = connection.schema if connection.schema in ("http", "https") else "https"
    return web_address(connection, scheme).rstrip("/")


def http_address(connection: Connection) -> str:
    """Return the host field as an address, with the scheme and the port of their own fields where it has none.

    ``generic`` is what ``airflow connections add --conn-type http`` stores without Airflow's HTTP provider.

    :raises ConfigurationError: the type of the connection has no address, the host is empty, or as :func:`web_address`
    """
    kind = (connection.conn_type or "").replace("-", "_")
    # Of the others, Airflow's HTTP hook assumes http.
    schemes = {"rfr_http": "https", "http": "http", "https": "https", "generic": "http"}
    name = f"connection {connection.conn_id}"
    if kind not in schemes:
        raise ConfigurationError(name, f"is of type {kind!r}", "make one of type 'rfr_http'")
    if not (connection.host or "").strip():
        raise ConfigurationError(f"{name}: host", "is empty", "write e.g. https://hooks.example.com")
    return web_address(connection, connection.schema or schemes[kind])


def can_be_reached() -> bool:
    """Tell whether this process has Airflow's database; a task on a worker does not have it."""
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

    Of Airflow's database only where this process has one.
    """
    variable = CONNECTION_VARIABLE + name.upper()
    if os.environ.get(variable):
        return f"{name!r} can't be read from the variable {variable}", "write a connection's URI, or its fields as JSON"
    if not can_be_reached():
        return None
    from airflow.models import Connection
    from sqlalchemy import inspect, select
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with session_of_airflow() as session:
            # A machine that only runs tasks may have settings of a database that nobody ever made.
            if inspect(session.connection()).has_table(Connection.__tablename__):
                session.execute(select(Connection).where(Connection.conn_id == name)).scalar_one_or_none()
    except SQLAlchemyError:
        return f"{name!r} can't be read, Airflow's database does not answer", "see airflow db check"
    except Exception:  # noqa: BLE001 - Fernet's errors, and Airflow's own for a key that is none
        problem = f"{name!r} can't be decrypted with this machine's [core] fernet_key"
        return problem, "set the key with which it was stored, or store it again"
    return None
