"""Field types of a triggers block: addresses, headers, secrets, JSON trees, success rules; and events to try them."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent
from airflow_provider_rfr.webhooks.config_errors import TriggerModel, details, mistake, refusal

_HOSTILE = "\"\\ \n\t\u2028</script>{{x}}'😀"
_HEADER_VALUE = "placeholder"
_BEGAN = datetime(2024, 1, 1, tzinfo=timezone.utc)
_NAMES = ("acmeCo/example/collection", "acmeCo/example/another")


@dataclass(frozen=True, slots=True)
class Trial:
    """One event to try.

    :ivar words: which one it is, for people
    :ivar header: value of exposed headers
    :ivar hostile: whether values hold what breaks JSON
    """

    words: str
    event: CommitEvent
    header: str = _HEADER_VALUE
    hostile: bool = False


def trials() -> tuple[Trial, ...]:
    """In the order of how likely a mistake shows."""
    return (
        Trial("with 1 collection", _event(1)),
        Trial("with no collections", _event(0)),
        Trial("with 2 collections", _event(2)),
        Trial("with quotes and a line break in a value", _hostile(_event(2)), f'{_HEADER_VALUE}"\\', hostile=True),
        Trial("outside Airflow", replace(_event(1), dag_id="", dag_run_id="", task_id="", map_index=None)),
    )


def placeholder_events() -> tuple[CommitEvent, ...]:
    """The events alone."""
    return tuple(trial.event for trial in trials())


def _event(collections: int) -> CommitEvent:
    names = _NAMES[:collections]
    return CommitEvent(
        commit_id="00000000-0000-0000-0000-000000000000",
        target="example.table",
        lake="rfr",
        materialization_name="acmeCo/example/materialization",
        flow_run_id="00000000-0000-0000-0000-000000000000",
        sequence=1,
        snapshot_id=1,
        committed_at=_BEGAN + timedelta(minutes=2),
        generation=1,
        collection_names=names,
        connector_image=f"airflow-provider-rfr:{__version__}",
        flow_published_at_min=_BEGAN if collections else None,
        flow_published_at_max=_BEGAN + timedelta(minutes=1) if collections else None,
        bindings=tuple(Binding("example.table", name, 10, 1000) for name in names),
        dag_id="example",
        dag_run_id="manual__2024-01-01T00:00:00+00:00",
        task_id="refresh",
        map_index=-1,
        logical_date="2024-01-01T00:00:00Z",
    )


def _hostile(event: CommitEvent) -> CommitEvent:
    return replace(
        event,
        materialization_name=_HOSTILE,
        target=_HOSTILE,
        connector_image=_HOSTILE,
        collection_names=tuple(_HOSTILE + name for name in event.collection_names),
        bindings=tuple(replace(each, table=_HOSTILE, collection=_HOSTILE) for each in event.bindings),
        dag_id=_HOSTILE,
        dag_run_id=_HOSTILE,
        task_id=_HOSTILE,
    )


_SIGNING_PREFIX = "whsec_"
_SIGNING_BYTES = (24, 64)
_SECRET_SCHEMA: dict[str, Any] = {"type": "string", "secret": True}
_SEALED = re.compile(r"ENC\[AES256_GCM,[^\]]*\]")


def is_sealed_text(value: object) -> bool:
    """Whether it is one value of a SOPS document, not yet opened."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def holds_sealed_text(value: object) -> bool:
    """Whether a sealed value stands anywhere in it."""
    if isinstance(value, Mapping):
        return any(map(holds_sealed_text, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_sealed_text, value))
    return is_sealed_text(value)


def signing_key(secret: SecretStr) -> bytes:
    """The key in ``whsec_`` and base64.

    :raises ValueError: it is of another form
    """
    text = secret.get_secret_value()
    if not text.startswith(_SIGNING_PREFIX):
        raise ValueError("no signing secret")
    # binascii's message would show where the text stops to be base64.
    try:
        key = base64.b64decode(text.removeprefix(_SIGNING_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no signing secret") from None
    if not _SIGNING_BYTES[0] <= len(key) <= _SIGNING_BYTES[1]:
        raise ValueError("no signing secret")
    return key


def _text_only(value: Any) -> Any:
    if not isinstance(value, (str, SecretStr)):
        raise mistake("must be text; if it is text to you, put it in quotes")
    return value


def _not_empty(secret: SecretStr) -> SecretStr:
    if not secret.get_secret_value().strip():
        raise mistake("is empty")
    return secret


def _signs(secret: SecretStr) -> SecretStr:
    if not is_sealed_text(secret):
        try:
            signing_key(secret)
        except ValueError:
            low, high = _SIGNING_BYTES
            raise mistake(
                "is no signing secret", f"write {_SIGNING_PREFIX} and the base64 of {low} to {high} random bytes"
            ) from None
    return secret


Text = Annotated[SecretStr, BeforeValidator(_text_only), WithJsonSchema(_SECRET_SCHEMA)]
"""A secret that may be empty."""

Secret = Annotated[SecretStr, BeforeValidator(_text_only), AfterValidator(_not_empty), WithJsonSchema(_SECRET_SCHEMA)]

SigningSecret = Annotated[
    SecretStr, BeforeValidator(_text_only), AfterValidator(_signs), WithJsonSchema(_SECRET_SCHEMA)
]

_LONGEST_URL = 4096
_LONGEST_HEADER = 8192
MOST_HEADERS = 100
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OURS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
"""Headers that the delivery sets, or that belong to the connection."""

_CONNECTION = re.compile(r"[\w#!()\-.:/\\]{1,250}")
_SHOWN_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]{0,11})://", re.IGNORECASE)
_HOST_LABEL = re.compile(r"(?!-)[a-z0-9_\-]{1,63}(?<!-)", re.IGNORECASE)
_NOT_IN_A_URL = re.compile(r"[\s\x00-\x20\x7f\\<>\"^`|]")


def check_url(url: SecretStr) -> SecretStr:
    """An absolute http or https address without user name and fragment; messages show nothing but its scheme."""
    if not is_sealed_text(url):
        _check_address(url.get_secret_value())
    return url


def check_base(url: str, path: str) -> None:
    """An address that a preset adds its path to has to end before it; raises a mistake."""
    if is_sealed_text(url):
        return
    parts = urlsplit(url)
    if parts.query:
        raise _invalid("the preset adds its path to it, so it has no query", "leave out ? and what follows")
    first = "/".join(path.split("/")[:3])
    if f"{parts.path.rstrip('/')}/".find(f"{first}/") >= 0:
        raise _invalid("the preset adds its path to it", "write the address up to the path of the API")


def check_headers(headers: Mapping[Any, Any]) -> list[InitErrorDetails]:
    """What is wrong with the headers; values that are no text are left to others."""
    found: list[InitErrorDetails] = []
    seen: set[str] = set()
    for name, value in headers.items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        wrong = _name_fault(str(name), seen) or (_value_fault(text) if isinstance(text, str) else None)
        seen.add(str(name).lower())
        if wrong is not None:
            found.append(details(wrong, (str(name),)))
    return found


def check_header_value(value: SecretStr) -> SecretStr:
    """A secret that is sent in a header; raises a mistake."""
    wrong = _value_fault(value.get_secret_value())
    if wrong is not None:
        raise wrong
    return value


def check_connection(text: str) -> str:
    """The id of an Airflow connection. An address, which may hold a password, would be told by Airflow's errors."""
    if not is_sealed_text(text) and ("://" in text or not _CONNECTION.fullmatch(text)):
        raise mistake("is not an id of a connection", "write the id of an HTTP connection of Airflow, not its address")
    return text


def check_host_pattern(text: str) -> str:
    """One entry of ``allowedHosts``: a host name or an address, either with a port if one is meant, or a network."""
    if is_sealed_text(text):
        return text
    try:
        ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        if not _is_host_name(text) and not _is_host_with_port(text):
            raise mistake(
                "is not a host name, address or network",
                "write e.g. airflow.internal, airflow.internal:8080, 10.1.2.3 or 10.0.0.0/8, without scheme",
            ) from None
    return text


def _is_host_with_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535):
        return False
    if host.startswith("[") and host.endswith("]"):
        return isinstance(_address(host[1:-1]), ipaddress.IPv6Address)
    return _is_host_name(host)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_host_name(text: str) -> bool:
    """Whether a resolver could be asked for it."""
    try:
        ascii_text = text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return False
    labels = ascii_text.removesuffix(".").split(".")
    return len(ascii_text) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


def _name_fault(name: str, seen: set[str]) -> PydanticCustomError | None:
    if not TOKEN.fullmatch(name):
        return mistake("is not a header name", "write letters, digits and hyphens, and the value after the colon")
    if name.lower() in _OURS:
        return mistake("is set by the delivery itself", "leave it out")
    return mistake("duplicate header", "case makes no other header of it") if name.lower() in seen else None


def _value_fault(text: str) -> PydanticCustomError | None:
    if is_sealed_text(text):
        return None
    if len(text) > _LONGEST_HEADER:
        return mistake(f"must have at most {_LONGEST_HEADER} characters")
    if text != text.strip(" \t"):
        return mistake("begins or ends with a space", "leave it out")
    if any(ord(each) < 0x20 and each != "\t" for each in text) or "\x7f" in text:
        return mistake("has a line break or another control character in its value")
    if any(ord(each) > 0xFF for each in text):
        return mistake("has a character outside Latin-1 in its value", "write it percent-encoded, or in base64")
    return None


def _check_address(text: str) -> None:
    if not text:
        raise _invalid("it is empty")
    if len(text) > _LONGEST_URL:
        raise _invalid(f"it has more than {_LONGEST_URL} characters")
    if "{{" in text:
        raise _invalid("it is not a template", "write the address as it is")
    if _NOT_IN_A_URL.search(text) or not text.isprintable():
        raise _invalid("it has a space, a backslash or another character that no address has", "percent-encode it")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _invalid("its host or port can't be read") from None
    _check_scheme(text, parts)
    if "@" in parts.netloc:
        raise _invalid("it holds a user name", "put login and password in an Airflow connection, and name it here")
    if parts.fragment:
        raise _invalid("it has a fragment, which is never sent", "leave out # and what follows")
    if not _is_host(parts) or port == 0:
        raise _invalid("its host or port can't be read")


def _check_scheme(text: str, parts: SplitResult) -> None:
    if parts.scheme in ("http", "https"):
        if not parts.netloc:
            raise _invalid("it names no host", "write e.g. https://host/path")
        return
    # Of what stands before a lone colon nobody knows whether it is a scheme or a password.
    scheme = _SHOWN_SCHEME.match(text)
    if scheme is None:
        raise _invalid("it has no scheme", "write e.g. https://host/path")
    raise _invalid(f"unsupported scheme '{scheme[1].lower()}', must be http or https")


def _is_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if parts.netloc.startswith("["):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return _is_host_name(host)


def _invalid(detail: str, remedy: str = "") -> PydanticCustomError:
    return mistake(f"invalid URL: {detail}", remedy, whole=True)


_DEEPEST = 40
_MOST_VALUES = 20_000
_LARGEST = 10**300
_IN_QUOTES = "put it in quotes"


def plain_tree(value: Any) -> Any:
    """A copy in dicts, lists and scalars.

    :raises ValidationError: there is something in it that JSON has not, or too much of it
    """
    copy = _Copy()
    plain = copy.of(value, ())
    if copy.found:
        raise refusal("tree", copy.found)
    return plain


def leaves(tree: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value that is neither map nor list, and where it stands."""
    if isinstance(tree, Mapping):
        for key, each in tree.items():
            yield from leaves(each, (*place, key))
    elif isinstance(tree, (list, tuple)):
        for number, each in enumerate(tree):
            yield from leaves(each, (*place, number))
    else:
        yield place, tree


class _Copy:
    """One walk; an alias of YAML can make a small document large, or endless."""

    def __init__(self) -> None:
        self._count = 0
        self._deep = False
        self.found: list[InitErrorDetails] = []

    def of(self, value: Any, place: tuple[str | int, ...]) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            return self._refuse((), f"has more than {_MOST_VALUES} values") if self._count == _MOST_VALUES + 1 else None
        if len(place) > _DEEPEST:
            return self._refuse_depth(place)
        if isinstance(value, SecretStr):
            return value.get_secret_value()
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, Mapping):
            return {self._key(key, place): self.of(each, (*place, str(key))) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(each, (*place, number)) for number, each in enumerate(value)]
        return self._scalar(value, place)

    def _key(self, key: Any, place: tuple[str | int, ...]) -> str:
        if not isinstance(key, str):
            self._refuse(place, f"a key is {_kind(key)}", _IN_QUOTES)
        return str(key)

    def _scalar(self, value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(place, "JSON has no infinite numbers", _IN_QUOTES)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return self._refuse(place, "is too large a number", _IN_QUOTES)
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        return self._refuse(place, f"is {_kind(value)}, which JSON has not", _IN_QUOTES)

    def _refuse_depth(self, place: tuple[str | int, ...]) -> None:
        if not self._deep:
            self._refuse(place[:3], f"is nested deeper than {_DEEPEST} levels")
        self._deep = True

    def _refuse(self, place: tuple[str | int, ...], problem: str, remedy: str = "") -> None:
        self.found.append(details(mistake(problem, remedy), place))


def _kind(value: Any) -> str:
    return {"bool": "true or false", "int": "a number", "float": "a number", "NoneType": "null"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )


NONSENSITIVE: dict[str, Any] = {"nonsensitive": True}
_CLASS = re.compile(r"[245]xx")
_CODE = re.compile(r"[245][0-9][0-9]")
_INDEX = re.compile(r"0|[1-9][0-9]*")
_ABSENT = object()


def _status(value: Any) -> int | str:
    if is_sealed_text(value):
        return str(value)
    text = str(value).lower() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if text.startswith("3") and len(text) == 3:
        raise mistake("a redirect is never delivery", "write the address that it leads to as url")
    if _CLASS.fullmatch(text):
        return text
    if _CODE.fullmatch(text):
        return int(text)
    raise mistake("is not a status", "write e.g. 2xx, 204 or 409")


def _pointer(value: str) -> str:
    parts = value.split("/")
    if is_sealed_text(value):
        return value
    if (value and parts[0]) or re.search("~(?![01])", value):
        raise mistake("is not JSON pointer", "write e.g. /data/launchRun/__typename")
    return value


_Status = Annotated[
    int | str,
    BeforeValidator(_status),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 200, "maximum": 599},
                {"type": "string", "pattern": "^[245]([xX]{2}|[0-9]{2})$"},
            ]
        }
    ),
]


class Success(TriggerModel):
    """Which answers are delivery; all that is given has to hold.

    :ivar status: statuses (``409``) and classes of them (``2xx``)
    :ivar pointer: JSON pointer (RFC 6901) into the answer; what it points at has to be there
    :ivar equals: ... and to be this value, if it is given
    """

    status: tuple[_Status, ...] = Field(default=("2xx",), min_length=1, max_length=50)
    pointer: Annotated[str, AfterValidator(_pointer)] | None = Field(default=None, max_length=1000)
    equals: Annotated[Any, AfterValidator(plain_tree)] = None

    @classmethod
    def contradictions(cls, written: Mapping[str, Any]) -> list[PydanticCustomError]:
        """A value to compare with needs something that it is compared to."""
        if "equals" in written and written.get("pointer") is None:
            return [mistake("needs a pointer", "write pointer: /path/in/the/answer", at=("equals",))]
        return []

    def dump(self) -> dict[str, Any]:
        """As all models; ``equals: null`` is a value like others."""
        return {
            **super().dump(),
            **({"equals": None} if self.equals is None and "equals" in self.model_fields_set else {}),
        }

    @property
    def reads_body(self) -> bool:
        """Whether the answer's body decides."""
        return self.pointer is not None

    def accepts(self, status: int, body: bytes) -> bool:
        """Whether this answer is delivery; a body that is not JSON has nothing that could be pointed at."""
        if 300 <= status < 400 or not any(each in (status, f"{status // 100}xx") for each in self.status):
            return False
        if self.pointer is None:
            return True
        found = _at(self.pointer, body)
        if found is _ABSENT:
            return False
        return "equals" not in self.model_fields_set or _same(found, self.equals)


def _at(pointer: str, body: bytes) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _ABSENT
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and _INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            return _ABSENT
    return value


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
