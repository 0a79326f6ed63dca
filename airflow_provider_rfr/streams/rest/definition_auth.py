"""Models of the authenticators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from airflow_provider_rfr.streams.rest.definition_base import Origin, Part, Place, TextMap


class NoAuthenticator(Part):
    """Nothing is sent."""

    type: Literal["none"]


class ApiKey(Part):
    """A key in a header or a query parameter."""

    type: Literal["api_key"]
    value: str
    send_as: Place

    @model_validator(mode="after")
    def _not_in_a_body(self) -> ApiKey:
        if self.send_as.query is None and self.send_as.header is None:
            raise ValueError("an API key is sent as a header or a query parameter")
        return self


class Bearer(Part):
    """``Authorization: Bearer ...``"""

    type: Literal["bearer"]
    token: str


class Basic(Part):
    """Basic authentication."""

    type: Literal["basic"]
    username: str
    password: str = ""


class OAuth2(Part):
    """An access token from a token endpoint."""

    type: Literal["oauth2"]
    grant: Literal["client_credentials", "refresh_token"] = "client_credentials"
    token_url: str
    client_id: str | None = None
    client_secret: str | None = None
    refresh_token: str | None = None
    scopes: list[str] = Field(default_factory=list)
    client_in: Literal["body", "header"] = "body"
    extra: TextMap = Field(default_factory=dict)
    headers: TextMap = Field(default_factory=dict)
    token_path: str = "access_token"
    expires_path: str = "expires_in"
    expires_in: float | None = Field(default=None, gt=0)
    prefix: str = "Bearer "

    @model_validator(mode="after")
    def _has_its_credentials(self) -> OAuth2:
        if self.grant == "refresh_token" and self.refresh_token is None:
            raise ValueError("grant refresh_token needs the field refresh_token")
        if self.grant == "client_credentials" and (self.client_id is None or self.client_secret is None):
            raise ValueError("grant client_credentials needs client_id and client_secret")
        return self


class Login(Part):
    """The request that opens a session."""

    method: Literal["GET", "POST", "PUT"] = "POST"
    url: str
    query: TextMap = Field(default_factory=dict)
    headers: TextMap = Field(default_factory=dict)
    json_: Any = Field(default=None, alias="json")
    form: TextMap | None = None
    basic: Basic | None = None


class SessionToken(Part):
    """A token from a login request."""

    type: Literal["session_token"]
    login: Login
    token: Origin
    send_as: Place
    prefix: str = ""
    expires_in: float | None = Field(default=None, gt=0)


Authenticator = Annotated[
    NoAuthenticator | ApiKey | Bearer | Basic | OAuth2 | SessionToken, Field(discriminator="type")
]
