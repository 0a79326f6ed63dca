"""What a sealed triggers block must look like before anything of it is opened, and after.

The code of a SOPS document does not say which fields have to be sealed; that is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from airflow_provider_rfr.exceptions import SealError
from airflow_provider_rfr.webhooks.sealing.fields import BLOCK_FIELDS, DESTINATIONS, SEALED, SPELLINGS, leaves
from airflow_provider_rfr.webhooks.sealing.pointers import Place, pointer
from airflow_provider_rfr.webhooks.sealing.values import is_sealed, looks_sealed

# What is wrong with a leaf of a field that must be sealed, or "".
LeafCheck = Callable[[str, Any], str]

_MOST_TOLD = 20
_BY_LOWER = {spelling.lower(): name for spelling, name in SPELLINGS.items()}


def check_block(block: Any, leaf: LeafCheck, *, title: str) -> None:
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
    must_be_text = SEALED[name].depth is not None
    return "is not text" if must_be_text and not isinstance(value, str) else ""


def plain_leaf(name: str, value: Any) -> str:
    if value in (None, ""):
        return "an empty value can't be sealed; leave it out"
    if looks_sealed(value):
        return "is a sealed value of another document; write the plaintext"
    return opened_leaf(name, value)


def _block(block: Any, leaf: LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(block, Mapping):
        yield (), "is not a map"
        return
    for name in block:
        if name not in BLOCK_FIELDS:
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


def _endpoint(place: Place, endpoint: Any, leaf: LeafCheck) -> Iterator[tuple[Place, str]]:
    if not isinstance(endpoint, Mapping):
        yield place, "is not a map"
        return
    if ":" in str(place[-1]):
        yield place, "a colon parts the names of a sealed value's path; leave it out of the name"
    seen = set()
    for field, value in endpoint.items():
        name = SPELLINGS.get(field)
        if name is None:
            near = get_close_matches(field.lower(), _BY_LOWER, n=1)
            yield (*place, field), "unknown field" + (f"; did you mean {_BY_LOWER[near[0]]}?" if near else "")
        elif name in seen:
            yield (*place, field), f"{name} stands twice, in two spellings"
        elif name in SEALED:
            yield from _sealed_field((*place, field), name, value, leaf)
        seen.add(name)
    if not seen.intersection(DESTINATIONS):
        yield place, f"has none of {', '.join(DESTINATIONS)}"


def _sealed_field(place: Place, name: str, value: Any, leaf: LeafCheck) -> Iterator[tuple[Place, str]]:
    if not SEALED[name].fits(value):
        yield place, "is not of its form; see the field's description"
    for where, each in leaves(value, place):
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
