"""Bodies: what they become of variables, templates and trees, and that they are always JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import TemplateError, TriggerConfigError
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent, merge
from airflow_provider_rfr.webhooks import render
from airflow_provider_rfr.webhooks.block import Endpoint, parse_triggers
from airflow_provider_rfr.webhooks.outbox import delivery_id, merged_id
from airflow_provider_rfr.webhooks.payloads import NotJsonError, render_body, render_payload, template_variables
from airflow_provider_rfr.webhooks.validation import _HOSTILE, check_triggers, placeholder_events
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
    assert body(payloadTemplate=EIGHT_KEYS, headers={"Authorization": "Bearer my-secret"}) == {
        "event": "commit",
        "connector": ONE.producer,
        "collections": ["acmeCo/example/collection"],
        "materialization": "acmeCo/example/materialization",
        "min": "2024-01-01T00:00:00Z",
        "max": "2024-01-01T00:01:00Z",
        "run_id": "00000000-0000-0000-0000-000000000000",
        "auth": "Bearer my-secret",
    }


@pytest.mark.parametrize("name", ["<>&\"'", _HOSTILE, "a\nb", "{{secret}}", "\x00"])
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


@pytest.mark.parametrize("fields", [{"payload": ["{{target_name}}"]}, {"payloadTemplate": '["{{target_name}}"]'}])
def test_bodies_are_utf_8_also_of_half_a_surrogate_pair(fields: dict[str, Any]) -> None:
    bodies = []
    for name in ("größe", "\ud800"):
        event = replace(ONE, target_name=name)
        names = template_variables(event, delivery_id="d", attempt=1, trigger_name="X", headers={})
        bodies.append(render_body(endpoint(**fields), names))
    assert bodies[0] == '["größe"]'.encode()
    assert len(json.loads(bodies[1].decode("utf-8"))[0]) == 1


@pytest.mark.parametrize("payload", [[], 0, False, "text", "", [None], {"a": {}}])
def test_any_json_value_is_a_body(payload: Any) -> None:
    assert body(payload=payload) == payload
    assert body(payloadTemplate=json.dumps(payload)) == payload
    assert body(payload="{{collection_names}}") == list(ONE.collection_names)


@pytest.mark.parametrize("template", ["", "{", '{"a": }', "[1 2]", "NaN", '{"a": Infinity}', '"\t"', "{{! nothing }}"])
def test_what_is_no_json_is_an_error_that_shows_no_value(template: str) -> None:
    with raises(NotJsonError):
        body(payloadTemplate=template)


def test_the_error_of_a_body_shows_no_value_of_a_variable() -> None:
    with pytest.raises(NotJsonError) as caught:
        body(payloadTemplate='{"a": "{{headers.X}}", }', headers={"X": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_body_of_more_than_a_megabyte_is_an_error() -> None:
    many = replace(ONE, collection_names=tuple(f"collection-{n:08}" for n in range(60_000)))
    for fields in ({"payload": ["{{collection_names}}"]}, {"payloadTemplate": "{{json collection_names}}"}):
        with pytest.raises(TemplateError):
            body(many, **fields)


# Structured payloads: JSON trees with templates as leaves.

VARIABLES: dict[str, Any] = {
    "names": ["a", "b"],
    "bindings": [{"table": "t", "documents": 3}],
    "n": 42,
    "big": 2**60 + 1,
    "f": 1.0,
    "t": True,
    "nul": None,
    "s": 'he said "hi"\n',
    "half": "\ud800",
}


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("{{names}}", ["a", "b"]),
        ("{{bindings}}", [{"table": "t", "documents": 3}]),
        ("{{ n }}", 42),
        ("{{{big}}}", 2**60 + 1),
        ("{{t}}", True),
        ("{{nul}}", None),
        ("{{lookup bindings 9}}", None),
        ("{{gt n 1}}", True),
        ("{{s}}", VARIABLES["s"]),
        (" {{n}}", " 42"),
        ("{{n}}{{n}}", "4242"),
        ("{{#if t}}{{n}}{{/if}}", "42"),
        ("{{json names}}", '["a","b"]'),
        ("{{! one }}{{n}}", "42"),
        ("{{f}}!", "1!"),
    ],
)
def test_a_leaf_that_is_one_expression_keeps_its_type_and_others_are_text(leaf: str, value: Any) -> None:
    assert render_payload({"leaf": [leaf]}, VARIABLES) == {"leaf": [value]}


def test_what_is_no_text_stays_and_keys_are_no_templates() -> None:
    tree = {"{{n}}": 1, "a": [1, 1.5, True, None, {}], "t": (1, 2)}
    assert render_payload(tree, VARIABLES) == {"{{n}}": 1, "a": [1, 1.5, True, None, {}], "t": [1, 2]}


def test_the_payload_is_its_own() -> None:
    tree = MappingProxyType({"names": "{{names}}", "fixed": []})
    first, second = render_payload(tree, VARIABLES), render_payload(tree, VARIABLES)
    first["names"].append("c")
    first["fixed"].append("c")
    assert second == render_payload(tree, VARIABLES) == {"names": ["a", "b"], "fixed": []}
    assert VARIABLES["names"] == ["a", "b"]


def test_every_payload_is_json_in_utf_8() -> None:
    payload = render_payload({"a": "{{half}}", "b": "x{{half}}", "\ud800": 1}, VARIABLES)
    json.dumps(payload, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": ["{{#if n}}"]}, "(in the payload at /a/0)"),
        ({"a/b": {"~c": "{{missing}}"}}, "'missing' is not there (in the payload at /a~1b/~0c)"),
        ("{{missing}}", "at its top"),
        ({"a": "list: {{names}}"}, "{{json names}}"),
        ({"a": "{{nope 1}}"}, "there is no helper 'nope'"),
        (["{{o}}"], "'o' has no JSON"),
    ],
)
def test_errors_say_where_in_the_payload(tree: Any, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render_payload(tree, {**VARIABLES, "o": object()})
    assert words in str(caught.value)


def test_values_without_end_are_errors() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with raises(TemplateError):
        render_payload("{{v}}", {"v": loop})


def test_the_limits_hold_for_the_whole_payload() -> None:
    tree = ["{{#each xs}}{{this}}{{/each}}"] * 60
    with raises(TemplateError):
        render_payload(tree, {"xs": [1] * 2000})
    with raises(TemplateError):
        render_payload(["{{s}}"] * 11, {"s": "x" * 100_000})


# Variables, and the ids that follow from a commit.

NOON = datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))
EVENT = CommitEvent(
    commit_id="c-1",
    target="raw.orders",
    lake="prod",
    target_name="acme/orders",
    run_id="r-1",
    sequence=7,
    snapshot_id=2**62 + 1,
    committed_at=NOON + timedelta(milliseconds=250),
    generation=3,
    collection_names=("orders",),
    producer="image:1",
    fetched_at_min=NOON,
    fetched_at_max=NOON + timedelta(minutes=1),
    bindings=(Binding("raw.orders", "orders", 10, 2048), Binding("raw.orders", "refunds", 0, 0)),
    dag_id="dag",
    dag_run_id="run",
    task_id="task",
    map_index=-1,
    logical_date="2026-03-01T00:00:00Z",
)
NAMES = {
    *("target_name", "producer", "fetched_at_min", "fetched_at_max", "materialization_name", "collection_names"),
    *("connector_image", "flow_published_at_min", "flow_published_at_max", "flow_run_id", "run_id", "headers"),
    *("delivery_id", "commit_id", "generation", "snapshot_id", "committed_at", "sequence", "attempt", "trigger_name"),
    *("bindings", "totals", "dag_id", "dag_run_id", "task_id", "map_index", "logical_date", "target", "lake"),
    *("merged_commits", "changes"),
}


def variables(event: CommitEvent) -> dict[str, object]:
    return template_variables(event, delivery_id="d-1", attempt=2, trigger_name="slack", headers={"X": "y"})


def test_every_variable_is_there_with_its_meaning() -> None:
    names = variables(EVENT)
    assert set(names) == NAMES
    assert (names["target_name"], names["producer"], names["run_id"]) == ("acme/orders", "image:1", "r-1")
    assert (names["delivery_id"], names["attempt"], names["trigger_name"]) == ("d-1", 2, "slack")
    assert names["headers"] == {"X": "y"}
    assert (names["sequence"], names["snapshot_id"], names["generation"]) == (7, 2**62 + 1, 3)
    assert names["bindings"] == [
        {"table": "raw.orders", "collection": "orders", "documents": 10, "bytes": 2048},
        {"table": "raw.orders", "collection": "refunds", "documents": 0, "bytes": 0},
    ]
    assert names["totals"] == {"documents": 10, "bytes": 2048, "tables": 1}
    assert names["map_index"] == -1
    assert names["fetched_at_min"] == "2026-03-01T12:00:00Z"
    assert names["committed_at"] == "2026-03-01T12:00:00.250000Z"
    names["collection_names"].append("other")
    assert EVENT.collection_names == ("orders",), "what is printed is no part of the event"


def test_estuary_flow_s_names_are_aliases_of_ours() -> None:
    found = variables(EVENT)
    names = ("materialization_name", "connector_image", "flow_run_id", "flow_published_at_min", "flow_published_at_max")
    ours = ("target_name", "producer", "run_id", "fetched_at_min", "fetched_at_max")
    assert [found[name] for name in names] == [found[name] for name in ours]
    for name in (*names, *ours):
        assert render(f"{{{{{name}}}}}", found) == found[name] != ""


def test_what_there_is_none_of_is_empty_text() -> None:
    bare = CommitEvent(commit_id="c", target="t", lake="l", target_name="m", run_id="r")
    found = variables(bare)
    names = ("fetched_at_min", "fetched_at_max", "dag_id", "dag_run_id", "task_id", "map_index")
    assert [found[name] for name in (*names, "logical_date", "producer")] == [""] * 8
    assert (found["collection_names"], found["bindings"]) == ([], [])
    assert found["totals"] == {"documents": 0, "bytes": 0, "tables": 0}


def test_a_merged_event_tells_how_many_commits_it_is() -> None:
    names = variables(merge(EVENT, replace(EVENT, commit_id="c-2")))
    assert (names["merged_commits"], names["totals"]) == (2, {"documents": 20, "bytes": 4096, "tables": 1})


def test_counts_of_a_sync_can_be_printed_beside_a_full_refresh_that_has_none() -> None:
    sync = variables(replace(EVENT, changes={"inserted": 3, "updated": 2, "deleted": 0}))
    template = (
        "{{#if changes}}{{changes.inserted}} new, {{changes.deleted}} gone{{else}}{{totals.documents}} in all{{/if}}"
    )
    assert render(template, sync) == "3 new, 0 gone"
    assert render(template, variables(EVENT)) == "10 in all"
    for event, inserted in ((sync, 3), (variables(EVENT), 0)):
        assert render_payload({"n": "{{default changes.inserted 0}}"}, event) == {"n": inserted}


def test_a_template_that_needs_the_counts_of_a_sync_is_refused_when_its_dag_is_parsed() -> None:
    endpoint = {"url": "https://x.example/", "payload": {"n": "{{changes.inserted}}"}}
    with raises(TriggerConfigError):
        check_triggers({"config": [endpoint]})


def test_delivery_ids_follow_from_commit_and_endpoint_alone() -> None:
    assert delivery_id("c-1", "slack") == "666b6fa34f39cd808613989cd689646a"
    ids = {delivery_id(commit, name) for commit in ("c-1", "c-2") for name in ("slack", "airflow")}
    ids |= {delivery_id("a", "b-c"), delivery_id("a-b", "c"), delivery_id('a", "b', "c"), delivery_id("a", 'b", "c')}
    assert len(ids) == 8
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in ids)


def test_merged_ids_tell_windows_apart() -> None:
    ids = {merged_id("slack", "c-1", "c-2"), merged_id("slack", "c-1", "c-3"), merged_id("x", "c-1", "c-2")}
    ids |= {delivery_id("c-1", "c-2"), delivery_id("slack", "c-1")}
    assert len(ids) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in ids)
