"""Statements, names and errors of Spark SQL, as texts, and settings of a session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID

import pytest

from airflow_provider_rfr.builtins import spark_sql
from airflow_provider_rfr.builtins.model import Column, Kind, RecordedObject
from airflow_provider_rfr.builtins.spark_sql import _of_application
from airflow_provider_rfr.exceptions import ConfigurationError, SchemaError, SparkJobError
from airflow_provider_rfr.http.redaction import Redactor, secrets_in
from airflow_provider_rfr.lake import spark
from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings
from airflow_provider_rfr.lake.spark import spark_errors, spark_problem
from airflow_provider_rfr.lake.tables import LiveColumn
from airflow_provider_rfr.lake.types import ColumnType, parse_type
from airflow_provider_rfr.preflight import iceberg_runtime
from tests.unit.messages import raises


def test_whatever_is_in_a_name_or_a_text_it_stays_one() -> None:
    assert spark.table_name("ops.a`b", "rfr") == "`rfr`.`ops`.`a``b`"
    assert spark.string_literal("it's \\ 'x'") == "'it\\'s \\\\ \\'x\\''"
    assert spark.property_list({"b": "2", "a": "'"}) == "('a' = '\\'', 'b' = '2')"
    assert spark_sql.as_subquery("SELECT 1 ;\n") == "SELECT * FROM (\nSELECT 1 \n)"
    assert spark_sql.as_subquery("SELECT 1 -- one") == "SELECT * FROM (\nSELECT 1 -- one\n)"


@pytest.mark.parametrize(
    ("given", "declared", "refused"),
    [
        ("string", "int", True),
        ("string", "string", False),
        ("bigint", "int", False),
        ("void", "int", False),
        ("array<int>", "int", True),
        ("date", "array<date>", True),
        ("struct<a:int>", "struct<b:int>", False),
        ("decimal(10,2)", "decimal(12,2)", False),
    ],
)
def test_a_materialized_view_does_not_give_text_for_another_type(given: str, declared: str, refused: bool) -> None:
    outputs = [("N", ColumnType("void") if given == "void" else parse_type(given))]
    columns = [Column("n", declared), Column("more", "int")]
    if not refused:
        spark_sql._check_types("ops.m", outputs, columns)
        return
    with pytest.raises(SchemaError, match=re.escape(f"ops.m: the query gives {given} for n, which is {declared}")):
        spark_sql._check_types("ops.m", outputs, columns)


def test_a_view_gets_everything_in_one_statement() -> None:
    columns = (Column("id", "bigint", comment="first"), Column("b", "string"))
    assert spark_sql.view_body("SELECT 1", {"k": "v", "comment": "c"}, columns) == (
        "(`id` COMMENT 'first', `b`) COMMENT 'c' TBLPROPERTIES ('k' = 'v') AS SELECT 1"
    )
    assert spark_sql.view_body("SELECT 1", {}, ()) == "AS SELECT 1"


def test_a_text_with_comments_is_kept_whole_beside_what_spark_keeps_of_it() -> None:
    said = spark_sql.view_body("SELECT 1 -- one", {"k": "v"}, ())
    assert said == "TBLPROPERTIES ('k' = 'v', 'rfr.text' = 'SELECT 1 -- one') AS SELECT 1 -- one"


def test_a_view_keeps_names_of_columns_only_where_they_say_more_than_the_query() -> None:
    assert spark_sql.kept_columns([LiveColumn("id", "bigint")], ["id"]) == ()
    assert [kept_column.name for kept_column in spark_sql.kept_columns([LiveColumn("n", "bigint")], ["id"])] == ["n"]
    assert spark_sql.kept_columns([LiveColumn("id", "bigint", comment="c")], ["id"])[0].comment == "c"
    assert spark_sql.kept_columns([LiveColumn("n", "bigint")], ["id", "more"]) == ()
    assert spark_sql.kept_columns([], ["id"]) == ()


class Catalog:
    """Neither of a database nor of a REST server, as Hive's is."""

    def __init__(self, name: str) -> None:
        self.name = name


class Told:
    """A session that notes its statements."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def sql(self, statement: str) -> None:
        self.said.append(statement)


def test_properties_are_set_and_taken_away_and_the_comment_is_one_of_them() -> None:
    session = Told()
    made = spark_sql.SparkSqlEngine(LakeSettings("rfr", {}))
    made.__dict__["_session"] = session
    made.set_view_properties("ops.v", {"a": "1", "b": None, "comment": None})
    assert session.said == [
        "ALTER VIEW `rfr`.`ops`.`v` SET TBLPROPERTIES ('a' = '1')",
        "ALTER VIEW `rfr`.`ops`.`v` UNSET TBLPROPERTIES IF EXISTS ('b', 'comment')",
    ]


def test_a_view_is_refused_before_anything_is_done_where_the_catalog_holds_none() -> None:
    session, catalog = Told(), Catalog("rfr")
    made = spark_sql.SparkSqlEngine(LakeSettings("rfr", {}))
    made.__dict__["_session"] = session
    made.__dict__["_catalog"] = catalog
    with raises(ConfigurationError):
        made.analyse({}, [RecordedObject(UUID(int=1), "ops.v", Kind.VIEW, sql="SELECT 1 AS n")], {})
    assert session.said == []


JAVA = """An error occurred while calling o38.sql.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times (TID 7)
\tat org.apache.spark.sql.x
Caused by: java.sql.SQLException: [SQLITE_BUSY] The database file is locked
\t... 3 more
"""
PYTHON = """Job aborted due to stage failure: Task 0 in stage 1.0 failed: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: no such thing

\tat org.apache.spark.api
"""


class Py4JJavaError(Exception):
    """An error as py4j would raise it."""


Py4JJavaError.__module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (JAVA, "[SQLITE_BUSY] The database file is locked"),
        (PYTHON, "no such thing"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` is not there.\nIf you",
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` is not there.",
        ),
    ],
)
def test_what_spark_says_is_told_in_one_sentence_without_its_stack(message: str, expected: str) -> None:
    assert spark_problem(Py4JJavaError(message)) == expected


def test_only_sparks_errors_become_ours_and_secrets_are_taken_out() -> None:
    with raises(SparkJobError) as caught:
        with spark_errors("view ops.v", ["hunter22"]):
            raise Py4JJavaError("can't log in with hunter22 here")
    assert caught.value.__cause__ is None
    with pytest.raises(KeyError):
        with spark_errors("view ops.v"):
            raise KeyError("x")


def test_secrets_are_found_by_the_names_of_properties_and_in_addresses() -> None:
    found = secrets_in(
        {
            "uri": "postgresql://me:p%40ss@db/lake",
            "s3.secret-access-key": "abcdef",
            "warehouse": "s3://lake",
            "token": "x",
        }
    )
    assert found == ("abcdef", "p%40ss", "p@ss")
    assert Redactor(found).text("abcdef at s3://lake") == "*** at s3://lake"


# Settings of a session that this package starts

LAKE = LakeSettings("lake", {"type": "sql", "uri": "postgresql://me:hidden@db/lake", "warehouse": "file:///w"})


def settings(settings: Mapping[str, str] | None = None, jars: tuple[str, ...] = ()) -> dict[str, str]:
    return _of_application(settings or {}, jars, spark_sql_settings(LAKE, with_packages=not jars))


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_nothing_of_the_catalog_is_a_setting_of_the_application() -> None:
    found = settings()
    assert not [name for name in found if name.startswith("spark.sql.catalog.")]
    assert "hidden" not in str(found)


def test_packages_and_extensions_of_the_user_stay_beside_ours() -> None:
    found = settings(settings={"spark.jars.packages": "a:b:1", "spark.sql.extensions": "x.Y"})
    assert found["spark.jars.packages"].split(",")[:2] == ["a:b:1", iceberg_runtime()]
    assert found["spark.sql.extensions"].startswith("x.Y,org.apache.iceberg.")


def test_with_jars_nothing_is_fetched_from_maven() -> None:
    found = settings(jars=("/jars/iceberg.jar", "/jars/sqlite.jar"), settings={"spark.jars": "/jars/mine.jar"})
    assert found["spark.jars"] == "/jars/mine.jar,/jars/iceberg.jar,/jars/sqlite.jar"
    assert "spark.jars.packages" not in found


def test_spark_is_started_here_only_where_nobody_else_did(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings()["spark.master"] == "local[*,4]"
    assert settings(settings={"spark.master": "spark://h:7077"})["spark.master"] == "spark://h:7077"
    assert "spark.driver.host" not in settings(settings={"spark.master": "spark://h:7077"})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in settings()
