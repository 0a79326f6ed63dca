"""Seals, checks, opens and seals again a triggers block."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.age_keys import check_recipients, envelope
from airflow_provider_rfr.webhooks.sealing.blocks import BELOW, Located, locate
from airflow_provider_rfr.webhooks.sealing.changes import changed
from airflow_provider_rfr.webhooks.sealing.checks import check_block, named, opened_leaf, plain_leaf, sealed_leaf
from airflow_provider_rfr.webhooks.sealing.fields import ENCRYPTED_REGEX, SEALED_WORDS
from airflow_provider_rfr.webhooks.sealing.opened import Opened, veiled
from airflow_provider_rfr.webhooks.sealing.opening import metadata_of, open_document
from airflow_provider_rfr.webhooks.sealing.overlay import check_overlay, merged, overlay_of
from airflow_provider_rfr.webhooks.sealing.pointers import shown
from airflow_provider_rfr.webhooks.sealing.rules import rule_of
from airflow_provider_rfr.webhooks.sealing.sources import sources_of
from airflow_provider_rfr.webhooks.sealing.tree import plain_copy, seal_tree
from airflow_provider_rfr.webhooks.sealing.values import KEY_BYTES, encrypt

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
    return checked_plaintext(opened, overlay_of(located.metadata))


def checked_plaintext(opened: Located, patch: Mapping[str, Any]) -> Opened:
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
