"""JSON schemas of documents, made of their models; editors show their descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_NOTE = re.compile(r"^:ivar (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.?(\w+)`")


class ModelSchema(GenerateJsonSchema):
    """A generator without noise: null for optional fields, titles made of names, defaults that are null or models."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        node = super().default_schema(schema)
        return {key: value for key, value in node.items() if key != "default" or not isinstance(value, dict | None)}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def text_of(schema: dict[str, Any], title: str, spelling: Callable[[str], str] = str) -> str:
    """Return the text of a schema's file.

    Descriptions are from docstrings: of a model its first paragraph, of a field its ``:ivar``.

    :param spelling: returns the name in the document of a field of a model
    """
    for node in (schema, *schema["$defs"].values()):
        node.pop("title", None)
        text = node.pop("description", "").replace("``", "")
        if text:
            node["description"] = " ".join(text.split("\n\n")[0].split())
        for name, note in _NOTE.findall(text):
            described = node.get("properties", {}).get(spelling(name))
            if described is not None:
                described.setdefault("description", " ".join(_ROLE.sub(r"\1", note).split()))
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
