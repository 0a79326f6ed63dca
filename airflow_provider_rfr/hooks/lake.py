"""The connection of a lake's catalog (type ``rfr_lake``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

from airflow.sdk import BaseHook

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.common import connection_named, extras_of, is_secret, mapping_extra, require_type

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.lake.catalog import LakeSettings

_CATALOG_TYPES = ("sql", "rest", "hive", "glue", "dynamodb")
_NAMED_BY_ADDRESS = frozenset({"sql", "rest", "hive"})
_STORE_EXTRAS = {
    "warehouse": "warehouse",
    "s3_endpoint": "s3.endpoint",
    "s3_region": "s3.region",
    "s3_access_key_id": "s3.access-key-id",
    "s3_secret_access_key": "s3.secret-access-key",
}


@dataclass(frozen=True, slots=True)
class LakeDocument:
    """Name and PyIceberg properties of a catalog; the properties may hold secrets."""

    name: str
    properties: dict[str, str] = field(repr=False)

    def secrets(self) -> list[str]:
        """Values that must not be shown."""
        found = [value for key, value in self.properties.items() if is_secret(key)]
        password = urlsplit(self.properties.get("uri", "")).password
        return found + ([password] if password else [])


class LakeHook(BaseHook):
    """Reads an ``rfr_lake`` connection: catalog, warehouse, and the credentials of both."""

    conn_name_attr = "lake_conn_id"
    default_conn_name = "rfr_lake_default"
    conn_type = "rfr_lake"
    hook_name = "Lake catalog (RFR)"

    def __init__(self, lake_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.lake_conn_id = lake_conn_id

    def get_conn(self) -> LakeSettings:
        """The same as :meth:`get_lake_settings`."""
        return self.get_lake_settings()

    def get_lake_document(self) -> LakeDocument:
        """The catalog's settings, without opening it.

        :raises ConfigurationError: the connection is of another type, or says too little
        """
        remedy = "make one of type rfr_lake, with the catalog's URI and the warehouse"
        return lake_document(connection_named(self.lake_conn_id, "lake_conn_id", remedy))

    def get_lake_settings(self) -> LakeSettings:
        """The catalog's settings, for ``airflow_provider_rfr.lake``.

        :raises ConfigurationError: the connection is of another type, or says too little
        """
        from airflow_provider_rfr.lake.catalog import LakeSettings

        document = self.get_lake_document()
        return LakeSettings(document.name, document.properties)

    def test_connection(self) -> tuple[bool, str]:
        """List the catalog's namespaces, and write and delete an object below the warehouse."""
        try:
            document = self.get_lake_document()
        except ConfigurationError as error:
            return False, str(error)
        secrets = [*document.secrets(), BaseHook.get_connection(self.lake_conn_id).password or ""]
        doing = "The catalog can't be opened"
        try:
            from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog

            count = len(open_catalog(LakeSettings(document.name, document.properties)).list_namespaces())
            doing = "The catalog works, but nothing can be written below the warehouse"
            written = _try_warehouse(document.properties)
        except Exception as error:  # noqa: BLE001 - each catalog and each store has errors of its own
            return False, f"{doing}: {_reason(error, secrets)}"
        return True, f"The catalog has {count} namespaces" + (", and the warehouse can be written" if written else "")


def lake_document(connection: Connection) -> LakeDocument:
    """What an ``rfr_lake`` connection says, in PyIceberg's words.

    :raises ConfigurationError: it is of another type, or says too little
    """
    require_type(connection, LakeHook.conn_type)
    extras = extras_of(connection)
    kind = str(extras.get("catalog_type", "sql"))
    name = f"connection {connection.conn_id}"
    if kind not in _CATALOG_TYPES:
        raise ConfigurationError(f"{name}: catalog_type", f"{kind!r} is unknown", f"one of {', '.join(_CATALOG_TYPES)}")
    if kind in _NAMED_BY_ADDRESS and not connection.host:
        raise ConfigurationError(
            f"{name}: host", "is empty", "write the catalog's URI, e.g. sqlite:////data/catalog.db"
        )
    properties = {"type": kind}
    if connection.host:
        properties["uri"] = str(connection.host)
    properties |= {key: str(extras[field]) for field, key in _STORE_EXTRAS.items() if field in extras}
    properties |= _credentials(kind, connection)
    if "properties" in extras:
        more = mapping_extra(connection, "properties", extras["properties"])
        properties |= {str(key): _text(value) for key, value in more.items()}
    if kind == "sql":
        _check_warehouse(name, properties.get("warehouse"))
    return LakeDocument(str(extras.get("catalog_name", "rfr")), properties)


def _check_warehouse(name: str, warehouse: str | None) -> None:
    """A SQL catalog itself decides where tables are, and from a relative path each process would decide otherwise."""
    remedy = "write the folder of the tables, e.g. s3://bucket/warehouse or file:///data/warehouse"
    if not warehouse:
        raise ConfigurationError(f"{name}: warehouse", "is empty", remedy)
    if not (urlsplit(warehouse).scheme or warehouse.startswith("/")):
        raise ConfigurationError(f"{name}: warehouse", f"{warehouse!r} is relative", remedy)


def _try_warehouse(properties: Mapping[str, str]) -> bool:
    """Write and delete a small object; False where the warehouse is a name that only the catalog understands.

    :raises Exception: the store's own
    """
    from airflow_provider_rfr.lake.files import FileStore

    warehouse = properties.get("warehouse", "").rstrip("/")
    if not (urlsplit(warehouse).scheme or warehouse.startswith("/")):
        return False
    location = f"{warehouse}/.rfr-connection-test-{uuid4().hex}"
    # Somebody waits for the answer in a browser.
    store = FileStore({"s3.connect-timeout": "5", "s3.request-timeout": "10", **properties})
    store.write(location, b"")
    store.delete([location])
    return True


def _reason(error: Exception, secrets: Sequence[str]) -> str:
    """An error's first line, or its kind where it says nothing, without secrets."""
    from airflow_provider_rfr.refresh.errors import redact

    return redact((str(error).strip().splitlines() or [type(error).__name__])[0][:500], filter(None, secrets))


def _credentials(kind: str, connection: Connection) -> dict[str, str]:
    login, password = connection.login, connection.password
    if not password and not (kind == "sql" and login):
        return {}
    if kind == "sql":
        return {"uri": _with_login(str(connection.host), login, password)}
    if kind == "rest":
        return {"credential": f"{login}:{password}"} if login else {"token": str(password)}
    if kind in ("glue", "dynamodb") and login:
        return {"client.access-key-id": login, "client.secret-access-key": str(password)}
    return {}


def _with_login(uri: str, login: str | None, password: str | None) -> str:
    """A database's address with the connection's login; one that the address names itself stays."""
    parts = urlsplit(uri)
    if not login or not parts.hostname or parts.username:
        return uri
    who = quote(login, safe="") + (f":{quote(password, safe='')}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{who}@{parts.netloc}"))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
