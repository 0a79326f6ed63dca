"""The types of connections whose options are known; of any other the fields that every connection has."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.connections.options import ConnectionType, Option, OptionType, core_options

_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_CATALOGS: Final = ("sql", "rest", "hive", "glue", "dynamodb")


def _by_name(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


def _no_credentials(definition: Definition) -> tuple[str, str] | None:
    """An address with a password in it would show it."""
    try:
        host = definition.host or ""
        parts = urlsplit(host if "://" in host else f"//{host}")
        has_credentials = bool(parts.password or (parts.username and definition.conn_type == "rfr_api"))
    except ValueError:
        return "host", "is no address; write e.g. https://api.example.com/v1"
    return ("host", "holds credentials; put them into login and password") if has_credentials else None


def _catalog_has_address(definition: Definition) -> tuple[str, str] | None:
    kind = str(definition.get("extra.catalog_type") or "sql")
    if kind in ("sql", "rest", "hive") and not definition.host:
        return "host", "must be set for this catalog_type; write the catalog's URI, e.g. sqlite:////data/catalog.db"
    return None


def _key_pair(definition: Definition) -> tuple[str, str] | None:
    names = ("extra.s3_access_key_id", "extra.s3_secret_access_key")
    missing = [name for name in names if not definition.get(name)]
    if len(missing) == 1:
        return missing[0], "must be set: the other half of the key is; set both or none"
    return None


def _password_has_login(definition: Definition) -> tuple[str, str] | None:
    return ("login", "must be set, since password is") if definition.password and not definition.login else None


def _certificate_pair(definition: Definition) -> tuple[str, str] | None:
    names = ("extra.sslcert", "extra.sslkey")
    missing = [name for name in names if not definition.get(name)]
    return (missing[0], "must be set, since the other one is; set both or none") if len(missing) == 1 else None


API: Final = ConnectionType(
    "rfr_api",
    {
        **core_options(host=Option("host", OptionType.URL, required=True)),
        **_by_name(
            Option("extra.client_secret", secret=True),
            Option("extra.refresh_token", secret=True),
            Option("extra.secrets", OptionType.OBJECT, secret=True),
            Option("extra.test_path"),
            Option("extra.identity_path"),
            Option("extra.ssh_conn_id", is_reference=True),
        ),
    },
    rules=(_no_credentials,),
    aliases={"base_url": "host"},
)
LAKE: Final = ConnectionType(
    "rfr_lake",
    {
        **core_options(),
        **_by_name(
            Option("extra.catalog_name", default="rfr", inalterable=True),
            Option("extra.catalog_type", default="sql", choices=_CATALOGS, inalterable=True),
            Option("extra.warehouse", inalterable=True),
            Option("extra.s3_endpoint", OptionType.URL),
            Option("extra.s3_region"),
            Option("extra.s3_access_key_id"),
            Option("extra.s3_secret_access_key", secret=True),
            Option("extra.properties", OptionType.OBJECT, secret=True),
        ),
    },
    rules=(_catalog_has_address, _key_pair, _no_credentials),
    aliases={"uri": "host"},
)
HTTP: Final = ConnectionType(
    "http",
    {
        **core_options(
            host=Option("host", required=True), schema=Option("schema", default="http", choices=("http", "https"))
        ),
        **_by_name(Option("extra.verify", OptionType.BOOLEAN), Option("extra.timeout", OptionType.INTEGER)),
    },
    rules=(_no_credentials,),
)
POSTGRES: Final = ConnectionType(
    "postgres",
    {
        **core_options(port=Option("port", OptionType.PORT, default=5432)),
        **_by_name(
            Option("extra.service"),
            Option("extra.sslmode", default="prefer", choices=_SSL_MODES),
            Option("extra.sslcert"),
            Option("extra.sslkey"),
            Option("extra.sslrootcert"),
            Option("extra.ssh_conn_id", is_reference=True),
        ),
    },
    exclusive=(frozenset({"host", "extra.service"}),),
    one_of=(("host", "extra.service"),),
    rules=(_password_has_login, _certificate_pair),
    aliases={"database": "schema", "user": "login"},
)
SSH: Final = ConnectionType(
    "ssh",
    {
        **core_options(host=Option("host", required=True), port=Option("port", OptionType.PORT, default=22)),
        **_by_name(
            Option("extra.private_key", secret=True),
            Option("extra.next_private_key", secret=True),
            Option("extra.public_keys"),
            Option("extra.key_file"),
        ),
    },
    exclusive=(frozenset({"extra.private_key", "extra.key_file"}),),
    has_keys=True,
    aliases={"user": "login"},
)
GENERIC: Final = ConnectionType("generic", core_options())
TYPES: Final = {each.name: each for each in (API, LAKE, HTTP, POSTGRES, SSH)}


def type_named(conn_type: str) -> ConnectionType:
    """What is known of the type; Airflow writes some types with a dash and some with a low line."""
    name = re.sub("-", "_", conn_type)
    return TYPES.get({"https": "http", "postgresql": "postgres"}.get(name, name), GENERIC)


def may_be_secret(option: str) -> bool:
    """Whether the option is secret in connections of any type that is known."""
    return any(each.is_secret(each.full_name(option)) for each in (GENERIC, *TYPES.values()))
