"""The lease and the journal row of one alteration, and the execution of DROP and RENAME.

An alteration whose process died is settled by the next one. DROP and RENAME are refused while anything is known to use
the connection. CASCADE first drops the connections that refer to it, each by a statement of its own, then drops the
connection and pauses the webhook endpoints that are called with it. Running tasks and declared objects refuse CASCADE.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from airflow_provider_rfr.connections.dependents import Services, find_readable, judge
from airflow_provider_rfr.connections.statement import Statement, Verb
from airflow_provider_rfr.connections.types import MISSING, REFERENCE_SUFFIX, Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    AlterConnectionError,
    ConnectionConflictError,
    Problem,
)
from airflow_provider_rfr.http.redaction import MASK
from airflow_provider_rfr.store import connections as audit
from airflow_provider_rfr.store.connections import (
    AlterationRecord,
    AlterationState,
    concurrent_alterations,
    forget_connection,
    list_uses,
)
from airflow_provider_rfr.store.deliveries import endpoints_called_with, pause_endpoints_called_with
from airflow_provider_rfr.store.deploys import objects_with
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Grant, Lease, LeaseKind, take_lease

_T = TypeVar("_T")
_LEASE_MILLISECONDS: Final = 30_000
_LOOK_SECONDS: Final = 0.2
NAME: Final = "name"
"""The key of the connection's name among the options that a rename or a drop records."""
_DIED: Final = "its process ended before the new settings were stored; nothing was changed"
_REMOVED: Final = "its process ended while it gave up the name; a connection of that name is taken for another one"
_UNKNOWN: Final = "its process ended, and the connection was changed since; whether it stored its settings is not known"
_REPLACED: Final = "its settings were stored, and the connection was changed again right after"
_RECOVERED: Final = "its process ended after the new settings were stored; the next alteration restarts what uses them"


class Journal:
    """A context manager that holds the lease of one alteration and writes its journal row.

    While the lease is held, no other process alters the connection. An error is recorded in the row, and raised.

    :ivar id: number of the alteration's audit row
    :raises ConnectionConflictError: another process alters the connection
    """

    id: int

    def __init__(self, store: ControlStore, name: str, actor: str, statement: str) -> None:
        self._store = store
        self._name = name
        self._actor = actor
        self._statement = statement
        self._new_hash: str | None = None

    def __enter__(self) -> Journal:
        def begin(connection: Connection) -> tuple[Grant, int] | None:
            now, name = self._store.now(connection), self._name
            grant = _take(connection, now, name, self._actor)
            if grant is None:
                return None
            return grant, audit.begin_alteration(connection, now, name, self._actor, self._statement)

        # Lease and row are written in one transaction, so that each alteration has a row that says how it ended.
        started = self._store.run(begin)
        if started is None:
            raise ConnectionConflictError(self._name, "another process is altering it; try again")
        grant, self.id = started
        self._hold(grant)
        return self

    def _hold(self, grant: Grant) -> None:
        lost = ConnectionConflictError(self._name, "it took too long, and another process may alter it; try again")
        self._lease = Lease(self._store, grant, lambda token, newer: lost).__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, ConnectionConflictError):
                self.note(AlterationState.CONFLICT, detail=error.message)
            elif isinstance(error, AlterConnectionError):
                self.note(AlterationState.REFUSED, detail=error.message)
            # After intend(), another error leaves it unknown whether the settings were stored: the row stays open, and
            # the next alteration settles it.
            elif error is not None and self._new_hash is None:
                # The text of another library's error may hold a secret.
                self.note(AlterationState.FAILED, detail=type(error).__name__)
        finally:
            self._lease.__exit__()

    def note(self, state: AlterationState, **values: Any) -> None:
        # The lease is not checked: the end of an alteration is recorded even if another process holds the lease now.
        self._store.run(lambda connection: self.note_in(connection, state, **values))

    def note_in(self, connection: Connection, state: AlterationState, **values: Any) -> None:
        """Record the state of the alteration in the caller's transaction."""
        audit.note_alteration(connection, self._store.now(connection), self.id, state, **values)

    def intend(self, options: Mapping[str, Any], old_hash: str, new_hash: str) -> None:
        """Record a change before it is stored: if this process dies, the hashes show whether it was stored.

        :raises ConnectionConflictError: the lease expired, and another process took it
        """
        values = {"options": options, "old_hash": old_hash, "new_hash": new_hash}
        self.write(lambda connection, now: self.note_in(connection, AlterationState.OPEN, **values))
        self._new_hash = new_hash

    def write(self, work: Callable[[Connection, int], _T]) -> _T:
        """Run ``work`` in one transaction, during which the lease can't be lost.

        :raises ConnectionConflictError: the lease expired, and another process took it
        """
        return self._lease.write(work)

    def conclude(self, work: Callable[[Connection, int], None], present: Callable[[], str]) -> bool:
        """Record the consequences of the stored change, in one transaction.

        If another alteration took the lease, wait until that ends. Return False, without the consequences, if the
        connection has other content then.

        :param present: returns the hash of the stored connection
        """
        while True:
            try:
                self.write(work)
            except ConnectionConflictError:
                # If the other one settled the row before the change was stored, it took this process for dead.
                self._store.run(lambda connection: audit.reopen_alteration(connection, self.id))
                self._take_again()
                # That one failed if the change is still there, and then nobody else restarts what uses the connection.
                if present() != self._new_hash:
                    self._store.run(self._note_replaced)
                    return False
            else:
                return True

    def _note_replaced(self, connection: Connection) -> None:
        # The next alteration settles the others: the end of a name, and one that had nothing to store.
        for row in audit.open_alterations(connection, self._name):
            if row.id == self.id and row.new_hash not in (MISSING, row.old_hash):
                self.note_in(connection, AlterationState.APPLIED, detail=_REPLACED)

    def _take_again(self) -> None:
        def take(connection: Connection) -> Grant | None:
            return _take(connection, self._store.now(connection), self._name, self._actor)

        self._lease.__exit__()
        while (grant := self._store.run(take)) is None:
            time.sleep(_LOOK_SECONDS)
        self._hold(grant)

    def settle(self, present: str) -> list[AlterationRecord]:
        """Record the end of earlier alterations whose process died; return those whose change was stored.

        :param present: hash of the stored connection
        :raises ConnectionConflictError: the lease expired, and another process took it
        """
        return self.write(lambda connection, now: _settle(connection, now, self._name, present, self.id))


def settle_missing(store: ControlStore, name: str) -> None:
    """Settle the alterations of a connection that does not exist, unless another process alters it."""

    def work(connection: Connection) -> None:
        now = store.now(connection)
        if audit.open_alterations(connection, name) and (grant := _take(connection, now, name, "")):
            _settle(connection, now, name, MISSING)
            grant.release(connection)

    store.run(work)


def _take(connection: Connection, now: int, name: str, holder: str) -> Grant | None:
    return take_lease(connection, now, LeaseKind.CONNECTION, name, holder, _LEASE_MILLISECONDS)


def _settle(
    connection: Connection, now: int, name: str, present: str, own: int | None = None
) -> list[AlterationRecord]:
    stored = []
    for open_alteration in audit.open_alterations(connection, name):
        if open_alteration.id == own:
            continue
        # The hashes show how far the dead process came: without a new hash, it had not begun to store anything.
        state, detail = AlterationState.FAILED, _DIED
        if open_alteration.new_hash == MISSING and present != open_alteration.old_hash:
            state, detail = AlterationState.APPLIED, _REMOVED
            if present == MISSING:
                end_name(connection, now, name, open_alteration.options[NAME]["after"])
            else:
                # Another connection has the name now, and the notes are about the former one.
                audit.ConnectionNotes(connection, name).forget()
        elif open_alteration.new_hash is not None and open_alteration.new_hash == present != open_alteration.old_hash:
            state, detail = AlterationState.APPLIED, _RECOVERED
            stored.append(open_alteration)
        elif open_alteration.new_hash not in (None, MISSING, open_alteration.old_hash, present) and (
            present != open_alteration.old_hash
        ):
            detail = _UNKNOWN
        audit.note_alteration(connection, now, open_alteration.id, state, detail=detail)
    return stored


def end_name(connection: Connection, now: int, name: str, new: str | None) -> None:
    """Move the notes of a renamed connection to its new name; after a drop, delete them and pause its endpoints.

    :param new: the new name; None after a drop
    """
    notes = audit.ConnectionNotes(connection, name)
    if new is None:
        notes.forget()
        forget_connection(connection, name)
        pause_endpoints_called_with(connection, now, name)
    else:
        notes.rename(new)


_VALID: Final = re.compile(r"[\w#!()\-.:/\\]{1,200}")
"""Airflow's rule for connection ids."""
_ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True, slots=True)
class _User:
    """A task, connection, declared object, endpoint or store that uses a connection.

    :ivar remedy: how the use can be ended
    :ivar effect: the effect of DROP ... CASCADE on it; empty if it refuses CASCADE as well
    """

    name: str
    problem: str
    remedy: str
    effect: str = ""


def check_unused(services: Services, statement: Statement) -> dict[str, str]:
    """Check that nothing refuses a DROP or RENAME; return the effects of CASCADE by user of the connection.

    :raises AlterationRefusedError: with everything that uses the connection, and the problem of the new name
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
    """Return the connections that refer to this one, directly or through others, in the order to drop them in."""
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
        # A task that ended counts, too: its next run uses the connection again, unless its DAG was deleted.
        state = services.gateway.task_state(dependent.use.task)
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


def drop_or_rename(
    services: Services, statement: Statement, stored: Definition, expected: str, journal: Journal
) -> None:
    """Drop or rename the connection; the caller holds the lease.

    :param expected: hash of the stored connection
    :raises AlterConnectionError: nothing was changed
    """
    name, new = statement.connection, statement.new_name
    named = {NAME: {"before": name, "after": new}}
    # Recorded before the check for users. An alteration that adds a reference also records first and checks then, so at
    # least one of the two sees the other.
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
        # Recorded again with the effects: the audit has to show them even if this process dies after the next step.
        journal.intend({**named, **changes}, expected, MISSING)
    if new is None:
        services.gateway.drop(expected, stored)
    else:
        services.gateway.rename(expected, stored, new)

    # A process that dies before this leaves an open row. Its new hash says that the name was given up, so the next
    # alteration does this in its place.
    def note(connection: Connection, now: int) -> None:
        end_name(connection, now, name, new)
        journal.note_in(connection, AlterationState.APPLIED, detail=None)

    journal.conclude(note, lambda: services.hashes.of(find_readable(services.gateway.find, name)))
