"""Queries of which each row comes from one row of a table, computed data file by data file.

What a killed run has finished is taken as it is, so it is noted with each unit. The proof that a query can be cut is in
Spark's plan: where there are only projections, and no other query is asked, a row depends on one row alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.spark import literals
from airflow_provider_rfr.builtins.spark.errors import of_spark, told
from airflow_provider_rfr.builtins.spark.job import Job, matched
from airflow_provider_rfr.builtins.spark.tasks import ReadUnits, Unit
from airflow_provider_rfr.builtins.spark.units import remaining
from airflow_provider_rfr.builtins.sql.names import NamedTable, replace_tables
from airflow_provider_rfr.exceptions import QueryError, SchemaError
from airflow_provider_rfr.lake.input_files import InputFile, InputReader, input_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_rfr.lake.data_files import StoredFile
    from airflow_provider_rfr.lake.work_files import WorkFolder

_IN_PLACE = frozenset({"AdaptiveSparkPlan", "Project", "MapInArrow", "Range", "BatchEvalPython", "ArrowEvalPython"})
_OPERATOR = re.compile(r"^[\s:|+-]*(?:\*\(\d+\) )?(\w+)")


def by_file(job: Job, table: str, snapshot: int) -> tuple[StoredFile, ...] | None:
    """The query's rows in files; None if it has to be computed as a whole.

    :param table: the one that is read row by row
    """
    source = job.catalog.load_table(table)
    found = input_files(source, snapshot)
    if found is None:
        return None
    reader, inputs = found
    work = job.work(table, source.metadata.schema().model_dump_json())
    left = remaining(inputs, work.finished())
    files = tuple(file for each in left.finished for file in each.files)
    if left.units:
        computed = _compute(job, table, reader, left.units, work)
        if computed is None:
            return None
        files += computed
    _check(job.table, inputs, files)
    return files


def _check(table: str, inputs: tuple[InputFile, ...], files: tuple[StoredFile, ...]) -> None:
    counts = [each.rows for each in inputs if each.rows is not None]
    rows = sum(each.rows for each in files)
    if len(counts) == len(inputs) and sum(counts) != rows:
        raise SchemaError(f"{table}: {sum(counts)} rows were read and {rows} were made of them; nothing is changed")


def _compute(
    job: Job, table: str, reader: InputReader, units: tuple[Unit, ...], work: WorkFolder
) -> tuple[StoredFile, ...] | None:
    from pyspark.sql.pandas.types import to_arrow_schema

    view = f"rfr_rows_{work.key}"
    query = _over(job.query, job.namespace, table, view)
    if query is None:
        return None
    session = job.session
    with told(table, job.secrets):
        columns = session.table(literals.table_name(table, job.lake)).schema
    read = ReadUnits(reader, units, to_arrow_schema(columns))
    session.range(0, len(units), 1, len(units)).mapInArrow(read, columns).createOrReplaceTempView(view)
    try:
        rows = session.sql(literals.query(query))
        if not _stays_in_place(rows):
            return None
    except Exception as error:
        if not of_spark(error):
            raise
        # Computed as a whole it fails as well, or it names the table in a way that no other name can stand for.
        return None
    else:
        return job.run(matched(rows, job.target.layout, job.table, complete=False), work, units)
    finally:
        session.catalog.dropTempView(view)


def _over(query: str, namespace: str, table: str, view: str) -> str | None:
    """The query over the view in the table's place; None unless the table stands there exactly once."""
    found = []

    def other(each: NamedTable) -> str | None:
        if each.name != table.casefold():
            return None
        found.append(each)
        return view if each.aliased else f"{view} AS {literals.identifier(each.parts[-1])}"

    try:
        text = replace_tables(query, namespace, other)
    except QueryError:
        return None
    return text if len(found) == 1 and not found[0].fixed else None


def _stays_in_place(rows: DataFrame) -> bool:
    """Whether the plan is of nothing but projections. What looks like something else may be the text of a literal."""
    plan = rows._jdf.queryExecution().executedPlan().toString()
    found = [_OPERATOR.match(line) for line in plan.splitlines() if line.strip()]
    return bool(found) and all(each is not None and each.group(1) in _IN_PLACE for each in found)
