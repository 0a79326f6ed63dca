"""Taking secrets out of what an endpoint answers: many echo the request that they did not like."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MOST_KEPT: Final = 2048
MOST_TOLD: Final = 500
MASK: Final = "***"
_SHORTEST: Final = 4
_LONG_SEGMENT: Final = 8
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token", "apikey", "key"})
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What names itself a secret is masked although nobody told us of it.
_NAMED: Final = re.compile(
    r"(?i)([\"']?[\w-]{0,40}(?:authorization|password|passwd|secret|token|api[_-]?key|credential|signature|cookie)[\w-]{0,40}"
    r"[\"']?\s{0,8}[:=]\s{0,8})(\"[^\"]*\"|'[^']*'|(?:(?:basic|bearer|token)\s{1,8})?[^\s,;&}\"']+)"
)


class Masker:
    """Knows the secrets of one endpoint; it has no repr that would show them."""

    __slots__ = ("_longest", "_pattern")

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {spelling for secret in secrets for part in _parts(secret) for spelling in _spellings(part)}
        longest_first = sorted((each for each in spellings if len(each) >= _SHORTEST), key=len, reverse=True)
        self._longest = len(longest_first[0]) if longest_first else 0
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def mask(self, text: str) -> str:
        """The text without the secrets."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

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
    """As it may come back: quoted for an address or for JSON, or in base64."""
    yield part
    yield quote(part, safe="")
    yield quote(part)
    yield quote_plus(part)
    yield unquote(part)
    yield json.dumps(part)[1:-1]
    yield json.dumps(part)[1:-1].replace("/", "\\/")
    yield base64.b64encode(part.encode()).decode().rstrip("=")
