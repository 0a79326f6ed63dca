"""The SQL engine of a deploy on Spark, and views for catalogs that can't hold any.

Such views are registered in a session and vanish with it. In a notebook::

    from airflow_provider_rfr.builtins.spark import RegisteredView, register_views

    register_views(spark, "lake", [RegisteredView("ops.failing", "SELECT * FROM ops.runs WHERE state = 'failed'")])
    spark.sql("SELECT * FROM `ops.failing`")

A temporary view can't have a namespace, so the whole name is one quoted identifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.desired import CycleError, Graph
from airflow_provider_rfr.builtins.execution.engine import AnalysedQuery, Outputs
from airflow_provider_rfr.builtins.spark._compute import Job, compute
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
from airflow_provider_rfr.builtins.spec import Column, Named, namespace_of
from airflow_provider_rfr.builtins.sql.facts import dependencies
from airflow_provider_rfr.builtins.sql.scopes import NamedTable, replace_tables
from airflow_provider_rfr.builtins.state import MARKER
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, SchemaError, SparkJobError
from airflow_provider_rfr.http.redaction import secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.inventory import COMMENT, TEXT, LiveColumn, ViewEntry, find_view, holds_views, view_names

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile


_MARKS = ("--", "/*", ";")


@dataclass(frozen=True, slots=True)
class _ViewText:
    """A view in its desired state.

    :ivar columns: by their places; empty for those of the query
    """

    name: str
    sql: str
    properties: Mapping[str, str]
    comment: str | None
    columns: tuple[Column, ...] = ()

    def named(self, before: Sequence[LiveColumn], found: Sequence[str]) -> _ViewText:
        """With the names and comments that it had, as far as the query does not give them itself."""
        said = any(each.comment for each in before) or [each.name for each in before] != list(found)
        if not said or len(before) != len(found):
            return self
        return replace(self, columns=tuple(Column(each.name, each.type, comment=each.comment) for each in before))


def create_view(view: _ViewText, catalog: str, *, replace: bool) -> str:
    """The statement with text and properties at once: a crash must not leave a view without its marker."""
    parts = ["CREATE OR REPLACE VIEW" if replace else "CREATE VIEW", table_name(view.name, catalog)]
    if view.columns:
        columns = [
            identifier(each.name) + ("" if each.comment is None else f" COMMENT {string_literal(each.comment)}")
            for each in view.columns
        ]
        parts.append(f"({', '.join(columns)})")
    if view.comment is not None:
        parts.append(f"COMMENT {string_literal(view.comment)}")
    # Spark keeps the text from its first word to its last one.
    whole = {TEXT: view.sql} if any(mark in view.sql for mark in _MARKS) else {}
    if properties := {**view.properties, **whole}:
        parts.append(f"TBLPROPERTIES {property_list(properties)}")
    return f"{' '.join(parts)} AS {view.sql}"


@dataclass(frozen=True, slots=True)
class RegisteredView(Named):
    """A view to register.

    :ivar name: ``namespace.name``
    :ivar columns: names of its columns; empty for those of the query
    """

    name: str
    query: str
    columns: tuple[str, ...] = ()


def register_views(spark: SparkSession, catalog: str, views: Iterable[RegisteredView]) -> tuple[str, ...]:
    """Make each view a temporary one of the session, in an order in which each finds what it reads.

    Neither the session's current catalog nor its current namespace matters, and both stay what they are.

    :param catalog: name of the lake's catalog in the session
    :returns: what to write in a query for each view, in that order
    :raises ConfigurationError: a query is invalid, or the views read each other in a cycle
    :raises SparkJobError: a view can't be made; those before it are there
    """
    by_key = {each.key: each for each in views}
    reads = {
        key: {read.name for read in dependencies(each.query, namespace_of(each.name))} for key, each in by_key.items()
    }
    try:
        order = Graph(reads).order(lambda key: key)
    except CycleError as error:
        raise ConfigurationError("views", str(error), "no view can read itself, also not by way of others") from None
    found = []
    for key in order:
        view = by_key[key]
        name = identifier(view.name)
        columns = f" ({', '.join(map(identifier, view.columns))})" if view.columns else ""
        query = _resolved(view.query, namespace_of(view.name), catalog, by_key)
        with spark_errors(f"view {view.name}"):
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name}{columns} AS {query}")
        found.append(name)
    return tuple(found)


def _resolved(query: str, namespace: str, catalog: str, known: Mapping[str, RegisteredView]) -> str:
    """The query with whole names: those of registered views, and of tables of the catalog."""

    def whole(table: NamedTable) -> str:
        view = known.get(table.name.removeprefix(f"{catalog.casefold()}."))
        if view is None:
            if len(table.parts) == 1:
                return f"{table_name(namespace, catalog)}.{table.written}"
            named = len(table.parts) > 2 and table.parts[0] == catalog.casefold()
            return table.written if named else f"{identifier(catalog)}.{table.written}"
        name = identifier(view.name)
        return name if table.aliased else f"{name} AS {identifier(table.parts[-1])}"

    return replace_tables(query, namespace, whole)


class SparkSqlEngine:
    """A :class:`SqlEngine`; Spark is started when the first statement needs it. Not for several threads at once.

    :param session: one of :func:`open_session`; None: it is opened when it is needed
    :param registered: views that the catalog can't hold, for queries that read them
    """

    def __init__(
        self,
        lake: LakeSettings,
        spark: SparkSettings | None = None,
        *,
        session: SparkSession | None = None,
        registered: Iterable[RegisteredView] = (),
    ) -> None:
        self._lake = lake
        self._spark = spark
        self._given = session
        self._registered = {each.key: each for each in registered}
        self._secrets = secrets_in(lake.properties)
        self._started = False

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._lake)

    @cached_property
    def _persistent(self) -> bool:
        return holds_views(self._catalog)

    @cached_property
    def _session(self) -> SparkSession:
        from pyspark import SparkContext

        self._started = self._given is None and SparkContext._active_spark_context is None
        session = self._given or open_session(self._lake, self._spark, app_name="rfr builtin migration")
        if self._registered:
            register_views(session, self._lake.name, self._registered.values())
        return session

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
        if not self._persistent:
            self._register(RegisteredView(name, sql, tuple(each.name for each in columns)))
            return
        there = find_view(self._catalog, name) if replace else None
        made = _ViewText(name, sql, properties, comment, tuple(columns))
        with spark_errors(f"view {name}", self._secrets):
            self._define(made, there, replace)

    def _define(self, made: _ViewText, there: ViewEntry | None, replace: bool) -> None:
        session, catalog, namespace = self._session, self._lake.name, namespace_of(made.name)
        users = there is not None and MARKER not in there.properties
        same = there if there is not None and (users or there.query.split() == made.sql.split()) else None
        if same is not None:
            # The same view once more. It may be a user's, made where another namespace was the current one.
            catalog, namespace = same.catalog or catalog, same.namespace or namespace
        use_namespace(session, catalog, namespace)
        try:
            found = session.sql(as_subquery(made.sql)).columns
            if made.columns:
                # Columns are named by position: the same names in another order would label others' values.
                wanted = [each.name for each in made.columns]
                folded, declared = [name.casefold() for name in found], [name.casefold() for name in wanted]
                if folded != declared and sorted(folded) == sorted(declared):
                    problem = f"the query gives {', '.join(found)}; declared are {', '.join(wanted)}"
                    raise SchemaError(f"view {made.name}: {problem}; write them in one order")
            elif same is not None:
                made = made.named(same.columns, found)
            session.sql(create_view(made, self._lake.name, replace=replace))
        finally:
            session.sql(f"USE {identifier(self._lake.name)}")

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]
    ) -> Sequence[Outputs | None]:
        """See :meth:`SqlEngine.analyse`.

        :raises SchemaError: a query does not give the columns that are declared
        :raises SparkJobError: a query can't be run
        """
        known: dict[str, RegisteredView] = {}
        try:
            for name, columns in tables.items():
                nulls = ", ".join(f"CAST(NULL AS {each.type}) AS {identifier(each.name)}" for each in columns)
                self._analysed(known, name, f"SELECT {nulls} WHERE false")
            return [self._outputs(known, each) for each in queries]
        finally:
            for view in known.values():
                self._session.catalog.dropTempView(view.name)

    def _outputs(self, known: dict[str, RegisteredView], query: AnalysedQuery) -> Outputs | None:
        try:
            with spark_errors(query.name, self._secrets):
                text = _resolved(query.sql, namespace_of(query.name), self._lake.name, known)
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
            self._analysed(known, query.name, text)
        return tuple((each.name, each.dataType.simpleString()) for each in found)

    def _analysed(self, known: dict[str, RegisteredView], name: str, text: str) -> None:
        """Make what is analysed known under another name than that of anything real."""
        view = RegisteredView(f"rfr_analysed.{name}", text)
        with spark_errors(name, self._secrets):
            self._session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {identifier(view.name)} AS {text}")
        known[name.casefold()] = view

    def drop_view(self, name: str) -> None:
        if not self._persistent:
            self._registered.pop(name.casefold(), None)
            self._session.catalog.dropTempView(name)
            return
        self._run(name, f"DROP VIEW IF EXISTS {table_name(name, self._lake.name)}")

    def rename_view(self, old: str, new: str) -> None:
        """Give it another name.

        :raises SparkJobError: there is neither one of the old name nor one of the new
        """
        if not self._persistent:
            known = self._registered.get(old.casefold())
            if known is not None:
                self._register(RegisteredView(new, known.query, known.columns))
                self.drop_view(old)
            return
        names, catalog = view_names(self._catalog), self._lake.name
        if old.casefold() not in names and new.casefold() in names:
            return
        with spark_errors(f"view {old}", self._secrets):
            use_namespace(self._session, catalog, namespace_of(new))
        self._run(old, f"ALTER VIEW {table_name(old, catalog)} RENAME TO {table_name(new, catalog)}")

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        if not self._persistent:
            return
        values = {**properties, COMMENT: comment}
        given = {key: value for key, value in values.items() if value is not None}
        gone = sorted(key for key, value in values.items() if value is None)
        view = f"ALTER VIEW {table_name(name, self._lake.name)}"
        if given:
            self._run(name, f"{view} SET TBLPROPERTIES {property_list(given)}")
        if gone:
            self._run(name, f"{view} UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(string_literal, gone))})")

    def compute(
        self,
        *,
        query: str,
        table: str,
        target: FileTarget,
        snapshot: int | None = None,
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target's layout; commit nothing.

        :raises SchemaError: the query's columns or values don't fit the table
        :raises SparkJobError: Spark can't run the query
        """
        if self._registered:
            with suppress(QueryError):
                query = _resolved(query, namespace_of(table), self._lake.name, self._registered)
        job = Job(self._session, self._lake.name, self._catalog, query, table, target, self._secrets)
        if snapshot is None:
            return compute(job, {}, None)
        return compute(job, {table.casefold(): snapshot}, table.casefold())

    def _register(self, view: RegisteredView) -> None:
        known = {**self._registered, view.key: view}
        register_views(self._session, self._lake.name, known.values())
        self._registered = known

    def _run(self, name: str, statement: str) -> None:
        with spark_errors(f"view {name}", self._secrets):
            self._session.sql(statement)
