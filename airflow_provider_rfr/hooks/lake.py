"""The hook of a lake's catalog (connection type ``rfr_lake``), and its tables' commits for sensors and triggers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import Asset, BaseHook

from airflow_provider_rfr.compat import with_connection_form
from airflow_provider_rfr.connections.airflow.lookup import (
    connection_named,
    extras_of,
    mapping_extra,
    read_connection,
    require_type,
)
from airflow_provider_rfr.connections.types import CATALOG_TYPES
from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.http.redaction import is_secret, names_login, passwords_in, redact
from airflow_provider_rfr.lake import LakeSettings
from airflow_provider_rfr.lake.types import check_identifier
from airflow_provider_rfr.timeouts import within

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.lake.catalog import Catalog
    from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord


_TEST_SECONDS = 20.0
_STORE_EXTRAS = {
    "warehouse": "warehouse",
    "s3_endpoint": "s3.endpoint",
    "s3_region": "s3.region",
    "s3_access_key_id": "s3.access-key-id",
    "s3_secret_access_key": "s3.secret-access-key",
}


def secrets_of(lake: LakeSettings) -> list[str]:
    """Return the secret values of the lake's properties, passwords in the catalog's URI included."""
    values = [value for key, value in lake.properties.items() if is_secret(key)]
    return values + sorted(passwords_in(lake.properties.get("uri", "")))


@with_connection_form
class LakeHook(BaseHook):
    """A hook that reads an ``rfr_lake`` connection: catalog, warehouse, and the credentials of both.

    ======================  ==========================================================================
    field                   PyIceberg's property
    ======================  ==========================================================================
    Catalog URI (host)      ``uri``
    login, password         for ``sql`` in the URI, for ``rest`` the credential or token, else access keys
    extra ``catalog_type``  ``type``: sql (default), rest, hive, glue, dynamodb
    extra ``catalog_name``  the catalog's name; default ``rfr``
    extra ``warehouse``     ``warehouse``
    extras ``s3_...``       ``s3.endpoint``, ``s3.region``, ``s3.access-key-id``, ``s3.secret-access-key``
    extra ``properties``    a JSON object of further properties, e.g. ``adls....`` and ``gcs....``
    ======================  ==========================================================================

    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default``
    """

    conn_name_attr = "lake_conn_id"
    default_conn_name = "rfr_lake_default"
    conn_type = "rfr_lake"
    hook_name = "Lake catalog (RFR)"

    def __init__(self, lake_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.lake_conn_id = lake_conn_id

    def get_lake_settings(self) -> LakeSettings:
        """Return the catalog's settings, without opening it.

        :raises ConfigurationError: the connection is missing, of another type, or incomplete
        """
        remedy = (
            f"run: airflow connections add {self.lake_conn_id} --conn-type rfr_lake --conn-host"
            """ sqlite:////data/catalog.db --conn-extra '{"warehouse": "file:///data/warehouse"}'"""
        )
        return lake_settings(connection_named(self.lake_conn_id, "lake_conn_id", remedy))

    get_conn = get_lake_settings

    def test_connection(self) -> tuple[bool, str]:
        """List the catalog's namespaces, and write and delete an object below the warehouse."""
        try:
            count, written = self.check_catalog(), self.check_warehouse()
        except (CatalogError, ConfigurationError) as error:
            return False, str(error)
        return True, f"The catalog has {namespaces_in_words(count)}" + (
            ", and the warehouse can be written" if written else ""
        )

    def check_catalog(self) -> int:
        """List the catalog's namespaces; return their number.

        :raises ConfigurationError: the connection is missing, of another type, or incomplete
        :raises CatalogError: the catalog can't be opened; the message holds no secrets
        """
        settings = self.get_lake_settings()
        with self._explained("The catalog can't be opened", settings):
            from airflow_provider_rfr.lake.catalog import open_catalog

            return within(_TEST_SECONDS, lambda: len(open_catalog(settings).list_namespaces()))

    def check_warehouse(self) -> bool:
        """Write and delete an empty object below the warehouse.

        :return: False, without a try, for a catalog that decides itself where tables are, and who may write
        :raises ConfigurationError: the connection is missing, of another type, or incomplete
        :raises CatalogError: the warehouse can't be written; the message holds no secrets
        """
        settings = self.get_lake_settings()
        with self._explained("Nothing can be written below the warehouse", settings):
            return within(_TEST_SECONDS, lambda: _try_warehouse(settings.properties))

    @contextmanager
    def _explained(self, problem: str, settings: LakeSettings) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each catalog and each store has errors of its own
            secrets = [*secrets_of(settings), read_connection(self.lake_conn_id).password or ""]
            # In an error of an object store, the rest is curl's, and repeats the reason.
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition("; Details: ")[0][:500]
            raise CatalogError(f"{problem}: {redact(reason, filter(None, secrets))}") from None


def namespaces_in_words(count: int) -> str:
    return "1 namespace" if count == 1 else f"{count} namespaces"


def lake_settings(connection: Connection) -> LakeSettings:
    """Return the catalog that an ``rfr_lake`` connection describes, with PyIceberg's names of properties.

    :raises ConfigurationError: the connection is of another type, incomplete, or has a field that is not read
    """
    require_type(connection, LakeHook.conn_type)
    extras = extras_of(connection)
    kind = str(extras.get("catalog_type", "sql"))
    name = f"connection {connection.conn_id}"
    if kind not in CATALOG_TYPES:
        raise ConfigurationError(f"{name}: catalog_type", f"{kind!r} is unknown", f"one of {', '.join(CATALOG_TYPES)}")
    if kind in ("sql", "rest", "hive") and not connection.host:
        raise ConfigurationError(
            f"{name}: host", "is empty", "write the catalog's URI, e.g. sqlite:////data/catalog.db"
        )
    _refuse_unread(name, connection)
    properties = {"type": kind}
    if connection.host:
        properties["uri"] = str(connection.host)
    properties |= {key: str(extras[field]) for field, key in _STORE_EXTRAS.items() if field in extras}
    named = mapping_extra(connection, "properties", extras.get("properties", {})).items()
    extra = {str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in named}
    for where, key in (("host", "uri"), ("warehouse", "warehouse")):
        _check_address(f"{name}: {where}", {**properties, **extra}.get(key, ""))
    properties |= {**_credentials(kind, connection), **extra}
    if kind == "sql":
        # Only a catalog with a server can resolve a relative path: here, each process would resolve it differently.
        warehouse = properties.get("warehouse", "")
        remedy = "write the folder of the tables, e.g. s3://bucket/warehouse or file:///data/warehouse"
        if not warehouse:
            raise ConfigurationError(f"{name}: warehouse", "is empty", remedy)
        if not (urlsplit(warehouse).scheme or warehouse.startswith("/")):
            raise ConfigurationError(f"{name}: warehouse", f"{warehouse!r} is relative", remedy)
    return LakeSettings(str(extras.get("catalog_name", "rfr")), properties)


def _refuse_unread(name: str, connection: Connection) -> None:
    for unread in ("port", "schema"):
        if getattr(connection, unread):
            remedy = "write it into the host, e.g. postgresql+psycopg2://db.example.com:5432/catalog"
            raise ConfigurationError(f"{name}: {unread}", "is not read by connections of this type", remedy)


def _try_warehouse(properties: Mapping[str, str]) -> bool:
    """Do the check of :meth:`LakeHook.check_warehouse`; raise the store's own errors."""
    from airflow_provider_rfr.lake.files import FileStore

    warehouse = properties.get("warehouse", "").rstrip("/")
    # A REST catalog may vend credentials for its tables alone, and only it knows what its warehouses are called.
    if properties.get("type") == "rest" or not (urlsplit(warehouse).scheme or warehouse.startswith("/")):
        return False
    location = f"{warehouse}/.rfr-connection-test-{uuid4().hex}"
    # Short timeouts, because a person waits for the answer in a browser.
    store = FileStore({"s3.connect-timeout": "5", "s3.request-timeout": "10", **properties})
    store.write(location, b"")
    store.delete([location])
    return True


def _check_address(field: str, address: str) -> None:
    try:
        urlsplit(address)
    except ValueError:
        # The text of the error may quote a password.
        raise ConfigurationError(field, "its host can't be read", "write an address without odd brackets") from None


def _credentials(kind: str, connection: Connection) -> dict[str, str]:
    login, password = connection.login, connection.password
    if kind == "sql" and login:
        parts = urlsplit(str(connection.host))
        # A login in the address itself takes precedence.
        if parts.hostname and not names_login(str(connection.host)):
            who = quote(login, safe="") + (f":{quote(password, safe='')}" if password else "")
            return {"uri": urlunsplit(parts._replace(netloc=f"{who}@{parts.netloc}"))}
    if kind == "rest" and password:
        return {"credential": f"{login}:{password}"} if login else {"token": str(password)}
    if kind in ("glue", "dynamodb") and login and password:
        return {"client.access-key-id": login, "client.secret-access-key": str(password)}
    return {}


def table_asset(table: str, lake_conn_id: str = LakeHook.default_conn_name) -> Asset:
    """Return the asset of a table that refreshes publish, to schedule DAGs on.

    The connection's id stands for the catalog, because no connection may be read while a DAG is parsed.

    :param table: ``namespace.table``
    :param lake_conn_id: the connection ``lake_conn_id`` of the refresh; default ``rfr_lake_default``
    :raises ConfigurationError: ``table`` is not a table's name, or an argument is a template
    """
    check_identifier(table, "table")
    if is_pending(lake_conn_id):
        raise ConfigurationError(
            "lake_conn_id", "is a template, which an asset can't have", "write the connection's id"
        )
    path = "/".join(quote(part, safe="") for part in (lake_conn_id, *table.split(".")))
    return Asset(uri=f"rfr://{path}")


def shows_rows() -> bool:
    """Return ``[rfr] show_rows``: whether rows of tables are shown at all."""
    return bool(conf.getboolean("rfr", "show_rows", fallback=False))


_FIGURES = {"rfr.generation": "generation", "rfr.rows": "rows", "rfr.stream": "stream", "rfr.run-key": "run_key"}


class Position(NamedTuple):
    """A position in a table's history. A table that was dropped and created again has another UUID, and counts from 1.

    :ivar sequence: Iceberg's sequence number of a commit; 0 before the first one
    """

    table_uuid: str
    sequence: int


class CommitsReader:
    """A reader of the commits of a catalog's tables. Its methods block, so a trigger calls them in a thread.

    :param connection: a connection of type ``rfr_lake``
    :raises ConfigurationError: the connection is of another type, or incomplete
    """

    def __init__(self, connection: Connection) -> None:
        self._settings = lake_settings(connection)

    def position(self, table: str) -> Position | None:
        """Return the position of the table's newest commit; None where there is no table."""
        log = self._log(table)
        if log is None:
            return None
        records = log.commits()
        return Position(log.table_uuid, records[-1].sequence if records else 0)

    def commits(self, table: str, after: Position | None) -> list[tuple[Position, dict[str, Any] | None]]:
        """Return the commits after a position, oldest first, each with its position.

        A commit is a JSON object; a compaction is None, because it is no event.

        :param after: None, or the position of a table that was dropped, for all commits
        """
        log = self._log(table)
        if log is None:
            return []
        is_same_table = after is not None and after.table_uuid == log.table_uuid
        records = log.commits(after.sequence if after is not None and is_same_table else None)
        return [
            (Position(log.table_uuid, record.sequence), _values(table, record) if record.changes_rows else None)
            for record in records
        ]

    def newest_after(
        self, tables: Sequence[str], after: datetime, snapshots: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return the newest commit by table; None if a table has no commit that counts. Compactions never count.

        :param after: later commits count
        :param snapshots: by table, the id of a snapshot that counts as well, as do the commits after it
        """
        commits = {}
        for table in tables:
            records = self._changes(table)
            counts = any(str(record.snapshot_id) == snapshots.get(table) for record in records)
            if not records or not (counts or _committed_at(records[-1]) > after):
                return None
            commits[table] = _values(table, records[-1])
        return commits

    def newest(self, table: str) -> dict[str, Any] | None:
        """Return the table's newest commit that is no compaction; None if it has none."""
        records = self._changes(table)
        return _values(table, records[-1]) if records else None

    def _changes(self, table: str) -> list[CommitRecord]:
        """Return the table's commits that are no compactions, oldest first."""
        log = self._log(table)
        return [record for record in log.commits() if record.changes_rows] if log is not None else []

    def _log(self, table: str) -> CommitLog | None:
        from airflow_provider_rfr.lake.commits import CommitLog

        return CommitLog.load(self._catalog, table)

    @cached_property
    def _catalog(self) -> Catalog:
        from airflow_provider_rfr.lake.catalog import open_catalog

        return open_catalog(self._settings)


def snapshots_of(events: Iterable[Any], tables: Sequence[str], lake_conn_id: str) -> dict[str, str]:
    """Return the snapshot id by table that asset events name; the last one of several events of a table.

    :param events: events of refreshes, with the figures of the asset's table in ``extra``, and of ``CommitTrigger``
    """
    by_uri = {table_asset(table, lake_conn_id).uri: table for table in tables}
    snapshots = {}
    for event in sorted(events, key=lambda event: event.timestamp):
        payload = event.extra.get("payload")
        watched = payload if isinstance(payload, Mapping) else {}
        table = watched.get("table", by_uri.get(event.asset.uri))
        snapshot = watched.get("snapshot_id", event.extra.get("snapshot_id"))
        if table in tables and snapshot is not None:
            snapshots[table] = str(snapshot)
    return snapshots


def _values(table: str, record: CommitRecord) -> dict[str, Any]:
    figures: dict[str, Any] = {name: record.summary[key] for key, name in _FIGURES.items() if key in record.summary}
    figures |= {name: int(figures[name]) for name in ("generation", "rows") if str(figures.get(name, "")).isdecimal()}
    return {
        "table": table,
        "snapshot_id": str(record.snapshot_id),  # Airflow's pages round a number of this size
        "sequence": record.sequence,
        "committed_at": _committed_at(record).isoformat(),
        **figures,
    }


def _committed_at(record: CommitRecord) -> datetime:
    return datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc)
