"""Every row of the table of column changes, the updates that do them, and what PyIceberg makes of those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField, StringType

from airflow_provider_rfr.builtins.columns import ChangeKind, ColumnDiff
from airflow_provider_rfr.builtins.model import Column, Was
from airflow_provider_rfr.builtins.plan import StepAction
from airflow_provider_rfr.builtins.sql import columns_read, compose
from airflow_provider_rfr.exceptions import QueryError
from tests.profile import examples
from tests.unit.builtins.catalogs import column, columns, made, run_updates
from tests.unit.messages import raises


def changes(old: tuple[Column, ...], new: tuple[Column, ...]) -> tuple[list[str], StepAction | None]:
    found = ColumnDiff(old, new)
    return [str(change) for change in found.changes], found.how


@pytest.mark.parametrize(
    ("old", "new", "said", "how"),
    [
        (["a int"], ["a int", "b string"], ["+ column b string"], StepAction.EVOLVE),
        (["a int"], ["b string", "a int"], ["+ column b string"], StepAction.EVOLVE),
        (["a int"], ["a int", "b string!"], ["+ column b string, required"], StepAction.REWRITE),
        (["a int", "b int"], ["a int"], ["- column b int (its values stay in older"], StepAction.EVOLVE),
        (["a int"], ["b int < a"], ["> column a -> b (rename)"], StepAction.EVOLVE),
        (["a int"], ["b int < a", "a int"], ["> column a -> b (rename)", "+ column a int"], StepAction.EVOLVE),
        (["a int", "b int"], ["b int < a", "a int < b"], ["> column a -> b", "> column b -> a"], StepAction.EVOLVE),
        (["a int", "b int"], ["b int", "a int"], ["~ column order: b, a"], StepAction.EVOLVE),
        (["a int"], ["a bigint"], ["^ a: int -> bigint (widen)"], StepAction.EVOLVE),
        (["a float"], ["a double"], ["^ a: float -> double (widen)"], StepAction.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(12,2)"], ["^ a: decimal(10,2) -> decimal(12,2)"], StepAction.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(20,4)"], ["! a: decimal(10,2) -> decimal(20,4)"], StepAction.REWRITE),
        (["a decimal(12,2)"], ["a decimal(10,2)"], ["! a: decimal(12,2) -> decimal(10,2)"], StepAction.REWRITE),
        (["a bigint"], ["a int"], ["! a: bigint -> int (incompatible)"], StepAction.REWRITE),
        (["a string"], ["a int"], ["! a: string -> int (incompatible)"], StepAction.REWRITE),
        (["a int"], ["a string"], ["! a: int -> string (incompatible)"], StepAction.REWRITE),
        (["a date"], ["a timestamp"], ["! a: date -> timestamp (incompatible)"], StepAction.REWRITE),
        (["a timestamp"], ["a timestamp_ntz"], ["! a: timestamp -> timestamp_ntz"], StepAction.REWRITE),
        (["a struct<x:int>"], ["a struct<x:bigint>"], ["^ a: struct<x:int> -> struct<x:bigint>"], StepAction.EVOLVE),
        (["a struct<x:int,y:int>"], ["a struct<y:int,z:int>"], ["- a: struct<x:int,y:int> -> "], StepAction.EVOLVE),
        (["a struct<x:int>"], ["a struct<y:int>"], ["! a: struct<x:int> -> struct<y:int>"], StepAction.REWRITE),
        (["a int!"], ["a int"], ["~ a: required -> optional"], StepAction.EVOLVE),
        (["a int"], ["a int!"], ["~ a: optional -> required (if no value is NULL)"], StepAction.EVOLVE),
        (["a int"], ["b bigint < a"], ["> column a -> b (rename)", "^ b: int -> bigint (widen)"], StepAction.EVOLVE),
        (["a int"], ["A int"], [], None),
        (["a int"], ["a int"], [], None),
    ],
)
def test_the_classes_of_column_changes(old: list[str], new: list[str], said: list[str], how: StepAction | None) -> None:
    words, found = changes(columns(*old), columns(*new))
    assert found is how
    assert len(words) == len(said) and all(word.startswith(start) for word, start in zip(words, said, strict=True))


def test_a_comment_is_metadata() -> None:
    found = ColumnDiff((Column("a", "int"),), (Column("a", "int", comment="an a"),))
    assert [change.what for change in found.changes] == [ChangeKind.COMMENT] and found.how is StepAction.METADATA


SWAP = ("b int < a", "a int < b")
RENAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]] = {
    "one name": (("a int",), ("b int < a",), {"b": "a"}),
    "done, though it is still declared": (("b int < a",), ("b int < a",), {}),
    "done, and another column has the name": (("b int < a", "a int"), ("b int < a", "a int"), {}),
    "exchanged": (("a int", "b int"), SWAP, {"a": "b", "b": "a"}),
    "exchanged, and done": (SWAP, SWAP, {}),
    "one column becomes two": (("a int",), ("b int < a", "c int < a"), {"b": "a"}),
    # Versions that were skipped: the name that is there counts, and the newest of several.
    "the older name is there": (("a int",), ("c int < b < a",), {"c": "a"}),
    "the newer name is there": (("b int",), ("c int < b < a",), {"c": "b"}),
    "both names are there": (("a int", "b int"), ("c int < b < a",), {"c": "b"}),
    "both names are gone": (("c int < b < a",), ("c int < b < a",), {}),
}


@pytest.mark.parametrize(("old", "new", "renames"), RENAMES.values(), ids=RENAMES)
def test_a_column_is_renamed_once_from_a_name_that_it_had(
    old: tuple[str, ...], new: tuple[str, ...], renames: dict[str, str]
) -> None:
    assert ColumnDiff(columns(*old), columns(*new)).renames == renames


def test_columns_that_exchange_their_names_and_nothing_else_are_still_seen() -> None:
    """The contract is the same text before and after; what the columns hold is not."""
    said, _ = changes(columns("a int", "b int"), columns("a int < b", "b int < a"))
    assert said[:2] == ["> column b -> a (rename)", "> column a -> b (rename)"]


def test_where_nobody_wrote_down_what_a_column_was_called_its_new_name_means_that_it_was_renamed() -> None:
    for there, declared, renames in (
        (("a int", "b int"), ("b int < a", "a int"), {}),
        (("a int",), ("b int < a",), {"b": "a"}),
        (("a int",), ("c int < b < a",), {"c": "a"}),
        (("b int",), ("c int < b < a",), {"c": "b"}),
    ):
        assert ColumnDiff(columns(*there), columns(*declared), recorded=False).renames == renames


SWAPPED = (("a int < b", "b int < a"), {"a": "b", "b": "a"})
SHIFTED = (("b int < a", "c int < b"), {"b": "a", "c": "b"})


@pytest.mark.parametrize(
    ("left", "declared", "renames"),
    [
        (SWAPPED, ("a int < b", "b int < a", "c int"), {}),
        (SWAPPED, ("a int", "b int"), {"a": "b", "b": "a"}),
        (SWAPPED, ("c int < a", "d int < b"), {"c": "b", "d": "a"}),
        (SWAPPED, ("c int < b < a", "d int < a < b"), {"c": "b", "d": "a"}),
        (SHIFTED, ("c int < b", "b int < a", "a int"), {}),
        (SHIFTED, ("a int", "b int"), {"a": "b", "b": "c"}),
        (SHIFTED, ("d int < a", "c int < b"), {"d": "b"}),
        (SHIFTED, ("d int < b < a", "c int < b"), {"d": "b"}),
        (SHIFTED, ("a int", "d int < c < b"), {"d": "c", "a": "b"}),
        (SHIFTED, ("a int < b", "d int < a"), {"a": "c", "d": "b"}),
        ((("c int < a", "a int"), {"c": "a"}), ("a int", "c int < a"), {}),
        ((("c int < a", "a int"), {"c": "a"}), ("a int",), {"a": "c"}),
        ((("c int < a",), {"c": "a"}), ("a int", "c int"), {"a": "c"}),
        ((("c int < a",), {"c": "a"}), ("d int < c",), {"d": "c"}),
    ],
)
def test_after_renames_of_a_deploy_that_died_names_mean_recorded_columns(
    left: tuple[tuple[str, ...], dict[str, str]], declared: tuple[str, ...], renames: dict[str, str]
) -> None:
    """What it did and is still declared is done; what is not declared any more is undone."""
    there, moved = left
    assert ColumnDiff(columns(*there), columns(*declared), moved=moved).renames == renames


# Values that a `was` makes


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        ("a string", made("a int", "CAST(a AS int)"), {"a": "CAST(a AS int)"}),
        ("a string", made("a int", "CAST(a AS int)", type="string"), {"a": "CAST(a AS int)"}),
        ("a string", made("a int", "CAST(A AS int)", name="A", type="string"), {"a": "CAST(A AS int)"}),
        ("b string", made("a int", "CAST(b AS int)", name="b", type="string"), {"a": "CAST(b AS int)"}),
        ("b string", made("a int", "CAST(a AS int)", name="b"), {"a": "CAST(b AS int)"}),
        ("b string", made("a int", "a + b", name="b"), {"a": "b + b"}),
        ("x int", made("a int!", "x + 1"), {"a": "x + 1"}),
        ("x int", made("a int", "x + 1"), {"a": "x + 1"}),
        ("a int", made("a bigint", "a * 100", type="int"), {"a": "a * 100"}),
        ("b int", made("a bigint", "a * 100", name="b"), {"a": "b * 100"}),
        ("b int", made("a int", "b * 100", name="b", type="int"), {"a": "b * 100"}),
        ("a bigint", made("a bigint", "a * 100", type="int"), {}),
        ("a int", made("a int", "a * 100", type="int"), {}),
        ("a int", made("a bigint", "a + 1"), {}),
        ("a int", made("a int", "a + 1"), {}),
        ("a date", made("a int", "CAST(a AS int)", type="string"), {}),
        ("x int", made("a int!", "x + 1", name="b"), {}),
        ("x int", made("a int!", "x + 1", type="string"), {}),
    ],
)
def test_a_using_makes_values_where_its_was_meets_the_column_and_values_are_needed(
    old: str, new: Column, texts: dict[str, str]
) -> None:
    before = columns(old, "kept int")
    found = ColumnDiff(before, columns(new, "kept int"))
    assert (found.texts, found.unreadable) == (texts, {})


def test_of_several_the_newest_was_that_meets_is_taken_and_any_old_name_may_be_used() -> None:
    length = Was("b", "string", "length(b)")
    new = columns(column("c int", length, Was("a", "double", "CAST(a AS int)"), Was("a", None, "0")))
    for there, text in (
        ("b string", "length(b)"), ("a double", "CAST(a AS int)"), ("a date", "0"), ("c string", None),
    ):  # fmt: skip
        assert ColumnDiff(columns(there), new).texts.get("c") == text
    anyway = columns(column("c int", Was("b"), Was("a"), Was("a", None, "b + c"), Was("b", None, "a + c")))
    assert ColumnDiff(columns("a string"), anyway).texts == {"c": "a + a"}
    assert ColumnDiff(columns("b string"), anyway).texts == {"c": "b + b"}


def test_names_that_need_quotes_are_quoted_in_what_is_proposed_and_in_what_is_taken_over() -> None:
    old = (Column("owner name", "string"), Column("from", "string"))
    new = (Column("owner", "int", was=(Was("owner name", None, "length(owner)"),)), Column("from", "int"))
    assert ColumnDiff(old, new).texts == {"owner": "length(`owner name`)"}
    (missing,) = ColumnDiff(old, new).missing
    assert ColumnDiff(old, new).draft_was(missing) == Was(None, "string", "CAST(`from` AS int)")


def test_what_is_missing_and_what_can_not_be_read_is_told_by_column() -> None:
    old = columns("a string", "b string", "c string")
    found = ColumnDiff(old, columns("a int", made("b int", "CAST(b AS"), made("c int", "x + c"), "d int!"))
    assert [item.column for item in found.missing] == ["a", "d"]
    assert found.unreadable == {
        "b": "line 2, column 2: Expected TYPE after CAST",
        "c": "it reads x, and the table has a, b, c",
    }


@pytest.mark.parametrize(
    ("before", "after", "using", "lossy"),
    [
        ("string", "int", "CAST(a AS int)", False),
        ("string", "int", "try_cast(a AS int)", True),
        ("string", "int", "coalesce(TRY_TO_NUMBER(a, '9'), 0)", True),
        ("string", "int", "CAST(retry_count AS int)", False),
        ("string", "int", "CAST(try_count AS int)", False),
        ("bigint", "int", "CAST(a AS int)", True),
        ("double", "float", "CAST(a AS float)", True),
        ("decimal(12,2)", "decimal(10,2)", "CAST(a AS decimal(10,2))", True),
        ("struct<x:int,y:int>", "struct<x:int>", "named_struct('x', a.x)", False),
        ("struct<x:bigint,y:int>", "struct<x:int,z:int>", "named_struct('x', int(a.x), 'z', 0)", True),
        ("int", "string", "CAST(a AS string)", False),
    ],
)
def test_a_column_is_narrowed_where_a_value_may_be_turned_down_or_its_type_could_be_widened_back(
    before: str, after: str, using: str, lossy: bool
) -> None:
    there = (Column("a", before), *columns("retry_count int", "try_count int"))
    narrowed = ColumnDiff(there, (made(f"a {after}", using, type=before),)).narrowed_columns
    assert [item.name for item in narrowed] == (["a"] if lossy else [])


@pytest.mark.parametrize(
    ("before", "after", "using", "cast"),
    [
        ("struct<b:int,c:int>", "struct<c:int,d:int>", "CAST(a AS struct<c:int,d:int>)", "a from struct<b:int,c:int>"),
        ("struct<b:int,c:int>", "struct<c:int,d:int>", "(a)", "a from struct<b:int,c:int>"),
        ("struct<b:int,c:int>", "struct<b:int>", "try_cast(`a` AS STRUCT<b: INT>)", "a from struct<b:int,c:int>"),
        ("array<struct<b:int>>", "array<struct<c:int>>", "CAST(a AS array<struct<c:int>>)", "a from array<struct<b:"),
        ("map<int,struct<b:int>>", "map<int,struct<c:int>>", "a", "a from map<int,struct<b:int>>"),
        ("struct<b:struct<x:int>>", "struct<y:int>", "coalesce(CAST(a.b AS struct<y:int>), NULL)", "a.b from struct<x"),
        ("struct<b:string,c:int>", "struct<B:int,c:bigint>", "CAST(a AS struct<B:int,c:bigint>)", None),
        ("struct<b:int,c:int>", "struct<c:int,d:int>", "named_struct('c', a.c, 'd', CAST(a.b AS int))", None),
        ("struct<b:int>", "string", "CAST(a AS string)", None),
    ],
)
def test_a_cast_by_position_between_structs_of_other_fields_is_refused(
    before: str, after: str, using: str, cast: str | None
) -> None:
    found = ColumnDiff((Column("a", before),), (made(f"a {after}", using, type=before),)).unreadable
    assert [*found] == (["a"] if cast else [])
    assert cast is None or found["a"].startswith(f"a cast of {cast}")


def called(text: str, *former: dict[str, str]) -> Column:
    """A column with the names that fields of it had."""
    return column(text, *(Was(fields=fields) for fields in former))


@pytest.mark.parametrize(
    ("old", "new", "said", "how"),
    [
        ("a struct<x:int>", called("a struct<y:int>", {"y": "x"}), ["> a: struct<x:int> -> struct<y:int>"], "evolve"),
        ("a struct<x:int>", called("a struct<Y:int>", {"y": "X"}), ["> a: struct<x:int> -> struct<Y:int>"], "evolve"),
        ("a struct<x:int>", called("a struct<z:int>", {"z": "y"}, {"z": "x"}), ["> a: struct<x:int>"], "evolve"),
        ("a struct<y:int>", called("a struct<z:int>", {"z": "y"}, {"z": "x"}), ["> a: struct<y:int>"], "evolve"),
        ("a struct<x:int>", called("a struct<y:bigint>", {"y": "x"}), ["> a: ", "^ a: struct<y:int> ->"], "evolve"),
        ("a struct<x:int>", called("a struct<y:string>", {"y": "x"}), ["> a: ", "! a: struct<y:int> ->"], "rewrite"),
        ("b struct<x:int>", column("a struct<y:int> < b", Was(fields={"y": "x"})), ["> column b", "> a: "], "evolve"),
        ("a struct<y:int>", called("a struct<y:int>", {"y": "x"}), [], None),
        (called("a struct<x:int,y:int>", {"y": "x"}), called("a struct<x:int,y:int>", {"y": "x"}), [], None),
        (
            "a map<string,array<struct<x:struct<p:int>>>>",
            called("a map<string,array<struct<y:struct<q:int>>>>", {"y": "x", "y.q": "p"}),
            ["> a: map<string,array<struct<x:struct<p:int>>>> -> map<string,array<struct<y:struct<q:int>>>>"],
            "evolve",
        ),
    ],
)
def test_a_field_that_was_called_otherwise_is_renamed(
    old: str | Column, new: Column, said: list[str], how: str | None
) -> None:
    found = ColumnDiff(columns(old), columns(new))
    words = [str(change) for change in found.changes]
    assert len(words) == len(said) and all(word.startswith(start) for word, start in zip(words, said, strict=True))
    assert (found.how.value if found.how is not None else None) == how
    assert [*found.lost_fields] == [] and found.fields_with_taken_names == {}


def test_a_field_is_not_renamed_to_a_name_that_another_field_keeps() -> None:
    new = called("a struct<x:int>", {"x": "y"})
    found = ColumnDiff(columns("a struct<x:int,y:int>"), columns(new))
    assert [*found.fields_with_taken_names.values()] == ["a"]
    # Where nobody wrote down what it was called, its new name means that it was renamed.
    live = ColumnDiff(columns("a struct<x:int,y:int>"), columns(new), recorded=False)
    assert live.fields_with_taken_names == {} and [*live.lost_fields] == ["a.y"]


def test_the_field_that_becomes_two_is_renamed_to_the_first() -> None:
    new = called("a struct<x:int,z:int>", {"x": "y", "z": "y"})
    assert [*ColumnDiff(columns("a struct<y:int>"), columns(new)).fields_with_new_names] == [("a.y", "x")]


def test_a_proposed_was_keeps_the_former_names_of_fields() -> None:
    found = ColumnDiff(columns("a struct<x:string>"), columns(called("a struct<y:int>", {"y": "x"})))
    (needs,) = found.missing
    using = "if(a IS NULL, NULL, named_struct('y', CAST(a.x AS int)))"
    proposed = Was(None, "struct<x:string>", using, {"y": "x"})
    assert found.draft_was(needs) == proposed
    answered = ColumnDiff(found.old, columns(column("a struct<y:int>", proposed)))
    assert (answered.missing, answered.unreadable, [*answered.lost_fields]) == ([], {}, [])


def test_a_rewrite_of_another_column_carries_renamed_fields() -> None:
    found = ColumnDiff(columns("a struct<x:int>", "n string"), columns(called("a struct<y:int>", {"y": "x"}), "n int"))
    assert found.carried_fields == {"a": "if(a IS NULL, NULL, named_struct('y', a.x))"}


def test_a_using_is_taken_where_fields_of_a_struct_are_dropped() -> None:
    using = "named_struct('b', a.c)"
    found = ColumnDiff(columns("a struct<b:int,c:int>"), (made("a struct<b:int>", using),))
    assert found.texts == {"a": using}
    before = (Column("a", "struct<b:int,c:int>", was=(Was(using=using),)),)
    assert ColumnDiff(before, (made("a struct<b:int>", using),)).texts == {}, "it was for an earlier change"


@pytest.mark.parametrize(
    ("old", "new", "was"),
    [
        ("a string", "a array<int>", None),
        ("a string", "a int", Was(None, "string", "CAST(a AS int)")),
        ("a string", "b int < a", Was("a", "string", "CAST(a AS int)")),
        (
            "a struct<b:int,c:string>",
            "a struct<c:int,d:int>",
            Was(
                None,
                "struct<b:int,c:string>",
                "if(a IS NULL, NULL, named_struct('c', CAST(a.c AS int), 'd', CAST(NULL AS int)))",
            ),
        ),
        ("a struct<b:string>", "a struct<b:int>", Was(None, "struct<b:string>", "CAST(a AS struct<b:int>)")),
        ("`x` int", "a int!", Was(using="CAST(0 AS int)")),
        ("`x` int", "a decimal(10,2)!", Was(using="CAST(0 AS decimal(10,2))")),
        ("`x` int", "a string!", Was(using="CAST('' AS string)")),
        ("`x` int", "a date!", Was(using="CAST(NULL AS date)")),
        ("`x` int", "a array<int>!", Was(using="CAST(NULL AS array<int>)")),
    ],
)
def test_a_was_is_proposed_for_whatever_needs_values_if_an_expression_suggests_itself(
    old: str, new: str, was: Was | None
) -> None:
    before, after = columns(old), columns(new)
    found = ColumnDiff(before, after)
    (needs,) = (change for change in found.changes if change.what in (ChangeKind.RETYPE, ChangeKind.ADD_REQUIRED))
    assert found.draft_was(needs) == was
    if was is not None:
        answered = ColumnDiff(before, columns(column(new.partition(" < ")[0], was)))
        assert answered.missing == [] and answered.unreadable == {}


@pytest.mark.parametrize(
    ("expression", "names", "result"),
    [
        ("rows + 1", {"ROWS": "a"}, "a + 1"),
        ("`rows` + 1", {"rows": "`a b`"}, "`a b` + 1"),
        ("rows.x + 1", {"rows": "a"}, "a.x + 1"),
        ("'rows' || rows", {"rows": "a"}, "'rows' || a"),
        ("transform(xs, rows -> rows + n)", {"rows": "a", "n": "m"}, "transform(xs, rows -> rows + m)"),
        ("CAST(rows AS INT) /* rows */", {"rows": "a"}, "CAST(a AS INT) /* rows */"),
        ("rows + rows", {"rows": "a"}, "a + a"),
        ("a + b", {"a": "b", "b": "a"}, "b + a"),
        ("x", {}, "x"),
    ],
)
def test_only_the_names_of_columns_are_touched(expression: str, names: dict[str, str], result: str) -> None:
    assert compose(expression, names) == result


def test_columns_of_an_expression() -> None:
    assert columns_read("CASE WHEN a.b > 1 THEN C ELSE a END") == ("a", "c")
    with raises(QueryError):
        columns_read("CAST(a AS")


# Updates


NAMES = "abcdef"
KINDS = ["int", "bigint", "string", "float", "double", "decimal(10,2)", "decimal(12,2)", "decimal(12,4)"]


@st.composite
def two_lists(draw: st.DrawFn) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    def one(name: str, before: str | None = None) -> Column:
        was = () if before is None else (Was(before),)
        return Column(name, draw(st.sampled_from(KINDS)), draw(st.booleans()), None, was)

    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    old = tuple(one(name) for name in names)
    new = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    sources = draw(st.permutations(names))
    befores = [draw(st.sampled_from([None, source])) for source in [*sources, *[None] * len(new)]]
    return old, tuple(one(name, before) for name, before in zip(new, befores, strict=False))


@examples(400)
@given(two_lists())
def test_updates_lead_from_any_columns_to_any_others_and_carry_each_column_that_is_the_same(
    two: tuple[tuple[Column, ...], tuple[Column, ...]],
) -> None:
    """Columns know where they came from by a comment, which travels with them."""
    old, new = two
    old = tuple(Column(item.name, item.type, item.required, f"was {item.name}") for item in old)
    diff = ColumnDiff(old, new)
    result = run_updates(old, _without_comments(diff.updates()))
    assert [(item.name, item.type, item.required) for item in result] == [
        (item.name, item.type, item.required) for item in new
    ]
    replaced = {change.column for change in diff.changes if change.what is ChangeKind.RETYPE}
    for item in result:
        source = diff.renames.get(item.name) or (item.name if item.name not in diff.called else None)
        kept = source in {column.name for column in old} and item.name not in replaced
        assert item.comment == (f"was {source}" if kept else None)


def _without_comments(found: dict[str, Any]) -> dict[str, Any]:
    batches = [[item for item in batch if item["op"] != "comment"] for batch in found.get("updates", [])]
    return {**found, "updates": batches}


ICEBERG = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal(10,2)": DecimalType(10, 2),
    "decimal(12,2)": DecimalType(12, 2),
}
TEXTS = {str(kind): text for text, kind in ICEBERG.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["a int", "b string"], ["x int", "b string", "a bigint", "y string"]),
        (["a int"], ["b int < a", "a string"]),
        (["a int", "b string"], ["a string < b", "b int < a"]),
        (["a int", "b int"], ["b bigint < a", "a bigint < b"]),
        (["a int", "b string", "c float"], ["c double", "a string"]),
        (["a int", "b string"], ["b int < a"]),
        (["a int!", "b decimal(10,2)"], ["b decimal(12,2)", "a int"]),
        (["a string"], ["a int"]),
        (["a int", "b int", "c int"], ["b int < a", "c int < b", "a int < c"]),
        (["a int", "b int", "c int", "d int"], ["d int", "c int", "b int", "a int"]),
    ],
)
def test_pyiceberg_does_the_updates_in_one_transaction(tmp_path: Path, old: list[str], new: list[str]) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("ops")
    before, after = columns(*old), columns(*new)
    fields = [
        NestedField(number, item.name, ICEBERG[item.type], required=item.required)
        for number, item in enumerate(before, 1)
    ]
    table = catalog.create_table("ops.t", Schema(*fields))
    diff = ColumnDiff(before, after)
    with table.transaction() as transaction:
        for batch in diff.updates()["updates"]:
            with transaction.update_schema() as update:
                for operation in batch:
                    _update(update, operation)
    found = catalog.load_table("ops.t")
    assert [(field.name, TEXTS[str(field.field_type)]) for field in found.schema().fields] == [
        (item.name, item.type) for item in after
    ]
    ids = {item.name: number for number, item in enumerate(before, 1)}
    for new_name, source in diff.renames.items():
        if not any(update["op"] == "drop" and update["column"] == source for update in diff.updates()["updates"][0]):
            assert found.schema().find_field(new_name).field_id == ids[source]
    assert len(found.metadata.metadata_log) == 1


def _update(update: Any, operation: dict[str, Any]) -> None:
    name = operation["column"]
    if operation["op"] == "add":
        update.add_column(name, ICEBERG[operation["type"]])
    elif operation["op"] == "drop":
        update.delete_column(name)
    elif operation["op"] == "rename":
        update.rename_column(name, operation["to"])
    elif operation["op"] == "widen":
        update.update_column(name, field_type=ICEBERG[operation["type"]])
    elif operation["op"] == "relax":
        update.make_column_optional(name)
    elif operation["op"] == "move":
        behind = operation["after"]
        update.move_first(name) if behind is None else update.move_after(name, behind)
    else:
        assert operation["op"] == "comment"
        update.update_column(name, doc=operation["comment"])
