"""Spark SQL on the lake's own catalog, by Iceberg's runtime: settings for a session of a user's or of ours.

A refresh needs none of this. Published tables are ordinary Iceberg tables; these are the settings under which Spark
SQL reads, writes and makes views in the very catalog that PyIceberg opened.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import LakeSettings

ICEBERG_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
"""Maven coordinates of Iceberg's runtime for Spark 4.1 and Scala 2.13; another Spark needs another one."""

JDBC_PACKAGES: Mapping[str, str] = {
    "sqlite": "org.xerial:sqlite-jdbc:3.50.3.0",
    "postgresql": "org.postgresql:postgresql:42.7.7",
}
"""Maven coordinates of the JDBC driver, by SQLAlchemy's name of the database."""

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_PYICEBERG_ONLY = ("type", "py-catalog-impl", "py-io-impl")


def spark_sql_settings(lake: LakeSettings) -> dict[str, str]:
    """Spark settings under which the lake's tables are ``<lake.name>.<namespace>.<table>``.

    For SQL catalogs on SQLite and PostgreSQL, and for REST catalogs. They have to be set before the session starts.
    ``spark.jars.packages`` is among them: where a session has packages of its own, join the two by a comma. A warehouse
    in an object store needs Iceberg's bundle for that store besides. What others commit, a session that has read the
    table before sees after thirty seconds at the latest; at once with ``spark.sql.catalog.<name>.cache-enabled=false``.

    The values may hold the catalog's password: they belong in a properties file of mode 0600 or in ``SparkConf``,
    never on a command line.

    :raises ConfigurationError: the catalog is of another kind
    """
    kind = _kind(lake.properties)
    if kind == "sql":
        catalog, packages = _jdbc_catalog(lake)
    elif kind == "rest":
        catalog, packages = _rest_catalog(lake), ICEBERG_PACKAGES
    else:
        raise ConfigurationError(
            "lake.properties.type",
            f"{kind!r} has no Spark settings here",
            "sql and rest have; set Spark's own otherwise",
        )
    prefix = f"spark.sql.catalog.{lake.name}"
    return {
        "spark.jars.packages": ",".join(packages),
        "spark.sql.extensions": _EXTENSIONS,
        prefix: _CATALOG,
        **{f"{prefix}.{name}": value for name, value in catalog.items()},
    }


def _kind(properties: Mapping[str, str]) -> str:
    """The catalog's type, found as PyIceberg finds it where it is not named."""
    named = properties.get("type")
    if named is not None:
        return named.lower()
    uri = properties.get("uri", "")
    return "rest" if uri.startswith("http") else "sql" if uri.startswith(tuple(JDBC_PACKAGES)) else "unnamed"


def _jdbc_catalog(lake: LakeSettings) -> tuple[dict[str, str], tuple[str, ...]]:
    uri = _url(lake.properties.get("uri", ""))
    database = uri.get_backend_name()
    if database not in JDBC_PACKAGES:
        raise ConfigurationError(
            "lake.properties.uri", f"no JDBC driver is known for {database}", f"known are {', '.join(JDBC_PACKAGES)}"
        )
    catalog = {"type": "jdbc", "uri": _jdbc_address(uri), "warehouse": lake.properties.get("warehouse", "")}
    if uri.username:
        catalog["jdbc.user"] = uri.username
    if uri.password:
        catalog["jdbc.password"] = str(uri.password)
    # The version of the catalog's own tables that has views; PyIceberg reads it as well.
    catalog["jdbc.schema-version"] = "V1"
    return catalog, (*ICEBERG_PACKAGES, JDBC_PACKAGES[database])


def _jdbc_address(uri: URL) -> str:
    """The database's address without credentials."""
    if uri.get_backend_name() == "sqlite":
        return f"jdbc:sqlite:{uri.database or ''}"
    address = URL.create(uri.get_backend_name(), None, None, uri.host, uri.port, uri.database, uri.query)
    return "jdbc:" + address.render_as_string(hide_password=False)


def _rest_catalog(lake: LakeSettings) -> dict[str, str]:
    """A REST catalog's properties have the same names in both languages."""
    kept = {name: value for name, value in lake.properties.items() if name not in _PYICEBERG_ONLY}
    return {"type": "rest", **kept}


def _url(text: str) -> URL:
    try:
        return make_url(text)
    except ArgumentError:
        # The library's message shows the address, and with it the password.
        raise ConfigurationError(
            "lake.properties.uri", "is no database address", "write e.g. postgresql+psycopg2://user:password@host/name"
        ) from None
