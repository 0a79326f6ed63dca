"""Taking secrets out of what an endpoint answers: many echo the request that they did not like."""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MOST_KEPT: Final = 2048
MOST_TOLD: Final = 500
MASK: Final = "***"
_SHORTEST: Final = 4
_LONG_SEGMENT: Final = 8
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token", "apikey", "key"})
_HEX: Final = re.compile("%[0-9A-F]{2}")
_ESCAPED_IN_JSON: Final = (
    ("", ""),
    ("/", "\\/"),
    ("&<>", "\\u{:04x}"),
    ("&<>'=", "\\u{:04x}"),
    ("&<>'\"+`", "\\u{:04X}"),
)
"""Of Python, PHP, Go, Gson and .NET."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What names itself a secret is masked although nobody told us of it.
_NAMED: Final = re.compile(
    r"(?i)([\"']?[\w-]{0,40}(?:authorization|password|passwd|secret|token|api[_-]?key|credential|signature|cookie)[\w-]{0,40}"
    r"[\"']?\s{0,8}[:=]\s{0,8})(\"[^\"]*\"|'[^']*'|(?:(?:basic|bearer|token)\s{1,8})?[^\s,;&}\"']+)"
)


class Masker:
    """Knows the secrets of one endpoint; it has no repr that would show them."""

    __slots__ = ("_longest", "_spellings")

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {spelling for secret in secrets for part in _parts(secret) for spelling in _spellings(part)}
        self._spellings = sorted((each for each in spellings if len(each) >= _SHORTEST), key=len, reverse=True)
        self._longest = len(self._spellings[0]) if self._spellings else 0

    def mask(self, text: str) -> str:
        """The text without the secrets."""
        # The longest first, so that nothing is left of a secret that another one is a part of.
        for spelling in self._spellings:
            text = text.replace(spelling, MASK)
        return text

    def kept(self, body: bytes) -> str:
        """At most 2 KB of an answer, masked before it is cut, so that no half of a secret is left at the end."""
        text = body.decode("utf-8", "replace")
        window = text[: 2 * (MOST_KEPT + self._longest)]
        is_whole = len(window) == len(text)
        text = self.mask(window)
        # Where the window ends in the middle of a secret, its beginning was not recognised.
        text = text if is_whole else text[: len(text) - self._longest]
        text = _NAMED.sub(lambda found: found[1] + MASK, text)
        return plain(text).encode()[:MOST_KEPT].decode("utf-8", "ignore")

    def told(self, text: str) -> str:
        """A sentence for logs and the store: masked, on one line, and in characters that every database takes."""
        return plain(self.mask(text))[:MOST_TOLD]

    def __repr__(self) -> str:
        return "Masker()"


def plain(text: str) -> str:
    """The text without control characters and halves of characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.encode("utf-8", "replace").decode())


def secrets_of_url(url: str) -> Iterator[str]:
    """What of an address may be secret: user, password, values of the query, long segments of the path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    yield from (each for each in (parts.username, parts.password) if each)
    if parts.path.strip("/"):
        yield parts.path
    yield from (each for each in parts.path.split("/") if len(each) >= _LONG_SEGMENT)
    if parts.query:
        yield parts.query
        yield from (value for _, value in parse_qsl(parts.query))


def _parts(secret: str) -> Iterator[str]:
    """The secret, and those that it consists of: ``Bearer x``, or a login in base64."""
    yield secret
    words = secret.split()
    for word in words:
        if len(words) > 1 and word.lower() not in _SCHEMES:
            yield word
        if len(words) == 2 and words[0].lower() == "basic":
            yield from _login(word)


def _login(word: str) -> Iterator[str]:
    try:
        text = base64.b64decode(word, validate=True).decode()
    except (binascii.Error, ValueError):
        return
    yield text
    yield text.partition(":")[2]


def _spellings(part: str) -> Iterator[str]:
    """As it may come back: quoted for an address, for JSON or for a page, or in base64."""
    yield part
    yield unquote(part)
    for text in (quote(part, safe=""), quote(part), quote(part, safe="!'()*~"), quote_plus(part)):
        yield text
        yield _HEX.sub(lambda found: found[0].lower(), text)
    for text in _in_json(part):
        yield text
        yield json.dumps(text)[1:-1]
    yield from _in_html(part)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(part.encode()).decode().rstrip("=")


def _in_json(part: str) -> Iterator[str]:
    """As the usual libraries write it: what is more than quotes and backslashes, each escapes in its own way."""
    for is_ascii in (True, False):
        for marks, escape in _ESCAPED_IN_JSON:
            letters = (escape.format(ord(each)) if each in marks else _json(each, is_ascii) for each in part)
            yield "".join(letters)


@lru_cache(maxsize=1024)
def _json(letter: str, is_ascii: bool) -> str:
    return json.dumps(letter, ensure_ascii=is_ascii)[1:-1]


def _in_html(part: str) -> Iterator[str]:
    yield html.escape(part, quote=False)
    for double, single in (("&quot;", "&#x27;"), ("&quot;", "&#39;"), ("&#34;", "&#39;"), ("&quot;", "&apos;")):
        yield html.escape(part, quote=False).replace('"', double).replace("'", single)
