"""Credentials that have to be fetched: OAuth2 access tokens and session tokens."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_rfr.exceptions import AuthenticationError, SourceError
from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.rest.actions import Verdict
from airflow_provider_rfr.streams.rest.answer import Answer
from airflow_provider_rfr.streams.rest.authenticators import Authenticator
from airflow_provider_rfr.streams.rest.error_handler import ErrorHandler
from airflow_provider_rfr.streams.rest.paths import MISSING, Path, lookup
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.retrying import repeat
from airflow_provider_rfr.streams.rest.transport import Draft, Limits, Transport

log = logging.getLogger(__name__)

_MARGIN: Final = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a credential is put: a header with a prefix, or a query parameter."""

    header: str | None = None
    query: str | None = None
    prefix: str = ""

    def put(self, draft: Draft, secret: str) -> None:
        """Add the credential to a request."""
        if self.header is not None:
            draft.headers[self.header] = self.prefix + secret
        elif self.query is not None:
            draft.query[self.query] = self.prefix + secret

    def holds(self, draft: Draft, secret: str) -> bool:
        """Whether the request was sent with this credential."""
        sent = draft.headers.get(self.header) if self.header else draft.query.get(self.query or "")
        return sent == self.prefix + secret


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Sends the requests that fetch a token, under the same limits and retries as any other."""

    transport: Transport
    limits: Limits
    handler: ErrorHandler

    def ask(self, draft: Draft, context: ReadContext) -> Answer:
        """:raises AuthenticationError: whatever the reason was that there is no answer"""
        problem: SourceError | None = None
        answer: Answer | None = None

        def attempt() -> Verdict:
            context.limiter.acquire()
            return self.handler.decide(self.transport.send(draft, self.limits), None, {})

        try:
            answer = repeat(attempt, self.handler, context).answer
        except SourceError as error:
            problem = error
        if problem is None and answer is not None:
            return answer
        message = problem.message if problem else "the answer was ignored"
        status, request = (problem.status, problem.request) if problem else (None, None)
        raise AuthenticationError(f"no token could be obtained: {message}", status=status, request=request)


class TokenAuthenticator(Authenticator):
    """Fetches a token when the first request needs it, and anew before it expires or once it's refused."""

    def __init__(self, place: Place, endpoint: Endpoint, redactor: Redactor) -> None:
        self._place = place
        self._endpoint = endpoint
        self._redactor = redactor
        self._lock = threading.Lock()
        self._token: str | None = None
        self._expires = float("inf")
        if place.query is not None:
            redactor.add_parameter(place.query)

    @abstractmethod
    def fetch(self, context: ReadContext) -> tuple[str, float | None]:
        """A new token, and the seconds that it lives, if known."""

    def apply(self, draft: Draft, context: ReadContext) -> None:
        token = self._token
        if token is None or time.monotonic() >= self._expires:
            token = self._renewed(token, context)
        self._place.put(draft, token)

    def renew(self, draft: Draft, context: ReadContext) -> bool:
        refused = self._token
        if refused is not None and self._place.holds(draft, refused):
            self._renewed(refused, context)
        return True

    def _renewed(self, old: str | None, context: ReadContext) -> str:
        while not self._lock.acquire(timeout=0.2):
            context.check()
        try:
            if self._token is not None and self._token != old:
                return self._token
            token, seconds = self.fetch(context)
            self._redactor.add(token)
            # A token that lives shorter than the margin would be fetched for each request.
            self._expires = time.monotonic() + max(seconds - _MARGIN, seconds / 2) if seconds else float("inf")
            self._token = token
            return token
        finally:
            self._lock.release()

    def found(self, answer: Answer, value: Any, where: str) -> str:
        """The token as text.

        :raises AuthenticationError: there is none
        """
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
        raise AuthenticationError(f"the answer has no token at {where}", status=answer.status, request=answer.request)


@dataclass(frozen=True, slots=True)
class OAuth2Settings:
    """What the token endpoint wants to know."""

    token_url: str
    form: Mapping[str, Any]
    headers: Mapping[str, str]
    token_path: Path
    expires_path: Path
    expires_in: float | None

    def __repr__(self) -> str:
        return "OAuth2Settings()"


class OAuth2(TokenAuthenticator):
    """Client credentials, or a refresh token.  A rotated refresh token is kept for this process only."""

    def __init__(self, settings: OAuth2Settings, place: Place, endpoint: Endpoint, redactor: Redactor) -> None:
        super().__init__(place, endpoint, redactor)
        self._settings = settings
        self._refresh_token = settings.form.get("refresh_token")

    def fetch(self, context: ReadContext) -> tuple[str, float | None]:
        settings = self._settings
        form = dict(settings.form)
        if self._refresh_token is not None:
            form["refresh_token"] = self._refresh_token
        draft = Draft("POST", settings.token_url, headers=dict(settings.headers), form=form)
        answer = self._endpoint.ask(draft, context)
        body = answer.json()
        token = self.found(answer, lookup(body, settings.token_path), ".".join(settings.token_path))
        self._keep_rotated(lookup(body, ("refresh_token",)))
        return token, _seconds(lookup(body, settings.expires_path), settings.expires_in)

    def _keep_rotated(self, rotated: Any) -> None:
        if self._refresh_token is None or not isinstance(rotated, str) or rotated in ("", self._refresh_token):
            return
        self._redactor.add(rotated)
        self._refresh_token = rotated
        log.warning("the token endpoint replaced the refresh token; the configured one may no longer be valid")


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The login request, and where its answer has the token."""

    method: str
    url: str
    query: Mapping[str, Any]
    headers: Mapping[str, str]
    json: Any
    form: Mapping[str, Any] | None
    token_path: Path | None
    token_header: str | None
    expires_in: float | None

    def __repr__(self) -> str:
        return "LoginSettings()"


class SessionToken(TokenAuthenticator):
    """A token that a login request gives."""

    def __init__(self, login: LoginSettings, place: Place, endpoint: Endpoint, redactor: Redactor) -> None:
        super().__init__(place, endpoint, redactor)
        self._login = login

    def fetch(self, context: ReadContext) -> tuple[str, float | None]:
        login = self._login
        form = dict(login.form) if login.form is not None else None
        draft = Draft(login.method, login.url, dict(login.query), dict(login.headers), login.json, form)
        answer = self._endpoint.ask(draft, context)
        if login.token_header is not None:
            token = self.found(answer, answer.headers.get(login.token_header), login.token_header)
        else:
            path = login.token_path or ()
            token = self.found(answer, lookup(answer.json(), path), ".".join(path))
        return token, login.expires_in


def _seconds(value: Any, declared: float | None) -> float | None:
    if declared is not None:
        return declared
    if value is MISSING or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if seconds > 0 else None
