"""DROP and RENAME: a connection's name is given up, which is refused while anything is known to use the connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection

from airflow_provider_rfr.connections._journal import NAME, Journal, end_name
from airflow_provider_rfr.connections.dependents import judge
from airflow_provider_rfr.connections.ports import Services
from airflow_provider_rfr.connections.statement import Statement, Verb
from airflow_provider_rfr.connections.types import MISSING, REFERENCE_SUFFIX, Definition
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConnectionConflictError, Problem
from airflow_provider_rfr.http.redaction import MASK
from airflow_provider_rfr.store.connection_audit import AlterationState, concurrent_alterations
from airflow_provider_rfr.store.connections import list_uses
from airflow_provider_rfr.store.deliveries import endpoints_called_with
from airflow_provider_rfr.store.deploys import objects_with

_VALID: Final = re.compile(r"[\w#!()\-.:/\\]{1,200}")
"""Airflow's rule for connection ids."""


def check_unused(services: Services, statement: Statement) -> None:
    """Check whether the statement could be carried out.

    :raises AlterationRefusedError: with everything that uses the connection, and what is wrong with the new name
    :raises ConnectionConflictError: the new name is taken
    """
    name, new = statement.connection, statement.new_name
    done = "dropped" if statement.verb is Verb.DROP else "renamed"
    problems = []
    if new is not None and not _VALID.fullmatch(new):
        problem = f"invalid name {new!r}"
        problems.append(Problem("", problem, "write up to 200 letters, digits and _ - . : / \\ # ! ( )"))
    elif new == name:
        problems.append(Problem("", "has this name already", "write another one"))
    problems += [Problem("", f"can't be {done}: {user}", remedy) for user, remedy in _users(services, name)]
    if problems:
        raise AlterationRefusedError(name, problems)
    if new is not None and services.gateway.find(new) is not None:
        raise ConnectionConflictError(name, f"there is a {new!r} already")


def _users(services: Services, name: str) -> Iterator[tuple[str, str]]:
    """What uses the connection, and how that can be ended."""
    if name == services.store_conn_id:
        yield "the control store is found by it", "set [rfr] control_store, and remove the connection in Airflow"
    with services.store.read() as connection:
        dependents = judge(name, None, (), list_uses(connection), services.gateway.find)
        objects, endpoints = objects_with(connection, name), endpoints_called_with(connection, name)
    for each in dependents:
        # Also one that ended: the next run uses it again, unless its DAG was deleted.
        if services.tasks.state(each.use.task) != "gone":
            remedy = "run it with another connection, or delete its runs in Airflow"
            yield each.line("used by ", each.reason), remedy
    for other in services.gateway.referring(name):
        yield f"connection {other} refers to it", "alter that first"
    for declared in objects:
        yield f"{declared} is declared with it", "declare another connection, and deploy"
    for endpoint in endpoints:
        forget = f"airflow rfr triggers resume {endpoint.table} {endpoint.name}"
        yield f"{endpoint} is called with it", f"name another connection there and deliver; if it is gone: {forget}"


def give_up(services: Services, statement: Statement, stored: Definition, expected: str, journal: Journal) -> None:
    """Drop the connection, or rename it; under the lease.

    :param expected: hash of what is stored
    :raises AlterConnectionError: nothing was changed
    """
    name, new = statement.connection, statement.new_name
    # Noted before it looks, as whoever adds a reference does: at least one of the two sees the other.
    journal.intend({NAME: {"before": name, "after": new}}, expected, MISSING)
    with services.store.read() as connection:
        others = concurrent_alterations(connection, services.store.now(connection), name)
    for other in others:
        references = [each["after"] for option, each in other.options.items() if option.endswith(REFERENCE_SUFFIX)]
        if name in references or MASK in references:
            raise ConnectionConflictError(name, f"{other.conn_id} gets another reference just now; try again")
    check_unused(services, statement)
    if new is None:
        services.gateway.drop(expected, services.hashes, stored)
    else:
        services.gateway.rename(expected, services.hashes, stored, new)

    def note(connection: Connection) -> None:
        end_name(connection, name, new)
        journal.note_in(connection, AlterationState.APPLIED)

    services.store.run(note)
