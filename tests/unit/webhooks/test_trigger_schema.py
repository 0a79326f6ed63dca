"""The JSON schema of a triggers block."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from airflow_provider_rfr.webhooks.block import SCHEMA_FILE, parse_triggers
from scripts.trigger_schema import schema_text
from tests.unit.messages import raises

MINIMAL = {"url": "https://h/x", "payloadTemplate": "{}"}
SCHEMA = json.loads(schema_text())
ENDPOINT = SCHEMA["$defs"]["Endpoint"]


def nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
        schema = list(schema.values())
    for node in schema if isinstance(schema, list) else ():
        yield from nodes(node)


def test_the_package_s_file_is_what_the_model_gives() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "write it anew: python -m scripts.trigger_schema"


def test_it_is_a_schema_that_refuses_unknown_fields_everywhere() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert (SCHEMA["type"], SCHEMA["required"]) == ("object", ["config"])
    assert "sops" not in json.dumps(SCHEMA)
    open_ones = [name for name, node in SCHEMA["$defs"].items() if node.get("additionalProperties") is not False]
    assert not [name for name in open_ones if SCHEMA["$defs"][name]["type"] == "object"]
    assert SCHEMA["additionalProperties"] is False


def test_an_endpoint_s_defaults_and_methods_are_told() -> None:
    properties = ENDPOINT["properties"]
    method = {"default": "POST", "enum": ["POST", "PUT", "PATCH"], "type": "string"}
    assert properties["method"] == {**method, "description": "method of the request"}
    assert (properties["timeout"]["default"], properties["maxAttempts"]["default"]) == ("30s", 3)
    assert properties["timeout"]["pattern"] == properties["interval"]["pattern"] == r"^\d+(s|m|h|d)$"
    assert properties["headers"]["additionalProperties"] == {"type": "string", "secret": True}
    assert all("description" in properties[name] for name in ("url", "payload", "exposeHeaders", "interval", "when"))


def test_secrets_and_what_is_none_are_marked() -> None:
    assert {name for name, node in ENDPOINT["properties"].items() if node.get("secret")} == {"url"}
    assert SCHEMA["$defs"]["Signing"]["properties"]["secrets"]["items"]["secret"] is True
    assert SCHEMA["$defs"]["PagerDuty"]["properties"]["routingKey"]["secret"] is True
    assert {name for name, node in ENDPOINT["properties"].items() if node.get("nonsensitive")} == {
        *("payloadTemplate", "payload", "timeout", "timeoutSecs", "maxAttempts", "maxRetries", "interval", "retry"),
        *("when", "onFailure", "ordering", "enabled"),
    }
    assert not [node for node in nodes(SCHEMA) if node.get("secret") is True and node.get("nonsensitive") is True]


@pytest.mark.parametrize(
    "endpoint",
    [
        MINIMAL,
        {"connection": "c", "payload": [1], "timeoutSecs": 4, "maxRetries": 2, "interval": "0s"},
        {"url": "https://h", "preset": "airflow-dag-run", "with": {"dagId": "d", "conf": {"a": 1}}},
        {"preset": "pagerduty", "with": {"routingKey": "k"}},
        {**MINIMAL, "success": {"status": ["2xx", 409], "pointer": "/a", "equals": None}, "when": {"minDocuments": 0}},
    ],
)
def test_schema_and_model_take_the_same(endpoint: Mapping[str, Any]) -> None:
    document = {"config": {"größe": endpoint}}
    jsonschema.validate(document, SCHEMA)
    parse_triggers(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"config": {"a": {}}},
        {"config": {"a b": MINIMAL}},
        {"config": {"a": {**MINIMAL, "nonsense": 1}}},
        {"config": {"a": {**MINIMAL, "timeout": "45"}}},
        {"config": {"a": {**MINIMAL, "headers": {"A": 5}}}},
        {"config": {"a": {**MINIMAL, "method": "GET"}}},
        {"config": {"a": 5}},
        *(
            {"config": {"a": endpoint}}
            for endpoint in (
                {"url": "https://h/x"},
                {"url": "https://h/x", "payload": None},
                {"payloadTemplate": "{}"},
                {"preset": "slack"},
                {**MINIMAL, "connection": "c"},
                {**MINIMAL, "payload": 1},
                {**MINIMAL, "timeout": "4s", "timeoutSecs": 4},
                {**MINIMAL, "maxAttempts": 3, "maxRetries": 2},
                {**MINIMAL, "with": {"jobId": 1}},
                {**MINIMAL, "success": {"equals": 1}},
            )
        ),
    ],
)
def test_schema_and_model_refuse_the_same(document: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
    with raises(Exception):
        parse_triggers(document)
