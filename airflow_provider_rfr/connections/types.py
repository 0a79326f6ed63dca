"""Connection types and their options: names, types, which are secret, and how values are checked.

The content hash identifies a copy of a connection. It is an HMAC, so that a reader of the hash can't try passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from airflow_provider_rfr.connections.statement import boolean, name_of, parts_of
from airflow_provider_rfr.exceptions import Problem
from airflow_provider_rfr.http.redaction import (
    MASK,
    is_secret_extra,
    passwords_in,
    secrets_of_url,
    without_credentials,
    without_path,
)

_EXTRA: Final = "extra."
_CORE: Final = ("host", "port", "login", "password", "schema", "description")
PLACE: Final = ("conn_type", "host", "schema", "port", "login")
"""The fields that say where a connection leads; a refresh's fingerprint depends on them."""
REQUEST_OPTIONS: Final = frozenset(
    {
        *("allow_redirects", "cert", "check_response", "max_redirects", "proxies", "proxy", "srv_lookup", "stream"),
        *("timeout", "trust_env", "verify", "verify_ssl"),
    }
)
"""Extra fields that Airflow's HTTP hook reads as options of the request; it sends the others as headers."""
LIBPQ_OPTIONS: Final = (
    *("service", "sslmode", "sslcert", "sslkey", "sslrootcert", "connect_timeout", "tcp_user_timeout"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
)
"""Extra fields that are passed to PostgreSQL's driver where this package opens a connection itself."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A connection's settings as Airflow stores them, with extra fields parsed; ``repr`` shows no value of them."""

    name: str
    conn_type: str
    host: str | None = field(default=None, repr=False)
    port: int | None = field(default=None, repr=False)
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    schema: str | None = field(default=None, repr=False)
    description: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def get(self, option: str) -> Any:
        """Return the option's value; None if it has none."""
        if not option.startswith(_EXTRA):
            return getattr(self, option)
        value: Any = self.extra
        for part in _path(option):
            value = _as_mapping(value).get(part)
        return value

    def place(self) -> dict[str, Any]:
        """Return the place that the connection leads to: its fields of :data:`PLACE`."""
        return {name: getattr(self, name) for name in PLACE}

    def having(self, option: str, value: Any) -> Definition:
        """Return a copy in which the option has the value; None removes the option."""
        if not option.startswith(_EXTRA):
            changes: dict[str, Any] = {option: value}
            return replace(self, **changes)
        return replace(self, extra=_with(self.extra, _path(option), value))

    def options(self) -> Iterator[tuple[str, Any]]:
        """Yield every option that has a value, with the value; nested extra fields are flattened to their leaves."""
        for name in _CORE:
            if getattr(self, name) not in (None, ""):
                yield name, getattr(self, name)
        yield from _leaves(_EXTRA.rstrip("."), self.extra)

    def contents(self) -> dict[str, Any]:
        """Return the options that have a value, normalized: definitions with equal contents are the same connection."""
        return {name: _as_texts(value) for name, value in self.options()}

    def scalar_above(self, option: str) -> str | None:
        """Return the field above this option that holds a scalar, which setting the option would overwrite."""
        value: object = self.extra
        *above, _ = _path(option) if option.startswith(_EXTRA) else [""]
        for place, part in enumerate(above, 1):
            value = _as_mapping(value).get(part)
            if value not in (None, "", {}) and not _as_mapping(value):
                return _EXTRA + name_of(above[:place])
        return None

    def extra_text(self) -> str | None:
        return json.dumps(self.extra) if self.extra else None


def _path(option: str) -> list[str]:
    return parts_of(option.removeprefix(_EXTRA))


def _with(extra: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    changed, first = dict(extra), path[0]
    if len(path) > 1:
        # An object that loses its last field is removed as well.
        value = _with(_as_mapping(changed.get(first)), path[1:], value) or None
    if value is None:
        changed.pop(first, None)
    else:
        changed[first] = value
    return changed


def object_in(value: Any) -> Mapping[str, Any] | None:
    """Return the value if it is a JSON object, or the text of one, as a form stores it; else None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return object_in(value) or {}


def _leaves(place: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        full = f"{place}.{name_of([str(name)])}"
        if isinstance(item, Mapping) and item:
            yield from _leaves(full, item)
        elif item not in (None, ""):
            yield full, item


REFERENCE_SUFFIX: Final = "_conn_id"
_DEEPEST: Final = 32
"""The most levels of nested extra fields."""


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be text")
    text = str(value)
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be text in UTF-8, without NUL")
    return text


def _integer(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, (bool, float)) or not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError("must be an integer")
    return int(text)


def _port(value: Any) -> int:
    try:
        number = _integer(value)
    except ValueError:
        number = 0
    if not 0 < number < 65536:
        raise ValueError("must be a port, an integer from 1 to 65535")
    return number


def _certificates(value: Any) -> bool | str:
    is_verified = boolean(value)
    return _text(value) if is_verified is None else is_verified


def _web_parts(text: str) -> SplitResult | None:
    """Return the parts of a web address, https where it names no scheme; None if the text is not a web address."""
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if fits and not any(character.isspace() for character in text) else None


def _url(value: Any) -> str:
    text = _text(value).strip()
    parts = _web_parts(text)
    host = "" if parts is None else parts.hostname or ""
    # A single word without a scheme parses as an address, but is more likely a mistake.
    named = "://" in text or bool(set(host) & set(".:")) or host == "localhost"
    if parts is None or not (named or parts.port):
        raise ValueError("must be a web address, e.g. https://api.example.com/v1")
    return text


def _web_host(value: Any) -> str:
    """Return a host or a web address, as Airflow's HTTP hook takes them."""
    text = _text(value).strip()
    if _web_parts(text) is None:
        raise ValueError("must be a host or a web address, e.g. https://hooks.example.com")
    return text


def _object(value: Any) -> Any:
    if object_in(value) is None:
        raise ValueError('must be a JSON object, e.g. \'{"a": "b"}\'')
    return value


def _any(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        raise ValueError("must be what JSON can hold: text, a finite number, true, false, a list, an object") from None
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a type.

    :ivar name: as statements write it
    :ivar read: converts a value to the option's type; raises ValueError
    :ivar inalterable: it can't change while anything uses the connection, because progress is kept where it leads
    :ivar is_reference: its value is the id of another connection
    :ivar choices: the allowed values; empty for any
    """

    name: str
    read: Callable[[Any], Any] = _text
    required: bool = False
    secret: bool = False
    inalterable: bool = False
    is_reference: bool = False
    choices: tuple[str, ...] = ()

    def fit(self, value: Any) -> Any:
        """Return the value in the option's type.

        :raises ValueError: it does not fit; the message says which values would
        """
        converted = self.read(value)
        if self.choices and converted not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return converted


_Rule = Callable[[Definition], Problem | None]
"""A check across fields, which returns the problem; None if there is none."""


@dataclass(frozen=True, slots=True)
class ConnectionType:
    """A connection type with its options and the rules for them.

    :ivar options: options by name; other extra fields are allowed as well
    :ivar exclusive: groups of options of which at most one may be set; setting one removes the others
    :ivar one_of: groups of options of which at least one must be set
    :ivar rules: checks across fields
    :ivar has_keys: whether keys can be rotated
    :ivar has_headers: whether its extra fields are sent as headers. These are secret, and so is the path of its host:
        the address of a webhook often holds a token
    :ivar aliases: options by their other names
    """

    name: str
    options: Mapping[str, Option]
    exclusive: tuple[frozenset[str], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    rules: tuple[_Rule, ...] = ()
    has_keys: bool = False
    has_headers: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def full_name(self, option: str) -> str:
        """Return the option's full name, for an alias or an extra field that is written without ``extra.``."""
        if option in self.options or option.startswith(_EXTRA):
            return option
        option = self.aliases.get(option, option)
        return _EXTRA + option if _EXTRA + option in self.options else option

    def option(self, name: str) -> Option | None:
        """Return the option; None if there is none.

        For an extra field that the type does not declare, the option is derived from the field's name.
        """
        known_option, path = self.options.get(name), _path(name)
        if known_option is not None or not (name.startswith(_EXTRA) and len(path) <= _DEEPEST and all(path)):
            return known_option
        above = [option for option in self.options.values() if name.startswith(f"{option.name}.")]
        if any(option.read is not _object for option in above):
            return None
        # A field below a secret object (rfr_api's extra.secrets) is as secret as the object.
        inherited = any(option.secret for option in above)
        is_reference = path[-1].endswith(REFERENCE_SUFFIX)
        is_header = self.has_headers and path[0] not in REQUEST_OPTIONS and not is_reference
        secret = inherited or is_header or is_secret_extra(name.removeprefix(_EXTRA))
        return Option(name, _any, secret=secret, is_reference=is_reference)

    def is_secret(self, name: str) -> bool:
        """Tell whether the option's value must not be shown; for an unknown option, its name decides."""
        option = self.option(name)
        return self.has_headers or is_secret_extra(name) if option is None else option.secret

    def displayed_value(self, name: str, value: object) -> str:
        """Return the option's value for display, without its secret parts."""
        if self.is_secret(name):
            return MASK
        return without_path(str(value)) if self._has_secret_path(name) else without_credentials(str(value))

    def secret_values(self, name: str, value: Any) -> Iterator[Any]:
        """Yield the secret parts of the option's value."""
        if self.is_secret(name):
            yield value
        elif self._has_secret_path(name):
            url = str(value) if "://" in str(value) else f"https://{value}"
            yield from secrets_of_url(url)

    def _has_secret_path(self, name: str) -> bool:
        return self.has_headers and name == "host"


def _options(*more: Option, without: Collection[str] = ()) -> dict[str, Option]:
    """Return options by name: the fields that every connection has, and those of a type, which take precedence.

    :param without: fields that the type's hook does not read
    """
    core = [Option(name) for name in _CORE]
    every = [*core, Option("port", _port), Option("password", secret=True), *more]
    return {option.name: option for option in every if option.name not in without}


_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
CATALOG_TYPES: Final = ("sql", "rest", "hive", "glue", "dynamodb")


def _no_credentials(definition: Definition) -> Problem | None:
    """Check that an address holds no password, because it is shown; return the problem."""
    try:
        host = definition.host or ""
        address = host if "://" in host else f"//{host}"
        parts = urlsplit(address)
    except ValueError:
        return Problem("host", "must be an address", "write e.g. https://api.example.com/v1")
    if passwords_in(address) or (parts.username and definition.conn_type in ("rfr_api", "rfr_http")):
        return Problem("host", "holds credentials", "put them into login and password")
    return None


def _catalog_has_address(definition: Definition) -> Problem | None:
    kind = str(definition.get("extra.catalog_type") or "sql")
    if kind in ("sql", "rest", "hive") and not definition.host:
        remedy = "write the catalog's URI, e.g. sqlite:////data/catalog.db"
        return Problem("host", "must be set for this catalog_type", remedy)
    return None


def _one_port(definition: Definition) -> Problem | None:
    """Return a problem where the host names another port than the field."""
    try:
        host = definition.host or ""
        port = urlsplit(host if "://" in host else f"//{host}").port
    except ValueError:
        return None
    if definition.port and port and port != definition.port:
        return Problem("port", f"is not {port}, which the host names", "write the port once")
    return None


def _both_or_none(*names: str) -> _Rule:
    def check(definition: Definition) -> Problem | None:
        missing = [name for name in names if not definition.get(name)]
        if len(missing) == 1:
            return Problem(missing[0], "must be set, since the other one is", "set both or none")
        return None

    return check


def _password_has_login(definition: Definition) -> Problem | None:
    """Return a problem where a password has no login, unless a service may name the user."""
    if definition.password and not definition.login and not definition.get("extra.service"):
        return Problem("login", "must be set, since password is")
    return None


_API: Final = ConnectionType(
    "rfr_api",
    _options(
        Option("host", _url, required=True),
        Option("extra.client_secret", secret=True),
        Option("extra.refresh_token", secret=True),
        Option("extra.secrets", _object, secret=True),
        Option("extra.test_path"),
        Option("extra.identity_path"),
        Option("extra.ssh_conn_id", is_reference=True),
    ),
    rules=(_no_credentials, _one_port),
    aliases={"base_url": "host"},
)
_LAKE: Final = ConnectionType(
    "rfr_lake",
    _options(
        Option("extra.catalog_name", inalterable=True),
        Option("extra.catalog_type", choices=CATALOG_TYPES, inalterable=True),
        Option("extra.warehouse", inalterable=True),
        Option("extra.s3_endpoint", _url),
        Option("extra.s3_region"),
        Option("extra.s3_access_key_id"),
        Option("extra.s3_secret_access_key", secret=True),
        Option("extra.properties", _object, secret=True),
        without=("port", "schema"),
    ),
    rules=(
        _catalog_has_address,
        _both_or_none("extra.s3_access_key_id", "extra.s3_secret_access_key"),
        _no_credentials,
    ),
    aliases={"uri": "host"},
)
_RFR_HTTP: Final = ConnectionType(
    "rfr_http",
    _options(Option("host", _url, required=True), Option("extra.verify", _certificates)),
    rules=(_no_credentials, _one_port),
    has_headers=True,
    aliases={"base_url": "host"},
)
_HTTP: Final = ConnectionType(
    "http",
    _options(
        Option("host", _web_host, required=True),
        Option("schema", choices=("http", "https")),
        Option("extra.verify", _certificates),
        Option("extra.timeout", _integer),
    ),
    rules=(_no_credentials, _one_port),
    has_headers=True,
)
_POSTGRES: Final = ConnectionType(
    "postgres",
    _options(
        Option("extra.service"),
        Option("extra.sslmode", choices=_SSL_MODES),
        Option("extra.sslcert"),
        Option("extra.sslkey"),
        Option("extra.sslrootcert"),
        Option("extra.ssh_conn_id", is_reference=True),
    ),
    exclusive=(frozenset({"host", "extra.service"}),),
    one_of=(("host", "extra.service"),),
    rules=(_password_has_login, _both_or_none("extra.sslcert", "extra.sslkey")),
    aliases={"database": "schema", "user": "login"},
)
_SSH: Final = ConnectionType(
    "ssh",
    _options(
        Option("host", required=True),
        Option("extra.private_key", secret=True),
        Option("extra.next_private_key", secret=True),
        Option("extra.public_keys"),
        Option("extra.key_file"),
    ),
    exclusive=(frozenset({"extra.private_key", "extra.key_file"}),),
    has_keys=True,
    aliases={"user": "login"},
)
# Airflow stores "generic" for http where its HTTP provider is not installed.
_GENERIC: Final = ConnectionType("generic", _options(), has_headers=True)
_OTHER: Final = ConnectionType("other", _options())
_TYPES: Final = {kind.name: kind for kind in (_API, _LAKE, _RFR_HTTP, _HTTP, _GENERIC, _POSTGRES, _SSH)}


def type_named(conn_type: str) -> ConnectionType:
    """Return the type of that name, written with dashes or underscores; all unknown names share one type."""
    name = conn_type.replace("-", "_")
    return _TYPES.get({"https": "http", "postgresql": "postgres"}.get(name, name), _OTHER)


def may_be_secret(option: str) -> bool:
    """Tell whether the option's name implies a secret in a connection of any type."""
    named = (kind for kind in (_OTHER, *_TYPES.values()) if not kind.has_headers)
    return any(kind.is_secret(kind.full_name(option)) for kind in named)


_PURPOSE: Final = b"airflow-provider-rfr connection content 1"
MISSING: Final = "missing"
"""The hash of a connection that is not there."""


class ContentHash:
    """A keyed hash (HMAC) of connection definitions.

    :param key: the installation's key; empty if there is none
    :param salt: tells installations apart that share a key or have none
    """

    def __init__(self, key: bytes, salt: str) -> None:
        self._key = hmac.new(key or b"none", _PURPOSE + salt.encode(), hashlib.sha256).digest()

    def of(self, definition: Definition | None) -> str:
        """Return the hash of all fields but the description, which matters to no user of the connection."""
        if definition is None:
            return MISSING
        content = {**definition.contents(), "description": None, "conn_type": definition.conn_type}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def of_text(self, text: str) -> str:
        """Return the hash of any other text that must not be shown."""
        return hmac.new(self._key, b"text " + text.encode(), hashlib.sha256).hexdigest()


def _as_texts(value: Any) -> Any:
    """Normalize a value: Airflow's API turns numbers in extra fields into text, and nulls into empty text."""
    if isinstance(value, Mapping):
        return {str(name): _as_texts(item) for name, item in value.items() if item not in (None, "")}
    if isinstance(value, (list, tuple)):
        return [_as_texts(item) for item in value]
    if value in (None, ""):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
