"""The models of a source's definition, and the parser of its documents.

One field of a model is one field of the YAML file. Unknown fields, wrong types and contradictions are refused when the
document is read, with every problem and its place. Its templates are checked without a configuration, because a DAG is
parsed long before there is one; what depends on the configuration is checked when the streams are built, before the
first request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from airflow_provider_rfr.documents import DocumentError, problems_of, read_yaml
from airflow_provider_rfr.exceptions import Problem, SourceDefinitionError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.streams.core import column_schema
from airflow_provider_rfr.streams.rest._auth import AnyAuthenticator
from airflow_provider_rfr.streams.rest._errors import ErrorHandler
from airflow_provider_rfr.streams.rest._incremental import Incremental
from airflow_provider_rfr.streams.rest._paginators import AnyPaginator
from airflow_provider_rfr.streams.rest._partitions import AnyRouter
from airflow_provider_rfr.streams.rest._records import Records, Transformation
from airflow_provider_rfr.streams.rest._request import RequestDefaults, StreamRequest, Timeouts
from airflow_provider_rfr.streams.rest.templates import OF_CONFIG, Part, Scope, Templated

SCHEMA_FILE: Final = Path(__file__).with_name("source_schema.json")
"""JSON schema of a definition, for editors; ``scripts/source_schema.py`` makes it of these models."""
_STREAM_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Inheritable(Part):
    """Fields that a stream takes from the defaults if it doesn't set them.

    :ivar records: where the records are in the answer; by default the body
    :ivar paginator: how the next page is found; by default there is one page
    :ivar error_handler: what to do about answers that are no page, and how often a request is repeated
    :ivar timeouts: how long a request may take
    :ivar max_response_bytes: largest body, unpacked, in bytes; 268435456 by default
    """

    records: Records | None = None
    paginator: AnyPaginator | None = None
    error_handler: ErrorHandler | None = None
    timeouts: Timeouts | None = None
    max_response_bytes: int | None = Field(default=None, gt=0)


class Defaults(Inheritable):
    """The settings that all streams share.

    :ivar request: query and headers of each request
    """

    request: RequestDefaults = Field(default_factory=RequestDefaults)


def _checked_type(kind: str) -> str:
    column_schema(kind)
    return kind


class StreamDefinition(Inheritable):
    """One stream.

    :ivar primary_key: a field, a list of fields, or a list of paths that identify a record. Of the rows with one key, a
        publish keeps the last one
    :ivar json_schema: JSON schema of a record: the columns and their types. Without it they are inferred from the
        records
    :ivar json_schema_file: path of a file with the JSON schema, relative to the definition's file
    :ivar columns: types of single columns by name, e.g. ``{created_at: timestamp, amount: "decimal(10, 2)"}``; they win
        over the ``json_schema``
    :ivar additional_fields: fields that the ``json_schema`` does not name: ``drop`` them with a warning, or ``keep``
        them as inferred columns
    :ivar base_url: address in place of the document's
    :ivar authenticator: credentials in place of the document's
    :ivar request: the request for a page; by default ``GET`` of the base URL
    :ivar partitions: how the stream is divided into units that are read in parallel and resumed each at its own page;
        by default there is one
    :ivar incremental: how an incremental sync asks for what changed
    :ivar transformations: changes of each record before it is stored, in their order
    """

    primary_key: str | list[str] | list[list[str]] | None = None
    json_schema: dict[str, Any] | None = None
    json_schema_file: str | None = None
    columns: dict[str, Annotated[str, AfterValidator(_checked_type)]] | None = Field(default=None, min_length=1)
    additional_fields: Literal["keep", "drop"] = "drop"
    base_url: Annotated[str | None, OF_CONFIG] = None
    authenticator: Annotated[AnyAuthenticator | None, OF_CONFIG] = None
    request: StreamRequest = Field(default_factory=StreamRequest)
    partitions: AnyRouter | None = None
    incremental: Incremental | None = None
    transformations: list[Transformation] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_schema(self) -> StreamDefinition:
        if self.json_schema is not None and self.json_schema_file is not None:
            raise ValueError("declare json_schema or json_schema_file, not both")
        if self.additional_fields == "keep" and self.json_schema is None and self.json_schema_file is None:
            raise ValueError("additional_fields: keep needs json_schema; without it every field is kept")
        return self

    @field_validator("incremental")
    @classmethod
    def _fits_the_stream(cls, value: Incremental | None, info: ValidationInfo) -> Incremental | None:
        if value is not None:
            fields = (info.data.get("json_schema") or {}).get("properties")
            are_all = isinstance(fields, dict) and info.data.get("additional_fields") == "drop"
            value.check_stream(info.data.get("primary_key"), info.data.get("partitions"), fields if are_all else None)
        return value

    def whole_request(self, scope: Scope) -> StreamRequest:
        """Return the request with templates for the windows and bounds, as if the user had written them there.

        :param scope: scope of the stream
        :raises SourceDefinitionError: two values are sent at the same place
        """
        request = self.request if self.partitions is None else self.partitions.with_windows(self.request, scope)
        return request if self.incremental is None else self.incremental.with_bounds(request, self.paginator, scope)


class SourceDefinition(Part):
    """The whole document.

    :ivar version: version of the dialect; may be left out
    :ivar base_url: http or https address that every path is below
    :ivar authenticator: credentials of all streams that have none of their own; they share its token
    :ivar secrets: names in ``config`` that are secret, besides those that come from the connection
    :ivar allowed_hosts: further hosts that may be called, as ``host`` or ``host:port``: for next-page addresses with
        the credentials, for redirects without any
    :ivar proxy: address of a proxy. Nothing is taken from the environment
    :ivar verify: ``false`` to check no certificates, or the path of a file or folder with the authorities to trust
    :ivar defaults: settings that all streams share
    :ivar streams: streams by name, or a list of streams with ``name``
    """

    version: Literal[1] = 1
    base_url: Annotated[str, OF_CONFIG]
    authenticator: Annotated[AnyAuthenticator | None, OF_CONFIG] = None
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

    def stream(self, name: str) -> StreamDefinition:
        """Return a stream with the document's defaults for the fields that it leaves out."""
        stream = self.streams[name]
        missing = [field for field in Inheritable.model_fields if getattr(stream, field) is None]
        return stream.model_copy(update={field: getattr(self.defaults, field) for field in missing})


def read_document(file: str) -> Any:
    """Return the content of a YAML or JSON file.

    :raises SourceDefinitionError: the file is missing, or its syntax is wrong
    """
    try:
        return read_yaml(Path(file).read_bytes())
    except OSError as error:
        place, problem = "file", f"can't be read: {error.strerror}"
    except DocumentError as error:
        place = f"line {error.line}, column {error.column}" if error.line else "syntax"
        problem = error.detail or error.problem if error.key is None else f"duplicate key {error.key!r}"
    raise SourceDefinitionError(place, problem, place=file)


def whole_definition(document: Any, *, file: str | None = None) -> dict[str, Any]:
    """Check a document, and return it with the schemas from files put into it.

    :param file: the document's file: schema files are relative to it, and errors name it
    :raises SourceDefinitionError: the document, one of its templates, or a schema file is wrong
    """
    definition, whole = parse_definition(document, file)
    problems: list[Problem] = []
    for value, place, mark in _templates_in(definition, ""):
        try:
            mark.compile(value, place, mark.names)
        except SourceDefinitionError as error:
            problems += error.problems
    for name in definition.streams:
        try:
            definition.stream(name).whole_request(Scope(f"streams.{name}", {}))
        except SourceDefinitionError as error:
            problems += error.problems
    if problems:
        raise SourceDefinitionError.of(problems).at(file or "")
    return whole


def _templates_in(value: Any, place: str) -> Iterator[tuple[Any, str, Templated]]:
    """Yield all values that may hold templates, with their places and marks."""
    if isinstance(value, Part):
        prefix = f"{place}." if place else ""
        for name, info in type(value).model_fields.items():
            item, at = getattr(value, name), f"{prefix}{info.alias or name}"
            mark = next((annotation for annotation in info.metadata if isinstance(annotation, Templated)), None)
            if mark is None:
                yield from _templates_in(item, at)
            elif item is not None:
                yield item.model_dump(by_alias=True) if isinstance(item, Part) else item, at, mark
    elif isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, Part):
                yield from _templates_in(item, f"{place}.{key}")


def parse_definition(document: Any, file: str | None = None) -> tuple[SourceDefinition, dict[str, Any]]:
    """Parse a document, and return its models, and the document with the schemas from files put into it.

    :raises SourceDefinitionError: with every problem that could be found
    """
    if not isinstance(document, Mapping):
        problem = f"must be a mapping, is {type(document).__name__}"
        raise SourceDefinitionError("document", problem, "write base_url and streams", file or "")
    whole = dict(document)
    definition = _validated(whole, file)
    folder = Path(file).parent if file else Path()
    schemas = {
        name: {"json_schema": _schema(folder / stream.json_schema_file, f"streams.{name}.json_schema_file", file)}
        for name, stream in definition.streams.items()
        if stream.json_schema_file is not None
    }
    if not schemas:
        return definition, whole
    whole["streams"] = {
        name: {key: value for key, value in stream.items() if key != "json_schema_file"} | schemas.get(name, {})
        for name, stream in streams_by_name(whole["streams"]).items()
    }
    return _validated(whole, file), whole


def streams_by_name(streams: Any) -> Mapping[str, Any]:
    """Return the streams of a valid document by name; they may be written as a list."""
    if isinstance(streams, Mapping):
        return streams
    return {item["name"]: {key: value for key, value in item.items() if key != "name"} for item in streams}


def _schema(path: Path, place: str, file: str | None) -> dict[str, Any]:
    try:
        schema = read_document(str(path))
        if isinstance(schema, dict):
            return schema
        problem = f"{path} must hold a JSON schema, holds {type(schema).__name__}"
    except SourceDefinitionError as error:
        problem = f"{path}: {error.field}: {error.problem}"
    raise SourceDefinitionError(place, problem, "paths are relative to the definition's file", file or "")


def _validated(document: Mapping[str, Any], file: str | None) -> SourceDefinition:
    try:
        return SourceDefinition.model_validate(document)
    except ValidationError as error:
        problems = problems_of(
            error,
            SourceDefinition,
            shows=lambda path: ".authenticator" not in f".{path}" and not any(map(is_secret, path.split("."))),
        ).values()
    # Raised outside of the handler: the validation error holds the document's values, and must not be the context.
    named = (replace(problem, field=problem.field or "document") for problem in problems)
    raise SourceDefinitionError.of(named).at(file or "")
