"""Instructions chained by fingerprints, and expressions put into each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.planning.instructions import Chained, _both, merge, names, path, unused
from airflow_provider_rfr.builtins.spec import Migration, Strategy
from airflow_provider_rfr.builtins.sql.parse import bare_column, columns_read, compose
from tests.profile import examples

A, B, C, D = (f"c1:{letter * 64}" for letter in "abcd")


def step(before: str, after: str, how: Strategy = Strategy.EVOLVE, **expressions: str) -> Migration:
    return Migration(before, after, how, expressions)


@pytest.mark.parametrize(
    ("words", "digest", "same"),
    [
        ("c1:aaaaaaaa", A, True),
        ("c1:AAAAAAAA", A, True),
        ("c1:aaaaaaaaaaaa…", A, True),
        (A, A, True),
        ("c1:aaaaaaa", A, False),
        ("c1:", A, False),
        ("c1:aaaaaaab", A, False),
        (B, A, False),
    ],
)
def test_an_instruction_names_a_fingerprint_by_at_least_eight_digits(words: str, digest: str, same: bool) -> None:
    assert names(words, digest) is same and names(digest, words) is same


def test_versions_may_be_skipped() -> None:
    """Rows 22 and 23."""
    steps = (step(C, D), step("c1:aaaaaaaa", "c1:bbbbbbbb"), step("c1:bbbbbbbbbb", C, Strategy.REWRITE))
    assert path(steps, A, D) == (steps[1], steps[2], steps[0])
    assert path(steps, B, D) == (steps[2], steps[0])
    assert path(steps, D, A) is None


def test_a_way_that_loses_nothing_is_taken_before_a_shorter_one_that_does() -> None:
    steps = (step(A, C, Strategy.REPLACE_EMPTY), step(A, B), step(B, C, Strategy.REWRITE))
    assert path(steps, A, C) == steps[1:]


def test_of_two_ways_that_lose_nothing_the_shorter_is_taken_then_the_gentler_then_the_first() -> None:
    assert path((step(A, B), step(B, C), step(A, C, Strategy.REWRITE)), A, C) == (step(A, C, Strategy.REWRITE),)
    assert path((step(A, C, Strategy.REWRITE), step(A, C)), A, C) == (step(A, C),)
    first, second = step(A, C, x="1"), step(A, C, x="2")
    assert path((first, second), A, C) == (first,)


def test_instructions_in_a_circle_end() -> None:
    assert path((step(A, B), step(B, A)), A, C) is None


def test_evolving_twice_is_evolving_once() -> None:
    """Row 23."""
    assert merge([step(A, B), step(B, C)]).how is Strategy.EVOLVE


@pytest.mark.parametrize("strong", [Strategy.REWRITE, Strategy.RECOMPUTE, Strategy.REPLACE_EMPTY])
def test_anything_stronger_takes_in_what_is_gentler_on_either_side(strong: Strategy) -> None:
    """Row 22."""
    merged = merge([step(A, B), step(B, C, strong), step(C, D)])
    assert (merged.how, merged.length) == (strong, 3)


def test_expressions_of_rewrites_are_put_into_each_other() -> None:
    first = step(A, B, Strategy.REWRITE, rows="CAST(rows AS INT)", kind="lower(type)")
    then = step(B, C, Strategy.REWRITE, total="rows * 2 + size", kind="upper(kind)")
    assert merge([first, then]).expressions == {
        "rows": "CAST(rows AS INT)",
        "total": "(CAST(rows AS INT)) * 2 + size",
        "kind": "upper((lower(type)))",
    }


def test_names_of_instructions_that_evolve_are_put_into_each_other_as_well() -> None:
    merged = merge([step(A, B, b="a"), step(B, C, c="b")])
    assert merged.expressions["c"] == "a"


EXPRESSIONS = st.dictionaries(
    st.sampled_from("abc"),
    st.sampled_from(["a", "b", "c", "a + b", "upper(c)", "CASE WHEN a > 0 THEN b ELSE c END", "1"]),
)
STEPS = st.builds(Chained, st.sampled_from([Strategy.EVOLVE, Strategy.REWRITE, Strategy.REPLACE_EMPTY]), EXPRESSIONS)


@examples(200)
@given(STEPS, STEPS, STEPS)
def test_it_makes_no_difference_which_two_of_three_are_merged_first(one: Chained, two: Chained, three: Chained) -> None:
    left = _both(_both(one, two), three)
    right = _both(one, _both(two, three))
    assert left == right


def test_instructions_that_lead_nowhere_are_unused_and_those_of_the_past_are_not() -> None:
    """Row 19."""
    past, present, wrong, onwards = step(A, B), step(B, C), step(A, D), step(C, D)
    assert unused((past, present, wrong, onwards), C) == [wrong, onwards]
    assert unused((past, present), C) == []


@pytest.mark.parametrize(
    ("expression", "inner", "result"),
    [
        ("rows", {"rows": "a + 1"}, "a + 1"),
        ("rows + 1", {"rows": "a + 1"}, "(a + 1) + 1"),
        ("rows + 1", {"ROWS": "a"}, "a + 1"),
        ("`rows` + 1", {"rows": "a"}, "a + 1"),
        ("rows.x + 1", {"rows": "parse(a)"}, "(parse(a)).x + 1"),
        ("'rows' || rows", {"rows": "a"}, "'rows' || a"),
        ("transform(xs, rows -> rows + n)", {"rows": "a", "n": "m"}, "transform(xs, rows -> rows + m)"),
        ("CAST(rows AS INT) /* rows */", {"rows": "a"}, "CAST(a AS INT) /* rows */"),
        ("rows + rows", {"rows": "-a"}, "(-a) + (-a)"),
        ("a + b", {"a": "b", "b": "a"}, "b + a"),
        ("x", {}, "x"),
    ],
)
def test_only_the_columns_names_are_touched(expression: str, inner: dict[str, str], result: str) -> None:
    assert compose(expression, inner) == result


def test_columns_of_an_expression() -> None:
    assert columns_read("CASE WHEN a.b > 1 THEN C ELSE a END") == ("a", "c")
    assert (bare_column(" `a` "), bare_column("a.b"), bare_column("a + 1"), bare_column("1")) == ("a", None, None, None)
    with pytest.raises(ValueError, match="can't be read as an expression"):
        columns_read("CAST(a AS")
