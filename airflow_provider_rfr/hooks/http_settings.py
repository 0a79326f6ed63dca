"""An Airflow connection of type HTTP, as the courier of webhooks wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Address, credentials and headers of the connection.

    :raises ConfigurationError: there is none, or it is of another type, or it has no address
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
    headers = {name: str(value) for name, value in extras_of(connection).items() if name not in _NO_HEADERS}
    return ConnectionSettings(base, connection.login or "", connection.password or "", headers)
