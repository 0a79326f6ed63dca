"""Seals and opens all leaves of a document, and computes the code over them.

The code is SHA-512 over the texts of the leaves, in the document's order and with nothing between them. It says
neither at which key a plaintext leaf stood nor where one ends and the next begins, so it protects sealed leaves
(whose path is bound to each) and hardly any other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.pointers import Place, spot
from airflow_provider_rfr.webhooks.sealing.rules import Rule
from airflow_provider_rfr.webhooks.sealing.values import (
    LARGEST_INTEGER,
    Scalar,
    associated_data,
    encrypt,
    looks_sealed,
    open_or_refuse,
    text_of,
)

MOST_NODES = 50_000
MOST_CHARACTERS = 8 * 2**20
DEEPEST = 50
# SHA-256 of the word "sops": what the code starts with where it covers the sealed values alone.
_MAC_ONLY_SEED = hashlib.sha256(b"sops").digest()

Leaf = Callable[[Any, tuple[str, ...], Place], Any]


class _Copy:
    """Counts while it copies; aliases and circles are counted as often as they are met."""

    def __init__(self) -> None:
        self.nodes = 0
        self.characters = 0

    def __call__(self, node: object, place: Place) -> Any:
        self.count(1, 0)
        if len(place) > DEEPEST:
            raise SealError(f"the document is nested deeper than {DEEPEST} levels")
        if isinstance(node, Mapping):
            return {self.key(key, place): self(value, (*place, key)) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [self(value, (*place, index)) for index, value in enumerate(node)]
        return self.leaf(node, place)

    def count(self, nodes: int, characters: int) -> None:
        self.nodes += nodes
        self.characters += characters
        if self.nodes > MOST_NODES or self.characters > MOST_CHARACTERS:
            raise SealError(
                f"the document is too large: {MOST_NODES:,} values and {MOST_CHARACTERS:,} characters at most"
            )

    def key(self, key: object, place: Place) -> str:
        if not isinstance(key, str):
            raise SealError(f"{spot(place)}: a key is a {type(key).__name__}, not text; put it in quotes")
        return self.text(key, place)

    def text(self, text: str, place: Place) -> str:
        """Also of subclasses whose ``str()`` shows something else."""
        self.count(0, len(text))
        if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
            raise SealError(f"{spot(place)}: the text holds half of a surrogate pair, which is no character")
        return str.__str__(text)

    def leaf(self, value: object, place: Place) -> Scalar | None:
        if isinstance(value, str):
            return self.text(value, place)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and -LARGEST_INTEGER - 1 <= value <= LARGEST_INTEGER:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        raise SealError(
            f"{spot(place)}: a {type(value).__name__} of this size or kind can't stand in a sealed document"
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
        return encrypt(value, key, associated_data(keys)) if selected and value not in (None, "") else value

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
                raise SealError(f"{spot(place)}: plaintext where a sealed value is due")
            value = open_or_refuse(value, key, associated_data(keys), spot(place))
        mac.add(value, selected)
        return value

    return _walked(tree, (), (), leaf), mac.code()


class _Mac:
    def __init__(self, rule: Rule) -> None:
        self.hash = hashlib.sha512(_MAC_ONLY_SEED if rule.mac_only else b"")
        self.all = not rule.mac_only

    def add(self, value: Scalar | None, selected: bool) -> None:
        if value is not None and (selected or self.all):
            self.hash.update(text_of(value).encode())

    def code(self) -> str:
        return self.hash.hexdigest().upper()


def _walked(node: Any, keys: tuple[str, ...], place: Place, leaf: Leaf) -> Any:
    if isinstance(node, dict):
        return {key: _walked(value, (*keys, key), (*place, key), leaf) for key, value in node.items()}
    if isinstance(node, list):
        return [_walked(value, keys, (*place, index), leaf) for index, value in enumerate(node)]
    return leaf(node, keys, place)
