"""Names of tables in a query, replaced in the author's own text."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.spark._engine import RegisteredView, _resolved
from airflow_provider_rfr.builtins.sql.scopes import at_snapshots
from airflow_provider_rfr.exceptions import UnreadableQueryError

RUNS = {"ops.runs": 7}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 FROM runs", "SELECT 1 FROM runs VERSION AS OF 7"),
        ("select `runs`.id from `OPS`.`Runs` -- why", "select `runs`.id from `OPS`.`Runs` VERSION AS OF 7 -- why"),
        (
            "SELECT 1 FROM ops.runs AS r, runs r2",
            "SELECT 1 FROM ops.runs VERSION AS OF 7 AS r, runs VERSION AS OF 7 r2",
        ),
        ("SELECT 1 FROM ops.runs VERSION AS OF 3", "SELECT 1 FROM ops.runs VERSION AS OF 3"),
        ("WITH runs AS (SELECT 1 AS a) SELECT a FROM runs", "WITH runs AS (SELECT 1 AS a) SELECT a FROM runs"),
        ("SELECT 1 FROM ops.runs.history", "SELECT 1 FROM ops.runs.history"),
        (
            "SELECT (SELECT 1 FROM runs) FROM other UNION ALL SELECT 1 FROM ops.runs",
            "SELECT (SELECT 1 FROM runs VERSION AS OF 7) FROM other UNION ALL SELECT 1 FROM ops.runs VERSION AS OF 7",
        ),
    ],
)
def test_tables_are_read_at_a_snapshot_and_nothing_else_is_touched(query: str, expected: str) -> None:
    assert at_snapshots(query, "ops", RUNS) == expected


def test_a_query_that_can_not_be_parsed_is_not_guessed_at() -> None:
    with pytest.raises(UnreadableQueryError):
        at_snapshots("SELECT a FROM runs MATCH_RECOGNIZE nonsense (((", "ops", RUNS)


def test_a_registered_view_and_a_table_are_called_by_whole_names() -> None:
    known = {"ops.v": RegisteredView("ops.V", "SELECT 1")}
    query = "SELECT t.a, v.b FROM t JOIN ops.V ON true JOIN lake.ops.u JOIN other.w x"
    assert _resolved(query, "ops", "lake", known) == (
        "SELECT t.a, v.b FROM `lake`.`ops`.t JOIN `ops.V` AS `v` ON true JOIN lake.ops.u JOIN `lake`.other.w x"
    )
