"""The lake's catalog, as an Airflow connection of type ``rfr_lake``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog

_S3 = {
    "s3_endpoint": "s3.endpoint",
    "s3_region": "s3.region",
    "s3_access_key_id": "s3.access-key-id",
    "s3_secret_access_key": "s3.secret-access-key",
}


class LakeHook(BaseHook):
    """Opens the catalog that a connection describes.

    :param lake_conn_id: connection of type ``rfr_lake``
    """

    conn_name_attr = "lake_conn_id"
    default_conn_name = "rfr_lake_default"
    conn_type = "rfr_lake"
    hook_name = "Lake catalog (RFR)"

    def __init__(self, lake_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.lake_conn_id = lake_conn_id

    def get_lake_settings(self) -> LakeSettings:
        """The catalog's name and properties; they may hold secrets.

        The connection's host is the catalog's URI, into which login and password go where it has none (a REST
        catalog gets them as its credential). ``properties`` of the extra are PyIceberg's, and win.

        :raises ConfigurationError: a field is missing or no JSON
        """
        connection = self.get_connection(self.lake_conn_id)
        extra = dict(connection.extra_dejson)
        kind = str(extra.get("catalog_type") or "sql")
        properties = {"type": kind}
        if connection.host:
            properties["uri"] = self._uri(connection, kind, properties)
        if extra.get("warehouse"):
            properties["warehouse"] = str(extra["warehouse"])
        properties.update({name: str(extra[field]) for field, name in _S3.items() if extra.get(field)})
        properties.update(self._more(extra.get("properties")))
        if kind in ("sql", "rest", "hive") and "uri" not in properties:
            raise self._wrong("host", "the catalog URI is missing", "e.g. sqlite:////data/catalog.db")
        return LakeSettings(str(extra.get("catalog_name") or "rfr"), properties)

    def get_conn(self) -> Any:
        """The open PyIceberg catalog."""
        return open_catalog(self.get_lake_settings())

    def test_connection(self) -> tuple[bool, str]:
        """Open the catalog and list its namespaces."""
        try:
            found = self.get_conn().list_namespaces()
        except RfrError as error:
            return False, str(error)
        except Exception as error:  # noqa: BLE001 - every catalog has errors of its own, and their texts may hold secrets
            return False, f"the catalog can't be listed: {type(error).__name__}"
        return True, f"the catalog answers; it has {len(found)} namespaces"

    def _uri(self, connection: Any, kind: str, properties: dict[str, str]) -> str:
        uri = str(connection.host)
        if not connection.password:
            return uri
        if kind == "rest":
            login = f"{connection.login}:" if connection.login else ""
            properties["credential" if connection.login else "token"] = f"{login}{connection.password}"
            return uri
        scheme, separator, rest = uri.partition("://")
        if not separator or scheme.startswith("sqlite") or "@" in rest:
            return uri
        from urllib.parse import quote

        return f"{scheme}://{quote(connection.login or '', safe='')}:{quote(connection.password, safe='')}@{rest}"

    def _more(self, value: Any) -> dict[str, str]:
        if not value:
            return {}
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise self._wrong(
                    "properties", "is no JSON", 'write an object, e.g. {"s3.region": "eu-west-1"}'
                ) from None
        if not isinstance(value, Mapping):
            raise self._wrong("properties", "is no object", 'write e.g. {"s3.region": "eu-west-1"}')
        return {str(name): str(item) for name, item in value.items()}

    def _wrong(self, field: str, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"connection {self.lake_conn_id}: {field}", problem, remedy)
