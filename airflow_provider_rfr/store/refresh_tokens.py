"""Refresh tokens that a token endpoint issued in place of the configured ones.

Each row is encrypted with a key derived from the configured refresh token, so the database alone reveals no token.
The configured refresh token grants the same access, so it may decrypt the row.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError, SourceError
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import Lease, LeaseKind, default_holder, take_lease
from airflow_provider_rfr.store.tables import REFRESH_TOKENS

_log = logging.getLogger(__name__)
_T: Final = REFRESH_TOKENS.c
_LEASE_MILLISECONDS: Final = 30_000
_POLL_SECONDS: Final = 0.2
_PATIENCE: Final = 10.0


class RefreshTokens:
    """The newest refresh token of each grant, for every refresh that uses the same control store; thread-safe.

    A grant is identified by a text with the configured refresh token. The store is opened at the first use.

    :param url: SQLAlchemy's address of the control store
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
        query = select(_T.sealed).where(_T.grant == _digest("name", grant))
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
            values = {"sealed": sealed, "replaced_at": store.now(connection)}
            # Whoever keeps a token holds the grant's lease, so nobody inserts the row between the two statements.
            if not connection.execute(update(REFRESH_TOKENS).where(_T.grant == name).values(**values)).rowcount:
                connection.execute(insert(REFRESH_TOKENS).values(grant=name, **values))

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
        return store.run(work, patience=_PATIENCE)
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
