"""The hook that finds the control store: by a connection, a setting of Airflow, or a file in ``AIRFLOW_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.sdk import BaseHook
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_provider_rfr.connections.airflow.lookup import extras_of, mask_secrets, read_connection, why_unreadable
from airflow_provider_rfr.connections.types import LIBPQ_OPTIONS
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_rfr.store.engine import ControlStore

_DRIVERS = {"postgres": "postgresql+psycopg2", "postgresql": "postgresql+psycopg2", "sqlite": "sqlite"}


class ControlStoreHook(BaseHook):
    """A hook that opens the control store.

    The control store is looked up in this order: the connection, which need not exist if its id is the default; the
    option ``control_store`` of section ``[rfr]`` in Airflow's configuration (a SQLAlchemy URL); a SQLite file in
    ``AIRFLOW_HOME``, which works for one machine only.

    PostgreSQL's driver is given the extra fields ``sslmode``, ``sslrootcert``, ``sslcert``, ``sslkey``, ``service``,
    ``connect_timeout``, ``tcp_user_timeout`` and ``keepalives...``; a connection with others is refused.

    :param control_store_conn_id: a connection of type postgres or sqlite; None for ``rfr_control_store``
    """

    conn_name_attr = "control_store_conn_id"
    default_conn_name = "rfr_control_store"

    def __init__(self, control_store_conn_id: str | None = None) -> None:
        super().__init__()
        self.control_store_conn_id = control_store_conn_id or self.default_conn_name

    def get_store(self) -> ControlStore:
        """Open the store; create its tables where they are missing.

        :raises ConfigurationError: the connection or the option does not name a usable database
        """
        from airflow_provider_rfr.store.engine import open_store

        return open_store(self.url.render_as_string(hide_password=False))

    get_conn = get_store

    @property
    def url_for_driver(self) -> str:
        """Return the database's address with its password, for a driver's private file."""
        if self.url.password:
            mask_secrets([str(self.url.password)])
        return self.url.render_as_string(hide_password=False)

    def is_there(self) -> bool:
        """Tell whether the store exists, without creating it. A SQLite file may not exist yet."""
        file = self.url.database
        return self.url.get_backend_name() != "sqlite" or file in (None, "", ":memory:") or Path(file).exists()

    @cached_property
    def url(self) -> URL:
        """Return the database's address, read once.

        It holds the password, so print it only by SQLAlchemy's ``repr``, which masks it.

        :raises ConfigurationError: the connection or the option does not name a usable database
        """
        try:
            connection = read_connection(self.control_store_conn_id)
        except AirflowNotFoundException:
            name = self.control_store_conn_id
            # A connection that exists but can't be read must not be replaced by another store.
            reason = why_unreadable(name)
            if reason is None and name == self.default_conn_name:
                return _configured_url()
            missing = f"there is no connection {name!r}", "make one of type postgres, or leave the argument out"
            raise ConfigurationError("control_store_conn_id", *(reason or missing)) from None
        driver = _DRIVERS.get(connection.conn_type or "")
        if driver is None:
            raise ConfigurationError(
                f"connection {connection.conn_id}", f"is of type {connection.conn_type!r}", "use postgres or sqlite"
            )
        extras = extras_of(connection)
        _refuse_unread(f"connection {connection.conn_id}", extras, () if driver == "sqlite" else LIBPQ_OPTIONS)
        if driver == "sqlite":
            path = connection.host or connection.schema
            if not path:
                raise ConfigurationError(f"connection {connection.conn_id}: host", "is empty", "write the file's path")
            return URL.create(driver, database=path)
        return URL.create(
            driver,
            username=connection.login or None,
            password=connection.password or None,
            host=connection.host or None,
            port=connection.port,
            database=connection.schema or None,
            query={option: str(extras[option]) for option in LIBPQ_OPTIONS if option in extras},
        )


def _refuse_unread(name: str, extras: Mapping[str, object], read: Sequence[str]) -> None:
    for unread in sorted(extras.keys() - set(read)):
        remedy = f"leave it out; what is read is {', '.join(read)}" if read else "leave it out"
        raise ConfigurationError(f"{name}: {unread}", "is not read by the control store", remedy)


def _configured_url() -> URL:
    text = conf.get("rfr", "control_store", fallback="") or ""
    if not text:
        home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
        return URL.create("sqlite", database=str(Path(home).expanduser() / "rfr_control_store.db"))
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "[rfr] control_store", "is not a database URL", "write e.g. postgresql+psycopg2://user:password@host/name"
        ) from None
