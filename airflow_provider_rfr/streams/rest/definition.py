"""The document of a declarative source, as models: one field here is one field of the YAML file.

Unknown fields, wrong types and contradictions are refused when the document is read.  What depends on the
configuration (templates) is checked when the streams are built, before the first request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_rfr.streams.rest.definition_auth import Authenticator
from airflow_provider_rfr.streams.rest.definition_base import Part, TextMap
from airflow_provider_rfr.streams.rest.definition_errors import ErrorHandler
from airflow_provider_rfr.streams.rest.definition_paging import Paginator

STREAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Request(Part):
    """What is asked for."""

    method: Literal["GET", "POST", "PUT"] = "GET"
    path: str = ""
    query: TextMap = Field(default_factory=dict)
    headers: TextMap = Field(default_factory=dict)
    json_: Any = Field(default=None, alias="json")
    form: TextMap | None = None

    @model_validator(mode="after")
    def _one_body(self) -> Request:
        if self.json_ is not None and self.form is not None:
            raise ValueError("a request has one body: json or form")
        return self


class RequestDefaults(Part):
    """What every stream's request has."""

    query: TextMap = Field(default_factory=dict)
    headers: TextMap = Field(default_factory=dict)


class Records(Part):
    """Where the records are in the answer."""

    path: str | list[str] = ""
    filter: str | None = None
    on_missing: Literal["fail", "empty"] = "fail"


class Timeouts(Part):
    """Seconds; ``total`` is for one request, from connecting to the last byte."""

    connect: float = Field(default=10, gt=0)
    read: float = Field(default=60, gt=0)
    total: float = Field(default=300, gt=0)


class ListRouter(Part):
    """One partition for each value."""

    type: Literal["list"]
    field: str
    values: list[Any] | str


class SubstreamRouter(Part):
    """One partition for each record of another stream."""

    type: Literal["substream"]
    parent: str
    parent_key: str
    field: str
    extra_fields: dict[str, str] = Field(default_factory=dict)
    parent_slice_fields: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _distinct_names(self) -> SubstreamRouter:
        names = [self.field, *self.extra_fields, *self.parent_slice_fields]
        if len(set(names)) != len(names):
            raise ValueError("two fields of the partition have the same name")
        return self


class ProductRouter(Part):
    """Every combination of the partitions of several routers."""

    type: Literal["product"]
    of: list[Router] = Field(min_length=1)


Router = Annotated[ListRouter | SubstreamRouter | ProductRouter, Field(discriminator="type")]


class AddFields(Part):
    """Set fields of each record."""

    type: Literal["add"]
    fields: dict[str, Any] = Field(min_length=1)


class RemoveFields(Part):
    """Remove fields of each record."""

    type: Literal["remove"]
    fields: list[str] = Field(min_length=1)


class RenameFields(Part):
    """Move fields of each record: old path to new path."""

    type: Literal["rename"]
    fields: dict[str, str] = Field(min_length=1)


Transformation = Annotated[AddFields | RemoveFields | RenameFields, Field(discriminator="type")]


class Defaults(Part):
    """What streams have that don't say otherwise."""

    request: RequestDefaults = Field(default_factory=RequestDefaults)
    records: Records | None = None
    paginator: Paginator | None = None
    error_handler: ErrorHandler | None = None
    timeouts: Timeouts | None = None
    max_response_bytes: int | None = Field(default=None, gt=0)


class StreamDefinition(Part):
    """One stream."""

    primary_key: str | list[str] | list[list[str]] | None = None
    json_schema: dict[str, Any] | None = None
    json_schema_file: str | None = None
    base_url: str | None = None
    authenticator: Authenticator | None = None
    request: Request = Field(default_factory=Request)
    records: Records | None = None
    paginator: Paginator | None = None
    partitions: Router | None = None
    transformations: list[Transformation] = Field(default_factory=list)
    error_handler: ErrorHandler | None = None
    timeouts: Timeouts | None = None
    max_response_bytes: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_schema(self) -> StreamDefinition:
        if self.json_schema is not None and self.json_schema_file is not None:
            raise ValueError("declare json_schema or json_schema_file, not both")
        return self


class SourceDefinition(Part):
    """The whole document."""

    version: Literal[1] = 1
    base_url: str
    authenticator: Authenticator | None = None
    secrets: list[str] = Field(default_factory=list)
    allowed_hosts: list[str] = Field(default_factory=list)
    proxy: str | None = None
    verify: bool | str = True
    defaults: Defaults = Field(default_factory=Defaults)
    streams: dict[str, StreamDefinition] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _without_notes(cls, value: Any) -> Any:
        """Top-level keys that begin with ``x-`` hold YAML anchors, and are nobody's field."""
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
            if not STREAM_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no stream name: letters, digits and underscores")
        return value
