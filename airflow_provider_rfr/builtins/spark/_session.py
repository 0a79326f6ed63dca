"""A Spark session on the lake's catalog with Iceberg's runtime; errors without secrets; quoting for Spark SQL."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, SparkJobError
from airflow_provider_rfr.http.redaction import SECRET_NAMES, secrets_in
from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OF_PYTHON = re.compile(r"^(?:[a-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_OF_JAVA = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_FAILED = re.compile(r"Job aborted due to stage failure: (.{1,300})")
_REDACTED = f"(?i){SECRET_NAMES}"
"""Names of settings whose values Spark shows nowhere; its own list lacks some of those that catalogs have."""


@contextmanager
def spark_errors(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise what Spark raises as a :class:`SparkJobError` of one sentence; other errors are unchanged.

    :param what: was tried, e.g. ``view ops.v``
    """
    try:
        yield
    except Exception as error:
        if not of_spark(error):
            raise
        raise SparkJobError(f"{what}: {without(_sentence(error), secrets)}") from None


def of_spark(error: BaseException) -> bool:
    """Whether it comes out of Spark or the way to it."""
    return type(error).__module__.split(".")[0] in ("py4j", "pyspark")


def _sentence(error: BaseException) -> str:
    """What went wrong, without the stack."""
    message = str(error)
    failed = _FAILED.search(message)
    if type(error).__module__.startswith("pyspark.errors") and failed is None:
        return message.strip().partition("\n")[0]
    if of_python := _OF_PYTHON.search(message):
        return of_python.group(2)
    if causes := _OF_JAVA.findall(message):
        return str(causes[-1])
    return failed.group(1) if failed else message.strip().partition("\n")[0]


def without(message: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, "***")
    return message


def identifier(name: str) -> str:
    """One part of a name, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def table_name(name: str, catalog: str | None = None) -> str:
    """``namespace.name``, each part in backticks, with the catalog before it if there is one."""
    parts = name.split(".")
    return ".".join(map(identifier, parts if catalog is None else [catalog, *parts]))


def string_literal(value: str) -> str:
    """A string, whatever is in it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def property_list(values: Mapping[str, str]) -> str:
    """Keys and values between parentheses."""
    return "(" + ", ".join(f"{string_literal(key)} = {string_literal(values[key])}" for key in sorted(values)) + ")"


def as_subquery(sql: str) -> str:
    """The query so that it can be nothing else: a statement that changes something would be run at once."""
    return f"SELECT * FROM (\n{sql.rstrip().rstrip(';')}\n)"


_PACKAGES: Final = "spark.jars.packages"
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


def open_session(lake: LakeSettings, spark: SparkSettings | None = None, *, app_name: str = "rfr sql") -> SparkSession:
    """A new session of this process's Spark, which is started if it isn't yet, with the lake's catalog as the current
    one. Sessions share Spark, but neither catalogs nor temporary views, so one process can have several lakes.

    What the catalog needs to be opened, its password among it, is known to the session alone: it is in no setting of
    the application, which Spark's pages and event log show.

    :raises ConfigurationError: Spark can't open such a catalog, or Iceberg's runtime is not available
    :raises SparkJobError: Spark could not be started
    """
    spark = spark or SparkSettings()
    settings = spark_sql_settings(lake)
    session = _started(spark, settings, app_name)
    if not _has_runtime(session, settings[_EXTENSIONS]):
        raise _no_runtime(settings, spark)
    session.sparkContext.setLogLevel("ERROR")
    found = {name: value for name, value in settings.items() if name.startswith(_CATALOGS)}
    # PyIceberg commits to the tables that this session reads: a cache would show the tables from before.
    found[f"{_CATALOGS}{lake.name}.cache-enabled"] = "false"
    for name, value in {**found, **_OF_SESSION}.items():
        session.conf.set(name, value)
    try:
        # The method for this asks whichever session was the active one before.
        session.sql(f"USE {identifier(lake.name)}")
    except Exception as error:
        if not of_spark(error):
            raise
        problem = without(_sentence(error), secrets_in(lake.properties))
        raise SparkJobError(f"Spark can't open the catalog {lake.name}: {problem}") from None
    return session


def _started(spark: SparkSettings, settings: Mapping[str, str], app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    for name, value in _of_application(spark, settings, app_name).items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate().newSession()
    except Exception as error:
        if not of_spark(error):
            raise
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise _no_runtime(
                settings, spark, "Spark could not start; its own output says why. If it is that"
            ) from None
        raise SparkJobError(f"Spark could not start: {_sentence(error)}") from None
    return session


def _of_application(spark: SparkSettings, settings: Mapping[str, str], app_name: str) -> dict[str, str]:
    given = dict(spark.settings)
    packages = [given.pop(_PACKAGES, ""), "" if spark.jars else settings[_PACKAGES]]
    extensions = [given.pop(_EXTENSIONS, ""), settings[_EXTENSIONS]]
    jars = [given.pop("spark.jars", ""), *spark.jars]
    where: dict[str, str] = {}
    # spark-submit says itself where it runs.
    if "spark.master" in given or "PYSPARK_GATEWAY_PORT" not in os.environ:
        where["spark.master"] = given.get("spark.master") or "local[*,4]"
        if where["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            where |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            where["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    found = {
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": _REDACTED,
        **where,
        _EXTENSIONS: _joined(extensions),
        **given,
    }
    for name, values in ((_PACKAGES, packages), ("spark.jars", jars)):
        if joined := _joined(values):
            found[name] = joined
    return found


def _joined(values: list[str]) -> str:
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


def _no_runtime(settings: Mapping[str, str], spark: SparkSettings, why: str = "") -> ConfigurationError:
    wanted = settings[_PACKAGES]
    tried = f"they are not in {', '.join(spark.jars)}" if spark.jars else "they could not be had from Maven Central"
    problem = f"{why} " if why else ""
    return ConfigurationError(
        "jars",
        f"{problem}Spark runs without Iceberg's runtime ({wanted}): {tried}, or Spark was started before without them",
        "let this machine reach Maven Central or a mirror (spark.jars.repositories), or give the files as jars;"
        f" under spark-submit: --packages {wanted} --conf {_EXTENSIONS}={settings[_EXTENSIONS]}",
    )


def use_namespace(session: SparkSession, catalog: str, namespace: str) -> None:
    """Make the namespace, created if need be, the current one, in which unqualified names are looked up."""
    name = table_name(namespace, catalog)
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}")
    session.sql(f"USE {name}")
