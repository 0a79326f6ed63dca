"""Opened documents: plaintext whose repr does not show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Opened(dict[str, Any]):
    """A dict as any other, but for its repr and str: they name the keys alone."""

    def __repr__(self) -> str:
        return f"<opened: {', '.join(self)}>"

    __str__ = __repr__


class OpenedList(list[Any]):
    def __repr__(self) -> str:
        return f"<opened: {len(self)} entries>"

    __str__ = __repr__


def veiled(document: Mapping[str, Any]) -> Opened:
    return Opened({key: _veiled(value) for key, value in document.items()})


def _veiled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return veiled(value)
    return OpenedList(map(_veiled, value)) if isinstance(value, list) else value
