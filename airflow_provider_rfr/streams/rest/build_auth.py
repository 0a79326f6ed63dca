"""Makes authenticators of their definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest import definition_auth as model
from airflow_provider_rfr.streams.rest.authenticators import (
    ApiKeyInQuery,
    Authenticator,
    FixedHeader,
    NoAuthenticator,
    basic_header,
)
from airflow_provider_rfr.streams.rest.definition_base import Place as PlaceDefinition
from airflow_provider_rfr.streams.rest.definition_errors import ErrorHandler as ErrorHandlerDefinition
from airflow_provider_rfr.streams.rest.error_handler import ErrorHandler, build_error_handler
from airflow_provider_rfr.streams.rest.interpolation import CONFIG_NAMES, compile_value
from airflow_provider_rfr.streams.rest.paths import parse_path
from airflow_provider_rfr.streams.rest.requester import check_base_url, join_url, plain_values
from airflow_provider_rfr.streams.rest.token_authenticators import (
    Endpoint,
    LoginSettings,
    OAuth2,
    OAuth2Settings,
    Place,
    SessionToken,
)
from airflow_provider_rfr.streams.rest.transport import Limits, Transport


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
            return OAuth2(self._oauth2(item), Place("Authorization", prefix=item.prefix), self._endpoint, redactor)
        if isinstance(item, model.SessionToken):
            place = _place(item.send_as, item.prefix, f"{self._place}.send_as")
            handler = replace(self._endpoint.handler, json_required=item.token.header is None)
            return SessionToken(self._login(item), place, replace(self._endpoint, handler=handler), redactor)
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

    def _oauth2(self, item: model.OAuth2) -> OAuth2Settings:
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
        return OAuth2Settings(
            token_url=self._url(item.token_url, "token_url"),
            form=form,
            headers=headers,
            token_path=parse_path(item.token_path),
            expires_path=parse_path(item.expires_path),
            expires_in=item.expires_in,
        )

    def _login(self, item: model.SessionToken) -> LoginSettings:
        login = item.login
        headers = {k: str(v) for k, v in plain_values(self._value(login.headers, "login.headers")).items()}
        if login.basic is not None:
            headers["Authorization"] = basic_header(*self._user(login.basic, "login.basic."), self._redactor)
        form = None if login.form is None else plain_values(self._value(login.form, "login.form"))
        return LoginSettings(
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
