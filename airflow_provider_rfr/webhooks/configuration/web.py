"""Addresses and headers as they may stand in a triggers block."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr
from pydantic_core import InitErrorDetails, PydanticCustomError

from airflow_provider_rfr.webhooks.configuration.mistakes import details, mistake
from airflow_provider_rfr.webhooks.configuration.secret_values import is_sealed_text

LONGEST_URL = 4096
LONGEST_HEADER = 8192
MOST_HEADERS = 100
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
OURS = frozenset(
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
        raise mistake("is no id of a connection", "write the id of an HTTP connection of Airflow, not its address")
    return text


def check_host_pattern(text: str) -> str:
    """One entry of ``allowedHosts``: a host name or an address, either with a port if one is meant, or a network."""
    if is_sealed_text(text):
        return text
    try:
        ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        if not is_host_name(text) and not _is_host_with_port(text):
            raise mistake(
                "is no host name, address or network",
                "write e.g. airflow.internal, airflow.internal:8080, 10.1.2.3 or 10.0.0.0/8, without scheme",
            ) from None
    return text


def _is_host_with_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535):
        return False
    if host.startswith("[") and host.endswith("]"):
        return isinstance(_address(host[1:-1]), ipaddress.IPv6Address)
    return is_host_name(host)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_host_name(text: str) -> bool:
    """Whether a resolver could be asked for it."""
    try:
        ascii_text = text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return False
    labels = ascii_text.removesuffix(".").split(".")
    return len(ascii_text) <= 253 and all(_HOST_LABEL.fullmatch(label) for label in labels)


def _name_fault(name: str, seen: set[str]) -> PydanticCustomError | None:
    if not TOKEN.fullmatch(name):
        return mistake("is no header name", "write letters, digits and hyphens, and the value after the colon")
    if name.lower() in OURS:
        return mistake("is set by the delivery itself", "leave it out")
    return mistake("stands twice", "case makes no other header of it") if name.lower() in seen else None


def _value_fault(text: str) -> PydanticCustomError | None:
    if is_sealed_text(text):
        return None
    if len(text) > LONGEST_HEADER:
        return mistake(f"must have at most {LONGEST_HEADER} characters")
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
    if len(text) > LONGEST_URL:
        raise _invalid(f"it has more than {LONGEST_URL} characters")
    if "{{" in text:
        raise _invalid("it is no template", "write the address as it is")
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
    return is_host_name(host)


def _invalid(detail: str, remedy: str = "") -> PydanticCustomError:
    return mistake(f"invalid URL: {detail}", remedy, whole=True)
