"""Connection types and their options: names, types, which are secret, and how values are checked.

The content hash tells two copies of a connection apart. It is an HMAC, so that nobody who reads it can try passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from airflow_provider_rfr.connections import statement
from airflow_provider_rfr.secret_names import is_secret

EXTRA: Final = "extra."
_CORE: Final = ("host", "port", "login", "password", "schema", "description")
TYPE: Final = "conn_type"


@dataclass(frozen=True, slots=True)
class Definition:
    """What Airflow keeps of a connection; its values are never shown.

    :ivar extra: the extra fields, as their JSON says
    """

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
        """The option's value; None where it has none."""
        if not option.startswith(EXTRA):
            return getattr(self, option)
        found: Any = self.extra
        for part in parts_of(option):
            found = as_mapping(found).get(part)
        return found

    def having(self, option: str, value: Any) -> Definition:
        """The same with that option; None takes it away."""
        if not option.startswith(EXTRA):
            changes: dict[str, Any] = {option: value}
            return replace(self, **changes)
        return replace(self, extra=_with(self.extra, parts_of(option), value))

    def options(self) -> Iterator[tuple[str, Any]]:
        """Every option that has a value; of nested extra fields the leaves."""
        for name in _CORE:
            if getattr(self, name) not in (None, ""):
                yield name, getattr(self, name)
        yield from _leaves(EXTRA.rstrip("."), self.extra)

    def extra_text(self) -> str | None:
        """The extra fields as Airflow stores them."""
        return json.dumps(self.extra) if self.extra else None


def parts_of(option: str) -> list[str]:
    """The path of an extra field."""
    return statement.parts_of(option.removeprefix(EXTRA))


def parsed_extra(text: str | None) -> dict[str, Any]:
    """Extra fields from their text; what is not a JSON object can't be altered field by field.

    :raises ValueError: it is none; the message does not repeat it
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("extra is not a JSON object")
    return found


def _with(extra: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    made, first = dict(extra), path[0]
    if len(path) == 1:
        made.pop(first, None)
        return made if value is None else {**extra, first: value}
    below = _with(as_mapping(made.get(first)), path[1:], value)
    if below or value is not None:
        made[first] = below
    else:
        made.pop(first, None)
    return made


def as_mapping(value: Any) -> Mapping[str, Any]:
    """An object, also one that a form stored as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _leaves(place: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, each in value.items():
        full = f"{place}.{statement.name_of([str(name)])}"
        if isinstance(each, Mapping) and each:
            yield from _leaves(full, each)
        elif each not in (None, ""):
            yield full, each


REFERENCE_SUFFIX: Final = "_conn_id"
_DEEPEST: Final = 32
"""Levels of nested extra fields."""


class _OptionType(str, Enum):
    """What a value must be."""

    TEXT = "text"
    INTEGER = "an integer"
    BOOLEAN = "true or false"
    URL = "a web address"
    PORT = "a port, 1 to 65535"
    OBJECT = "a JSON object"
    ANY = "any value"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a type.

    :ivar name: as statements write it
    :ivar default: what counts where it is not set; only shown
    :ivar inalterable: it can't change while anything uses the connection: progress is kept by it
    :ivar is_reference: its value is the id of another connection
    :ivar choices: the only values, where they are few
    """

    name: str
    type: _OptionType = _OptionType.TEXT
    required: bool = False
    secret: bool = False
    default: Any = None
    inalterable: bool = False
    is_reference: bool = False
    choices: tuple[str, ...] = ()


_Rule = Callable[[Definition], "tuple[str, str] | None"]
"""A check across fields: None, or the option and what is wrong, with what to write instead."""


@dataclass(frozen=True, slots=True)
class ConnectionType:
    """What is known of a type.

    :ivar options: by name
    :ivar exclusive: of each group at most one may be set; setting one takes the others away
    :ivar one_of: of each group one must be set
    :ivar rules: checks across fields
    :ivar is_open: whether extra fields beside those that are named are taken
    :ivar has_keys: whether keys can be rotated
    """

    name: str
    options: Mapping[str, Option]
    exclusive: tuple[frozenset[str], ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    rules: tuple[_Rule, ...] = ()
    is_open: bool = True
    has_keys: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def full_name(self, option: str) -> str:
        """The option's own name: an alias, and an extra field that is written without ``extra.``, are understood."""
        if option in self.options or option.startswith(EXTRA):
            return option
        option = self.aliases.get(option, option)
        return EXTRA + option if EXTRA + option in self.options else option

    def option(self, name: str) -> Option | None:
        """What is known of the option; of an extra field that the type does not name what its own name says."""
        found = self.options.get(name)
        if found is not None or not (self.is_open and name.startswith(EXTRA) and _is_path(parts_of(name))):
            return found
        last = parts_of(name)[-1]
        above = [each for each in self.options.values() if name.startswith(f"{each.name}.")]
        if any(each.type is not _OptionType.OBJECT for each in above):
            return None
        # A field below a secret object (rfr_api's extra.secrets) is as secret as the object.
        inherited = any(each.secret for each in above)
        return Option(
            name,
            _OptionType.ANY,
            secret=inherited or is_secret(name.removeprefix(EXTRA)),
            is_reference=last.endswith(REFERENCE_SUFFIX),
        )

    def is_secret(self, name: str) -> bool:
        """Whether the option's value must not be shown; of an unknown one what its name says."""
        found = self.option(name)
        return is_secret(name) if found is None else found.secret


def _is_path(parts: Sequence[str]) -> bool:
    return len(parts) <= _DEEPEST and all(parts)


def _core_options(**changes: Option) -> dict[str, Option]:
    """The fields that every connection has, with what a type says otherwise."""
    made = {name: Option(name) for name in _CORE}
    made["port"] = Option("port", _OptionType.PORT)
    made["password"] = Option("password", secret=True)
    return {**made, **changes}


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
        return "host", "is not an address; write e.g. https://api.example.com/v1"
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


_API: Final = ConnectionType(
    "rfr_api",
    {
        **_core_options(host=Option("host", _OptionType.URL, required=True)),
        **_by_name(
            Option("extra.client_secret", secret=True),
            Option("extra.refresh_token", secret=True),
            Option("extra.secrets", _OptionType.OBJECT, secret=True),
            Option("extra.test_path"),
            Option("extra.identity_path"),
            Option("extra.ssh_conn_id", is_reference=True),
        ),
    },
    rules=(_no_credentials,),
    aliases={"base_url": "host"},
)
_LAKE: Final = ConnectionType(
    "rfr_lake",
    {
        **_core_options(),
        **_by_name(
            Option("extra.catalog_name", default="rfr", inalterable=True),
            Option("extra.catalog_type", default="sql", choices=_CATALOGS, inalterable=True),
            Option("extra.warehouse", inalterable=True),
            Option("extra.s3_endpoint", _OptionType.URL),
            Option("extra.s3_region"),
            Option("extra.s3_access_key_id"),
            Option("extra.s3_secret_access_key", secret=True),
            Option("extra.properties", _OptionType.OBJECT, secret=True),
        ),
    },
    rules=(_catalog_has_address, _key_pair, _no_credentials),
    aliases={"uri": "host"},
)
_HTTP: Final = ConnectionType(
    "http",
    {
        **_core_options(
            host=Option("host", required=True), schema=Option("schema", default="http", choices=("http", "https"))
        ),
        **_by_name(Option("extra.verify", _OptionType.BOOLEAN), Option("extra.timeout", _OptionType.INTEGER)),
    },
    rules=(_no_credentials,),
)
_POSTGRES: Final = ConnectionType(
    "postgres",
    {
        **_core_options(port=Option("port", _OptionType.PORT, default=5432)),
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
_SSH: Final = ConnectionType(
    "ssh",
    {
        **_core_options(host=Option("host", required=True), port=Option("port", _OptionType.PORT, default=22)),
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
_GENERIC: Final = ConnectionType("generic", _core_options())
_TYPES: Final = {each.name: each for each in (_API, _LAKE, _HTTP, _POSTGRES, _SSH)}


def type_named(conn_type: str) -> ConnectionType:
    """What is known of the type; Airflow writes some types with a dash and some with a low line."""
    name = re.sub("-", "_", conn_type)
    return _TYPES.get({"https": "http", "postgresql": "postgres"}.get(name, name), _GENERIC)


def may_be_secret(option: str) -> bool:
    """Whether the option is secret in connections of any type that is known."""
    return any(each.is_secret(each.full_name(option)) for each in (_GENERIC, *_TYPES.values()))


_BOOLEANS = {"true": True, "false": False, "on": True, "off": False}


def fitting(option: Option, value: Any) -> Any:
    """The value in its option's type.

    :raises ValueError: it does not fit; the message says what would
    """
    made = _READERS[option.type](value)
    if option.choices and made not in option.choices:
        raise ValueError(f"must be one of {', '.join(option.choices)}")
    return made


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be text")
    text = str(value)
    if not _is_storable(text):
        raise ValueError("must be text in UTF-8, without NUL")
    return text


def _is_storable(text: str) -> bool:
    return not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text)


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


def _boolean(value: Any) -> bool:
    found = value if isinstance(value, bool) else _BOOLEANS.get(str(value).lower())
    if found is None:
        raise ValueError("must be true or false")
    return found


def _url(value: Any) -> str:
    text = _text(value).strip()
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or any(each.isspace() for each in text):
        raise ValueError("must be a web address, e.g. https://api.example.com/v1")
    return text


def _object(value: Any) -> Any:
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
    if not isinstance(found, Mapping):
        raise ValueError('must be a JSON object, e.g. \'{"a": "b"}\'')
    return value


def _any(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        raise ValueError("must be what JSON can hold: text, a finite number, true, false, a list, an object") from None
    return value


_READERS = {
    _OptionType.TEXT: _text,
    _OptionType.INTEGER: _integer,
    _OptionType.BOOLEAN: _boolean,
    _OptionType.URL: _url,
    _OptionType.PORT: _port,
    _OptionType.OBJECT: _object,
    _OptionType.ANY: _any,
}

_PURPOSE: Final = b"airflow-provider-rfr connection content 1"
MISSING: Final = "missing"
"""The hash of a connection that is not there."""


class ContentHash:
    """Hashes definitions with one key.

    :param key: a secret of the installation
    :param salt: what tells installations apart that share a key, or have none
    """

    def __init__(self, key: bytes, salt: str) -> None:
        self._key = hmac.new(key or b"none", _PURPOSE + salt.encode(), hashlib.sha256).digest()

    def __repr__(self) -> str:
        return "ContentHash()"

    def of(self, definition: Definition | None) -> str:
        """Of everything that matters to who uses the connection; its description does not."""
        if definition is None:
            return MISSING
        fields = [definition.conn_type, definition.host, definition.port, definition.login, definition.password]
        content = [*map(_plain, fields), _plain(definition.schema), _plain(definition.extra)]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def of_text(self, text: str) -> str:
        """Of anything else that must not be shown."""
        return hmac.new(self._key, b"text " + text.encode(), hashlib.sha256).hexdigest()


def _plain(value: Any) -> Any:
    """Airflow's API makes text of the numbers of extra fields, and empty text of what is missing."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if each not in (None, "")}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value in (None, ""):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
