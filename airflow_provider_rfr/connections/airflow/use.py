"""Registration and watch of the connections that a task runs with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.compat import lock_requests
from airflow_provider_rfr.connections.airflow.lookup import (
    as_connection,
    base_url,
    content_hash,
    find_definition,
    masked,
)
from airflow_provider_rfr.connections.dependents import closure
from airflow_provider_rfr.connections.types import PLACE, Definition
from airflow_provider_rfr.exceptions import AlterConnectionError, ConfigurationError
from airflow_provider_rfr.store import connections as uses
from airflow_provider_rfr.store.connections import ConnectionNotes

if TYPE_CHECKING:
    from airflow_provider_rfr.store.connections import TaskRef
    from airflow_provider_rfr.store.engine import ControlStore

_LOOK_SECONDS: Final = 2.0


class ConnectionUse:
    """The registration of one start of a task; a context manager that sends heartbeats and watches for alterations.

    :param kind: ``refresh`` or ``sink``
    :param conn_ids: connections that the task names
    :param details: ``check`` (how to try the task with other settings, by connection) and ``fixed`` (options that it
        can't adopt, by connection)
    :param identify: returns an upstream's identity; None if that can't be found out
    :param stop: asks the work to end at its next checkpoint; called repeatedly until the task has ended
    """

    def __init__(
        self,
        store: ControlStore,
        task: TaskRef,
        kind: str,
        conn_ids: Sequence[str],
        details: Mapping[str, Any],
        identify: Callable[[Definition], str | None],
        stop: Callable[[], None],
    ) -> None:
        self._store = store
        self._task = task
        names = [name for name in dict.fromkeys(conn_ids) if name]
        self._identify = identify
        self._stop = stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rfr-connection-use", daemon=True)
        self._hashes = content_hash(store)
        # The token tells this start from a later one of the task, e.g. on another worker while this one is cut off.
        self._token = store.run(
            lambda connection: uses.register_use(connection, store.now(connection), task, kind, names, details)
        )
        # Read only after the task is registered: an alteration in between is then always seen.
        reached = closure(names, find_definition).values()
        copies = [
            uses.UsedConnection(connection.name, " > ".join(connection.path), self._hashes.of(connection.definition))
            for connection in reached
        ]
        store.run(lambda connection: uses.note_copies(connection, task, self._token, copies))
        self._read = [connection.definition for connection in reached if connection.definition is not None]

    def __enter__(self) -> ConnectionUse:
        lock_requests()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        # With a timeout: the thread may be waiting for an upstream that does not answer.
        self._thread.join(_LOOK_SECONDS * 5)

    def end(self, state: str, error: str | None = None, error_kind: str | None = None) -> None:
        """Record how the task ended, unless a later start of it has registered.

        :param state: ``deferred``, ``failed`` or ``idle``
        :param error: text of its error, in which secrets of the connections are masked here
        """
        for definition in self._read:
            error = error and masked(error, definition)
        self._store.run(
            lambda connection: uses.end_use(
                connection, self._store.now(connection), self._task, self._token, state, error, error_kind
            )
        )

    def is_stale(self) -> bool:
        """Tell whether a connection was altered since the task read it."""
        with self._store.read() as connection:
            use = uses.load_use(connection, self._task)
        return use is not None and use.token == self._token and use.is_stale

    def _watch(self) -> None:
        self._note_identities()
        while not self._over.wait(_LOOK_SECONDS):
            try:
                use = self._store.run(
                    lambda connection: uses.beat(connection, self._store.now(connection), self._task, self._token)
                )
            except DBAPIError:
                # The store can't be reached for now: at worst, a restart comes later.
                continue
            if use is not None and use.is_stale:
                # Repeated, because the work may not have been far enough to be stopped the first time.
                self._stop()

    def _note_identities(self) -> None:
        """Record the upstreams' identities while they answer; an alteration compares new addresses with them."""
        identities: dict[str, str] = {}
        for definition in self._read:
            # The task itself reports a connection that does not work.
            with suppress(AlterConnectionError, ConfigurationError):
                identity = self._identify(definition)
                if identity is not None:
                    identities[definition.name] = self._hashes.of_text(identity)

        def note(connection: Connection) -> None:
            for name, identity in identities.items():
                ConnectionNotes(connection, name).set_identity(self._store.now(connection), identity)

        if identities:
            with suppress(DBAPIError):
                self._store.run(note)


def addresses_of(store: ControlStore, conn_id: str) -> list[dict[str, Any]]:
    """Return the former addresses and the present one of an API's connection, for ``run.moved`` of a document.

    The oldest is first. The list is empty if the connection never moved.
    """
    present = find_definition(conn_id)
    hashes = content_hash(store)
    with store.read() as connection:
        places = ConnectionNotes(connection, conn_id).former_places(hashes.of(present))
    if not places or present is None:
        return []
    addresses = []
    for place in [*places, present.place()]:
        address: dict[str, Any] = {name: place[name] for name in ("login", "upstream") if place.get(name)}
        if place.get("host"):
            fields: dict[str, Any] = {name: place.get(name) for name in PLACE}
            address["base_url"] = base_url(as_connection(Definition(conn_id, **fields)))
        addresses.append(address)
    return addresses
