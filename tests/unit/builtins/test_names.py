"""Names: which are allowed, how they are quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.model import name_problem, namespace_of
from airflow_provider_rfr.builtins.sql import canonical_sql, identifier
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.lake.types import quoted
from tests.unit.builtins.declaring import PATIENT


@pytest.mark.parametrize("name", ["ops.runs", "_x._y", "OPS.Runs_2", "ops.s__sabc"])
def test_names_of_letters_digits_and_underscores_are_allowed(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs", "has no namespace"),
        ("", "has no namespace"),
        ("a.b.c", "has a namespace inside another one"),
        ("ops.", "is not a name"),
        (".runs", "is not a name"),
        ("ops.1runs", "is not a name"),
        ("ops.ru ns", "is not a name"),
        ("ops.runs;drop", "is not a name"),
        ("ops.`runs`", "is not a name"),
        ("ops.läufe", "is not a name"),
        ("ops.runs\n", "is not a name"),
        ("ops." + "x" * 101, "is longer than 100"),
        ("ops.runs__g0123abcd", "that a deploy puts aside"),
    ],
)
def test_other_names_are_refused(name: str, said: str) -> None:
    assert said in (name_problem(name) or "")


def test_the_namespace_is_all_but_the_last_part() -> None:
    assert (namespace_of("a.b.c"), namespace_of("c")) == ("a.b", "")


@PATIENT
@given(st.text(min_size=1))
def test_a_quoted_name_can_be_told_from_every_other(name: str) -> None:
    text = quoted(name)
    assert (text[1:-1].replace("``", "`") if text.startswith("`") else text) == name


@PATIENT
@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_ `]{0,8}", fullmatch=True))
def test_a_name_in_a_query_is_one_word_whatever_it_is(name: str) -> None:
    assert " " not in canonical_sql(identifier(name)).replace(name.replace("`", "``"), "")


@pytest.mark.parametrize("name", ["from", "SELECT", "date", "group", "a b", "1a"])
def test_a_name_that_could_be_taken_for_something_else_is_quoted_in_a_query(name: str) -> None:
    assert identifier(name) == f"`{name}`"
    assert identifier("job_id") == "job_id"


def test_the_nearest_name_is_offered_and_a_long_list_is_not() -> None:
    assert suggestion("comnent", ["columns", "comment"]) == "did you mean comment? allowed: columns, comment"
    assert suggestion("comnent", ["comment", *map(str, range(50))]) == "did you mean comment?"
    assert suggestion("x", map(str, range(10_000))).endswith("1017, 1018, 1019, ...")
