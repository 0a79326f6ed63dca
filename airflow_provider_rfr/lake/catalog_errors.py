"""What is wrong with a catalog: its settings before it is opened, and the errors of its client in one sentence.

PyIceberg lets every catalog's client speak for itself: a database driver in three lines with a link, an HTTP client
with the state of its pool. None of them says which catalog it was, or what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import CatalogType
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError

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


def check_settings(name: str, properties: Mapping[str, str]) -> None:
    """Find what no catalog could be opened with.

    :raises ConfigurationError: naming the property
    """
    kind, uri = properties.get("type"), properties.get("uri", "")
    kinds = [each.value for each in CatalogType]
    if kind is not None and kind.lower() not in kinds:
        near = difflib.get_close_matches(kind.lower(), kinds, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(
            "lake.properties.type", f"{kind!r} is no type of catalog", f"{guess}known: {', '.join(kinds)}"
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


def is_of_settings(error: Exception) -> bool:
    """Whether opening failed for what is written in the settings: also SQLAlchemy has a word for that."""
    return isinstance(error, (ValueError, ImportError)) or type(error).__name__ in (
        "ArgumentError",
        "NoSuchModuleError",
    )


def catalog_error(error: BaseException, name: str, properties: Mapping[str, str]) -> CatalogError | None:
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


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
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
    return without_secrets(line.strip(), properties)[:_LONGEST] or type(error).__name__


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
