"""The right to deploy a project: one holder at a time, by a lease with a token that only goes up.

The lease keeps two deploys apart while both are alive. What keeps a third one out, which was paused and wakes up when
its lease is long somebody else's, is the token: every control write asks for it in its own transaction.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeVar

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.exceptions import DeployBusyError, LeaseLostError
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.tables import LEASES

T = TypeVar("T")
_L: Final = LEASES.c
SECONDS: Final = 60.0
"""After so long without a sign of life the lease may be taken over."""


@dataclass(frozen=True, slots=True)
class _LeaseState:
    """Who may deploy.

    :ivar token: of the last holder; 0 if there never was one
    :ivar until: milliseconds since 1970; None when nobody holds it
    """

    token: int
    holder: str | None = None
    until: int | None = None
    since: int | None = None


def lease_state(connection: Connection, project: str) -> _LeaseState:
    """The lease as it is."""
    row = connection.execute(select(LEASES).where(_L.project == project)).one_or_none()
    return _LeaseState(0) if row is None else _LeaseState(row.token, row.holder, row.until, row.since)


def force_unlock(store: ControlStore, project: str, token: int) -> None:
    """Take the lease from its holder, who is known to be dead; ``token`` says that it is this holder who is meant.

    :raises LeaseLostError: somebody else has it meanwhile
    """

    def work(connection: Connection) -> None:
        row = _locked(connection, project)
        if row is None or row.token != token:
            raise LeaseLostError(project, token, row.token if row is not None else 0)
        # The next holder's token is another one, so that this one, should it live, can't write any more.
        values = {"token": token + 1, "holder": None, "until": None, "since": None}
        connection.execute(update(LEASES).where(_L.project == project).values(**values))

    store.run(work)


class Lease:
    """A held lease; a context manager that gives it back. A thread prolongs it meanwhile.

    :ivar token: higher than every one before
    :ivar took_over: whoever had it before did not give it back
    """

    def __init__(self, store: ControlStore, project: str, holder: str, seconds: float, row: tuple[int, bool]) -> None:
        self._store = store
        self.project = project
        self._holder = holder
        self._seconds = seconds
        self.token, self.took_over = row
        self._end = threading.Event()
        self._beat = threading.Thread(target=self._prolong, name=f"rfr-lease-{project}", daemon=True)

    def __enter__(self) -> Lease:
        self._beat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._beat.join()
        try:
            self._store.run(self._give_back, patience=5.0)
        except DBAPIError:
            # It runs out by itself; what is to be told is how the deploy ended.
            if error is None:
                raise

    def ensure(self) -> None:
        """Look before anything is done outside the store.

        :raises LeaseLostError: it is somebody else's
        """
        with self._store.read() as connection:
            self._check(lease_state(connection, self.project).token)

    def write(self, work: Callable[[Connection, int], T]) -> T:
        """``work`` with the present time in one transaction, in which the lease can't be lost.

        :raises LeaseLostError: it is somebody else's; nothing was written
        """

        def checked(connection: Connection) -> T:
            row = _locked(connection, self.project)
            self._check(row.token if row is not None else 0)
            return work(connection, self._store.now(connection))

        return self._store.run(checked)

    def _check(self, token: int) -> None:
        if token != self.token:
            raise LeaseLostError(self.project, self.token, token)

    def _prolong(self) -> None:
        while not self._end.wait(self._seconds / 4):
            try:
                self.write(self._until)
            except LeaseLostError:
                return
            except DBAPIError:
                continue

    def _until(self, connection: Connection, now: int) -> None:
        until = now + int(self._seconds * 1000)
        connection.execute(update(LEASES).where(_L.project == self.project).values(until=until))

    def _give_back(self, connection: Connection) -> None:
        mine = (_L.project == self.project) & (_L.token == self.token)
        connection.execute(update(LEASES).where(mine).values(holder=None, until=None, since=None))


def acquire(
    store: ControlStore, project: str, *, holder: str = "", seconds: float = SECONDS, patience: float = 0.0
) -> Lease:
    """The lease, when it is free or has run out.

    :param seconds: after so long without a sign of life somebody else may have it
    :param patience: seconds to wait for somebody who has it
    :raises DeployBusyError: somebody else has it, and goes on having it
    """
    who = holder or f"{socket.gethostname()}:{os.getpid()}"
    give_up = time.monotonic() + patience
    while True:
        found = store.run(lambda connection: _take(store, connection, project, who, seconds))
        if isinstance(found, tuple):
            return Lease(store, project, who, seconds, found)
        if time.monotonic() >= give_up:
            raise DeployBusyError(project, found.holder or "", found.token)
        time.sleep(min(0.2, seconds / 4))


def _take(
    store: ControlStore, connection: Connection, project: str, holder: str, seconds: float
) -> tuple[int, bool] | _LeaseState:
    now = store.now(connection)
    values = {"holder": holder[:255], "until": now + int(seconds * 1000), "since": now}
    row = _locked(connection, project)
    if row is None:
        connection.execute(insert(LEASES).values(project=project, token=1, **values))
        return 1, False
    if row.until is not None and row.until > now:
        return _LeaseState(row.token, row.holder, row.until, row.since)
    connection.execute(update(LEASES).where(_L.project == project).values(token=row.token + 1, **values))
    return row.token + 1, row.until is not None


def _locked(connection: Connection, project: str) -> Row[tuple[object, ...]] | None:
    return connection.execute(select(LEASES).where(_L.project == project).with_for_update()).one_or_none()
