"""Structured payloads: JSON trees with templates as leaves."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_rfr.webhooks import TemplateError
from airflow_provider_rfr.webhooks.validation import render_payload
from tests.unit.messages import raises

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


def test_a_leaf_that_is_one_expression_keeps_its_type() -> None:
    tree = {
        "names": "{{names}}",
        "bindings": "{{bindings}}",
        "n": "{{ n }}",
        "big": "{{{big}}}",
        "t": "{{t}}",
        "nul": "{{nul}}",
        "none": "{{lookup bindings 9}}",
        "test": "{{gt n 1}}",
        "count": "{{len names}}",
        "deep": ["{{bindings.[0].documents}}"],
    }
    assert render_payload(tree, VARIABLES) == {
        "names": ["a", "b"],
        "bindings": [{"table": "t", "documents": 3}],
        "n": 42,
        "big": 2**60 + 1,
        "t": True,
        "nul": None,
        "none": None,
        "test": True,
        "count": 2,
        "deep": [3],
    }


def test_other_leaves_are_text() -> None:
    tree = [
        " {{n}}",
        "{{n}}{{n}}",
        "{{#if t}}{{n}}{{/if}}",
        "{{json names}}",
        "{{! one }}{{n}}",
        "x",
        "",
        "{{s}}",
        "{{f}}!",
    ]
    assert render_payload(tree, VARIABLES) == [" 42", "4242", "42", '["a","b"]', "42", "x", "", VARIABLES["s"], "1!"]


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
        (["{{o}}"], "'o' has no JSON"),
    ],
)
def test_errors_say_where_in_the_payload(tree: Any, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render_payload(tree, {**VARIABLES, "o": object()})
    assert words in str(caught.value)


def test_a_tree_of_wrong_templates_is_refused() -> None:
    for tree in ({"a": "{{#if n}}"}, {"a": "{{nope 1}}"}):
        with pytest.raises(TemplateError):
            render_payload(tree, VARIABLES)


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
