"""Bodies: what they become of templates and trees, and that they are always JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.lake.commit_event import CommitEvent, merge
from airflow_provider_rfr.webhooks.block import Endpoint, parse_triggers
from airflow_provider_rfr.webhooks.validation import (
    _HOSTILE,
    NotJsonError,
    content_type,
    placeholder_events,
    render_body,
    template_variables,
)
from tests.unit.messages import raises

ONE = placeholder_events()[0]
EIGHT_KEYS = """{
  "event": "commit",
  "connector": "{{connector_image}}",
  "collections": [{{#each collection_names}}"{{this}}"{{#unless @last}}, {{/unless}}{{/each}}],
  "materialization": "{{materialization_name}}",
  "min": "{{flow_published_at_min}}",
  "max": "{{flow_published_at_max}}",
  "run_id": "{{run_id}}",
  "auth": "{{headers.Authorization}}"
}"""


def endpoint(**fields: Any) -> Endpoint:
    return parse_triggers({"config": {"X": {"url": "https://h/x", **fields}}}).endpoints[0]


def body(event: CommitEvent = ONE, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """The body, with all of these headers exposed."""
    trigger = endpoint(headers=headers or {}, exposeHeaders=list(headers or {}), **fields)
    exposed = trigger.exposed_headers()
    variables = template_variables(event, delivery_id="d" * 32, attempt=1, trigger_name="X", headers=exposed)
    return json.loads(render_body(trigger, variables))


def test_the_payload_of_eight_keys_holds_the_placeholders() -> None:
    document = body(
        payloadTemplate=EIGHT_KEYS,
        headers={"Authorization": "Bearer my-secret"},
    )
    assert document == {
        "event": "commit",
        "connector": ONE.producer,
        "collections": ["acmeCo/example/collection"],
        "materialization": "acmeCo/example/materialization",
        "min": "2024-01-01T00:00:00Z",
        "max": "2024-01-01T00:01:00Z",
        "run_id": "00000000-0000-0000-0000-000000000000",
        "auth": "Bearer my-secret",
    }


def test_two_collections_stand_with_a_comma_between_them() -> None:
    two = replace(ONE, collection_names=("a", 'b"'))
    document = body(two, payloadTemplate=EIGHT_KEYS, headers={"Authorization": "x"})
    assert document["collections"] == ["a", 'b"']


@pytest.mark.parametrize("name", ["<>&\"'", _HOSTILE, "\u2028", "\\", "😀", "a\nb", "{{secret}}", "\x00"])
def test_values_are_printed_as_they_are_and_never_break_the_body(name: str) -> None:
    event = replace(ONE, target_name=name, collection_names=(name,))
    assert body(event, payloadTemplate='{"a": "{{materialization_name}}", "b": {{materialization_name}} }') == {
        "a": name,
        "b": name,
    }
    assert body(event, payload={"a": "{{materialization_name}}", "b": "<{{collection_names.[0]}}>"}) == {
        "a": name,
        "b": f"<{name}>",
    }


def test_half_a_surrogate_pair_gives_a_body_that_is_utf_8() -> None:
    event = replace(ONE, target_name="\ud800")
    variables = template_variables(event, delivery_id="d", attempt=1, trigger_name="X", headers={})
    for fields in ({"payload": ["{{materialization_name}}"]}, {"payloadTemplate": '["{{materialization_name}}"]'}):
        assert len(json.loads(render_body(endpoint(**fields), variables).decode("utf-8"))[0]) == 1


def test_a_variable_that_is_not_there_is_false_in_a_condition() -> None:
    assert body(payloadTemplate='"{{#if nope}}a{{else}}b{{/if}}"') == "b"


def test_a_leaf_that_is_one_expression_keeps_its_type() -> None:
    event = replace(ONE, snapshot_id=2**62 + 1)
    document = body(
        event,
        payload={
            "all": "{{collection_names}}",
            "number": "{{snapshot_id}}",
            "text": "{{snapshot_id}}.",
            "totals": "{{totals}}",
            "{{key}}": None,
            "more": [True, 1.5, {"x": "{{attempt}}"}],
        },
    )
    assert document == {
        "all": ["acmeCo/example/collection"],
        "number": 2**62 + 1,
        "text": f"{2**62 + 1}.",
        "totals": {"documents": 10, "bytes": 1000, "tables": 1},
        "{{key}}": None,
        "more": [True, 1.5, {"x": 1}],
    }


@pytest.mark.parametrize("payload", [[], {}, 0, False, "text", "", [None], {"a": {}}])
def test_any_json_value_is_a_body(payload: Any) -> None:
    assert body(payload=payload) == payload
    assert body(payloadTemplate=json.dumps(payload)) == payload


def test_the_body_may_be_one_expression() -> None:
    assert body(payload="{{collection_names}}") == list(ONE.collection_names)


def test_bodies_are_utf_8() -> None:
    event = replace(ONE, target_name="größe")
    variables = template_variables(event, delivery_id="d", attempt=1, trigger_name="X", headers={})
    for fields in ({"payload": ["{{materialization_name}}"]}, {"payloadTemplate": '["{{materialization_name}}"]'}):
        assert render_body(endpoint(**fields), variables) == '["größe"]'.encode()


@pytest.mark.parametrize("template", ["", "{", '{"a": }', "[1 2]", "NaN", '{"a": Infinity}', '"\t"', "{{! nothing }}"])
def test_what_is_no_json_is_an_error_that_shows_no_value(template: str) -> None:
    with raises(NotJsonError):
        body(payloadTemplate=template)


def test_the_error_of_a_body_shows_no_value_of_a_variable() -> None:
    with pytest.raises(NotJsonError) as caught:
        body(
            payloadTemplate='{"a": "{{headers.X}}", }',
            headers={"X": "hunter2"},
        )
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_brackets_without_end_are_an_error_and_no_crash() -> None:
    with pytest.raises(TemplateError):
        body(payloadTemplate="[" * 60_000)


def test_a_body_of_more_than_a_megabyte_is_an_error() -> None:
    many = replace(ONE, collection_names=tuple(f"collection-{n:08}" for n in range(60_000)))
    for fields in (
        {"payload": {"all": "{{collection_names}}"}},
        {"payloadTemplate": "{{json collection_names}}"},
        {"payload": ["{{collection_names}}"] * 3},
    ):
        with pytest.raises(TemplateError):
            body(many, **fields)


def test_the_body_s_type_is_json_unless_a_header_says_another() -> None:
    assert content_type(endpoint(payload={})) == "application/json"
    assert content_type(endpoint(payload={}, headers={"content-TYPE": "text/plain"})) == "text/plain"


def test_merged_events_render_like_others() -> None:
    assert body(merge(ONE, ONE), payload={"n": "{{merged_commits}}", "d": "{{totals.documents}}"}) == {"n": 2, "d": 20}
