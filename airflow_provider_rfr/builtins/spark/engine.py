"""The SQL engine of a deploy on Spark: views, the analysis of queries, and their rows as data files of no commit yet.

A rewrite of a table is computed once, also if others append to the table meanwhile and the commit is refused: the next
try computes the rows that came since. Otherwise a table could not be rewritten if that takes longer than the time
between two commits. The proof that its rows can be computed one by one is the query: one SELECT, which has neither
aggregates nor window functions. All of this is in memory: after a crash, a rewrite starts again."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from sqlglot import exp

from airflow_provider_rfr.builtins.execution.engine import AnalysedQuery, Outputs, SqlEngine
from airflow_provider_rfr.builtins.spark._tasks import RESULT, WriteRows
from airflow_provider_rfr.builtins.spark.session import (
    SparkSettings,
    as_subquery,
    identifier,
    open_session,
    property_list,
    spark_errors,
    string_literal,
    table_name,
    use_namespace,
)
from airflow_provider_rfr.builtins.spec import Column, namespace_of
from airflow_provider_rfr.builtins.sql.parse import NamedTable, parse_query, replace_tables
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, SchemaError, SparkJobError
from airflow_provider_rfr.http.redaction import secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.increments import only_appended
from airflow_provider_rfr.lake.inventory import COMMENT, TEXT, LiveColumn, find_view, holds_views, view_names
from airflow_provider_rfr.lake.schema_changes import ColumnLike

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, StoredFile


class _Rewritten(NamedTuple):
    """A rewrite that is computed, and perhaps not committed.

    :ivar work: all that decides what is in the files, but the rows that are read
    """

    work: tuple[str, ...]
    snapshot: int
    files: tuple[StoredFile, ...]


class SparkSqlEngine(SqlEngine):
    """The engine on Spark, which is started when the first statement needs it. Not for several threads at once.

    :param session: one of :func:`open_session`; None: it is opened when it is needed
    """

    def __init__(
        self, lake: LakeSettings, spark: SparkSettings | None = None, *, session: SparkSession | None = None
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._given = session
        self._secrets = secrets_in(lake.properties)
        self._started = False
        self._last: _Rewritten | None = None

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._lake)

    @cached_property
    def _session(self) -> SparkSession:
        from pyspark import SparkContext

        self._started = self._given is None and SparkContext._active_spark_context is None
        return self._given or open_session(self._lake, self._spark)

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        session = self.__dict__.pop("_session", None)
        if session is not None and self._started:
            session.stop()

    def _sql(self, what: str, statement: str, namespace: str | None = None, catalog: str | None = None) -> DataFrame:
        """Run a statement, in a namespace if one is given.

        :raises SparkJobError: Spark can't
        """
        with spark_errors(what, self._secrets):
            if namespace is not None:
                use_namespace(self._session, catalog or self._lake.name, namespace)
            return self._session.sql(statement)

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        properties: Mapping[str, str],
        comment: str | None,
        columns: Sequence[Column],
        replace: bool,
    ) -> None:
        there = find_view(self._catalog, name) if replace else None
        catalog, namespace = self._lake.name, namespace_of(name)
        before: Sequence[LiveColumn] = ()
        named: Sequence[ColumnLike] = columns
        if there is not None and (MARKER not in there.properties or there.query.split() == sql.split()):
            # The same view once more. It may be a user's, made where another namespace was the current one.
            catalog, namespace, before = there.catalog or catalog, there.namespace or namespace, there.columns
        found = self._sql(f"view {name}", as_subquery(sql), namespace, catalog).columns
        if columns:
            _check_order(name, columns, found)
        else:
            named = kept_columns(before, found)
        head = f"CREATE {'OR REPLACE ' if replace else ''}VIEW {table_name(name, self._lake.name)}"
        body = view_body(sql, properties=properties, comment=comment, columns=named)
        self._sql(f"view {name}", f"{head} {body}")

    def drop_view(self, name: str) -> None:
        self._sql(f"view {name}", f"DROP VIEW IF EXISTS {table_name(name, self._lake.name)}")

    def rename_view(self, old: str, new: str) -> None:
        names, catalog = view_names(self._catalog), self._lake.name
        if old.casefold() in names or new.casefold() not in names:
            statement = f"ALTER VIEW {table_name(old, catalog)} RENAME TO {table_name(new, catalog)}"
            self._sql(f"view {old}", statement, namespace_of(new))

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        values = {**properties, COMMENT: comment}
        given = {key: value for key, value in values.items() if value is not None}
        gone = sorted(key for key, value in values.items() if value is None)
        view = f"ALTER VIEW {table_name(name, self._lake.name)}"
        if given:
            self._sql(f"view {name}", f"{view} SET TBLPROPERTIES {property_list(given)}")
        if gone:
            names = ", ".join(map(string_literal, gone))
            self._sql(f"view {name}", f"{view} UNSET TBLPROPERTIES IF EXISTS ({names})")

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]
    ) -> Sequence[Outputs | None]:
        if not holds_views(self._catalog) and (views := [each.name for each in queries if each.is_view]):
            problem = f"{views[0]} is a view, and the catalog {self._lake.name} can't hold views"
            raise ConfigurationError("lake", problem, "declare it as a materialized_view, or use a catalog with views")
        known: dict[str, str] = {}
        try:
            for name, columns in tables.items():
                nulls = ", ".join(f"CAST(NULL AS {each.type}) AS {identifier(each.name)}" for each in columns)
                self._make_known(known, name, f"SELECT {nulls} WHERE false")
            return [self._outputs(known, each) for each in queries]
        finally:
            for name in known.values():
                self._session.catalog.dropTempView(name)

    def _outputs(self, known: dict[str, str], query: AnalysedQuery) -> Outputs | None:
        try:
            text = resolved(query.sql, namespace_of(query.name), self._lake.name, known)
            found = self._sql(query.name, as_subquery(text)).schema
        except QueryError:
            # sqlglot can't say which tables it reads; Spark meets it in its own step.
            return None
        except SparkJobError:
            if query.optional:
                return None
            raise
        names = [each.name.casefold() for each in found]
        declared = [each.casefold() for each in query.columns]
        if declared and sorted(names) != sorted(declared):
            problem = f"its query gives {', '.join(names)}; declared are {', '.join(query.columns)}"
            raise SchemaError(f"{query.name}: {problem}")
        if query.is_view:
            self._make_known(known, query.name, text)
        return tuple((each.name, each.dataType.simpleString()) for each in found)

    def _make_known(self, known: dict[str, str], name: str, text: str) -> None:
        """Register what is analysed for this session, under another name than that of anything real."""
        view = f"rfr_analysed.{name}"
        self._sql(name, f"CREATE OR REPLACE TEMPORARY VIEW {identifier(view)} AS {text}")
        known[name.casefold()] = view

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        if snapshot is None:
            return self._compute(query, table, target)
        layout, last = target.layout, self._last
        work = (query, target.folder, target.family, layout.schema.model_dump_json(), layout.spec.model_dump_json())
        if last is not None and last.work != work:
            last = None
        if last is not None and last.snapshot == snapshot:
            return last.files
        clause, done = self._clause(table, snapshot, last)
        text = None if clause is None else reading(query, table, clause)
        # Where it can't be read at the snapshot, it is read as it is. The commit is refused if that is something else.
        files = done + self._compute(text or query, table, target)
        self._last = None if text is None else _Rewritten(work, snapshot, files)
        return files

    def _compute(self, query: str, table: str, target: FileTarget) -> tuple[StoredFile, ...]:
        rows = self._sql(table, as_subquery(query), namespace_of(table))
        rows = _matched(rows, target.layout, table)
        with spark_errors(table, self._secrets):
            results = rows.mapInArrow(WriteRows(target), RESULT).collect()
        if errors := [each["error"] for each in results if each["error"] is not None]:
            raise SchemaError(f"{table}: {errors[0]}")
        return tuple(file for each in results for file in pickle.loads(each["files"]))

    def _clause(self, table: str, snapshot: int, last: _Rewritten | None) -> tuple[str | None, tuple[StoredFile, ...]]:
        """How Spark reads what is left to compute, and the files of what is not; None: there is no way."""
        source = self._catalog.load_table(table)
        if last is not None and only_appended(source, last.snapshot, snapshot):
            return f"WITH ('start-snapshot-id' = '{last.snapshot}', 'end-snapshot-id' = '{snapshot}')", last.files
        found = source.snapshot_by_id(snapshot)
        # Spark shows an earlier snapshot with the columns of then.
        same = found is not None and found.schema_id == source.metadata.current_schema_id
        return f"VERSION AS OF {snapshot}" if same else None, ()


def view_body(sql: str, *, properties: Mapping[str, str], comment: str | None, columns: Sequence[ColumnLike]) -> str:
    """What stands behind a view's name: all at once, since a crash must not leave a view without its marker."""
    parts = []
    if columns:
        named = [
            identifier(each.name) + ("" if each.comment is None else f" COMMENT {string_literal(each.comment)}")
            for each in columns
        ]
        parts.append(f"({', '.join(named)})")
    if comment is not None:
        parts.append(f"COMMENT {string_literal(comment)}")
    # Spark keeps the text from its first word to its last one.
    whole = {TEXT: sql} if any(mark in sql for mark in ("--", "/*", ";")) else {}
    if said := {**properties, **whole}:
        parts.append(f"TBLPROPERTIES {property_list(said)}")
    return " ".join([*parts, f"AS {sql}"])


def kept_columns(before: Sequence[LiveColumn], found: Sequence[str]) -> Sequence[LiveColumn]:
    """A view's columns, for their names and comments; none if they say no more than the query does itself."""
    said = any(each.comment for each in before) or [each.name for each in before] != list(found)
    return before if said and len(before) == len(found) else ()


def _check_order(name: str, columns: Sequence[Column], found: Sequence[str]) -> None:
    """Columns are named by position: the same names in another order would label others' values."""
    wanted = [each.name for each in columns]
    folded, declared = [each.casefold() for each in found], [each.casefold() for each in wanted]
    if folded != declared and sorted(folded) == sorted(declared):
        problem = f"the query gives {', '.join(found)}; declared are {', '.join(wanted)}"
        raise SchemaError(f"view {name}: {problem}; write them in one order")


def resolved(query: str, namespace: str, catalog: str, known: Mapping[str, str]) -> str:
    """The query with whole names, so that neither the session's catalog nor its namespace matters.

    :param known: temporary views in the place of tables and views, by the names of these as they are compared
    :raises QueryError: it can't be parsed
    """

    def whole(table: NamedTable) -> str:
        view = known.get(table.name.removeprefix(f"{catalog.casefold()}."))
        if view is not None:
            # A temporary view can't have a namespace, so its whole name is one quoted identifier.
            name = identifier(view)
            return name if table.aliased else f"{name} AS {identifier(table.parts[-1])}"
        if len(table.parts) == 1:
            return f"{table_name(namespace, catalog)}.{table.written}"
        named = len(table.parts) > 2 and table.parts[0] == catalog.casefold()
        return table.written if named else f"{identifier(catalog)}.{table.written}"

    return replace_tables(query, namespace, whole)


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
    """The query's result with its columns called as the table's are; refused if they are not the table's."""
    wanted = {name.casefold(): name for name in layout.arrow.names}
    found = [name.casefold() for name in rows.columns]
    problems = [f"gives {name}, which is not a column of it" for name in rows.columns if name.casefold() not in wanted]
    problems += [f"gives {name} twice" for name in sorted({name for name in found if found.count(name) > 1})]
    problems += [f"does not give {name}" for key, name in wanted.items() if key not in found]
    if problems:
        raise SchemaError(f"the query for {table} {', '.join(problems)}; its columns are {', '.join(wanted.values())}")
    return rows.toDF(*(wanted[name] for name in found))
