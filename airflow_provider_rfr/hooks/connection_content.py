"""An Airflow connection as a definition, and the hash by which copies of it are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rfr.connections.definition import Definition, parsed_extra
from airflow_provider_rfr.connections.hashing import ContentHash
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.fields import read_connection

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.store.engine import ControlStore


def definition_of(connection: Any) -> Definition:
    """Of Airflow's own kinds of connection: the task's, and the database's.

    :raises ConfigurationError: its extra fields are no JSON object, so that none of them can be named
    """
    try:
        extra = parsed_extra(connection.extra)
    except ValueError:
        raise ConfigurationError(
            f"connection {connection.conn_id}: extra", "is no JSON object", "correct it where it is stored"
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
    """The connection as tasks here see it, wherever it comes from; None if there is none.

    :raises ConfigurationError: what is there is no connection
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
    """The definition in memory, as hooks want it."""
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


def content_hash(store: ControlStore) -> ContentHash:
    """Hashes with the installation's key: Airflow's fernet key, so workers and command line have to share it."""
    from airflow_provider_rfr.store.connection_audit import installation_salt

    key = conf.get("core", "fernet_key", fallback="") or ""
    return ContentHash(key.partition(",")[0].encode(), store.run(installation_salt))
