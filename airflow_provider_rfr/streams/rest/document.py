"""Reads a source's YAML file, and makes its definition whole: nothing in it refers to a file any more.

YAML is read with fewer surprises than usual: a key that stands twice is an error, only ``true`` and
``false`` are booleans (``no`` is Norway), and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest.definition import SourceDefinition
from airflow_provider_rfr.streams.rest.mistakes import validated


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int)) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
            if isinstance(key, (str, int)):
                seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_yaml(file: str | Path) -> Any:
    """The content of a YAML or JSON file.

    :raises SourceDefinitionError: no such file, or its syntax is wrong
    """
    problem = place = ""
    try:
        with Path(file).open("rb") as stream:
            return yaml.load(stream, Loader=_Loader)
    except OSError as error:
        place, problem = "file", f"can't be read: {error.strerror}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "syntax"
        problem = str(error.problem)
    except yaml.YAMLError:
        place, problem = "syntax", "the file is not YAML"
    raise SourceDefinitionError(place, problem, file=str(file))


def whole_definition(document: Any, *, file: str | None = None) -> dict[str, Any]:
    """The document with the schemas from files put into it, checked.

    :param file: where it comes from: schema files are looked for beside it, and errors name it
    :raises SourceDefinitionError: the document, or a schema file, is wrong
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
    return whole


def _schema(path: Path, place: str, file: str | None) -> dict[str, Any]:
    problem = ""
    try:
        schema = read_yaml(path)
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


def parse_definition(document: Mapping[str, Any], file: str | None = None) -> SourceDefinition:
    """The definition as models; schema files are read.

    :raises SourceDefinitionError: with every mistake that could be found
    """
    return validated(whole_definition(document, file=file), file)
