"""Dotted paths into JSON values: ``data.items``, ``pages.0.next``, ``groups.*.members``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str, ...]
WILDCARD: Final = "*"
_SHOWN_KEYS: Final = 12


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()


def parse_path(text: str | Sequence[str]) -> Path:
    """``""`` is the value itself; a list of keys is for keys with dots in them."""
    if isinstance(text, str):
        return tuple(text.split(".")) if text else ()
    return tuple(text)


def lookup(value: Any, path: Path) -> Any:
    """What stands at ``path``, or MISSING."""
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(key, MISSING)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def lookup_each(value: Any, path: Path) -> Iterator[Any]:
    """What stands at every place that ``path`` matches; ``*`` matches each item of a list or an object."""
    if WILDCARD not in path:
        yield lookup(value, path)
        return
    at = path.index(WILDCARD)
    found = lookup(value, path[:at])
    if isinstance(found, Mapping):
        found = list(found.values())
    if not isinstance(found, list):
        yield MISSING
        return
    for item in found:
        yield from lookup_each(item, path[at + 1 :])


def assign(record: MutableMapping[str, Any], path: Path, value: Any) -> None:
    """Set a value, making the objects on the way; an object replaces what is no object."""
    for key in path[:-1]:
        inner = record.get(key)
        if not isinstance(inner, MutableMapping):
            inner = record[key] = {}
        record = inner
    record[path[-1]] = value


def take(record: MutableMapping[str, Any], path: Path) -> Any:
    """Remove what stands at ``path`` and return it, or MISSING."""
    holder = lookup(record, path[:-1])
    return holder.pop(path[-1], MISSING) if isinstance(holder, MutableMapping) else MISSING


def describe(value: Any) -> str:
    """The shape of a value without its content, for messages."""
    if value is MISSING:
        return "nothing"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        keys = [str(key) for key in list(value)[:_SHOWN_KEYS]]
        more = ", ..." if len(value) > _SHOWN_KEYS else ""
        return f"an object with the keys {', '.join(keys)}{more}" if keys else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    names = {str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def where_missing(value: Any, path: Path) -> str:
    """How far ``path`` leads into ``value``, and what is there instead."""
    walked: list[str] = []
    for key in path:
        inner = value if key == WILDCARD else lookup(value, (key,))
        if inner is MISSING:
            break
        value = inner
        walked.append(key)
    place = f"at {'.'.join(walked)} it has" if walked else "it is"
    return f"{place} {describe(value)}"
