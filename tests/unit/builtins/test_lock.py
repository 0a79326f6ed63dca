"""The lock file: a change shows in review, and one that needs an instruction stops there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.declaration.lock import (
    Lock,
    _lock_of,
    _LockProblem,
    _write_lock,
    lock_problems,
    read_lock,
    updated_lock,
)
from airflow_provider_rfr.builtins.fingerprint import contract_of
from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    CatalogSpec,
    Column,
    Contents,
    Kind,
    Migration,
    Removal,
    SinkSpec,
    Stability,
    Strategy,
    stable_id,
)
from airflow_provider_rfr.exceptions import ConfigurationError, DeclarationError
from tests.unit.builtins.declaring import PATIENT

RUNS = BuiltinObject(
    Kind.TABLE,
    "ops.runs",
    stable_id("p", "ops.runs"),
    (Column("id", "string", required=True), Column("n", "int"), Column("at", "timestamp")),
)
VIEW = BuiltinObject(Kind.VIEW, "ops.v", stable_id("p", "ops.v"), query="SELECT n FROM ops.runs")


def spec(*objects: BuiltinObject, version: str = "2.0") -> CatalogSpec:
    return CatalogSpec("p", version, tuple(sorted(objects, key=lambda each: each.key)))


LOCK = _lock_of(spec(RUNS, VIEW))


def found(*objects: BuiltinObject, lock: Lock = LOCK, version: str = "2.0") -> list[_LockProblem]:
    return lock_problems(spec(*objects, version=version), lock)


def wider(*columns: Column) -> BuiltinObject:
    by_name = {each.name: each for each in columns}
    kept = [by_name.pop(each.name, each) for each in RUNS.columns]
    return replace(RUNS, columns=(*kept, *by_name.values()))


def test_a_lock_says_nothing_of_what_it_was_made_from() -> None:
    assert found(RUNS, VIEW) == []


def test_comments_of_sql_and_white_space_leave_a_lock_as_it_is() -> None:
    assert found(RUNS, replace(VIEW, query="select N -- all\nfrom OPS.runs")) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (wider(Column("more", "int")), "+ column more int"),
        (wider(Column("n", "bigint")), "^ n: int -> bigint (widen)"),
        (replace(RUNS, columns=(RUNS.columns[0], RUNS.columns[2], RUNS.columns[1])), "~ column order: id, at, n"),
        (wider(Column("n", "int", comment="number")), "its meta changed"),
        (wider(Column("n", "int", required=True)), "its constraints changed"),
        (replace(RUNS, name="ops.all_runs"), "it was called ops.runs"),
        (replace(RUNS, kind=Kind.LOG), "it was a table and is a log"),
    ],
)
def test_what_loses_nothing_only_needs_a_new_lock(change: BuiltinObject, told: str) -> None:
    problems = found(change, VIEW)
    assert [each.problem for each in problems] == [told]
    assert problems[0].stale
    assert found(change, VIEW, lock=read_lock(updated_lock(spec(change, VIEW), LOCK))) == []


def test_a_declared_rename_needs_a_new_lock_alone_and_an_undeclared_one_is_asked_about() -> None:
    columns = (RUNS.columns[0], Column("rows", "int", renamed_from="N"), RUNS.columns[2])
    (problem,) = found(replace(RUNS, columns=columns), VIEW)
    assert (problem.problem, problem.stale) == ("> column n -> rows (rename)", True)
    columns = (RUNS.columns[0], Column("rows", "int"), RUNS.columns[2])
    (problem,) = found(replace(RUNS, columns=columns), VIEW)
    assert not problem.stale
    assert "declare it with renamed_from: n" in problem.problem


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (wider(Column("n", "string")), "rewrite"),
        (wider(Column("more", "int", required=True)), "rewrite"),
        (replace(RUNS, columns=RUNS.columns[:2]), "evolve"),
    ],
)
def test_without_an_instruction_the_entry_to_paste_is_told_and_it_helps(change: BuiltinObject, how: str) -> None:
    problem, *others = found(change, VIEW)
    assert not problem.stale
    assert all(each.stale for each in others)
    before, after = contract_of(RUNS.columns), contract_of(change.columns)
    assert f"no instruction leads from {before.short} to {after.short}" in problem.problem
    with pytest.raises(DeclarationError) as refused:
        updated_lock(spec(change, VIEW), LOCK)
    assert problem.entry in str(refused.value)
    (entry,) = yaml.safe_load(problem.entry)["migrations"]
    assert (entry["from"], entry["to"], entry["how"]) == (before.short, after.short, how)
    pasted = Migration(entry["from"], entry["to"], Strategy(entry["how"]), entry.get("expressions", {}))
    assert all(each.stale for each in found(replace(change, migrations=(pasted,)), VIEW))
    assert updated_lock(spec(replace(change, migrations=(pasted,)), VIEW), LOCK)


def test_a_problem_reads_like_those_of_the_loader_with_the_entry_below() -> None:
    (problem,) = found(wider(Column("n", "string")), VIEW)
    first, *rest = str(problem).split("\n")
    assert first.startswith("declared in Python: ops.runs: ! n: int -> string (incompatible): no instruction leads ")
    assert first.endswith("; add this, if it is what you mean")
    assert rest[0] == "    migrations:"
    assert rest[1].startswith("      - {from: ")


def test_instructions_may_lead_there_in_several_steps() -> None:
    change = wider(Column("n", "string"))
    steps = (
        Migration(contract_of(RUNS.columns).digest[:11], "c1:00000000", Strategy.EVOLVE),
        Migration("c1:00000000", contract_of(change.columns).short, Strategy.REWRITE, {"n": "CAST(n AS string)"}),
    )
    assert [each.stale for each in found(replace(change, migrations=steps), VIEW)] == [True]


def test_an_instruction_that_leads_nowhere_is_told() -> None:
    step = Migration("c1:00000000", "c1:11111111", Strategy.EVOLVE)
    (problem,) = found(replace(RUNS, migrations=(step,)), VIEW)
    assert "the instruction from c1:00000000 to c1:11111111 leads nowhere" in problem.problem
    used = Migration("c1:00000000", contract_of(RUNS.columns).short, Strategy.EVOLVE)
    assert found(replace(RUNS, migrations=(used,)), VIEW) == []


def test_what_is_derived_from_a_query_needs_no_instruction() -> None:
    derived = replace(RUNS, kind=Kind.MATERIALIZED_VIEW, query="SELECT id, n, at FROM raw.x")
    change = replace(derived, columns=RUNS.columns[:2])
    assert [each.stale for each in found(change, lock=_lock_of(spec(derived)))] == [True]


def test_a_derivable_table_may_lose_columns_but_values_are_not_invented() -> None:
    derivable = replace(RUNS, contents=Contents.DERIVABLE)
    lock = _lock_of(spec(derivable))
    assert [each.stale for each in found(replace(derivable, columns=RUNS.columns[:2]), lock=lock)] == [True]
    retyped = replace(derivable, columns=wider(Column("n", "string")).columns)
    assert [each.stale for each in found(retyped, lock=lock)] == [False]


def test_a_stable_object_that_is_gone_has_to_be_declared_as_removed() -> None:
    (problem,) = found(VIEW)
    assert "its removal must be declared (deprecated_since, removed_in)" in problem.problem
    assert (problem.stale, problem.place) == (False, "builtins.lock.json")
    pasted = yaml.safe_load(problem.entry)
    assert pasted == {
        "kind": "table",
        "name": "ops.runs",
        "id": str(RUNS.id),
        "removed": {"deprecated_since": "2.0", "removed_in": "2.0"},
    }
    tombstone = replace(RUNS, columns=(), removed=Removal("2.0", "2.0"))
    (problem,) = found(tombstone, VIEW)
    assert (problem.problem, problem.stale) == ("it is removed", True)
    assert found(tombstone, VIEW, lock=read_lock(updated_lock(spec(tombstone, VIEW), LOCK))) == []


def test_an_unstable_object_may_go_without_a_word() -> None:
    lock = _lock_of(spec(replace(RUNS, stability=Stability.UNSTABLE), VIEW))
    (problem,) = found(VIEW, lock=lock)
    assert (problem.problem, problem.stale) == ("it is removed", True)


def test_an_object_that_will_be_removed_is_there_until_then() -> None:
    assert found(replace(RUNS, removed=Removal("2.0", "3.0")), VIEW) == []


def test_a_new_object_is_told_and_changes_nothing_for_the_others() -> None:
    new = replace(RUNS, name="ops.new", id=stable_id("p", "ops.new"))
    (problem,) = found(RUNS, VIEW, new)
    assert (problem.name, problem.problem, problem.stale) == ("ops.new", "it is new", True)


def test_another_id_under_the_same_name_would_be_another_object() -> None:
    (problem,) = found(replace(RUNS, id=stable_id("other", "ops.runs")), VIEW)
    assert "that would be another object, without rows" in problem.problem
    assert problem.entry == f'id: "{RUNS.id}"'
    assert not problem.stale


def test_another_query_needs_a_new_lock() -> None:
    (problem,) = found(RUNS, replace(VIEW, query="SELECT id FROM ops.runs"))
    assert (problem.problem, problem.stale) == ("its query changed", True)


def test_a_star_is_its_authors_so_a_column_more_below_it_changes_no_view() -> None:
    star = replace(VIEW, query="SELECT * FROM ops.runs")
    problems = found(wider(Column("more", "int")), star, lock=_lock_of(spec(RUNS, star)))
    assert [each.name for each in problems] == ["ops.runs"]


def test_a_lock_of_another_canonicalizer_is_compared_by_the_authors_texts() -> None:
    document = json.loads(_write_lock(LOCK))
    (view,) = (each for each in document["objects"] if each["name"] == "ops.v")
    view["canonicalizer"] = "sqlglot/1 rules/0"
    view["fingerprints"]["logic"] = {"digest": "l1:00", "text": ["whatever it wrote"]}
    lock = read_lock(json.dumps(document))
    assert found(RUNS, replace(VIEW, query="select n from ops.runs"), lock=lock) == []
    assert [each.problem for each in found(RUNS, replace(VIEW, query="SELECT id FROM ops.runs"), lock=lock)] == [
        "its query changed"
    ]


def test_blocking_problems_come_first_and_then_the_names() -> None:
    new = [replace(RUNS, name=f"ops.{letter}", id=stable_id("p", letter)) for letter in "ba"]
    told = [(each.name, each.stale) for each in found(wider(Column("n", "string")), VIEW, *new)]
    assert told == [("ops.runs", False), ("ops.a", True), ("ops.b", True)]


SINK = BuiltinObject(Kind.SINK, "ops.k", stable_id("p", "ops.k"), sink=SinkSpec("ops.runs", "files", {"path": "x"}))
NAMES = st.text(min_size=1, max_size=6)
COLUMNS = st.builds(
    Column, NAMES, st.sampled_from(["int", "struct<`a b`:int>"]), st.booleans(), NAMES, st.none() | NAMES
)
TABLES = st.builds(
    lambda name, columns: replace(RUNS, name=f"ops.{name}", id=stable_id("p", name), columns=tuple(columns)),
    NAMES,
    st.lists(COLUMNS, max_size=3),
)


@PATIENT
@given(st.lists(TABLES, max_size=4, unique_by=lambda table: table.id))
def test_a_lock_is_read_back_as_it_was_written(tables: list[BuiltinObject]) -> None:
    lock = _lock_of(spec(*tables, VIEW, SINK))
    text = _write_lock(lock)
    assert read_lock(text) == lock
    assert _write_lock(_lock_of(spec(*reversed(tables), SINK, VIEW))) == text
    assert lock_problems(spec(*tables, VIEW, SINK), read_lock(text)) == []


def test_a_new_column_is_a_few_new_lines_in_the_lock() -> None:
    before = _write_lock(LOCK).splitlines()
    after = updated_lock(spec(wider(Column("more", "int")), VIEW), LOCK).splitlines()
    assert len(set(after) - set(before)) <= 6


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"format": 2}',
        '{"format": 1, "objects": [{}]}',
        "[" * 100_000,
        '{"format": 1, "project": "p", "objects": [{"id": "x"}]}',
        '{"format": 1, "project": "p", "objects": 3}',
    ],
)
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="builtins.lock.json: "):
        read_lock(text)


def test_where_there_is_no_lock_yet_one_is_written() -> None:
    assert read_lock(updated_lock(spec(RUNS, VIEW), None)) == LOCK
