"""Seals, checks, opens and reseals a triggers block."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.keys import (
    Keys,
    Sources,
    check_recipients,
    data_key,
    envelope,
    open_with_program,
    program,
    sources_of,
)
from airflow_provider_rfr.webhooks.sealing.policy import (
    BELOW,
    ENCRYPTED_REGEX,
    SEALED_WORDS,
    Located,
    changed,
    check_block,
    check_overlay,
    locate,
    merged,
    named,
    opened_leaf,
    overlay_of,
    plain_leaf,
    sealed_leaf,
)
from airflow_provider_rfr.webhooks.sealing.sops import (
    KEY_BYTES,
    Opened,
    Rule,
    decrypt,
    encrypt,
    open_tree,
    plain_copy,
    rule_of,
    seal_tree,
    shown,
    veiled,
)

_CHANGED = (
    "the document's code (sops.mac) does not match its content: a value was changed, added, removed or reordered"
    " after sealing, or the metadata were; restore it, or seal the document again"
)


def metadata_of(document: Any) -> Mapping[str, Any]:
    """:raises SealError: the document is not sealed"""
    metadata = document.get("sops") if isinstance(document, Mapping) else None
    if not isinstance(metadata, Mapping):
        raise SealError("the document is not sealed: it has no map under the key sops")
    return metadata


def open_document(
    document: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    as_coded: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The document's plaintext, without ``sops``.

    :param as_coded: other forms that its code may have been computed over; the first that fits is opened
    :raises SealError: no key, or it is not as it was sealed
    """
    tree = plain_copy(document)
    metadata = dict(metadata_of(tree))
    metadata.pop("overlay", None)
    sources = sources_of(metadata)
    key, looked = (None, []) if sources.shared else _key(sources, environment)
    if key is None:
        path = program(environment) if sources.foreign else None
        if path is None:
            raise SealError(_no_key(sources, looked))
        return open_with_program(path, {**tree, "sops": metadata}, sources.all, environment)
    rule = rule_of(metadata)
    forms = [{name: form[name] for name in form if name != "sops"} for form in (tree, *map(plain_copy, as_coded))]
    return _first_fitting(forms, key, rule, metadata)


def _key(sources: Sources, environment: Mapping[str, str]) -> tuple[bytes | None, list[Keys]]:
    entries = [source.entry for source in sources.of("age")]
    return data_key(entries, environment) if entries else (None, [])


def _first_fitting(trees: list[dict[str, Any]], key: bytes, rule: Rule, metadata: Mapping[str, Any]) -> dict[str, Any]:
    sealed, stamp = metadata.get("mac"), metadata.get("lastmodified")
    if not isinstance(sealed, str) or not isinstance(stamp, str):
        raise SealError("sops.mac or sops.lastmodified is missing or is not text")
    mac = decrypt(sealed, key, stamp.encode())
    if not isinstance(mac, str):
        raise SealError("the document's code (sops.mac) can't be opened: it or sops.lastmodified was changed")
    for tree in trees:
        opened, code = open_tree(tree, key, rule)
        if hmac.compare_digest(code.encode(), mac.encode()):
            return opened
    raise SealError(_CHANGED)


def _no_key(sources: Sources, looked: list[Keys]) -> str:
    lines = [f"no key of this machine opens the document. It was sealed for: {sources}."]
    if looked:
        lines.append(f"Looked for age keys in: {'; '.join(map(str, looked))}.")
    if sources.foreign:
        kinds = ", ".join(sorted({source.kind for source in sources.foreign}))
        groups = " and for keys shared between groups" if sources.shared else ""
        lines.append(f"For {kinds}{groups} the sops program (3.9 or newer) is needed; there is none in PATH.")
    return " ".join(lines)


# The first version of the sops binary that knows mac_only_encrypted.
_FORMAT_VERSION = "3.9.0"


def seal(document: Mapping[str, Any], recipients: Sequence[str]) -> dict[str, Any]:
    """The document with all sealed that its sealed fields hold; a list of triggers becomes a map of named ones.

    A document that is sealed already is checked and returned as it is: see :func:`reseal`.

    :param recipients: age or SSH public keys, each of which can open it
    :raises SealError: fields that are unknown, empty, or that no seal would bind
    """
    located = locate(plain_copy(document))
    if located.metadata is not None:
        check_sealed(document)
        return dict(located.document)
    recipients = check_recipients(recipients)
    block = named(located.block)
    block.pop("sops", None)
    _check_names(block)
    check_block(block, plain_leaf, title="the document can't be sealed")
    return located.with_block(_sealed(block, recipients))


def check_sealed(document: Mapping[str, Any]) -> None:
    """Needs no key.

    :raises SealError: not sealed; unknown fields; plaintext or nothing where a sealed value is due
    """
    located = _located(document)
    if located.metadata.get("encrypted_suffix"):
        raise SealError(
            "the document is sealed in the form of Estuary Flow, which leaves its URLs open to change;"
            " import it once (docs/webhooks_sealing.md)"
        )
    sources_of(located.metadata)
    check_block(located.block, sealed_leaf, title="the sealed document is refused")
    check_overlay(overlay_of(located.metadata))
    _check_overlaid(located.block, overlay_of(located.metadata))


def open_sealed(document: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The document's plaintext, its overlay applied, without ``sops``. For the moment of delivery, never for a parse.

    :param document: as it was loaded: fields renamed or in another order are not what was sealed
    :param environment: where the keys are named (``SOPS_AGE_KEY`` and others)
    :raises SealError: no key opens it, or it is not as it was sealed
    """
    check_sealed(document)
    located = _located(document)
    opened = locate(located.with_sealed(open_document(located.sealed, environment)))
    return _checked_plaintext(opened, overlay_of(located.metadata))


def _checked_plaintext(opened: Located, patch: Mapping[str, Any]) -> Opened:
    """:raises SealError: what was opened is not what has to be sealed"""
    block = merged(opened.block, patch)
    check_block(block, opened_leaf, title="the opened document is refused")
    return veiled(opened.with_block(block))


def reseal(
    document: Mapping[str, Any],
    *,
    changes: Mapping[str, Any] | None = None,
    recipients: Sequence[str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Opens the document and seals it with a new data key, its overlay folded in.

    :param changes: JSON pointers in the block to new plaintext values; None removes
    :param recipients: instead of those of before; needed where they are not all age keys
    :raises SealError: as :func:`open_sealed` and :func:`seal`
    """
    located = _located(document)
    if recipients is None:
        sources = sources_of(located.metadata)
        if not all(source.is_plain_age for source in sources.all):
            raise SealError(f"give the recipients: the document is sealed for {sources}, which are not all age keys")
        recipients = [str(source.entry.get("recipient", "")) for source in sources.all]
    check_recipients(recipients)
    refuse_neighbours(located)
    opened = locate(open_sealed(document, environment=environment))
    return seal(opened.with_block(changed(opened.block, changes or {})), recipients)


def refuse_neighbours(located: Located) -> None:
    """Whatever else such a document holds would be left as plaintext."""
    if located.outside and set(located.document) - {BELOW, "sops"}:
        raise SealError(f"the document has more than {BELOW} under its seal; change it with the sops program")


def _located(document: Mapping[str, Any]) -> Located:
    located = locate(plain_copy(document))
    metadata_of(located.sealed)
    return located


def _check_names(block: Mapping[str, Any]) -> None:
    for name in block["config"]:
        if name in SEALED_WORDS:
            raise SealError(f"a trigger can't be named {shown(name)} in a sealed document: all of it would be sealed")


def _check_overlaid(block: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
    for name in patch.get("config") or {}:
        if not isinstance(block["config"], Mapping) or name not in block["config"]:
            raise SealError(f"sops.overlay adds the trigger '/config/{shown(name)}', which the document does not have")


def _sealed(block: dict[str, Any], recipients: Sequence[str]) -> dict[str, Any]:
    """The code covers the sealed values alone, so that all else stays editable."""
    key = os.urandom(KEY_BYTES)
    metadata: dict[str, Any] = {"encrypted_regex": ENCRYPTED_REGEX, "mac_only_encrypted": True}
    sealed, code = seal_tree(block, key, rule_of(metadata))
    stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        **sealed,
        "sops": {
            "age": [{"recipient": recipient, "enc": envelope(key, recipient)} for recipient in recipients],
            "lastmodified": stamp,
            "mac": encrypt(code, key, stamp.encode()),
            **metadata,
            "version": _FORMAT_VERSION,
        },
    }
