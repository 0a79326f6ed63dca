"""The rows of a query as data files that no commit names yet.

A rewrite of a table is computed once, also if others append to the table meanwhile and the commit is refused: the next
try computes the rows that came since. Otherwise a table could not be rewritten if that takes longer than the time
between two commits. The proof that its rows can be computed one by one is the query: one SELECT, which has neither
aggregates nor window functions. All of this is in memory: after a crash, a rewrite starts again."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from airflow_provider_rfr.builtins.spark._session import as_subquery, spark_errors, use_namespace
from airflow_provider_rfr.builtins.spark._tasks import RESULT, WriteRows
from airflow_provider_rfr.builtins.spec import namespace_of
from airflow_provider_rfr.builtins.sql.parse import parse_query
from airflow_provider_rfr.builtins.sql.scopes import replace_tables
from airflow_provider_rfr.exceptions import QueryError, SchemaError
from airflow_provider_rfr.lake.increments import only_appended

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, StoredFile


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A rewrite that is computed, and perhaps not committed.

    :ivar work: all that decides what is in the files, but the rows that are read
    """

    work: tuple[str, ...]
    snapshot: int
    files: tuple[StoredFile, ...]


class QueryRows:
    """Computes queries in a session.

    :param lake: name of the catalog in the session
    :param secrets: that no error may show
    """

    def __init__(self, session: SparkSession, lake: str, catalog: Catalog, secrets: tuple[str, ...]) -> None:
        self._session = session
        self._lake = lake
        self._catalog = catalog
        self._secrets = secrets
        self._last: _Rewritten | None = None

    def compute(self, query: str, table: str, target: FileTarget) -> tuple[StoredFile, ...]:
        """The query's rows in files.

        :raises SchemaError: its columns are not those of the table, or a value does not fit
        :raises SparkJobError: Spark can't run it
        """
        with spark_errors(table, self._secrets):
            use_namespace(self._session, self._lake, namespace_of(table))
            rows = self._session.sql(as_subquery(query))
        rows = _matched(rows, target.layout, table)
        with spark_errors(table, self._secrets):
            results = rows.mapInArrow(WriteRows(target), RESULT).collect()
        if errors := [each["error"] for each in results if each["error"] is not None]:
            raise SchemaError(f"{table}: {errors[0]}")
        return tuple(file for each in results for file in pickle.loads(each["files"]))

    def rewrite(self, query: str, table: str, target: FileTarget, snapshot: int) -> tuple[StoredFile, ...]:
        """The rows of the table's snapshot, as the query makes them, in files; raises as :meth:`compute`."""
        layout = target.layout
        work = (query, target.folder, target.family, layout.schema.model_dump_json(), layout.spec.model_dump_json())
        last = self._last if self._last is not None and self._last.work == work else None
        if last is not None and last.snapshot == snapshot:
            return last.files
        clause, done = self._clause(table, snapshot, last)
        text = None if clause is None else reading(query, table, clause)
        # Where it can't be read at the snapshot, it is read as it is. The commit is refused if that is something else.
        files = done + self.compute(text or query, table, target)
        self._last = None if text is None else _Rewritten(work, snapshot, files)
        return files

    def _clause(self, table: str, snapshot: int, last: _Rewritten | None) -> tuple[str | None, tuple[StoredFile, ...]]:
        """How Spark reads what is left to compute, and the files of what is not; None: there is no way."""
        source = self._catalog.load_table(table)
        if last is not None and only_appended(source, last.snapshot, snapshot):
            return f"WITH ('start-snapshot-id' = '{last.snapshot}', 'end-snapshot-id' = '{snapshot}')", last.files
        found = source.snapshot_by_id(snapshot)
        # Spark shows an earlier snapshot with the columns of then.
        same = found is not None and found.schema_id == source.metadata.current_schema_id
        return f"VERSION AS OF {snapshot}" if same else None, ()


def reading(query: str, table: str, clause: str) -> str | None:
    """The query with a clause behind the table's name; None if its rows can't be computed one by one."""
    try:
        tree = parse_query(query)
        if len(list(tree.find_all(exp.Query))) > 1 or tree.find(exp.Window, exp.AggFunc) is not None:
            return None
        key = table.casefold()
        return replace_tables(
            query, namespace_of(table), lambda each: f"{each.written} {clause}" if each.name == key else None
        )
    except QueryError:
        return None


def _matched(rows: DataFrame, layout: FileLayout, table: str) -> DataFrame:
    """The query's result with its columns called as the table's are.

    :raises SchemaError: the result's columns are not the table's
    """
    wanted = {name.casefold(): name for name in layout.arrow.names}
    found = [name.casefold() for name in rows.columns]
    problems = [f"gives {name}, which is not a column of it" for name in rows.columns if name.casefold() not in wanted]
    problems += [f"gives {name} twice" for name in sorted({name for name in found if found.count(name) > 1})]
    problems += [f"does not give {name}" for key, name in wanted.items() if key not in found]
    if problems:
        raise SchemaError(f"the query for {table} {', '.join(problems)}; its columns are {', '.join(wanted.values())}")
    return rows.toDF(*(wanted[name] for name in found))
