"""Reads a source's definition: includes files, reports every mistake with its place, checks templates.

Templates are checked without a configuration, because a DAG is parsed long before there is one. Which names a template
may use depends on its place alone.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.secret_names import is_secret
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.definition import Cursor, SourceDefinition
from airflow_provider_rfr.streams.rest.expressions import (
    CONFIG_NAMES,
    PREDICATE_NAMES,
    RECORD_NAMES,
    REQUEST_NAMES,
    RESPONSE_NAMES,
    Template,
    compile_condition,
    compile_path,
    compile_value,
    nearest,
)

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Mistake:
    """One thing that is wrong."""

    path: str
    problem: str
    remedy: str = ""


def validated(document: Mapping[str, Any], file: str | None) -> SourceDefinition:
    """The document as models.

    :raises SourceDefinitionError: naming every mistake
    """
    details: Sequence[ErrorDetails] = ()
    try:
        return SourceDefinition.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # Raised out here: the validation error holds the document's values.
    raise _combined([_mistake(item) for item in details], file)


def _combined(mistakes: Sequence[_Mistake], file: str | None) -> SourceDefinitionError:
    """One error for several mistakes; its path is the first one's."""
    unique = list({item.path: item for item in reversed(mistakes)}.values())[::-1]
    first, rest = unique[0], unique[1:]
    others = "".join(f"\n  and {m.path}: {m.problem}" + (f"; {m.remedy}" if m.remedy else "") for m in rest)
    if first.remedy:
        return SourceDefinitionError(first.path, first.problem, first.remedy + others, file=file)
    return SourceDefinitionError(first.path, first.problem + others, file=file)


def _mistake(error: ErrorDetails) -> _Mistake:
    location, kind = error["loc"], error["type"]
    path, holder, wanted = _walk(location)
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        return _Mistake(path, "unknown field", nearest(str(location[-1]), _names(holder)))
    if kind == "missing":
        return _Mistake(path, "is missing")
    if kind == "union_tag_not_found":
        return _Mistake(f"{path}.type", "is missing", f"allowed: {', '.join(_tags(wanted))}")
    if kind == "union_tag_invalid":
        tag = str(context.get("tag", ""))
        return _Mistake(f"{path}.type", f"{tag!r} is unknown", nearest(tag, _tags(wanted)))
    if kind == "value_error":
        return _Mistake(path or "document", error["msg"].removeprefix("Value error, "))
    value = "" if _is_secret(path) else _shown(error["input"])
    if kind == "literal_error":
        return _Mistake(path, f"{value} is not allowed".strip(), f"allowed: {context.get('expected', '')}")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return _Mistake(path or "document", f"{value or 'what it is'} is not a mapping", _as_mapping(wanted, value))
    message = error["msg"][:1].lower() + error["msg"][1:]
    return _Mistake(path or "document", f"{message} (it is {value})" if value else message)


def _as_mapping(wanted: Any, value: str) -> str:
    """What to write where a mapping is wanted, with the value in its first field."""
    if tags := _tags(wanted):
        return f"write type and its fields; allowed: {', '.join(tags)}"
    names = [name for choice in _choices(wanted) for name in _names(choice)]
    return f"write e.g. {{{names[0]}: {value or '...'}}}; allowed: {', '.join(names)}" if names else ""


def _tags(annotation: Any) -> list[str]:
    return [tag for choice in _choices(annotation) if (tag := _tag_of(choice)) is not None]


def _is_secret(path: str) -> bool:
    return ".authenticator" in f".{path}" or any(is_secret(part) for part in path.split("."))


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _names(holder: Any) -> list[str]:
    if not (isinstance(holder, type) and issubclass(holder, BaseModel)):
        return []
    return [field.alias or name for name, field in holder.model_fields.items()]


def _walk(location: Sequence[str | int]) -> tuple[str, Any, Any]:
    """The path as the document has it, the model that holds its last part, and what is wanted there.

    Pydantic's location also names the branches of unions that it tried; those are no part of the document.
    """
    current: Any = SourceDefinition
    holder: Any = current
    shown: list[str] = []
    for part in location:
        choices = _choices(current)
        branch = next((c for c in choices if _tag_of(c) == part), None) if len(choices) > 1 else None
        if branch is not None:
            current = branch
            continue
        if len(choices) > 1 and part in _BRANCHES:
            continue
        holder = next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)
        current = _inside(choices, part)
        shown.append(str(part))
    return ".".join(shown), holder, current


_BRANCHES = frozenset({"str", "int", "bool", "list[str]", "list[list[str]]", "list[any]", "float"})


def _choices(annotation: Any) -> list[Any]:
    """The types that may stand here, without None."""
    if get_origin(annotation) is Annotated:
        return _choices(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [c for item in get_args(annotation) for c in _choices(item) if c is not type(None)]
    return [annotation]


def _tag_of(model: Any) -> str | None:
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or "type" not in model.model_fields:
        return None
    annotation = model.model_fields["type"].annotation
    return str(get_args(annotation)[0]) if get_origin(annotation) is Literal else None


def _inside(choices: Sequence[Any], part: str | int) -> Any:
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            choice.model_rebuild()  # resolves names of models that are declared further down
            for name, field in choice.model_fields.items():
                if part in (name, field.alias):
                    return field.annotation
        elif get_origin(choice) is dict:
            return get_args(choice)[1]
        elif get_origin(choice) is list:
            return get_args(choice)[0]
    return Any


def read_document(file: str) -> Any:
    """The content of a YAML or JSON file.

    :raises SourceDefinitionError: no such file, or its syntax is wrong
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
    raise SourceDefinitionError(place, problem, file=str(file))


def whole_definition(document: Any, *, file: str | None = None) -> dict[str, Any]:
    """The document with the schemas from files put into it, checked.

    :param file: where it comes from: schema files are looked for beside it, and errors name it
    :raises SourceDefinitionError: the document, one of its templates, or a schema file is wrong
    """
    definition, whole = parse_definition(document, file)
    _check_templates(definition, file)
    return whole


def parse_definition(document: Any, file: str | None = None) -> tuple[SourceDefinition, dict[str, Any]]:
    """The definition as models, and as the whole document.

    :raises SourceDefinitionError: with every mistake that could be found
    """
    if not isinstance(document, Mapping):
        raise SourceDefinitionError(
            "document", f"is {type(document).__name__}, not a mapping", "write base_url and streams", file=file
        )
    whole = dict(document)
    definition = validated(whole, file)
    folder = Path(file).parent if file else Path()
    schemas = {
        name: _schema(folder / stream.json_schema_file, f"streams.{name}.json_schema_file", file)
        for name, stream in definition.streams.items()
        if stream.json_schema_file is not None
    }
    if schemas:
        whole["streams"] = _with_schemas(whole["streams"], schemas)
        definition = validated(whole, file)
    return definition, whole


def _schema(path: Path, place: str, file: str | None) -> dict[str, Any]:
    problem = ""
    try:
        schema = read_document(str(path))
        if isinstance(schema, dict):
            return schema
        problem = f"{path} holds {type(schema).__name__}, not a JSON schema"
    except SourceDefinitionError as error:
        problem = f"{path}: {error.path}: {error.problem}"
    raise SourceDefinitionError(place, problem, "paths are relative to the definition's file", file=file)


def _with_schemas(streams: Any, schemas: Mapping[str, Any]) -> dict[str, Any]:
    named = streams.items() if isinstance(streams, Mapping) else ((item["name"], item) for item in streams)
    whole: dict[str, Any] = {}
    for name, stream in named:
        stream = {key: value for key, value in stream.items() if key != "name"}
        if name in schemas:
            del stream["json_schema_file"]
            stream["json_schema"] = schemas[name]
        whole[name] = stream
    return whole


_Use: TypeAlias = tuple[Any, str, Set[str], Callable[[Any, str, Set[str]], Template]]
"""A value with templates in it, its place, the names that are known there, and what compiles it."""


def _check_templates(definition: model.SourceDefinition, file: str | None) -> None:
    """:raises SourceDefinitionError: naming every template with wrong syntax or a name that its place doesn't know"""
    found: list[_Mistake] = []
    for value, place, names, compiled in _document(definition):
        try:
            if value is not None:
                compiled(value, place, names)
        except SourceDefinitionError as error:
            found.append(_Mistake(error.path, error.problem, error.remedy))
    if found:
        raise _combined(found, file)


def _document(source: model.SourceDefinition) -> Iterator[_Use]:
    yield source.base_url, "base_url", CONFIG_NAMES, compile_value
    yield source.proxy, "proxy", CONFIG_NAMES, compile_value
    yield from _authenticator(source, "authenticator")
    yield source.defaults.request.query, "defaults.request.query", REQUEST_NAMES, compile_value
    yield source.defaults.request.headers, "defaults.request.headers", REQUEST_NAMES, compile_value
    yield from _reading(source.defaults, "defaults")
    for name, stream in source.streams.items():
        yield from _stream(stream, f"streams.{name}")


def _stream(stream: model.StreamDefinition, place: str) -> Iterator[_Use]:
    request = stream.request
    yield stream.base_url, f"{place}.base_url", CONFIG_NAMES, compile_value
    yield from _authenticator(stream, f"{place}.authenticator")
    yield request.path, f"{place}.request.path", REQUEST_NAMES, compile_path
    yield request.query, f"{place}.request.query", REQUEST_NAMES, compile_value
    yield request.headers, f"{place}.request.headers", REQUEST_NAMES, compile_value
    yield request.json_, f"{place}.request.json", REQUEST_NAMES, compile_value
    yield request.form, f"{place}.request.form", REQUEST_NAMES, compile_value
    yield from _reading(stream, place)
    yield from _router(stream.partitions, f"{place}.partitions")
    for number, item in enumerate(stream.transformations):
        if isinstance(item, model.AddFields):
            yield item.fields, f"{place}.transformations.{number}.fields", RECORD_NAMES, compile_value


def _reading(part: model.StreamDefinition | model.Defaults, place: str) -> Iterator[_Use]:
    """What a stream may have of its own, or of the defaults."""
    if part.records is not None:
        yield part.records.filter, f"{place}.records.filter", RECORD_NAMES, compile_condition
    paging, at = part.paginator, f"{place}.paginator"
    yield getattr(paging, "page_size", None), f"{at}.page_size", CONFIG_NAMES, compile_value
    yield getattr(paging, "stop_when", None), f"{at}.stop_when", RESPONSE_NAMES, compile_condition
    if isinstance(paging, Cursor):
        yield paging.cursor.expression, f"{at}.cursor.expression", RESPONSE_NAMES, compile_condition
    for number, rule in enumerate(part.error_handler.rules if part.error_handler is not None else ()):
        yield rule.predicate, f"{place}.error_handler.rules.{number}.predicate", PREDICATE_NAMES, compile_condition


def _router(router: Any, place: str) -> Iterator[_Use]:
    if isinstance(router, model.ListRouter):
        yield router.values, f"{place}.values", CONFIG_NAMES, compile_value
    if isinstance(router, model.ProductRouter):
        for number, item in enumerate(router.of):
            yield from _router(item, f"{place}.of.{number}")


def _authenticator(part: model.StreamDefinition | model.SourceDefinition, place: str) -> Iterator[_Use]:
    if part.authenticator is not None:
        yield part.authenticator.model_dump(by_alias=True), place, CONFIG_NAMES, compile_value
