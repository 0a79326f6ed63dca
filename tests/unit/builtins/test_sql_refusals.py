"""What is not a query of a view, and why."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_rfr.builtins.queries import dependencies
from airflow_provider_rfr.builtins.sql import canonical_sql, columns_read, parse_query
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, UnreadableQueryError


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
        ("CREATE VIEW v AS SELECT 1", "begins with 'CREATE'"),
        ("create table t as select 1", "begins with 'CREATE'"),
        ("DROP TABLE t", "begins with 'DROP'"),
        ("ALTER TABLE t ADD COLUMN a int", "begins with 'ALTER'"),
        ("TRUNCATE TABLE t", "begins with 'TRUNCATE'"),
        ("INSERT INTO t SELECT 1", "begins with 'INSERT'"),
        ("UPDATE t SET a = 1", "begins with 'UPDATE'"),
        ("DELETE FROM t", "begins with 'DELETE'"),
        ("MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE", "begins with 'MERGE'"),
        ("CALL rfr.system.expire_snapshots('t')", "begins with 'CALL'"),
        ("SHOW TABLES", "begins with 'SHOW'"),
        ("EXPLAIN SELECT 1", "begins with 'EXPLAIN'"),
        ("SET x = 1", "begins with 'SET'"),
        ("USE ops", "begins with 'USE'"),
        ("CACHE TABLE t", "begins with 'CACHE'"),
        ("GRANT SELECT ON t TO u", "begins with 'GRANT'"),
        ("EXECUTE IMMEDIATE 'DROP TABLE t'", "begins with 'EXECUTE'"),
        ("/* SELECT */ DROP TABLE t", "begins with 'DROP'"),
        ("WITH x AS (SELECT 1 AS a) INSERT INTO t SELECT a FROM x", "it is not a SELECT"),
        ("WITH x AS (INSERT INTO t SELECT 1) SELECT a FROM x", "it has INSERT in it"),
        ("FROM t INSERT INTO u SELECT a", "it is not a SELECT"),
        ("SELECT a INTO u FROM t", "it has INTO in it"),
        ("VALUES (1, 2)", "begins with 'VALUES'"),
        ("TABLE t", "begins with 'TABLE'"),
        ("SELECT", "names no columns"),
        ("SELECT ? AS a", "it has a parameter"),
        ("SELECT :a AS a", "it has a parameter"),
        ("SELECT ${a} AS a", "it has braces"),
        ("SELECT {{ a }} AS a", "it has braces"),
        ("SELECT a FROM identifier('ops.t')", "IDENTIFIER()"),
        ("SELECT a FROM STREAM(t)", "STREAM()"),
        ("SELECT a -- hidden \\\n FROM t", "ends in a backslash"),
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
