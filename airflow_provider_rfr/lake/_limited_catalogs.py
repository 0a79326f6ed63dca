"""Loads catalogs whose clients raise an error where the server does not answer; PyIceberg's own wait for ever."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.catalog import BOTOCORE_SESSION, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.utils.config import Config, merge_config

from airflow_provider_rfr.databases import ANSWER_SECONDS, CONNECT_SECONDS, limit_waits
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from requests import Response, Session

CONNECT_TIMEOUT: Final = "rfr.connect-timeout"
READ_TIMEOUT: Final = "rfr.read-timeout"


class WaitLimits(NamedTuple):
    """Seconds to wait for a connection, and for an answer."""

    connect: float
    read: float

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> WaitLimits:
        """Read the limits from a catalog's properties.

        :raises ConfigurationError: a limit is not a positive number
        """
        return cls(
            _seconds(properties, CONNECT_TIMEOUT, CONNECT_SECONDS), _seconds(properties, READ_TIMEOUT, ANSWER_SECONDS)
        )

    def for_jdbc(self) -> dict[str, str]:
        """Return properties that Iceberg hands to PostgreSQL's JDBC driver, whose own socket timeout is infinite."""
        return {"jdbc.connectTimeout": str(ceil(self.connect)), "jdbc.socketTimeout": str(ceil(self.read))}


def _seconds(properties: Mapping[str, Any], name: str, default: float) -> float:
    value = properties.get(name, default)
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"lake.properties.{name}", f"{value!r} is not a positive number of seconds", f"write e.g. {default:g}"
        )
    return seconds


def load_limited(name: str, properties: Mapping[str, str]) -> Catalog:
    """Load a catalog as PyIceberg's ``load_catalog`` does, with limits for its client.

    :raises ConfigurationError: a limit is not a positive number
    """
    limits = WaitLimits.of(properties)
    settings: dict[str, Any] = dict(merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    if "py-catalog-impl" in properties:
        return load_catalog(name, **properties)
    kind = CatalogType(str(settings["type"]).lower()) if "type" in settings else infer_catalog_type(name, settings)
    if kind is CatalogType.REST and "uri" in settings:
        # A server that is silent would be asked ten times more.
        return _rest_catalog()(name, **{"rest.sigv4.max-retries": "0", **settings})
    if kind is CatalogType.SQL and "uri" in settings:
        return _sql_catalog()(name, **settings)
    if kind in (CatalogType.GLUE, CatalogType.DYNAMODB) and find_spec("botocore"):
        catalog = load_catalog(name, **properties, **{BOTOCORE_SESSION: _botocore_session(limits)})
        # The tables' files get the catalog's properties, and tasks get them from there.
        del catalog.properties[BOTOCORE_SESSION]
        return catalog
    return load_catalog(name, **properties)


@cache
def _rest_catalog() -> type[Catalog]:
    from pyiceberg.catalog.rest import RestCatalog
    from requests import Session

    class LimitedSession(Session):
        limits: WaitLimits

        def request(self, *args: Any, **kwargs: Any) -> Response:
            return super().request(*args, **{"timeout": self.limits, **kwargs})

    class LimitedRestCatalog(RestCatalog):
        def _config_headers(self, session: Session) -> None:
            # The first that is done with each session, before any request for a token.
            super()._config_headers(session)
            session.__class__ = LimitedSession
            session.limits = WaitLimits.of(self.properties)  # type: ignore[attr-defined]

    return LimitedRestCatalog


@cache
def _sql_catalog() -> type[Catalog]:
    from pyiceberg.catalog.sql import SqlCatalog

    class LimitedSqlCatalog(SqlCatalog):
        def _init_catalog(self) -> None:
            limit_waits(self.engine, *WaitLimits.of(self.properties))
            super()._init_catalog()

    return LimitedSqlCatalog


def _botocore_session(limits: WaitLimits) -> Any:
    import botocore.config
    import botocore.session

    session = botocore.session.get_session()
    session.set_default_client_config(botocore.config.Config(connect_timeout=limits.connect, read_timeout=limits.read))
    return session
