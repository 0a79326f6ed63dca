"""What a task runs with: registered before it is read, watched while it runs, noted when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.connections.plan import closure
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import AlterConnectionError, ConfigurationError
from airflow_provider_rfr.hooks.connection_checks import HookValidator, masked
from airflow_provider_rfr.hooks.connection_sources import as_connection, content_hash, find_definition
from airflow_provider_rfr.store import connections as uses
from airflow_provider_rfr.store.connection_audit import moves_of, note_identity

if TYPE_CHECKING:
    from airflow_provider_rfr.store.connections import TaskRef, Use
    from airflow_provider_rfr.store.engine import ControlStore

_LOOK_SECONDS: Final = 2.0


class ConnectionUse:
    """One start of a task; a context manager that watches while the task runs.

    :param kind: ``refresh`` or ``sink``
    :param conn_ids: connections that the task names
    :param details: what else is noted: ``check`` (how the task is tried with other settings, by connection), ``fixed``
        (options that it can't adopt, by connection)
    :param stop: asks what runs to end at its next checkpoint; called until the task has ended
    """

    def __init__(
        self,
        store: ControlStore,
        task: TaskRef,
        kind: str,
        conn_ids: Sequence[str],
        details: Mapping[str, Any],
        stop: Callable[[], None],
    ) -> None:
        self._store = store
        self._task = task
        self._conn_ids = [name for name in dict.fromkeys(conn_ids) if name]
        self._stop = stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rfr-connection-use", daemon=True)
        self._hashes = content_hash(store)
        self._token = store.run(
            lambda connection: uses.register_use(connection, store.now(connection), task, kind, self._conn_ids, details)
        ).token
        self._read = self._note_copies()

    def __enter__(self) -> ConnectionUse:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(_LOOK_SECONDS * 5)

    def end(self, state: str, error: str | None = None, error_kind: str | None = None) -> None:
        """Note how it ended; what a later start of the task has noted stays.

        :param error: its text, which may be anybody's; secrets of the connections are masked in it
        """
        for definition in self._read:
            error = error and masked(error, definition)
        self._store.run(
            lambda connection: uses.end_use(
                connection, self._store.now(connection), self._task, self._token, state, error, error_kind
            )
        )

    def is_stale(self) -> bool:
        """Whether a connection was altered since the task read it."""
        with self._store.read() as connection:
            found = uses.load_use(connection, self._task)
        return found is not None and found.token == self._token and found.is_stale

    def _note_copies(self) -> list[Definition]:
        reached = list(closure(self._conn_ids, find_definition).values())
        copies = [
            uses.UsedConnection(each.name, " > ".join(each.path), self._hashes.of(each.definition)) for each in reached
        ]
        self._store.run(lambda connection: uses.note_copies(connection, self._task, self._token, copies))
        return [each.definition for each in reached if each.definition is not None]

    def _watch(self) -> None:
        self._note_identities()
        while not self._over.wait(_LOOK_SECONDS):
            try:
                found = self._store.run(self._beat)
            except DBAPIError:
                # A store that is away for a while costs nothing but a later restart.
                continue
            if found is not None and found.is_stale:
                self._stop()

    def _note_identities(self) -> None:
        """Note where the connections lead while they answer: a new address is compared with it when they don't."""
        for definition in self._read:
            # Whatever is wrong there, the task itself says.
            with suppress(AlterConnectionError, ConfigurationError, DBAPIError):
                found = HookValidator(find_definition).identity(definition)
                if found is not None:
                    self._note_identity(definition.name, self._hashes.of_text(found))

    def _note_identity(self, name: str, identity: str) -> None:
        self._store.run(lambda connection: note_identity(connection, self._store.now(connection), name, identity))

    def _beat(self, connection: Any) -> Use | None:
        return uses.beat(connection, self._store.now(connection), self._task, self._token)


def moved(store: ControlStore, conn_id: str) -> list[dict[str, Any]]:
    """Where an API's connection led before, and where it leads, for the refresh's document; empty if it never moved."""
    from airflow_provider_rfr.hooks.api import base_url

    present = find_definition(conn_id)
    hashes = content_hash(store)
    with store.read() as connection:
        places = moves_of(connection, conn_id, hashes.of(present))
    if not places or present is None:
        return []
    names = ("conn_type", "host", "schema", "port", "login")
    places.append({name: getattr(present, name) for name in names})
    found = []
    for place in places:
        made: dict[str, Any] = {name: place[name] for name in ("login", "upstream") if place.get(name)}
        if place.get("host"):
            fields: dict[str, Any] = {name: place.get(name) for name in names}
            former = Definition(conn_id, **fields)
            made["base_url"] = base_url(as_connection(former))
        found.append(made)
    return found
