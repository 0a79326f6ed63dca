"""The same where Airflow's database can be reached: at the command line, and in a DAG that is run by hand.

Who is there may do everything, so no rights are asked but those to secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.connections.ports import Stored
from airflow_provider_rfr.connections.references import references_of
from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionConflictError
from airflow_provider_rfr.hooks.connection_content import definition_of
from airflow_provider_rfr.hooks.connection_origin import origin_of, refuse_shadowed, server_backends
from airflow_provider_rfr.hooks.connection_secrets import not_allowed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.connections.definition import Definition
    from airflow_provider_rfr.connections.hashing import ContentHash
    from airflow_provider_rfr.connections.statement import SecretReference
    from airflow_provider_rfr.store.connections import TaskRef

_FIELDS = ("host", "port", "login", "schema", "description")


def can_be_reached() -> bool:
    """Whether this process has Airflow's database; a task on a worker has not."""
    from airflow.providers.common.compat.sdk import conf

    return not str(conf.get("database", "sql_alchemy_conn", fallback="")).startswith("airflow-db-not-allowed")


class DatabaseGateway:
    """Gateway and authority by Airflow's database; its transaction is the compare-and-set."""

    def read(self, name: str) -> Stored | None:
        """:raises ConnectionShadowedError: it comes from a place that can't be written"""
        origin = origin_of(name, server_backends())
        if origin is None:
            return None
        refuse_shadowed(name, origin)
        if not origin.is_database:
            return Stored(definition_of(origin.connection), origin.name)
        with _session() as session:
            row = _row(session, name)
            return None if row is None else Stored(definition_of(row), origin.name)

    def find(self, name: str) -> Definition | None:
        """Any connection, wherever it comes from."""
        origin = origin_of(name, server_backends())
        return None if origin is None else definition_of(origin.connection)

    def referring(self, name: str) -> Sequence[str]:
        """Ids of the database's connections that name this one."""
        from airflow.models import Connection
        from sqlalchemy import select

        with _session() as session:
            rows = session.scalars(select(Connection)).all()
            return [str(row.conn_id) for row in rows if _refers(row, name)]

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Nobody comes between the look and the change: the row is locked."""
        origin = origin_of(candidate.name, server_backends())
        if origin is not None and not origin.is_database:
            if hashes.of(definition_of(origin.connection)) != expected:
                raise ConnectionConflictError(candidate.name, "somebody else changed it meanwhile; try again")
            origin.backend.set_conn_value(candidate.name, _json(candidate))
            return
        with _session() as session:
            _put(_expected(session, expected, hashes, candidate.name), candidate)

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        """Airflow tests connections through its API only."""
        return False

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        """:raises ConnectionConflictError: the new name is taken"""
        with _session() as session:
            row = _expected(session, expected, hashes, definition.name)
            if _row(session, new_name) is not None:
                raise ConnectionConflictError(definition.name, f"there is a {new_name!r} already")
            row.conn_id = new_name

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """None: the database is open to who is here."""
        return []

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        """Those that the installation does not give to connections."""
        return not_allowed(secrets)


class DatabaseTasks:
    """Tasks by Airflow's database."""

    def state(self, task: TaskRef) -> str | None:
        """As Airflow names it; ``gone`` if it is not there."""
        with _session() as session:
            found = _instance(session, task)
            return "gone" if found is None else str(found.state or "scheduled")

    def start(self, task: TaskRef) -> None:
        """Clear it, and what failed only because it did.

        :raises ConfigurationError: it is not there any more
        """
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from sqlalchemy import select

        with _session() as session:
            found = _instance(session, task)
            if found is None:
                raise ConfigurationError(str(task), "is not there any more", "start its DAG")
            of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
            blocked = session.scalars(select(TaskInstance).where(*of_run, TaskInstance.state == "upstream_failed"))
            clear_task_instances([found, *blocked], session)


def variable(name: str) -> str | None:
    """Airflow's variable of that name."""
    from airflow.models import Variable

    found: Any = Variable.get(name, default_var=None)
    return None if found is None else str(found)


def _refers(row: Any, name: str) -> bool:
    try:
        return name in references_of(definition_of(row)).values()
    except ConfigurationError:
        return False


def _expected(session: Session, expected: str, hashes: ContentHash, name: str) -> Any:
    row = _row(session, name, lock=True)
    if row is None or hashes.of(definition_of(row)) != expected:
        raise ConnectionConflictError(name, "somebody else changed it meanwhile; try again")
    return row


def _put(row: Any, definition: Definition) -> None:
    for name in _FIELDS:
        setattr(row, name, getattr(definition, name))
    row.set_password(definition.password)
    if not definition.password:
        # Airflow's own method leaves the old one there.
        row._password, row.is_encrypted = None, False
    row.set_extra(definition.extra_text())


def _json(definition: Definition) -> str:
    import json

    names = ("conn_type", "description", "host", "login", "schema", "port", "password")
    return json.dumps({**{name: getattr(definition, name) for name in names}, "extra": dict(definition.extra)})


def _row(session: Session, name: str, *, lock: bool = False) -> Any:
    from airflow.models import Connection
    from sqlalchemy import select

    query = select(Connection).where(Connection.conn_id == name)
    return session.scalar(query.with_for_update() if lock else query)


def _instance(session: Session, task: TaskRef) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    of_task = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
    return session.scalar(
        select(TaskInstance).where(
            *of_task, TaskInstance.task_id == task.task_id, TaskInstance.map_index == task.map_index
        )
    )


@contextmanager
def _session() -> Iterator[Session]:
    from airflow.utils.session import create_session

    make: Callable[[], Any] = create_session
    with make() as session:
        yield session
