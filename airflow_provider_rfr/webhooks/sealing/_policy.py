"""The fields of a triggers block that must be sealed, and those that may be edited in a sealed document.

What decides where a delivery goes, what goes with it, and what counts as delivered is sealed; docs/webhooks_sealing.md
has the reason for each field. The MAC of SOPS does not say which fields have to be sealed, so this module checks that.
``sops.overlay`` is a merge patch in plaintext (RFC 7396), limited to what needs no seal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing._sops import Place, is_sealed, looks_sealed, names_regex, pointer, shown

_BLOCK_FIELDS = ("name", "config", "interval", "sops")


@dataclass(frozen=True)
class _Shape:
    """The form of a field. SOPS does not bind a value to its place in a list, so lists are only allowed where due.

    :ivar depth: levels of maps and lists above the leaves; None for any JSON
    :ivar holder: the type of the outermost level
    """

    depth: int | None
    holder: type = object

    def fits(self, value: Any) -> bool:
        return self.depth is None or (isinstance(value, self.holder) and _depth(value) <= self.depth)


_TEXT = _Shape(0)
_LIST = _Shape(1, list)
_MAP = _Shape(1, Mapping)

_SEALED: dict[str, _Shape] = {
    "url": _TEXT,
    "connection": _TEXT,
    "method": _TEXT,
    "headers": _MAP,
    "preset": _TEXT,
    "with": _Shape(None),
    "success": _Shape(None),
    "signing": _Shape(2, Mapping),
    "exposeHeaders": _LIST,
    "allowedHosts": _LIST,
}
_DELIVERY = ("payloadTemplate", "payload", "timeout", "timeoutSecs", "maxAttempts", "maxRetries", "retry", "interval")
_EDITABLE = (*_DELIVERY, "when", "onFailure", "ordering", "enabled")
# One of these says where a delivery goes; without one, nothing would bind an endpoint to its name.
_DESTINATIONS = ("url", "connection", "preset")

# Both spellings of each field, camel case and snake case, with the field's name.
_SPELLINGS = {
    spelling: name
    for name in (*_SEALED, *_EDITABLE)
    for spelling in (re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name), name)
}
SEALED_NAMES = tuple(spelling for spelling, name in _SPELLINGS.items() if name in _SEALED)
ENCRYPTED_REGEX = names_regex(*SEALED_NAMES)

_MAX_PROBLEMS = 20
_COLON = "a colon separates the names in a sealed value's path, so names must not contain one"

# Gets a field's name and a leaf of it; returns what is wrong with the leaf, or "".
_LeafCheck = Callable[[str, Any], str]


def sealed_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in a sealed document; empty if there is none."""
    if value in (None, ""):
        return "SOPS does not seal empty values, so anybody could have put it here; leave it out"
    return "" if is_sealed(value) else f"plaintext where a sealed value is due; {name} can't be edited in place"


def opened_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in an opened document; empty if there is none.

    Types are not authenticated, so text that was turned into a number is refused here.
    """
    if looks_sealed(value):
        return "is still sealed: the document's own rule leaves it out; seal it again"
    return "must be text" if _SEALED[name].depth is not None and not isinstance(value, str) else ""


def plain_leaf(name: str, value: Any) -> str:
    """Return the problem of a value in a document that is to be sealed; empty if there is none."""
    if value in (None, ""):
        return "an empty value can't be sealed; leave it out"
    if looks_sealed(value):
        return "is a sealed value of another document; write the plaintext"
    return opened_leaf(name, value)


def check_block(block: Any, leaf: _LeafCheck, *, title: str) -> None:
    """Check the block.

    :raises SealError: all problems, each with its JSON pointer
    """
    problems = [f"{pointer(place) or 'the block'}: {problem}" for place, problem in _problems(block, leaf)]
    if problems:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise SealError(f"{title}: " + "; ".join(problems[:_MAX_PROBLEMS]) + more)


def _problems(block: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(block, Mapping):
        yield (), "must be a mapping"
        return
    for name in block:
        if name not in _BLOCK_FIELDS:
            yield (name,), "unknown field"
    config = block.get("config")
    if isinstance(config, list) and len(config) > 1:
        yield (
            ("config",),
            "entries of a list share one path, so sealed values could be moved between them unseen;"
            " name the triggers (config: {name: ...}) and seal again",
        )
    if not isinstance(config, (Mapping, list)):
        yield ("config",), "must be a mapping of named triggers"
        return
    for name, endpoint in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield from _endpoint_problems(("config", name), endpoint, leaf)


def _endpoint_problems(place: Place, endpoint: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(endpoint, Mapping):
        yield place, "must be a mapping"
        return
    if ":" in str(place[-1]):
        yield place, _COLON
    by_lower_case = {spelling.lower(): name for spelling, name in _SPELLINGS.items()}
    seen = set()
    for field, value in endpoint.items():
        name = _SPELLINGS.get(field)
        if name is None:
            near = get_close_matches(field.lower(), by_lower_case, n=1)
            yield (*place, field), "unknown field" + (f"; did you mean {by_lower_case[near[0]]}?" if near else "")
        elif name in seen:
            yield (*place, field), f"{name} is given in two spellings"
        elif name in _SEALED:
            yield from _sealed_field_problems((*place, field), name, value, leaf)
        seen.add(name)
    if not seen.intersection(_DESTINATIONS):
        yield place, f"must have one of {', '.join(_DESTINATIONS)}"


def _sealed_field_problems(place: Place, name: str, value: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not _SEALED[name].fits(value):
        yield place, "has the wrong form; see the field's description"
    for where, text in _leaves(value, place):
        problem = leaf(name, text)
        if problem:
            yield where, problem
        if any(":" in str(part) for part in where[len(place) :]):
            yield where, _COLON


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Yield leaves with their places; empty maps and lists have none."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    else:
        yield place, value


def _depth(value: Any) -> int:
    if not isinstance(value, (Mapping, list)):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, Mapping) else value), default=0)


_SAFE = {"nonsensitive": True}
# Where an overlay may write, as a JSON schema.
_OVERLAY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": _SAFE,
        "interval": _SAFE,
        "config": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    **{spelling: _SAFE for spelling, name in _SPELLINGS.items() if name in _EDITABLE},
                    **{name: {"type": "object"} for name, shape in _SEALED.items() if shape.holder is Mapping},
                },
            },
        },
    },
}


def check_overlay(patch: Any, schema: Any = _OVERLAY_SCHEMA) -> None:
    """Check that the patch writes only at or below places that are ``nonsensitive`` in the schema.

    :raises SealError: with the JSON pointer of the first place that is not
    """
    if not isinstance(schema, Mapping):
        raise SealError("sops.overlay can't be checked: there is no schema that says what it may change")
    if not isinstance(patch, Mapping):
        raise SealError("sops.overlay must be a mapping: '' is not marked nonsensitive")
    _check_patch(patch, schema, ())


def _check_patch(patch: Any, schema: Mapping[str, Any], place: Place) -> None:
    if schema.get("nonsensitive") is True:
        return
    # An empty map replaces any other value, so it is harmless only where nothing else is allowed.
    if not isinstance(patch, Mapping) or not (patch or schema.get("type") == "object"):
        raise SealError(
            f"sops.overlay modifies location '{pointer(place)}', which is not marked nonsensitive;"
            " change it by sealing the document again"
        )
    properties = schema.get("properties")
    for name, value in patch.items():
        below = properties.get(name) if isinstance(properties, Mapping) else None
        below = schema.get("additionalProperties") if below is None else below
        _check_patch(value, below if isinstance(below, Mapping) else {}, (*place, name))


def check_overlaid(block: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
    """Check that an overlay fits the block.

    :raises SealError: the patch adds a trigger
    """
    for name in patch.get("config") or {}:
        if not isinstance(block["config"], Mapping) or name not in block["config"]:
            raise SealError(f"sops.overlay adds the trigger '/config/{shown(name)}', which the document does not have")


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with a merge patch (RFC 7396) applied."""
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
