"""Authenticators: fixed credentials, and tokens that have to be fetched (OAuth2, session tokens)."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import AuthenticationError, SourceDefinitionError, SourceError
from airflow_provider_rfr.http.client import Limits
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._client import (
    Authenticator,
    Draft,
    Transport,
    check_base_url,
    join_url,
    plain_values,
)
from airflow_provider_rfr.streams.rest._errors import ErrorHandler, Retries
from airflow_provider_rfr.streams.rest._responses import Response
from airflow_provider_rfr.streams.rest.templates import (
    CONFIG_NAMES,
    MISSING,
    Path,
    Scope,
    compile_value,
    lookup,
    parse_path,
)
from airflow_provider_rfr.streams.tokens import AccessToken, key_of, shared_credential


@dataclass(frozen=True, slots=True)
class _CredentialPlace:
    """The place of a credential: a header or a query parameter, with a prefix."""

    header: str | None = None
    query: str | None = None
    prefix: str = ""

    def put(self, draft: Draft, secret: str) -> None:
        if self.header is not None:
            draft.headers[self.header] = self.prefix + secret
        elif self.query is not None:
            draft.query[self.query] = self.prefix + secret

    def holds(self, draft: Draft, secret: str) -> bool:
        """Tell whether the request was sent with this credential."""
        sent = draft.headers.get(self.header) if self.header else draft.query.get(self.query or "")
        return sent == self.prefix + secret


class _FixedCredential(Authenticator):
    def __init__(self, place: _CredentialPlace, secret: str) -> None:
        self._place = place
        self._secret = secret

    def apply(self, draft: Draft, context: ReadContext) -> None:
        self._place.put(draft, self._secret)


@dataclass(frozen=True, slots=True)
class _TokenEndpoint:
    """An endpoint to which requests for a token are sent, under the same limits and budgets as any other.

    :ivar timeout: seconds for one request
    """

    transport: Transport
    timeout: float
    limits: Limits
    handler: ErrorHandler

    def ask(self, draft: Draft, context: ReadContext) -> Response:
        """Request a token and return the answer.

        :raises AuthenticationError: there is no answer, for any reason
        """
        problem: SourceError | None = None
        retries = Retries(self.handler, context)
        try:
            while True:
                context.limiter.acquire()
                outcome = self.transport.send(draft, self.timeout, self.limits)
                verdict = self.handler.decide(outcome, None, {})
                if not retries.wait_after(verdict):
                    break
        except SourceError as error:
            problem = error
        if problem is None and verdict.answer is not None:
            return verdict.answer
        message = problem.message if problem else "the answer was ignored"
        status, request = (problem.status, problem.request) if problem else (None, None)
        raise AuthenticationError(f"no token could be obtained: {message}", status=status, request=request)


class _TokenAuthenticator(Authenticator, ABC):
    """Sends a token. Its owner obtains it for the first request, before it expires, and once it is
    refused."""

    is_renewable = True

    def __init__(
        self,
        place: _CredentialPlace,
        request: Draft,
        endpoint: _TokenEndpoint,
        decisive: Sequence[Any],
        grant: str | None = None,
    ) -> None:
        """Share the credential with all readers whose request and settings are the same.

        :param decisive: settings other than the request that determine the token and its lifetime
        :param grant: the refresh token and its token endpoint; None without a refresh token
        """
        self._place = place
        self._request = request
        self._endpoint = endpoint
        self._redactor = endpoint.transport.redactor
        key = (request.method, request.url, request.query, request.headers, request.json, request.form, *decisive)
        self._credential = shared_credential(key_of(type(self).__name__, *key), self.obtain, grant)
        self._token: AccessToken | None = None
        if place.query is not None:
            self._redactor.add_parameter(place.query)

    @abstractmethod
    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        """Obtain a token.

        :param refresh_token: the one that replaced the configured one; None if none did
        """

    def apply(self, draft: Draft, context: ReadContext) -> None:
        token = self._token
        if token is None or token.has_expired:
            token = self._renewed(token, context)
        self._place.put(draft, token.value)

    def renew(self, draft: Draft, context: ReadContext) -> bool:
        refused = self._token
        if refused is not None and self._place.holds(draft, refused.value):
            self._renewed(refused, context)
        # Otherwise another thread has replaced the token since the draft was made.
        return True

    def _renewed(self, old: AccessToken | None, context: ReadContext) -> AccessToken:
        token = context.tokens.token(self._credential, None if old is None else old.digest, context)
        self._redactor.add(token.value)
        self._token = token
        return token

    def checked(self, answer: Response, value: Any, where: str) -> str:
        """Return the token as text.

        :raises AuthenticationError: it is missing
        """
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
        raise AuthenticationError(f"the answer has no token at {where}", status=answer.status, request=answer.request)


class _OAuth2(_TokenAuthenticator):
    """Client credentials, or a refresh token, also one that each use replaces."""

    def __init__(self, item: model.OAuth2, request: Draft, endpoint: _TokenEndpoint) -> None:
        place = _CredentialPlace("Authorization", prefix=item.prefix)
        refresh_token = (request.form or {}).get("refresh_token")
        grant = None if refresh_token is None else f"{request.url} {refresh_token}"
        super().__init__(place, request, endpoint, (item.token_path, item.expires_path, item.expires_in), grant)
        self._item = item
        self._token_path: Path = parse_path(item.token_path)

    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        request, form = self._request, dict(self._request.form or {})
        if refresh_token is not None:
            self._redactor.add(refresh_token)
            form["refresh_token"] = refresh_token
            request = replace(request, form=form)
        answer = self._endpoint.ask(request, context)
        body = answer.json()
        token = self.checked(answer, lookup(body, self._token_path), ".".join(self._token_path))
        rotated = lookup(body, ("refresh_token",))
        if "refresh_token" not in form or not isinstance(rotated, str) or rotated in ("", form["refresh_token"]):
            rotated = None
        else:
            self._redactor.add(rotated)
        return AccessToken.lasting(token, self._item.expires_in or self._seconds(body), rotated)

    def _seconds(self, body: Any) -> float | None:
        seconds = lookup(body, parse_path(self._item.expires_path))
        try:
            return None if seconds is MISSING or isinstance(seconds, bool) else float(seconds)
        except (TypeError, ValueError):
            return None


class _SessionToken(_TokenAuthenticator):
    """A token from a login request."""

    def __init__(
        self, item: model.SessionToken, place: _CredentialPlace, request: Draft, endpoint: _TokenEndpoint
    ) -> None:
        super().__init__(place, request, endpoint, (item.token.path, item.token.header, item.expires_in))
        self._item = item

    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        answer, origin = self._endpoint.ask(self._request, context), self._item.token
        if origin.header is not None:
            token = self.checked(answer, answer.headers.get(origin.header), origin.header)
        else:
            path = parse_path(origin.path or ())
            token = self.checked(answer, lookup(answer.json(), path), ".".join(path))
        return AccessToken.lasting(token, self._item.expires_in)


def build_authenticator(
    definition: model.Authenticator | None,
    place: str,
    config: Mapping[str, Any],
    base_url: str,
    transport: Transport,
    timeout: float,
    limits: Limits,
    error_handler: model.ErrorHandler | None = None,
) -> Authenticator:
    """Build the authenticator of a definition.

    :param timeout: seconds for a token's request, as ``limits``
    :param error_handler: how often and how long a token's request is repeated
    :raises SourceDefinitionError: a template is wrong, or a credential is empty
    """
    if definition is None or isinstance(definition, model.NoAuthenticator):
        return Authenticator()
    # Budgets and backoff without the rules, which are about the stream's answers.
    budgets = (error_handler or model.ErrorHandler()).model_copy(update={"rules": [], "expired_token_status": []})
    has_body = not isinstance(definition, model.SessionToken) or definition.token.header is None
    handler = budgets.bind(Scope("error_handler", config), transport.redactor, json_required=has_body)
    return _Builder(place, config, base_url, _TokenEndpoint(transport, timeout, limits, handler)).build(definition)


@dataclass(frozen=True)
class _Builder:
    place: str
    config: Mapping[str, Any]
    base_url: str
    endpoint: _TokenEndpoint

    @property
    def redactor(self) -> Redactor:
        return self.endpoint.transport.redactor

    def build(self, item: model.Authenticator) -> Authenticator:
        if isinstance(item, model.OAuth2):
            return self._oauth2(item)
        if isinstance(item, model.SessionToken):
            return self._session_token(item)
        if isinstance(item, model.ApiKey):
            secret, place = self._text(item.value, "value"), _CredentialPlace(item.send_as.header, item.send_as.query)
            if item.send_as.query is not None:
                self.redactor.add_parameter(item.send_as.query)
        elif isinstance(item, model.Bearer):
            secret, place = self._text(item.token, "token"), _CredentialPlace("Authorization", prefix="Bearer ")
        elif isinstance(item, model.Basic):
            secret, place = self._basic(item, ""), _CredentialPlace("Authorization")
        else:
            return Authenticator()
        self.redactor.add(secret)
        return _FixedCredential(place, secret)

    def _value(self, value: Any, field: str) -> Any:
        template = compile_value(value, f"{self.place}.{field}", CONFIG_NAMES, self.config)
        return template({"config": self.config})

    def _text(self, value: str, field: str, *, may_be_empty: bool = False) -> str:
        text = self._value(value, field)
        if (text is None or text == "") and not may_be_empty:
            raise SourceDefinitionError(f"{self.place}.{field}", "is empty", "check the config it is taken from")
        return str(text)

    def _headers(self, headers: Mapping[str, Any], field: str) -> dict[str, str]:
        return {name: str(value) for name, value in plain_values(self._value(headers, field)).items()}

    def _basic(self, item: model.Basic, prefix: str) -> str:
        username = self._text(item.username, f"{prefix}username")
        return self._basic_header(username, self._text(item.password, f"{prefix}password", may_be_empty=True))

    def _basic_header(self, username: str, password: str) -> str:
        self.redactor.add_pair(username, password)
        return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    def _url(self, value: str, field: str) -> str:
        """Return an address of its own, or a path below the base URL."""
        text = self._text(value, field)
        url = text if "://" in text else join_url(self.base_url, text)
        return check_base_url(urljoin(url, ""), f"{self.place}.{field}", self.redactor.text)

    def _oauth2(self, item: model.OAuth2) -> Authenticator:
        form: dict[str, Any] = {"grant_type": item.grant}
        headers = self._headers(item.headers, "headers")
        declared = {"client_id": item.client_id, "client_secret": item.client_secret}
        client = {name: self._text(value, name) for name, value in declared.items() if value is not None}
        self.redactor.add(client.get("client_secret"))
        if item.client_in == "header":
            headers["Authorization"] = self._basic_header(client.get("client_id", ""), client.get("client_secret", ""))
        else:
            form.update(client)
        if item.refresh_token is not None:
            form["refresh_token"] = self._text(item.refresh_token, "refresh_token")
            self.redactor.add(form["refresh_token"])
        if item.scopes:
            form["scope"] = " ".join(str(self._value(scope, "scopes")) for scope in item.scopes)
        form.update(plain_values(self._value(item.extra, "extra")))
        request = Draft("POST", self._url(item.token_url, "token_url"), headers=headers, form=form)
        return _OAuth2(item, request, self.endpoint)

    def _session_token(self, item: model.SessionToken) -> Authenticator:
        if item.send_as.header is None and item.send_as.query is None:
            problem = "a token is sent as a header or a query parameter"
            raise SourceDefinitionError(f"{self.place}.send_as", problem)
        place = _CredentialPlace(item.send_as.header, item.send_as.query, item.prefix)
        login = item.login
        headers = self._headers(login.headers, "login.headers")
        if login.basic is not None:
            headers["Authorization"] = self._basic(login.basic, "login.basic.")
        request = Draft(
            login.method,
            self._url(login.url, "login.url"),
            plain_values(self._value(login.query, "login.query")),
            headers,
            self._value(login.json_, "login.json"),
            None if login.form is None else plain_values(self._value(login.form, "login.form")),
        )
        return _SessionToken(item, place, request, self.endpoint)
