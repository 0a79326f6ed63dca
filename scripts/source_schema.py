"""Write ``airflow_provider_rfr/streams/rest/source_schema.json``, the schema of definitions, from their models."""

from __future__ import annotations

from airflow_provider_rfr.streams.rest.definition import SCHEMA_FILE, SourceDefinition
from scripts.model_schema import ModelSchema, text_of

_NAME = {"description": "name of the stream", "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}


def schema_text() -> str:
    """Return the schema as the file holds it."""
    schema = SourceDefinition.model_json_schema(by_alias=True, mode="validation", schema_generator=ModelSchema)
    models = schema["$defs"]
    stream = models["StreamDefinition"]
    models["NamedStream"] = {
        **stream,
        "description": "One stream of a list.",
        "properties": {"name": _NAME, **stream["properties"]},
        "required": ["name"],
    }
    by_name = {**schema["properties"]["streams"], "propertyNames": {"pattern": _NAME["pattern"]}}
    listed = {"type": "array", "items": {"$ref": "#/$defs/NamedStream"}, "minItems": 1}
    schema["properties"]["streams"] = {"description": "Streams by name, or a list of them.", "anyOf": [by_name, listed]}
    schema["patternProperties"] = {"^x-": {"description": "Ignored; for YAML anchors."}}
    return text_of(schema, "Source")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
