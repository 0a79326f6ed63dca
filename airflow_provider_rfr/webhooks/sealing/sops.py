"""The SOPS format: sealed values, the rule that names them, and the MAC over a document.

A value is ``ENC[AES256_GCM,...]`` with a nonce of 32 random bytes. The associated data are the map keys on the way to
it, each followed by a colon; list indexes do not count. The type is not authenticated, so whoever opens a document has
to check that text is text. The metadata are not authenticated either: a regular expression there is never run as one.

The MAC is SHA-512 over the texts of the leaves in document order with nothing in between, so it protects sealed leaves,
whose path is bound to each, and hardly any other.
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

_DEFAULT_SUFFIX = "_unencrypted"
_RULES = ("unencrypted_suffix", "encrypted_suffix", "unencrypted_regex", "encrypted_regex")
_COMMENT_RULES = ("unencrypted_comment_regex", "encrypted_comment_regex")
_WORD = r"(?:[A-Za-z0-9_-]|\\[.\-_])+"
_WORDS = re.compile(rf"(\^?)(?:\(({_WORD}(?:\|{_WORD})*)\)|({_WORD}))(\$?)", re.ASCII)
_LONGEST_RULE = 2000


@dataclass(frozen=True)
class Rule:
    """Which leaves are sealed, and which the document's code covers.

    :ivar matches: whether a map key on the way to a leaf is named by the rule
    :ivar seals: whether the leaves below such a key are the sealed ones, or all others
    :ivar mac_only: whether the document's code covers the sealed values alone
    """

    matches: Callable[[str], bool]
    seals: bool
    mac_only: bool

    def selects(self, keys: Sequence[str]) -> bool:
        return any(map(self.matches, keys)) == self.seals


def words(*names: str) -> str:
    """The regular expression that this module, and the sops binary, read as these names."""
    return f"^({'|'.join(names)})$"


def rule_of(metadata: Mapping[str, Any]) -> Rule:
    """:raises SealError: the rule is wrong, or only the sops binary understands it"""
    for name in (*_RULES, *_COMMENT_RULES):
        if not isinstance(metadata.get(name) or "", str):
            raise SealError(f"sops.{name} is not text")
    mac_only = metadata.get("mac_only_encrypted") or False
    if not isinstance(mac_only, bool):
        raise SealError("sops.mac_only_encrypted is neither true nor false")
    given = {name: metadata[name] for name in _RULES if metadata.get(name)}
    if any(metadata.get(name) for name in _COMMENT_RULES) or len(given) > 1:
        raise SealError(f"the document's sealing rule is not understood; only one of {', '.join(_RULES)} may be there")
    name, text = next(iter(given.items()), ("unencrypted_suffix", _DEFAULT_SUFFIX))
    matches = _by_words(name, text) if name.endswith("_regex") else _by_suffix(text)
    return Rule(matches, name.startswith("encrypted"), mac_only)


def _by_suffix(suffix: str) -> Callable[[str], bool]:
    return lambda key: key.endswith(suffix)


def _by_words(name: str, pattern: str) -> Callable[[str], bool]:
    found = _WORDS.fullmatch(pattern) if len(pattern) <= _LONGEST_RULE else None
    if found is None:
        raise SealError(f"sops.{name} is not understood: only a list of names as in ^(url|headers)$ is")
    names = tuple(each.replace("\\", "") for each in (found[2] or found[3]).split("|"))
    if found[1] and found[4]:
        return frozenset(names).__contains__
    if found[1]:
        return lambda key: key.startswith(names)
    if found[4]:
        return lambda key: key.endswith(names)
    return lambda key: any(each in key for each in names)


class Opened(dict[str, Any]):
    """A dict as any other, but for its repr and str: they name the keys alone."""

    def __repr__(self) -> str:
        return f"<opened: {', '.join(self)}>"

    __str__ = __repr__


class _OpenedList(list[Any]):
    def __repr__(self) -> str:
        return f"<opened: {len(self)} entries>"

    __str__ = __repr__


def veiled(document: Mapping[str, Any]) -> Opened:
    return Opened({key: _veiled(value) for key, value in document.items()})


def _veiled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return veiled(value)
    return _OpenedList(map(_veiled, value)) if isinstance(value, list) else value


def extra(module: str) -> ModuleType:
    """A module of pyrage or cryptography.

    :raises SealError: it is not installed
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        pass  # raised below, so that no context hangs on the error
    package = module.partition(".")[0]
    raise SealError(f"sealed documents need {package}, which is not installed: pip install airflow-provider-rfr[sops]")


_Scalar = str | int | float | bool

KEY_BYTES = 32
_LARGEST_INTEGER = 2**63 - 1
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
    """Whether it is, or was once, a sealed value."""
    return isinstance(value, str) and value.lstrip().startswith("ENC[")


def _associated_data(keys: Sequence[str]) -> bytes:
    return "".join(f"{key}:" for key in keys).encode()


def _text_of(value: _Scalar) -> str:
    """The text that is encrypted, and that counts for the document's code."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        digits = format(Decimal(repr(value)), "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return str(value)


def encrypt(value: _Scalar, key: bytes, data: bytes) -> str:
    """:param data: associated data"""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _cipher(key).encrypt(nonce, _text_of(value).encode(), data)
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    text = [base64.b64encode(each).decode() for each in (body, nonce, tag)]
    return f"ENC[AES256_GCM,data:{text[0]},iv:{text[1]},tag:{text[2]},type:{_kind(value)}]"


def decrypt(sealed: str, key: bytes, data: bytes) -> _Scalar | None:
    """The value, or None: not a sealed value, of another key or path, changed, or not of its type.

    Which of them is never told apart, and no exception is left behind whose context might hold plaintext.
    """
    found = _SEALED.fullmatch(sealed)
    parts = [_decoded(found[name]) for name in ("data", "iv", "tag")] if found else [None]
    if found is None or None in parts:
        return None
    body, nonce, tag = (part or b"" for part in parts)
    if len(tag) != _TAG_BYTES or not 12 <= len(nonce) <= 2 * _NONCE_BYTES:
        return None
    plain = _plain(_cipher(key), nonce, body + tag, data)
    return None if plain is None else _typed(plain, found["kind"])


def _kind(value: _Scalar) -> str:
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "str")


def _cipher(key: bytes) -> Any:
    return extra("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _plain(cipher: Any, nonce: bytes, sealed: bytes, data: bytes) -> str | None:
    try:
        return str(cipher.decrypt(nonce, sealed, data), "utf-8")
    except (extra("cryptography.exceptions").InvalidTag, UnicodeDecodeError):
        return None


def _typed(text: str, kind: str) -> _Scalar | None:
    """Comments and bytes are refused: neither is JSON, and SOPS leaves comments out of the document's code."""
    if kind == "str":
        return text
    if kind == "bool":
        return _BOOLEANS.get(text)
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text) if abs(int(text)) <= _LARGEST_INTEGER + 1 else None
    if kind == "float" and _FLOAT.fullmatch(text):
        return _number(float(text))
    return None


def _number(value: float) -> int | float | None:
    """Whole numbers are integers again, as in what the sops binary prints (it seals those of JSON as floats)."""
    if math.isinf(value):
        return None
    minus_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT and not minus_zero else value


def _open_or_refuse(sealed: str, key: bytes, data: bytes, place: str) -> _Scalar:
    """:raises SealError: see :func:`decrypt`"""
    value = decrypt(sealed, key, data)
    if value is None:
        raise SealError(
            f"{place}: this sealed value is not the one that was sealed here; it was changed, cut, or moved"
            " from another place: restore it, or seal the document again"
        )
    return value


Place = tuple[str | int, ...]

_LONGEST = 120


def shown(text: object) -> str:
    """A key or name as messages may hold it: one line, printable, short. Never used for values."""
    clean = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in str(text))
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"


def pointer(place: Sequence[str | int]) -> str:
    """JSON pointer (RFC 6901); empty for the document itself."""
    return "".join(f"/{shown(str(each).replace('~', '~0').replace('/', '~1'))}" for each in place)


def _spot(place: Sequence[str | int]) -> str:
    return pointer(place) or "the document"


_MOST_NODES = 50_000
_MOST_CHARACTERS = 8 * 2**20
_DEEPEST = 50
# SHA-256 of the word "sops": what the code starts with where it covers the sealed values alone.
_MAC_ONLY_SEED = hashlib.sha256(b"sops").digest()

_Leaf = Callable[[Any, tuple[str, ...], Place], Any]


class _Copy:
    """Counts while it copies; aliases and circles are counted as often as they are met."""

    def __init__(self) -> None:
        self.nodes = 0
        self.characters = 0

    def __call__(self, node: object, place: Place) -> Any:
        self.count(1, 0)
        if len(place) > _DEEPEST:
            raise SealError(f"the document is nested deeper than {_DEEPEST} levels")
        if isinstance(node, Mapping):
            return {self.key(key, place): self(value, (*place, key)) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self(value, (*place, index)) for index, value in enumerate(node)]
        return self.leaf(node, place)

    def count(self, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > _MOST_NODES or self.characters > _MOST_CHARACTERS:
            raise SealError(
                f"the document is too large: {_MOST_NODES:,} values and {_MOST_CHARACTERS:,} characters at most"
            )

    def key(self, key: object, place: Place) -> str:
        if not isinstance(key, str):
            raise SealError(f"{_spot(place)}: a key is a {type(key).__name__}, not text; put it in quotes")
        return self.text(key, place)

    def text(self, text: str, place: Place) -> str:
        """Also of subclasses whose ``str()`` shows something else."""
        self.count(0, len(text))
        if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
            raise SealError(f"{_spot(place)}: the text holds half of a surrogate pair, which is no character")
        return str.__str__(text)

    def leaf(self, value: object, place: Place) -> _Scalar | None:
        if isinstance(value, str):
            return self.text(value, place)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and -_LARGEST_INTEGER - 1 <= value <= _LARGEST_INTEGER:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        raise SealError(
            f"{_spot(place)}: a {type(value).__name__} of this size or kind can't stand in a sealed document"
        )


def plain_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as new dicts and lists.

    :raises SealError: too large or deep, keys that are not text, values that JSON does not have
    """
    if not isinstance(document, Mapping):
        raise SealError("the document is not a map")
    copied: dict[str, Any] = _Copy()(document, ())
    return copied


def seal_tree(tree: dict[str, Any], key: bytes, rule: Rule) -> tuple[dict[str, Any], str]:
    """The tree with its leaves sealed, and its code."""
    mac = _Mac(rule)

    def leaf(value: Any, keys: tuple[str, ...], place: Place) -> Any:
        selected = rule.selects(keys)
        mac.add(value, selected)
        return encrypt(value, key, _associated_data(keys)) if selected and value not in (None, "") else value

    return _walked(tree, (), (), leaf), mac.code()


def open_tree(tree: dict[str, Any], key: bytes, rule: Rule) -> tuple[dict[str, Any], str]:
    """The tree with its leaves opened, and its code.

    :raises SealError: a leaf is changed, moved, or plaintext where a sealed value is due
    """
    mac = _Mac(rule)

    def leaf(value: Any, keys: tuple[str, ...], place: Place) -> Any:
        selected = rule.selects(keys)
        if selected and value not in (None, ""):
            if not looks_sealed(value):
                raise SealError(f"{_spot(place)}: plaintext where a sealed value is due")
            value = _open_or_refuse(value, key, _associated_data(keys), _spot(place))
        mac.add(value, selected)
        return value

    return _walked(tree, (), (), leaf), mac.code()


class _Mac:
    def __init__(self, rule: Rule) -> None:
        self.hash = hashlib.sha512(_MAC_ONLY_SEED if rule.mac_only else b"")
        self.all = not rule.mac_only

    def add(self, value: _Scalar | None, selected: bool) -> None:
        if value is not None and (selected or self.all):
            self.hash.update(_text_of(value).encode())

    def code(self) -> str:
        return self.hash.hexdigest().upper()


def _walked(node: Any, keys: tuple[str, ...], place: Place, leaf: _Leaf) -> Any:
    if isinstance(node, dict):
        return {key: _walked(value, (*keys, key), (*place, key), leaf) for key, value in node.items()}
    if isinstance(node, list):
        return [_walked(value, keys, (*place, index), leaf) for index, value in enumerate(node)]
    return leaf(node, keys, place)
