"""Whether a value is what its option wants; values are never part of what is said."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_rfr.connections.options import Option, OptionType

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
    OptionType.TEXT: _text,
    OptionType.INTEGER: _integer,
    OptionType.BOOLEAN: _boolean,
    OptionType.URL: _url,
    OptionType.PORT: _port,
    OptionType.OBJECT: _object,
    OptionType.ANY: _any,
}
