"""A Spark session on the lake's catalog with Iceberg's runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import SECRET_NAMES, secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings
from airflow_provider_rfr.lake.spark import LOCAL, application_settings, identifier, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    from pyspark.sql import SparkSession

    spark, settings = spark or SparkSettings(), spark_sql_settings(lake)
    builder: Any = SparkSession.builder
    for name, value in _of_application(spark, settings).items():
        builder = builder.config(name, value)
    with spark_errors("Spark could not start"):
        try:
            session: SparkSession = builder.getOrCreate().newSession()
        except Exception as error:
            if "JAVA_GATEWAY_EXITED" in str(error):
                raise _no_runtime(spark, settings) from None
            raise
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


def _of_application(spark: SparkSettings, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of the application; packages, jars and extensions of the user stay beside ours."""
    given = spark.settings
    # spark-submit says itself where it runs.
    master = given.get("spark.master") or (None if "PYSPARK_GATEWAY_PORT" in os.environ else LOCAL)
    packages = "" if spark.jars else settings[_PACKAGES]
    ours = {_EXTENSIONS: settings[_EXTENSIONS], _PACKAGES: packages, _JARS: ",".join(spark.jars)}
    found = {
        **application_settings("rfr built-in migration", master),
        # Of settings with such names Spark shows no value; its own list lacks some of those that catalogs have.
        "spark.redaction.regex": f"(?i){SECRET_NAMES}",
        **given,
        **{name: _joined(given.get(name, ""), value) for name, value in ours.items()},
    }
    return {name: value for name, value in found.items() if value}


def _joined(*values: str) -> str:
    return ",".join(dict.fromkeys(each for value in values for each in value.split(",") if each))


def _has_runtime(session: SparkSession, extensions: str) -> bool:
    """Whether classes and extensions are there: a Spark that was running before takes no more of either."""
    from py4j.java_gateway import JavaClass

    if extensions not in session.sparkContext.getConf().get(_EXTENSIONS, "").split(","):
        return False
    return isinstance(reduce(getattr, _RUNTIME.split("."), session._jvm), JavaClass)


def _no_runtime(spark: SparkSettings, settings: Mapping[str, str]) -> ConfigurationError:
    wanted = settings[_PACKAGES]
    tried = f"are not in {', '.join(spark.jars)}" if spark.jars else "could not be had from Maven Central"
    return ConfigurationError(
        "jars",
        f"Spark has no Iceberg runtime: {wanted} {tried}, or Spark was started before without them;"
        " if it did not start, its own output says why",
        "let this machine reach Maven Central or a mirror (spark.jars.repositories), or give the files as jars;"
        f" under spark-submit: --packages {wanted} --conf {_EXTENSIONS}={settings[_EXTENSIONS]}",
    )
