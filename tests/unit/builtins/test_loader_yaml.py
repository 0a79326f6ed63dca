"""YAML that surprises, or means harm: each mistake told with its line, nothing run, nothing grown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.declarations import _DEEPEST, documents
from tests.soon import soon
from tests.unit.builtins.declaring import PATIENT, loaded, problems
from tests.unit.messages import check_messages

ITSELF = "an object says everything itself"
TABLE = "kind: table\nname: ops.t\ncolumns: [{name: a, type: int}]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: ops.u\n" + TABLE, ":3: ops.u: duplicate key 'name'; it is in line 1 too"),
        (TABLE + "properties: {a: 1, b: 2, a: 3}\n", ":4: ops.t: duplicate key 'a'; it is in line 4 too"),
        (
            "kind: table\nname: ops.t\ncolumns:\n- {name: a,\n   name: b, type: int}\n",
            ":5: ops.t: duplicate key 'name'; it is in line 4 too",
        ),
        (
            "kind: table\nname: ops.t\ncolumns:\n\t- name: a\n",
            ":4: found character that cannot start any token; indent with spaces: YAML takes no tabs",
        ),
        (TABLE + "owner: *me\n", ":4: ops.t: *me is an alias; write it out; " + ITSELF),
        (
            "owner: &me data\n" + TABLE + "comment: *me\n",
            ":5: ops.t: *me is an alias; write it out; " + ITSELF,
        ),
        (
            TABLE + "properties: &p\n  a: *p\n",
            ":5: ops.t: *p is an alias; write it out; " + ITSELF,
        ),
        (
            TABLE + "properties: {<<: {a: b}}\n",
            ":4: ops.t: << merges mappings; write it out; " + ITSELF,
        ),
        (TABLE + "1: x\n", ":4: ops.t: the key 1 is not text; put it in quotes"),
        (TABLE + "true: x\n", ":4: ops.t: the key true is not text; put it in quotes"),
        (TABLE + "? [a, b]\n: x\n", ":4: ops.t: the key here is not text; put it in quotes"),
        (
            TABLE + "owner: !!python/object/apply:os.system [exit 1]\n",
            ":4: ops.t: the tag tag:yaml.org,2002:python/object/apply:os.system is not known",
        ),
        (TABLE + "comment: !secret x\n", ":4: ops.t: the tag !secret is not known"),
        ("!table\n" + TABLE, ":1: ops.t: the tag !table is not known"),
        (TABLE + "comment: 'no end\n", ":5: found unexpected end of stream"),
        (TABLE + "comment: a: b\n", ":4: mapping values are not allowed in this context"),
        (TABLE + "comment: \x07\n", ":4: the character '\\x07' is not allowed"),
        ("- a\n- b\n", ":1: the document is not a mapping; write each object on its own, --- between two"),
        ("just words\n", ":1: the document is not a mapping; write each object on its own, --- between two"),
        ("42\n", ":1: the document is not a mapping; write each object on its own, --- between two"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    assert told in problems(tmp_path, text)


@pytest.mark.parametrize(
    "field", ["name: 123", "name: true", "name: 1.5", "name: [ops, t]", "name: {ops: t}", "name: ~"]
)
def test_a_name_is_a_text(tmp_path: Path, field: str) -> None:
    found = problems(tmp_path, f"{field}\nkind: table\ncolumns: [{{name: a, type: int}}]\n")
    assert found == [":1: name: must be text; if it is text to you, put it in quotes"]


@pytest.mark.parametrize(
    "value", ["no", "off", "yes", "on", "NO", "2026-01-01", "1:30:00", "0x1F", "1_000", "0o7", "Nan"]
)
def test_words_that_other_readers_take_for_something_else_are_texts(tmp_path: Path, value: str) -> None:
    assert loaded(tmp_path, TABLE + f"comment: {value}\n")["ops.t"].comment == value


def test_a_setting_keeps_its_last_zero(tmp_path: Path) -> None:
    assert loaded(tmp_path, TABLE + "properties: {version: 1.10}\n")["ops.t"].properties == {"version": "1.10"}


def test_many_mistakes_in_one_file_are_told_together_and_good_documents_are_read(tmp_path: Path) -> None:
    text = (
        "kind: table\nname: ops.a\nname: ops.b\n---\nkind: tabel\nname: ops.c\n---\n" + TABLE + "---\n"
        "kind: view\nname: ops.v\nquery: SELECT a FROM ops.t\nqerry: x\n---\nnonsense: [\n"
    )
    check_messages(problems(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        "{a: " * 100_000,
        "- " * 100_000 + "a",
        "".join(" " * number + "a:\n" for number in range(1_000)),
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_what_is_nested_without_end_is_refused_soon(tmp_path: Path, text: str) -> None:
    with soon(time.thread_time):
        found = problems(tmp_path, text)
    assert len(found) == 1
    assert f"it is nested more than {_DEEPEST} deep" in found[0]


def test_a_bomb_of_aliases_grows_to_nothing(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    with soon(time.thread_time):
        found = problems(tmp_path, "l0: &l0 boom\n" + levels)
    assert len(found) <= 9 * 30
    assert all("is an alias" in item for item in found)


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    check_messages(problems(tmp_path, "&a [*a]\n"))


@PATIENT
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    lines = []
    for document in documents(text):
        lines += [*(mark.line for mark in document.marks.values()), *(flaw.line for flaw in document.flaws)]
    assert all(1 <= line <= len(text) + 2 for line in lines)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text("ab: #'\"\n-", max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab ", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@PATIENT
@given(VALUES)
def test_what_a_yaml_writer_writes_is_read_back(value: object) -> None:
    found = list(documents(yaml.safe_dump(value)))
    assert [item.value for item in found] == ([] if value is None else [value])
    assert not [flaw for item in found for flaw in item.flaws]
