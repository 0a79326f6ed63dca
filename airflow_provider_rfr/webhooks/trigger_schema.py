"""The JSON schema of a triggers block, for editors, forms and the seal: secrets are marked, and so is what is not.

The package holds it as a file, for tools that run no Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from airflow_provider_rfr.webhooks.config import MOST_ENDPOINTS, TriggerBlock
from airflow_provider_rfr.webhooks.config_errors import LONGEST_NAME, NAME_PATTERN
from airflow_provider_rfr.webhooks.presets import PRESETS

_SCHEMA_FILE = Path(__file__).with_name("trigger_schema.json")
_NOTE = re.compile(r"^:ivar (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.?(\w+)`")
_SPELLING = {"parameters": "with", "written_interval": "interval"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _trigger_schema() -> dict[str, Any]:
    """The schema. Names are in ``camelCase``; ``sops`` is not part of it, nor is the list form of ``config``."""
    schema = TriggerBlock.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    endpoint = schema["$defs"]["Endpoint"]
    endpoint["anyOf"] = [{"required": ["url"]}, {"required": ["connection"]}, {"required": ["preset"]}]
    endpoint["properties"]["preset"]["enum"] = sorted(PRESETS)
    schema["properties"]["config"] = {
        "description": "Endpoints by name.",
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/Endpoint"},
        "propertyNames": {"pattern": NAME_PATTERN, "maxLength": LONGEST_NAME},
        "maxProperties": MOST_ENDPOINTS,
    }
    return {"$schema": _DIALECT, "title": "Triggers", **_described(schema)}


def schema_text() -> str:
    """The schema as the file holds it."""
    return json.dumps(_trigger_schema(), indent=2, ensure_ascii=False) + "\n"


def _is_nonsensitive(pointer: Iterable[str | int], schema: Mapping[str, Any] | None = None) -> bool:
    """Whether the schema lets this place of a sealed document be changed without opening it.

    :param pointer: keys from the block's root, e.g. ``("config", "slack", "timeout")``
    """
    root = _trigger_schema() if schema is None else schema
    nodes: list[Mapping[str, Any]] = [root]
    for part in pointer:
        if any(node.get("nonsensitive") is True for node in nodes):
            return True
        nodes = [below for node in nodes for below in _below(node, str(part), root)]
    return any(node.get("nonsensitive") is True for node in nodes)


def _below(node: Mapping[str, Any], part: str, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    reference = node.get("$ref", "")
    if reference.startswith("#/$defs/"):
        found += _below(root["$defs"][reference.removeprefix("#/$defs/")], part, root)
    more = node.get("additionalProperties")
    if part in node.get("properties", {}):
        found.append(node["properties"][part])
    elif isinstance(more, Mapping):
        found.append(more)
    return found


class _Generator(GenerateJsonSchema):
    """Leaves out what says nothing to a reader: null for what may be left out, titles made of names."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        return {key: value for key, value in made.items() if key != "default" or not isinstance(value, dict | None)}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Notes for people: of a model the first sentence of its docstring, of its fields what stands there of them."""
    for node in (schema, *schema.get("$defs", {}).values()):
        node.pop("title", None)
        text = node.pop("description", "").replace("``", "")
        if text:
            node["description"] = text.split("\n\n")[0]
        notes = {_SPELLING.get(name, to_camel(name)): _one_line(note) for name, note in _NOTE.findall(text)}
        for name, each in node.get("properties", {}).items():
            if name in notes:
                each.setdefault("description", notes[name])
    return schema


def _one_line(text: str) -> str:
    return " ".join(_ROLE.sub(r"\1", text).split())


if __name__ == "__main__":
    _SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
