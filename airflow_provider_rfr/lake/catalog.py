"""Opens a catalog from its settings; its errors are one sentence that names the catalog.

PyIceberg passes on the errors of each catalog's client, which name neither the catalog nor a remedy. Also here: the
settings under which Spark SQL reaches the same catalog through Iceberg's runtime. A refresh needs none of those.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import CatalogType, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


_CLIENTS: Final = frozenset(
    {
        *("sqlalchemy", "sqlite3", "psycopg2", "psycopg", "pymysql", "MySQLdb"),
        *("requests", "urllib3", "botocore", "boto3", "google", "thrift", "hive_metastore"),
    }
)
_DATABASES: Final = ("sqlite", "postgresql", "mysql")
_PLAIN: Final = frozenset({"type", "warehouse", "uri"})
_CREDENTIALS: Final = (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)
_SYSTEM: Final = re.compile(r"\[Errno -?\d+\] [\w ]+|\bNo route to host\b|\btimed out\b|\bTimeoutError\b")
_LONGEST: Final = 300


def _check_settings(name: str, properties: Mapping[str, str]) -> None:
    """Find what no catalog could be opened with.

    :raises ConfigurationError: naming the property
    """
    kind, uri = properties.get("type"), properties.get("uri", "")
    kinds = [each.value for each in CatalogType]
    if kind is not None and kind.lower() not in kinds:
        near = difflib.get_close_matches(kind.lower(), kinds, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(
            "lake.properties.type", f"{kind!r} is not a type of catalog", f"{guess}known: {', '.join(kinds)}"
        )
    if "py-catalog-impl" in properties or not _is_database(kind, uri):
        return
    if not properties.get("warehouse"):
        raise ConfigurationError(
            "lake.properties.warehouse",
            f"is missing, and the catalog {name!r} is a database, which holds no tables' files",
            "write the folder or bucket for them, e.g. file:///data/warehouse or s3://bucket/warehouse",
        )
    folder = _sqlite_folder(uri)
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(
            "lake.properties.uri",
            f"the folder {folder} of the catalog's SQLite file does not exist on this machine",
            "make it, or correct the path",
        )


def _is_of_settings(error: Exception) -> bool:
    """Whether opening failed for what is written in the settings: also SQLAlchemy has a word for that."""
    return isinstance(error, (ValueError, ImportError)) or type(error).__name__ in (
        "ArgumentError",
        "NoSuchModuleError",
    )


def _catalog_error(error: BaseException, name: str, properties: Mapping[str, str]) -> CatalogError | None:
    """The sentence for an error of a catalog's client; None for what is not the client's, a conflict among it.

    :param name: of the catalog
    """
    client = type(error).__module__.partition(".")[0]
    if not isinstance(error, RESTError) and client not in _CLIENTS:
        return None
    reason = _reason(error, properties)
    uri = properties.get("uri")
    place = f"the catalog {name!r}" + (f" ({_address(uri)})" if uri else "")
    if isinstance(error, _CREDENTIALS) or "authentication failed" in reason:
        return CatalogError(f"{place} refuses the credentials: {reason}; correct them in the lake's connection")
    if "database is locked" in reason:
        return CatalogError(
            f"{place} stays locked by another process: {reason}; let that one end, or use a catalog that takes several"
            " writers, such as PostgreSQL"
        )
    return CatalogError(f"{place} does not do what is asked: {reason}; see that it runs and can be reached from here")


def _without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """The text without the values of properties that may be secret, and without passwords in addresses."""
    uri = properties.get("uri", "")
    password = urlsplit(uri).password if "://" in uri else None
    secrets = [value for key, value in properties.items() if key not in _PLAIN]
    secrets += [password, unquote(password)] if password else []
    text = text.replace(uri, _address(uri)) if uri else text
    for value in sorted(map(str, secrets), key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "***")
    return text


def _reason(error: BaseException, properties: Mapping[str, str]) -> str:
    """The innermost words, on one line."""
    whole = str(getattr(error, "orig", None) or error)
    found = _SYSTEM.search(whole) if "HTTPConnectionPool" in whole or "HTTPSConnectionPool" in whole else None
    line = found.group() if found else next((line for line in whole.splitlines() if line.strip()), "")
    return _without_secrets(line.strip(), properties)[:_LONGEST] or type(error).__name__


def _address(uri: str) -> str:
    """The address without who logs in, and without what may follow a question mark."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri.rpartition("@")[2]
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _is_database(kind: str | None, uri: str) -> bool:
    return kind.lower() == "sql" if kind else uri.startswith(_DATABASES)


def _sqlite_folder(uri: str) -> Path | None:
    """Where the file of an SQLite catalog lies; None for other catalogs, and for one in memory."""
    scheme, _, path = uri.partition("://")
    path = path.removeprefix("/").partition("?")[0]
    if not scheme.startswith("sqlite") or path in ("", ":memory:") or path.startswith("file:"):
        return None
    return Path(path).parent


_METHODS: Final = frozenset(
    {
        *("load_table", "table_exists", "list_tables", "create_table", "create_table_transaction", "commit_table"),
        *("register_table", "rename_table", "drop_table", "purge_table"),
        *("create_namespace", "namespace_exists", "list_namespaces", "drop_namespace"),
        *("load_namespace_properties", "update_namespace_properties"),
        *("list_views", "view_exists", "load_view", "create_view", "replace_view", "drop_view"),
    }
)
"""What this package asks a catalog."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """Where the lake is.

    :ivar name: the catalog's name; Spark has to use the same one for the same catalog
    :ivar properties: PyIceberg's catalog properties (``type``, ``uri``, ``warehouse``, credentials);
        they may hold secrets, so they are left out of ``repr``
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)


def open_catalog(settings: LakeSettings, tries: int = 5) -> Catalog:
    """Open the catalog. Whatever it answers later on, too, is told in one sentence that names it.

    :raises ConfigurationError: its settings can't work, whoever tries them
    :raises CatalogError: it does not answer, or refuses; also raised by the catalog's own methods from then on
    """
    _check_settings(settings.name, settings.properties)
    try:
        return _telling(load_catalog(settings.name, **dict(settings.properties)), settings)
    except Exception as error:
        if _is_of_settings(error):
            raise ConfigurationError(
                "lake.properties",
                f"the catalog {settings.name!r} can't be opened: {_without_secrets(str(error), settings.properties)}",
                "see PyIceberg's catalog properties: type, uri, warehouse",
            ) from None
        if tries <= 1 or not _somebody_was_first(error):
            told = _catalog_error(error, settings.name, settings.properties)
            raise (error if told is None else told) from error
    time.sleep(0.05)
    return open_catalog(settings, tries - 1)


def _telling(catalog: Catalog, settings: LakeSettings) -> Catalog:
    """The catalog, whose methods raise :class:`CatalogError` in the place of its client's own errors."""

    def telling(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if (told := _catalog_error(error, settings.name, settings.properties)) is None:
                    raise
                raise told from error

        return call

    for name in _METHODS & set(dir(catalog)):
        setattr(catalog, name, telling(getattr(catalog, name)))
    return catalog


def load_table(catalog: Catalog, identifier: str) -> Table | None:
    """The table as it is now, or None where there is none."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def tables_with_property(catalog: Catalog, key: str) -> list[str]:
    """Tables of all namespaces whose properties have the key; each one is loaded, so it takes its time."""
    found = []
    for namespace in _namespaces(catalog, ()):
        for identifier in catalog.list_tables(namespace):
            name = ".".join(identifier)
            table = load_table(catalog, name)
            if table is not None and key in table.properties:
                found.append(name)
    return sorted(found)


def _namespaces(catalog: Catalog, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for namespace in catalog.list_namespaces(parent):
        if len(namespace) > len(parent):
            yield namespace
            yield from _namespaces(catalog, namespace)


def create_table(
    catalog: Catalog,
    identifier: str,
    schema: Schema,
    spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Create the table and its namespace, or load it where somebody else was first."""
    namespace = identifier.rpartition(".")[0]
    try:
        catalog.create_namespace(namespace)
    except NamespaceAlreadyExistsError:
        pass
    except Exception as error:
        if not _somebody_was_first(error):
            raise
    try:
        if spec is None:
            return catalog.create_table(identifier, schema, properties=dict(properties or {}))
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=dict(properties or {}))
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def _somebody_was_first(error: Exception) -> bool:
    """Whether a SQL catalog's database refused because another process made the same at the same time.

    PyIceberg looks, and then makes: the catalog's own tables at their first use, and namespaces.
    """
    error = error.__cause__ if isinstance(error, CatalogError) and isinstance(error.__cause__, Exception) else error
    of_database = type(error).__module__.startswith("sqlalchemy.")
    return of_database and (type(error).__name__ == "IntegrityError" or "already exists" in str(error))


_ICEBERG_PACKAGES = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
"""Maven coordinates of Iceberg's runtime for Spark 4.1 and Scala 2.13; another Spark needs another one."""

_JDBC_PACKAGES: Mapping[str, str] = {
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
        catalog, packages = _rest_catalog(lake), _ICEBERG_PACKAGES
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
    return "rest" if uri.startswith("http") else "sql" if uri.startswith(tuple(_JDBC_PACKAGES)) else "unnamed"


def _jdbc_catalog(lake: LakeSettings) -> tuple[dict[str, str], tuple[str, ...]]:
    uri = _url(lake.properties.get("uri", ""))
    database = uri.get_backend_name()
    if database not in _JDBC_PACKAGES:
        raise ConfigurationError(
            "lake.properties.uri", f"no JDBC driver is known for {database}", f"known are {', '.join(_JDBC_PACKAGES)}"
        )
    catalog = {"type": "jdbc", "uri": _jdbc_address(uri), "warehouse": lake.properties.get("warehouse", "")}
    if uri.username:
        catalog["jdbc.user"] = uri.username
    if uri.password:
        catalog["jdbc.password"] = str(uri.password)
    # The version of the catalog's own tables that has views; PyIceberg reads it as well.
    catalog["jdbc.schema-version"] = "V1"
    return catalog, (*_ICEBERG_PACKAGES, _JDBC_PACKAGES[database])


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
