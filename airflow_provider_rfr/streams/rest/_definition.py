"""The document of a declarative source as pydantic models: one field here is one field of the YAML file.

Unknown fields, wrong types and contradictions are refused when the document is read. What depends on the configuration
(templates) is checked when the streams are built, before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from airflow_provider_rfr.streams.columns import column_schema
from airflow_provider_rfr.streams.rest._definition_partitions import Router
from airflow_provider_rfr.streams.rest._definition_parts import Place, TextMap
from airflow_provider_rfr.streams.rest._errors import ErrorHandler
from airflow_provider_rfr.streams.rest._records import Records, Transformation
from airflow_provider_rfr.streams.rest._responses import ResponseField
from airflow_provider_rfr.streams.rest.templates import (
    OF_CONFIG,
    REQUEST_NAMES,
    RESPONSE_NAMES,
    Part,
    Templated,
    compile_condition,
    compile_path,
)

_OF_REQUEST: Final = Templated(REQUEST_NAMES)
_RESPONSE_CONDITION: Final = Templated(RESPONSE_NAMES, compile_condition)


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


class _Login(Part):
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
    login: _Login
    token: ResponseField
    send_as: Place
    prefix: str = ""
    expires_in: float | None = Field(default=None, gt=0)


Authenticator = Annotated[
    NoAuthenticator | ApiKey | Bearer | Basic | OAuth2 | SessionToken, Field(discriminator="type")
]

_StopPolicy = Literal["empty", "short", "total", "flag"]


class Total(ResponseField):
    """The number of records or pages of the partition."""

    of: Literal["records", "pages"] = "records"


# What it means that the field that leads to the next page is absent. By default that ends a partition only where
# nothing contradicts it; see "Absent fields" in docs/sources.md.
_OnMissing = Literal["end", "fail"]


class Flag(ResponseField):
    """A field that says whether there is another page."""

    stop_when: bool = False
    on_missing: _OnMissing | None = None

    @model_validator(mode="after")
    def _absence_can_end(self) -> Flag:
        if self.stop_when and self.on_missing == "end":
            raise ValueError("on_missing: end needs stop_when: false; an absent is_last does not mean the last page")
        return self


class NoPaging(Part):
    """One page."""

    type: Literal["none"]


class Sized(Part):
    page_size: Annotated[int | str | None, OF_CONFIG] = None
    size_as: Place | None = None
    max_empty_pages: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _size_to_send(self) -> Sized:
        if self.size_as is not None and self.page_size is None:
            raise ValueError("size_as sends page_size, which is missing")
        return self


class Stopping(Sized):
    stop: _StopPolicy | None = None
    total: Total | None = None
    flag: Flag | None = None

    @property
    def stop_policy(self) -> _StopPolicy:
        """Return the declared policy; else the one that the other fields make possible."""
        if self.stop is not None:
            return self.stop
        return "total" if self.total else "flag" if self.flag else "empty"

    @model_validator(mode="after")
    def _policy_has_its_field(self) -> Stopping:
        policy = self.stop_policy
        if policy == "total" and self.total is None:
            raise ValueError("stop: total needs the field total")
        if policy == "flag" and self.flag is None:
            raise ValueError("stop: flag needs the field flag")
        if policy == "short" and self.page_size is None:
            raise ValueError("stop: short needs page_size")
        if self.total is not None and self.total.of == "records" and self.page_size is None:
            raise ValueError("total of records needs page_size, to tell how many pages that is")
        return self


class PageNumber(Stopping):
    """Pagination by page number."""

    type: Literal["page_number"]
    start: int = 1
    send_as: Place = Field(default_factory=lambda: Place(query="page"))
    send_first: bool = True


class Offset(Stopping):
    """Pages begin at the number of records before them."""

    type: Literal["offset"]
    start: int = 0
    send_as: Place = Field(default_factory=lambda: Place(query="offset"))
    send_first: bool = True
    advance: Literal["records", "page_size"] = "records"

    @model_validator(mode="after")
    def _step_is_known(self) -> Offset:
        if self.advance == "page_size" and self.page_size is None:
            raise ValueError("advance: page_size needs page_size")
        return self


class Keyset(Stopping):
    """The next page begins after the last record."""

    type: Literal["keyset"]
    field: str
    send_as: Place

    @model_validator(mode="after")
    def _no_total(self) -> Keyset:
        if self.total is not None:
            raise ValueError("a keyset's pages can't be counted; use stop: empty, short or flag")
        return self


class CursorOrigin(ResponseField):
    """The origin of the next cursor: a path of the body, a header, or an expression."""

    expression: Annotated[str | None, _RESPONSE_CONDITION] = None


class Cursor(Sized):
    """Each answer has the token of the next page."""

    type: Literal["cursor"]
    cursor: CursorOrigin
    send_as: Place = Field(default_factory=lambda: Place(query="cursor"))
    stop_when: Annotated[str | None, _RESPONSE_CONDITION] = None
    on_missing: _OnMissing | None = None


class NextUrl(Sized):
    """Each answer has the address of the next page."""

    type: Literal["next_url"]
    url: ResponseField
    stop_when: Annotated[str | None, _RESPONSE_CONDITION] = None
    on_missing: _OnMissing | None = None
    keep_query: bool = False


class LinkHeader(Sized):
    """The address of the next page is in the header Link (RFC 8288)."""

    type: Literal["link_header"]
    rel: str = "next"
    header: str = "Link"
    on_missing: _OnMissing | None = None
    keep_query: bool = False


Paginator = Annotated[
    NoPaging | PageNumber | Offset | Cursor | NextUrl | LinkHeader | Keyset, Field(discriminator="type")
]

_STREAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RequestDefaults(Part):
    """The query and headers that every stream's request has."""

    query: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)
    headers: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)


class Request(Part):
    """The request of a stream."""

    # Not a subclass of the defaults: problems are reported in the order of the fields, and the path comes first.
    method: Literal["GET", "POST", "PUT"] = "GET"
    path: Annotated[str, Templated(REQUEST_NAMES, compile_path)] = ""
    query: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)
    headers: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)
    json_: Annotated[Any, _OF_REQUEST] = Field(default=None, alias="json")
    form: Annotated[TextMap | None, _OF_REQUEST] = None

    @model_validator(mode="after")
    def _one_body(self) -> Request:
        if self.json_ is not None and self.form is not None:
            raise ValueError("a request has one body: json or form")
        return self


class Timeouts(Part):
    """Seconds; ``total`` is for one request, from connecting to the last byte."""

    connect: float = Field(default=10, gt=0)
    read: float = Field(default=60, gt=0)
    total: float = Field(default=300, gt=0)


class Inheritable(Part):
    """Fields that a stream takes from the defaults if it doesn't set them."""

    records: Records | None = None
    paginator: Paginator | None = None
    error_handler: ErrorHandler | None = None
    timeouts: Timeouts | None = None
    max_response_bytes: int | None = Field(default=None, gt=0)


class Defaults(Inheritable):
    """The settings that all streams share."""

    request: RequestDefaults = Field(default_factory=RequestDefaults)


def _checked_type(kind: str) -> str:
    column_schema(kind)
    return kind


class StreamDefinition(Inheritable):
    """One stream."""

    primary_key: str | list[str] | list[list[str]] | None = None
    json_schema: dict[str, Any] | None = None
    json_schema_file: str | None = None
    columns: dict[str, Annotated[str, AfterValidator(_checked_type)]] | None = Field(default=None, min_length=1)
    additional_fields: Literal["keep", "drop"] = "drop"
    base_url: Annotated[str | None, OF_CONFIG] = None
    authenticator: Annotated[Authenticator | None, OF_CONFIG] = None
    request: Request = Field(default_factory=Request)
    partitions: Router | None = None
    transformations: list[Transformation] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_schema(self) -> StreamDefinition:
        if self.json_schema is not None and self.json_schema_file is not None:
            raise ValueError("declare json_schema or json_schema_file, not both")
        if self.additional_fields == "keep" and self.json_schema is None and self.json_schema_file is None:
            raise ValueError("additional_fields: keep needs json_schema; without it every field is kept")
        return self


class SourceDefinition(Part):
    """The whole document."""

    version: Literal[1] = 1
    base_url: Annotated[str, OF_CONFIG]
    authenticator: Annotated[Authenticator | None, OF_CONFIG] = None
    secrets: list[str] = Field(default_factory=list)
    allowed_hosts: list[str] = Field(default_factory=list)
    proxy: Annotated[str | None, OF_CONFIG] = None
    verify: bool | str = True
    defaults: Defaults = Field(default_factory=Defaults)
    streams: dict[str, StreamDefinition] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _without_notes(cls, value: Any) -> Any:
        """Remove top-level keys that begin with ``x-``, which hold YAML anchors."""
        if not isinstance(value, Mapping):
            return value
        return {key: item for key, item in value.items() if not str(key).startswith("x-")}

    @field_validator("streams", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        streams: dict[str, Any] = {}
        for item in value:
            if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
                raise ValueError("each stream of a list has a name")
            if item["name"] in streams:
                raise ValueError(f"two streams are named {item['name']!r}")
            streams[item["name"]] = {key: part for key, part in item.items() if key != "name"}
        return streams

    @field_validator("streams", mode="after")
    @classmethod
    def _plain_names(cls, value: dict[str, StreamDefinition]) -> dict[str, StreamDefinition]:
        for name in value:
            if not _STREAM_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a stream name: use letters, digits and underscores")
        return value
