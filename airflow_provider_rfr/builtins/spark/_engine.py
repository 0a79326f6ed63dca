"""The SQL engine of a deploy on Spark: views, the analysis of queries, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.execution.engine import AnalysedQuery, Outputs
from airflow_provider_rfr.builtins.spark._compute import QueryRows
from airflow_provider_rfr.builtins.spark._session import (
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
from airflow_provider_rfr.builtins.sql.scopes import NamedTable, replace_tables
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, SchemaError, SparkJobError
from airflow_provider_rfr.http.redaction import secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.inventory import COMMENT, TEXT, LiveColumn, find_view, holds_views, view_names

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile


_MARKS = ("--", "/*", ";")


class SparkSqlEngine:
    """A :class:`SqlEngine`; Spark is started when the first statement needs it. Not for several threads at once.

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

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._lake)

    @cached_property
    def _session(self) -> SparkSession:
        from pyspark import SparkContext

        self._started = self._given is None and SparkContext._active_spark_context is None
        return self._given or open_session(self._lake, self._spark)

    @cached_property
    def _rows(self) -> QueryRows:
        return QueryRows(self._session, self._lake.name, self._catalog, self._secrets)

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        session = self.__dict__.pop("_session", None)
        if session is not None and self._started:
            session.stop()

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
        """Make the view.

        :raises SchemaError: the query gives the declared columns in another order
        :raises SparkJobError: the query can't be run, or the name is taken
        """
        there = find_view(self._catalog, name) if replace else None
        catalog, namespace = self._lake.name, namespace_of(name)
        before: Sequence[LiveColumn] = ()
        if there is not None and (MARKER not in there.properties or there.query.split() == sql.split()):
            # The same view once more. It may be a user's, made where another namespace was the current one.
            catalog, namespace, before = there.catalog or catalog, there.namespace or namespace, there.columns
        with spark_errors(f"view {name}", self._secrets):
            use_namespace(self._session, catalog, namespace)
            found = self._session.sql(as_subquery(sql)).columns
            if columns:
                _check_order(name, columns, found)
            else:
                columns = kept_columns(before, found)
            verb = "CREATE OR REPLACE VIEW" if replace else "CREATE VIEW"
            head = f"{verb} {table_name(name, self._lake.name)}"
            self._session.sql(f"{head} {view_body(sql, properties=properties, comment=comment, columns=columns)}")

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]
    ) -> Sequence[Outputs | None]:
        """See :meth:`SqlEngine.analyse`.

        :raises ConfigurationError: there are views, and the catalog can't hold any
        :raises SchemaError: a query does not give the columns that are declared
        :raises SparkJobError: a query can't be run
        """
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
            with spark_errors(query.name, self._secrets):
                text = resolved(query.sql, namespace_of(query.name), self._lake.name, known)
                found = self._session.sql(as_subquery(text)).schema
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
        with spark_errors(name, self._secrets):
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {identifier(view)} AS {text}")
        known[name.casefold()] = view

    def drop_view(self, name: str) -> None:
        self._run(name, f"DROP VIEW IF EXISTS {table_name(name, self._lake.name)}")

    def rename_view(self, old: str, new: str) -> None:
        """Give it another name.

        :raises SparkJobError: there is neither one of the old name nor one of the new
        """
        names, catalog = view_names(self._catalog), self._lake.name
        if old.casefold() not in names and new.casefold() in names:
            return
        with spark_errors(f"view {old}", self._secrets):
            use_namespace(self._session, catalog, namespace_of(new))
        self._run(old, f"ALTER VIEW {table_name(old, catalog)} RENAME TO {table_name(new, catalog)}")

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        values = {**properties, COMMENT: comment}
        given = {key: value for key, value in values.items() if value is not None}
        gone = sorted(key for key, value in values.items() if value is None)
        view = f"ALTER VIEW {table_name(name, self._lake.name)}"
        if given:
            self._run(name, f"{view} SET TBLPROPERTIES {property_list(given)}")
        if gone:
            self._run(name, f"{view} UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(string_literal, gone))})")

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target's layout; commit nothing.

        :raises SchemaError: the query's columns or values don't fit the table
        :raises SparkJobError: Spark can't run the query
        """
        if snapshot is None:
            return self._rows.compute(query, table, target)
        return self._rows.rewrite(query, table, target, snapshot)

    def _run(self, name: str, statement: str) -> None:
        with spark_errors(f"view {name}", self._secrets):
            self._session.sql(statement)


def view_body(sql: str, *, properties: Mapping[str, str], comment: str | None, columns: Sequence[Column]) -> str:
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
    whole = {TEXT: sql} if any(mark in sql for mark in _MARKS) else {}
    if said := {**properties, **whole}:
        parts.append(f"TBLPROPERTIES {property_list(said)}")
    return " ".join([*parts, f"AS {sql}"])


def kept_columns(before: Sequence[LiveColumn], found: Sequence[str]) -> tuple[Column, ...]:
    """The names and comments that a view's columns had; none if they say no more than the query does itself."""
    said = any(each.comment for each in before) or [each.name for each in before] != list(found)
    if not said or len(before) != len(found):
        return ()
    return tuple(Column(each.name, each.type, comment=each.comment) for each in before)


def _check_order(name: str, columns: Sequence[Column], found: Sequence[str]) -> None:
    """Columns are named by position: the same names in another order would label others' values.

    :raises SchemaError: the order is another one
    """
    wanted = [each.name for each in columns]
    folded, declared = [each.casefold() for each in found], [each.casefold() for each in wanted]
    if folded != declared and sorted(folded) == sorted(declared):
        problem = f"the query gives {', '.join(found)}; declared are {', '.join(wanted)}"
        raise SchemaError(f"view {name}: {problem}; write them in one order")


def resolved(query: str, namespace: str, catalog: str, known: Mapping[str, str]) -> str:
    """The query with whole names, so that neither the session's catalog nor its namespace matters.

    :param known: temporary views that stand for tables and views, by the names of these as they are compared
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
