"""Names of tables in a query, replaced in the author's own text."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.engine import reading, resolved
from airflow_provider_rfr.builtins.sql import NamedTable, replace_tables
from airflow_provider_rfr.exceptions import UnreadableQueryError


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
