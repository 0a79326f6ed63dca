"""Names of secrets, and the removal of secrets from messages, page tokens and answers.

A :class:`Redactor` belongs to a source and learns tokens while it is read; it is fast, and replaces secrets as they are
and as they look in a URL. A :class:`Masker` belongs to a webhook's endpoint, whose answers may repeat a secret in any
encoding.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit, urlunsplit

# A regular expression, which Java understands as well, for a part of a secret's name; case is ignored.
SECRET_NAMES: Final = (
    r"secret|token|passw|passphrase|pwd|credential|authorization|bearer|signature|cookie"
    r"|(?:api|access|account|private)[._-]?key|keyfile|connection[._-]?string"
    r"|(?<![a-z])(?:sas|dsn|pat)(?![a-z])"
)
MASK: Final = "***"
_SECRET: Final = re.compile(SECRET_NAMES, re.IGNORECASE)
# ``token_url`` says where a token comes from, and is not secret.
_ABOUT: Final = re.compile(r"(?:url|uri|endpoint|path|file|field|header|param|parameter|name|type)s?$", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(^|//)([^\s@/?#:]*):(?!//)\S*@")
_USER: Final = re.compile(r"//[^\s@/?#:]+@")
# As SQLAlchemy reads it: every character but @ may be a part of the password, also / ? # and a space.
_DATABASE: Final = re.compile(r"\A((?!(?:https?|hdfs):)[\w+.-]+://)([^:/]*):(?!//)([^@]*)@")
_ARGUMENT: Final = re.compile(r"([?&;]([^\s=&;#]+)=)[^\s&;#]+")
_SHORTEST: Final = 4
_LONG: Final = 8
# Parameters that are removed from addresses that are kept. Others, such as `page_token`, have to stay.
_CREDENTIAL_PARAMETERS: Final = frozenset({"access_token", "api_key", "apikey", "client_secret"})


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Tell whether a setting, header, parameter or field of this name is secret, so that its value is never shown."""
    return _SECRET.search(name) is not None and _ABOUT.search(name) is None


def is_secret_extra(name: str) -> bool:
    """Tell as :func:`is_secret` whether a connection's extra field is secret; there, one called ``key`` holds a key."""
    return is_secret(name) or name.rpartition(".")[2].lower() == "key"


def secrets_in(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values among a catalog's properties: by their names, and passwords in addresses.

    Values of less than four characters are left out: to mask them would spoil any text.
    """
    secrets = {value for name, value in properties.items() if is_secret(name)}
    secrets.update(*map(passwords_in, properties.values()))
    return tuple(sorted(secret for secret in secrets if len(secret) >= _SHORTEST))


def passwords_in(address: str) -> frozenset[str]:
    """Return the password of an address, as written and URL-decoded; an empty set if it has none."""
    database = _DATABASE.match(address)
    found = set() if database is None else {database[3]}
    # An address that can't be read is reported by whoever opens it.
    with contextlib.suppress(ValueError):
        found.add(urlsplit(address).password or "")
    return frozenset(form for password in found if password for form in (password, unquote(password)))


def names_login(address: str) -> bool:
    """Tell whether an address has a user name."""
    return _DATABASE.match(address) is not None or bool(urlsplit(address).username)


def without_credentials(text: str) -> str:
    """Mask the credentials in an address, or in a text with addresses in it."""
    text = _DATABASE.sub(rf"\1\2:{MASK}@", text)
    text = _USER.sub(f"//{MASK}@", _PASSWORD.sub(rf"\1\2:{MASK}@", text))
    return _ARGUMENT.sub(lambda match: f"{match[1]}{MASK}" if is_secret(match[2]) else match[0], text)


def host_of(url: str) -> str:
    """Return scheme, host and port of an address, for messages; the rest may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return "the address"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}" if host else "the address"


def bare_host(url: str) -> str | None:
    """Return host and port of a web address and nothing else of it; None where it has no host."""
    return host_of(url if "://" in url else f"https://{url}").partition("://")[2] or None


def without_path(address: str) -> str:
    """Return a web address with everything after the host masked, because a webhook's path may be secret."""
    has_scheme = "://" in address
    url = address if has_scheme else f"https://{address}"
    host = host_of(url) if has_scheme else host_of(url).removeprefix("https://")
    return f"{host}/{MASK}" if list(secrets_of_url(url)) else host


class Redactor:
    """A thread-safe remover of secrets from texts and values.

    Values shorter than four characters are only recognised when they stand alone.
    """

    def __init__(self, secrets: Iterable[Any]) -> None:
        self._lock = threading.Lock()
        self._whole: frozenset[str] = frozenset()
        self._texts: tuple[str, ...] = ()
        self._long: tuple[str, ...] = ()
        self._parameters = _CREDENTIAL_PARAMETERS
        for secret in secrets:
            self.add(secret)

    def add(self, secret: Any) -> None:
        """Remember a secret; of a mapping or list, each value in it."""
        with self._lock:
            for text in texts_in(secret):
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
        """Remember a password, and the text that basic authentication makes of it."""
        self.add(password)
        self.add(base64.b64encode(f"{user}:{password}".encode()).decode())

    def text(self, text: str) -> str:
        """Return ``text`` with every secret masked."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def is_credential(self, name: str, value: str) -> bool:
        """Tell whether a query parameter is a credential: by its name, or because a long secret is in its value.

        A short secret does not count: ``status=open`` must stay as it is, though ``open`` may be a password too.
        """
        return name.lower() in self._parameters or any(secret in value for secret in self._long)

    def finds_secret_in(self, value: Any) -> bool:
        """Tell whether a long secret is in a text, or in a value of a mapping or list, also quoted as in an address."""
        texts = [form for text in texts_in(value) for form in (text, unquote(text))]
        return any(secret in text for text in texts for secret in self._long)

    def without_credentials(self, url: str) -> str:
        """Return the URL without user, password and credential parameters; everything else as it was."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        kept = [(name, value) for name, value in pairs if not self.is_credential(name, value)]
        query = parts.query if len(kept) == len(pairs) else urlencode(kept)
        return urlunsplit((parts.scheme, host, parts.path, query, ""))

    def address(self, url: str) -> str:
        """Return the path and query of a URL, as a message may show them."""
        parts = urlsplit(self.without_credentials(url))
        query = parts.query
        if any(value in self._whole for _, value in parse_qsl(query)):
            query = urlencode([(k, MASK if v in self._whole else v) for k, v in parse_qsl(query)], safe="*")
        return self.text(parts.path + (f"?{query}" if query else ""))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` without secret values, also as they look in an address, in JSON and in basic auth."""
    return Redactor(list(secrets)).text(text)


def texts_in(value: Any) -> Iterator[str]:
    """Yield a scalar as text, or those of a mapping or list; nothing for None, booleans and empty texts."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_in(item)
    elif value is not None and not isinstance(value, bool) and str(value):
        yield str(value)


_MOST_KEPT: Final = 2048
_LONGEST_LINE: Final = 500
_LONG_SEGMENT: Final = 8
_LONGEST_ESCAPE: Final = 13
_NAMES: Final = {"&": ("amp",), "<": ("lt",), ">": ("gt",), '"': ("quot",), "'": ("apos",)}
_SHORT: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token", "apikey", "key"})
_WORD: Final = re.compile(r"[a-z]+(?:[-_.][a-z]+)*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Values whose own name says that they are secret, whether or not they are known here.
_NAMED: Final = re.compile(
    rf"(?i)([\"']?[\w-]{{0,40}}(?:{SECRET_NAMES})[\w-]{{0,40}}"
    r"[\"']?\s{0,8}[:=]\s{0,8})(\"[^\"]*\"|'[^']*'|(?:(?:basic|bearer|token)\s{1,8})?[^\s,;&}\"']+)"
)


class Masker:
    """A masker that knows the secrets of one endpoint; it has no repr that would show them."""

    __slots__ = ("_longest", "_patterns")

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in _parts(secret) if len(part) >= _SHORTEST}
        # The longest first, so that nothing is left of a secret that another one is a part of.
        self._patterns = [re.compile("".join(map(_escaped, part))) for part in sorted(parts, key=len, reverse=True)]
        self._longest = max(map(len, parts), default=0) * _LONGEST_ESCAPE

    def mask(self, text: str) -> str:
        """Return the text with every secret masked."""
        for pattern in self._patterns:
            text = pattern.sub(MASK, text)
        return text

    def kept(self, body: bytes) -> str:
        """Return at most 2 KB of an answer, masked before it is cut, so that no half of a secret is left at the end."""
        text = body.decode("utf-8", "replace")
        window = text[: 2 * (_MOST_KEPT + self._longest)]
        is_whole = len(window) == len(text)
        text = self.mask(window)
        # Where the window ends in the middle of a secret, its beginning was not recognised.
        text = text if is_whole else text[: len(text) - self._longest]
        text = _NAMED.sub(lambda found: found[1] + MASK, text)
        return _plain(text).encode()[:_MOST_KEPT].decode("utf-8", "ignore")

    def one_line(self, text: str) -> str:
        """Return a text for logs and the store: masked, on one line, and in characters that every database takes."""
        return _plain(self.mask(text))[:_LONGEST_LINE]

    def __repr__(self) -> str:
        return "Masker()"


def _plain(text: str) -> str:
    """Return the text without control characters and halves of surrogate pairs."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.encode("utf-8", "replace").decode())


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield the parts of an address that may be secret: user, password, query, the path and its long segments."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    yield from (credential for credential in (parts.username, parts.password) if credential)
    if parts.path.strip("/"):
        yield parts.path
    for part in parts.path.split("/"):
        # A plain word, such as "services" of Slack's addresses, is worth reading in an answer.
        if len(part) >= _LONG_SEGMENT and not _WORD.fullmatch(part):
            yield part
    if parts.query:
        yield parts.query
        yield from (value for _, value in parse_qsl(parts.query))


def _parts(secret: str) -> Iterator[str]:
    """Yield the forms of a secret.

    They are the secret, the value after its scheme (``Bearer x``; a login in base64, decoded), and each of these
    also URL-decoded and in base64.
    """
    parts = [secret]
    scheme, _, value = secret.partition(" ")
    if scheme.lower() in _SCHEMES:
        parts.append(value.strip())
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            login = base64.b64decode(value.strip(), validate=True).decode()
            parts += [login, login.partition(":")[2]]
    for part in parts:
        yield part
        yield unquote(part)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(part.encode()).decode().rstrip("=")


@lru_cache(maxsize=1024)
def _escaped(letter: str) -> str:
    """Return a pattern for a character, however an answer escapes it: for an address, for JSON or for HTML."""
    if letter.isascii() and letter.isalnum():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    forms = [
        # Several backslashes, as in JSON inside JSON.
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
