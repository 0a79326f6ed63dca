"""Write ``airflow_provider_rfr/webhooks/trigger_schema.json``, the schema of triggers blocks, from their models."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from airflow_provider_rfr.webhooks._fields import NONSENSITIVE
from airflow_provider_rfr.webhooks.block import (
    LONGEST_NAME,
    MOST_ENDPOINTS,
    NAME_PATTERN,
    SCHEMA_FILE,
    Endpoint,
    TriggerBlock,
)
from airflow_provider_rfr.webhooks.presets import PRESETS

_NOTE = re.compile(r"^:ivar (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.?(\w+)`")
_SPELLING = {"parameters": "with", "written_interval": "interval"}


def schema_text() -> str:
    """Return the schema as the file holds it.

    It is without ``sops`` and the list form of ``config``; names are in ``camelCase``. Descriptions are from
    docstrings: of a model its first paragraph, of a field its ``:ivar``.
    """
    schema = TriggerBlock.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    endpoint = schema["$defs"]["Endpoint"]
    endpoint["anyOf"] = [{"required": ["url"]}, {"required": ["connection"]}, {"required": ["preset"]}]
    properties = endpoint["properties"] | {
        to_camel(key): dict(sorted({**other.type.json_schema(), **NONSENSITIVE}.items()))
        for key, other in Endpoint.other_spellings.items()
    }
    properties["preset"]["enum"] = sorted(PRESETS)
    endpoint["properties"] = {name: properties[name] for name in Endpoint.spellings()}
    schema["properties"]["config"] = {
        "description": "Endpoints by name.",
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/Endpoint"},
        "propertyNames": {"pattern": NAME_PATTERN, "maxLength": LONGEST_NAME},
        "maxProperties": MOST_ENDPOINTS,
    }
    for node in (schema, *schema["$defs"].values()):
        node.pop("title", None)
        text = node.pop("description", "").replace("``", "")
        if text:
            node["description"] = text.split("\n\n")[0]
        for name, note in _NOTE.findall(text):
            described = node.get("properties", {}).get(_SPELLING.get(name, to_camel(name)))
            if described is not None:
                described.setdefault("description", " ".join(_ROLE.sub(r"\1", note).split()))
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Triggers", **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


class _Generator(GenerateJsonSchema):
    """A generator without noise: null for optional fields, titles made of names, defaults that are null or models."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        node = super().default_schema(schema)
        return {key: value for key, value in node.items() if key != "default" or not isinstance(value, dict | None)}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
