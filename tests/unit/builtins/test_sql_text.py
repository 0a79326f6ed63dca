"""Canonical SQL: what makes no difference is gone, all else is there."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.sql import _RULES, CANONICALIZER, canonical_sql, without_comments
from tests.unit.builtins.declaring import PATIENT

WORDS = ["select", "from", "where", "group by", "order by", "job_id", "Rows", "x1", "count", "date", "and", "not in"]
EXACT = ["'It''s'", "'a  b'", '"dq"', "`Q x`", "`a``b`", "1", "2.50", "1e3", "1L", "x'AB'"]
SIGNS = [",", "(", ")", "*", "+", "-", "=", "<>", "<=", "||", ".", "->", "<", ">"]
SPACES = st.sampled_from([" ", "\n", "\t", "  \r\n ", " -- note 'x' * \n", "/* a * b */", " /* it's\n */ "])


@st.composite
def written_twice(draw) -> tuple[str, str]:
    """One row of words in two ways of writing."""
    words = draw(st.lists(st.sampled_from(WORDS + EXACT + SIGNS), min_size=1, max_size=12))
    first, second = "", ""
    for word in words:
        loose = draw(st.sampled_from([word.lower(), word.upper(), word.title()])) if word in WORDS else word
        first += f" {word}"
        second += draw(SPACES) + draw(SPACES).join(loose.split(" ")) if word in WORDS else draw(SPACES) + loose
    return first, second + draw(SPACES)


@PATIENT
@given(written_twice())
def test_white_space_comments_and_the_case_of_words_make_no_difference(texts: tuple[str, str]) -> None:
    assert canonical_sql(texts[0]) == canonical_sql(texts[1])


@PATIENT
@given(st.lists(st.sampled_from(WORDS + EXACT + SIGNS), min_size=1, max_size=12), st.data())
def test_every_other_word_makes_a_difference(words: list[str], data) -> None:
    at = data.draw(st.integers(0, len(words) - 1))
    other = data.draw(st.sampled_from([item for item in WORDS + EXACT + SIGNS if item != words[at]]))
    changed = [*words[:at], other, *words[at + 1 :]]
    assert canonical_sql(" ".join(words)) != canonical_sql(" ".join(changed))


@PATIENT
@given(st.lists(st.sampled_from(WORDS + EXACT + SIGNS), max_size=12))
def test_canonical_text_is_its_own_canonical_text(words: list[str]) -> None:
    once = canonical_sql(" ".join(words))
    assert canonical_sql(once) == once


@PATIENT
@given(st.text("a '\"`/*-\n;x1.", max_size=30))
def test_any_text_has_a_canonical_text(text: str) -> None:
    assert canonical_sql(text) == canonical_sql(f" {text} ") or "?" in canonical_sql(text)


@PATIENT
@given(written_twice())
def test_comments_become_blanks_and_nothing_moves(texts: tuple[str, str]) -> None:
    blank = without_comments(texts[1])
    assert len(blank) == len(texts[1])
    assert all(after in (before, " ") for before, after in zip(texts[1], blank, strict=True))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 'A'", "SELECT 'a'"),
        ("SELECT 'a b'", "SELECT 'a  b'"),
        ("SELECT `Rows` FROM t", "SELECT `rows` FROM t"),
        ("SELECT `rows` FROM t", "SELECT rows FROM t"),
        ("SELECT a FROM t", "SELECT a FROM u"),
        ("SELECT a, b FROM t", "SELECT b, a FROM t"),
        ("SELECT a - b", "SELECT a -- b"),
        ("SELECT 1", "SELECT 1.0"),
        ("SELECT a FROM t", "SELECT /*+ BROADCAST(t) */ a FROM t"),
        ("SELECT /*+ BROADCAST(t) */ a FROM t", "SELECT /*+ BROADCAST(u) */ a FROM t"),
        ("SELECT a FROM t WHERE b <> 1", "SELECT a FROM t WHERE b != 1"),
        ("SELECT a b FROM t", "SELECT a AS b FROM t"),
        ("SELECT count(*) FROM t", "SELECT count(1) FROM t"),
    ],
)
def test_queries_that_are_written_otherwise_differ(one: str, other: str) -> None:
    assert canonical_sql(one) != canonical_sql(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM t GROUP BY a", "select A from T group /* x */ by A"),
        ("SELECT CAST(a AS array<array<int>>)", "SELECT CAST(a AS array<array<int> >)"),
        ("SELECT t.*", "SELECT t . *"),
        ("SELECT /*+ BROADCAST(t) */ a", "SELECT /*+broadcast( T )*/ a"),
        ("SELECT a\nFROM t -- c", "SELECT a FROM t"),
        ("SELECT a /* b /* nested */ c */ FROM t", "SELECT a FROM t"),
        ("SELECT\r\n\ta\r\nFROM t\r\n", "SELECT a FROM t"),
    ],
)
def test_queries_that_say_the_same_in_the_same_words_are_the_same(one: str, other: str) -> None:
    assert canonical_sql(one) == canonical_sql(other)


def test_what_can_t_be_taken_apart_is_compared_as_it_is() -> None:
    assert canonical_sql("SELECT 'a") == canonical_sql("SELECT   'a") != canonical_sql("select 'a")


def test_the_canonicalizer_names_its_version_and_its_rules() -> None:
    assert CANONICALIZER.startswith("sqlglot/")
    assert CANONICALIZER.endswith(f"rules/{_RULES}")


def test_a_long_query_is_canonical_soon() -> None:
    words = random.Random(1).choices(WORDS + EXACT + SIGNS, k=20_000)
    assert len(canonical_sql(" ".join(words))) > 20_000
