"""Leases: the right of one holder at a time to work on something, until a time.

There are leases of deploys, runs of a sink, alterations of a connection, refresh tokens, and the upkeep of history
tables.

A lease ends by itself when its holder no longer renews it, so a dead process does not block others for long. A holder
that was paused while its lease ran out may wake up while the next one works. Therefore a lease has a fencing token,
which only goes up, and each write that depends on the lease compares it in its own transaction.

Also here: refresh tokens that a token endpoint issued in place of the configured ones, each redeemed under a lease.
Each row is encrypted with a key derived from the configured refresh token, so the database alone reveals no token.
The configured refresh token grants the same access, so it may decrypt the row.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, select, update
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    DeployBusyError,
    LeaseLostError,
    PreflightError,
    SourceError,
)
from airflow_provider_rfr.store.engine import ControlStore, insert_missing, open_store, upsert
from airflow_provider_rfr.store.tables import LEASES, REFRESH_TOKENS

_T = TypeVar("_T")
_L: Final = LEASES.c
SECONDS: Final = 60.0
"""Duration of a deploy's lease after each renewal."""
PATIENCE: Final = 90.0
"""Seconds to wait for another deploy: longer than one that died keeps its lease."""
_log = logging.getLogger(__name__)


class LeaseKind(str, Enum):
    """A kind of work that one process at a time may do."""

    DEPLOY = "deploy"
    SINK = "sink"
    CONNECTION = "connection"
    REFRESH_TOKEN = "refresh_token"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class _LeaseState:
    """A lease as it is stored.

    :ivar token: fencing token; 0 if it never had a holder
    :ivar until: its end, in milliseconds since 1970; None if it is free
    """

    token: int = 0
    holder: str | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as it was granted to its holder.

    :ivar token: fencing token of the holder
    :ivar milliseconds: duration after each renewal
    """

    kind: LeaseKind
    name: str
    token: int
    milliseconds: int

    def renew(self, connection: Connection, now: int) -> bool:
        """Renew the lease, and keep it from being taken until this transaction ends; False if it is lost.

        A lease that ran out, but was not taken by another holder, is renewed, too.
        """
        # A lease that was given back has no end and stays free: a late write must not revive it.
        ours = update(LEASES).where(_is(self.kind, self.name), _L.token == self.token, _L.until.is_not(None))
        return connection.execute(ours.values(until=now + self.milliseconds)).rowcount == 1

    def release(self, connection: Connection) -> None:
        """Give the lease back, unless it is lost."""
        # The row and its token stay: the next holder's token has to be greater than every one before.
        ours = update(LEASES).where(_is(self.kind, self.name), _L.token == self.token)
        connection.execute(ours.values(holder=None, until=None))


def _is(kind: LeaseKind, name: str) -> ColumnElement[bool]:
    return (_L.kind == kind.value) & (_L.name == name)


def lease_state(connection: Connection, kind: LeaseKind, name: str) -> _LeaseState:
    """Return the lease as it is stored, even if it has expired."""
    row = connection.execute(select(_L.token, _L.holder, _L.until).where(_is(kind, name))).one_or_none()
    return _LeaseState() if row is None else _LeaseState(*row)


def take_lease(
    connection: Connection, now: int, kind: LeaseKind, name: str, holder: str, milliseconds: int
) -> Grant | None:
    """Take the lease, if it is free or has expired; None while another holder has it."""
    # The row is inserted first: a missing row can't be locked, and two processes would both find the lease free.
    insert_missing(connection, LEASES, [{"kind": kind.value, "name": name, "token": 0, "milliseconds": 0}])
    row = connection.execute(select(LEASES).where(_is(kind, name)).with_for_update()).one()
    # A lease that ends more than two durations from now was written by a clock that ran ahead: it does not count.
    if row.until is not None and now < row.until <= now + 2 * row.milliseconds:
        return None
    values = {"token": row.token + 1, "holder": holder[:255], "until": now + milliseconds, "milliseconds": milliseconds}
    connection.execute(update(LEASES).where(_is(kind, name)).values(**values))
    return Grant(kind, name, row.token + 1, milliseconds)


def revoke_lease(connection: Connection, kind: LeaseKind, name: str) -> None:
    """Take the lease from its holder, if there is one: the token goes up, so the holder can't write any more."""
    revoked = update(LEASES).where(_is(kind, name)).values(token=_L.token + 1, holder=None, until=None)
    connection.execute(revoked)


def default_holder() -> str:
    """Return host and process id of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Lease:
    """A held lease; a context manager that renews it on a thread of its own, and gives it back.

    :param lost: makes the error for a lost lease, from its token and the present one
    :ivar name: name of the leased thing
    :ivar token: fencing token
    """

    def __init__(self, store: ControlStore, grant: Grant, lost: Callable[[int, int], Exception]) -> None:
        self._store = store
        self._grant = grant
        self._lost = lost
        self.name = grant.name
        self.token = grant.token
        self._end = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name=f"rfr-lease-{grant.name}", daemon=True)

    def __enter__(self) -> Lease:
        self._renewing.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._renewing.join()
        # If the store can't be reached, the lease runs out by itself; the outcome of the work counts more.
        with suppress(SQLAlchemyError):
            self._store.run(self._grant.release, patience=5.0)

    def ensure(self) -> None:
        """Check that nobody else took the lease, before something is done outside the store.

        :raises Exception: the error that ``lost`` makes
        """
        with self._store.read() as connection:
            token = lease_state(connection, self._grant.kind, self.name).token
        # The end of the lease is not looked at: while nobody else took it, it can still be renewed.
        if token != self.token:
            raise self._lost(self.token, token)

    def write(self, work: Callable[[Connection, int], _T]) -> _T:
        """Run ``work`` in one transaction, during which the lease can't be lost.

        :param work: gets the connection and the present time, in milliseconds since 1970
        :raises Exception: the error that ``lost`` makes; nothing was written
        """

        def checked(connection: Connection) -> _T:
            now = self._store.now(connection)
            # The renewal locks the row, so that nobody takes the lease before this transaction ends.
            if not self._grant.renew(connection, now):
                raise self._lost(self.token, lease_state(connection, self._grant.kind, self.name).token)
            return work(connection, now)

        return self._store.run(checked)

    def _renew(self) -> None:
        # Four times in its duration, in seconds.
        while not self._end.wait(self._grant.milliseconds / 4000):
            # A store that can't be reached for a moment is asked again: the lease outlives some missed renewals.
            with suppress(SQLAlchemyError):
                # Where it is lost, this thread has nobody to tell: the holder's next write or ensure() compares the
                # token itself.
                if not self._store.run(lambda connection: self._grant.renew(connection, self._store.now(connection))):
                    return


def acquire(
    store: ControlStore, project: str, *, holder: str = "", seconds: float = SECONDS, patience: float = 0.0
) -> Lease:
    """Acquire the lease on deploys of a project.

    :param holder: shown to others; host and process by default
    :param seconds: duration after each renewal
    :param patience: seconds to wait while another process holds it
    :raises DeployBusyError: another process holds it
    """
    deadline, has_warned = time.monotonic() + patience, False

    def take(connection: Connection) -> Grant | _LeaseState:
        now, lease = store.now(connection), (LeaseKind.DEPLOY, project)
        grant = take_lease(connection, now, *lease, holder or default_holder(), int(seconds * 1000))
        return grant or lease_state(connection, *lease)

    while True:
        outcome = store.run(take)
        if isinstance(outcome, Grant):
            return Lease(store, outcome, lambda token, newer: LeaseLostError(project, token, newer))
        if time.monotonic() >= deadline:
            raise DeployBusyError(project, outcome.holder or "", outcome.token)
        if not has_warned:
            has_warned = True
            limits = f"{patience:.0f} s at most; a process that died blocks it for {seconds:.0f} s"
            _log.warning("project %s is being deployed by %s: waiting for it, %s", project, outcome.holder, limits)
        time.sleep(min(0.2, seconds / 4))


def force_unlock(store: ControlStore, project: str, token: int) -> None:
    """Revoke the lease on deploys of a project, whose holder is dead.

    :param token: fencing token of the lease to revoke
    :raises LeaseLostError: another holder has taken the lease since
    """

    def unlock(connection: Connection) -> None:
        lease = (LeaseKind.DEPLOY, project)
        # Locked first, so that the lease that is revoked is the one that was looked at.
        connection.execute(select(_L.token).where(_is(*lease)).with_for_update())
        present = lease_state(connection, *lease).token
        if present != token:
            raise LeaseLostError(project, token, present)
        revoke_lease(connection, *lease)

    store.run(unlock)


_R: Final = REFRESH_TOKENS.c
_LEASE_MILLISECONDS: Final = 30_000
_POLL_SECONDS: Final = 0.2
_STORE_PATIENCE: Final = 10.0


class RefreshTokens:
    """A store of the newest refresh token of each grant, for all refreshes with the same control store; thread-safe.

    A grant is identified by a text with the configured refresh token. The store is opened at the first use.

    :param url: URL of the control store, for SQLAlchemy
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = threading.Lock()
        self._store: ControlStore | None = None
        self._has_warned = False

    @contextmanager
    def turn(self, grant: str, check: Callable[[], None]) -> Iterator[None]:
        """Return a context in which no other refresh redeems the grant's refresh token.

        :param check: called while another refresh redeems it; an error that it raises ends the wait
        :raises SourceError: the store can't be reached; the caller must not redeem a token that may be replaced
        """
        store, name = self._opened(), _digest("name", grant)

        def take(connection: Any) -> Any:
            now = store.now(connection)
            return take_lease(connection, now, LeaseKind.REFRESH_TOKEN, name, default_holder(), _LEASE_MILLISECONDS)

        # A lease of the store and no lock of this process: drivers on other machines redeem the same token.
        while (granted := _asked(store, take)) is None:
            check()
            time.sleep(_POLL_SECONDS)
        with Lease(store, granted, lambda ours, present: SourceError("another refresh redeems the refresh token")):
            yield

    def load(self, grant: str) -> str | None:
        """Return the refresh token that replaced the configured one, None if none did.

        :raises SourceError: the store can't be reached, or the row was not written by :meth:`keep`
        """
        query = select(_R.sealed).where(_R.grant == _digest("name", grant))
        sealed = _asked(self._opened(), lambda connection: connection.execute(query).scalar_one_or_none())
        if sealed is None:
            return None
        fernet, invalid = _sealing(grant)
        try:
            return str(fernet.decrypt(sealed.encode()).decode())
        except invalid:
            problem = "the refresh token in the control store can't be unsealed"
        raise SourceError(f"{problem}: delete its row of {REFRESH_TOKENS.name}, and authorize again")

    def keep(self, grant: str, refresh_token: str) -> bool:
        """Replace the grant's refresh token; return False, with a warning, if the store can't be written."""
        name, sealed = _digest("name", grant), _sealing(grant)[0].encrypt(refresh_token.encode()).decode()
        store = self._opened()

        def write(connection: Any) -> None:
            row = {"grant": name, "sealed": sealed, "replaced_at": store.now(connection)}
            upsert(connection, REFRESH_TOKENS, row)

        try:
            store.run(write)
        except SQLAlchemyError as error:
            _log.warning(
                "the token endpoint replaced the refresh token, and the new one could not be kept in the control store"
                " (%s): if the next one can't be kept either, the next run has to be authorized again",
                type(error).__name__,
            )
            return False
        if not self._has_warned and not store.is_postgres:
            self._has_warned = True
            _log.warning(
                "the token endpoint replaced the refresh token; the new one is kept in the control store, which is a"
                " file: a run on another machine can't read it, and has to be authorized again"
            )
        return True

    def _opened(self) -> ControlStore:
        with self._opening:
            if self._store is None:
                # Check for the library before a token is redeemed: without it, no token can be kept.
                _sealing("")
                try:
                    self._store = open_store(self._url)
                except ConfigurationError as error:
                    problem = f"the control store, which may hold a newer refresh token, can't be opened: {error}"
                else:
                    return self._store
                raise SourceError(problem)
            return self._store


def _asked(store: ControlStore, work: Callable[[Any], Any]) -> Any:
    try:
        return store.run(work, patience=_STORE_PATIENCE)
    except SQLAlchemyError as error:
        kind = type(error).__name__
    raise SourceError(f"the control store, which may hold a newer refresh token, can't be reached ({kind})")


def _digest(purpose: str, grant: str) -> str:
    return hashlib.sha256(f"rfr refresh token, {purpose}\0{grant}".encode()).hexdigest()


def _sealing(grant: str) -> tuple[Any, type[Exception]]:
    """Return the cipher for the grant's refresh token, and the error that it raises for another key."""
    try:
        from cryptography.fernet import Fernet, InvalidToken
    except ImportError:
        raise PreflightError(
            "replaced refresh tokens are stored encrypted: pip install cryptography where the driver runs"
        ) from None
    key = base64.urlsafe_b64encode(bytes.fromhex(_digest("seal", grant)))
    return Fernet(key), InvalidToken
