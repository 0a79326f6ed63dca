"""Spark SQL for deploys and refreshes: sessions on the catalog, views, analysis of queries, and uncommitted data files.

Spark needs Iceberg's runtime.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlglot import exp

from airflow_provider_rfr.builtins.model import MARKER, Column, Kind, RecordedObject, namespace_of
from airflow_provider_rfr.builtins.sql import NamedTable, parse_query, replace_tables
from airflow_provider_rfr.exceptions import ConfigurationError, QueryError, SchemaError, SparkJobError
from airflow_provider_rfr.http.redaction import SECRET_NAMES, secrets_in
from airflow_provider_rfr.lake import spark
from airflow_provider_rfr.lake.catalog import Catalog, LakeSettings, open_catalog, spark_sql_settings
from airflow_provider_rfr.lake.data_files import WRITTEN, FileTarget, StoredFile, WriteRows
from airflow_provider_rfr.lake.migrated_table import ColumnLike
from airflow_provider_rfr.lake.rows import only_appended
from airflow_provider_rfr.lake.tables import COMMENT, OWNER, TEXT, LiveColumn, find_view, holds_views, view_names
from airflow_provider_rfr.lake.types import ColumnType, parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Outputs = Sequence[tuple[str, ColumnType]]
"""Names and types of a query's columns; types that are not nested have Spark's names."""
_PACKAGES: Final = "spark.jars.packages"
_CATALOGS: Final = "spark.sql.catalog."
_EXTENSIONS: Final = "spark.sql.extensions"
_OF_SESSION: Final = {
    # Spark must not substitute ${...} in a view's text, and a day must be the same wherever a deploy runs.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    # A value that can't be cast has to stop the deploy. Without ANSI mode, it would silently become NULL.
    "spark.sql.ansi.enabled": "true",
}


class _Rewritten(NamedTuple):
    """A rewrite that is computed, and may not be committed yet; its files depend on ``work`` and the rows alone.

    If a concurrent append makes the commit fail, the next attempt computes only the rows that were added since
    ``snapshot``. Otherwise, a table that gets commits faster than it is computed could never be rewritten.
    """

    work: tuple[str, ...]
    snapshot: int
    files: tuple[StoredFile, ...]


class SparkSqlEngine:
    """Spark SQL on the lake's catalog. Spark starts with the first statement. An engine is not thread-safe.

    Names are ``namespace.name`` without the catalog. A table without a namespace in a query is looked for in the
    namespace of the view or table that the query belongs to. Every method is idempotent, so it may be called again
    after a crash. A statement that Spark can't run raises a :class:`SparkJobError`.
    """

    def __init__(self, lake: LakeSettings, settings: Mapping[str, str] | None = None, jars: Sequence[str] = ()) -> None:
        self._lake = lake
        self._start = settings, jars
        self._secrets = secrets_in(lake.properties)
        self._started = False
        self._last: _Rewritten | None = None

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._lake)

    @cached_property
    def _session(self) -> SparkSession:
        from pyspark import SparkContext

        self._started = SparkContext._active_spark_context is None
        return open_session(self._lake, *self._start)

    def close(self) -> None:
        """Stop Spark, if it was started here."""
        session = self.__dict__.pop("_session", None)
        if session is not None and self._started:
            session.stop()

    def _name(self, name: str) -> str:
        return spark.table_name(name, self._lake.name)

    def _sql(self, what: str, statement: str, namespace: str | None = None) -> DataFrame:
        """Run a statement.

        :param what: the work, for error messages
        :param namespace: ``catalog.namespace`` in backticks, in which names without a namespace are looked for
        """
        with spark.spark_errors(what, self._secrets):
            if namespace is not None:
                self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
                self._session.sql(f"USE {namespace}")
            return self._session.sql(statement)

    def create_view(self, name: str, sql: str, properties: Mapping[str, str], columns: Sequence[Column] = ()) -> None:
        """Create or replace the view with its properties, the comment among them, in one statement.

        :param columns: declared columns, for their names and comments; empty: those of the query
        :raises SchemaError: the query gives the declared columns in another order
        """
        view = find_view(self._catalog, name)
        namespace = self._name(namespace_of(name))
        before: Sequence[LiveColumn] = ()
        if view is not None and (MARKER not in view.properties or view.query.split() == sql.split()):
            # The same text again. A user's view may have been created while another namespace was the current one.
            namespace = spark.table_name(view.namespace or namespace_of(name), view.catalog or self._lake.name)
            before = view.columns
        output = self._sql(f"view {name}", as_subquery(sql), namespace).columns
        declared = [column.name for column in columns]
        if sorted(map(str.casefold, output)) == sorted(map(str.casefold, declared)):
            # Otherwise, the names differ, since the query could not be parsed at its planning. The declared ones win.
            _check_columns(f"view {name}", output, declared, ordered=True)
        if view is not None:
            # Spark keeps the properties of a view that it replaces, and a former text would pass for the present one.
            properties = {TEXT: "", **properties}
        body = view_body(sql, properties, columns or kept_columns(before, output))
        self._sql(f"view {name}", f"CREATE {'OR REPLACE ' if view is not None else ''}VIEW {self._name(name)} {body}")

    def drop_view(self, name: str) -> None:
        self._sql(f"view {name}", f"DROP VIEW IF EXISTS {self._name(name)}")

    def rename_view(self, old: str, new: str) -> None:
        names = view_names(self._catalog)
        if old.casefold() in names or new.casefold() not in names:
            statement = f"ALTER VIEW {self._name(old)} RENAME TO {self._name(new)}"
            self._sql(f"view {old}", statement, self._name(namespace_of(new)))

    def set_view_properties(self, name: str, properties: Mapping[str, str | None]) -> None:
        values = {key: value for key, value in properties.items() if value is not None}
        view = find_view(self._catalog, name) if OWNER in properties else None
        if view is not None:
            # Spark refuses an owner in ALTER VIEW, so the view is replaced. As that removes no property, a missing
            # owner becomes an empty one.
            values[OWNER] = values.get(OWNER, "")
            self.create_view(name, view.query, {**view.properties, **values})
        gone = ", ".join(spark.string_literal(key) for key in sorted(properties.keys() - values.keys()))
        if values and view is None:
            self._sql(f"view {name}", f"ALTER VIEW {self._name(name)} SET TBLPROPERTIES {spark.property_list(values)}")
        if gone:
            self._sql(f"view {name}", f"ALTER VIEW {self._name(name)} UNSET TBLPROPERTIES IF EXISTS ({gone})")

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[RecordedObject], texts: Mapping[str, str]
    ) -> dict[str, Outputs]:
        """Analyse queries over tables as they will be after a deploy, and over the catalog's other objects.

        No rows are read, and nothing is changed.

        :param tables: future columns by table name; the queries read empty tables with these columns
        :param queries: objects with queries, inputs first: later ones read an earlier one, if it is a view
        :param texts: other texts of views, by name
        :returns: output columns of those of the ``texts`` that Spark can analyse, by name
        :raises ConfigurationError: there are views, and the catalog can't hold any
        :raises SchemaError: a query does not return the declared columns
        """
        if not holds_views(self._catalog) and (views := [query.name for query in queries if query.kind is Kind.VIEW]):
            problem = f"{views[0]} is a view, and the catalog {self._lake.name} can't hold views"
            remedy = "use a catalog with views: sql, or rest where the server has them"
            raise ConfigurationError("lake", problem, remedy)
        known: dict[str, str] = {}
        try:
            for name, columns in tables.items():
                nulls = ", ".join(
                    f"CAST(NULL AS {column.type}) AS {spark.identifier(column.name)}" for column in columns
                )
                self._make_known(known, name, f"SELECT {nulls} WHERE false")
            for query in queries:
                self._check(known, query)
            outputs = dict[str, Outputs]()
            for name, text in texts.items():
                with suppress(QueryError, SparkJobError):
                    outputs[name] = self._outputs(known, name, text)[1]
            return outputs
        finally:
            for name in known.values():
                self._session.catalog.dropTempView(name)

    def _check(self, known: dict[str, str], query: RecordedObject) -> None:
        try:
            text, outputs = self._outputs(known, query.name, str(query.sql))
        except QueryError:
            # sqlglot can't find the tables that it reads, so Spark only sees it in its own step.
            return
        names, declared = [name for name, _ in outputs], [column.name for column in query.columns]
        _check_columns(query.name, names, declared, ordered=query.kind is Kind.VIEW)
        if query.kind is Kind.MATERIALIZED_VIEW:
            _check_types(query.name, outputs, query.columns)
        if query.kind is Kind.VIEW:
            self._make_known(known, query.name, text)

    def _outputs(self, known: Mapping[str, str], name: str, query: str) -> tuple[str, Outputs]:
        """Return the query with fully qualified names, and its output columns."""
        text = resolved(query, namespace_of(name), self._lake.name, known)
        schema = self._sql(name, as_subquery(text)).schema
        return text, [(field.name, _type_of(field.dataType)) for field in schema]

    def _make_known(self, known: dict[str, str], name: str, text: str) -> None:
        """Register an analysed object as a temporary view of this session, under a name that no real object has."""
        view = f"rfr_analysed.{name}"
        self._sql(name, f"CREATE OR REPLACE TEMPORARY VIEW {spark.identifier(view)} AS {text}")
        known[name.casefold()] = view

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target, by column name; commit nothing.

        :param table: the table that the rows are for
        :param snapshot: for a rewrite, the snapshot of ``table`` to read; each of its rows becomes one row. After a
            refused commit, the files from before may be returned again, with files of the rows appended since
        :raises SchemaError: the query's columns or values don't fit the table
        """
        if snapshot is None:
            return self._compute(query, table, target)
        layout, source, clause = target.layout, self._catalog.load_table(table), None
        work = (query, target.folder, target.family, layout.schema.model_dump_json(), layout.spec.model_dump_json())
        last = self._last if self._last is not None and self._last.work == work else None
        if last is not None and last.snapshot == snapshot:
            return last.files
        # In Spark 3, SQL can't read the rows between two snapshots.
        if last is not None and self._session.version >= "4" and only_appended(source, last.snapshot, snapshot):
            clause = f"WITH ('start-snapshot-id' = '{last.snapshot}', 'end-snapshot-id' = '{snapshot}')"
        else:
            last, read = None, source.snapshot_by_id(snapshot)
            # Spark reads an earlier snapshot with its columns of that time.
            if read is not None and read.schema_id == source.metadata.current_schema_id:
                clause = f"VERSION AS OF {snapshot}"
        text = None if clause is None else reading(query, table, clause)
        # Without a clause, the table is read in its present state. If that is another one, the commit is refused.
        files = (last.files if last is not None else ()) + self._compute(text or query, table, target)
        self._last = None if text is None else _Rewritten(work, snapshot, files)
        return files

    def _compute(self, query: str, table: str, target: FileTarget) -> tuple[StoredFile, ...]:
        rows = self._sql(table, as_subquery(query), self._name(namespace_of(table)))
        names = {name.casefold(): name for name in target.layout.arrow.names}
        _check_columns(f"the query for {table}", rows.columns, [*names.values()], ordered=False)
        rows = rows.toDF(*(names[name.casefold()] for name in rows.columns))
        with spark.spark_errors(table, self._secrets):
            results = rows.mapInArrow(WriteRows(target), WRITTEN).collect()
        if errors := [result["error"] for result in results if result["error"] is not None]:
            raise SchemaError(f"{table}: {errors[0]}")
        return tuple(file for result in results for file in pickle.loads(result["files"]))


def as_subquery(sql: str) -> str:
    """Return the query as a subquery. Without it, Spark would at once run a statement that changes something."""
    return f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"


def view_body(sql: str, properties: Mapping[str, str], columns: Sequence[ColumnLike]) -> str:
    """Return the part of CREATE VIEW after the view's name.

    It sets everything in one statement, because a crash must not leave a view without its marker.
    """
    rest = {**properties}

    def comment(text: str | None) -> str:
        return "" if text is None else f" COMMENT {spark.string_literal(text)}"

    named = ", ".join(spark.identifier(column.name) + comment(column.comment) for column in columns)
    head = (f"({named})" if named else "") + comment(rest.pop(COMMENT, None))
    if any(mark in sql for mark in ("--", "/*", ";")):
        # Spark stores only the text from its first word to its last one, so a property has the whole text.
        rest[TEXT] = sql
    if rest:
        head += f" TBLPROPERTIES {spark.property_list(rest)}"
    return f"{head} AS {sql}".lstrip()


def kept_columns(before: Sequence[LiveColumn], outputs: Sequence[str]) -> Sequence[LiveColumn]:
    """Return a view's columns, for their names and comments; empty if the query alone has the same."""
    differs = any(column.comment for column in before) or [column.name for column in before] != list(outputs)
    return before if differs and len(before) == len(outputs) else ()


def _check_columns(what: str, outputs: Sequence[str], declared: Sequence[str], *, ordered: bool) -> None:
    """Refuse a query whose columns are not the declared ones.

    The columns of a view are ``ordered``, because they are named by position: the same names in another order would
    label the wrong values.

    :raises SchemaError: the columns differ
    """
    names, wanted = [name.casefold() for name in outputs], [name.casefold() for name in declared]
    if declared and (names != wanted if ordered else sorted(names) != sorted(wanted)):
        advice = "; write them in one order" if sorted(names) == sorted(wanted) else ""
        raise SchemaError(f"{what}: the query gives {', '.join(outputs)}; declared are {', '.join(declared)}{advice}")


def _check_types(what: str, outputs: Outputs, declared: Sequence[Column]) -> None:
    """Refuse text, or a nested type, for a column of another type: whether rows can be written depends on values.

    :raises SchemaError: a column has such a type
    """
    wanted = {column.name.casefold(): column for column in declared}
    for name, kind in outputs:
        if (column := wanted.get(name.casefold())) is None:
            continue
        after = parse_type(column.type)
        if kind.name != after.name and (kind.name == "string" or kind.inner or after.inner) and kind.name != "void":
            advice = f"write CAST(... AS {after}), or declare the column as {kind}"
            raise SchemaError(f"{what}: the query gives {kind} for {column.name}, which is {after}; {advice}")


def _type_of(kind: Any) -> ColumnType:
    """Convert a data type of Spark, with the names of its fields."""
    match kind.typeName():
        case "struct":
            return ColumnType("struct", (), tuple(_type_of(field.dataType) for field in kind), tuple(kind.names))
        case "array":
            return ColumnType("array", (), (_type_of(kind.elementType),))
        case "map":
            return ColumnType("map", (), (_type_of(kind.keyType), _type_of(kind.valueType)))
    return ColumnType(kind.simpleString())


def resolved(query: str, namespace: str, catalog: str, known: Mapping[str, str]) -> str:
    """Return the query with fully qualified names, so that neither the session's catalog nor its namespace matters.

    Tables and views in ``known`` (by case-folded name) are replaced by the temporary views that it names.

    :raises QueryError: the query can't be parsed
    """

    def whole(table: NamedTable) -> str:
        view = known.get(table.name.removeprefix(f"{catalog.casefold()}."))
        if view is not None:
            # A temporary view can't have a namespace, so its whole name is one quoted identifier.
            name = spark.identifier(view)
            return name if table.aliased else f"{name} AS {spark.identifier(table.parts[-1])}"
        if len(table.parts) == 1:
            return f"{spark.table_name(namespace, catalog)}.{table.written}"
        named = len(table.parts) > 2 and table.parts[0] == catalog.casefold()
        return table.written if named else f"{spark.identifier(catalog)}.{table.written}"

    return replace_tables(query, namespace, whole)


def reading(query: str, table: str, clause: str) -> str | None:
    """Return the query with a clause after the table's name; None if one of its rows depends on several of the table.

    Also None if the query can't be parsed.
    """
    try:
        tree = parse_query(query)
        if len(list(tree.find_all(exp.Query))) > 1 or tree.find(exp.Window, exp.AggFunc) is not None:
            return None
        key = table.casefold()
        return replace_tables(
            query, namespace_of(table), lambda named: f"{named.written} {clause}" if named.name == key else None
        )
    except QueryError:
        return None


def open_session(
    lake: LakeSettings, application: Mapping[str, str] | None = None, jars: Sequence[str] = ()
) -> SparkSession:
    """Open a new Spark session with the lake's catalog as the current one; start this process's Spark if necessary.

    Sessions share Spark, but neither catalogs nor temporary views, so one process can have several lakes.

    Only the session has the settings that open the catalog, such as its password: they are in no setting of the
    application, which Spark's pages and event log show.

    :param application: Spark's own settings, e.g. ``spark.master``
    :param jars: files or addresses of Iceberg's runtime and the database's driver, for machines that do not reach Maven
        Central; empty: they are fetched from there
    :raises ConfigurationError: Spark can't open such a catalog, or Iceberg's runtime is not available
    :raises SparkJobError: Spark could not be started
    """
    from pyspark.sql import SparkSession

    settings = spark_sql_settings(lake, with_packages=not jars)
    builder: Any = SparkSession.builder
    for name, value in _of_application(application or {}, jars, settings).items():
        builder = builder.config(name, value)
    with spark.spark_errors("Spark could not start"):
        try:
            session: SparkSession = builder.getOrCreate().newSession()
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" in str(error):
                raise _no_runtime(jars, settings) from None
            raise
    if not _has_runtime(session, settings[_EXTENSIONS]):
        raise _no_runtime(jars, settings)
    session.sparkContext.setLogLevel("ERROR")
    catalogs = {name: value for name, value in settings.items() if name.startswith(_CATALOGS)}
    # PyIceberg commits to the tables that this session reads, so cached tables would be stale.
    catalogs[f"{_CATALOGS}{lake.name}.cache-enabled"] = "false"
    for name, value in {**catalogs, **_OF_SESSION}.items():
        session.conf.set(name, value)
    with spark.spark_errors(f"Spark can't open the catalog {lake.name}", secrets_in(lake.properties)):
        # In SQL, because the method for this uses whichever session was active before.
        session.sql(f"USE {spark.identifier(lake.name)}")
    return session


def _of_application(application: Mapping[str, str], jars: Sequence[str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the application; the user's packages, jars and extensions are added to ours."""
    # Under spark-submit, the master is set already.
    master = application.get("spark.master") or (None if "PYSPARK_GATEWAY_PORT" in os.environ else spark.LOCAL)
    packages = settings.get(_PACKAGES, "")
    ours = {_EXTENSIONS: settings[_EXTENSIONS], _PACKAGES: packages, "spark.jars": ",".join(jars)}
    both = {name: f"{application.get(name, '')},{value}".split(",") for name, value in ours.items()}
    merged = {
        **spark.application_settings("rfr built-in migration", master),
        # Spark redacts settings with such names; its default pattern lacks some names that catalogs use.
        "spark.redaction.regex": f"(?i){SECRET_NAMES}",
        **application,
        **{name: ",".join(filter(None, dict.fromkeys(values))) for name, values in both.items()},
    }
    return {name: value for name, value in merged.items() if value}


def _has_runtime(session: SparkSession, extensions: str) -> bool:
    """Tell whether Iceberg's classes and extensions are available; a running Spark can't load more of either."""
    from py4j.java_gateway import JavaClass

    if extensions not in session.sparkContext.getConf().get(_EXTENSIONS, "").split(","):
        return False
    return isinstance(session._jvm.org.apache.iceberg.spark.SparkCatalog, JavaClass)


def _no_runtime(jars: Sequence[str], settings: Mapping[str, str]) -> ConfigurationError:
    extensions = f"--conf {_EXTENSIONS}={settings[_EXTENSIONS]}"
    if jars:
        return ConfigurationError(
            "jars",
            f"Spark has no Iceberg runtime: it is not in {', '.join(jars)}, or Spark was started before without them",
            "give the jar of Iceberg's runtime for this Spark; under spark-submit:"
            f" --jars {','.join(jars)} {extensions}",
        )
    wanted = settings[_PACKAGES]
    return ConfigurationError(
        "jars",
        f"Spark has no Iceberg runtime: {wanted} could not be had from Maven Central, or Spark was started before"
        " without it",
        "let this machine reach Maven Central or a mirror (spark.jars.repositories), or give the files as jars;"
        f" under spark-submit: --packages {wanted} {extensions}",
    )
