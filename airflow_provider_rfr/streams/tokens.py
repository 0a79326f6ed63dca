"""Tokens that streams obtain by a login or an OAuth2 grant. Each credential has one owner, which obtains its tokens.

A process that reads on its own owns its credentials. In a refresh the driver owns them and executors ask it. So one
token serves all tasks, and a single-use refresh token is redeemed once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from airflow_provider_rfr.exceptions import ReadInterrupted

_log = logging.getLogger(__name__)

# A token is replaced so many seconds before it expires.
_MARGIN: Final = 60.0
#: What to say of a token that was refused, obtained again and refused once more.
SAME_TOKEN: Final = (
    "the login returned the token that the API had just refused; check the account's rights, and how the token is sent"
)
# For so many seconds after a failure, other readers get the same error, and after a login that returned the refused
# token, that token: not every thread may try a wrong password.
_FAILURE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.2
_SHORTEST: Final = 1.0
# At its end, the process waits so many seconds for the answer of a token endpoint.
_LAST_SECONDS: Final = 60.0


class Reader(Protocol):
    """A reader that waits for a token; a ReadContext."""

    def check(self) -> None:
        """Check that the reader may go on.

        :raises ReadInterrupted: the reader was stopped
        """

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds.

        :raises ReadInterrupted: the reader was stopped
        """


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token that requests are sent with.

    :ivar expires: when to replace it, on this process's monotonic clock
    :ivar refresh_token: the one to redeem for the next token; None where it stays the same. It never leaves the owner
    """

    value: str = field(repr=False)
    expires: float = inf
    refresh_token: str | None = field(default=None, repr=False)

    @classmethod
    def lasting(cls, value: str, seconds: float | None, refresh_token: str | None = None) -> AccessToken:
        """Make a token that is valid for so many seconds.

        :param seconds: None if that is not known. Less than a second (``expires_in: 0``, an expiry in the past) counts
            as not known: no task would get the token before it has to be replaced
        """
        rest = inf
        if seconds is not None and seconds >= _SHORTEST:
            # At least half of it: a token that is valid for less than the margin would be replaced before each request.
            rest = max(seconds - _MARGIN, seconds / 2)
        return cls(value, time.monotonic() + rest, refresh_token)

    @property
    def digest(self) -> str:
        """Return a hash that identifies the token without revealing it."""
        return digest_of(self.value)

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the token has to be replaced; not below 0."""
        return max(0.0, self.expires - time.monotonic())

    @property
    def has_expired(self) -> bool:
        return self.seconds_left <= 0

    def __reduce__(self) -> tuple[Any, ...]:
        # As a duration, because another machine's monotonic clock shows another time; and without the refresh token.
        return _received, (self.value, self.seconds_left)


def digest_of(value: str) -> str:
    """Return a hash that identifies a token without revealing it."""
    return hashlib.sha256(value.encode()).hexdigest()


def _received(value: str, seconds: float) -> AccessToken:
    return AccessToken(value, time.monotonic() + seconds)


Obtain: TypeAlias = Callable[[Any, str | None], AccessToken]
"""Obtains a token, from the reader's context and the refresh token that replaced the configured one, if any did."""


class RefreshTokenStore(Protocol):
    """A store of the newest refresh token of each grant, for other processes and later runs."""

    def turn(self, grant: str, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context in which no other process redeems the grant's refresh token."""

    def load(self, grant: str) -> str | None:
        """Return the refresh token that replaced the configured one, None if none did."""

    def keep(self, grant: str, refresh_token: str) -> bool:
        """Replace the grant's refresh token; return False if it could not be written."""


_open_token_store: Callable[[], RefreshTokenStore] | None = None


def keep_refresh_tokens(open_token_store: Callable[[], RefreshTokenStore] | None) -> None:
    """Set where this process keeps the refresh tokens that replace configured ones.

    :param open_token_store: called before a refresh token is redeemed; None to keep them in memory only
    """
    global _open_token_store
    _open_token_store = None if open_token_store is None else cache(open_token_store)


class LatestToken:
    """The newest token of a credential, which one thread at a time replaces; thread-safe."""

    def __init__(self) -> None:
        # Held while a token is obtained.
        self._turn = threading.Lock()
        self._token: AccessToken | None = None
        self._failure: tuple[float, Exception] | None = None
        # When the login returned the refused token.
        self._same = -inf

    def get(self, refused: str | None, reader: Reader, obtain: Callable[[], AccessToken]) -> AccessToken:
        """Return a token that is not the refused one, and obtain it if there is none.

        A login may return the refused token again. That is returned, too, because the API may accept it now.

        :param refused: digest of the token that the API refused; None for one that only has expired
        :raises AuthenticationError: no token can be obtained
        :raises ReadInterrupted: the reader was stopped
        """
        with _locked(self._turn, reader):
            # Looked for again under the lock: another thread may have obtained one during the wait for it.
            return self._present(refused) or self._obtained(refused, obtain)

    def get_if_ready(
        self, refused: str | None, reader: Reader, obtain: Callable[[], AccessToken]
    ) -> AccessToken | None:
        """Return the token without a wait. None if it has to be obtained; then a thread does that in the background.

        :raises AuthenticationError: no token can be obtained
        """
        # Never waits: the driver answers heartbeats in the same thread.
        if not self._turn.acquire(blocking=False):
            return None
        try:
            if (token := self._present(refused)) is not None:
                return token
        finally:
            self._turn.release()

        def get() -> None:
            try:
                self.get(refused, reader, obtain)
            except Exception:  # noqa: BLE001 - kept, for whoever asks next
                return

        threading.Thread(target=get, name="rfr-token", daemon=True).start()
        return None

    def _present(self, refused: str | None) -> AccessToken | None:
        token, is_same = self._token, time.monotonic() - self._same < _FAILURE_SECONDS
        if token is not None and (token.digest != refused or is_same) and not token.has_expired:
            return token
        if self._failure is not None and time.monotonic() - self._failure[0] < _FAILURE_SECONDS:
            # A copy, because the caller adds the partition to it.
            raise copy.copy(self._failure[1])
        return None

    def _obtained(self, refused: str | None, obtain: Callable[[], AccessToken]) -> AccessToken:
        try:
            token = obtain()
        # A stopped reader says nothing about the credential, so the other readers do not get this error.
        except ReadInterrupted:
            raise
        except Exception as error:
            self._failure = (time.monotonic(), error)
            raise
        self._failure = None
        self._token, self._same = token, time.monotonic() if token.digest == refused else -inf
        return token


class _Grant:
    """A configured refresh token and where it is redeemed, shared by all credentials of this process that redeem it.

    :ivar turn: held while a refresh token is redeemed, and until its successor is kept
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.turn = threading.Lock()
        # The newest refresh token, while it is in this process alone and not in the store.
        self._refresh_token: str | None = None

    def redeem(self, obtain: Obtain, reader: Reader) -> AccessToken:
        """Obtain a token with the newest refresh token, and keep the one that replaces it."""
        token_store = None if _open_token_store is None else _open_token_store()
        with _locked(self.turn, reader), token_store.turn(self._name, reader.check) if token_store else nullcontext():
            token = obtain(reader, self._refresh_token or (token_store.load(self._name) if token_store else None))
            # Stored at once: if the process dies before, the new refresh token is lost and the old one is spent.
            if token.refresh_token is not None:
                self._keep(token.refresh_token, token_store)
        return token

    def _keep(self, refresh_token: str, token_store: RefreshTokenStore | None) -> None:
        is_first = self._refresh_token is None
        # Before the store is called: if that fails, the next try must not redeem the spent one.
        self._refresh_token = refresh_token
        if token_store is not None:
            if token_store.keep(self._name, refresh_token):
                # From here on the store is right, also where another process redeems the token next.
                self._refresh_token = None
        elif is_first:
            _log.warning(
                "the token endpoint replaced the refresh token, and the new one is lost when this process ends:"
                " name a control store, which keeps it for the next run (store: URL in the refresh's document)"
            )


class Credential:
    """A credential with the newest token that was obtained by it; thread-safe.

    :ivar key: the same in each process that builds the same source
    :param grant: the refresh token that it redeems; None if there is none
    """

    def __init__(self, key: str, obtain: Obtain, grant: _Grant | None = None) -> None:
        self.key = key
        self.obtain = obtain
        self._grant = grant
        self._latest = LatestToken()

    def token(self, refused: str | None, reader: Reader) -> AccessToken:
        """Return a token that is not the refused one; see :meth:`LatestToken.get`."""
        return self._latest.get(refused, reader, lambda: self._obtained(reader))

    def token_if_ready(self, refused: str | None, reader: Reader) -> AccessToken | None:
        """Return the token, None while it is obtained; see :meth:`LatestToken.get_if_ready`."""
        return self._latest.get_if_ready(refused, reader, lambda: self._obtained(reader))

    def _obtained(self, reader: Reader) -> AccessToken:
        return self.obtain(reader, None) if self._grant is None else self._grant.redeem(self.obtain, reader)

    def __repr__(self) -> str:
        return "Credential()"


@contextmanager
def _locked(lock: threading.Lock, reader: Reader) -> Iterator[None]:
    # The thread that holds it may wait for the API for minutes, and the reader may be stopped meanwhile.
    while not lock.acquire(timeout=_POLL_SECONDS):
        reader.check()
    try:
        yield
    finally:
        lock.release()


class TokenOwner(Protocol):
    """The process that obtains tokens for all readers."""

    def token(self, credential: Credential, refused: str | None, context: Reader) -> AccessToken:
        """Return a token of the credential that is not the refused one; see :meth:`LatestToken.get`."""


class OwnTokens:
    """A token owner that obtains tokens in this process."""

    def token(self, credential: Credential, refused: str | None, context: Reader) -> AccessToken:
        return credential.token(refused, context)


_credentials: Final[dict[str, Credential]] = {}
_grants: Final[dict[str, _Grant]] = {}
_registering: Final = threading.Lock()


def shared_credential(key: str, obtain: Obtain, grant: str | None = None) -> Credential:
    """Return this process's credential with the key, for all streams that are built with it.

    It is kept until the process ends, because a replaced refresh token can't be redeemed again.

    :param obtain: takes the place of one with which the credential was built before
    :param grant: the configured refresh token and its token endpoint; None if there is none
    """
    with _registering:
        shared_grant = None if grant is None else _grants.setdefault(grant, _Grant(grant))
        credential = _credentials.setdefault(key, Credential(key, obtain, shared_grant))
        credential.obtain = obtain
        return credential


def find_credential(key: str) -> Credential | None:
    """Return this process's credential with the key, None if no stream was built with it."""
    return _credentials.get(key)


def finish_redemptions() -> None:
    """Wait until no refresh token is being redeemed: one whose successor is not kept yet is lost with this process."""
    until = time.monotonic() + _LAST_SECONDS
    for grant in list(_grants.values()):
        if grant.turn.acquire(timeout=max(0.0, until - time.monotonic())):
            grant.turn.release()


def key_of(*parts: Any) -> str:
    """Return a hash of the parts that determine a token. It reveals none of them."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
