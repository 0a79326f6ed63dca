"""What is said of a query without Spark, compared with what Spark says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.model import Column
from airflow_provider_rfr.builtins.queries import output_columns
from airflow_provider_rfr.exceptions import QueryError
from airflow_provider_rfr.lake.migrated_table import MigratedTable, table_definition
from tests.integration.builtin_sql_deploy import Deploy
from tests.integration.conftest import needs_sql_on_spark
from tests.integration.test_builtin_sql import deploy
from tests.unit.builtins.spark_queries import COLUMNS, QUERIES, TABLES
from tests.unit.builtins.test_sql_problems import MISSING

pytestmark = needs_sql_on_spark

__all__ = ["deploy"]
LEAST = 100
"""Queries whose columns are compared. Spark refuses some, for functions and tables that it does not know."""


@pytest.fixture
def tables(deploy: Deploy, tmp_path: Path) -> Iterator[Deploy]:
    for name, columns in TABLES.items():
        MigratedTable.create(deploy.catalog, name, table_definition([Column(*column) for column in columns]))
    deploy.sql("USE rfr.ops")
    yield deploy
    deploy.sql("USE rfr")


def on_spark(deploy: Deploy, query: str) -> list[str] | None:
    """Names of the columns; None: Spark refuses the query."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError

    try:
        return [field.name for field in deploy.session.sql(query).schema.fields]
    except (AnalysisException, IllegalArgumentException, Py4JJavaError):  # the latter two: no such snapshot or branch
        return None
    except PySparkValueError:  # Spark 3.5 has no Python type for an interval
        return None


@pytest.mark.gate
def test_the_columns_that_are_said_are_those_that_spark_gives(tables: Deploy) -> None:
    compared = 0
    for query in QUERIES:
        with suppress(QueryError):
            ours, sparks = output_columns(query, COLUMNS.get, "ops"), on_spark(tables, query)
            if sparks is not None:
                assert [name.casefold() for name in ours] == [name.casefold() for name in sparks], query
                compared += 1
    assert compared > LEAST


def test_spark_refuses_what_is_told_to_be_missing(tables: Deploy) -> None:
    assert [query for query, _ in MISSING if on_spark(tables, query) is not None] == []
