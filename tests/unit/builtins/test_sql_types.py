"""Types of a query's columns: right, or none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.sql.facts import output_columns
from airflow_provider_rfr.builtins.sql.types import Typed, output_types
from airflow_provider_rfr.exceptions import QueryError
from airflow_provider_rfr.lake.types import parse_type
from tests.unit.builtins.declaring import PATIENT
from tests.unit.builtins.spark_queries import COLUMNS, QUERIES, TABLES


def types(query: str) -> list[str | None]:
    return [kind for _, kind in output_types(query, TABLES.get, "ops")]


def type_of(expression: str) -> str | None:
    (kind,) = types(f"SELECT {expression} AS x FROM ops.t")
    return kind


SURE = [
    ("id", "bigint"),
    ("T.Name", "string"),
    ("amount", "decimal(10,2)"),
    ("items", "array<struct<sku:string,qty:int>>"),
    ("s.g.h", "string"),
    ("items[0].sku", "string"),
    ("CAST(name AS int)", "int"),
    ("try_cast(name AS decimal(5,1))", "decimal(5,1)"),
    ("name :: timestamp", "timestamp"),
    ("CAST(id AS varchar(3))", "string"),
    ("to_date(name)", "date"),
    ("DATE '2026-01-01'", "date"),
    ("'text'", "string"),
    ("7", "int"),
    ("2147483648", "bigint"),
    ("7L", "bigint"),
    ("true", "boolean"),
    ("id > 1 AND name IS NOT NULL", "boolean"),
    ("name IN ('a') OR NOT ok", "boolean"),
    ("name LIKE 'a%'", "boolean"),
    ("id BETWEEN 1 AND 2", "boolean"),
    ("EXISTS (SELECT 1 FROM ops.u)", "boolean"),
    ("count(*)", "bigint"),
    ("count(DISTINCT name)", "bigint"),
    ("max(at)", "timestamp"),
    ("min(amount)", "decimal(10,2)"),
    ("sum(id)", "bigint"),
    ("sum(score)", "double"),
    ("sum(amount)", "decimal(20,2)"),
    ("sum(id) FILTER (WHERE ok)", "bigint"),
    ("first(name, true)", "string"),
    ("row_number() OVER (ORDER BY at)", "int"),
    ("lag(name) IGNORE NULLS OVER (ORDER BY at)", "string"),
    ("coalesce(name, 'x')", "string"),
    ("coalesce(sum(id), 0)", "bigint"),
    ("coalesce(NULL, day)", "date"),
    ("if(ok, 1, 2)", "int"),
    ("CASE WHEN ok THEN score ELSE 0 END", "double"),
    ("CASE name WHEN 'a' THEN true END", "boolean"),
    ("nullif(name, '')", "string"),
    ("id + 1", "bigint"),
    ("2 * 3", "int"),
    ("id * score", "double"),
    ("id / 2", "double"),
    ("(id - 1)", "bigint"),
    ("upper(name)", "string"),
    ("concat(name, '!')", "string"),
    ("length(name)", "int"),
    ("year(day)", "int"),
    ("date_trunc('month', at)", "timestamp"),
    ("current_date", "date"),
    ("current_timestamp()", "timestamp"),
    ("(SELECT max(value) FROM ops.u)", "double"),
]


@pytest.mark.parametrize(("expression", "kind"), SURE)
def test_a_type_is_known_where_it_is_sure(expression: str, kind: str) -> None:
    assert type_of(expression) == kind


@pytest.mark.parametrize(
    "expression",
    [
        "NULL",
        "1.5",
        "1e3",
        "99999999999999999999",
        "amount + amount",
        "amount * 2",
        "amount / 2",
        "avg(amount)",
        "coalesce(amount, 0)",
        "coalesce(name, 1)",
        "if(ok, name, 1)",
        "if(ok, day, at)",
        "if(ok, id, score)",
        "coalesce(id, 1.5)",
        "coalesce(1, name)",
        "day + 1",
        "at - at",
        "at + INTERVAL 1 DAY",
        "INTERVAL 1 DAY",
        "name + 1",
        "concat(tags, tags)",
        "id % 2",
        "-id",
        "round(score)",
        "struct(id, name)",
        "array(1, 2)",
        "explode(tags)",
        "transform(tags, x -> x)",
        "my_udf(id)",
        "_file",
        "zz",
        "CAST(s AS struct<F:bigint>)",
        "CAST(name AS interval)",
        "CAST(name AS variant)",
        "items.sku",
        "attrs['a']",
    ],
)
def test_where_it_is_not_sure_it_is_not_said(expression: str) -> None:
    assert type_of(expression) is None


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("SELECT * FROM ops.u u JOIN (SELECT at, ok FROM ops.t) q USING (id)", None),
        ("SELECT * FROM ops.u", ["bigint", "bigint", "string", "double"]),
        (
            "SELECT u.*, t.ok FROM ops.u JOIN ops.t ON t.id = u.t_id",
            ["bigint", "bigint", "string", "double", "boolean"],
        ),
        ("SELECT id, kind FROM ops.t JOIN ops.u USING (id)", ["bigint", "string"]),
        ("WITH c(a, b) AS (SELECT id, at FROM ops.t) SELECT b, a + 1 AS n FROM c", ["timestamp", "bigint"]),
        ("SELECT q.n FROM (SELECT count(*) AS n FROM ops.t) q", ["bigint"]),
        ("SELECT z + 1 AS y, id FROM (SELECT avg(amount) AS z, id FROM ops.t GROUP BY id)", [None, "bigint"]),
        ("SELECT id + 1 AS n, n * 2 AS m FROM ops.t", ["bigint", "bigint"]),
        ("SELECT id FROM ops.t UNION ALL SELECT t_id FROM ops.u", ["bigint"]),
        ("SELECT id AS x FROM ops.t UNION SELECT name FROM ops.t", [None]),
        ("SELECT x FROM (SELECT 1 AS x UNION ALL SELECT id FROM ops.t)", [None]),
        ("(SELECT id FROM ops.t) LIMIT 3", ["bigint"]),
        ("SELECT id FROM ops.t VERSION AS OF 3", [None]),
        ("SELECT id, other FROM ops.t, raw.unknown", ["bigint", None]),
        ("SELECT id, x FROM ops.t LATERAL VIEW explode(tags) e AS x", ["bigint", None]),
        ("SELECT posexplode(tags) AS (p, x), id FROM ops.t", [None, None, None]),
        ("SELECT a FROM VALUES (1) AS v(a)", [None]),
        ("SELECT a FROM ops.u PIVOT (sum(value) FOR kind IN ('a'))", [None]),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r", [None]),
        ("SELECT x.p, x.q FROM ops.u AS x(p, q, r, s)", ["bigint", "bigint"]),
    ],
)
def test_types_come_through_the_query_or_not_at_all(query: str, kinds: list[str | None] | None) -> None:
    if kinds is None:
        with pytest.raises(QueryError):
            types(query)
    else:
        assert types(query) == kinds


@pytest.mark.parametrize("query", QUERIES)
def test_any_query_has_types_for_just_its_columns(query: str) -> None:
    with suppress(QueryError):
        names = output_columns(query, COLUMNS.get, "ops")
        assert tuple(name for name, _ in output_types(query, TABLES.get, "ops")) == names


SIMPLE = st.sampled_from(
    [
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "binary",
        "decimal(38,9)",
    ]
)
KINDS = st.recursive(
    SIMPLE,
    lambda inside: st.one_of(
        inside.map(lambda kind: f"array<{kind}>"),
        inside.map(lambda kind: f"map<string,{kind}>"),
        st.tuples(inside, inside).map(lambda pair: f"struct<A:{pair[0]},`b c`:{pair[1]}>"),
    ),
    max_leaves=4,
)


@PATIENT
@given(KINDS)
def test_every_type_of_a_column_comes_through_as_it_is(kind: str) -> None:
    canonical = str(parse_type(kind))
    assert output_types("SELECT x.a AS b FROM ops.t x", {"ops.t": (("a", canonical),)}.get) == (("b", canonical),)


def test_the_key_of_a_join_has_a_type_where_both_sides_have_one() -> None:
    known: dict[str, Typed] = {"a": (("k", "int"),), "b": (("k", "bigint"),), "c": (("k", "int"),)}
    assert output_types("SELECT k FROM a LEFT JOIN b USING (k)", known.get) == (("k", None),)
    assert output_types("SELECT k FROM a FULL JOIN c USING (k)", known.get) == (("k", "int"),)


def test_a_column_hides_a_name_that_the_query_gives() -> None:
    assert types("SELECT name AS id, id + 1 AS x, id AS y FROM ops.t") == ["string", "bigint", "bigint"]


def test_views_over_views_have_types() -> None:
    known: dict[str, Typed] = {"a.b.t": (("A", "int"), ("x", "string"))}
    known["a.b.v"] = output_types("SELECT *, avg(1.5) OVER () AS z FROM t", known.get, "A.b")
    assert known["a.b.v"] == (("A", "int"), ("x", "string"), ("z", None))
    found = output_types("SELECT v.A, z, count(*) AS n FROM a.b.v", known.get)
    assert found == (("A", "int"), ("z", None), ("n", "bigint"))
