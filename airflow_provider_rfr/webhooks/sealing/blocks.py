"""Where in a document the triggers block stands, and where its ``sops``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import SealError

BELOW = "triggers"


@dataclass(frozen=True)
class Located:
    """A document and the places in it.

    :ivar document: the whole
    :ivar nested: the block stands below the key ``triggers``
    :ivar outside: ``sops`` stands beside the key ``triggers``, and covers the whole document
    """

    document: Mapping[str, Any]
    nested: bool
    outside: bool

    @property
    def block(self) -> Any:
        return self.document[BELOW] if self.nested else self.document

    @property
    def sealed(self) -> Any:
        """What ``sops`` belongs to."""
        return self.document if self.outside else self.block

    @property
    def metadata(self) -> Any:
        return self.sealed.get("sops") if isinstance(self.sealed, Mapping) else None

    def with_sealed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The document with this in the place of what ``sops`` belonged to."""
        return dict(content) if self.outside or not self.nested else {**self.document, BELOW: dict(content)}

    def with_block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.document, BELOW: dict(block)} if self.nested else dict(block)


def locate(document: Mapping[str, Any]) -> Located:
    """:raises SealError: it is not to be told where the block is"""
    if not isinstance(document, Mapping):
        raise SealError("the document is not a map")
    nested = BELOW in document
    if nested and ("config" in document or "interval" in document):
        raise SealError(f"the document has a triggers block at its top and another one below {BELOW}")
    inside = document[BELOW] if nested else None
    if nested and document.get("sops") and isinstance(inside, Mapping) and inside.get("sops"):
        raise SealError(f"the document has sops at its top and again below {BELOW}")
    return Located(document, nested, outside=nested and bool(document.get("sops")))
