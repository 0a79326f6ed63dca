"""What breaks pybars3, and other hostile templates and values: each ends soon, in text or an error with a place."""

from __future__ import annotations

import contextlib
import datetime
import enum
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_rfr.webhooks import TemplateError, render
from airflow_provider_rfr.webhooks.handlebars import compile_template
from airflow_provider_rfr.webhooks.payloads import render_payload
from tests.soon import SOON, soon
from tests.unit.messages import raises

VARIABLES: dict[str, Any] = {
    "name": "acme",
    "n": 1,
    "xs": [1, 2, 3],
    "m": {"k": "v"},
}


def outcome(template: str, *, json_mode: bool = False) -> str:
    """What is rendered, or ``refused``: with a place, and in few words."""
    try:
        text = render(template, VARIABLES, json_mode=json_mode)
    except TemplateError as error:
        errors = error
    else:
        text.encode("utf-8")
        return text
    assert 1 <= errors.line <= template.count("\n") + 1
    assert 1 <= errors.column <= len(template) + 1
    assert len(str(errors)) < 1000
    return "refused"


INJECTIONS = [
    "{{foo.[a', __import__('os').system('touch RAN'), 'b]}}",
    "{{[x') or __import__('os').system('touch RAN') or str('x]}}",
    "{{lookup m (lookup m [a', __import__('os').system('touch RAN'), 'b])}}",
    "{{lookup m \"a', __import__('os').system('touch RAN'), 'b\"}}",
    '{{lookup m "\\") or __import__(\\"os\\").system(\\"touch RAN\\")"}}',
    "{{default m.[\n__import__('os').system('touch RAN')\n] 'x'}}",
    "{{opt a__import__('os').system('touch RAN')=1}}",
]


@pytest.mark.parametrize("template", INJECTIONS)
def test_no_text_of_a_template_is_executed(template: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert outcome(template) in ("", "x", "refused")
    assert not list(tmp_path.iterdir())


HOSTILE = [
    "\n" + "{{#a}}      " * 12 + "x",
    "{{#if n}}" * 5000,
    "{{#if n}}" + "{{else if n}}" * 4900 + "{{/if}}",
    "{{not " + "(" * 60_000 + "}}",
    "{{not n" + ")" * 60_000 + "}}",
    "{{and " + "n " * 30_000 + "}}",
    "{{log " + "a=1 " * 15_000 + "}}",
    "{{#each xs}}{{log " + "n " * 900 + "}}{{/each}}",
    "{{#each xs as |" + "a " * 30_000 + "|}}{{/each}}",
    "{{" + "../" * 20_000 + "n}}",
    "{{@" + "../" * 20_000 + "n}}",
    "{{" + "[a]." * 15_000 + "n}}",
    '{{lookup m "' + '\\"' * 30_000 + '"}}',
    "{{[" * 20_000,
    "{{!" * 20_000,
    "{{!--" * 12_000,
    "{{" * 30_000,
    "\\{{" * 20_000,
    "{{~n~}} " * 8_000,
    "\n{{! }}\n" * 8_000,
    "{{lookup m " + "9" * 60_000 + "}}",
    "{{n" + "\u3000" * 20_000 + "}}",
    "{{date '2024-01-01T00:00:00Z' '" + "%A" * 20_000 + "'}}",
    "{{date '2024-01-01T00:00:00Z' '%999999999d'}}",
    "{{date '2024-01-01T00:00:00Z' '%'}}",
    "{{date '2024-01-01T00:00:00Z' timezone='../../../../etc/passwd'}}",
    "{{date '2024-01-01T00:00:00Z' timezone='" + "a" * 60_000 + "'}}",
    "{{date '0001-01-01T00:00:00+23:59'}}",
    "{{date '9999-12-31T23:59:59Z' timezone='Asia/Tokyo'}}",
    "{{date '" + "2" * 60_000 + "'}}",
    "{{urlencode (urlencode (urlencode '" + "\U0001f680" * 10_000 + "'))}}",
    "{{json (json (json (json (json (json (json '" + '\\"' * 5_000 + "')))))))}}",
    "{{" + " ".join(f"x{index}=(not n)" for index in range(5000)) + "}}",
    "".join(f"{{{{log {'n ' * (index % 300)}{'a=n ' * (index // 300)}}}}}" for index in range(150)),
    "\ud800{{n}}\udfff",
    "\0",
    "{{n}}\ufeff{{n}}",
]


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_end_soon_in_text_or_an_error_with_a_place(template: str) -> None:
    with soon(time.thread_time):
        outcome(template)
        outcome(template, json_mode=True)


GROWING = """
import sys, yaml
from airflow_provider_rfr.exceptions import TemplateError, TriggerConfigError
from airflow_provider_rfr.webhooks.handlebars.values import HELPERS
from airflow_provider_rfr.webhooks.handlebars import render
from airflow_provider_rfr.webhooks.payloads import render_payload
from airflow_provider_rfr.webhooks.validation import check_triggers
from tests.memory import memory_limited

text = "x" + '"\\\\\u0149' * 50_000
render("{{json (upper s)}}", {"s": text})
with memory_limited(128):
    for name, short in (("json", '"'), ("urlencode", text)):
        expression = f"({name} " * 30 + "s" + ")" * 30
        payload = {"a": "x{{%s}}" % expression[1:-1]}
        for make in (
            lambda: render(payload["a"], {"s": short}),
            lambda: render(payload["a"], {"s": short}, json_mode=True),
            lambda: render('"%s"' % payload["a"], {"s": text}, json_mode=True),
            lambda: render_payload(payload, {"s": short}),
            lambda: render_payload(["{{%s}}" % expression[1:-1]] * 100, {"s": text}),
        ):
            try:
                make()
            except TemplateError as error:
                print(name, error.problem)
    trigger = {"url": "https://h.example/", "payload": {"a": "x{{json %starget%s}}" % ("(json " * 30, ")" * 30)}}
    try:
        check_triggers({"config": {"x": trigger}})
    except TriggerConfigError as error:
        print(error)
"""


def test_helpers_inside_each_other_end_in_an_error_where_memory_is_short() -> None:
    ended = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, timeout=SOON, check=False)
    assert ended.returncode == 0, ended.stderr
    *templates, block = ended.stdout.splitlines()
    assert len(templates) == 10
    assert all("would make a text of more than 1,048,576 bytes" in item for item in templates)
    assert "payload template is invalid" in block
    assert "would make a text of more than 1,048,576 bytes" in block


LARGEST = 1_048_576


@pytest.mark.parametrize(
    ("template", "character", "size", "around"),
    [
        ("{{len (json v)}}", '"', 2, 2),
        ("{{len (json v)}}", "\0", 6, 2),
        ("{{len (json v)}}", "\U0001f680", 4, 2),
        ("{{len (urlencode v)}}", "é", 6, 0),
        ("{{len (upper v)}}", "\u0390", 6, 0),
        ("{{len (lower v)}}", "\u0130", 3, 0),
        ("{{len (join vs '')}}", "é" * 64, 128, 0),
        ('"{{v}}"', '"', 2, 2),
        ("{{v}}", "\t", 2, 2),
    ],
    ids=range(9),
)
def test_a_text_may_have_as_many_bytes_as_the_docs_say_and_none_more(
    template: str, character: str, size: int, around: int
) -> None:
    """:param size: bytes of UTF-8 that one character of the value becomes; *around*: those beside them"""
    most = (LARGEST - around) // size
    values = [{"v": character * count, "vs": [character] * count} for count in (most, most + 1)]
    render(template, values[0], json_mode=True)
    with raises(TemplateError):
        render(template, values[1], json_mode=True)


def test_hostile_values_end_soon_in_text_or_an_error() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    values = [cyclic, loop, deep, {1: 2}, "\ud800", "x" * 10_000_000, ["y"] * 1_000_000, 1e400, b"b"]
    values += [{str(index): index for index in range(100_000)}, Ellipsis, type, iter([1]), -(10**4000)]
    templates = [
        "{{v}}",
        "{{json v}}",
        "{{#each v}}{{#each this}}{{@key}}{{/each}}{{/each}}",
        "{{#each v}}{{#with @root.v}}{{../n}}{{/with}}{{/each}}",
        "{{#if (eq v w)}}{{/if}}",
        "{{len v}}{{join v}}",
        "{{#v}}{{n}}{{/v}}",
        "{{lookup v 'loop'}}",
        "{{upper v}}",
        "{{#each v}}{{#if (eq @root.v this)}}{{/if}}{{/each}}",
        "{{#if v.loop.loop.loop}}x{{/if}}",
    ]
    for value in values:
        for template in templates:
            with soon(time.thread_time), contextlib.suppress(TemplateError):
                render(template, {"v": value, "w": value, "n": 1}).encode("utf-8")


def test_maps_that_are_no_dicts_are_read_and_not_changed() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    counts["a"] = 1
    variables = {"d": counts, "p": MappingProxyType({"k": "v"})}
    assert render("{{d.a}}{{#if d.b}}x{{/if}}{{p.k}}{{#each p}}{{@key}}{{/each}}", MappingProxyType(variables)) == "1vk"
    with pytest.raises(TemplateError):
        render("{{d.b}}", variables)
    assert dict(counts) == {"a": 1}


class OddText(str):
    def __str__(self) -> str:
        return "other"

    def __format__(self, form: str) -> str:
        return "other"

    def encode(self, *args: Any) -> bytes:
        return b"other"


class OddNumber(enum.IntEnum):
    FIVE = 5


def test_scalars_that_override_their_methods_are_still_what_they_are() -> None:
    variables = {"s": OddText("own"), "n": OddNumber.FIVE}
    for json_mode in (False, True):
        assert render("[{{json s}}{{json n}}{{n}}]", variables, json_mode=json_mode) == '["own"55]'
    assert render("{{s}}", variables) == "own"
    payload = render_payload(["{{s}}", "{{n}}", "{{s}}{{n}}"], variables)
    assert payload == ["own", 5, "own5"]
    assert [type(item) for item in payload] == [str, int, str]


@pytest.mark.parametrize("value", [range(3), {1, 2}, b"abc", datetime.date(2024, 1, 1)])
def test_what_json_does_not_have_is_not_taken_for_an_empty_list(value: object) -> None:
    with raises(TemplateError):
        render("{{#each v}}{{this}}{{else}}none{{/each}}", {"v": value})


@pytest.mark.parametrize("template", [5, None])
def test_a_template_that_is_no_text_is_an_error(template: Any) -> None:
    with raises(TemplateError):
        render(template, {})


@pytest.mark.parametrize(
    "template", ["{{[\ud800]}}", "{{#[\ud800]}}{{/x}}", "{{xa}}", "{{#each [\ud800]}}", "{{f\ud800 1}}"]
)
def test_errors_can_be_logged_whatever_names_hold(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template, {"\ud800": [1], "xa\ud800": 1})
    str(caught.value).encode("utf-8")


@pytest.fixture
def recursion_limit() -> Iterator[int]:
    """The limit that Python starts with: Airflow raises it for the whole process when it copies an operator."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield 1000
    sys.setrecursionlimit(before)


def test_a_small_stack_ends_in_an_error_and_not_in_another_exception(recursion_limit: int) -> None:

    def below(frames: int, template: str) -> None:
        if frames:
            below(frames - 1, template)
        else:
            compile_template(template)

    for frames in range(700, recursion_limit, 20):
        try:
            # Each time another one, as equal structures are read once.
            below(frames, "{{log " + "n " * (frames // 20) + "(not " * 20 + "n" + ")" * 20 + "}}")
        except TemplateError as error:
            failure = error
            break
    else:
        pytest.fail("the stack was never too small")
    assert "nested too deeply" in str(failure)
