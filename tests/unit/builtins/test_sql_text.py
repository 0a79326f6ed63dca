"""Texts of SQL: the canonical one, names in them, and casts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.model import name_problem, namespace_of
from airflow_provider_rfr.builtins.spark_sql import reading, resolved
from airflow_provider_rfr.builtins.sql import (
    _RULES,
    CANONICALIZER,
    NamedTable,
    canonical_sql,
    cast,
    columns_read,
    identifier,
    replace_tables,
    without_comments,
)
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import UnreadableQueryError
from airflow_provider_rfr.lake.types import parse_type, quoted
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


# Names of tables, replaced in the author's own text


def pinned(table: NamedTable) -> str | None:
    return f"{table.written} VERSION AS OF 7" if table.name == "ops.runs" else None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 FROM runs", "SELECT 1 FROM runs VERSION AS OF 7"),
        ("select `runs`.id from `OPS`.`Runs` -- why", "select `runs`.id from `OPS`.`Runs` VERSION AS OF 7 -- why"),
        (
            "SELECT 1 FROM ops.runs AS r, runs r2",
            "SELECT 1 FROM ops.runs VERSION AS OF 7 AS r, runs VERSION AS OF 7 r2",
        ),
        ("WITH runs AS (SELECT 1 AS a) SELECT a FROM runs", "WITH runs AS (SELECT 1 AS a) SELECT a FROM runs"),
        ("SELECT 1 FROM ops.runs.history", "SELECT 1 FROM ops.runs.history"),
        (
            "SELECT (SELECT 1 FROM runs) FROM other UNION ALL SELECT 1 FROM ops.runs",
            "SELECT (SELECT 1 FROM runs VERSION AS OF 7) FROM other UNION ALL SELECT 1 FROM ops.runs VERSION AS OF 7",
        ),
    ],
)
def test_tables_are_read_at_a_snapshot_and_nothing_else_is_touched(query: str, expected: str) -> None:
    assert replace_tables(query, "ops", pinned) == expected


def test_a_query_that_can_not_be_parsed_is_not_guessed_at() -> None:
    with pytest.raises(UnreadableQueryError):
        replace_tables("SELECT a FROM runs MATCH_RECOGNIZE nonsense (((", "ops", pinned)
    assert reading("SELECT a FROM runs MATCH_RECOGNIZE nonsense (((", "ops.runs", "VERSION AS OF 7") is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT CAST((rows) AS int) AS rows FROM ops.`Runs`",
            "SELECT CAST((rows) AS int) AS rows FROM ops.`Runs` VERSION AS OF 7",
        ),
        ("SELECT max(a) OVER () AS a FROM ops.runs", None),
        ("SELECT count(*) AS a FROM ops.runs", None),
        ("SELECT a FROM ops.runs WHERE a > (SELECT 1)", None),
        ("SELECT a FROM ops.runs UNION ALL SELECT a FROM ops.runs", None),
    ],
)
def test_rows_are_computed_one_by_one_only_if_each_comes_from_one(query: str, expected: str | None) -> None:
    assert reading(query, "OPS.runs", "VERSION AS OF 7") == expected


def test_a_known_view_and_a_table_are_called_by_whole_names() -> None:
    query = "SELECT t.a, v.b FROM t JOIN ops.V ON true JOIN lake.ops.u JOIN other.w x"
    assert resolved(query, "ops", "lake", {"ops.v": "mine.V"}) == (
        "SELECT t.a, v.b FROM `lake`.`ops`.t JOIN `mine.V` AS `v` ON true JOIN lake.ops.u JOIN `lake`.other.w x"
    )


# Names


@pytest.mark.parametrize("name", ["ops.runs", "_x._y", "OPS.Runs_2", "ops.s__sabc"])
def test_names_of_letters_digits_and_underscores_are_allowed(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs", "has no namespace"),
        ("", "has no namespace"),
        ("a.b.c", "has a namespace inside another one"),
        *(
            (f"ops.{name}", "is not a name")
            for name in ("", "1runs", "ru ns", "runs;drop", "`runs`", "läufe", "runs\n")
        ),
        (".runs", "is not a name"),
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


# Casts by the names of fields


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("int", "int", "s"),
        ("string", "int", "CAST(s AS int)"),
        ("struct<a:int>", "struct<A:int>", "CAST(s AS struct<A:int>)"),
        ("array<struct<a:string>>", "array<struct<a:int>>", "CAST(s AS array<struct<a:int>>)"),
        (
            "struct<a:int,b:int>",
            "struct<b:bigint,c:int>",
            "if(s IS NULL, NULL, named_struct('b', CAST(s.b AS bigint), 'c', CAST(NULL AS int)))",
        ),
        (
            "struct<a:int,b:int>",
            "struct<B:int,a:int>",
            "if(s IS NULL, NULL, named_struct('B', s.b, 'a', s.a))",
        ),
        (
            "struct<`it's`:int,`group`:int>",
            "struct<`group`:int,`a\\b`:int>",
            "if(s IS NULL, NULL, named_struct('group', s.`group`, 'a\\\\b', CAST(NULL AS int)))",
        ),
        (
            "struct<a:struct<x:int,y:int>>",
            "struct<a:struct<y:int>>",
            "if(s IS NULL, NULL, named_struct('a', if(s.a IS NULL, NULL, named_struct('y', s.a.y))))",
        ),
        (
            "array<struct<a:int,b:array<struct<x:int,y:int>>>>",
            "array<struct<b:array<struct<y:int>>>>",
            "transform(s, x0 -> if(x0 IS NULL, NULL, named_struct('b', "
            "transform(x0.b, x1 -> if(x1 IS NULL, NULL, named_struct('y', x1.y))))))",
        ),
        (
            "map<string,struct<a:int,b:int>>",
            "map<string,struct<b:int>>",
            "transform_values(s, (k0, x0) -> if(x0 IS NULL, NULL, named_struct('b', x0.b)))",
        ),
        (
            "map<struct<a:int,b:int>,struct<c:int,d:int>>",
            "map<struct<b:int>,struct<d:int>>",
            "transform_values(transform_keys(s, (k0, x0) -> if(k0 IS NULL, NULL, named_struct('b', k0.b))), "
            "(k0, x0) -> if(x0 IS NULL, NULL, named_struct('d', x0.d)))",
        ),
        ("struct<a:int>", "string", "to_json(s)"),
        ("string", "struct<a:int>", None),
        ("int", "array<int>", None),
        ("struct<a:int,b:int>", "struct<a:array<int>>", None),
        ("array<struct<a:int,b:int>>", "array<struct<a:array<int>>>", None),
    ],
)
def test_values_are_cast_field_by_field(old: str, new: str, text: str | None) -> None:
    found = cast("s", parse_type(old), parse_type(new))
    assert found == text
    assert found is None or columns_read(found) == ("s",)


@pytest.mark.parametrize(
    ("old", "called", "new", "text"),
    [
        ("struct<a:int>", "struct<b:int>", "struct<b:int>", "named_struct('b', s.a)"),
        ("struct<a:int,b:int>", "struct<b:int,a:int>", "struct<a:int,b:int>", "named_struct('a', s.b, 'b', s.a)"),
        (
            "struct<a:int>",
            "struct<b:int>",
            "struct<b:bigint,c:int>",
            "named_struct('b', CAST(s.a AS bigint), 'c', CAST",
        ),
    ],
)
def test_fields_under_new_names_are_cast_to_themselves(old: str, called: str, new: str, text: str) -> None:
    found = cast("s", parse_type(old), parse_type(new), called=parse_type(called))
    assert found is not None and found.startswith(f"if(s IS NULL, NULL, {text}")
    maps = (parse_type(f"map<string,array<{kind}>>") for kind in (old, new, called))
    assert cast("s", next(maps), next(maps), called=next(maps)) == (
        f"transform_values(s, (k0, x0) -> transform(x0, x1 -> {found.replace('s.', 'x1.').replace('(s ', '(x1 ')}))"
    )
