"""Columns that a query asks for and that are not there, and what looks like one and is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.queries import column_problems, declared_columns
from tests.unit.builtins.catalogs import table, view
from tests.unit.builtins.declaring import PATIENT
from tests.unit.builtins.spark_queries import COLUMNS, QUERIES


def told(query: str) -> list[tuple[int, int, str, str]]:
    return list(column_problems(query, COLUMNS.get, "ops"))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_that_spark_takes_has_no_problem(query: str) -> None:
    assert told(query) == []


MISSING = [
    ("SELECT zz FROM ops.t", "ops.t has no column zz"),
    ("SELECT id, name AS n, zz FROM t", "ops.t has no column zz"),
    ("SELECT x.id FROM ops.t x WHERE x.zz > 1", "ops.t has no column zz"),
    ("SELECT `Zz` FROM Ops.T", "ops.t has no column Zz"),
    ("SELECT ops.t.zz FROM ops.t", "ops.t has no column zz"),
    ("SELECT lake.ops.t.zz FROM ops.t", "ops.t has no column zz"),
    ("SELECT id FROM ops.t WHERE zz IS NULL", "ops.t has no column zz"),
    ("SELECT count(*) AS n FROM ops.t GROUP BY zz", "ops.t has no column zz"),
    ("SELECT count(*) AS n FROM ops.t GROUP BY name HAVING max(zz) > 1", "ops.t has no column zz"),
    ("SELECT id FROM ops.t ORDER BY zz", "ops.t has no column zz"),
    ("SELECT sum(id) OVER (PARTITION BY zz) AS n FROM ops.t", "ops.t has no column zz"),
    ("SELECT zz.f FROM ops.t", "ops.t has no column zz"),
    ("SELECT transform(tags, x -> concat(x, zz)) AS y FROM ops.t", "ops.t has no column zz"),
    ("SELECT date_trunc('day', zz) AS d FROM ops.t", "ops.t has no column zz"),
    ("SELECT my_udf(zz) AS d FROM ops.t", "ops.t has no column zz"),
    ("SELECT a.id FROM ops.t a JOIN ops.u b ON a.id = b.zz", "ops.u has no column zz"),
    ("SELECT zz FROM ops.t a JOIN ops.u b ON a.id = b.t_id", "there is no column zz"),
    ("SELECT a.id FROM ops.t a JOIN ops.u b USING (zz)", "there is no column zz"),
    ("SELECT x.zz FROM ops.t x JOIN raw.unknown y ON x.id = y.id", "ops.t has no column zz"),
    ("SELECT id FROM ops.t UNION ALL SELECT zz FROM ops.u", "ops.u has no column zz"),
    ("SELECT q.zz FROM (SELECT * FROM ops.t) q", "there is no column zz"),
    ("SELECT zz FROM (SELECT id, name FROM ops.t)", "there is no column zz"),
    ("SELECT q.id FROM (SELECT zz AS id FROM ops.t) q", "ops.t has no column zz"),
    ("SELECT q.id FROM (SELECT id FROM ops.t) AS q(zz)", "there is no column id"),
    ("SELECT q.zz FROM (SELECT t.id FROM ops.t JOIN ops.u ON t.id = u.t_id) q", "there is no column zz"),
    ("WITH c AS (SELECT id AS a FROM ops.t) SELECT id FROM c", "there is no column id"),
    ("WITH c AS (SELECT zz AS a FROM ops.t) SELECT a FROM c", "ops.t has no column zz"),
    ("WITH c(a) AS (SELECT id FROM ops.t) SELECT a, id FROM c", "there is no column id"),
    ("WITH c AS (SELECT id FROM ops.t) SELECT x.id FROM c x JOIN c y ON x.id = y.zz", "there is no column zz"),
    ("SELECT id FROM ops.t WHERE EXISTS (SELECT 1 FROM ops.u WHERE u.t_id = t.zz)", "ops.t has no column zz"),
    ("SELECT id FROM ops.t WHERE EXISTS (SELECT 1 FROM ops.u WHERE t_id = zz)", "there is no column zz"),
    ("SELECT id FROM ops.t WHERE id IN (SELECT zz FROM ops.u)", "there is no column zz"),
    ("SELECT (SELECT max(zz) FROM ops.u) AS m FROM ops.t", "there is no column zz"),
    ("SELECT x FROM ops.t LATERAL VIEW explode(zz) e AS x", "there is no column zz"),
    ("SELECT e.zz FROM ops.t LATERAL VIEW explode(tags) e AS x", "there is no column zz"),
    ("SELECT l.zz FROM ops.t, LATERAL (SELECT count(*) AS n FROM ops.u) l", "there is no column zz"),
    ("SELECT l.n FROM ops.t, LATERAL (SELECT max(t.zz) AS n FROM ops.u) l", "ops.t has no column zz"),
    ("SELECT v.zz FROM (VALUES (1)) AS v(a)", "there is no column zz"),
]


@pytest.mark.parametrize(("query", "problem"), MISSING)
def test_a_column_that_nothing_has_is_told(query: str, problem: str) -> None:
    [(line, column, found, _)] = told(query)
    assert (line, found) == (1, problem)
    start = column - 1
    assert query[start:].strip("`").startswith(problem.rpartition(" ")[2])


def test_the_nearest_column_is_offered() -> None:
    assert [remedy.partition("?")[0] for *_, remedy in told("SELECT nam, t_idd FROM ops.t, ops.u")] == [
        "did you mean name",
        "did you mean t_id",
    ]


def test_the_place_is_that_of_the_word_in_the_text_with_its_comments() -> None:
    query = "SELECT /* zz */ id, -- zz\n  t.name,\n\tt . `zz`\nFROM ops.t\nWHERE\r\n  yy = 1 -- zz\n"
    assert [place for *place, _, _ in told(query)] == [[3, 6], [6, 3]]


def test_a_column_is_told_wherever_it_stands_and_every_one_is() -> None:
    query = "SELECT zz, yy FROM ops.t WHERE zz > 1"
    assert [(column, problem.rpartition(" ")[2]) for _, column, problem, _ in told(query)] == [
        (8, "zz"),
        (12, "yy"),
        (32, "zz"),
    ]


def test_views_over_views_have_the_columns_that_their_queries_give() -> None:
    views = view("ops.v", "SELECT *, 1 AS c FROM ops.t"), view("ops.w", "SELECT a AS x FROM ops.v")
    columns_of = declared_columns([table("ops.t", "A int", "b int"), *views])
    query = "SELECT v.a, v.c, w.x, v.d, w.b FROM ops.v JOIN ops.w ON v.a = w.x"
    found = list(column_problems(query, columns_of, "ops"))
    assert [problem for *_, problem, _ in found] == ["ops.v has no column d", "ops.w has no column b"]
    assert found[1][-1] == "allowed: x"


def test_nothing_is_told_of_what_is_not_known() -> None:
    assert list(column_problems("SELECT zz, t.yy FROM ops.t", lambda name: None, "ops")) == []
    assert told("SELECT zz FROM ops.t, raw.unknown") == []


NAMES = st.sampled_from(["id", "name", "zz", "t_id", "kind"])
SOURCES = st.sampled_from(
    ["ops.t", "ops.u", "(SELECT * FROM ops.t)", "(SELECT t_id, kind FROM ops.u)", "(SELECT id AS kind FROM ops.t)"]
)
GIVEN = {
    "ops.t": set(COLUMNS["ops.t"]),
    "ops.u": set(COLUMNS["ops.u"]),
    "(SELECT * FROM ops.t)": set(COLUMNS["ops.t"]),
    "(SELECT t_id, kind FROM ops.u)": {"t_id", "kind"},
    "(SELECT id AS kind FROM ops.t)": {"kind"},
}


@PATIENT
@given(SOURCES, SOURCES, NAMES, st.sampled_from(["", "a.", "b."]))
def test_a_column_is_told_just_when_no_source_has_it(left: str, right: str, name: str, alias: str) -> None:
    has = {"": GIVEN[left] | GIVEN[right], "a.": GIVEN[left], "b.": GIVEN[right]}[alias]
    query = f"SELECT 1 AS one FROM {left} a JOIN {right} b ON {alias}{name} IS NULL"
    assert bool(told(query)) == (name not in has)
