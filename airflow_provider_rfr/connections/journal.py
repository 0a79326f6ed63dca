"""The lock, the journal and the audit of one alteration; who died meanwhile is found and settled by the next one."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.connections.plan import AlterationPlan
from airflow_provider_rfr.connections.ports import Stored
from airflow_provider_rfr.connections.types import ContentHash
from airflow_provider_rfr.exceptions import AlterConnectionError, ConnectionConflictError
from airflow_provider_rfr.store import connection_audit as audit
from airflow_provider_rfr.store.engine import ControlStore

_DIED = "its process ended before the new settings were stored; nothing was changed"
_RECOVERED = "its process ended after the new settings were stored; what uses them is restarted by who comes next"


class Journal:
    """A context manager: inside, nobody else alters the connection; an error is noted, and lets it go.

    :param statement: as it may be shown
    :raises ConnectionConflictError: somebody else is at it
    """

    def __init__(self, store: ControlStore, name: str, actor: str, statement: str) -> None:
        self._store = store
        self._name = name
        self._actor = actor
        self._statement = statement
        self.id = 0
        self._intended = False
        self._over = threading.Event()

    def __enter__(self) -> Journal:
        made = self._store.run(
            lambda connection: audit.begin_alteration(
                connection, self._store.now(connection), self._name, self._actor, self._statement
            )
        )
        if made is None:
            raise ConnectionConflictError(self._name, "somebody else is altering it; try again")
        self.id = made
        threading.Thread(target=self._keep, name="rfr-alteration", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if error is None:
            return
        if self._intended and not isinstance(error, AlterConnectionError):
            # Whether it was stored can't be told here: whoever comes next looks, and says so.
            self._store.run(lambda connection: audit.abandon(connection, self._store.now(connection), self.id))
            return
        state = audit.FAILED
        if isinstance(error, AlterConnectionError):
            state = audit.CONFLICT if isinstance(error, ConnectionConflictError) else audit.REFUSED
        # The text of an error that is not ours may hold a secret.
        detail = error.message if isinstance(error, AlterConnectionError) else type(error).__name__
        self.note(state, detail=detail)

    def note(self, state: str, **values: Any) -> None:
        """Note how far it is."""
        self._store.run(
            lambda connection: audit.note_alteration(connection, self._store.now(connection), self.id, state, **values)
        )

    def intend(self, plan: AlterationPlan) -> None:
        """Note what is about to be stored, so that who finds this row can tell whether it was.

        :raises ConnectionConflictError: it took so long that the lock is no longer held
        """
        held = self._store.run(lambda connection: audit.holds(connection, self._store.now(connection), self.id))
        if not held:
            raise ConnectionConflictError(self._name, "it took too long, and somebody else may alter it; try again")
        options = {change.option: {"before": change.before, "after": change.after} for change in plan.changes}
        hashes = {"old_hash": plan.old_hash, "new_hash": plan.new_hash}
        self.note(audit.OPEN, options=options, **hashes)
        self._intended = True

    def _keep(self) -> None:
        while not self._over.wait(audit.LEASE_SECONDS / 3):
            # A store that is away for a moment is asked again; the lease outlives two missed turns.
            with suppress(DBAPIError):
                self._store.run(lambda connection: audit.holds(connection, self._store.now(connection), self.id))


def settle(store: ControlStore, hashes: ContentHash, stored: Stored) -> None:
    """Say what became of alterations of this connection whose process died."""
    name, present = stored.definition.name, hashes.of(stored.definition)
    with store.read() as connection:
        found = audit.interrupted(connection, store.now(connection), name)
    for each in found:
        was_stored = each.new_hash is not None and each.new_hash == present != each.old_hash
        state, detail = (audit.APPLIED, _RECOVERED) if was_stored else (audit.FAILED, _DIED)

        def settled(connection: Any, number: int = each.id, state: str = state, detail: str = detail) -> None:
            audit.note_alteration(connection, store.now(connection), number, state, detail=detail)

        store.run(settled)
