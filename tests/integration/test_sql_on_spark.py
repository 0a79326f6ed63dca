"""What is said of a query without Spark, compared with what Spark says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.builtins.sql.types import output_types
from airflow_provider_rfr.exceptions import QueryError
from airflow_provider_rfr.lake.migrated_table import MigratedTable
from airflow_provider_rfr.lake.schema_changes import table_definition
from airflow_provider_rfr.lake.types import parse_type
from tests.integration.builtin_sql_deploy import Deploy
from tests.integration.test_builtin_sql import deploy
from tests.unit.builtins.spark_queries import QUERIES, TABLES
from tests.unit.builtins.test_sql_problems import MISSING
from tests.unit.builtins.test_sql_types import SURE

__all__ = ["deploy"]
LEAST = 150
"""Columns whose types are compared. Spark refuses some queries, for functions and tables that it does not know."""


@pytest.fixture
def tables(deploy: Deploy, tmp_path: Path) -> Iterator[Deploy]:
    for name, columns in TABLES.items():
        MigratedTable.create(deploy.catalog, name, table_definition([Column(*each) for each in columns]))
    deploy.sql("USE rfr.ops")
    yield deploy
    deploy.sql("USE rfr")


def on_spark(deploy: Deploy, query: str) -> list[tuple[str, str]] | None:
    """Names and types of the columns; None: Spark refuses the query."""
    from pyspark.errors import AnalysisException

    try:
        fields = deploy.session.sql(query).schema.fields
    except AnalysisException:
        return None
    return [(each.name, each.dataType.simpleString()) for each in fields]


def test_a_type_that_is_said_is_the_one_that_spark_gives(tables: Deploy) -> None:
    compared, wrong = 0, []
    for query in (*QUERIES, *(f"SELECT {expression} AS x FROM ops.t" for expression, _ in SURE)):
        try:
            said = output_types(query, TABLES.get, "ops")
        except QueryError:
            continue
        found = on_spark(tables, query)
        if found is None:
            continue
        assert [name.casefold() for name, _ in said] == [name.casefold() for name, _ in found], query
        for (name, kind), (_, there) in zip(said, found, strict=True):
            compared += kind is not None
            if kind is not None and kind != str(parse_type(there)):
                wrong.append((query, name, kind, there))
    assert not wrong
    assert compared > LEAST


def test_spark_refuses_what_is_told_to_be_missing(tables: Deploy) -> None:
    assert [query for query, _ in MISSING if on_spark(tables, query) is not None] == []
