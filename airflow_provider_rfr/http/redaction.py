"""Removes credentials from messages, page tokens, logs, and answers that echo a request.

A redactor knows secret values, as they are and as they look in a URL, and the names of query parameters that carry
them. Tokens that an API hands out while it is read are added to it.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit, urlunsplit

from airflow_provider_rfr.secret_names import MASK, SECRET_NAMES

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


_MOST_KEPT: Final = 2048
_MOST_TOLD: Final = 500
_LONG_SEGMENT: Final = 8
_LONGEST_ESCAPE: Final = 13
_NAMES: Final = {"&": ("amp",), "<": ("lt",), ">": ("gt",), '"': ("quot",), "'": ("apos",)}
_SHORT: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token", "apikey", "key"})
_WORD: Final = re.compile(r"[a-z]+(?:[-_.][a-z]+)*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What names itself a secret is masked although nobody told us of it.
_NAMED: Final = re.compile(
    rf"(?i)([\"']?[\w-]{{0,40}}(?:{SECRET_NAMES})[\w-]{{0,40}}"
    r"[\"']?\s{0,8}[:=]\s{0,8})(\"[^\"]*\"|'[^']*'|(?:(?:basic|bearer|token)\s{1,8})?[^\s,;&}\"']+)"
)


class Masker:
    """Knows the secrets of one endpoint; it has no repr that would show them."""

    __slots__ = ("_longest", "_patterns")

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in _parts(secret) if len(part) >= _SHORTEST}
        # The longest first, so that nothing is left of a secret that another one is a part of.
        self._patterns = [re.compile(_pattern(part)) for part in sorted(parts, key=len, reverse=True)]
        self._longest = max(map(len, parts), default=0) * _LONGEST_ESCAPE

    def mask(self, text: str) -> str:
        """The text without the secrets."""
        for pattern in self._patterns:
            text = pattern.sub(MASK, text)
        return text

    def kept(self, body: bytes) -> str:
        """At most 2 KB of an answer, masked before it is cut, so that no half of a secret is left at the end."""
        text = body.decode("utf-8", "replace")
        window = text[: 2 * (_MOST_KEPT + self._longest)]
        is_whole = len(window) == len(text)
        text = self.mask(window)
        # Where the window ends in the middle of a secret, its beginning was not recognised.
        text = text if is_whole else text[: len(text) - self._longest]
        text = _NAMED.sub(lambda found: found[1] + MASK, text)
        return plain(text).encode()[:_MOST_KEPT].decode("utf-8", "ignore")

    def told(self, text: str) -> str:
        """A sentence for logs and the store: masked, on one line, and in characters that every database takes."""
        return plain(self.mask(text))[:_MOST_TOLD]

    def __repr__(self) -> str:
        return "Masker()"


def plain(text: str) -> str:
    """The text without control characters and halves of characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.encode("utf-8", "replace").decode())


def secrets_of_url(url: str) -> Iterator[str]:
    """What of an address may be secret: user, password, values of the query, the path and its longer segments."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    yield from (each for each in (parts.username, parts.password) if each)
    if parts.path.strip("/"):
        yield parts.path
    for each in parts.path.split("/"):
        # A plain word, such as "services" of Slack's addresses, is worth reading in an answer.
        if len(each) >= _LONG_SEGMENT and not _WORD.fullmatch(each):
            yield each
    if parts.query:
        yield parts.query
        yield from (value for _, value in parse_qsl(parts.query))


def _parts(secret: str) -> Iterator[str]:
    """The secret, what follows its scheme (``Bearer x``, a login in base64), and how an address or base64 has it."""
    found = [secret]
    scheme, _, value = secret.partition(" ")
    if scheme.lower() in _SCHEMES:
        found.append(value.strip())
    if scheme.lower() == "basic":
        found += _login(value.strip())
    for part in found:
        yield part
        yield unquote(part)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(part.encode()).decode().rstrip("=")


def _login(word: str) -> Iterator[str]:
    try:
        text = base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    yield text
    yield text.partition(":")[2]


def _pattern(part: str) -> str:
    """Matches the text however its characters come back, escaped for an address, for JSON or for a page."""
    return "".join(each if each.isascii() and each.isalnum() else _escaped(each) for each in part)


@lru_cache(maxsize=1024)
def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    forms = [
        # JSON in JSON has more of them.
        rf"\\{{0,7}}{re.escape(letter)}",
        "".join(rf"\\{{1,7}}u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)),
        "".join(f"%{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass")),
        rf"&(?:amp;)?#(?:0*{ord(letter)}|x0*{ord(letter):x});",
        *(f"&(?:amp;)?{name};" for name in _NAMES.get(letter, ())),
    ]
    if letter == " ":
        forms.append(r"\+")
    if letter in _SHORT:
        forms.append(rf"\\{{1,7}}{_SHORT[letter]}")
    return f"(?i:{'|'.join(forms)})"
