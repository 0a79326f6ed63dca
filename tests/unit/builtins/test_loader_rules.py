"""What declarations may say, and how it is read: YAML, fields, columns, transforms, queries, sinks, instances."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins import Removed
from airflow_provider_rfr.builtins.declarations import canonical_transform, documents
from airflow_provider_rfr.builtins.model import CatalogSpec, Column, Instance, Was, decode, encode
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.soon import soon
from tests.unit.builtins import catalogs
from tests.unit.builtins.declaring import PATIENT, load, loaded, problems, write
from tests.unit.messages import raises

T = "kind: table\nname: ops.t\ncolumns: [{name: a, type: int}, {name: B, type: int}]\n"


def view(query: str, more: str = "") -> str:
    """A table, and a view over it."""
    return f"{T}---\nkind: view\nname: ops.v\nquery: {query}\n{more}"


# YAML


@pytest.mark.parametrize(
    "value", ["no", "off", "yes", "on", "NO", "2026-01-01", "1:30:00", "0x1F", "1_000", "0o7", "Nan"]
)
def test_words_that_other_readers_take_for_something_else_are_texts(tmp_path: Path, value: str) -> None:
    assert loaded(tmp_path, f"{T}comment: {value}\n")["ops.t"].comment == value


def test_a_setting_keeps_its_last_zero(tmp_path: Path) -> None:
    assert loaded(tmp_path, f"{T}properties: {{version: 1.10}}\n")["ops.t"].properties == {"version": "1.10"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        "{a: " * 100_000,
        "- " * 100_000 + "a",
        "".join(" " * number + "a:\n" for number in range(1_000)),
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=["lists", "mappings", "items", "indented", "closed lists"],
)
def test_what_is_nested_without_end_is_refused_soon(tmp_path: Path, text: str) -> None:
    with soon(time.thread_time):
        (problem,) = problems(tmp_path, text)
    assert "it is nested more than " in problem


def test_a_bomb_of_aliases_grows_to_nothing(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    with soon(time.thread_time):
        found = problems(tmp_path, "l0: &l0 boom\n" + levels)
    assert len(found) <= 9 * 30 and all("is an alias" in problem for problem in found)


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
    read = list(documents(yaml.safe_dump(value)))
    assert [document.value for document in read] == ([] if value is None else [value])
    assert not [flaw for document in read for flaw in document.flaws]


# Fields and columns

TRANSFORMS = {
    "region": "region",
    "`REGION`": "region",
    "day(at)": "days(at)",
    "YEARS( At )": "years(at)",
    "date(at)": "days(at)",
    "bucket(16,id)": "bucket(16, id)",
    "bucket(id, 16)": "bucket(16, id)",
    "truncate(`region`, 4)": "truncate(4, region)",
    "hours(at)": "hours(at)",
}
COLUMNS = tuple(
    Column(name, kind)
    for name, kind in {
        "id": "bigint", "at": "timestamp", "region": "string", "n": "int", "f": "double", "list": "array<int>",
    }.items()
)  # fmt: skip


@pytest.mark.parametrize(("written", "canonical"), TRANSFORMS.items())
def test_a_partition_transform_is_written_in_one_way(written: str, canonical: str) -> None:
    assert canonical_transform(written, COLUMNS) == canonical == canonical_transform(canonical, COLUMNS)


@pytest.mark.parametrize(
    "written",
    [
        *("nothing", "weeks(at)", "days(n)", "bucket(at)", "bucket(0, id)", "bucket(x, id)", "bucket(-1, id)"),
        *("bucket(99999999999999999999, id)", "days(at, 3)", "truncate(4, f)", "list", "days(days(at))"),
    ],
)
def test_what_is_no_partition_transform_is_refused(written: str) -> None:
    with raises(ConfigurationError):
        canonical_transform(written, COLUMNS)


WAS = {
    "c": (Was("c"),),
    "{type: Long}": (Was(type="bigint"),),
    "{name: c, using: CAST(c AS int)}": (Was("c", using="CAST(c AS int)"),),
    "[c, {name: A, type: STRING, using: CAST(A AS int)}, {using: '0'}]": (
        Was("c"), Was("A", "string", "CAST(A AS int)"), Was(using="0"),
    ),
    "[]": (),
}  # fmt: skip


@pytest.mark.parametrize(("text", "was"), WAS.items())
def test_a_was_is_a_name_a_mapping_or_a_list_of_both(tmp_path: Path, text: str, was: tuple[Was, ...]) -> None:
    """The types in it are written in the one way, as those of the columns are."""
    declared = loaded(tmp_path, f"kind: table\nname: ops.t\ncolumns: [{{name: a, type: int, was: {text}}}]\n")
    assert declared["ops.t"].columns == (Column("a", "int", was=was),)


def test_a_column_may_have_a_name_that_another_one_had(tmp_path: Path) -> None:
    text = T.replace("{name: a, type: int}", "{name: a, type: int, was: B}")
    assert loaded(tmp_path, text)["ops.t"].columns[0].was == (Was("B"),)


def test_a_materialized_view_can_always_be_computed_again(tmp_path: Path) -> None:
    """So nothing asks for its rows; of everything else, rows are kept unless it says otherwise."""
    computed = "kind: materialized_view\nname: ops.m\ncolumns: [{name: a, type: int}]\nquery: SELECT 1 AS a\n"
    declared = loaded(tmp_path, f"{computed}---\n{T}")
    assert (declared["ops.m"].keep, declared["ops.t"].keep) == (False, True)


def test_a_removal_names_what_is_declared_no_longer_or_will_be_something_else(tmp_path: Path) -> None:
    """It says nothing about when: a table of that name may still be declared."""
    names = ["ops.older", "ops.t", "ops.t.at", "ops.t.s.a", "ops.t.s.first name"]
    spec = load(*map(Removed, reversed(names)), *loaded(tmp_path, T).values())
    assert [item.name for item in spec.removed] == names


# Queries

FEW = "kind: materialized_view\nname: ops.m\ncolumns: [{name: A, type: int}]\nquery: SELECT * FROM ops.t\n"
SINK = "kind: sink\nname: {}\nsink: {{source: ops.T, to: files, settings: {{path: x}}}}\n"
TAKEN = {
    "a star": view("SELECT * FROM ops.t"),
    "a table elsewhere": view("SELECT a FROM raw.orders"),
    "a metadata table": view("SELECT snapshot_id FROM ops.t.history"),
    "a hidden column": view("SELECT x._file, x.a FROM ops.t x"),
    "a name of WITH": view("WITH tt AS (SELECT a FROM ops.t) SELECT tt.a FROM tt"),
    "a star that stands for nothing": view("SELECT count(*) AS n FROM raw.orders WHERE EXISTS (SELECT * FROM raw.x)"),
    "what somebody else makes in our namespace": view("SELECT a FROM ops.other", "depends_on: [OPS.Other]\n"),
    "what Spark alone understands": view("SELECT a FROM ops.t ??? b", "depends_on: [ops.t]\n"),
    "what may go, as long as it is declared": view("SELECT a FROM ops.t") + "---\nkind: removed\nname: ops.t\n",
    "columns of a star in another case": f"{T}---\n{FEW.replace('int}]', 'int}, {name: b, type: int}]')}",
    # What it reads may get more columns in a later version.
    "columns of a star when it was written": f"{T}---\n{FEW}",
    "a user's sink of an exportable table": f"{T}exportable: true\n---\n{SINK.format('mine.k')}",
    "our sink of any table": f"{T}---\n{SINK.format('ops.k')}",
}


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN)
def test_a_query_or_sink_that_can_be_kept_up_to_date_is_taken(tmp_path: Path, text: str) -> None:
    assert len(loaded(tmp_path, text)) == 2


def test_a_wide_table_under_a_star_is_no_matter() -> None:
    wide = catalogs.table("ops.wide", *(f"c{number} int" for number in range(2_000)))
    assert len(load(wide, catalogs.view("ops.v", "SELECT w.* FROM ops.wide w")).objects) == 2


@pytest.mark.parametrize("path", ["abfss://out@account.dfs.core.windows.net/x", "/hook?page=2", "s3://bucket/x"])
def test_a_sinks_path_may_name_a_container_and_have_parameters(tmp_path: Path, path: str) -> None:
    text = f"{T}---\n{SINK.format('ops.k').replace('path: x', f'path: {path!r}')}"
    assert loaded(tmp_path, text)["ops.k"].sink.settings["path"] == path


# Instances


def test_a_document_lists_instances_by_their_ids(tmp_path: Path) -> None:
    text = 'kind: instances\nname: lake\ninstances: {us: main, eu: Europe West, "2024": 7}\n'
    spec = load(write(tmp_path, lakes=text))
    assert spec.instances == {"lake": (Instance("2024", "7"), Instance("eu", "Europe West"), Instance("us", "main"))}
    assert decode(CatalogSpec, encode(spec)) == spec


def test_no_instances_are_something_else_than_no_list(tmp_path: Path) -> None:
    empty = load(write(tmp_path, lakes="kind: instances\nname: lake\ninstances: {}\n"))
    assert empty.instances == {"lake": ()} != load().instances
