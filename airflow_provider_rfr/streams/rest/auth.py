"""Credentials that have to be fetched: OAuth2 access tokens and session tokens.

Makes authenticators of their definitions.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import AuthenticationError, SourceDefinitionError, SourceError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.client import (
    ApiKeyInQuery,
    Authenticator,
    Draft,
    FixedHeader,
    Limits,
    NoAuthenticator,
    Transport,
    basic_header,
    check_base_url,
    join_url,
    plain_values,
)
from airflow_provider_rfr.streams.rest.definition import ErrorHandler as ErrorHandlerDefinition
from airflow_provider_rfr.streams.rest.definition import Place as PlaceDefinition
from airflow_provider_rfr.streams.rest.error_handler import ErrorHandler, Verdict, build_error_handler, repeat
from airflow_provider_rfr.streams.rest.expressions import CONFIG_NAMES, MISSING, Path, compile_value, lookup, parse_path
from airflow_provider_rfr.streams.rest.responses import Answer

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


class _TokenAuthenticator(Authenticator):
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
class _OAuth2Settings:
    """What the token endpoint wants to know."""

    token_url: str
    form: Mapping[str, Any]
    headers: Mapping[str, str]
    token_path: Path
    expires_path: Path
    expires_in: float | None

    def __repr__(self) -> str:
        return "OAuth2Settings()"


class _OAuth2(_TokenAuthenticator):
    """Client credentials, or a refresh token.  A rotated refresh token is kept for this process only."""

    def __init__(self, settings: _OAuth2Settings, place: Place, endpoint: Endpoint, redactor: Redactor) -> None:
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
class _LoginSettings:
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


class _SessionToken(_TokenAuthenticator):
    """A token that a login request gives."""

    def __init__(self, login: _LoginSettings, place: Place, endpoint: Endpoint, redactor: Redactor) -> None:
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


def build_authenticator(
    definition: model.Authenticator | None,
    place: str,
    config: Mapping[str, Any],
    base_url: str,
    transport: Transport,
    limits: Limits,
    budgets: ErrorHandlerDefinition | None = None,
) -> Authenticator:
    """The authenticator of a definition.

    :param budgets: how often and how long a token's request is repeated

    :raises SourceDefinitionError: a template is wrong, or a credential is empty
    """
    if definition is None or isinstance(definition, model.NoAuthenticator):
        return NoAuthenticator()
    endpoint = Endpoint(transport, limits, _handler(budgets, transport))
    return _Builder(place, config, base_url, endpoint).build(definition)


class _Builder:
    def __init__(self, place: str, config: Mapping[str, Any], base_url: str, endpoint: Endpoint) -> None:
        self._place = place
        self._config = config
        self._base_url = base_url
        self._endpoint = endpoint
        self._redactor = endpoint.transport.redactor

    def build(self, item: model.Authenticator) -> Authenticator:
        redactor = self._redactor
        if isinstance(item, model.ApiKey):
            value = self._text(item.value, "value")
            if item.send_as.query is not None:
                return ApiKeyInQuery(item.send_as.query, value, redactor)
            return FixedHeader(str(item.send_as.header), value, redactor)
        if isinstance(item, model.Bearer):
            return FixedHeader("Authorization", self._text(item.token, "token"), redactor, prefix="Bearer ")
        if isinstance(item, model.Basic):
            return FixedHeader("Authorization", basic_header(*self._user(item, ""), redactor), redactor)
        if isinstance(item, model.OAuth2):
            return _OAuth2(self._oauth2(item), Place("Authorization", prefix=item.prefix), self._endpoint, redactor)
        if isinstance(item, model.SessionToken):
            place = _place(item.send_as, item.prefix, f"{self._place}.send_as")
            handler = replace(self._endpoint.handler, json_required=item.token.header is None)
            return _SessionToken(self._login(item), place, replace(self._endpoint, handler=handler), redactor)
        return NoAuthenticator()

    def _value(self, value: Any, field: str) -> Any:
        template = compile_value(value, f"{self._place}.{field}", CONFIG_NAMES, self._config)
        return template({"config": self._config})

    def _text(self, value: str, field: str, *, may_be_empty: bool = False) -> str:
        text = self._value(value, field)
        if (text is None or text == "") and not may_be_empty:
            raise SourceDefinitionError(f"{self._place}.{field}", "is empty", "check the config it is taken from")
        return str(text)

    def _user(self, item: model.Basic, prefix: str) -> tuple[str, str]:
        username = self._text(item.username, f"{prefix}username")
        return username, self._text(item.password, f"{prefix}password", may_be_empty=True)

    def _oauth2(self, item: model.OAuth2) -> _OAuth2Settings:
        form: dict[str, Any] = {"grant_type": item.grant}
        headers = {name: str(value) for name, value in plain_values(self._value(item.headers, "headers")).items()}
        client = {
            name: self._text(value, name)
            for name, value in (("client_id", item.client_id), ("client_secret", item.client_secret))
            if value is not None
        }
        self._redactor.add(client.get("client_secret"))
        if item.client_in == "header":
            user, password = client.get("client_id", ""), client.get("client_secret", "")
            headers["Authorization"] = basic_header(user, password, self._redactor)
        else:
            form.update(client)
        if item.refresh_token is not None:
            form["refresh_token"] = self._text(item.refresh_token, "refresh_token")
            self._redactor.add(form["refresh_token"])
        if item.scopes:
            form["scope"] = " ".join(str(self._value(scope, "scopes")) for scope in item.scopes)
        form.update(plain_values(self._value(item.extra, "extra")))
        return _OAuth2Settings(
            token_url=self._url(item.token_url, "token_url"),
            form=form,
            headers=headers,
            token_path=parse_path(item.token_path),
            expires_path=parse_path(item.expires_path),
            expires_in=item.expires_in,
        )

    def _login(self, item: model.SessionToken) -> _LoginSettings:
        login = item.login
        headers = {k: str(v) for k, v in plain_values(self._value(login.headers, "login.headers")).items()}
        if login.basic is not None:
            headers["Authorization"] = basic_header(*self._user(login.basic, "login.basic."), self._redactor)
        form = None if login.form is None else plain_values(self._value(login.form, "login.form"))
        return _LoginSettings(
            method=login.method,
            url=self._url(login.url, "login.url"),
            query=plain_values(self._value(login.query, "login.query")),
            headers=headers,
            json=self._value(login.json_, "login.json"),
            form=form,
            token_path=None if item.token.path is None else parse_path(item.token.path),
            token_header=item.token.header,
            expires_in=item.expires_in,
        )

    def _url(self, value: str, field: str) -> str:
        """An address of its own, or a path below the base URL."""
        text = self._text(value, field)
        url = text if "://" in text else join_url(self._base_url, text)
        return check_base_url(urljoin(url, ""), f"{self._place}.{field}", self._redactor.text)


def _handler(budgets: ErrorHandlerDefinition | None, transport: Transport) -> ErrorHandler:
    """The stream's budgets and backoff without its rules, which are about the stream's answers."""
    plain = (budgets or ErrorHandlerDefinition()).model_copy(update={"rules": [], "expired_token_status": []})
    return build_error_handler(plain, transport.redactor)


def _place(send_as: PlaceDefinition, prefix: str, place: str) -> Place:
    if send_as.header is None and send_as.query is None:
        raise SourceDefinitionError(place, "a token is sent as a header or a query parameter")
    return Place(send_as.header, send_as.query, prefix)
