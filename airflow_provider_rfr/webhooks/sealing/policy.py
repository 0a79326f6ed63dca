"""Which fields of a triggers block must be sealed, and which may be edited in a sealed one.

Sealed is what decides where a delivery goes, what goes with it, and what counts as delivered; docs/webhooks_sealing.md
has the reason for each field. The MAC of a SOPS document does not say which fields have to be sealed; this module does.
``sops.overlay`` is a plaintext merge patch (RFC 7396), limited to what needs no seal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.sops import Place, is_sealed, looks_sealed, pointer, shown, words

_BLOCK_FIELDS = ("name", "config", "interval", "sops")


@dataclass(frozen=True)
class Shape:
    """Places in lists are not bound to a sealed value, so lists stand only where a shape has them.

    :ivar depth: levels of maps and lists above the leaves; None for any JSON
    :ivar holder: the outermost level
    """

    depth: int | None
    holder: type = object

    def fits(self, value: Any) -> bool:
        if self.depth is None:
            return True
        return isinstance(value, self.holder) and _depth(value) <= self.depth


_TEXT = Shape(0)
_LIST = Shape(1, list)
_MAP = Shape(1, Mapping)

_SEALED: dict[str, Shape] = {
    "url": _TEXT,
    "connection": _TEXT,
    "method": _TEXT,
    "headers": _MAP,
    "preset": _TEXT,
    "with": Shape(None),
    "success": Shape(None),
    "signing": Shape(2, Mapping),
    "exposeHeaders": _LIST,
    "allowedHosts": _LIST,
}
_EDITABLE = (
    "payloadTemplate",
    "payload",
    "timeout",
    "timeoutSecs",
    "maxAttempts",
    "maxRetries",
    "retry",
    "interval",
    "when",
    "onFailure",
    "ordering",
    "enabled",
)
# One of these says where a delivery goes; without one, nothing would bind an endpoint to its name.
_DESTINATIONS = ("url", "connection", "preset")


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


# Both spellings of each field, to the one that is meant.
_SPELLINGS = {spelling: name for name in (*_SEALED, *_EDITABLE) for spelling in (_snake(name), name)}
SEALED_WORDS = tuple(spelling for spelling, name in _SPELLINGS.items() if name in _SEALED)
ENCRYPTED_REGEX = words(*SEALED_WORDS)

_SAFE = {"nonsensitive": True}
# Where an overlay may write, in the words of a JSON schema.
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


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Leaves with their places; a map's or list's emptiness has none."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, (*place, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(each, (*place, index))
    else:
        yield place, value


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


# What is wrong with a leaf of a field that must be sealed, or "".
_LeafCheck = Callable[[str, Any], str]

_MOST_TOLD = 20
_BY_LOWER = {spelling.lower(): name for spelling, name in _SPELLINGS.items()}


def check_block(block: Any, leaf: _LeafCheck, *, title: str) -> None:
    """:raises SealError: all that is wrong, each with its JSON pointer"""
    problems = [f"{pointer(place) or 'the block'}: {problem}" for place, problem in _block(block, leaf)]
    if problems:
        more = f"; and {len(problems) - _MOST_TOLD} more" if len(problems) > _MOST_TOLD else ""
        raise SealError(f"{title}: " + "; ".join(problems[:_MOST_TOLD]) + more)


def sealed_leaf(name: str, value: Any) -> str:
    if value in (None, ""):
        return "nothing seals an empty value, so anybody could have put it here; leave it out"
    return "" if is_sealed(value) else f"plaintext where a sealed value is due; {name} can't be edited in place"


def opened_leaf(name: str, value: Any) -> str:
    """Types are not authenticated, so text that was turned into a number is found here."""
    if looks_sealed(value):
        return "is still sealed: the document's own rule leaves it out; seal it again"
    must_be_text = _SEALED[name].depth is not None
    return "is not text" if must_be_text and not isinstance(value, str) else ""


def plain_leaf(name: str, value: Any) -> str:
    if value in (None, ""):
        return "an empty value can't be sealed; leave it out"
    if looks_sealed(value):
        return "is a sealed value of another document; write the plaintext"
    return opened_leaf(name, value)


def _block(block: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(block, Mapping):
        yield (), "is not a map"
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
        yield ("config",), "must be a map of named triggers"
        return
    for name, endpoint in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield from _endpoint(("config", name), endpoint, leaf)


def _endpoint(place: Place, endpoint: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(endpoint, Mapping):
        yield place, "is not a map"
        return
    if ":" in str(place[-1]):
        yield place, "a colon parts the names of a sealed value's path; leave it out of the name"
    seen = set()
    for field, value in endpoint.items():
        name = _SPELLINGS.get(field)
        if name is None:
            near = get_close_matches(field.lower(), _BY_LOWER, n=1)
            yield (*place, field), "unknown field" + (f"; did you mean {_BY_LOWER[near[0]]}?" if near else "")
        elif name in seen:
            yield (*place, field), f"{name} is given in two spellings"
        elif name in _SEALED:
            yield from _sealed_field((*place, field), name, value, leaf)
        seen.add(name)
    if not seen.intersection(_DESTINATIONS):
        yield place, f"has none of {', '.join(_DESTINATIONS)}"


def _sealed_field(place: Place, name: str, value: Any, leaf: _LeafCheck) -> Iterator[tuple[Place, str]]:
    if not _SEALED[name].fits(value):
        yield place, "is not of its form; see the field's description"
    for where, each in _leaves(value, place):
        problem = leaf(name, each)
        if problem:
            yield where, problem
        if any(":" in str(part) for part in where[len(place) :]):
            yield where, "a colon parts the names of a sealed value's path; leave it out of the name"


def named(block: Any) -> dict[str, Any]:
    """The block with its triggers in a map, a list's entries by the names that they have in code.

    :raises SealError: no block, or config is neither map nor list
    """
    config = block.get("config") if isinstance(block, Mapping) else None
    if isinstance(config, list):
        return {**block, "config": {f"trigger{index}": endpoint for index, endpoint in enumerate(config)}}
    if not isinstance(config, Mapping):
        raise SealError("the document has no triggers: config must be a map of them by their names")
    return dict(block)


def overlay_of(metadata: Mapping[str, Any]) -> Any:
    """The patch; an empty one where there is none, or null."""
    patch = metadata.get("overlay")
    return {} if patch is None else patch


def check_overlay(patch: Any, schema: Any = _OVERLAY_SCHEMA) -> None:
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


def changed(block: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The block with these values in it.

    :param changes: JSON pointers to new values, missing maps on the way are made; None removes
    :raises SealError: a pointer that leads nowhere
    """
    result: Any = _mutable(block)
    for where, value in changes.items():
        *way, last = _parts(where)
        node = result
        for part in way:
            node = node.setdefault(part, {}) if isinstance(node, dict) else _entry(node, part, where)
        _put(node, last, value, where)
    return dict(result)


def _parts(where: str) -> list[str]:
    if not where.startswith("/"):
        raise SealError(f"{shown(where)} is not a JSON pointer; write /config/<trigger>/url")
    return [part.replace("~1", "/").replace("~0", "~") for part in where[1:].split("/")]


def _put(node: Any, last: str, value: Any, where: str) -> None:
    if isinstance(node, dict) and value is None:
        node.pop(last, None)
    elif isinstance(node, dict):
        node[last] = value
    elif isinstance(node, list) and last == "-" and value is not None:
        node.append(value)
    elif value is None:
        node.remove(_entry(node, last, where))
    else:
        node[node.index(_entry(node, last, where))] = value


def _entry(node: Any, part: str, where: str) -> Any:
    if isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    raise SealError(f"{shown(where)}: nothing is there")


def _mutable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _mutable(each) for key, each in value.items()}
    return [_mutable(each) for each in value] if isinstance(value, list) else value
