"""The helpers, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.webhooks import TemplateError, render
from airflow_provider_rfr.webhooks.handlebars.values import parse_time

VARIABLES: dict[str, Any] = {
    "n": 42,
    "f": 1.5,
    "s": "Straße & Co",
    "blank": "",
    "nul": None,
    "no": False,
    "xs": ["a", "b"],
    "mixed": ["a", 1, 1.0, True, None],
    "empty": [],
    "m": {"k": "v", "1": "one"},
    "same": {"1": "one", "k": "v"},
    "at": "2024-05-06T07:08:09.123456789Z",
    "elsewhere": "2024-05-06T09:08:09.1234567890+02:00",
    "later": "2024-05-06T07:08:09.5Z",
    "whole": "2024-05-06T07:08:09Z",
}


def test_of(template: str) -> bool:
    return render(f"{{{{#if {template}}}}}yes{{{{/if}}}}", VARIABLES) == "yes"


test_of.__test__ = False


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{json xs}}", '["a","b"]'),
        ("{{json mixed}}", '["a",1,1,true,null]'),
        ("{{json 1.50}}{{json null}}{{json 'x'}}{{json undefined}}", '1.5null"x"null'),
        ("{{lookup m 'k'}}{{lookup m 1}}{{lookup xs 1}}{{lookup xs 9}}", "voneb"),
        ("{{lookup (lookup @root 'm') (lower 'K')}}", "v"),
        ("{{len xs}} {{len m}} {{len s}} {{len empty}}", "2 2 11 0"),
        ("{{default nul 'd'}}{{default blank 'd'}}{{default missing 'd'}}{{default missing.deeply.so 'd'}}", "dddd"),
        ("{{default no 'd'}}{{default 0 'd'}}{{default n 'd'}}", "false042"),
        ("{{join xs}} {{join xs ' + '}} {{join mixed '|'}} {{join empty}}", "a,b a + b a|1|1|true| "),
        ("{{upper s}} {{lower s}}", "STRASSE & CO straße & co"),
        ("{{urlencode s}}{{urlencode '/?'}}{{urlencode n}}", "Stra%C3%9Fe%20%26%20Co%2F%3F42"),
        ("{{log s}}{{log missing}}{{log}}", ""),
        ("{{date at}}", "2024-05-06T07:08:09Z"),
        ("{{date at timezone='Europe/Berlin'}}", "2024-05-06T09:08:09+02:00"),
        ("{{date at '%d.%m.%y %H:%M:%S.%L' timezone='America/New_York'}}", "06.05.24 03:08:09.123"),
        (
            "{{date at '%Y %j %I%p %f %A %a %B %b %z %s %%'}}",
            "2024 127 07AM 123456 Monday Mon May May +00:00 1714979289 %",
        ),
        ("{{date elsewhere '%H' timezone='UTC'}}", "07"),
        ("[{{date blank}}{{date nul}}]", "[]"),
        ("{{eq n 42}}{{ne n 42}}", "truefalse"),
    ],
)
def test_what_helpers_give(template: str, text: str) -> None:
    assert render(template, VARIABLES) == text


@pytest.mark.parametrize(
    "template",
    [
        *("(eq n 42)", "(eq m same)", "(eq nul null)", "(eq (lookup m 'zzz') null)"),
        *("(ne no 0)", "(ne true 1)", "(ne '1' 1)", "(ne xs m)"),
        *("(gte n 42)", "(lt f n)", "(lte f 1.5)", "(gt 'b' 'a')", "(lt 'B' 'a')"),
        *("(and n s)", "(not (and n blank))", "(and m (lookup m 'k') true 1 'x')"),
        *("(or missing n)", "(not (or missing missing.deeply nul no 0 '' empty))", "(not empty)"),
    ],
)
def test_what_holds(template: str) -> None:
    assert test_of(template)


@pytest.mark.parametrize(
    ("template", "holds"),
    [
        ("(lt at later)", True),
        ("(gt at whole)", True),
        ("(lte at elsewhere)", True),
        ("(gte at elsewhere)", True),
        ("(lt at elsewhere)", False),
        ("(gt later whole)", True),
        ("(lt later 'x')", True),
    ],
)
def test_times_are_compared_as_instants(template: str, holds: bool) -> None:
    assert test_of(template) is holds


def test_times_that_are_none_are_text() -> None:
    for text in ("2024-05-06T07:08:09", "2024-02-30T00:00:00Z", "2024-05-06T24:00:00Z", "२०२४-05-06T07:08:09Z"):
        assert parse_time(text) is None
    assert parse_time("0001-01-01T00:00:00+23:59") is None
    assert parse_time("2024-05-06t07:08:09.10z") == parse_time("2024-05-06 08:08:09.1+01:00")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{json}}", "{{json name}}"),
        ("{{json n indent=2}}", "takes no argument 'indent'"),
        ("{{len n}}", "'n' is a number"),
        ("{{gt n s}}", "two numbers or two texts"),
        ("{{join s}}", "'s' is text; this helper takes a list"),
        ("{{join mixed xs}}", "'xs' is a list"),
        ("{{upper xs}}", "'xs' is a list; this helper takes text"),
        ("{{lookup m xs}}", "a name or a number"),
        ("{{date s}}", "'s' is not a time"),
        ("{{date at '%Q'}}", "%Y"),
        ("{{date at timezone='Nowhere/Land'}}", "no such time zone"),
        ("{{date at zone='UTC'}}", "takes no argument 'zone'"),
        ("{{#json n}}{{/json}}", "is not a block"),
        ("{{#eq n 42}}{{/eq}}", "{{#if (eq ...)}}"),
        ("{{if n}}", "{{#if ...}}"),
        ("{{lookup m (each xs)}}", "each is a block"),
        ("{{#if n s}}{{/if}}", "exactly one argument"),
        ("{{date at timezone=missing}}", "'missing' is not there"),
        ("{{n 1}}", "there is no helper 'n'"),
        ("{{elseif n}}", "{{else if ...}}"),
        ("{{latr}}", "did you mean later?"),
        ("{{#each xs}}{{n}}{{/each}}", "write @root.n"),
    ],
)
def test_errors_say_what_to_write(template: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template, VARIABLES)
    assert words in caught.value.problem


def test_a_variable_may_have_a_helpers_name() -> None:
    variables = {"date": "today", "len": 3, "json": "j"}
    assert render("{{date}} {{len}} {{upper date}} {{#json}}{{this}}{{/json}}", variables) == "today 3 TODAY j"
