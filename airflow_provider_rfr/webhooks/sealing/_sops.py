"""The SOPS format: sealed values, the rule that selects them, and the MAC over a document.

A value is ``ENC[AES256_GCM,...]`` with a nonce of 32 random bytes. The associated data are the map keys on the way to
it, each followed by a colon; list indexes do not count. Neither its type nor the metadata are authenticated: the
opener has to check that text is text, and a regular expression in the metadata is never run as one.

The MAC is SHA-512 over the texts of the leaves in document order without separators. So it protects the sealed leaves,
each of which is bound to its path, and hardly any other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.text import cut, printable

KEY_BYTES = 32
Place = tuple[str | int, ...]
_Scalar = str | int | float | bool

_MAX_NODES = 50_000
_MAX_CHARACTERS = 8 * 2**20
_MAX_DEPTH = 50
_MAX_SHOWN = 120


def short_name(text: object) -> str:
    """Return a key or name for a message: printable, one line, short. Never used for values."""
    return cut(printable(str(text)), _MAX_SHOWN)


def pointer(place: Sequence[str | int]) -> str:
    """Return the JSON pointer (RFC 6901); empty for the document itself."""
    return "".join(f"/{short_name(str(part).replace('~', '~0').replace('/', '~1'))}" for part in place)


def extra(module: str) -> ModuleType:
    """Import a module of pyrage or cryptography, which are optional.

    :raises SealError: it is not installed
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        pass  # raised below, so that the error has no context
    package = module.partition(".")[0]
    raise SealError(f"sealed documents need {package}, which is not installed: pip install airflow-provider-rfr[sops]")


# The rule.

_RULES = ("unencrypted_suffix", "encrypted_suffix", "unencrypted_regex", "encrypted_regex")
_COMMENT_RULES = ("unencrypted_comment_regex", "encrypted_comment_regex")
_WORD = r"(?:[A-Za-z0-9_-]|\\[.\-_])+"
_WORDS = re.compile(rf"(\^?)(?:\(({_WORD}(?:\|{_WORD})*)\)|({_WORD}))(\$?)", re.ASCII)
_MAX_RULE = 2000


@dataclass(frozen=True)
class SealingRule:
    """A rule that decides which leaves are sealed, and which the MAC covers.

    :ivar matches: whether the rule names a map key on the way to a leaf
    :ivar seals: whether leaves below such keys are sealed, or all others
    :ivar mac_only: whether the MAC covers sealed values only
    """

    matches: Callable[[str], bool]
    seals: bool
    mac_only: bool

    def selects(self, keys: Sequence[str]) -> bool:
        return any(map(self.matches, keys)) == self.seals


def names_regex(*names: str) -> str:
    """Return the regular expression that matches exactly these names, here and in the sops program."""
    return f"^({'|'.join(names)})$"


def rule_of(metadata: Mapping[str, Any]) -> SealingRule:
    """Return the rule that decides which values of the document are sealed.

    :raises SealError: the rule is wrong, or only the sops program understands it
    """
    for name in (*_RULES, *_COMMENT_RULES):
        if not isinstance(metadata.get(name) or "", str):
            raise SealError(f"sops.{name} must be text")
    mac_only = metadata.get("mac_only_encrypted") or False
    if not isinstance(mac_only, bool):
        raise SealError("sops.mac_only_encrypted must be a boolean")
    rules = {name: metadata[name] for name in _RULES if metadata.get(name)}
    if any(metadata.get(name) for name in _COMMENT_RULES) or len(rules) > 1:
        raise SealError(f"the document's sealing rule is not supported; only one of {', '.join(_RULES)} is allowed")
    name, text = next(iter(rules.items()), ("unencrypted_suffix", "_unencrypted"))
    names: tuple[str, ...] = (text,)
    at_start, at_end = False, True
    if name.endswith("_regex"):
        words = _WORDS.fullmatch(text) if len(text) <= _MAX_RULE else None
        if words is None:
            raise SealError(f"sops.{name} is not supported; it must be a list of names as in ^(url|headers)$")
        at_start, at_end = bool(words[1]), bool(words[4])
        names = tuple(part.replace("\\", "") for part in (words[2] or words[3]).split("|"))

    def matches(key: str) -> bool:
        if at_start and at_end:
            return key in names
        if at_start or at_end:
            return key.startswith(names) if at_start else key.endswith(names)
        return any(name in key for name in names)

    return SealingRule(matches, name.startswith("encrypted"), mac_only)


# Values.

_MAX_INTEGER = 2**63 - 1
_EXACT_FLOAT = 2**53
_NONCE_BYTES = 32
_TAG_BYTES = 16
_BASE64 = "[A-Za-z0-9+/]*={0,2}"
_SEALED = re.compile(
    rf"ENC\[AES256_GCM,data:(?P<data>{_BASE64}),iv:(?P<iv>{_BASE64}),tag:(?P<tag>{_BASE64}),type:(?P<kind>[a-z0-9]+)\]"
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_BOOLEANS = {"True": True, "true": True, "False": False, "false": False}


def is_sealed(value: object) -> bool:
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def looks_sealed(value: object) -> bool:
    """Tell whether a value is sealed, or was before it was damaged."""
    return isinstance(value, str) and value.lstrip().startswith("ENC[")


def _text_of(value: _Scalar) -> str:
    """Return the text that is encrypted and hashed."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value)


def encrypt(value: _Scalar, key: bytes, data: bytes) -> str:
    """Return the sealed value.

    :param data: associated data
    """
    nonce = os.urandom(_NONCE_BYTES)
    cipher = extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)
    sealed = cipher.encrypt(nonce, _text_of(value).encode(), data)
    parts = (sealed[:-_TAG_BYTES], nonce, sealed[-_TAG_BYTES:])
    body, iv, tag = (base64.b64encode(part).decode() for part in parts)
    kind = {bool: "bool", int: "int", float: "float"}.get(type(value), "str")
    return f"ENC[AES256_GCM,data:{body},iv:{iv},tag:{tag},type:{kind}]"


def decrypt(sealed: str, key: bytes, data: bytes) -> _Scalar | None:
    """Open a sealed value.

    Return None if it is not a sealed value, is for another key or path, was changed, or is not of its type. Callers
    can't distinguish these cases, and no exception is left whose context might hold plaintext.
    """
    match = _SEALED.fullmatch(sealed)
    if match is None:
        return None
    try:
        body, nonce, tag = (base64.b64decode(match[name], validate=True) for name in ("data", "iv", "tag"))
    except binascii.Error:
        return None
    if len(tag) != _TAG_BYTES or not 12 <= len(nonce) <= 2 * _NONCE_BYTES:
        return None
    cipher = extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)
    try:
        plain = str(cipher.decrypt(nonce, body + tag, data), "utf-8")
    except (extra("cryptography.exceptions").InvalidTag, UnicodeDecodeError):
        return None
    return _typed(plain, match["kind"])


def _typed(text: str, kind: str) -> _Scalar | None:
    """Return the value of a decrypted text.

    Comments and bytes are refused: neither is JSON, and no MAC covers comments.
    """
    if kind == "str":
        return text
    if kind == "bool":
        return _BOOLEANS.get(text)
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text) if abs(int(text)) <= _MAX_INTEGER + 1 else None
    if kind != "float" or not _FLOAT.fullmatch(text) or math.isinf(float(text)):
        return None
    value = float(text)
    # The sops program seals JSON's integers as floats, and prints whole floats as integers.
    minus_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT and not minus_zero else value


# Documents.


class Opened(dict[str, Any]):
    """A dict whose repr shows its keys only, as its values are secret."""

    def __repr__(self) -> str:
        return f"<opened: {', '.join(self)}>"


class _OpenedList(list[Any]):
    def __repr__(self) -> str:
        return f"<opened: {len(self)} entries>"


def hidden(value: Any) -> Any:
    """Return the value with maps and lists whose repr shows no contents."""
    if isinstance(value, Mapping):
        return Opened({key: hidden(item) for key, item in value.items()})
    return _OpenedList(map(hidden, value)) if isinstance(value, list) else value


def plain_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as new dicts, lists and scalars of Python's own types.

    :raises SealError: it is not a mapping, too large or deep, or has keys or values that JSON does not have
    """
    if not isinstance(document, Mapping):
        raise SealError("the document must be a mapping")
    copied: dict[str, Any] = _Copier().copy(document, ())
    return copied


class _Copier:
    """A copier that counts, so that a bomb of aliases or a cycle is found before it fills memory."""

    def __init__(self) -> None:
        self._nodes = 0
        self._characters = 0

    def copy(self, node: object, place: Place) -> Any:
        self._count(1, 0)
        if len(place) > _MAX_DEPTH:
            raise SealError(f"the document is nested deeper than {_MAX_DEPTH} levels")
        if isinstance(node, Mapping):
            for key in node:
                if not isinstance(key, str):
                    kind = type(key).__name__
                    raise SealError(f"{_location(place)}: a key must be text, not {kind}; put it in quotes")
            return {self._text(key, place): self.copy(value, (*place, key)) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self.copy(value, (*place, index)) for index, value in enumerate(node)]
        if isinstance(node, str):
            return self._text(node, place)
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, int) and -_MAX_INTEGER - 1 <= node <= _MAX_INTEGER:
            return int(node)
        if isinstance(node, float) and math.isfinite(node):
            return float(node)
        raise SealError(f"{_location(place)}: a {type(node).__name__} of this size or kind can't be sealed")

    def _text(self, text: str, place: Place) -> str:
        self._count(0, len(text))
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise SealError(f"{_location(place)}: the text contains a lone surrogate, which is not a character")
        return str.__str__(text)  # a subclass may override __str__

    def _count(self, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > _MAX_NODES or self._characters > _MAX_CHARACTERS:
            raise SealError(
                f"the document is too large: {_MAX_NODES:,} values and {_MAX_CHARACTERS:,} characters at most"
            )


def _location(place: Place) -> str:
    return pointer(place) or "the document"


# Gets a selected leaf, its associated data and its place; returns the new leaf and the plaintext.
_Convert = Callable[[Any, bytes, Place], tuple[Any, _Scalar]]


def seal_tree(tree: dict[str, Any], key: bytes, rule: SealingRule) -> tuple[dict[str, Any], str]:
    """Return the tree with its leaves sealed, and its MAC."""
    return _converted(tree, rule, lambda value, data, _: (encrypt(value, key, data), value))


def open_tree(tree: dict[str, Any], key: bytes, rule: SealingRule) -> tuple[dict[str, Any], str]:
    """Return the tree with its leaves opened, and its MAC.

    :raises SealError: a leaf was changed, moved, or is plaintext
    """

    def opened(value: Any, data: bytes, place: Place) -> tuple[Any, _Scalar]:
        if not looks_sealed(value):
            raise SealError(f"{_location(place)}: plaintext where a sealed value is due")
        plain = decrypt(value, key, data)
        if plain is None:
            raise SealError(
                f"{_location(place)}: this sealed value is not the one that was sealed here; it was changed, cut, or"
                " moved from another place: restore it, or seal the document again"
            )
        return plain, plain

    return _converted(tree, rule, opened)


def _converted(tree: dict[str, Any], rule: SealingRule, convert: _Convert) -> tuple[dict[str, Any], str]:
    # With mac_only_encrypted, the sops program starts the hash with SHA-256 of the word "sops".
    mac = hashlib.sha512(hashlib.sha256(b"sops").digest() if rule.mac_only else b"")

    def walked(node: Any, keys: tuple[str, ...], place: Place) -> Any:
        if isinstance(node, dict):
            return {key: walked(value, (*keys, key), (*place, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [walked(value, keys, (*place, index)) for index, value in enumerate(node)]
        selected = rule.selects(keys)
        new = plain = node
        if selected and node not in (None, ""):  # SOPS seals no empty values
            new, plain = convert(node, "".join(f"{key}:" for key in keys).encode(), place)
        if plain is not None and (selected or not rule.mac_only):
            mac.update(_text_of(plain).encode())
        return new

    return walked(tree, (), ()), mac.hexdigest().upper()
