"""``sops.overlay``: a plaintext merge patch (RFC 7396), limited to what needs no seal.

It is how fields are edited in documents whose code covers them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.fields import OVERLAY_SCHEMA
from airflow_provider_rfr.webhooks.sealing.pointers import Place, pointer


def overlay_of(metadata: Mapping[str, Any]) -> Any:
    """The patch; an empty one where there is none, or null."""
    patch = metadata.get("overlay")
    return {} if patch is None else patch


def check_overlay(patch: Any, schema: Any = OVERLAY_SCHEMA) -> None:
    """Every location that the patch writes must be ``nonsensitive`` in the schema, or lie below one that is.

    :raises SealError: with the JSON pointer of the first location that is not
    """
    if not isinstance(schema, Mapping):
        raise SealError("sops.overlay can't be checked: there is no schema that says what it may change")
    if not isinstance(patch, Mapping):
        raise SealError("sops.overlay must be a map: '' is not marked nonsensitive")
    _check(patch, schema, ())


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396; null deletes."""
    result = dict(base)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            below = result.get(name)
            result[name] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _check(patch: Any, schema: Mapping[str, Any], place: Place) -> None:
    if schema.get("nonsensitive") is True:
        return
    # An empty map replaces whatever is no map, so it is harmless only where nothing else can be.
    if isinstance(patch, Mapping) and (patch or schema.get("type") == "object"):
        for name, value in patch.items():
            _check(value, _below(schema, name), (*place, name))
        return
    raise SealError(
        f"sops.overlay modifies location '{pointer(place)}', which is not marked nonsensitive;"
        " change it by sealing the document again"
    )


def _below(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    found = schema.get("additionalProperties") if found is None else found
    return found if isinstance(found, Mapping) else {}
