"""Authenticators: fixed credentials, and tokens that have to be fetched (OAuth2, session tokens).

``bind`` returns the authenticator with its credentials, or with the request for its tokens. It refuses an empty
credential, except for the password of basic authentication.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urljoin

from pydantic import Field, PrivateAttr, model_validator

from airflow_provider_rfr.exceptions import AuthenticationError, SourceError
from airflow_provider_rfr.http.client import Limits
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest._errors import ErrorHandler, Retries
from airflow_provider_rfr.streams.rest._request import (
    Authenticator,
    HeaderMap,
    RequestDraft,
    RequestPlace,
    TextMap,
    Transport,
    check_base_url,
    join_url,
    plain_values,
)
from airflow_provider_rfr.streams.rest._responses import Response, ResponseField
from airflow_provider_rfr.streams.rest.templates import MISSING, Part, Scope, lookup, parse_path
from airflow_provider_rfr.streams.tokens import AccessToken, Credential, key_of, shared_credential

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class TokenService:
    """A service to which requests for a token are sent, under the same limits and budgets as any other.

    :ivar base_url: base URL of the stream, for token endpoints that are a path below it
    :ivar timeout: seconds for one request
    :ivar handler: how often and how long a request is repeated
    """

    base_url: str
    transport: Transport
    timeout: float
    limits: Limits
    handler: ErrorHandler

    @property
    def redactor(self) -> Redactor:
        return self.transport.redactor

    def address(self, value: str, name: str, scope: Scope) -> str:
        """Return the URL of a field that holds an address, or a path below the base URL."""
        text = _text(scope, value, name)
        url = text if "://" in text else join_url(self.base_url, text)
        return check_base_url(urljoin(url, ""), scope.at(name).place, self.redactor.text)

    def with_handler(self, *, json_required: bool) -> TokenService:
        """Return the service with its handler bound, which keeps the stream's retry budgets and backoff.

        The stream's rules are left out, because they are about its pages.
        """
        budgets = self.handler.model_copy(update={"rules": [], "expired_token_status": []})
        bound = budgets.bind(Scope("error_handler", {}), self.redactor, json_required=json_required)
        return replace(self, handler=bound)

    def ask(self, draft: RequestDraft, context: ReadContext) -> Response:
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


def _text(scope: Scope, value: str, name: str, *, may_be_empty: bool = False) -> str:
    text = scope.resolve(value, name)
    if (text is None or text == "") and not may_be_empty:
        raise scope.error(name, "is empty", "check the config it is taken from")
    return str(text)


def _headers(scope: Scope, headers: Mapping[str, Any], name: str) -> dict[str, str]:
    return {key: str(value) for key, value in plain_values(scope.resolve(headers, name)).items()}


def _basic_header(username: str, password: str, redactor: Redactor) -> str:
    redactor.add_pair(username, password)
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


class NoAuthenticator(Authenticator):
    """An authenticator that sends nothing."""

    type: Literal["none"]

    def bind(self, scope: Scope, service: TokenService) -> Self:
        return self


class _FixedAuthenticator(Authenticator):
    """An authenticator whose credential stays the same."""

    _place: RequestPlace = PrivateAttr()
    _secret: str = PrivateAttr()

    def apply(self, draft: RequestDraft, context: ReadContext) -> None:
        self._place.put(draft, self._secret)

    def _sending(self, secret: str, place: RequestPlace | None = None) -> Self:
        bound = self.model_copy()
        bound._place = place or RequestPlace(header="Authorization")
        bound._secret = secret
        return bound


class ApiKeyAuthenticator(_FixedAuthenticator):
    """A key in a header or a query parameter.

    :ivar value: the key
    :ivar send_as: the place of the key: a ``header`` or a ``query`` parameter
    """

    type: Literal["api_key"]
    value: str
    send_as: RequestPlace

    @model_validator(mode="after")
    def _not_in_a_body(self) -> ApiKeyAuthenticator:
        if self.send_as.query is None and self.send_as.header is None:
            raise ValueError("an API key is sent as a header or a query parameter")
        return self

    def bind(self, scope: Scope, service: TokenService) -> Self:
        secret = _text(scope, self.value, "value")
        if self.send_as.query is not None:
            service.redactor.add_parameter(self.send_as.query)
        service.redactor.add(secret)
        return self._sending(secret, self.send_as)


class BearerAuthenticator(_FixedAuthenticator):
    """A token in the header ``Authorization: Bearer ...``

    :ivar token: the token
    """

    type: Literal["bearer"]
    token: str

    def bind(self, scope: Scope, service: TokenService) -> Self:
        token = _text(scope, self.token, "token")
        service.redactor.add(token)
        return self._sending(f"Bearer {token}")


class BasicAuthenticator(_FixedAuthenticator):
    """Basic authentication.

    :ivar username: name of the user
    :ivar password: the user's password
    """

    type: Literal["basic"]
    username: str
    password: str = ""

    def bind(self, scope: Scope, service: TokenService) -> Self:
        header = self.header(scope, service.redactor)
        service.redactor.add(header)
        return self._sending(header)

    def header(self, scope: Scope, redactor: Redactor) -> str:
        """Return the value of the header ``Authorization``."""
        username = _text(scope, self.username, "username")
        return _basic_header(username, _text(scope, self.password, "password", may_be_empty=True), redactor)


class _TokenAuthenticator(Authenticator, ABC):
    """An authenticator with a token, which its owner obtains at first use, before it expires, and once refused."""

    is_renewable: ClassVar[bool] = True

    _place: RequestPlace = PrivateAttr()
    _prefix: str = PrivateAttr()
    _request: RequestDraft = PrivateAttr()
    _service: TokenService = PrivateAttr()
    _credential: Credential = PrivateAttr()
    _token: AccessToken | None = PrivateAttr(default=None)

    def _with_credential(
        self,
        place: RequestPlace,
        prefix: str,
        request: RequestDraft,
        service: TokenService,
        decisive: Sequence[Any],
        grant: str | None = None,
    ) -> Self:
        """Return the authenticator with its credential, which all readers with the same request and settings share.

        :param decisive: settings other than the request that determine the token and its lifetime
        :param grant: the refresh token and its token endpoint; None without a refresh token
        """
        bound = self.model_copy()
        bound._place, bound._prefix, bound._request, bound._service = place, prefix, request, service
        # The key is made of values, not of the place in the document: streams with the same login share its session.
        key = (request.method, request.url, request.query, request.headers, request.json, request.form, *decisive)
        bound._credential = shared_credential(key_of(type(self).__name__, *key), bound.obtain, grant)
        if place.query is not None:
            service.redactor.add_parameter(place.query)
        return bound

    @abstractmethod
    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        """Obtain a token.

        :param refresh_token: the one that replaced the configured one; None if none did
        """

    def apply(self, draft: RequestDraft, context: ReadContext) -> None:
        token = self._token
        # No lock is needed: each thread that sees an old token asks the owner, which obtains one for all.
        if token is None or token.has_expired:
            token = self._renewed(None, context)
        self._place.put(draft, self._prefix + token.value)

    def renew(self, draft: RequestDraft, context: ReadContext) -> bool:
        refused, place = self._token, self._place
        sent = draft.headers.get(place.header) if place.header is not None else draft.query.get(place.query or "")
        if refused is not None and sent == self._prefix + refused.value:
            self._renewed(refused.digest, context)
        # Otherwise another thread has replaced the token since the draft was made.
        return True

    def _renewed(self, refused: str | None, context: ReadContext) -> AccessToken:
        token = context.tokens.token(self._credential, refused, context)
        self._service.redactor.add(token.value)
        self._token = token
        return token

    def _checked(self, answer: Response, value: Any, where: str) -> str:
        """Return the token as text.

        :raises AuthenticationError: it is missing
        """
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
        raise AuthenticationError(f"the answer has no token at {where}", status=answer.status, request=answer.request)


class OAuth2Authenticator(_TokenAuthenticator):
    """An access token from a token endpoint, for client credentials or a refresh token, also one that each use
    replaces.

    :ivar grant: how the token is obtained
    :ivar token_url: the token endpoint: an address, or a path below the base URL
    :ivar client_id: id of the client
    :ivar client_secret: secret of the client
    :ivar refresh_token: the refresh token, for that grant. One that each use replaces is kept in the control store
    :ivar scopes: scopes to ask for
    :ivar client_in: where the client's id and secret are sent: in the ``body``, or in a ``header`` of basic
        authentication
    :ivar extra: further fields of the token request's form
    :ivar headers: further headers of the token request
    :ivar token_path: path of the access token in the answer
    :ivar expires_path: path of the token's lifetime in seconds
    :ivar expires_in: lifetime in seconds, for answers that do not have it
    :ivar prefix: text before the token in the header ``Authorization``
    """

    type: Literal["oauth2"]
    grant: Literal["client_credentials", "refresh_token"] = "client_credentials"
    token_url: str
    client_id: str | None = None
    client_secret: str | None = None
    refresh_token: str | None = None
    scopes: list[str] = Field(default_factory=list)
    client_in: Literal["body", "header"] = "body"
    extra: TextMap = Field(default_factory=dict)
    headers: HeaderMap = Field(default_factory=dict)
    token_path: str = "access_token"
    expires_path: str = "expires_in"
    expires_in: float | None = Field(default=None, gt=0)
    prefix: str = "Bearer "

    @model_validator(mode="after")
    def _has_its_credentials(self) -> OAuth2Authenticator:
        if self.grant == "refresh_token" and self.refresh_token is None:
            raise ValueError("grant refresh_token needs the field refresh_token")
        if self.grant == "client_credentials" and (self.client_id is None or self.client_secret is None):
            raise ValueError("grant client_credentials needs client_id and client_secret")
        return self

    def bind(self, scope: Scope, service: TokenService) -> Self:
        form: dict[str, Any] = {"grant_type": self.grant}
        headers = _headers(scope, self.headers, "headers")
        declared = {"client_id": self.client_id, "client_secret": self.client_secret}
        client = {name: _text(scope, value, name) for name, value in declared.items() if value is not None}
        service.redactor.add(client.get("client_secret"))
        if self.client_in == "header":
            client_id, client_secret = client.get("client_id", ""), client.get("client_secret", "")
            headers["Authorization"] = _basic_header(client_id, client_secret, service.redactor)
        else:
            form.update(client)
        if self.refresh_token is not None:
            form["refresh_token"] = _text(scope, self.refresh_token, "refresh_token")
            service.redactor.add(form["refresh_token"])
        if self.scopes:
            form["scope"] = " ".join(str(scope.resolve(name, "scopes")) for name in self.scopes)
        form.update(plain_values(scope.resolve(self.extra, "extra")))
        url = service.address(self.token_url, "token_url", scope)
        request = RequestDraft("POST", url, headers=headers, form=form)
        grant = f"{url} {form['refresh_token']}" if "refresh_token" in form else None
        decisive = (self.token_path, self.expires_path, self.expires_in)
        service = service.with_handler(json_required=True)
        place = RequestPlace(header="Authorization")
        return self._with_credential(place, self.prefix, request, service, decisive, grant)

    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        request, redactor = self._request, self._service.redactor
        form = dict(request.form or {})
        if refresh_token is not None:
            # It may come from the control store, so no configuration has named it to the redactor.
            redactor.add(refresh_token)
            form["refresh_token"] = refresh_token
            request = replace(request, form=form)
        answer = self._service.ask(request, context)
        body, path = answer.json(), parse_path(self.token_path)
        token = self._checked(answer, lookup(body, path), ".".join(path))
        rotated = lookup(body, ("refresh_token",))
        # Some endpoints return a refresh token for client credentials, too, or the same one each time.
        if "refresh_token" not in form or not isinstance(rotated, str) or rotated in ("", form["refresh_token"]):
            rotated = None
        else:
            redactor.add(rotated)
        seconds, declared = self.expires_in, lookup(body, parse_path(self.expires_path))
        if seconds is None and declared is not MISSING and not isinstance(declared, bool):
            with suppress(TypeError, ValueError):
                seconds = float(declared)
        return AccessToken.lasting(token, seconds, rotated)


class LoginRequest(Part):
    """The request that opens a session.

    :ivar method: HTTP method
    :ivar url: address of the login, or a path below the base URL
    :ivar query: query parameters
    :ivar headers: HTTP headers
    :ivar json: body as JSON; not together with ``form``
    :ivar form: body as a form; not together with ``json``
    :ivar basic: user and password in the header ``Authorization``
    """

    method: Literal["GET", "POST", "PUT"] = "POST"
    url: str
    query: TextMap = Field(default_factory=dict)
    headers: HeaderMap = Field(default_factory=dict)
    json_: Any = Field(default=None, alias="json")
    form: TextMap | None = None
    basic: BasicAuthenticator | None = None

    def draft(self, scope: Scope, service: TokenService) -> RequestDraft:
        """Return the request as it is sent, credentials included."""
        headers = _headers(scope, self.headers, "headers")
        if self.basic is not None:
            headers["Authorization"] = self.basic.header(scope.at("basic"), service.redactor)
        return RequestDraft(
            self.method,
            service.address(self.url, "url", scope),
            plain_values(scope.resolve(self.query, "query")),
            headers,
            scope.resolve(self.json_, "json"),
            None if self.form is None else plain_values(scope.resolve(self.form, "form")),
        )


class SessionTokenAuthenticator(_TokenAuthenticator):
    """A token from a login request.

    :ivar login: the request that opens the session
    :ivar token: the place of the token in the answer
    :ivar send_as: the place of the token in each request: a ``header`` or a ``query`` parameter
    :ivar prefix: text before the token
    :ivar expires_in: lifetime in seconds; without it the token is used until the API refuses it
    """

    type: Literal["session_token"]
    login: LoginRequest
    token: ResponseField
    send_as: RequestPlace
    prefix: str = ""
    expires_in: float | None = Field(default=None, gt=0)

    def bind(self, scope: Scope, service: TokenService) -> Self:
        if self.send_as.header is None and self.send_as.query is None:
            raise scope.error("send_as", "a token is sent as a header or a query parameter")
        request = self.login.draft(scope.at("login"), service)
        decisive = (self.token.path, self.token.header, self.expires_in)
        service = service.with_handler(json_required=self.token.header is None)
        return self._with_credential(self.send_as, self.prefix, request, service, decisive)

    def obtain(self, context: ReadContext, refresh_token: str | None) -> AccessToken:
        answer, origin = self._service.ask(self._request, context), self.token
        if origin.header is not None:
            token = self._checked(answer, answer.headers.get(origin.header), origin.header)
        else:
            path = parse_path(origin.path or ())
            token = self._checked(answer, lookup(answer.json(), path), ".".join(path))
        return AccessToken.lasting(token, self.expires_in)


AnyAuthenticator = Annotated[
    NoAuthenticator
    | ApiKeyAuthenticator
    | BearerAuthenticator
    | BasicAuthenticator
    | OAuth2Authenticator
    | SessionTokenAuthenticator,
    Field(discriminator="type"),
]
