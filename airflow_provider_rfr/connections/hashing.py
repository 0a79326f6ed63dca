"""The keyed hash of a connection's content, by which two copies are told apart.

It is an HMAC, so that who reads it can't try passwords; equal content has equal hashes wherever the key is the same.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_rfr.connections.definition import Definition

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
