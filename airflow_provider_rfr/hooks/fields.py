"""Finding a connection, what its extra fields hold, and which of them are secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rfr.connections.secret_names import is_secret
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["connection_named", "extras_of", "is_secret", "mapping_extra", "require_type"]


def connection_named(conn_id: str, field: str, remedy: str) -> Connection:
    """The connection of that id.

    :param field: the operator's argument that names it
    :raises ConfigurationError: there is none
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(field, f"there is no connection {conn_id!r}", remedy) from None


def extras_of(connection: Connection) -> dict[str, Any]:
    """The extra fields; a form sends empty ones as null or as empty text, which is left out.

    :raises ConfigurationError: they are no JSON object; the message does not repeat them
    """
    text = connection.extra
    if not text:
        return {}
    try:
        extras = json.loads(text)
    except ValueError:
        extras = None
    if not isinstance(extras, dict):
        raise ConfigurationError(f"{connection.conn_id}.extra", "is no JSON object", 'write e.g. {"page_size": 500}')
    return {str(key): value for key, value in extras.items() if value not in (None, "")}


def mapping_extra(connection: Connection, name: str, value: Any) -> dict[str, Any]:
    """An extra field that holds a JSON object: the API gives the object, a form's text field gives its text.

    :raises ConfigurationError: it is something else
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if value is None or not isinstance(value, Mapping):
        raise ConfigurationError(f"{connection.conn_id}.extra.{name}", "is no JSON object", 'write e.g. {"a": "b"}')
    return dict(value)


def require_type(connection: Connection, wanted: str) -> None:
    """Refuse a connection of another type: its fields would be read with another meaning.

    :raises ConfigurationError: it is of another type
    """
    found = (connection.conn_type or "").replace("-", "_")
    if found != wanted:
        raise ConfigurationError(
            f"connection {connection.conn_id}", f"is of type {found!r}", f"make one of type {wanted!r}"
        )
