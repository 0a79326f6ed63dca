"""Connections and tasks in Airflow's database, as the command line reaches them.

Rows are changed under a row lock, and no rights are checked except those to read secrets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.connections.airflow.lookup import CONNECTION_VARIABLE, can_be_reached, session_of_airflow
from airflow_provider_rfr.connections.airflow.sources import (
    changed_meanwhile,
    definition_of,
    find_definition,
    not_allowed,
    origin_of,
    server_backends,
)
from airflow_provider_rfr.connections.dependents import references_of
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import ConfigurationError, ConnectionConflictError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_provider_rfr.connections.statement import SecretReference
    from airflow_provider_rfr.connections.types import ContentHash
    from airflow_provider_rfr.store.connections import TaskRef


class DatabaseGateway:
    """A gateway by Airflow's database; its transaction is the compare-and-set.

    The command line uses it: it needs no API server, user or password, and can remove a connection's password, which
    the API can't.
    """

    def read(self, name: str) -> Definition | None:
        origin = origin_of(name, server_backends())
        if origin is None:
            return None
        origin.refuse_shadowed(name)
        if not origin.is_database:
            return definition_of(origin.connection)
        with session_of_airflow() as session:
            row = _row(session, name)
            return None if row is None else definition_of(row)

    def find(self, name: str) -> Definition | None:
        origin = origin_of(name, server_backends())
        return None if origin is None else definition_of(origin.connection)

    def referring(self, name: str) -> Sequence[str]:
        from airflow.models import Connection
        from sqlalchemy import select

        found = []
        with session_of_airflow() as session:
            for row in session.scalars(select(Connection)):
                try:
                    definition = definition_of(row)
                except ConfigurationError:
                    continue
                if name in references_of(definition).values():
                    found.append(definition.name)
        return found

    def commit(self, expected: str, hashes: ContentHash, candidate: Definition) -> None:
        """Compare-and-set in one transaction (``SELECT ... FOR UPDATE``)."""
        origin = origin_of(candidate.name, server_backends())
        if origin is not None and not origin.is_database:
            if hashes.of(definition_of(origin.connection)) != expected:
                raise changed_meanwhile(candidate.name)
            origin.write(candidate)
            return
        with session_of_airflow() as session:
            row = _expected_row(session, expected, hashes, candidate.name)
            for name in ("host", "port", "login", "schema", "description"):
                setattr(row, name, getattr(candidate, name))
            row.set_password(candidate.password)
            if not candidate.password:
                # Airflow's own method leaves the old one there.
                row._password, row.is_encrypted = None, False
            row.set_extra(candidate.extra_text())

    def commit_tested(self, expected: str, hashes: ContentHash, candidate: Definition) -> bool:
        return False

    def rename(self, expected: str, hashes: ContentHash, definition: Definition, new_name: str) -> None:
        _require_database(definition.name)
        with session_of_airflow() as session:
            row = _expected_row(session, expected, hashes, definition.name)
            if _row(session, new_name) is not None:
                raise ConnectionConflictError(definition.name, f"there is a {new_name!r} already")
            row.conn_id = new_name

    def drop(self, expected: str, hashes: ContentHash, definition: Definition) -> None:
        _require_database(definition.name)
        with session_of_airflow() as session:
            session.delete(_expected_row(session, expected, hashes, definition.name))

    def may_not_edit(self, names: Iterable[str]) -> Sequence[str]:
        """Return an empty list: a user who can reach the database may do everything."""
        return []

    def may_not_use(self, secrets: Iterable[SecretReference]) -> Sequence[SecretReference]:
        return not_allowed(secrets)

    def variable(self, name: str) -> str | None:
        from airflow.models import Variable

        value: Any = Variable.get(name, default_var=None)
        return None if value is None else str(value)


def _require_database(name: str) -> None:
    origin = origin_of(name, server_backends())
    if origin is not None:
        origin.require_database(name)


def _expected_row(session: Session, expected: str, hashes: ContentHash, name: str) -> Any:
    row = _row(session, name, lock=True)
    if row is None or hashes.of(definition_of(row)) != expected:
        raise changed_meanwhile(name)
    return row


def _row(session: Session, name: str, *, lock: bool = False) -> Any:
    from airflow.models import Connection
    from sqlalchemy import select

    query = select(Connection).where(Connection.conn_id == name)
    return session.scalar(query.with_for_update() if lock else query)


def _instance(session: Session, task: TaskRef) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    return session.scalar(select(TaskInstance).filter_by(**asdict(task)))


class DatabaseTasks:
    """Tasks by Airflow's database."""

    def state(self, task: TaskRef) -> str | None:
        with session_of_airflow() as session:
            found = _instance(session, task)
            return "gone" if found is None else str(found.state or "scheduled")

    def start(self, task: TaskRef) -> None:
        from airflow.models.taskinstance import TaskInstance, clear_task_instances
        from sqlalchemy import select

        with session_of_airflow() as session:
            found = _instance(session, task)
            if found is None:
                raise ConfigurationError(str(task), "no longer exists", "start its DAG")
            # Cleared with it: what failed only because it did.
            of_run = (TaskInstance.dag_id == task.dag_id, TaskInstance.run_id == task.run_id)
            blocked = session.scalars(select(TaskInstance).where(*of_run, TaskInstance.state == "upstream_failed"))
            clear_task_instances([found, *blocked], session)


def connections_of_types(types: Iterable[str]) -> dict[str, str]:
    """Return the type by id of the connections of these types in Airflow's database and in the environment.

    Those of other secrets backends can't be listed.
    """
    from airflow.models import Connection
    from sqlalchemy import select

    wanted = frozenset(types)
    types_by_id = {}
    if can_be_reached():
        with session_of_airflow() as session:
            # No secret is read.
            query = select(Connection.conn_id, Connection.conn_type).where(Connection.conn_type.in_(wanted))
            types_by_id = {str(conn_id): str(kind) for conn_id, kind in session.execute(query)}
    variables = (variable for variable in os.environ if variable.startswith(CONNECTION_VARIABLE))
    for name in (variable.removeprefix(CONNECTION_VARIABLE).lower() for variable in variables):
        with suppress(ConfigurationError):
            definition = find_definition(name)
            if definition is not None and definition.conn_type in wanted:
                types_by_id[name] = definition.conn_type
    return types_by_id
