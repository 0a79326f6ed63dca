"""What may be edited in a sealed triggers block, and what must be sealed there.

Sealed is what decides where a delivery goes, what goes with it, and what counts as delivered; docs/webhooks_sealing.md
has the reason for each field. A field that is not listed here is refused in sealed documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.webhooks.sealing.pointers import Place
from airflow_provider_rfr.webhooks.sealing.rules import words

BLOCK_FIELDS = ("name", "config", "interval", "sops")


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

SEALED: dict[str, Shape] = {
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
EDITABLE = (
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
DESTINATIONS = ("url", "connection", "preset")


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


# Both spellings of each field, to the one that is meant.
SPELLINGS = {spelling: name for name in (*SEALED, *EDITABLE) for spelling in (snake(name), name)}
SEALED_WORDS = tuple(spelling for spelling, name in SPELLINGS.items() if name in SEALED)
ENCRYPTED_REGEX = words(*SEALED_WORDS)

_SAFE = {"nonsensitive": True}
# Where an overlay may write, in the words of a JSON schema.
OVERLAY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": _SAFE,
        "interval": _SAFE,
        "config": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    **{spelling: _SAFE for spelling, name in SPELLINGS.items() if name in EDITABLE},
                    **{name: {"type": "object"} for name, shape in SEALED.items() if shape.holder is Mapping},
                },
            },
        },
    },
}


def leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """Leaves with their places; a map's or list's emptiness has none."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, (*place, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*place, index))
    else:
        yield place, value


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
