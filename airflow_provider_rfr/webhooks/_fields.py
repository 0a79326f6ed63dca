"""Field types of a triggers block: secrets, addresses, headers, JSON trees, conditions, and the rule for success."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.webhooks._model import TriggerModel, as_mistakes, details, mistake, refusal

NONSENSITIVE: dict[str, Any] = {"nonsensitive": True}
"""Mark, in the JSON schema, of a field that stays readable and editable in a sealed document."""

_SECRET_SCHEMA: dict[str, Any] = {"type": "string", "secret": True}
_SEALED = re.compile(r"ENC\[AES256_GCM,[^\]]*\]")
_SIGNING_PREFIX = "whsec_"
_SIGNING_BYTES = (24, 64)


def is_sealed_text(value: object) -> bool:
    """Tell whether a value is an encrypted value of a SOPS document, ``ENC[AES256_GCM,...]``."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def holds_sealed_text(value: object) -> bool:
    """Tell whether a value is sealed or contains a sealed value."""
    if isinstance(value, Mapping):
        return any(map(holds_sealed_text, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_sealed_text, value))
    return is_sealed_text(value)


def matching(pattern: str, problem: str, remedy: str = "") -> AfterValidator:
    """Return a validator of text that is sealed or wholly matched by the regular expression."""
    form = re.compile(pattern)

    def check(value: str | SecretStr) -> str | SecretStr:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not form.fullmatch(text) and not is_sealed_text(text):
            raise mistake(problem, remedy)
        return value

    return AfterValidator(check)


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a validator that accepts one of these words, or sealed text."""

    def check(value: Any) -> str:
        if isinstance(value, str) and (value in words or is_sealed_text(value)):
            return value
        raise mistake(f"must be {', '.join(words[:-1])} or {words[-1]}")

    return check


def signing_key(secret: SecretStr) -> bytes:
    """Return the key in a secret of Standard Webhooks (``whsec_`` and base64).

    :raises ValueError: it has another form
    """
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(_SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_SIGNING_PREFIX) or not _SIGNING_BYTES[0] <= len(key) <= _SIGNING_BYTES[1]:
        # Not within the except clause: binascii's error tells where the text stops being base64.
        raise ValueError("invalid signing secret")
    return key


def _check_text(value: Any) -> Any:
    if not isinstance(value, (str, SecretStr)):
        raise mistake("must be text; if it is text to you, put it in quotes")
    return value


def _check_signing_secret(secret: SecretStr) -> SecretStr:
    if not is_sealed_text(secret):
        try:
            signing_key(secret)
        except ValueError:
            low, high = _SIGNING_BYTES
            raise mistake(
                "is not a signing secret", f"write {_SIGNING_PREFIX} and the base64 of {low} to {high} random bytes"
            ) from None
    return secret


_Text = Annotated[SecretStr, BeforeValidator(_check_text), WithJsonSchema(_SECRET_SCHEMA)]
"""A secret that may be empty."""

Secret = Annotated[_Text, matching(r"(?s).*\S.*", "is empty")]
SigningSecret = Annotated[_Text, AfterValidator(_check_signing_secret)]

_LONGEST_HEADER = 8192
_MOST_HEADERS = 100
_HEADER_NAME = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_OWN_HEADERS = frozenset(
    {
        *("webhook-id", "webhook-signature", "webhook-timestamp", "host", "expect", "upgrade", "te", "trailer"),
        *("connection", "keep-alive", "content-length", "transfer-encoding", "proxy-authorization", "proxy-connection"),
    }
)
"""Headers that the delivery sets, or that belong to the connection."""


def header_faults(headers: Mapping[Any, Any]) -> Iterator[tuple[str, PydanticCustomError]]:
    """Yield the problems of headers, each with the header's name. Values that are not text are not checked."""
    seen: set[str] = set()
    for key, value in headers.items():
        name, text = str(key), value.get_secret_value() if isinstance(value, SecretStr) else value
        fault = _value_fault(text) if isinstance(text, str) else None
        if not re.fullmatch(_HEADER_NAME, name):
            fault = mistake("is not a header name", "write letters, digits and hyphens, and the value after the colon")
        elif name.lower() in _OWN_HEADERS:
            fault = mistake("is set by the delivery itself", "leave it out")
        elif name.lower() in seen:
            fault = mistake("duplicate header", "case makes no other header of it")
        seen.add(name.lower())
        if fault is not None:
            yield name, fault


def _value_fault(text: str) -> PydanticCustomError | None:
    if is_sealed_text(text):
        return None
    if len(text) > _LONGEST_HEADER:
        return mistake(f"must have at most {_LONGEST_HEADER} characters")
    if text != text.strip(" \t"):
        return mistake("begins or ends with a space", "leave it out")
    if any(ord(character) < 0x20 and character != "\t" for character in text) or "\x7f" in text:
        return mistake("has a line break or another control character in its value")
    if any(ord(character) > 0xFF for character in text):
        return mistake("has a character outside Latin-1 in its value", "write it percent-encoded, or in base64")
    return None


def _check_headers(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    faults = header_faults(value) if isinstance(value, Mapping) else ()
    problems = [details(fault, (name,)) for name, fault in faults]
    try:
        headers = handler(value)
    except ValidationError as error:
        raise refusal([*as_mistakes(error, {}), *problems]) from None
    if problems:
        raise refusal(problems)
    return headers


def _check_header_value(value: SecretStr) -> SecretStr:
    fault = _value_fault(value.get_secret_value())
    if fault is not None:
        raise fault
    return value


Headers = Annotated[dict[str, _Text], Field(max_length=_MOST_HEADERS), WrapValidator(_check_headers)]
HeaderName = Annotated[str, matching(_HEADER_NAME, "is not a header name")]
HeaderSecret = Annotated[Secret, AfterValidator(_check_header_value)]
"""A secret that is sent in a header."""

_LONGEST_URL = 4096
_SHOWN_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]{0,11})://", re.IGNORECASE)
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_\-]{1,63}(?<!-)", re.IGNORECASE)
_NOT_IN_A_URL = re.compile(r"[\s\x00-\x20\x7f\\<>\"^`|]")


def _invalid_url(detail: str, remedy: str = "") -> PydanticCustomError:
    return mistake(f"invalid URL: {detail}", remedy, whole=True)


def _check_url(url: SecretStr) -> SecretStr:
    """Check that a URL is absolute, http or https, without user name and fragment; errors show at most its scheme."""
    text = url.get_secret_value()
    if is_sealed_text(text):
        return url
    if not text:
        raise _invalid_url("it is empty")
    if len(text) > _LONGEST_URL:
        raise _invalid_url(f"it has more than {_LONGEST_URL} characters")
    if "{{" in text:
        raise _invalid_url("it is not a template", "write the plain address")
    if _NOT_IN_A_URL.search(text) or not text.isprintable():
        raise _invalid_url("it has a space, a backslash or another character that no address has", "percent-encode it")
    _check_url_parts(text)
    return url


def _check_url_parts(text: str) -> None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _invalid_url("its host or port can't be read") from None
    if parts.scheme not in ("http", "https"):
        # What is before a colon without // may be a password, so it is not shown.
        scheme = _SHOWN_SCHEME.match(text)
        if scheme is None:
            raise _invalid_url("it has no scheme", "write e.g. https://host/path")
        raise _invalid_url(f"unsupported scheme '{scheme[1].lower()}', must be http or https")
    if not parts.netloc:
        raise _invalid_url("it names no host", "write e.g. https://host/path")
    if "@" in parts.netloc:
        raise _invalid_url("it holds a user name", "put login and password in an Airflow connection, and name it here")
    if parts.fragment:
        raise _invalid_url("it has a fragment, which is never sent", "leave out # and what follows")
    host = parts.hostname or ""
    if port == 0 or not (_is_ipv6(host) if parts.netloc.startswith("[") else _is_host_name(host)):
        raise _invalid_url("its host or port can't be read")


def check_base(url: str, path: str) -> None:
    """Raise a mistake if an address to which a preset adds its path contains that path or a query already."""
    if is_sealed_text(url):
        return
    parts = urlsplit(url)
    if parts.query:
        raise _invalid_url("the preset adds its path to it, so it has no query", "leave out ? and what follows")
    first = "/".join(path.split("/")[:3])
    if f"{first}/" in f"{parts.path.rstrip('/')}/":
        raise _invalid_url("the preset adds its path to it", "write the address up to the path of the API")


def _check_host_pattern(text: str) -> str:
    """Check that a text is a network, or a host name or address with or without a port."""
    try:
        ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        host, _, port = text.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535
        is_host = _is_ipv6(host[1:-1]) if host.startswith("[") and host.endswith("]") else _is_host_name(host)
        if not (is_sealed_text(text) or _is_host_name(text) or (is_port and is_host)):
            raise mistake(
                "is not a host name, address or network",
                "write e.g. airflow.internal, airflow.internal:8080, 10.1.2.3 or 10.0.0.0/8, without scheme",
            ) from None
    return text


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_host_name(text: str) -> bool:
    """Tell whether a text is a host name that a resolver could be asked for."""
    try:
        ascii_text = text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return False
    labels = ascii_text.removesuffix(".").split(".")
    return len(ascii_text) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


Url = Annotated[Secret, AfterValidator(_check_url)]
# An address is refused, as it may hold a password: Airflow's error about a missing connection shows the id.
ConnectionId = Annotated[
    str,
    matching(
        r"(?!.*://)[\w#!()\-.:/\\]{1,250}",
        "is not an id of a connection",
        "write the id of an HTTP connection of Airflow, not its address",
    ),
]
HostPattern = Annotated[str, AfterValidator(_check_host_pattern)]

_DEEPEST = 40
_MOST_VALUES = 20_000
_LARGEST = 10**300
_IN_QUOTES = "put it in quotes"
_KINDS = {"bool": "true or false", "int": "a number", "float": "a number", "NoneType": "null"}


def plain_tree(value: Any) -> Any:
    """Return a copy of the value in dicts, lists and scalars; models become the documents that they were read from.

    :raises ValidationError: it holds a value that JSON does not have, too many values, or too many levels
    """
    copier = _TreeCopier()
    plain = copier.copy(value, ())
    if copier.problems:
        raise refusal(copier.problems)
    return plain


JsonTree: TypeAlias = Any
"""A JSON value, which :func:`plain_tree` has checked and copied with the document."""


class _TreeCopier:
    """A bounded copier of one tree, since aliases of YAML can make a small document large or endless."""

    def __init__(self) -> None:
        self._count = 0
        self._too_deep = False
        self.problems: list[InitErrorDetails] = []

    def copy(self, value: Any, place: tuple[str | int, ...]) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            return self._refuse((), f"has more than {_MOST_VALUES} values") if self._count == _MOST_VALUES + 1 else None
        if len(place) > _DEEPEST:
            if not self._too_deep:
                self._refuse(place[:3], f"is nested deeper than {_DEEPEST} levels")
            self._too_deep = True
            return None
        if isinstance(value, TriggerModel):
            value = value.dump()
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    self._refuse(place, f"a key is {_kind(key)}", _IN_QUOTES)
            return {str(key): self.copy(item, (*place, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, (*place, number)) for number, item in enumerate(value)]
        return self._scalar(value, place)

    def _scalar(self, value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, SecretStr):
            return value.get_secret_value()
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(place, "JSON has no infinite numbers", _IN_QUOTES)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return self._refuse(place, "is too large a number", _IN_QUOTES)
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        return self._refuse(place, f"is {_kind(value)}, which JSON does not have", _IN_QUOTES)

    def _refuse(self, place: tuple[str | int, ...], problem: str, remedy: str = "") -> None:
        self.problems.append(details(mistake(problem, remedy), place))


def _kind(value: Any) -> str:
    name = type(value).__name__
    return _KINDS.get(name, f"a {name}")


class When(TriggerModel):
    """Which commits the endpoint gets.

    :ivar collections: patterns with ``*`` (which matches ``/``, too), ``?`` and ``[...]``, one of which has to match;
        all collections by default
    :ivar min_documents: fewest documents of a commit, in the collections that match, with the rows that a sync deletes;
        0 takes empty commits as well
    """

    collections: tuple[str, ...] | None = Field(
        default=None, min_length=1, max_length=1000, json_schema_extra=NONSENSITIVE
    )
    min_documents: StrictInt = Field(default=1, ge=0, json_schema_extra=NONSENSITIVE)

    def accepts(self, event: CommitEvent) -> bool:
        """Tell whether this commit fulfils the conditions."""
        if self.collections is None:
            return event.documents + event.deleted >= self.min_documents
        names = {*event.collection_names, *(binding.collection for binding in event.bindings)}
        matching = {name for name in names if any(fnmatchcase(name, pattern) for pattern in self.collections)}
        documents = sum(binding.documents for binding in event.bindings if binding.collection in matching)
        return bool(matching) and documents + event.deleted >= self.min_documents


class Signing(TriggerModel):
    """Secrets that sign every call.

    :ivar secrets: ``whsec_`` and the base64 of 24 to 64 random bytes; several while one is replaced, since the receiver
        may check with any
    """

    secrets: tuple[SigningSecret, ...] = Field(min_length=1, max_length=10)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the keys in the order of the secrets.

        :raises ValueError: a secret is still sealed
        """
        return tuple(map(signing_key, self.secrets))


_STATUS = re.compile(r"[245](xx|[0-9]{2})")
_INDEX = re.compile(r"0|[1-9][0-9]*")


def _read_status(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    text = str(value).lower() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if text.startswith("3") and len(text) == 3:
        raise mistake("a redirect is never delivery", "write the address that it leads to as url")
    if not _STATUS.fullmatch(text):
        raise mistake("is not a status", "write e.g. 2xx, 204 or 409")
    return text if text.endswith("xx") else int(text)


_STATUS_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 200, "maximum": 599},
        {"type": "string", "pattern": "^[245]([xX]{2}|[0-9]{2})$"},
    ]
}
_Pointer = Annotated[
    str, matching(r"(?s)(/([^~]|~[01])*)?", "is not a JSON pointer", "write e.g. /data/launchRun/__typename")
]
_Status = Annotated[int | str, BeforeValidator(_read_status), WithJsonSchema(_STATUS_SCHEMA)]


class Success(TriggerModel):
    """Which answers are delivery; all that is given has to hold.

    :ivar status: statuses (``409``) and classes of them (``2xx``); a redirect is never delivery
    :ivar pointer: JSON pointer (RFC 6901) to something that has to be in the answer
    :ivar equals: value that has to be there
    """

    status: tuple[_Status, ...] = Field(default=("2xx",), min_length=1, max_length=50)
    pointer: _Pointer | None = Field(default=None, max_length=1000)
    equals: JsonTree = None

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """Return a problem if there is ``equals`` without ``pointer``."""
        if "equals" in written and written.get("pointer") is None:
            return [mistake("needs a pointer", "write pointer: /path/in/the/answer", at=("equals",))]
        return []

    def dump(self) -> dict[str, Any]:
        """Return the document, with ``equals: null`` if it was given: null is a value to compare with."""
        is_null = self.equals is None and "equals" in self.model_fields_set
        return {**super().dump(), **({"equals": None} if is_null else {})}

    def accepts(self, status: int, body: bytes) -> bool:
        """Tell whether this answer counts as delivery; with a ``pointer``, one whose body is not JSON does not."""
        if 300 <= status < 400 or not any(pattern in (status, f"{status // 100}xx") for pattern in self.status):
            return False
        if self.pointer is None:
            return True
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return False
        for part in self.pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            else:
                return False
        return "equals" not in self.model_fields_set or _is_same(value, self.equals)


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal as JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)
