"""Keeps credentials out of messages, page tokens and logs.

A redactor knows the values that are secret (as they are, and as they look in a URL) and the names of the
query parameters that carry them.  Tokens that an API hands out while the source is read are added to it.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urlsplit, urlunsplit

from airflow_provider_rfr.secret_names import MASK

_SHORTEST: Final = 4
_LONG: Final = 8
# Taken out of addresses that are kept. No more than these: `page_token` has to stay where it is.
_CREDENTIAL_PARAMETERS: Final = frozenset({"access_token", "api_key", "apikey", "client_secret"})


class Redactor:
    """Thread-safe.  Values shorter than four characters are only recognised when they stand alone."""

    def __init__(self, secrets: Iterable[Any] = (), parameters: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._whole: frozenset[str] = frozenset()
        self._texts: tuple[str, ...] = ()
        self._long: tuple[str, ...] = ()
        self._parameters = _CREDENTIAL_PARAMETERS
        for secret in secrets:
            self.add(secret)
        for name in parameters:
            self.add_parameter(name)
        _watch_logs(self)

    def add(self, secret: Any) -> None:
        """Remember a secret; of a mapping or list, each value in it."""
        with self._lock:
            for text in _leaves(secret):
                self._whole |= {text}
                if len(text) >= _LONG:
                    self._long = (*self._long, text)
                if len(text) >= _SHORTEST:
                    forms = {*self._texts, text, quote(text, safe=""), quote(text), quote_plus(text)}
                    forms.add(json.dumps(text)[1:-1])
                    # The longest first, so that no secret is cut by another one that it contains.
                    self._texts = tuple(sorted(forms, key=len, reverse=True))

    def add_parameter(self, name: str) -> None:
        """Remember a query parameter that carries a credential."""
        with self._lock:
            self._parameters |= {name.lower()}

    def add_pair(self, user: str, password: str) -> None:
        """Remember a password, and what basic authentication makes of it."""
        self.add(password)
        self.add(base64.b64encode(f"{user}:{password}".encode()).decode())

    def text(self, text: str) -> str:
        """``text`` with every secret masked."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def is_credential(self, name: str, value: str) -> bool:
        """Whether a query parameter is a credential: by its name, or because a long secret is in its value.

        Not by a short one: ``status=open`` must stay what it is, though ``open`` may be somebody's password.
        """
        return name.lower() in self._parameters or any(secret in value for secret in self._long)

    def without_credentials(self, url: str) -> str:
        """The URL without user, password and credential parameters; everything else as it was."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        kept = [(name, value) for name, value in pairs if not self.is_credential(name, value)]
        query = parts.query if len(kept) == len(pairs) else urlencode(kept)
        return urlunsplit((parts.scheme, host, parts.path, query, ""))

    def address(self, url: str) -> str:
        """Path and query of a URL, as a message may show them."""
        parts = urlsplit(self.without_credentials(url))
        query = parts.query
        if any(value in self._whole for _, value in parse_qsl(query)):
            query = urlencode([(k, MASK if v in self._whole else v) for k, v in parse_qsl(query)], safe="*")
        return self.text(parts.path + (f"?{query}" if query else ""))

    def __repr__(self) -> str:
        return f"Redactor({len(self._whole)} secrets)"


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool) and str(value):
        yield str(value)


class _LogFilter(logging.Filter):
    """urllib3 logs each address with its query at level DEBUG."""

    def __init__(self) -> None:
        super().__init__()
        self.redactors: weakref.WeakSet[Redactor] = weakref.WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        redacted = message
        for redactor in list(self.redactors):
            redacted = redactor.text(redacted)
        if redacted != message:
            record.msg, record.args = redacted, ()
        return True


_log_filter = _LogFilter()
for _name in ("urllib3.connectionpool", "urllib3.connection", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_log_filter)


def _watch_logs(redactor: Redactor) -> None:
    _log_filter.redactors.add(redactor)
