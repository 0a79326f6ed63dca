"""A Spark session on the lake's catalog with Iceberg's runtime; errors without secrets; quoting for Spark SQL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, SparkJobError
from airflow_provider_rfr.http.redaction import SECRET_NAMES, Redactor, secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings
from airflow_provider_rfr.lake.spark import LOCAL, application_settings, spark_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_errors(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise what Spark raises as a :class:`SparkJobError` of one sentence; other errors are unchanged.

    :param what: was tried, e.g. ``view ops.v``
    """
    try:
        yield
    except Exception as error:
        problem = spark_problem(error)
        if problem is None:
            raise
        raise SparkJobError(f"{what}: {Redactor(secrets).text(problem)}") from None


def identifier(name: str) -> str:
    """One part of a name, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def table_name(name: str, catalog: str) -> str:
    """``catalog.namespace.name``, each part in backticks."""
    return ".".join(map(identifier, [catalog, *name.split(".")]))


def string_literal(value: str) -> str:
    """A string, whatever is in it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def property_list(values: Mapping[str, str]) -> str:
    """Keys and values between parentheses."""
    return "(" + ", ".join(f"{string_literal(key)} = {string_literal(values[key])}" for key in sorted(values)) + ")"


def as_subquery(sql: str) -> str:
    """The query so that it can be nothing else: a statement that changes something would be run at once."""
    return f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"


def use_namespace(session: SparkSession, catalog: str, namespace: str) -> None:
    """Make the namespace, created if need be, the current one, in which unqualified names are looked up."""
    name = table_name(namespace, catalog)
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")
    session.sql(f"USE {name}")


_APP_NAME: Final = "rfr built-in migration"
_PACKAGES: Final = "spark.jars.packages"
_JARS: Final = "spark.jars"
_CATALOGS: Final = "spark.sql.catalog."
_RUNTIME: Final = "org.apache.iceberg.spark.SparkCatalog"
_EXTENSIONS: Final = "spark.sql.extensions"
_OF_SESSION: Final = {
    # The text of a view is the author's, and days are the same wherever a deploy runs.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    # A value that can't be cast stops the deploy. Without this it became NULL, and the old value was gone.
    "spark.sql.ansi.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is started where this process starts it.

    :ivar settings: Spark's own, e.g. ``spark.master``
    :ivar jars: files or addresses of Iceberg's runtime and the database's driver, for places that do not reach Maven
        Central; empty: they are fetched from there
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()


def open_session(lake: LakeSettings, spark: SparkSettings | None = None) -> SparkSession:
    """A new session of this process's Spark, which is started if it isn't yet, with the lake's catalog as the current
    one. Sessions share Spark, but neither catalogs nor temporary views, so one process can have several lakes.

    What the catalog needs to be opened, its password among it, is known to the session alone: it is in no setting of
    the application, which Spark's pages and event log show.

    :raises ConfigurationError: Spark can't open such a catalog, or Iceberg's runtime is not available
    :raises SparkJobError: Spark could not be started
    """
    spark = spark or SparkSettings()
    settings = spark_sql_settings(lake)
    session = _started(spark, settings)
    if not _has_runtime(session, settings[_EXTENSIONS]):
        raise _no_runtime(spark, settings)
    session.sparkContext.setLogLevel("ERROR")
    found = {name: value for name, value in settings.items() if name.startswith(_CATALOGS)}
    # PyIceberg commits to the tables that this session reads: a cache would show the tables from before.
    found[f"{_CATALOGS}{lake.name}.cache-enabled"] = "false"
    for name, value in {**found, **_OF_SESSION}.items():
        session.conf.set(name, value)
    with spark_errors(f"Spark can't open the catalog {lake.name}", secrets_in(lake.properties)):
        # The method for this asks whichever session was the active one before.
        session.sql(f"USE {identifier(lake.name)}")
    return session


def _started(spark: SparkSettings, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in _of_application(spark, settings).items():
        builder = builder.config(name, value)
    with spark_errors("Spark could not start"):
        try:
            session: SparkSession = builder.getOrCreate().newSession()
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" not in str(error):
                raise
            why = "Spark could not start; its own output says why. If it is that "
            raise _no_runtime(spark, settings, why) from None
    return session


def _of_application(spark: SparkSettings, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of the application; packages, jars and extensions of the user stay beside ours."""
    given = spark.settings
    # spark-submit says itself where it runs.
    master = given.get("spark.master") or (None if "PYSPARK_GATEWAY_PORT" in os.environ else LOCAL)
    packages = "" if spark.jars else settings[_PACKAGES]
    found = {
        **application_settings(_APP_NAME, master),
        # Of settings with such names Spark shows no value; its own list lacks some of those that catalogs have.
        "spark.redaction.regex": f"(?i){SECRET_NAMES}",
        **given,
        _EXTENSIONS: _joined(given.get(_EXTENSIONS, ""), settings[_EXTENSIONS]),
        _PACKAGES: _joined(given.get(_PACKAGES, ""), packages),
        _JARS: _joined(given.get(_JARS, ""), *spark.jars),
    }
    return {name: value for name, value in found.items() if value}


def _joined(*values: str) -> str:
    return ",".join(dict.fromkeys(each for value in values for each in value.split(",") if each))


def _has_runtime(session: SparkSession, extensions: str) -> bool:
    """Whether classes and extensions are there: a Spark that was running before takes no more of either."""
    from py4j.java_gateway import JavaClass

    if extensions not in session.sparkContext.getConf().get(_EXTENSIONS, "").split(","):
        return False
    found: Any = session._jvm
    for part in _RUNTIME.split("."):
        found = getattr(found, part)
    return isinstance(found, JavaClass)


def _no_runtime(spark: SparkSettings, settings: Mapping[str, str], why: str = "") -> ConfigurationError:
    wanted = settings[_PACKAGES]
    tried = f"they are not in {', '.join(spark.jars)}" if spark.jars else "they could not be had from Maven Central"
    return ConfigurationError(
        "jars",
        f"{why}Spark runs without Iceberg's runtime ({wanted}): {tried}, or Spark was started before without them",
        "let this machine reach Maven Central or a mirror (spark.jars.repositories), or give the files as jars;"
        f" under spark-submit: --packages {wanted} --conf {_EXTENSIONS}={settings[_EXTENSIONS]}",
    )
