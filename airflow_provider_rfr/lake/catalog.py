"""The lake's catalog: opening it, and loading and creating tables in it.

PyIceberg passes on the errors of each catalog's client, which name neither the catalog nor a remedy: here they become
one sentence. The clients wait for ever if the server does not answer, so they get timeouts. Also here: the settings by
which Spark SQL reaches the same catalog through Iceberg's runtime, which a refresh does not need.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, wraps
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog import BOTOCORE_SESSION, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog import Catalog as Catalog  # re-exported for the packages above
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy import inspect
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError
from airflow_provider_rfr.http.redaction import Redactor, passwords_in
from airflow_provider_rfr.lake import LakeSettings as LakeSettings
from airflow_provider_rfr.preflight import iceberg_runtime
from airflow_provider_rfr.timeouts import ANSWER_SECONDS, CONNECT_SECONDS, end_refused_commits, limit_waits

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from requests import Response, Session

log = logging.getLogger(__name__)

UNREADABLE: Final = (OSError, ValueError, KeyError)
"""Errors of a table whose metadata file is lost, or can't be read; those of catalogs are :class:`CatalogError`."""
_CLIENTS: Final = frozenset(
    {
        *("sqlalchemy", "sqlite3", "psycopg2", "psycopg", "pymysql", "MySQLdb"),
        *("requests", "urllib3", "botocore", "boto3", "google", "thrift", "hive_metastore"),
        *("pydantic", "pydantic_core"),  # an answer that is not the catalog's
    }
)
"""Packages of the catalogs' clients, whose errors become :class:`CatalogError`."""
_METHODS: Final = frozenset(
    {
        *("load_table", "table_exists", "list_tables", "create_table", "create_table_transaction", "commit_table"),
        *("register_table", "rename_table", "drop_table", "purge_table"),
        *("create_namespace", "namespace_exists", "list_namespaces", "drop_namespace"),
        *("load_namespace_properties", "update_namespace_properties"),
        *("list_views", "view_exists", "load_view", "create_view", "replace_view", "drop_view"),
    }
)
"""Methods of a catalog that this package calls, and whose errors are translated."""
_REFUSED_CREDENTIALS: Final = (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)
_NOT_SECRET: Final = frozenset({"type", "warehouse", "uri"})
_SYSTEM_ERROR: Final = re.compile(r"\[Errno -?\d+\] [\w ]+|\bNo route to host\b|\btimed out\b|\bTimeoutError\b")
_MAX_REASON: Final = 300

_JDBC_PACKAGES: Final[Mapping[str, str]] = {
    "sqlite": "org.xerial:sqlite-jdbc:3.50.3.0",
    "postgresql": "org.postgresql:postgresql:42.7.7",
}
"""Maven coordinates of the JDBC driver, by SQLAlchemy's name of the database."""
_EXTRAS: Final[Mapping[str, str]] = {"glue": "glue", "dynamodb": "glue", "hive": "hive"}
"""The extra of this package that brings the client, by the catalog's type."""
_OTHER_CLIENTS: Final[Mapping[str, str]] = {
    "adls.connection-string": "adls.account-name and adls.account-key",
    "adls.credential": "adls.tenant-id, adls.client-id and adls.client-secret, or none for the machine's own",
    "adls.token": "adls.sas-token, or adls.tenant-id, adls.client-id and adls.client-secret",
    "adls.account-host": "adls.blob-storage-authority and adls.dfs-storage-authority",
}
"""Properties that only PyIceberg's other FileIO reads, and those to write instead."""
_FILE_IO: Final = "airflow_provider_rfr.lake.file_io.LakeFileIO"
# PyIceberg would log the configured FileIO at each load of a table.
logging.getLogger("pyiceberg.io").addFilter(lambda record: _FILE_IO not in (record.args or ()))
_PYICEBERG_ONLY: Final = ("type", "py-catalog-impl", "py-io-impl")
_S3_BUNDLE: Final = "org.apache.iceberg:iceberg-aws-bundle"
_S3_SCHEMES: Final = ("s3://", "s3a://", "s3n://")
_S3_NAMES: Final[Mapping[str, str]] = {
    "s3.region": "client.region",
    **{name: name for name in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token")},
}
"""Java's names of the object store's properties, by PyIceberg's names."""
_DELEGATION: Final = "header.X-Iceberg-Access-Delegation"


def open_catalog(settings: LakeSettings) -> Catalog:
    """Open the catalog. Its methods raise :class:`CatalogError` instead of their client's own errors.

    :raises ConfigurationError: it can't be opened with these settings
    :raises CatalogError: it does not answer, or refuses
    """
    _check_settings(settings)
    with _translated(settings):
        try:
            catalog = _load_limited(settings.name, settings.properties)
        except (ImportError, NotInstalledError) as error:
            raise _not_installed(settings, error) from None
        except (ValueError, ArgumentError) as error:
            raise ConfigurationError(
                "lake.properties",
                f"the catalog {settings.name!r} can't be opened: {_without_secrets(str(error), settings.properties)}",
                "see PyIceberg's catalog properties: type, uri, warehouse",
            ) from None
    # A subclass and no wrapper, because PyIceberg and this package check the classes of catalogs.
    catalog.__class__ = _translating(type(catalog))
    catalog._lake_settings = settings  # type: ignore[attr-defined]
    # One FileIO for every store, in this process and in tasks, which get the catalog's properties with their tables.
    catalog.properties.setdefault("py-io-impl", _FILE_IO)
    if isinstance(engine := getattr(catalog, "engine", None), Engine):
        # Closed as soon as the catalog is released, not at a garbage collection: a program that polls a status would
        # use up the database's connections. So the catalog must not be part of a reference cycle.
        weakref.finalize(catalog, engine.dispose)
    return catalog


def _not_installed(settings: LakeSettings, error: Exception) -> ConfigurationError:
    kind = _catalog_type(settings.properties)
    if kind not in _EXTRAS:
        return ConfigurationError(
            "lake.properties",
            f"the catalog {settings.name!r} can't be opened: {_without_secrets(str(error), settings.properties)}",
            "install the package that it names, where Airflow runs and where Spark's drivers run",
        )
    return ConfigurationError(
        "lake.properties.type",
        f"a catalog of type {kind!r} needs a client that is not installed here",
        f"pip install 'airflow-provider-rfr[{_EXTRAS[kind]}]', where Airflow runs and where Spark's drivers run",
    )


def load_table(catalog: Catalog, identifier: str) -> Table | None:
    """Load the table in its current state; return None if it does not exist."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def create_table(
    catalog: Catalog,
    identifier: str,
    schema: Schema,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Create the table and its namespace, or load the table if it was created meanwhile."""
    ensure_namespace(catalog, identifier)
    try:
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=dict(properties or {}))
    except Exception:
        # Each catalog reports in its own way that another process was first. The response to our own call may be lost,
        # too.
        if (table := load_table(catalog, identifier)) is None:
            raise
        return table


def ensure_namespace(catalog: Catalog, identifier: str) -> None:
    """Create the namespace of a table, unless it exists or another process creates it at the same time."""
    namespace = identifier.rpartition(".")[0]
    if catalog.namespace_exists(namespace):
        return
    try:
        catalog.create_namespace(namespace)
    except Exception:
        if not catalog.namespace_exists(namespace):
            raise


def namespaces(catalog: Catalog, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield all namespaces, nested ones included."""
    for namespace in catalog.list_namespaces(parent):
        if len(namespace) > len(parent):
            yield namespace
            yield from namespaces(catalog, namespace)


def tables_with_property(catalog: Catalog, key: str) -> list[str]:
    """List the tables of all namespaces whose properties have the key. This is slow, because it loads every table.

    A table whose metadata can't be read is left out with a warning.
    """

    def has_property(name: str) -> bool:
        try:
            table = load_table(catalog, name)
        except UNREADABLE as error:
            log.warning("The table %s is left out: its metadata can't be read (%s)", name, type(error).__name__)
            return False
        return table is not None and key in table.properties

    names = (".".join(table) for namespace in namespaces(catalog) for table in catalog.list_tables(namespace))
    return sorted(filter(has_property, names))


def _was_created_concurrently(error: BaseException) -> bool:
    """Tell whether a SQL catalog's database refused because another process created the catalog's own tables meanwhile.

    PyIceberg checks whether they exist, and then creates them, which is a race.
    """
    of_database = type(error).__module__.startswith("sqlalchemy.")
    return of_database and (type(error).__name__ == "IntegrityError" or "already exists" in str(error))


_DATABASE_ADDRESS: Final = "write e.g. postgresql+psycopg2://user:password@host/name"


def _check_settings(settings: LakeSettings) -> None:
    """Check for mistakes that PyIceberg reports late, or without naming the property.

    :raises ConfigurationError: a property is wrong; the error names it
    """
    properties, kinds = settings.properties, [catalog_type.value for catalog_type in CatalogType]
    kind = properties.get("type")
    if kind is not None and kind.lower() not in kinds:
        raise ConfigurationError("lake.properties.type", f"{kind!r} is not a type of catalog", suggestion(kind, kinds))
    _check_store(properties)
    if "py-catalog-impl" in properties or _catalog_type(properties) != "sql":
        return
    if not properties.get("warehouse"):
        raise ConfigurationError(
            "lake.properties.warehouse",
            f"is missing, and the catalog {settings.name!r} is a database, which can't hold the tables' files",
            "write the folder or bucket for them, e.g. file:///data/warehouse or s3://bucket/warehouse",
        )
    try:
        uri = make_url(properties.get("uri", ""))
    except ArgumentError:
        return  # opening the catalog fails with the reason
    except ValueError:
        # Without the library's message: the text that it takes for the port may be a part of a password.
        raise ConfigurationError("lake.properties.uri", "its port is not a number", _DATABASE_ADDRESS) from None
    if "@" in (uri.host or ""):
        # The host has the end of the password, which the database's driver would show in its error.
        raise ConfigurationError("lake.properties.uri", "has an @ in its user or password", "write it as %40")
    path = uri.database or ""
    on_disk = uri.get_backend_name() == "sqlite" and path not in ("", ":memory:") and not path.startswith("file:")
    if on_disk and not Path(path).parent.is_dir():
        raise ConfigurationError(
            "lake.properties.uri",
            f"the folder {Path(path).parent} of the catalog's SQLite file does not exist on this machine",
            "create it, or correct the path",
        )


def _check_store(properties: Mapping[str, str]) -> None:
    """Refuse properties of object stores that PyArrow's clients do not read, or read only together with another one.

    :raises ConfigurationError: there is such a property
    """
    for name, instead in _OTHER_CLIENTS.items():
        if name in properties:
            raise ConfigurationError(f"lake.properties.{name}", "is not read by PyArrow's client", f"write {instead}")
    token, expiry = "gcs.oauth2.token", "gcs.oauth2.token-expires-at"
    if token in properties and expiry not in properties:
        remedy = f"write {expiry} in milliseconds since 1970, or no token: the machine's own credentials are used"
        raise ConfigurationError(f"lake.properties.{token}", "has no time at which it expires", remedy)


def _catalog_type(properties: Mapping[str, str]) -> str:
    """Return the catalog's type, by PyIceberg's own rules where the properties do not name it."""
    if "type" in properties:
        return properties["type"].lower()
    uri = properties.get("uri", "")
    return "rest" if uri.startswith("http") else "sql" if uri.startswith(("sqlite", "postgresql", "mysql")) else ""


@cache
def _translating(kind: type[Catalog]) -> type[Catalog]:
    """Return a subclass of the catalog's type whose methods raise :class:`CatalogError`."""

    def translating(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with _translated(self._lake_settings):
                return method(self, *args, **kwargs)

        return call

    return type(kind.__name__, (kind,), {name: translating(getattr(kind, name)) for name in _METHODS & set(dir(kind))})


@contextmanager
def _translated(settings: LakeSettings) -> Iterator[None]:
    """Raise :class:`CatalogError`, in one sentence, instead of the errors of the catalog's client.

    Other errors, such as a refused commit, stay as they are.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, RESTError) and type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        # The innermost message, in one line: requests wraps the system's error in the whole request.
        text = str(getattr(error, "orig", None) or error)
        inner = _SYSTEM_ERROR.search(text) if "HTTPConnectionPool" in text or "HTTPSConnectionPool" in text else None
        line = inner.group() if inner else next((line for line in text.splitlines() if line.strip()), "")
        reason = _without_secrets(line.strip(), settings.properties)[:_MAX_REASON] or type(error).__name__
        uri = settings.properties.get("uri")
        problem = f"the catalog {settings.name!r}" + (f" ({_without_credentials(uri)})" if uri else "")
        if isinstance(error, _REFUSED_CREDENTIALS) or "authentication failed" in reason:
            problem += f" refuses the credentials: {reason}; correct them in the lake's connection"
        elif "database is locked" in reason:
            problem += (
                f" is locked by another process: {reason}; wait for that process to end, or use a catalog that"
                " supports several writers, such as PostgreSQL"
            )
        else:
            problem += f" failed: {reason}; check that it runs and can be reached from here"
        raise CatalogError(problem) from error


def _without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """Remove the values of properties that may be secret, and passwords in addresses, from the text."""
    uri = properties.get("uri", "")
    secrets = [value for key, value in properties.items() if key not in _NOT_SECRET]
    text = text.replace(uri, _without_credentials(uri)) if uri else text
    return Redactor([*secrets, *passwords_in(uri)]).text(text)


def _without_credentials(uri: str) -> str:
    """Return the address without user, password and query."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri.rpartition("@")[2]
    place, _, query = rest.partition("?")
    # A password may have a question mark, and a query an @, so nobody can tell where the password ends.
    return f"{scheme}://" + ("***" if "@" in query else place.rpartition("@")[2])


def spark_sql_settings(lake: LakeSettings, *, with_packages: bool = True) -> dict[str, str]:
    """Return the Spark settings under which the lake's tables are ``<lake.name>.<namespace>.<table>``.

    SQL catalogs on SQLite and PostgreSQL, and REST catalogs, are supported, with the Spark of this machine. Set the
    settings before the session starts. ``spark.jars.packages`` is among them: if the session has packages of its own,
    join both lists by a comma. They have Iceberg's bundle for S3 if the warehouse or a property ``s3...`` calls for it;
    for other object stores add theirs. A session caches a table that it has read, and sees commits of others after at
    most thirty seconds; at once with ``spark.sql.catalog.<name>.cache-enabled=false``.

    The values may hold the catalog's password: they belong in a properties file of mode 0600 or in ``SparkConf``,
    never on a command line.

    :param with_packages: False if the session has the jars of Iceberg's runtime and of the database's driver already
    :raises ConfigurationError: the catalog is of another kind, or Iceberg has no runtime for this Spark
    """
    kind = _catalog_type(lake.properties)
    packages = [iceberg_runtime()] if with_packages else []
    of_store = _s3_settings(lake.properties)
    if with_packages and of_store:
        packages.append(f"{_S3_BUNDLE}:{packages[0].rpartition(':')[2]}")
    if kind == "sql":
        catalog, driver = _jdbc_catalog(lake.properties)
        catalog |= of_store
        packages.append(driver)
    elif kind == "rest":
        # A REST catalog's properties have the same names in both languages. PyIceberg requests vended credentials, so
        # Spark does, too.
        shared = {name: value for name, value in lake.properties.items() if name not in _PYICEBERG_ONLY}
        catalog = {"type": "rest", _DELEGATION: "vended-credentials", **of_store, **shared}
    else:
        raise ConfigurationError(
            "lake.properties.type",
            f"Spark settings can't be derived for the catalog type {kind or 'unknown'!r}",
            "use sql or rest, or set Spark's own settings",
        )
    prefix = f"spark.sql.catalog.{lake.name}"
    return {
        **({"spark.jars.packages": ",".join(packages)} if with_packages else {}),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in catalog.items()},
    }


def _s3_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Iceberg's S3 client; none if nothing says that the tables' files are in S3."""
    in_s3 = properties.get("warehouse", "").startswith(_S3_SCHEMES)
    if not in_s3 and not any(name.startswith("s3.") for name in properties):
        return {}
    settings = {java: properties[name] for name, java in _S3_NAMES.items() if name in properties}
    if "s3.endpoint" in properties and properties.get("s3.force-virtual-addressing", "").lower() != "true":
        # As PyArrow addresses buckets if an endpoint is given.
        settings["s3.path-style-access"] = "true"
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **settings}


def _jdbc_catalog(properties: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the settings of Iceberg's JDBC catalog, and the coordinates of its driver."""
    try:
        uri = make_url(properties.get("uri", ""))
    except (ArgumentError, ValueError):
        # From None: the library's message shows the address, and with it the password.
        raise ConfigurationError("lake.properties.uri", "must be a database address", _DATABASE_ADDRESS) from None
    database = uri.get_backend_name()
    if database not in _JDBC_PACKAGES:
        raise ConfigurationError(
            "lake.properties.uri", f"no JDBC driver is known for {database}", f"known are {', '.join(_JDBC_PACKAGES)}"
        )
    if database == "sqlite":
        address = f"sqlite:{uri.database or ''}"
    else:
        bare = URL.create(database, None, None, uri.host, uri.port, uri.database, uri.query)
        address = bare.render_as_string(hide_password=False)
    # Schema version V1 of the catalog's own tables has views; PyIceberg reads it, too.
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:{address}",
        "warehouse": properties.get("warehouse", ""),
        "jdbc.schema-version": "V1",
    }
    if database == "postgresql":
        # The driver's own socket timeout is infinite.
        connect, read = map(ceil, _wait_limits(properties))
        catalog |= {"jdbc.connectTimeout": str(connect), "jdbc.socketTimeout": str(read)}
    credentials = {"jdbc.user": uri.username, "jdbc.password": uri.password}
    catalog |= {name: str(value) for name, value in credentials.items() if value}
    return catalog, _JDBC_PACKAGES[database]


def _wait_limits(properties: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds to wait for a connection, and for an answer, by a catalog's properties or the defaults.

    :raises ConfigurationError: a limit is not a positive number
    """
    limits = []
    for name, default in (("rfr.connect-timeout", CONNECT_SECONDS), ("rfr.read-timeout", ANSWER_SECONDS)):
        value = properties.get(name, default)
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise ConfigurationError(
                f"lake.properties.{name}", f"{value!r} is not a positive number of seconds", f"write e.g. {default:g}"
            )
        limits.append(seconds)
    return limits[0], limits[1]


def _load_limited(name: str, properties: Mapping[str, str]) -> Catalog:
    """Load a catalog as PyIceberg's ``load_catalog`` does, with timeouts for its client.

    :raises ConfigurationError: a limit is not a positive number
    """
    connect, read = _wait_limits(properties)
    settings: dict[str, Any] = dict(merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    if "py-catalog-impl" in properties:
        return load_catalog(name, **properties)
    kind = CatalogType(str(settings["type"]).lower()) if "type" in settings else infer_catalog_type(name, settings)
    if kind is CatalogType.REST and "uri" in settings:
        # PyIceberg's own default would retry a silent server ten times.
        return _rest_catalog()(name, **{"rest.sigv4.max-retries": "0", **settings})
    if kind is CatalogType.SQL and "uri" in settings:
        return _sql_catalog()(name, **settings)
    if kind is CatalogType.HIVE and "uri" in settings:
        from airflow_provider_rfr.lake.hive import LimitedHiveCatalog

        return LimitedHiveCatalog(name, (connect, read), **settings)
    if kind in (CatalogType.GLUE, CatalogType.DYNAMODB) and find_spec("botocore"):
        import botocore.config
        import botocore.session

        session = botocore.session.get_session()
        config = botocore.config.Config(connect_timeout=connect, read_timeout=read)
        session.set_default_client_config(config)
        catalog = load_catalog(name, **properties, **{BOTOCORE_SESSION: session})
        # Removed, because FileIOs get the catalog's properties, and are pickled into tasks.
        del catalog.properties[BOTOCORE_SESSION]
        return catalog
    return load_catalog(name, **properties)


@cache
def _rest_catalog() -> type[Catalog]:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Session

    class LimitedSession(Session):
        limits: tuple[float, float]

        def request(self, *args: Any, **kwargs: Any) -> Response:
            return super().request(*args, **{"timeout": self.limits, **kwargs})

    class LimitedRestCatalog(RestCatalog):
        def _config_headers(self, session: Session) -> None:
            # PyIceberg calls this first for each session, before any request for a token.
            super()._config_headers(session)
            session.__class__ = LimitedSession
            session.limits = _wait_limits(self.properties)  # type: ignore[attr-defined]

        def load_table(self, identifier: str | Identifier) -> Table:
            try:
                table: Table = super().load_table(identifier)
            except NoSuchTableError as error:
                # The catalog's own 404 has a JSON object. A proxy's tells nothing about the table.
                answer = getattr(error.__cause__, "response", None)
                with suppress(ValueError):
                    if answer is None or isinstance(answer.json(), dict):
                        raise
            else:
                return table
            raise RESTError("HTTP 404 without the catalog's error; a proxy may have sent it")

    return LimitedRestCatalog


@cache
def _sql_catalog() -> type[Catalog]:
    from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

    retrying = Retrying(
        retry=retry_if_exception(_was_created_concurrently),
        stop=stop_after_attempt(5),
        wait=wait_fixed(0.05),
        reraise=True,
    )

    class LimitedSqlCatalog(SqlCatalog):
        """A SQL catalog whose own tables are created with its first namespace; until then it reads as empty.

        PyIceberg creates them when a catalog is opened, but a reader must not write.
        """

        _is_new = True
        # Of the tables that PyIceberg would create. Once they exist, super()._init_catalog() finds out their own.
        _schema_version = "v1"

        def _init_catalog(self) -> None:
            limit_waits(self.engine, *_wait_limits(self.properties))
            end_refused_commits(self.engine)
            self._has_tables()

        def _has_tables(self) -> bool:
            # Looked for again while one is missing: another thread or process may be creating them.
            names = SqlCatalogBaseTable.metadata.tables.keys()
            inspector = inspect(self.engine)
            if self._is_new and all(map(inspector.has_table, names)):
                super()._init_catalog()
                self._is_new = False
            return not self._is_new

        def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
            if not self._has_tables():
                retrying(super()._init_catalog)
            super().create_namespace(namespace, properties)

        def namespace_exists(self, identifier: str | Identifier) -> bool:
            return self._has_tables() and super().namespace_exists(identifier)

        def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
            return super().list_namespaces(namespace) if namespace or self._has_tables() else []

        def load_table(self, identifier: str | Identifier) -> Table:
            if not self._has_tables():
                raise NoSuchTableError(f"Table does not exist: {identifier}")
            return super().load_table(identifier)

    return LimitedSqlCatalog
