"""Opens a document of any SOPS rule: finds the data key, opens the leaves, checks the code."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.age_keys import Keys, data_key
from airflow_provider_rfr.webhooks.sealing.binary import open_with_program, program
from airflow_provider_rfr.webhooks.sealing.rules import Rule, rule_of
from airflow_provider_rfr.webhooks.sealing.sources import Sources, sources_of
from airflow_provider_rfr.webhooks.sealing.tree import open_tree, plain_copy
from airflow_provider_rfr.webhooks.sealing.values import decrypt

CHANGED = (
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
    raise SealError(CHANGED)


def _no_key(sources: Sources, looked: list[Keys]) -> str:
    lines = [f"no key of this machine opens the document. It was sealed for: {sources}."]
    if looked:
        lines.append(f"Looked for age keys in: {'; '.join(map(str, looked))}.")
    if sources.foreign:
        kinds = ", ".join(sorted({source.kind for source in sources.foreign}))
        groups = " and for keys shared between groups" if sources.shared else ""
        lines.append(f"For {kinds}{groups} the sops program (3.9 or newer) is needed; there is none in PATH.")
    return " ".join(lines)
