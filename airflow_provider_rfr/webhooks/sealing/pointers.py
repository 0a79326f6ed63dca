"""Names places of a document in messages, and sanitizes what others wrote there."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[str | int, ...]

_LONGEST = 120


def shown(text: object) -> str:
    """A key or name as messages may hold it: one line, printable, short. Never used for values."""
    clean = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in str(text))
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}…"


def pointer(place: Sequence[str | int]) -> str:
    """JSON pointer (RFC 6901); empty for the document itself."""
    return "".join(f"/{shown(str(each).replace('~', '~0').replace('/', '~1'))}" for each in place)


def spot(place: Sequence[str | int]) -> str:
    return pointer(place) or "the document"
