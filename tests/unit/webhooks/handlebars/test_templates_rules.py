"""The sixteen rules that templates keep, each by its number.

What a template prints is compared with handlebars.js in ``test_templates_conformance.py``; rule 9 is JSON mode's, in
``test_templates_json_mode.py``; rule 16's properties have modules of their own as well.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.webhooks import TemplateError, render
from airflow_provider_rfr.webhooks.handlebars import _parser as parser
from airflow_provider_rfr.webhooks.handlebars import compile_template
from airflow_provider_rfr.webhooks.handlebars._blocks import _CACHED_TEMPLATES, parse
from tests.soon import assert_grows_in_proportion
from tests.unit.messages import raises

ROOM = Path(parser.__file__).parent
PACKAGE = ROOM.parents[1]


def refused(template: str, variables: dict[str, Any] | None = None, **options: Any) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        render(template, variables or {}, **options)
    return caught.value


# 1


@pytest.mark.parametrize(
    "template",
    ['{"a":1{{#if yes}},"b":2}', "a {{n", "a{{#if n}}", "{{lookup map 'k1}}", "{{[abc}}", "{{!-- a }}", "a{{!"],
)
def test_rule_1_nothing_is_left_unread_and_nothing_is_cut_off(template: str) -> None:
    refused(template, {"n": 1, "yes": True, "map": {}})


@pytest.mark.parametrize("question", ["x x)", "x (x", "x =", "(x)", "", "x xx=", "x ?"])
def test_rule_1_the_grammars_answer_counts_only_where_it_has_read_all(question: str) -> None:
    assert isinstance(parser._ask(question), int)


def test_rule_1_the_grammar_is_the_one_that_is_known() -> None:
    path = ("path", ["x"])
    assert version("pybars3") == "0.9.7"
    # What the grammar is not asked for is what it would answer.
    for count in (1, 2, 9):
        assert parser._ask(" ".join("x" * count)) == ("escapedexpand", path, [path] * (count - 1))
    assert parser._ask('x x "" 0 true false null undefined') == (
        "escapedexpand",
        path,
        [path, *(("literalparam", value) for value in ('""', 0, True, False, None, None))],
    )
    assert parser._ask("x (x (x) xx=x) xx=(x x) xx=0") == (
        "escapedexpand",
        path,
        [
            ("subexpr", path, [("subexpr", path, []), ("kwparam", "xx", path)]),
            ("kwparam", "xx", ("subexpr", path, [path])),
            ("kwparam", "xx", ("literalparam", 0)),
        ],
    )


# 2


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{lookup m '}}'}}", "braces"),
        ('{{lookup m "\\"}}"}}', "quote"),
        ("{{m.[}}]}}", "braces"),
        ("a{{!-- {{n}} }} --}}b", "ab"),
        ("\\{{n}} \\\\{{n}}", "{{n}} \\42"),
    ],
)
def test_rule_2_the_lexer_knows_quotes_brackets_comments_escapes_and_tildes(template: str, text: str) -> None:
    assert render(template, {"n": 42, "m": {"}}": "braces", '"}}': "quote"}}) == text


def test_rule_2_three_braces_where_two_belong_are_an_error_that_says_what_to_do() -> None:
    error = refused('{"a":{{n}}}', {"n": 1})
    assert "put a space" in str(error)
    assert (error.line, error.column) == (1, 9)


# 3


@pytest.mark.parametrize("template", ["a\n  {{#if n}}b", "a\n  {{#if n}}b{{/each}}", "a\n  {{#if n}}{{#if n}}{{/if}}"])
def test_rule_3_a_block_without_its_end_is_told_by_where_it_begins(template: str) -> None:
    error = refused(template, {"n": 1})
    assert (error.line, error.column) == (2, 3)
    assert "{{/if}}" in error.problem


def test_rule_3_an_end_or_else_without_a_block_is_an_error() -> None:
    assert refused("ab{{/if}}").column == 3
    assert refused("ab{{else}}").column == 3


# 4


def test_rule_4_there_is_one_plain_else_and_it_comes_last() -> None:
    refused("{{#if a}}1{{else}}2{{else}}3{{/if}}", {"a": 1})
    refused("{{#if a}}1{{else}}2{{else if a}}3{{/if}}", {"a": 1})


# 5


def test_rule_5_whitespace_before_many_blocks_is_read_once_and_not_by_each_of_their_ways() -> None:
    template = "\n" + "{{#a}}      " * 30 + "x"
    assert render(template + "{{/a}}" * 30, {"a": True}).count("x") == 1
    refused(template)


@pytest.mark.parametrize(
    ("before", "repeated", "after"),
    [
        ("", " ", ""),
        ("{{n}}", " ", "{{n}}"),
        ("{{n}}", " \n", "{{~n~}}"),
        ("{{n", " ", "}}"),
        ("{{!", "-", ""),
        ("{{", "a.", "a}}"),
        ("", "\\", "{{n}}"),
        ("{{n ", "as ", "}}"),
    ],
)
def test_rule_5_whitespace_and_repetition_take_linear_time(before: str, repeated: str, after: str) -> None:
    def read(times: int) -> None:
        with contextlib.suppress(TemplateError):
            render(before + repeated * times + after, {"n": 1})

    most = 60_000 // len(repeated)
    assert_grows_in_proportion(read, small=most // 100, large=most)


# 6


class Trap:
    """Tells by an error if anything is asked of it."""

    secret = "canary"

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise AssertionError(f"asked for {name}")

    def __call__(self) -> str:
        raise AssertionError("called")


@pytest.mark.parametrize("name", ["secret", "__class__", "__init__.__globals__", "__call__", "[__dict__]"])
def test_rule_6_attributes_are_never_looked_up(name: str) -> None:
    for template in (f"{{{{o.{name}}}}}", f"{{{{#if o.{name}.x}}}}{{{{/if}}}}", "{{json o}}", "{{#o}}{{secret}}{{/o}}"):
        assert "canary" not in str(refused(template, {"o": Trap()}))


def test_rule_6_values_are_never_called() -> None:
    def call() -> str:
        raise AssertionError("called")

    for template in ("{{f}}", "{{f 1}}", "{{upper f}}", "{{#each f}}{{/each}}{{f}}", "{{lookup f 'x'}}{{f}}"):
        refused(template, {"f": call})


def test_rule_6_maps_have_keys_and_lists_have_indices_and_a_length() -> None:
    variables = {"m": {"items": "own", "length": "own too"}, "xs": ["a", "b"]}
    assert render("{{m.items}} {{m.length}} {{xs.[1]}} {{xs.length}}", variables) == "own own too b 2"
    names = ["m.keys", "m.__class__", "xs.[2]", "xs.[-1]", "xs.append", "xs.[01]", "m.items.upper", "m.items.format"]
    for name in (*names, "fromkeys", "@root.fromkeys", "__class__", "_parent"):
        for template in (f"{{{{{name}}}}}", f"{{{{#{name}}}}}{{{{/{name}}}}}", f"{{{{#each {name}}}}}{{{{/each}}}}"):
            refused(template, variables)


# 7


@pytest.mark.parametrize(
    "template",
    [
        "{{missing}}",
        "{{m.missing}}",
        "{{../x}}",
        "{{@nothing}}",
        "{{json missing}}",
        "{{lookup m missing}}",
        "{{#if (eq missing 1)}}{{/if}}",
        "{{#if (not missing)}}{{/if}}",
        "{{#missing}}{{/missing}}",
        "{{#with missing}}{{/with}}",
        "{{#each xs as |x|}}{{x.missing}}{{/each}}",
        "{{#each xs}}{{n}}{{/each}}",
        "{{default x missing}}",
    ],
)
def test_rule_7_what_is_missing_is_an_error(template: str) -> None:
    assert "is not there" in str(refused(template, {"m": {}, "xs": [{}], "n": 1, "x": None}))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{#if missing}}a{{else}}b{{/if}}", "b"),
        ("{{#unless m.missing}}a{{/unless}}", "a"),
        ("{{#each missing}}a{{else}}b{{/each}}", "b"),
        ("{{#with missing}}a{{else}}b{{/with}}", "b"),
        ("{{#if (or missing n)}}a{{/if}}{{#if (and n missing.x)}}b{{/if}}", "a"),
        ("{{default missing.x 'd'}}", "d"),
    ],
)
def test_rule_7_questions_about_what_is_missing_are_none(template: str, text: str) -> None:
    assert render(template, {"m": {}, "n": 1}) == text


# 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9007199254740993, "9007199254740993"),
        (-(10**30), "-1" + "0" * 30),
        (1.0, "1"),
        (-0.0, "0"),
        (1e-7, "1e-7"),
        (1.5e300, "1.5e+300"),
        (0.1 + 0.2, "0.30000000000000004"),
        (123456789012345680000.0, "123456789012345680000"),
        (True, "true"),
        (None, ""),
    ],
)
def test_rule_8_scalars_are_printed_as_javascript_does_and_whole_numbers_exactly(value: object, text: str) -> None:
    assert render("{{v}}", {"v": value}) == text


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1,)])
def test_rule_8_lists_and_maps_are_printed_by_json_alone(value: object) -> None:
    assert "{{json v}}" in str(refused("{{v}}", {"v": value}))
    assert json.loads(render("{{json v}}", {"v": value})) == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("value", [math.inf, math.nan, object(), b"x", {1}, pytest.param(10**5000, id="long")])
def test_rule_8_what_json_does_not_have_is_an_error(value: object) -> None:
    refused("{{v}}", {"v": value})
    refused("{{json v}}", {"v": value})
    refused('{"a": {{v}} }', {"v": value}, json_mode=True)


# 10


def at_the_limits() -> Iterator[Any]:
    deep = "{{#if n}}" * 33 + "{{/if}}" * 33
    yield pytest.param("é" * 40_000, {}, "64|65,536", id="size")
    yield pytest.param(deep, {}, "32 nested blocks", id="blocks")
    yield pytest.param("{{not " + "(not " * 33 + "n" + ")" * 33 + "}}", {}, "32 nested parentheses", id="parentheses")
    loops = "{{#each @root.xs}}" * 3 + "{{this}}" + "{{/each}}" * 3
    yield pytest.param(loops, {"xs": ["x"] * 100}, "200,000 steps", id="steps")
    yield pytest.param("{{#each xs}}{{@root.s}}{{/each}}", {"xs": [1] * 100, "s": "é" * 6000}, "1,048,576", id="output")
    yield pytest.param("{{json (json (json (json s)))}}", {"s": '"' * 200_000}, "1,048,576", id="value")
    yield pytest.param("{{join xs s}}", {"xs": ["x"] * 2000, "s": "y" * 2000}, "1,048,576", id="join")


@pytest.mark.parametrize(("template", "variables", "words"), [*at_the_limits()])
def test_rule_10_each_limit_has_its_error(template: str, variables: dict[str, Any], words: str) -> None:
    error = refused(template, {"n": 1, **variables})
    assert any(word in error.problem for word in words.split("|")), error


def test_rule_10_what_is_within_the_limits_is_rendered() -> None:
    deep = "{{#if n}}" * 32 + "x" + "{{/if}}" * 32
    assert render(deep, {"n": 1}) == "x"
    assert render("{{#if " + "(not " * 32 + "n" + ")" * 32 + "}}x{{/if}}", {"n": 1}) == "x"
    assert len(render("x" * 65_536, {})) == 65_536
    assert len(render("{{#each xs}}{{@root.s}}{{/each}}", {"xs": [1] * 1024, "s": "x" * 1024})) == 1 << 20


# 11


@pytest.mark.parametrize(
    "name", ["null_count", "true_total", "2nd", "undefinedx", "false1", "$x", "elsewhere", "x-y", "a", "1e5"]
)
def test_rule_11_names_may_begin_as_literals_do(name: str) -> None:
    variables = {name: "yes"}
    assert render(f"{{{{{name}}}}}", variables) == "yes"
    assert render(f"{{{{upper {name}}}}}{{{{#if {name}}}}}!{{{{/if}}}}", variables) == "YES!"
    assert render(f"{{{{#each xs as |{name}|}}}}{{{{{name}}}}}{{{{/each}}}}", {"xs": ["z"]}) == "z"
    assert render(f"{{{{#if 0 includeZero={name}}}}}a{{{{/if}}}}", variables) == "a"


# 12


def test_rule_12_a_template_is_read_once_and_the_cache_is_bounded() -> None:
    assert compile_template("a{{n}}").program is compile_template("a{{n}}").program
    for index in range(_CACHED_TEMPLATES + 5):
        compile_template(f"bounded {index}")
    assert parse.cache_info().currsize == _CACHED_TEMPLATES


def test_rule_12_eight_threads_that_switch_all_the_time_read_and_render_right() -> None:
    parser._ask.cache_clear()
    interval = sys.getswitchinterval()
    wrong: list[object] = []
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        start.wait()
        for turn in range(40):
            args = " ".join(
                f"(lookup @root.m {'(lower @root.k)' * (index % 2) or '@root.k'})" for index in range(turn % 5 + 2)
            )
            test = f"{{{{#if (and {args})}}}}{thread}-{turn}{{{{/if}}}}"
            template = f"{{{{#each xs as |x i|}}}}{{{{i}}}}{{{{x}}}}{test};{{{{/each}}}}"
            expected = f"0a{thread}-{turn};1b{thread}-{turn};"
            try:
                text = render(template, {"xs": ["a", "b"], "m": {"k": 1}, "k": "k"})
            except Exception as error:
                wrong.append(error)
            else:
                wrong.extend([] if text == expected else [text])

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


# 13

CANARY = "c4n4ry-v4lue"


@pytest.mark.parametrize(
    "template",
    [
        "{{secret.x}}",
        "{{headers.Nope}}",
        "{{secret 1}}",
        "{{#each secret}}{{this}}{{/each}}{{missing}}",
        "{{xs}}",
        "{{headers}}",
        "{{date secret}}",
        "{{date '2024-01-01T00:00:00Z' secret}}{{missing}}",
        "{{date '2024-01-01T00:00:00Z' '%Y' timezone=secret}}",
        "{{join secret}}",
        "{{len 5}}{{lookup m secret}}{{missing}}",
        "{{json odd}}",
        "{{lookup m headers}}",
    ],
)
def test_rule_13_errors_name_variables_and_never_tell_what_they_hold(template: str) -> None:
    lists = {"xs": [CANARY], "m": {}, "odd": {"a": {CANARY}}}
    error = refused(template, {"secret": CANARY, "headers": {"Authorization": CANARY}, **lists})
    seen: list[BaseException] = [error]
    for link in seen:
        seen.extend(other for other in (link.__cause__, link.__context__) if other is not None)
    assert CANARY not in "".join(f"{link!r}{link}{link.args}" for link in seen)


# 14


def test_rule_14_the_helpers_are_these() -> None:
    error = refused("{{nothing_like_it 1}}")
    names = "if unless each with json lookup len eq ne gt gte lt lte and or not default join upper lower urlencode date"
    assert all(name in error.problem for name in (*names.split(), "log"))


def test_rule_14_an_unknown_helper_is_found_while_compiling_and_the_like_are_named() -> None:
    with raises(TemplateError):
        compile_template("{{#if no}}{{uper name}}{{/if}}")


# 15


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{> p}}", "partials"),
        ("{{#> p}}{{/p}}", "partials"),
        ('{{#*inline "p"}}{{/inline}}', "decorators"),
        ("{{{{raw}}}}{{{{/raw}}}}", "raw blocks"),
    ],
)
def test_rule_15_partials_decorators_and_raw_blocks_are_refused_by_name(template: str, word: str) -> None:
    error = refused(f"a\nb{template}")
    assert word in error.problem
    assert (error.line, error.column) == (2, 2)


# 16


def test_rule_16_no_code_is_made_of_templates() -> None:
    forbidden = {"exec", "eval", "compile", "getattr", "setattr", "hasattr", "globals", "locals", "vars", "__import__"}
    names = {
        node.func.id
        for path in (*ROOM.glob("*.py"), ROOM.parent / "payloads.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert names and not names & forbidden


def test_rule_16_one_module_knows_pybars_and_no_template_leaves_a_module_behind() -> None:
    knowing = [
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "from pybars" in path.read_text()
    ]
    assert knowing == ["webhooks/handlebars/_parser.py"]
    before = set(sys.modules)
    render("{{#each xs}}{{json this}}{{/each}}", {"xs": [1]})
    assert not {name for name in set(sys.modules) - before if name.startswith("pybars._templates.")}
