"""What is found while a DAG is parsed: every template is tried before the first commit."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import TriggerConfigError
from airflow_provider_rfr.webhooks import validation
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.validation import _HOSTILE, check_file, check_triggers, validate_block
from tests.soon import soon
from tests.unit.messages import raises

URL = "https://hooks.example/s3cr3t"
SEALED = "ENC[AES256_GCM,data:aaaa,iv:bbbb,tag:cccc,type:str]"
EACH = '[{{#each collection_names}}"{{this}}"{{#unless @last}},{{/unless}}{{/each}}]'


def check(**fields: Any) -> None:
    check_triggers({"config": {"X": {"url": URL, **fields}}})


def problems(document: Any = None, **fields: Any) -> list[str]:
    with pytest.raises(TriggerConfigError) as caught:
        check_triggers(document if document is not None else {"config": {"X": {"url": URL, **fields}}})
    assert "s3cr3t" not in str(caught.value)
    return str(caught.value).splitlines()


def test_a_variable_that_is_not_there_is_told_with_its_place() -> None:
    (line,) = problems(payloadTemplate='{"a":"{{nope}}"}')
    assert line.startswith("trigger X: payload template is invalid: line 1, column 9: ")
    assert "nope" in line


@pytest.mark.parametrize("template", ["{{#each collection_names}}", "{{> partial}}", "{{nohelper 1}}"])
def test_a_template_that_can_t_be_read_is_told(template: str) -> None:
    (line,) = problems(payloadTemplate=template)
    assert line.startswith("trigger X: payload template is invalid: line 1, column ")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ('[{{#each collection_names}}"{{this}}"{{/each}}]', "with 2 collections"),
        ('[{{#each collection_names}}"{{this}}",{{/each}} 1, ]', "with 1 collection"),
        ('["{{collection_names.[0]}}"]', "with no collections"),
        ('{"a": {{#if flow_published_at_min}}1{{/if}} }', "with no collections"),
        ('{"map": {{#if dag_id}}{{map_index}}{{/if}} }', "outside Airflow"),
    ],
)
def test_what_is_right_for_some_commits_only_is_told_with_the_commit(template: str, told: str) -> None:
    (line,) = problems(payloadTemplate=template)
    assert line.startswith("trigger X: ")
    assert told in line


def test_no_comma_between_collections_is_told_as_invalid_json() -> None:
    (line,) = problems(payloadTemplate='[{{#each collection_names}}"{{this}}"{{/each}}]')
    assert line == (
        "trigger X: rendered payload template is not valid JSON: Expecting ',' delimiter"
        " (line 1, column 29 of the rendered text), with 2 collections"
    )


def test_quotes_backslashes_line_breaks_and_emoji_break_no_template() -> None:
    assert {'"', "\\", "\n", "😀", "\u2028"} < set(_HOSTILE)
    check(payloadTemplate='{"a": "{{materialization_name}}", "b": {{connector_image}}, "c": "x{{{target}}}y"}')
    check(payload={"a": "{{target}}!", "b": "{{materialization_name}}"})
    check(payloadTemplate='{ {{#each bindings}}"{{collection}}": {{documents}}{{#unless @last}},{{/unless}}{{/each}} }')


def test_headers_are_there_only_where_they_are_exposed() -> None:
    template = '{"a": "{{headers.Authorization}}"}'
    headers = {"Authorization": "Bearer s3cr3t"}
    check(payloadTemplate=template, headers=headers, exposeHeaders=["Authorization"])
    (line,) = problems(payloadTemplate=template, headers=headers)
    assert line.startswith("trigger X: payload template is invalid: ")
    assert line.endswith("list Authorization in exposeHeaders, if the body may hold it")
    (line,) = problems(payloadTemplate=template)
    assert "payload template is invalid" in line and "exposeHeaders" not in line


def test_headers_of_a_connection_may_be_exposed_unseen() -> None:
    fields = {"connection": "http", "payload": {"a": "{{headers.X-Team}}"}}
    check_triggers({"config": {"X": {**fields, "exposeHeaders": ["X-Team"]}}})
    with raises(TriggerConfigError):
        check_triggers({"config": {"X": fields}})


def test_every_leaf_that_is_wrong_is_told_with_its_place() -> None:
    lines = problems(payload={"a": ["fine", "{{nope}}"], "b": {"c": "{{#if}}", "d": "{{sequence}}"}, "{{e}}": 1})
    assert [line.split(": payload template")[0] for line in lines] == [
        "trigger X: payload.a[1]",
        "trigger X: payload.b.c",
    ]


def test_templates_are_tried_also_where_other_things_are_wrong() -> None:
    config = {
        "X": {"url": "ftp://h", "timeout": "0s", "payloadTemplate": "{{nope}}", "unknown_field": 1},
        "Y": {"payload": {"a": "{{zip}}"}, "headers": {"A": "s3cr3t\n"}},
        "Z": {"url": URL, "payload": {}, "maxAttempts": 999},
        "W": {"url": URL, "payloadTemplate": 5},
    }
    lines = problems({"config": config, "intervall": 1})
    names = [line.split(": ")[0].removeprefix("trigger ") for line in lines]
    assert names == ["triggers", "X", "X", "X", "X", "Y", "Y", "Y", "Z", "W"]
    assert [n for n, line in enumerate(lines) if "payload template is invalid" in line] == [4, 7]


def test_a_list_is_tried_by_its_names() -> None:
    lines = problems([{"url": URL, "payloadTemplate": "{{nope}}"}, {"url": "x", "payloadTemplate": "{"}])
    assert [line.split(":")[0] for line in lines] == ["trigger trigger0", "trigger trigger1", "trigger trigger1"]


def test_a_sealed_block_is_tried_as_far_as_it_is_open() -> None:
    sealed = {
        "url": SEALED,
        "method": SEALED,
        "headers": {"Authorization_sops": SEALED},
        "exposeHeaders": [SEALED],
        "payloadTemplate": '{"a": "{{headers.Authorization}}"}',
    }
    check_triggers({"config": {"X": sealed}, "sops": {}})
    assert problems({"config": {"X": {**sealed, "payloadTemplate": "{{nope}}"}}, "sops": {}})
    check_triggers({"config": {"X": {**sealed, "payloadTemplate": SEALED}}, "sops": {}})


def test_the_same_block_is_tried_once_and_its_problems_are_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def note(endpoint: Any) -> list[Any]:
        tried.append(endpoint.name)
        return []

    monkeypatch.setattr(validation, "template_problems", note)
    many = {f"t{n}": {"url": URL, "payloadTemplate": f'{{"n": {n}, "all": {EACH}}}'} for n in range(60)}
    for _ in range(2):
        validate_block(parse_triggers({"config": many}))
        assert tried == list(many)
    monkeypatch.undo()
    wrong = parse_triggers({"config": {"X": {"url": URL, "payloadTemplate": "{{nope}}"}}})
    for _ in range(2):
        with raises(TriggerConfigError):
            validate_block(wrong)
    validate_block(parse_triggers({"config": {"X": {"url": URL, "payloadTemplate": "1"}}}))


def test_blocks_are_checked_on_many_threads_at_once() -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for turn in range(20):
                check(payloadTemplate=f'{{"n": {turn}, "all": {EACH}}}')
                assert problems(payloadTemplate=f"{{{{nope{number}}}}}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_file_is_checked_whole(tmp_path: Any) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("config:\n  X:\n    url: https://h\n    timeout: 0s\n    payloadTemplate: '{{nope}}'\n")
    with pytest.raises(TriggerConfigError) as caught:
        check_file(path)
    assert [problem.place for problem in caught.value.problems] == ["trigger X", "trigger X"]
    path.write_text("config:\n  X:\n    url: https://h\n    payload: {a: '{{delivery_id}}'}\n")
    assert check_file(str(path)).endpoints[0].name == "X"


@pytest.mark.parametrize("template", ["{{" * 5000, "[" * 60_000, "{{#each bindings}}" * 10 + "{{/each}}" * 10])
def test_hostile_templates_are_refused_in_bounded_time(template: str) -> None:
    with soon(time.thread_time):
        assert problems(payloadTemplate=template)
