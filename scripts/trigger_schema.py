"""Write ``airflow_provider_rfr/webhooks/trigger_schema.json``, the schema of triggers blocks, from their models."""

from __future__ import annotations

from typing import Any

from pydantic.alias_generators import to_camel

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
from scripts.model_schema import ModelSchema, field_notes, text_of

_SPELLING = {"parameters": "with", "written_interval": "interval"}


class _TriggerSchema(ModelSchema):
    """A generator of the schema of triggers blocks, whose fields are written in ``camelCase``."""

    def spelling(self, name: str) -> str:
        return _SPELLING.get(name, to_camel(name))


def _combinations() -> dict[str, Any]:
    """Return schema rules for the contradictions of :meth:`Endpoint.contradictions` that a schema can express."""
    bodies = [{"required": [name]} for name in ("payload", "payloadTemplate", "preset")]
    with_address = sorted(name for name, preset in PRESETS.items() if preset.receiver.base)
    addresses = [
        {"required": ["url"]},
        {"required": ["connection"]},
        {"required": ["preset"], "properties": {"preset": {"enum": with_address}}},
    ]
    spellings = [(other.field, to_camel(key)) for key, other in Endpoint.other_spellings.items()]
    exclusive = [{"not": {"required": [*pair]}} for pair in (("url", "connection"), *spellings)]
    return {
        "allOf": [{"anyOf": bodies}, {"anyOf": addresses}, *exclusive],
        "dependentRequired": {"with": ["preset"]},
    }


def schema_text() -> str:
    """Return the schema as the file holds it.

    It is without ``sops`` and the list form of ``config``; names are in ``camelCase``.
    """
    schema = TriggerBlock.model_json_schema(by_alias=True, mode="validation", schema_generator=_TriggerSchema)
    endpoint = schema["$defs"]["Endpoint"]
    endpoint.update(_combinations())
    schema["$defs"]["Success"]["dependentRequired"] = {"equals": ["pointer"]}
    notes = field_notes(Endpoint)
    properties = endpoint["properties"] | {
        to_camel(key): dict(
            sorted({"description": notes[to_camel(key)], **other.type.json_schema(), **NONSENSITIVE}.items())
        )
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
    return text_of(schema, "Triggers")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
