"""Seals, checks, opens and reseals triggers blocks."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing import _keys, _policy, _sops
from airflow_provider_rfr.webhooks.sealing._keys import KeySources
from airflow_provider_rfr.webhooks.sealing._sops import plain_copy

_TRIGGERS = "triggers"
# The first version of the sops program that knows mac_only_encrypted.
_FORMAT_VERSION = "3.9.0"


def seal(document: Mapping[str, Any], recipients: Sequence[str]) -> dict[str, Any]:
    """Seal the secret fields of a document; a list of triggers becomes a map of named ones.

    A document that is sealed already is checked and returned unchanged; see :func:`reseal`.

    :param recipients: age or SSH public keys, each of which can open it
    :raises SealError: fields are unknown or empty, or a seal would not protect them
    """
    located = _Located.of(plain_copy(document))
    if located.metadata is not None:
        check_sealed(document)
        return dict(located.document)
    recipients = _keys.check_recipients(recipients)
    config = located.block.get("config") if isinstance(located.block, Mapping) else None
    if isinstance(config, list):
        # Entries of a list get the names that they have anyway.
        config = {f"trigger{index}": endpoint for index, endpoint in enumerate(config)}
    if not isinstance(config, Mapping):
        raise SealError("the document has no triggers: config must be a mapping of them by their names")
    block = {**located.block, "config": config}
    block.pop("sops", None)
    for name in block["config"]:
        if name in _policy.SEALED_NAMES:
            raise SealError(f"a trigger can't be named {name} in a sealed document: all of it would be sealed")
    _policy.check_block(block, _policy.plain_leaf, title="the document can't be sealed")
    key = os.urandom(_sops.KEY_BYTES)
    # The MAC covers the sealed values only, so that everything else stays editable.
    rule: dict[str, Any] = {"encrypted_regex": _policy.ENCRYPTED_REGEX, "mac_only_encrypted": True}
    sealed, mac = _sops.seal_tree(block, key, _sops.rule_of(rule))
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    sealed["sops"] = {
        "age": [{"recipient": recipient, "enc": _keys.envelope(key, recipient)} for recipient in recipients],
        "lastmodified": stamp,
        "mac": _sops.encrypt(mac, key, stamp.encode()),
        **rule,
        "version": _FORMAT_VERSION,
    }
    return located.with_block(sealed)


def check_sealed(document: Mapping[str, Any]) -> None:
    """Check that everything that has to be sealed is sealed. Needs no key.

    :raises SealError: the document is not sealed, or has unknown fields, or plaintext where a sealed value is due
    """
    located = _sealed_document(document)
    KeySources.of(located.metadata)
    _policy.check_block(located.block, _policy.sealed_leaf, title="the sealed document is refused")
    _policy.check_overlay(located.overlay)
    _policy.check_overlaid(located.block, located.overlay)


def open_sealed(document: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the document's plaintext without ``sops``, its overlay applied. Its repr shows no values.

    For the moment of delivery, never for the parse of a DAG file.

    :param document: as it was loaded: renamed or reordered fields differ from the sealed ones
    :param environment: names the keys (``SOPS_AGE_KEY`` and others)
    :raises SealError: no key opens it, or it was changed after it was sealed
    """
    check_sealed(document)
    located = _sealed_document(document)
    content = open_document(located.sealed, environment)
    opened = _Located.of(content if located.outside else located.with_block(content))
    block = _policy.merged(opened.block, located.overlay)
    _policy.check_block(block, _policy.opened_leaf, title="the opened document is refused")
    plain: dict[str, Any] = _sops.hidden(opened.with_block(block))
    return plain


def reseal(
    document: Mapping[str, Any],
    *,
    changes: Mapping[str, Any] | None = None,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Open a document and seal it with a new data key, its overlay included.

    :param changes: JSON pointers in the block to new plaintext values; None removes
    :param recipients: default: those of the document, which must all be age keys then
    :raises SealError: as :func:`open_sealed` and :func:`seal`
    """
    located = _sealed_document(document)
    if recipients is None:
        sources = KeySources.of(located.metadata)
        if not all(source.is_plain_age for source in sources.all):
            raise SealError(f"give the recipients: the document is sealed for {sources}, which are not all age keys")
        recipients = [source.recipient for source in sources.all]
    _keys.check_recipients(recipients)
    if located.outside and set(located.document) - {_TRIGGERS, "sops"}:
        # seal() would leave the other fields in plaintext.
        raise SealError(f"the document has more than {_TRIGGERS} under its seal; change it with the sops program")
    opened = _Located.of(open_sealed(document, environment=environment))
    return seal(opened.with_block(_changed(opened.block, changes or {})), recipients)


def open_document(document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the plaintext of any SOPS document without ``sops`` and overlay.

    :raises SealError: as :func:`open_sealed`
    """
    tree = plain_copy(document)
    metadata = {name: value for name, value in tree.pop("sops").items() if name != "overlay"}
    sources = KeySources.of(metadata)
    key, searched = _keys.data_key(sources, environment)
    if key is None:
        path = _keys.program(environment) if sources.foreign else None
        if path is None:
            raise SealError(sources.unopened(searched))
        return _keys.open_with_program(path, {**tree, "sops": metadata}, sources, environment)
    rule = _sops.rule_of(metadata)
    sealed_mac, stamp = metadata.get("mac"), metadata.get("lastmodified")
    if not isinstance(sealed_mac, str) or not isinstance(stamp, str):
        raise SealError("sops.mac or sops.lastmodified is missing or is not text")
    mac = _sops.decrypt(sealed_mac, key, stamp.encode())
    if not isinstance(mac, str):
        raise SealError("the document's MAC (sops.mac) can't be opened: it or sops.lastmodified was changed")
    opened, computed = _sops.open_tree(tree, key, rule)
    if not hmac.compare_digest(computed.encode(), mac.encode()):
        raise SealError(
            "the document's MAC (sops.mac) does not match its content: a value was changed, added, removed or"
            " reordered after sealing, or the metadata were; restore it, or seal the document again"
        )
    return opened


@dataclass(frozen=True)
class _Located:
    """A document and where its triggers block and its metadata are.

    :ivar nested: the block is below the key ``triggers``
    :ivar outside: ``sops`` is next to the key ``triggers`` and covers the whole document
    """

    document: Mapping[str, Any]
    nested: bool
    outside: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> _Located:
        """Locate the block and its seal in a document.

        :raises SealError: there are two blocks, or two seals
        """
        nested = _TRIGGERS in document
        if nested and ("config" in document or "interval" in document):
            raise SealError(f"the document has a triggers block at its top and another one below {_TRIGGERS}")
        outside = nested and bool(document.get("sops"))
        below = document[_TRIGGERS] if nested else None
        if outside and isinstance(below, Mapping) and below.get("sops"):
            raise SealError(f"the document has sops at its top and again below {_TRIGGERS}")
        return cls(document, nested, outside)

    @property
    def block(self) -> Any:
        return self.document[_TRIGGERS] if self.nested else self.document

    @property
    def sealed(self) -> Any:
        """Return the part of the document that ``sops`` belongs to."""
        return self.document if self.outside else self.block

    @property
    def metadata(self) -> Any:
        return self.sealed.get("sops") if isinstance(self.sealed, Mapping) else None

    @property
    def overlay(self) -> Any:
        """Return the merge patch in the metadata; null is an empty one."""
        patch = self.metadata.get("overlay")
        return {} if patch is None else patch

    def with_block(self, block: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.document, _TRIGGERS: dict(block)} if self.nested else dict(block)


def _sealed_document(document: Mapping[str, Any]) -> _Located:
    """Return a copy of a sealed document.

    :raises SealError: it is not sealed
    """
    located = _Located.of(plain_copy(document))
    if not isinstance(located.metadata, Mapping):
        raise SealError("the document is not sealed: it has no mapping under the key sops")
    return located


def _changed(block: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set these values in a copy of the block at JSON pointers. Missing maps on the way are made; None removes."""
    result = plain_copy(block)
    for where, value in changes.items():
        if not where.startswith("/"):
            raise SealError(f"{_sops.shown(where)} is not a JSON pointer; write /config/<trigger>/url")
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in where[1:].split("/"))
        node: Any = result
        for part in way:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node[_index(node, part, where)]
        if isinstance(node, dict) and value is None:
            node.pop(last, None)
        elif isinstance(node, dict):
            node[last] = value
        elif isinstance(node, list) and last == "-" and value is not None:
            node.append(value)
        elif value is None:
            del node[_index(node, last, where)]
        else:
            node[_index(node, last, where)] = value
    return result


def _index(node: Any, part: str, where: str) -> int:
    if isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
        return int(part)
    raise SealError(f"{_sops.shown(where)}: there is nothing at this place")
