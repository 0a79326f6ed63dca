"""Templates against the answers of handlebars.js 4.7.10, with every difference named.

``handlebars_more.json`` has cases of our own: what is easy to get wrong, written by hand, and some that were generated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.webhooks import TemplateError, render

HERE = Path(__file__).parent
CORPUS = json.loads((HERE / "handlebars.json").read_text(encoding="utf-8"))
MORE = json.loads((HERE / "handlebars_more.json").read_text(encoding="utf-8"))
DOCS = Path(__file__).parents[4] / "docs" / "decisions" / "handlebars_differences.md"

EXACT, LISTS, NAMES = "exact-numbers", "lists-and-maps", "strict-arguments"
REFUSED, HELPERS, SUMS, EARLY = "partials", "helpers", "sums", "early"
INHERITED, CONVERSIONS, LOOKUP = "inherited", "conversions", "lookup"

# Each reason is explained in docs/decisions/handlebars_differences.md.
DIFFERENCES = {
    "var: big int": EXACT,
    "var: array printed": LISTS,
    "var: array mixed printed": LISTS,
    "var: object printed": LISTS,
    "expr: lookup dynamic": LISTS,
    "expr: subexpr nested": LISTS,
    "strict: missing arg to lookup": NAMES,
    "raw: raw block": REFUSED,
    "partial: context": REFUSED,
    "partial: hash": REFUSED,
    "partial: in each": REFUSED,
    "partial: standalone indent": REFUSED,
    "partial: inline partial": REFUSED,
    "partial: block partial": REFUSED,
    "partial: dynamic": REFUSED,
    "expr: custom helper hash": HELPERS,
    "expr: custom block helper": HELPERS,
    "expr: kwarg single char name": HELPERS,
    "expr: kwarg path value": HELPERS,
}
MORE_DIFFERENCES = {
    "{{#with n as |x|}}{{x}}{{this}}{{../s}}{{/with}}": SUMS,
    "{{#each objs as |id|}}{{./id}}{{this.id}}{{id.name}}{{/each}}": SUMS,
    "{{#each arr2}}{{#each this}}{{@../index}}{{@index}}{{this}} {{/each}}{{/each}}": SUMS,
    "{{this.n}}{{./n}}{{this/n}}": SUMS,
    "{{null_count}}{{true_total}}{{2nd}}{{1st}}{{$d}}": SUMS,
    "{{~{n}~}} {{~&n~}}": SUMS,
    "{{#each arr2}}{{#each this}}{{../this}}{{/each}}{{/each}}": LISTS,
    "{{this}}": LISTS,
    "{{#if no}}a{{elseif n}}b{{/if}}": EARLY,
    "{{m.toString}}|{{xs.map}}|": INHERITED,
    "{{xs.constructor}}|": INHERITED,
    "{{lookup uni 0}}{{lookup uni 1}}{{lookup uni 2}}": INHERITED,
    "{{#each arr2}}{{#each .}}{{../../n}} {{/each}}{{/each}}": CONVERSIONS,
    '{{#12}}a{{/"12"}}': CONVERSIONS,
    "{{#12}}a{{/12.0}}": CONVERSIONS,
    "{{1.50}}": CONVERSIONS,
    '{{lookup z "x"}}|': LOOKUP,
    "\\\\ {{~! c ~}}\n{{#.}}{{~&nul\r}}{{  lookup 0.0 null}}\r\n{{/. \n }}\\ ": LOOKUP,
    "{{z\n}}{{{lookup 1.0 null\n  }}} {{&lookup 0 deep.a.b.l.[1].x\n  }}\n{{~! c ~}}{{~{m.[a b]}}} ": LOOKUP,
}
ERROR = object()


def answer(template: str, variables: dict[str, Any]) -> object:
    try:
        return render(template, variables)
    except TemplateError:
        return ERROR


def expected(case: dict[str, Any]) -> object:
    return ERROR if case.get("error") else case["output"]


def test_the_corpus_differs_from_handlebars_js_only_where_it_is_meant_to() -> None:
    cases = CORPUS["cases"]
    assert len(cases) == 180
    differing = {
        f"{case['group']}: {case['name']}"
        for case in cases
        if answer(case["template"], case.get("context", CORPUS["default_context"])) != expected(case)
    }
    print(f"{len(cases) - len(differing)} of {len(cases)} cases as in handlebars.js, {len(differing)} on purpose not")
    assert differing == set(DIFFERENCES)


def test_more_cases_differ_from_handlebars_js_only_where_they_are_meant_to() -> None:
    differing = set()
    for case in MORE["cases"]:
        context = case["context"]
        variables = MORE["contexts"][context] if isinstance(context, str) else context
        if answer(case["template"], variables) != expected(case):
            differing.add(case["template"])
    assert len(MORE["cases"]) > 600
    assert differing == set(MORE_DIFFERENCES)


def test_most_differences_are_errors_and_not_other_text() -> None:
    cases = {f"{case['group']}: {case['name']}": case for case in CORPUS["cases"]}
    printed = {
        name
        for name in DIFFERENCES
        if answer(cases[name]["template"], cases[name].get("context", CORPUS["default_context"])) is not ERROR
    }
    assert printed == {"var: big int"}


@pytest.mark.parametrize("reason", sorted({*DIFFERENCES.values(), *MORE_DIFFERENCES.values()}))
def test_each_difference_has_its_reason_in_the_documentation(reason: str) -> None:
    assert f'<a id="{reason}"></a>' in DOCS.read_text(encoding="utf-8")
