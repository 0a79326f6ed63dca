"""JSON schemas of documents, made of their models; editors show their descriptions.

The description of a field is its ``:ivar`` in the docstring of its model, or of a base of that.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

_NOTE = re.compile(r"^:ivar (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.?(\w+)`")


class ModelSchema(GenerateJsonSchema):
    """A generator that omits null for optional fields, titles made of names, and defaults that are null or models."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        node = super().default_schema(schema)
        return {key: value for key, value in node.items() if key != "default" or not isinstance(value, dict | None)}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        node = super().model_schema(schema)
        for name, note in field_notes(schema["cls"]).items():
            described = node.get("properties", {}).get(self.spelling(name))
            if described is not None:
                described.setdefault("description", note.replace("``", ""))
        return node

    def spelling(self, name: str) -> str:
        """Return the name that a model's field has in the document."""
        return name

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def field_notes(kind: type) -> dict[str, str]:
    """Return the descriptions of a class's fields, its bases' included: the ``:ivar`` of docstrings."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for name, note in _NOTE.findall(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            notes[name] = " ".join(_ROLE.sub(r"\1", note).split())
    return notes


def text_of(schema: dict[str, Any], title: str) -> str:
    """Return the text of a schema's file; the description of a model is the first paragraph of its docstring."""
    for node in (schema, *schema["$defs"].values()):
        node.pop("title", None)
        text = node.pop("description", "").replace("``", "")
        if text:
            node["description"] = " ".join(text.split("\n\n")[0].split())
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
