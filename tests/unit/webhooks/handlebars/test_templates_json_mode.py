"""In JSON mode no value can break the JSON that a template is, and ``{{json x}}`` always parses back to x."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.webhooks import TemplateError, render
from airflow_provider_rfr.webhooks.handlebars import state_behind
from tests.profile import examples
from tests.unit.messages import raises

HOSTILE = ['"', "\\", '\\"', "\n", "\u2028", "\x00", "\U0001f680", '","x":"', "\\u0022", "{{n}}"]
HOSTILE += ["\ud83d", "}", "null", ""]


def in_json(template: str, **variables: Any) -> str:
    return render(template, variables, json_mode=True)


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stays_where_the_template_has_it(value: str) -> None:
    body = in_json(
        '{"in": "<{{v}}>", "out": {{v}}, "{{v}}": [{{#each vs}}"{{this}}"{{#unless @last}},{{/unless}}{{/each}}]}',
        v=value,
        vs=[value, value],
    )
    assert json.loads(body) == {"in": f"<{value}>", "out": value, value: [value, value]}


@pytest.mark.parametrize(
    ("value", "outside", "inside"),
    [
        (None, "null", ""),
        (True, "true", "true"),
        (1.0, "1", "1"),
        (10**20, str(10**20), str(10**20)),
        ("x", '"x"', "x"),
    ],
)
def test_scalars_outside_of_strings_are_those_of_json(value: object, outside: str, inside: str) -> None:
    assert in_json("{{v}}", v=value) == outside
    assert in_json('"{{v}}"', v=value) == f'"{inside}"'
    assert render("{{v}}", {"v": value}) == inside


def test_json_in_a_string_is_escaped_once_more() -> None:
    value = {"a": ['"', "\\", 1]}
    assert json.loads(in_json("{{json v}}", v=value)) == value
    assert json.loads(json.loads(in_json('"{{json v}}"', v=value))) == value
    assert json.loads(in_json("[{{default missing (json v)}}]", v=value)) == [value]
    assert json.loads(in_json("[{{upper (json v)}}]", v="a")) == ['"A"']


def test_text_of_other_helpers_is_text() -> None:
    body = in_json(
        '{"a": {{upper v}}, "b": {{join vs "\\""}}, "c": {{len vs}}, "d": {{eq v v}} }', v="q", vs=["a", "b"]
    )
    assert json.loads(body) == {"a": "Q", "b": 'a"b', "c": 2, "d": True}


def test_quotes_in_branches_are_followed_as_they_are_rendered() -> None:
    template = '[{{#if s}}"{{v}}{{else}}{{v}},"{{/if}}"]'
    assert in_json('[{{#if s}}"{{/if}}{{v}}{{#if s}}"{{/if}}]', s=True, v='"') == '["\\""]'
    assert in_json('[{{#if s}}"{{/if}}{{v}}{{#if s}}"{{/if}}]', s=False, v='"') == '["\\""]'
    assert json.loads(in_json(template, s=True, v='"')) == ['"']
    assert json.loads(in_json(template, s=False, v='"')) == ['"', ""]


@pytest.mark.parametrize("before", [r"\\", r"\u12"])
def test_a_value_can_not_join_an_escape(before: str) -> None:
    with raises(TemplateError):
        in_json(f'"{before}{{{{v}}}}"', v='"')


def test_a_whole_escape_before_a_value_is_fine() -> None:
    assert json.loads(in_json(r'"\\\{{v}}"', v='"')) == '\\"'
    assert json.loads(in_json('"\\n\\u00e9\\" {{v}}"', v='"')) == '\né" "'


def test_lists_and_maps_are_printed_by_json_in_json_mode_as_well() -> None:
    for template in ("{{v}}", '"{{v}}"'):
        with raises(TemplateError):
            in_json(template, v=[1])


@given(st.text(alphabet='"\\u12abn /é', max_size=30), st.integers(0, 30))
def test_the_state_of_json_is_the_same_however_the_text_is_cut(text: str, cut: int) -> None:
    assert state_behind(text[cut:], state_behind(text[:cut], 0)) == state_behind(text, 0)


def joined(text: str) -> str:
    """The text with surrogates that are a pair as the one character that JSON makes of them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.text(st.characters(exclude_categories=[]), max_size=12).map(joined) | st.sampled_from(HOSTILE)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@given(values)
@examples(500)
def test_json_parses_back_to_its_value(value: object) -> None:
    variables = {"v": value}
    for text in (render("{{json v}}", variables), in_json("{{json v}}", v=value)):
        assert json.loads(text) == value
        text.encode("utf-8")
    assert json.loads(json.loads(in_json('"{{json v}}"', v=value))) == value
    assert json.loads(in_json('{"a": [{{json v}}, "{{n}}"]}', v=value, n=1)) == {"a": [value, "1"]}


pieces = st.text(alphabet='ab {}[]:,"\\\n/é', max_size=6)
holes = st.sampled_from(["string", "scalar", "json", "loop", "branch"])
trees: st.SearchStrategy[Any] = st.recursive(
    st.tuples(holes, pieces, pieces, texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(pieces, inner, max_size=3),
    max_leaves=6,
)


def as_template(tree: Any, variables: dict[str, Any]) -> tuple[str, Any]:
    """A template of that JSON with holes in it, and the JSON that it must become."""
    if isinstance(tree, list):
        parts = [as_template(item, variables) for item in tree]
        return "[" + ", ".join(text for text, _ in parts) + "]", [value for _, value in parts]
    if isinstance(tree, dict):
        items = [(key, *as_template(item, variables)) for key, item in tree.items()]
        # A space between braces that are JSON's and braces that are a tag's.
        body = ", ".join(f"{literal(key)}: {text} " for key, text, _ in items)
        return "{ " + body + "}", {key: value for key, _, value in items}
    kind, before, behind_it, value = tree
    name = f"v{len(variables)}"
    variables[name] = value
    if kind == "string":
        return f'"{literal(before)[1:-1]}{{{{{name}}}}}{literal(behind_it)[1:-1]}"', before + value + behind_it
    if kind == "loop":
        variables[name] = [value, value]
        text = f"[{{{{#each {name}}}}}{{{{this}}}}{{{{#unless @last}}}}, {{{{/unless}}}}{{{{/each}}}}]"
        return text, [value, value]
    if kind == "branch":
        return f'{{{{#if {name}}}}}"{{{{{name}}}}}"{{{{else}}}}{{{{{name}}}}}{{{{/if}}}}', value
    return (f"{{{{json {name}}}}}" if kind == "json" else f"{{{{{name}}}}}"), value


def literal(text: str) -> str:
    """A JSON string without braces and without backslashes at its ends, which would be Handlebars' before a tag."""
    return json.dumps(text).replace("{", "\\u007b").replace("}", "\\u007d").replace("\\\\", "\\u005c")


@given(trees)
@examples(1000)
def test_hostile_values_never_break_a_body(tree: Any) -> None:
    variables: dict[str, Any] = {}
    template, expected = as_template(tree, variables)
    assert json.loads(render(template, variables, json_mode=True)) == expected
