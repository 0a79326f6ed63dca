"""A source's definition: its pydantic models, and how it is read, with every problem and its place.

One field of a model is one field of the YAML file. Unknown fields, wrong types and contradictions are refused when the
document is read. Its templates are checked without a configuration, because a DAG is parsed long before there is one;
what depends on the configuration is checked when the streams are built, before the first request.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from airflow_provider_rfr.exceptions import Problem, SourceDefinitionError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.streams.columns import column_schema
from airflow_provider_rfr.streams.rest._auth import AnyAuthenticator
from airflow_provider_rfr.streams.rest._errors import ErrorHandler
from airflow_provider_rfr.streams.rest._paginators import AnyPaginator
from airflow_provider_rfr.streams.rest._partitions import AnyRouter
from airflow_provider_rfr.streams.rest._records import Records, Transformation
from airflow_provider_rfr.streams.rest._request import RequestDefaults, StreamRequest, Timeouts
from airflow_provider_rfr.streams.rest.templates import OF_CONFIG, Part, Templated, nearest

_STREAM_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN: Final = 60


class Inheritable(Part):
    """Fields that a stream takes from the defaults if it doesn't set them."""

    records: Records | None = None
    paginator: AnyPaginator | None = None
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
    authenticator: Annotated[AnyAuthenticator | None, OF_CONFIG] = None
    request: StreamRequest = Field(default_factory=StreamRequest)
    partitions: AnyRouter | None = None
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


def read_document(file: str) -> Any:
    """Return the content of a YAML or JSON file.

    :raises SourceDefinitionError: the file is missing, or its syntax is wrong
    """
    # Executors get definitions, not files: they need no YAML.
    from airflow_provider_rfr.documents import DocumentError, read_yaml

    try:
        return read_yaml(Path(file).read_bytes())
    except OSError as error:
        place, problem = "file", f"can't be read: {error.strerror}"
    except DocumentError as error:
        place = f"line {error.line}, column {error.column}" if error.line else "syntax"
        problem = error.detail or error.problem if error.key is None else f"duplicate key {error.key!r}"
    raise SourceDefinitionError(place, problem, place=file)


def whole_definition(document: Any, *, file: str | None = None) -> dict[str, Any]:
    """Return the document with the schemas from files put into it, checked.

    :param file: where it comes from: schema files are relative to it, and errors name it
    :raises SourceDefinitionError: the document, one of its templates, or a schema file is wrong
    """
    definition, whole = parse_definition(document, file)
    problems: list[Problem] = []
    for value, place, mark in _templates_in(definition, ""):
        try:
            mark.compile(value, place, mark.names)
        except SourceDefinitionError as error:
            problems += error.problems
    if problems:
        raise _combined(problems, file)
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
    """Return the definition as models, and as the whole document.

    :raises SourceDefinitionError: with every problem that could be found
    """
    if not isinstance(document, Mapping):
        problem = f"must be a mapping, is {type(document).__name__}"
        raise SourceDefinitionError("document", problem, "write base_url and streams", file or "")
    whole = dict(document)
    definition = _validated(whole, file)
    folder = Path(file).parent if file else Path()
    schemas = {
        name: _schema(folder / stream.json_schema_file, f"streams.{name}.json_schema_file", file)
        for name, stream in definition.streams.items()
        if stream.json_schema_file is not None
    }
    if not schemas:
        return definition, whole
    streams = whole["streams"]
    named = streams.items() if isinstance(streams, Mapping) else ((item["name"], item) for item in streams)
    whole["streams"] = {
        name: {
            **{key: value for key, value in stream.items() if key not in ("name", "json_schema_file")},
            **({"json_schema": schemas[name]} if name in schemas else {}),
        }
        for name, stream in named
    }
    return _validated(whole, file), whole


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
        details = error.errors(include_url=False)
    # Out here: the validation error holds the document's values, and must not become the context.
    raise _combined(list(map(_problem, details)), file)


def _combined(problems: Sequence[Problem], file: str | None) -> SourceDefinitionError:
    """Return one error for several problems, with the file they are in."""
    # Unions report a field several times: the first report counts.
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.field, replace(problem, place=file or ""))
    return SourceDefinitionError.of(first.values())


def _problem(error: ErrorDetails) -> Problem:
    location, kind = error["loc"], error["type"]
    path, holder, wanted = _walk(location)
    place, context = path or "document", error.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(path, "unknown field", nearest(str(location[-1]), _field_names(holder)))
    if kind == "missing":
        return Problem(path, "is missing")
    tags = [tag for choice in _choices(wanted) if (tag := _tag_of(choice)) is not None]
    if kind == "union_tag_not_found":
        return Problem(f"{path}.type", "is missing", f"allowed: {', '.join(tags)}")
    if kind == "union_tag_invalid":
        tag = str(context.get("tag", ""))
        return Problem(f"{path}.type", f"{tag!r} is unknown", nearest(tag, tags))
    if kind == "value_error":
        return Problem(place, error["msg"].removeprefix("Value error, "))
    value = _shown(error["input"], path)
    if kind == "literal_error":
        return Problem(path, f"{value} is not allowed".strip(), f"allowed: {context.get('expected', '')}")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        remedy = f"write type and its fields; allowed: {', '.join(tags)}" if tags else ""
        names = [name for choice in _choices(wanted) for name in _field_names(choice)]
        if names and not tags:
            remedy = f"write e.g. {{{names[0]}: {value or '...'}}}; allowed: {', '.join(names)}"
        return Problem(place, f"must be a mapping, is {value}" if value else "must be a mapping", remedy)
    message = error["msg"][:1].lower() + error["msg"][1:]
    return Problem(place, f"{message} (it is {value})" if value else message)


def _shown(value: Any, path: str) -> str:
    """Return a wrong value for the message; empty for one that may be secret."""
    if ".authenticator" in f".{path}" or any(map(is_secret, path.split("."))):
        return ""
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


# Pydantic's names for the branches of unions of plain types.
_BRANCHES = frozenset({"str", "int", "bool", "list[str]", "list[list[str]]", "list[any]", "float"})


def _walk(location: Sequence[str | int]) -> tuple[str, Any, Any]:
    """Return the path as in the document, the model that holds its last part, and the type that is wanted there.

    Pydantic's location also names the branches of unions that it tried, which are not part of the document.
    """
    current: Any = SourceDefinition
    holder: Any = current
    shown: list[str] = []
    for part in location:
        choices = _choices(current)
        branch = next((choice for choice in choices if _tag_of(choice) == part), None) if len(choices) > 1 else None
        if branch is not None:
            # The location names the branch by its type, which is not a level of the document.
            current = branch
        elif len(choices) == 1 or part not in _BRANCHES:
            holder = next(filter(_is_model, choices), None)
            current = _type_at(choices, part)
            shown.append(str(part))
    return ".".join(shown), holder, current


def _choices(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, without None."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for item in get_args(annotation) for choice in _choices(item) if choice is not type(None)]
    return [annotation]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _field_names(kind: Any) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _tag_of(kind: Any) -> str | None:
    """Return the ``type`` by which a model is recognised in a union."""
    if not _is_model(kind) or "type" not in kind.model_fields:
        return None
    annotation = kind.model_fields["type"].annotation
    return str(get_args(annotation)[0]) if get_origin(annotation) is Literal else None


def _type_at(choices: Sequence[Any], part: str | int) -> Any:
    """Return the type of a field, a mapping's value or a list's item."""
    for choice in choices:
        if _is_model(choice):
            choice.model_rebuild()  # resolves names of models that are declared further down
            for name, field in choice.model_fields.items():
                if part in (name, field.alias):
                    return field.annotation
        elif get_origin(choice) in (dict, list):
            return get_args(choice)[-1]
    return Any
