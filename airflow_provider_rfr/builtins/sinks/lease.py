"""The lease of a sink while a run is at it: renewed now and then, given back at the end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.exceptions.sinks import SinkLeaseLostError
from airflow_provider_rfr.store import sinks as rows
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.sinks import SinkLease, SinkRow


class HeldSink:
    """A sink that nobody else moves, as long as its lease is renewed in time."""

    def __init__(self, store: ControlStore, lease: SinkLease) -> None:
        self._store = store
        self._lease = lease
        self._renewed = time.monotonic()

    @property
    def token(self) -> int:
        """Of the lease."""
        return self._lease.token

    def row(self) -> SinkRow:
        """The sink as it is now.

        :raises SinkLeaseLostError: it was removed
        """
        with self._store.read() as connection:
            found = rows.load_sink(connection, self._lease.uuid)
        if found is None:
            raise SinkLeaseLostError(self._lease.name)
        return found

    def move(self, **values: Any) -> None:
        """Write columns of the sink's row.

        :raises SinkLeaseLostError: the sink is somebody else's now; nothing was written
        """
        self._store.run(lambda each: rows.move_sink(each, self._store.now(each), self._lease, **values))
        self._renewed = time.monotonic()

    def alive(self) -> None:
        """Renew the lease when a third of it is gone."""
        if (time.monotonic() - self._renewed) * 3000 > self._lease.milliseconds:
            self.move()

    def now(self) -> int:
        """The store's time, in milliseconds since 1970."""
        with self._store.read() as connection:
            return self._store.now(connection)


@contextmanager
def held(store: ControlStore, identity: UUID, name: str, seconds: float) -> Iterator[HeldSink]:
    """The sink, held by this process.

    :raises SinkBusyError: another run is at it
    :raises ConfigurationError: no deploy has registered it
    """
    owner, milliseconds = f"{socket.gethostname()}:{os.getpid()}", int(seconds * 1000)
    lease = store.run(lambda each: rows.take_lease(each, store.now(each), identity, owner, milliseconds))
    if lease is None:
        remedy = "deploy first, e.g. airflow rfr builtins apply"
        raise ConfigurationError("sink", f"{name} is not registered in the control store", remedy)
    try:
        yield HeldSink(store, lease)
    finally:
        store.run(lambda each: rows.release_lease(each, lease))
