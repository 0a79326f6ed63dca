"""An Airflow connection of type HTTP, as the courier of webhooks wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.fields import connection_named, extras_of

if TYPE_CHECKING:
    from airflow_provider_rfr.webhooks.delivery.calls import ConnectionSettings

_TYPES = ("http", "https")
_NO_HEADERS = frozenset(
    {
        "allow_redirects",
        "cert",
        "check_response",
        "max_redirects",
        "proxies",
        "proxy",
        "srv_lookup",
        "stream",
        "timeout",
        "trust_env",
        "verify",
        "verify_ssl",
    }
)
"""Extra fields that Airflow's HTTP hook reads as options of the request; the others are headers."""


def http_settings(conn_id: str) -> ConnectionSettings:
    """Address, credentials, headers and trusted certificates (``verify``) of the connection.

    :raises ConfigurationError: there is none, it is of another type, it has no address, or a header can't be sent
    """
    from airflow_provider_rfr.webhooks.delivery.calls import ConnectionSettings

    connection = connection_named(conn_id, "connection", "make one of type http, with the endpoint's address as host")
    if connection.conn_type not in _TYPES:
        raise ConfigurationError(
            f"connection {conn_id}", f"is of type {connection.conn_type!r}", "make one of type 'http'"
        )
    if not connection.host:
        raise ConfigurationError(f"connection {conn_id}: host", "is empty", "write e.g. https://hooks.example.com")
    host = connection.host
    base = host if "://" in host else f"{connection.schema or connection.conn_type}://{host}"
    if connection.port:
        base = f"{base.rstrip('/')}:{connection.port}"
    extras = extras_of(connection)
    headers = {name: str(value) for name, value in extras.items() if name not in _NO_HEADERS}
    login, password = connection.login or "", connection.password or ""
    try:
        return ConnectionSettings(base, login, password, headers, _verify(extras))
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {conn_id}: {error.field}", error.problem, error.remedy) from None


def _verify(extras: Mapping[str, Any]) -> bool | str:
    """As Airflow's HTTP hook reads it; a form's field gives text."""
    value = extras.get("verify", extras.get("verify_ssl", True))
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool):
        raise ConfigurationError("verify", "is neither true, false nor text", "write the path of a bundle in PEM")
    return value
