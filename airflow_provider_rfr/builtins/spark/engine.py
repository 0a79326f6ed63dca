"""SQL of a deploy on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.execution.sql_engine import ComputedFiles
from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spark import literals, statements
from airflow_provider_rfr.builtins.spark.compute import compute
from airflow_provider_rfr.builtins.spark.errors import told
from airflow_provider_rfr.builtins.spark.job import Job
from airflow_provider_rfr.builtins.spark.registered import RegisteredView, register_views, resolved
from airflow_provider_rfr.builtins.spark.session import SparkSettings, open_session, use_namespace
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.exceptions import QueryError, SchemaError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.views import ViewEntry, find_view, holds_views, view_names
from airflow_provider_rfr.secret_names import secrets_in

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from airflow_provider_rfr.lake.file_target import FileTarget


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
        made = statements.ViewText(name, sql, properties, comment, tuple(columns))
        with told(f"view {name}", self._secrets):
            self._define(made, there, replace)

    def _define(self, made: statements.ViewText, there: ViewEntry | None, replace: bool) -> None:
        session, catalog, namespace = self._session, self._lake.name, namespace_of(made.name)
        same = there if there is not None and there.query.split() == made.sql.split() else None
        if same is not None:
            # The same view once more. It may be a user's, made where another namespace was the current one.
            catalog, namespace = same.catalog or catalog, same.namespace or namespace
        use_namespace(session, catalog, namespace)
        try:
            found = session.sql(literals.query(made.sql)).columns
            if made.columns:
                _check_columns(made, found)
            elif same is not None:
                made = made.named(same.columns, found)
            session.sql(statements.create_view(made, self._lake.name, replace=replace))
        finally:
            session.sql(f"USE {literals.identifier(self._lake.name)}")

    def drop_view(self, name: str) -> None:
        """Drop it; one that isn't there is no mistake."""
        if not self._persistent:
            self._registered.pop(name.casefold(), None)
            self._session.catalog.dropTempView(name)
            return
        self._run(name, statements.drop_view(name, self._lake.name))

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
        names = view_names(self._catalog)
        if old.casefold() not in names and new.casefold() in names:
            return
        with told(f"view {old}", self._secrets):
            use_namespace(self._session, self._lake.name, namespace_of(new))
        self._run(old, statements.rename_view(old, new, self._lake.name))

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        """Set properties, take away those that are None, and replace the comment."""
        if self._persistent:
            for statement in statements.set_view_properties(name, properties, comment, self._lake.name):
                self._run(name, statement)

    def compute(
        self,
        *,
        query: str,
        table: str,
        target: FileTarget,
        work_id: str,
        read: Mapping[str, int] = MappingProxyType({}),
        row_wise: str | None = None,
    ) -> ComputedFiles:
        """Run the query, and write its rows as data files of the target's layout; commit nothing.

        :raises SchemaError: the query's columns or values don't fit the table
        :raises SparkJobError: Spark can't run the query
        """
        if self._registered:
            query = self._with_registered(query, namespace_of(table))
        job = Job(self._session, self._lake.name, self._catalog, query, table, target, self._secrets)
        return compute(job, read, row_wise)

    def _with_registered(self, query: str, namespace: str) -> str:
        try:
            return resolved(query, namespace, self._lake.name, self._registered)
        except QueryError:
            return query

    def _register(self, view: RegisteredView) -> None:
        known = {**self._registered, view.key: view}
        register_views(self._session, self._lake.name, known.values())
        self._registered = known

    def _run(self, name: str, statement: str) -> None:
        with told(f"view {name}", self._secrets):
            self._session.sql(statement)


def _check_columns(made: statements.ViewText, found: Sequence[str]) -> None:
    """Columns are named by their places: the same names in another order would stand over others' values."""
    wanted = [each.name for each in made.columns]
    folded, declared = [name.casefold() for name in found], [name.casefold() for name in wanted]
    if folded != declared and sorted(folded) == sorted(declared):
        told = f"the query gives {', '.join(found)}; declared are {', '.join(wanted)}"
        raise SchemaError(f"view {made.name}: {told}; write them in one order")
