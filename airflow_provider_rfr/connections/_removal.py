"""DROP and RENAME: a connection's name is given up, which is refused while anything is known to use the connection.

CASCADE drops the connections that refer to it first, each like a statement of its own, then the connection; the
endpoints of webhooks that are called with it are paused. It never stops work, and changes no declaration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from airflow_provider_rfr.connections._journal import NAME, Journal, end_name
from airflow_provider_rfr.connections.dependents import judge
from airflow_provider_rfr.connections.ports import Services
from airflow_provider_rfr.connections.statement import Statement, Verb
from airflow_provider_rfr.connections.types import MISSING, REFERENCE_SUFFIX, Definition
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConnectionConflictError, Problem
from airflow_provider_rfr.http.redaction import MASK
from airflow_provider_rfr.store.connections import AlterationState, concurrent_alterations, list_uses
from airflow_provider_rfr.store.deliveries import endpoints_called_with
from airflow_provider_rfr.store.deploys import objects_with

_VALID: Final = re.compile(r"[\w#!()\-.:/\\]{1,200}")
"""Airflow's rule for connection ids."""
_ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True, slots=True)
class _User:
    """A user of a connection.

    :ivar remedy: how that can be ended
    :ivar effect: the effect of DROP ... CASCADE on it; empty if that is refused as well
    """

    name: str
    problem: str
    remedy: str
    effect: str = ""


def check_unused(services: Services, statement: Statement) -> dict[str, str]:
    """Check whether the statement could be carried out; return the effects of CASCADE by user of the connection.

    :raises AlterationRefusedError: with all that use the connection, and the problem of the new name
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
    removed = [*referring_to(services, name), name] if statement.cascade else [name]
    users = [user for name in removed for user in _users(services, name)]
    refusing = [user for user in users if not (statement.cascade and user.effect)]
    problems += [Problem("", f"can't be {done}: {user.problem}", user.remedy) for user in refusing]
    if problems:
        raise AlterationRefusedError(name, problems)
    if new is not None and services.gateway.find(new) is not None:
        raise ConnectionConflictError(name, f"there is a {new!r} already")
    return {user.name: user.effect for user in users}


def referring_to(services: Services, name: str) -> list[str]:
    """Return the connections that refer to this one by any number of steps, in the order in which they can go."""
    order: list[str] = []
    seen = {name}

    def visit(connection: str) -> None:
        for other in services.gateway.referring(connection):
            if other not in seen:
                seen.add(other)
                visit(other)
                order.append(other)

    visit(name)
    return order


def _users(services: Services, name: str) -> Iterator[_User]:
    if name == services.store_conn_id:
        remedy = "set [rfr] control_store, and remove the connection in Airflow"
        yield _User("control store", "the control store is found by it", remedy)
    with services.store.read() as connection:
        dependents = judge(name, None, (), list_uses(connection), services.gateway.find)
        objects, endpoints = objects_with(connection, name), endpoints_called_with(connection, name)
    for dependent in dependents:
        # Also one that ended: the next run uses it again, unless its DAG was deleted.
        state = services.tasks.state(dependent.use.task)
        if state != "gone":
            remedy = "run it with another connection, or delete its runs in Airflow"
            user, effect = (
                f"{dependent.use.kind} {dependent.use.task}",
                "forgotten; its next run fails" * (state in _ENDED),
            )
            yield _User(user, dependent.line("used by ", dependent.reason), remedy, effect)
    for other in services.gateway.referring(name):
        yield _User(f"connection {other}", f"connection {other} refers to it", "alter that first", "dropped as well")
    for declared in objects:
        remedy = "declare another connection, and deploy"
        yield _User(str(declared), f"{declared} is declared with it", remedy)
    for endpoint in endpoints:
        forget = f"airflow rfr triggers resume {endpoint.table} {endpoint.name}"
        remedy = f"name another connection there and deliver; if it is gone: {forget}"
        yield _User(str(endpoint), f"{endpoint} is called with it", remedy, f"paused; its deliveries wait for {forget}")


def give_up(
    services: Services, statement: Statement, stored: Definition, expected: str, journal: Journal
) -> dict[str, str]:
    """Drop the connection, or rename it; under the lease. Return the effects of CASCADE by user.

    :param expected: hash of the stored connection
    :raises AlterConnectionError: nothing was changed
    """
    name, new = statement.connection, statement.new_name
    named = {NAME: {"before": name, "after": new}}
    # Noted before it looks, as whoever adds a reference does: at least one of the two sees the other.
    journal.intend(named, expected, MISSING)
    with services.store.read() as connection:
        others = concurrent_alterations(connection, services.store.now(connection), name)
    for other in others:
        references = [value["after"] for option, value in other.options.items() if option.endswith(REFERENCE_SUFFIX)]
        if name in references or MASK in references:
            raise ConnectionConflictError(name, f"{other.conn_id} gets another reference just now; try again")
    effects = check_unused(services, statement)
    if effects:
        changes = {user: {"before": None, "after": effect} for user, effect in effects.items()}
        journal.intend({**named, **changes}, expected, MISSING)
    if new is None:
        services.gateway.drop(expected, services.hashes, stored)
    else:
        services.gateway.rename(expected, services.hashes, stored, new)

    def note(connection: Connection) -> None:
        end_name(connection, services.store.now(connection), name, new)
        journal.note_in(connection, AlterationState.APPLIED)

    services.store.run(note)
    return effects
