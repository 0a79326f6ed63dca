"""Who can open a document: the key sources in its ``sops`` metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.pointers import shown

# The fields that name a key of each kind, by the order in which messages list them.
_NAMES: dict[str, tuple[str, ...]] = {
    "age": ("recipient",),
    "pgp": ("fp",),
    "kms": ("arn",),
    "gcp_kms": ("resource_id",),
    "azure_kv": ("vault_url", "name"),
    "hc_vault": ("vault_address", "engine_path", "key_name"),
}
MOST_SOURCES = 50


@dataclass(frozen=True)
class Source:
    """One key that opens the document.

    :ivar kind: the list of the metadata that it stands in
    :ivar entry: the metadata's entry; nothing in it is secret
    """

    kind: str
    entry: Mapping[str, Any]

    @property
    def is_plain_age(self) -> bool:
        """Whether age itself reads it; names with another ``1`` in them are of plugins."""
        recipient = str(self.entry.get("recipient", ""))
        return self.kind == "age" and (recipient.startswith("ssh-") or recipient.count("1") < 2)

    def __str__(self) -> str:
        parts = [shown(self.entry[field]) for field in _NAMES[self.kind] if self.entry.get(field)]
        return f"{self.kind} {' '.join(parts) or '(no name)'}"


@dataclass(frozen=True)
class Sources:
    """All of them.

    :ivar shared: the key is split over groups of sources (``key_groups``), several of which are needed
    """

    all: tuple[Source, ...]
    shared: bool

    def of(self, *kinds: str) -> tuple[Source, ...]:
        return tuple(source for source in self.all if source.kind in kinds)

    @property
    def foreign(self) -> tuple[Source, ...]:
        """Those that only the sops binary knows."""
        return self.all if self.shared else tuple(source for source in self.all if not source.is_plain_age)

    def __str__(self) -> str:
        return ", ".join(map(str, self.all))


def sources_of(metadata: Mapping[str, Any]) -> Sources:
    """:raises SealError: there is none, or the lists are malformed"""
    groups = _list(metadata, "key_groups")
    alone = tuple(_sources(metadata))
    found = alone or tuple(source for group in groups for source in _sources(group))
    if not found:
        raise SealError(f"the document names no key source ({', '.join(_NAMES)}), so nothing can open it")
    if len(found) > MOST_SOURCES:
        raise SealError(f"the document names more than {MOST_SOURCES} key sources")
    return Sources(found, shared=not alone)


def _sources(group: Mapping[str, Any]) -> Iterator[Source]:
    return (Source(kind, entry) for kind in _NAMES for entry in _list(group, kind))


def _list(group: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = group.get(name) or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SealError(f"sops.{name} is not a list of maps")
    return entries
