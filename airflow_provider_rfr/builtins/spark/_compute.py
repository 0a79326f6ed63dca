"""The rows of a query as data files that no commit names yet.

A query of which each row comes from one row of a table is computed data file by data file, in units; a unit that a
killed run finished is used again. The proof that a query can be divided is in Spark's plan: where there are only
projections, and no subquery, a row depends on one row alone. Any other query is computed as a whole."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.spark._session import (
    as_subquery,
    identifier,
    of_spark,
    spark_errors,
    table_name,
    use_namespace,
)
from airflow_provider_rfr.builtins.spark._tasks import RESULT, ReadUnits, Unit, WriteRows
from airflow_provider_rfr.builtins.spec import namespace_of
from airflow_provider_rfr.builtins.sql.scopes import NamedTable, at_snapshots, replace_tables
from airflow_provider_rfr.exceptions import DeployError, QueryError, SchemaError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.data_files import FinishedUnit, StoredFile, WorkFolder
from airflow_provider_rfr.lake.files import InputFile, InputReader, input_files

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget


@dataclass(frozen=True)
class Job:
    """What is to be computed.

    :ivar lake: name of the catalog
    :ivar table: whose rows they become
    :ivar secrets: that no error may show
    """

    session: SparkSession
    lake: str
    catalog: Catalog
    query: str
    table: str
    target: FileTarget
    secrets: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Of names that have none."""
        return namespace_of(self.table)

    @cached_property
    def _written(self) -> dict[str, str]:
        found: dict[str, str] = {self.table.casefold(): self.table}

        def note(each: NamedTable) -> None:
            name = each.written.replace("`", "")
            found.setdefault(each.name, name if len(each.parts) > 1 else f"{self.namespace}.{name}")

        with suppress(QueryError):
            replace_tables(self.query, self.namespace, note)
        return found

    def real_name(self, name: str) -> str:
        """A table's name as the query writes it, since catalogs are case-sensitive."""
        return self._written.get(name.casefold(), name)

    def work(self, *inputs: str) -> WorkFolder:
        """Where its files go. Its key is of all that decides what is in them.

        :param inputs: what the rows come from, as far as the query does not say it
        """
        layout = self.target.layout
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.query, layout.schema.model_dump_json(), layout.spec.model_dump_json(), *inputs):
            digest.update(part.encode())
            digest.update(b"\0")
        return WorkFolder(self.target, digest.hexdigest())

    def run(self, rows: DataFrame, work: WorkFolder, units: tuple[Unit, ...] = ()) -> tuple[StoredFile, ...]:
        """Write the rows; returns the files.

        :param units: of each of the partitions of ``rows``; each is noted when it is finished
        :raises SchemaError: a value does not fit its column
        :raises SparkJobError: Spark could not finish
        """
        with spark_errors(self.table, self.secrets):
            results = rows.mapInArrow(WriteRows(work, units), RESULT).collect()
        errors = [each["error"] for each in results if each["error"] is not None]
        if errors:
            raise SchemaError(f"{self.table}: {errors[0]}")
        return tuple(pickle.loads(each["file"]) for each in results)


def _matched(rows: DataFrame, layout: FileLayout, table: str, *, complete: bool) -> DataFrame:
    """The query's result with its columns called as the table's are.

    :param complete: every column of the table has to be there; else those that may be NULL can be left out
    :raises SchemaError: the result's columns are not the table's
    """
    wanted = {field.name.casefold(): field for field in layout.arrow}
    found = [name.casefold() for name in rows.columns]
    problems = [f"gives {name}, which is not a column of it" for name in rows.columns if name.casefold() not in wanted]
    problems += [f"gives {name} twice" for name in sorted({name for name in found if found.count(name) > 1})]
    missing = [field for name, field in wanted.items() if name not in found and (complete or not field.nullable)]
    problems += [f"does not give {field.name}" for field in missing]
    if problems:
        raise SchemaError(
            f"the query for {table} {', '.join(problems)}; its columns are {', '.join(layout.arrow.names)}"
        )
    return rows.toDF(*(wanted[name].name for name in found))


_MAX_BYTES = 128 * 1024 * 1024
_SHARES = 64


def _remaining(
    inputs: Sequence[InputFile], noted: Iterable[FinishedUnit]
) -> tuple[tuple[FinishedUnit, ...], tuple[Unit, ...]]:
    """Keep the finished units whose inputs are all still there, each input once; divide the rest again.

    :returns: what earlier runs have done, and what is left to do
    """
    left = {each.identity: each for each in inputs}
    kept = []
    for unit in noted:
        if unit.inputs and all(each in left for each in unit.inputs):
            kept.append(unit)
            for each in unit.inputs:
                del left[each]
    return tuple(kept), _cut(tuple(left.values()), sum(each.size for each in inputs))


def _cut(inputs: Sequence[InputFile], whole: int) -> tuple[Unit, ...]:
    """Units in the inputs' order: of one file, or of small ones that together are a small share of the whole.

    :param whole: bytes of all inputs, finished ones too
    """
    limit = min(_MAX_BYTES, whole // _SHARES)
    found: list[list[InputFile]] = []
    size = 0
    for each in inputs:
        if not found or size + each.size > limit:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.size
    return tuple(Unit(tuple(each)) for each in found)


_IN_PLACE = frozenset({"AdaptiveSparkPlan", "Project", "MapInArrow", "Range", "BatchEvalPython", "ArrowEvalPython"})
_OPERATOR = re.compile(r"^[\s:|+-]*(?:\*\(\d+\) )?(\w+)")


def _by_file(job: Job, table: str, snapshot: int) -> tuple[StoredFile, ...] | None:
    """The query's rows in files; None if it has to be computed as a whole.

    :param table: the one that is read row by row
    """
    source = job.catalog.load_table(table)
    found = input_files(source, snapshot)
    if found is None:
        return None
    reader, inputs = found
    work = job.work(table, source.metadata.schema().model_dump_json())
    finished, units = _remaining(inputs, work.finished())
    files = tuple(file for each in finished for file in each.files)
    if units:
        computed = _compute(job, table, reader, units, work)
        if computed is None:
            return None
        files += computed
    counts = [each.rows for each in inputs if each.rows is not None]
    rows = sum(each.rows for each in files)
    if len(counts) == len(inputs) and sum(counts) != rows:
        raise SchemaError(f"{job.table}: {sum(counts)} rows were read and {rows} were made of them; nothing is changed")
    return files


def _compute(
    job: Job, table: str, reader: InputReader, units: tuple[Unit, ...], work: WorkFolder
) -> tuple[StoredFile, ...] | None:
    from pyspark.sql.pandas.types import to_arrow_schema

    view = f"rfr_rows_{work.key}"
    query = _over(job.query, job.namespace, table, view)
    if query is None:
        return None
    session = job.session
    with spark_errors(table, job.secrets):
        columns = session.table(table_name(table, job.lake)).schema
    read = ReadUnits(reader, units, to_arrow_schema(columns))
    session.range(0, len(units), 1, len(units)).mapInArrow(read, columns).createOrReplaceTempView(view)
    try:
        rows = session.sql(as_subquery(query))
        if not _stays_in_place(rows):
            return None
    except Exception as error:
        if not of_spark(error):
            raise
        # Computed as a whole it fails as well, or it names the table in a way that can't be replaced.
        return None
    else:
        return job.run(_matched(rows, job.target.layout, job.table, complete=False), work, units)
    finally:
        session.catalog.dropTempView(view)


def _over(query: str, namespace: str, table: str, view: str) -> str | None:
    """The query over the view in the table's place; None unless it names the table exactly once."""
    found = []

    def other(each: NamedTable) -> str | None:
        if each.name != table.casefold():
            return None
        found.append(each)
        return view if each.aliased else f"{view} AS {identifier(each.parts[-1])}"

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


_TRIES = 3


def compute(job: Job, read: Mapping[str, int], row_wise: str | None) -> tuple[StoredFile, ...]:
    """Compute the job's rows; see :meth:`SqlEngine.compute`.

    :raises SchemaError: the query's columns or values don't fit the table
    :raises SparkJobError: Spark can't run the query
    :raises DeployError: a table that is read is written to all the time
    """
    with spark_errors(job.table, job.secrets):
        use_namespace(job.session, job.lake, job.namespace)
    files: tuple[StoredFile, ...] | None = None
    if row_wise is not None:
        files = _by_file(job, job.real_name(row_wise), read[row_wise])
    return _whole(job, read, complete=row_wise is None) if files is None else files


def _whole(job: Job, read: Mapping[str, int], *, complete: bool) -> tuple[StoredFile, ...]:
    """Spark shows a table of an earlier snapshot with the columns of then. So where columns have changed since, but no
    row, the table is read in its current state, and what was computed counts only if it is still the same afterwards.
    """
    for _ in range(_TRIES):
        pinned, loose = _pins(job, read)
        query = job.query
        with suppress(QueryError):
            query = at_snapshots(query, job.namespace, pinned)
        with spark_errors(job.table, job.secrets):
            rows = job.session.sql(as_subquery(query))
        files = job.run(_matched(rows, job.target.layout, job.table, complete=complete), job.work())
        now: dict[str, int | None] = {}
        for name in loose:
            current = load_table(job.catalog, job.real_name(name))
            now[name] = None if current is None else current.metadata.current_snapshot_id
        if now == loose:
            return files
        read = {**read, **{name: snapshot for name, snapshot in now.items() if snapshot is not None}}
    raise DeployError(
        f"{job.table}: {', '.join(sorted(loose))} is written to all the time; deploy again when it is not"
    )


def _pins(job: Job, read: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Snapshots that the query can name, and those that it can't."""
    pinned: dict[str, int] = {}
    loose: dict[str, int] = {}
    for name, snapshot_id in read.items():
        table = load_table(job.catalog, job.real_name(name))
        snapshot = None if table is None else table.snapshot_by_id(snapshot_id)
        same = table is not None and snapshot is not None and snapshot.schema_id == table.metadata.current_schema_id
        (pinned if same else loose)[name] = snapshot_id
    return pinned, loose
