"""What a query reads, and what is not a query of a view."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.model import Dependency
from airflow_provider_rfr.builtins.queries import dependencies, object_reads, unqualified
from airflow_provider_rfr.builtins.sql import canonical_sql, columns_read, parse_query
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, UnreadableQueryError
from tests.unit.builtins.catalogs import sink, view
from tests.unit.builtins.declaring import PATIENT
from tests.unit.messages import raises

ALL = None


def reads(query: str) -> dict[str, tuple[str, ...] | None]:
    return {dependency.name: dependency.columns for dependency in dependencies(query, "ops")}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT a, b + 1 AS c FROM runs", {"ops.runs": ("a", "b")}),
        ("SELECT A FROM Ops.RUNS", {"ops.runs": ("a",)}),
        ("SELECT `A` FROM `Ops`.`Runs`", {"ops.runs": ("a",)}),
        ("SELECT `Straße` FROM runs", {"ops.runs": ("strasse",)}),
        ("SELECT r.a FROM raw.runs r", {"raw.runs": ("a",)}),
        ("SELECT ops.runs.a FROM ops.runs", {"ops.runs": ("a",)}),
        ("SELECT runs.a.b.c FROM ops.runs", {"ops.runs": ("a",)}),
        ("SELECT a.b.c.d.e.f FROM runs", {"ops.runs": ("a",)}),
        ("SELECT 1 AS one", {}),
        ("SELECT id FROM range(10)", {}),
        ("SELECT a FROM runs VERSION AS OF 3", {"ops.runs": ("a",)}),
        ("SELECT a FROM runs TIMESTAMP AS OF '2026-01-01'", {"ops.runs": ("a",)}),
        ("SELECT a FROM runs TABLESAMPLE (5 ROWS)", {"ops.runs": ("a",)}),
        ("SELECT count(*) AS n FROM runs", {"ops.runs": ()}),
        ("SELECT * FROM runs", {"ops.runs": ALL}),
        ("SELECT * EXCEPT (a) FROM runs", {"ops.runs": ALL}),
        ("SELECT struct(*) AS s FROM runs", {"ops.runs": ALL}),
        ("SELECT s.* FROM runs", {"ops.runs": ("s",)}),
        ("SELECT x.*, y.a FROM runs x, jobs y", {"ops.runs": ALL, "ops.jobs": ("a",)}),
        ("SELECT a FROM runs NATURAL JOIN jobs", {"ops.runs": ALL, "ops.jobs": ALL}),
        ("SELECT x.a FROM runs x JOIN jobs y USING (id)", {"ops.runs": ("a", "id"), "ops.jobs": ("id",)}),
        ("SELECT x.a FROM runs x LEFT SEMI JOIN jobs y ON x.b = y.c", {"ops.runs": ("a", "b"), "ops.jobs": ("c",)}),
        ("SELECT x.a FROM runs x LEFT ANTI JOIN jobs y USING (k)", {"ops.runs": ("a", "k"), "ops.jobs": ("k",)}),
        ("SELECT * FROM runs PIVOT (sum(a) FOR b IN (1, 2))", {"ops.runs": ALL}),
        ("SELECT a FROM runs GROUP BY ALL HAVING max(b) > 1 ORDER BY c", {"ops.runs": ("a", "b", "c")}),
        ("SELECT max(a) OVER w AS m FROM runs WINDOW w AS (PARTITION BY b ORDER BY c)", {"ops.runs": ("a", "b", "c")}),
        ("SELECT k, v FROM runs LATERAL VIEW explode(m) e AS k, v", {"ops.runs": ("m",)}),
        ("SELECT r.a, e.v FROM runs r LATERAL VIEW OUTER explode(r.m) e AS v", {"ops.runs": ("a", "m")}),
        ("SELECT transform(a, x -> x + b) AS t FROM runs", {"ops.runs": ("a", "b")}),
        ("FROM runs SELECT a WHERE b > 1", {"ops.runs": ("a", "b")}),
        ("FROM runs |> WHERE a > 1 |> SELECT b", {"ops.runs": ("a", "b")}),
        ("(SELECT a FROM runs) LIMIT 3", {"ops.runs": ("a",)}),
        ("((SELECT a FROM runs))", {"ops.runs": ("a",)}),
        ("SELECT lake.ops.runs.a FROM ops.runs", {"ops.runs": ("a",)}),
        ("SELECT /*+ BROADCAST(r), REPARTITION(r.b) */ r.a FROM runs AS r", {"ops.runs": ("a",)}),
        ("SELECT a FROM parquet.`/data/x`", {"parquet.`/data/x`": ("a",)}),
        ("SELECT a FROM `x.y`", {"ops.`x.y`": ("a",)}),
        ("SELECT a FROM runs UNION ALL SELECT b FROM jobs", {"ops.runs": ("a",), "ops.jobs": ("b",)}),
        (
            "SELECT a FROM runs EXCEPT (SELECT b FROM jobs INTERSECT SELECT c FROM raw.x)",
            {"ops.runs": ("a",), "ops.jobs": ("b",), "raw.x": ("c",)},
        ),
        ("((SELECT a FROM runs) UNION (SELECT b FROM jobs)) ORDER BY 1", {"ops.runs": ("a",), "ops.jobs": ("b",)}),
        (
            "WITH c AS (SELECT a, b FROM runs) SELECT p.x FROM c PIVOT (sum(a) FOR b IN ('x')) AS p",
            {"ops.runs": ("a", "b")},
        ),
    ],
)
def test_tables_and_the_columns_of_them_that_are_used_are_found(query: str, found: dict) -> None:
    assert reads(query) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("WITH runs AS (SELECT id FROM raw.x) SELECT id FROM runs", {"raw.x": ("id",)}),
        ("WITH Runs AS (SELECT id FROM raw.x) SELECT id FROM rUNS", {"raw.x": ("id",)}),
        ("WITH `Runs` AS (SELECT id FROM raw.x) SELECT id FROM runs", {"raw.x": ("id",)}),
        ("WITH runs AS (SELECT id FROM runs) SELECT id FROM runs", {"ops.runs": ("id",)}),
        (
            "WITH runs AS (SELECT id FROM raw.x) SELECT a.id, b.n FROM runs a JOIN ops.runs b ON b.id = a.id",
            {"raw.x": ("id",), "ops.runs": ("id", "n")},
        ),
        (
            "WITH a AS (SELECT x FROM t1), b AS (WITH a AS (SELECT y FROM t2) SELECT y FROM a) SELECT x, y FROM a, b",
            {"ops.t1": ("x",), "ops.t2": ("y",)},
        ),
        (
            "WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT r.a + u.b FROM r JOIN u ON u.k = 1) SELECT a FROM r",
            {"ops.t": ("a",), "ops.u": ("b", "k")},
        ),
        ("SELECT a FROM (WITH t AS (SELECT a FROM x) SELECT a FROM t) q JOIN t ON q.a = t.b", {"ops.x": ("a",)}),
        ("WITH t AS (SELECT 1 AS a) SELECT a FROM t UNION SELECT b FROM ops.t", {"ops.t": ("b",)}),
    ],
)
def test_a_name_given_by_with_hides_a_table_where_it_holds_and_nowhere_else(query: str, found: dict) -> None:
    assert {name: columns for name, columns in reads(query).items() if name in found} == found
    assert set(reads(query)) - set(found) <= {"ops.t"}


@pytest.mark.parametrize(
    ("query", "least"),
    [
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.x = t.y)", {"ops.t": {"a", "y"}, "ops.u": {"x"}}),
        ("SELECT a FROM t WHERE EXISTS (SELECT * FROM u WHERE u.x = y)", {"ops.t": {"a", "y"}, "ops.u": {"x", "y"}}),
        ("SELECT (SELECT max(x) FROM u WHERE u.k = t.k) AS m FROM t", {"ops.t": {"k"}, "ops.u": {"x", "k"}}),
        (
            "SELECT a FROM t WHERE b IN (SELECT c FROM u UNION SELECT d FROM v WHERE v.e = t.f)",
            {"ops.t": {"a", "b", "f"}, "ops.u": {"c"}, "ops.v": {"d", "e"}},
        ),
        ("SELECT l.b FROM t, LATERAL (SELECT b FROM u WHERE u.x = t.x) AS l", {"ops.t": {"x"}, "ops.u": {"b", "x"}}),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM (SELECT b FROM u WHERE u.x = t.y) d)",
            {"ops.t": {"a", "y"}, "ops.u": {"b", "x"}},
        ),
        (
            "SELECT a FROM t JOIN u ON t.k = u.k AND u.b IN (SELECT c FROM v WHERE v.d = t.e)",
            {"ops.t": {"a", "e", "k"}, "ops.u": {"b", "k"}, "ops.v": {"c", "d"}},
        ),
        ("SELECT a, b FROM t JOIN u ON t.k = u.k", {"ops.t": {"a", "b", "k"}, "ops.u": {"a", "b", "k"}}),
    ],
)
def test_what_a_subquery_takes_from_outside_counts_and_a_bare_name_counts_for_all(query: str, least: dict) -> None:
    found = reads(query)
    assert set(found) == set(least)
    assert not {name for name, columns in found.items() if columns is not None and not least[name] <= set(columns)}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT x FROM f(TABLE(jobs))", {"ops.jobs"}),
        ("SELECT x FROM f(TABLE(raw.jobs), TABLE(SELECT a FROM runs))", {"raw.jobs", "ops.runs"}),
        ("SELECT * FROM (runs x JOIN jobs y ON x.a = y.a) JOIN raw.z ON z.a = x.a", {"ops.runs", "ops.jobs", "raw.z"}),
        ("SELECT * FROM runs, raw.runs r, a.b.c.d", {"ops.runs", "raw.runs", "a.b.c.d"}),
        ("WITH runs AS (SELECT 1 AS a) SELECT * FROM runs, ops.runs", {"ops.runs"}),
        (
            "SELECT CASE WHEN (SELECT max(a) FROM jobs) > 1 THEN 1 END AS x FROM runs ORDER BY (SELECT 1 FROM raw.z)",
            {"ops.jobs", "ops.runs", "raw.z"},
        ),
    ],
)
def test_no_table_is_missed_wherever_it_stands(query: str, names: set[str]) -> None:
    assert set(reads(query)) == names


@PATIENT
@given(
    st.lists(
        st.sampled_from(["t", "raw.u", "(SELECT a FROM v)", "(SELECT a FROM w WHERE a IN (SELECT a FROM x))"]),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([", ", " CROSS JOIN "]),
)
def test_however_sources_are_combined_each_is_read(sources: list[str], comma: str) -> None:
    query = "SELECT s0.a FROM " + comma.join(f"{item} s{number}" for number, item in enumerate(sources))
    wanted = {"t": {"ops.t"}, "raw.u": {"raw.u"}, "(SELECT a FROM v)": {"ops.v"}}
    names = set().union(*(wanted.get(source, {"ops.w", "ops.x"}) for source in sources))
    assert {dependency.name for dependency in dependencies(query, "OPS")} == names


def test_the_metadata_of_a_known_table_is_read_from_that_table() -> None:
    query = "SELECT h.snapshot_id FROM ops.runs.history h JOIN lake.ops.runs.files f ON 1 = 1 JOIN ops.runs.branch_x b"
    known = {dependency.name: dependency.columns for dependency in dependencies(query, "", known={"ops.runs"})}
    assert known == {"ops.runs": None, "lake.ops.runs.files": ()}


def test_a_table_that_is_called_like_metadata_is_itself() -> None:
    assert dependencies("SELECT a FROM ops.archive.history", "", known={"ops.archive.history"}) == (
        Dependency("ops.archive.history", None, ("a",)),
    )


def test_what_is_not_known_is_read_by_its_whole_name() -> None:
    assert set(reads("SELECT snapshot_id FROM ops.runs.snapshots")) == {"ops.runs.snapshots"}
    assert set(reads("SELECT a FROM lake.ops.runs")) == {"lake.ops.runs"}


def test_a_query_that_can_t_be_parsed_reads_what_its_author_says() -> None:
    opaque = "SELECT a FROM t ??? b"
    assert object_reads(view("ops.v", opaque, depends_on=("ops.B", "ops.a"))) == (
        Dependency("ops.a"),
        Dependency("ops.b"),
    )
    with pytest.raises(UnreadableQueryError):
        object_reads(view("ops.v", opaque))


def test_what_its_author_says_comes_on_top_of_what_is_found() -> None:
    assert object_reads(view("ops.v", "SELECT a FROM t", depends_on=("ops.T", "raw.x"))) == (
        Dependency("ops.t", None, ("a",)),
        Dependency("raw.x"),
    )


def test_depends_on_excuses_nothing_but_what_can_t_be_parsed() -> None:
    with raises(QueryError):
        object_reads(view("ops.v", "DROP TABLE t", depends_on=("ops.t",)))


def test_a_sink_reads_its_source() -> None:
    assert object_reads(sink("ops.k", "ops.Runs", "B", "a")) == (Dependency("ops.runs", None, ("a", "b")),)


def test_names_without_a_namespace_are_told_apart_from_those_that_have_one() -> None:
    assert unqualified("WITH c AS (SELECT a FROM x) SELECT a FROM c, ops.y, `z.z`, f(1)") == ("`z.z`", "x")


# Refusals


STATEMENTS = (
    *("CREATE VIEW v AS SELECT 1", "create table t as select 1", "DROP TABLE t", "ALTER TABLE t ADD COLUMN a int"),
    *("TRUNCATE TABLE t", "INSERT INTO t SELECT 1", "UPDATE t SET a = 1", "DELETE FROM t", "VALUES (1, 2)", "TABLE t"),
    *("MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE", "CALL rfr.system.expire_snapshots('t')"),
    *("SHOW TABLES", "EXPLAIN SELECT 1", "SET x = 1", "USE ops", "CACHE TABLE t", "GRANT SELECT ON t TO u"),
    "EXECUTE IMMEDIATE 'DROP TABLE t'",
)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "it is empty"),
        (" \n -- nothing\n", "it is empty"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELECT 1; DROP TABLE t", "more than one statement"),
        ("SELECT 1; DROP TABLE t;", "more than one statement"),
        ("; SELECT 1", "more than one statement"),
        ("SELECT 1;", "ends in a semicolon"),
        ("SELECT 1 ; ; -- done", "ends in a semicolon"),
        ("/* SELECT */ DROP TABLE t", "begins with 'DROP'"),
        ("WITH x AS (SELECT 1 AS a) INSERT INTO t SELECT a FROM x", "it is not a SELECT"),
        ("WITH x AS (INSERT INTO t SELECT 1) SELECT a FROM x", "it has INSERT in it"),
        ("FROM t INSERT INTO u SELECT a", "it is not a SELECT"),
        ("SELECT a INTO u FROM t", "it has INTO in it"),
        ("SELECT", "names no columns"),
        ("SELECT ? AS a", "it has a parameter"),
        ("SELECT :a AS a", "it has a parameter"),
        ("SELECT ${a} AS a", "it has braces"),
        ("SELECT {{ a }} AS a", "it has braces"),
        ("SELECT a FROM identifier('ops.t')", "IDENTIFIER()"),
        ("SELECT a FROM STREAM(t)", "STREAM()"),
        ("SELECT a -- hidden \\\n FROM t", "ends in a backslash"),
        *((query, f"begins with '{query.split()[0].upper()}'") for query in STATEMENTS),
    ],
)
def test_what_is_not_one_complete_select_is_refused(query: str, said: str) -> None:
    with pytest.raises(QueryError) as refused:
        dependencies(query, "ops")
    assert said in str(refused.value)
    assert not isinstance(refused.value, UnreadableQueryError)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 'a", "has no end"),
        ("SELECT a /* b", "has no end"),
        ("SELECT a FROM `t", "has no end"),
        ("SELECT a FROM", "line 1"),
        ("SELECT a\nFROM t WHERE", "line 2"),
        ("SELECT a b c FROM t", "line 1, column 12"),
        ("WITH x AS (SELECT 1)", "line 1"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "nested too deeply"),
        ("SELECT a FROM t WHERE " + "NOT " * 20_000 + "b", "nested too deeply"),
    ],
)
def test_what_can_t_be_parsed_is_another_matter(query: str, said: str) -> None:
    with pytest.raises(UnreadableQueryError) as refused:
        dependencies(query, "ops")
    assert said in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert canonical_sql(query)


def test_a_long_query_is_none_that_is_nested_too_deeply() -> None:
    union = " UNION ALL ".join(f"SELECT a{number} AS a FROM t{number}" for number in range(200))
    assert len(dependencies(union, "ops")) == 200
    terms = "SELECT a FROM t WHERE b IN (" + ", ".join(map(str, range(5_000))) + ")"
    assert dependencies(terms, "ops")[0].columns == ("a", "b")


def test_refusing_says_nothing_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for query in ("SHOW TABLES", "CALL x.y()", "EXPLAIN SELECT 1"):
            with pytest.raises(QueryError):
                parse_query(query)
    assert not caplog.records


@pytest.mark.parametrize("text", ["a + 1", "CAST(a AS bigint)", "CASE WHEN a > 0 THEN b END -- why", "`a b`", "1"])
def test_an_expression_is_over_columns(text: str) -> None:
    columns_read(text)


@pytest.mark.parametrize(
    "text", ["", "a, b", "*", "a AS b", "a FROM t", "a) FROM (t", "(SELECT max(a) FROM t)", "a; DROP TABLE t", "a b c"]
)
def test_what_is_more_or_less_than_an_expression_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        columns_read(text)
