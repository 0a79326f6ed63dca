"""Makes a source's definition whole: nothing in it refers to a file any more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest.definition import SourceDefinition
from airflow_provider_rfr.streams.rest.mistakes import validated
from airflow_provider_rfr.streams.rest.template_checks import check_templates


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
        problem = error.detail or error.problem if error.key is None else f"the key {error.key!r} stands twice"
    raise SourceDefinitionError(place, problem, file=str(file))


def whole_definition(document: Any, *, file: str | None = None) -> dict[str, Any]:
    """The document with the schemas from files put into it, checked.

    :param file: where it comes from: schema files are looked for beside it, and errors name it
    :raises SourceDefinitionError: the document, one of its templates, or a schema file is wrong
    """
    definition, whole = parse_definition(document, file)
    check_templates(definition, file)
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
