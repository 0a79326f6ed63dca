"""Imports documents that Estuary Flow sealed: keys with a suffix, and four fields outside of the code.

Flow blanks payloadTemplate, timeout, maxAttempts and interval before it has a list of triggers sealed, and puts
them back afterwards. Its URLs and methods are plaintext under a code that does not say where a value stood, so a
person should look at what was imported before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.policy import check_overlay, locate, merged, named, overlay_of
from airflow_provider_rfr.webhooks.sealing.sealer import metadata_of, open_document, refuse_neighbours, seal
from airflow_provider_rfr.webhooks.sealing.sops import looks_sealed, plain_copy, shown, veiled

# What Flow puts into the fields outside of the code; a field that is not there stays away.
_BLANKS: dict[str, Any] = {"payloadTemplate": "", "timeout": "0s", "timeoutSecs": 0, "maxAttempts": 0}
_ORDER = ("url", "method", "headers", "payloadTemplate", "timeoutSecs", "timeout", "maxAttempts")
_ALWAYS = {"method": "POST"}

_Originals = list[dict[str, Any]]


def import_sealed(
    document: Mapping[str, Any], recipients: Sequence[str], *, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """A document that Flow or the sops binary sealed, sealed in our form, its overlay folded in.

    :raises SealError: no key opens it, its code does not match, or it is no triggers block
    """
    return seal(_open_foreign(document, environment=environment), recipients)


def _open_foreign(document: Mapping[str, Any], *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Such a document's plaintext, without ``sops``; nothing says that its URLs are those that were sealed.

    :raises SealError: no key opens it, or its code does not match
    """
    located = locate(plain_copy(document))
    metadata = metadata_of(located.sealed)
    refuse_neighbours(located)
    check_overlay(overlay_of(metadata))
    stripped, originals = _strip(located.block)
    forms = () if located.outside else (stripped, _as_flow_writes(stripped))
    opened = open_document(located.sealed, environment, as_coded=forms)
    suffix = str(metadata.get("encrypted_suffix") or "")
    found = locate(located.with_sealed(_without_suffix(opened, suffix) if suffix else opened))
    restored = named(_restore(found.block, originals))
    return veiled(found.with_block(merged(restored, overlay_of(metadata))))


def _strip(block: Any) -> tuple[dict[str, Any], _Originals]:
    """The block with its fields outside of the code blanked, and what they held: the block's own first."""
    if not isinstance(block, Mapping):
        raise SealError("the document has no triggers block")
    stripped = {name: value for name, value in block.items() if name != "interval"}
    originals = [_taken(block, ("interval",)), *(_taken(endpoint, _BLANKS) for endpoint in _endpoints(block))]
    blanked = [
        {**endpoint, **{name: _BLANKS[name] for name in taken}}
        for endpoint, taken in zip(_endpoints(block), originals[1:], strict=True)
    ]
    return {**stripped, "config": _like(block.get("config"), blanked)}, originals


def _restore(block: Any, originals: _Originals) -> dict[str, Any]:
    """What :func:`_strip` took, put back.

    :raises SealError: not the block that it was taken from
    """
    endpoints = _endpoints(block)
    if len(endpoints) + 1 != len(originals):
        raise SealError("the opened document has other triggers than the sealed one")
    whole = [{**endpoint, **kept} for endpoint, kept in zip(endpoints, originals[1:], strict=True)]
    return {**block, "config": _like(block.get("config"), whole), **originals[0]}


def _without_suffix(value: Any, suffix: str) -> Any:
    """Keys without the suffix that marks sealed values.

    :raises SealError: two keys would be one
    """
    if isinstance(value, list):
        return [_without_suffix(each, suffix) for each in value]
    if not isinstance(value, Mapping):
        return value
    names = [name.removesuffix(suffix) for name in value]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SealError(f"the key {shown(min(twice))} stands twice, with and without the suffix {shown(suffix)}")
    return {name: _without_suffix(each, suffix) for name, each in zip(names, value.values(), strict=True)}


def _as_flow_writes(block: Mapping[str, Any]) -> dict[str, Any]:
    """In the order of Flow's own code, which writes the document anew before it has the code checked."""
    endpoints = []
    for endpoint in _endpoints(block):
        full = {**_ALWAYS, **endpoint}
        headers = full.get("headers")
        if isinstance(headers, Mapping):
            full["headers"] = dict(sorted(headers.items()))
        endpoints.append({name: full[name] for name in sorted(full, key=_rank)})
    return {"config": _like(block.get("config"), endpoints)}


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _endpoints(block: Any) -> list[Mapping[str, Any]]:
    config = block.get("config") if isinstance(block, Mapping) else None
    endpoints = list(config.values()) if isinstance(config, Mapping) else config
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, Mapping) for endpoint in endpoints):
        raise SealError("the document has no triggers: config must be a list or map of them")
    return endpoints


def _like(config: Any, endpoints: list[dict[str, Any]]) -> Any:
    return dict(zip(config, endpoints, strict=True)) if isinstance(config, Mapping) else endpoints


def _taken(source: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A value that is sealed itself is not outside of the code."""
    return {name: source[name] for name in names if name in source and not looks_sealed(source[name])}
