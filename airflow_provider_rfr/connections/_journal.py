"""The lease, the journal and the audit of one alteration. The next alteration settles those whose process died."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from airflow_provider_rfr.connections.types import MISSING
from airflow_provider_rfr.exceptions import AlterConnectionError, ConnectionConflictError
from airflow_provider_rfr.store import connections as audit
from airflow_provider_rfr.store.connections import AlterationRecord, AlterationState, forget_connection
from airflow_provider_rfr.store.deliveries import pause_endpoints_called_with
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Grant, Lease, LeaseKind, take_lease

_LEASE_MILLISECONDS: Final = 30_000
NAME: Final = "name"
"""Stands for the connection's name among the options of a rename or a drop."""
_DIED: Final = "its process ended before the new settings were stored; nothing was changed"
_REMOVED: Final = "its process ended after the name was given up; what has that name now is another connection"
_RECOVERED: Final = "its process ended after the new settings were stored; the next alteration restarts what uses them"


class Journal:
    """A context manager: inside, no other process alters the connection; an error is noted and raised.

    :ivar id: number of the alteration's audit row
    :raises ConnectionConflictError: another process alters the connection
    """

    id: int

    def __init__(self, store: ControlStore, name: str, actor: str, statement: str) -> None:
        self._store = store
        self._name = name
        self._actor = actor
        self._statement = statement
        self._intended = False

    def __enter__(self) -> Journal:
        def begin(connection: Connection) -> tuple[Grant, int] | None:
            now, name = self._store.now(connection), self._name
            grant = _take(connection, now, name, self._actor)
            if grant is None:
                return None
            return grant, audit.begin_alteration(connection, now, name, self._actor, self._statement)

        begun = self._store.run(begin)
        if begun is None:
            raise ConnectionConflictError(self._name, "another process is altering it; try again")
        grant, self.id = begun
        lost = ConnectionConflictError(self._name, "it took too long, and another process may alter it; try again")
        self._lease = Lease(self._store, grant, lambda token, newer: lost).__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, ConnectionConflictError):
                self.note(AlterationState.CONFLICT, detail=error.message)
            elif isinstance(error, AlterConnectionError):
                self.note(AlterationState.REFUSED, detail=error.message)
            # With another error after the intention it is unknown whether the settings were stored: the row stays
            # open, and the next alteration looks.
            elif error is not None and not self._intended:
                # The text of a foreign error may hold a secret.
                self.note(AlterationState.FAILED, detail=type(error).__name__)
        finally:
            self._lease.__exit__()

    def note(self, state: AlterationState, **values: Any) -> None:
        self._store.run(lambda connection: self.note_in(connection, state, **values))

    def note_in(self, connection: Connection, state: AlterationState, **values: Any) -> None:
        """Note the state of the alteration within a transaction."""
        audit.note_alteration(connection, self._store.now(connection), self.id, state, **values)

    def intend(self, options: Mapping[str, Any], old_hash: str, new_hash: str) -> None:
        """Note the change that is about to be stored: if this process dies, the hashes show whether it was stored.

        :raises ConnectionConflictError: it took so long that another process has the lease
        """
        values = {"options": options, "old_hash": old_hash, "new_hash": new_hash}
        self._lease.write(
            lambda connection, now: audit.note_alteration(connection, now, self.id, AlterationState.OPEN, **values)
        )
        self._intended = True

    def settle(self, present: str) -> list[AlterationRecord]:
        """Note the end of earlier alterations whose process died; return those that it had stored.

        :param present: hash of what is stored now
        """
        return self._store.run(
            lambda connection: _settle(connection, self._store.now(connection), self._name, present, self.id)
        )


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
        state, detail = AlterationState.FAILED, _DIED
        if open_alteration.new_hash == MISSING and present != open_alteration.old_hash:
            state, detail = AlterationState.APPLIED, _REMOVED
            if present == MISSING:
                end_name(connection, now, name, open_alteration.options[NAME]["after"])
            else:
                audit.ConnectionNotes(connection, name).forget()
        elif open_alteration.new_hash is not None and open_alteration.new_hash == present != open_alteration.old_hash:
            state, detail = AlterationState.APPLIED, _RECOVERED
            stored.append(open_alteration)
        audit.note_alteration(connection, now, open_alteration.id, state, detail=detail)
    return stored


def end_name(connection: Connection, now: int, name: str, new: str | None) -> None:
    """Move the notes of a connection to its new name; None: it was dropped, so nothing uses it any more."""
    notes = audit.ConnectionNotes(connection, name)
    if new is None:
        notes.forget()
        forget_connection(connection, name)
        pause_endpoints_called_with(connection, now, name)
    else:
        notes.rename(new)
