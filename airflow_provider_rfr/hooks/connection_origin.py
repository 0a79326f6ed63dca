"""Where a connection really comes from: a secrets backend and the environment go before Airflow's database.

A backend of Airflow's only reads. One that can also write has a method ``set_conn_value(conn_id, value)``, the
counterpart of Airflow's ``get_conn_value``; a connection that comes from such a one is altered there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionShadowedError

_DATABASE: Final = ("MetastoreBackend", "ExecutionAPISecretsBackend")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who gave the connection.

    :ivar backend: Airflow's secrets backend
    :ivar connection: Airflow's connection
    """

    backend: Any
    connection: Any

    @property
    def is_database(self) -> bool:
        """Whether it is Airflow's own database, here or behind the execution API."""
        return type(self.backend).__name__ in _DATABASE

    @property
    def can_write(self) -> bool:
        """Whether the backend stores connections, too."""
        return callable(getattr(self.backend, "set_conn_value", None))

    @property
    def name(self) -> str:
        """For people."""
        if self.is_database:
            return "Airflow's database"
        kind = type(self.backend).__name__
        return "the environment" if kind == "EnvironmentVariablesBackend" else f"the secrets backend {kind}"


def worker_backends() -> list[Any]:
    """The backends that a task asks, in their order."""
    from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

    return list(ensure_secrets_backend_loaded())


def server_backends() -> list[Any]:
    """The backends that the command line and the API server ask, in their order."""
    from airflow.configuration import ensure_secrets_loaded

    return list(ensure_secrets_loaded())


def origin_of(name: str, backends: Iterable[Any]) -> Origin | None:
    """The first backend that has the connection; None if no one has.

    :raises ConfigurationError: one can't be asked, or what it has is no connection: then nobody knows which one counts
    """
    for backend in backends:
        try:
            found = backend.get_connection(conn_id=name)
        except Exception as error:  # noqa: BLE001 - each backend has errors of its own; they may hold the password
            kind, place = type(error).__name__, Origin(backend, None).name
            raise ConfigurationError(
                f"connection {name}",
                f"can't be read from {place}: {kind}",
                "write it as Airflow's JSON or URI, and see that this answers",
            ) from None
        if found is not None:
            return Origin(backend, found)
    return None


def refuse_shadowed(name: str, origin: Origin) -> None:
    """:raises ConnectionShadowedError: it comes from a place that can't be written"""
    if origin.is_database or origin.can_write:
        return
    place = f"AIRFLOW_CONN_{name.upper()}" if origin.name == "the environment" else type(origin.backend).__name__
    raise ConnectionShadowedError(
        name,
        f"comes from {origin.name} ({place}), which goes before Airflow's database and can't be written from here:"
        " a change in the database would have no effect; change it there, or remove it there",
    )
