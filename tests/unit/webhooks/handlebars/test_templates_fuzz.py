"""20,000 templates made of pieces of templates, and 1,000 of helpers inside each other: each ends in text or a
``TemplateError`` that names a place, in a process that may have little memory.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from airflow_provider_rfr.webhooks import TemplateError, render
from airflow_provider_rfr.webhooks.handlebars.values import HELPERS
from tests.memory import memory_limited
from tests.profile import share

SEED = int(os.environ.get("RFR_FUZZ_SEED") or random.SystemRandom().randrange(2**32))
TEMPLATES = share(20_000)
NESTED_HELPERS = share(1_000)
"""Fewer, as each has a form of its own to be parsed."""
PER_EXAMPLE = 10
MEGABYTES = 512

MARKS = (
    r"{{ }} {{{ }}} {{~ ~}} {{& {{# {{/ {{^ {{! {{!-- --}} {{> {{* {{{{ }}}} \{{ \\{{ ( ) = a= | ' [ ] / \ ~ { } : ,"
)
NAMES = (
    "n s xs m m.k .. . ../ this @index @key @root @root.n @../index [a b] 'k' 1 -1 1.5 true false null undefined x i"
)
WORDS = "as |x| else if each with unless json lookup eq len join date upper missing as|"
PIECES = [*MARKS.split(" "), *NAMES.split(" "), *WORDS.split(" ")]
PIECES += ['"', '"k"', "é", "\U0001f680", "\ud800", "\0", "\u2028", " ", "  ", "\n", "\r\n", "\n  "]
PIECES += ["as |x i|", "{{else}}", "{{^}}", "{{else if n}}", "{{! c }}", "{{!-- }} --}}"]
VALUES = "{{n}}  {{s}}  {{json m}}  {{this}}  {{../n}}  {{@index}}  {{x}}  {{~n~}}  {{{s}}}  {{lookup m 'k'}}"
BLOCKS = "{{#if n}}  {{/if}}  {{#each xs}}  {{#each xs as |x i|}}  {{/each}}  {{#with m}}  {{/with}}  {{#m}}  {{/m}}"
MORE_BLOCKS = "{{#unless z}}  {{/unless}}  {{^z}}  {{/z}}  {{#each m}}  {{else each xs}}"
CALLS = "{{join xs ', '}}  {{date t '%Y'}}  {{default missing s}}  {{#if (and n (eq s 's'))}}  {{len (lookup m 'k')}}"
TAGS = [tag for tags in (VALUES, BLOCKS, MORE_BLOCKS, CALLS) for tag in tags.split("  ")]
TAGS += ['"', '{"a": ', "}", "[", "]", "\n"]
VARIABLES: dict[str, Any] = {
    "n": 42,
    "s": 's"\\\n\ud800',
    "z": 0,
    "xs": ["a", {"k": 1}, None, [1]],
    "m": {"k": "v", "a b": [1], "1": None},
    "t": "2024-05-06T07:08:09Z",
}

loose = st.lists(st.sampled_from(PIECES), max_size=14)
tagged = st.lists(st.sampled_from(TAGS) | st.sampled_from(PIECES), max_size=12)


@st.composite
def nested(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Blocks that are closed, with pieces in them that may not belong there."""
    opening = draw(st.sampled_from([tag for tag in TAGS if tag[:3] in ("{{#", "{{^")]))
    closing = "{{/" + opening[3:].split()[0].strip("}") + "}}"
    body = draw(st.lists(st.sampled_from(TAGS), max_size=3))
    inner = draw(nested(depth + 1)) if depth < 3 and draw(st.booleans()) else []
    return [opening, *body, *inner, closing]


values = st.sampled_from(["n", "s", "xs", "m", "t", "z", "missing", "'\\\\'", "'é\U0001f680'", "'%A'", "(json s)"])
calls = st.tuples(st.sampled_from(sorted(HELPERS)), values)


def called(value: str, several: list[tuple[str, str]]) -> list[str]:
    """Helpers inside each other, as deep as they may be and deeper."""
    expression = value
    for name, other in several:
        more = [other] * (HELPERS[name].least - 1)
        expression = f"({' '.join([name, *more, expression] if other < value else [name, expression, *more])})"
    return ["{{", expression.removeprefix("(").removesuffix(")"), "}}"]


# One helper, or two that take turns: each form of expression is parsed, and names have no part in its form.
turns = st.lists(calls, min_size=1, max_size=2)
depths = st.integers(1, 33)
helpers = st.builds(lambda value, calls, depth: called(value, (calls * depth)[:depth]), values, turns, depths)
templates = st.one_of(loose, tagged, nested()).map("".join)


def check(template: str) -> None:
    for json_mode in (False, True):
        try:
            render(template, VARIABLES, json_mode=json_mode).encode("utf-8")
        except TemplateError as error:
            failure = error
        else:
            continue
        lines = template.split("\n")
        assert 1 <= failure.line <= len(lines)
        assert 1 <= failure.column <= len(lines[failure.line - 1]) + 1


def check_many(kind: st.SearchStrategy[str], number: int) -> None:
    @seed(SEED)
    @settings(
        max_examples=number // PER_EXAMPLE,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.lists(kind, min_size=PER_EXAMPLE, max_size=PER_EXAMPLE))
    def check_several(several: list[str]) -> None:
        for template in several:
            check(template)

    print(json.dumps({"templates": number, "seed": SEED}))
    with memory_limited(MEGABYTES):
        check_several()


def test_any_template_ends_in_text_or_an_error_with_a_place() -> None:
    check_many(templates, TEMPLATES)


def test_helpers_inside_each_other_end_in_text_or_an_error_with_a_place() -> None:
    check_many(helpers.map("".join), NESTED_HELPERS)
