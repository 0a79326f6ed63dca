"""Templates: their values, their limits, and what is found out before the first request."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest.templates import ConstantTemplate, compile_condition, compile_value
from tests.unit.messages import raises

NAMES = {"config", "token"}


def value(template, **variables):
    return compile_value(template, "here", NAMES)(variables)


@pytest.mark.parametrize("text", ["", "plain", "a { b } c", "50 %", "007"])
def test_a_text_without_expressions_never_meets_the_engine(text):
    compiled = compile_value(text, "here", NAMES)
    assert isinstance(compiled, ConstantTemplate)
    assert compiled({}) == text


@pytest.mark.parametrize(
    "original", [7, 0, "007", "1e5", "[1]", "True", None, [1, 2], {"a": 1}, 1.5, "12345678901234567890"]
)
def test_a_single_expression_keeps_the_type_and_the_text_of_its_value(original):
    result = value("{{ token }}", token=original)
    assert result == original
    assert type(result) is type(original)


def test_an_expression_among_text_gives_text():
    assert value("a-{{ token }}-b", token=3) == "a-3-b"
    assert value("{{ token }}{{ token }}", token=3) == "33"
    assert value("{% if token %}yes{% endif %}", token=3) == "yes"
    assert value('{{ "}}" ~ token }}', token=3) == "}}3"


def test_lists_and_mappings_are_rendered_inside():
    assert value({"a": ["{{ token }}", 1], "b": {"c": "x{{ token }}"}}, token=3) == {"a": [3, 1], "b": {"c": "x3"}}


@pytest.mark.parametrize("text", ["{{ config.x }}", "{{ config.x.y }}", "{{ config.x }} text", "{{ nothing }}"])
def test_what_is_undefined_is_an_error_and_never_an_empty_text(text):
    with raises(SourceDefinitionError):
        value(text, config={})


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ config.__init__.__globals__ }}",
        "{{ config.update({'a': 1}) }}",
        "{{ config.pop('a') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_templates_stay_in_their_sandbox(text):
    config = {"a": 1}
    with pytest.raises(SourceDefinitionError):
        value(text, config=config)
    assert config == {"a": 1}


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("{{ token", None),
        ("{{ token | nope }}", None),
        ("{{ confg.x }}", None),
        ("{{ config.regon }}", {"region": "eu"}),
        ("{{ config['x'] }}", {}),
    ],
)
def test_a_mistake_is_found_before_the_first_request(text, config):
    with raises(SourceDefinitionError):
        compile_value(text, "here", NAMES, config)


@pytest.mark.parametrize(
    "text", ["{{ config.x | default(1) }}", "{{ 1 if config.x is defined else 2 }}", "{{ config.get('x') }}"]
)
def test_a_name_with_a_default_may_be_missing(text):
    compile_value(text, "here", NAMES, {})({"config": {}})


@pytest.mark.parametrize("text", ["token > 1", "{{ token > 1 }}", "{{- token > 1 -}}"])
def test_a_condition_is_an_expression_with_or_without_braces(text):
    condition = compile_condition(text, "here", NAMES)
    assert condition({"token": 2}) is True
    assert condition({"token": 1}) is False


def test_the_request_s_parts_are_rendered_from_config_slice_and_token(api, make):
    stream = make(
        config={"v": "v2", "on": True, "tags": ["a", "b"], "none": None},
        request={
            "method": "POST",
            "path": "/{{ config.v }}/items",
            "query": {
                "on": "{{ config.on }}",
                "tag": "{{ config.tags }}",
                "none": "{{ config.none }}",
                "t": "{{ token }}",
            },
            "headers": {"X-Size": "{{ page_size }}"},
            "json": {"day": "{{ stream_slice.day }}", "first": "{{ token is none }}"},
        },
        paginator={"type": "page_number", "page_size": 5, "send_as": {"json": "page"}},
    )
    stream.read_page({"day": 3}, None)
    stream.read_page({"day": 3}, 2)
    assert api.paths == ["/v2/items?on=true&tag=a&tag=b", "/v2/items?on=true&tag=a&tag=b&t=2"]
    assert api.asked[0].headers["X-Size"] == "5"
    assert api.asked[1].json == {"day": 3, "first": False, "page": 2}


def test_a_form_is_sent_as_one(api, make):
    request = {"method": "POST", "path": "/q", "form": {"a": "ü {{ config.x }}", "b": True}}
    make(config={"x": 1}, request=request).read_page({}, None)
    assert api.asked[0].form == {"a": "ü 1", "b": "true"}
    assert api.asked[0].headers["Content-Type"] == "application/x-www-form-urlencoded"
