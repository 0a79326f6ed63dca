"""Airflow's own database, as the command line reaches it; a task on a worker can't."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import conf

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

CONNECTION_VARIABLE: Final = "AIRFLOW_CONN_"


def can_be_reached() -> bool:
    """Tell whether this process has Airflow's database; a task on a worker does not have it."""
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
