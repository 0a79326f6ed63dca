"""What a checkpoint says, how large it may be, and how one is told from what somebody else wrote.

It holds names of tables, numbers, times and digests. There is no place in it for a page token, an address or a secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_rfr.refresh.progress import CHECKPOINT_VERSION

MAX_BYTES = 65_535
"""Of a whole checkpoint: what Airflow's own state store takes by default."""
PARTITION_BYTES = 8_192
"""Of the states of all partitions; above it there are counts and a digest."""
DIGEST = "digest"
STATES = "partition_states"
_COUNTS = ("generation", "epoch", "pages", "partitions_done")


class Flaw(str, Enum):
    """Why a checkpoint is ignored; the text ends the sentence "the checkpoint ... is ignored: ..."."""

    MISSING = "there is none"
    UNREADABLE = "it can't be read"
    OVERSIZED = "it is larger than any that a refresh writes"
    FOREIGN = "it is not of this task"
    EDITED = "it was changed by hand"
    STALE = "the ledger is elsewhere"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one attempt leaves for people and for the next attempt.

    :ivar owner: the task instance, ``dag/run/task/map index``
    :ivar stalled: attempts in a row, up to this one, that brought the refresh no further
    :ivar tables: by table: the counts of ``Progress.checkpoint``, ``pointer`` (ledger id and snapshot id), ``digest``,
        and ``partition_states`` while those are small
    """

    owner: str
    stalled: int = 0
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def content(self) -> dict[str, Any] | None:
        """As it is stored: without the partitions' states if those are too large, None if the rest is."""
        tables: Mapping[str, Mapping[str, Any]] = self.tables
        if sum(_size(table.get(STATES) or {}) for table in tables.values()) > PARTITION_BYTES:
            tables = {name: _without(table, STATES) for name, table in tables.items()}
        body = {"version": CHECKPOINT_VERSION, "owner": self.owner, "stalled": self.stalled, "tables": tables}
        whole = {**body, DIGEST: digest_of(body)}
        return whole if _size(whole) <= MAX_BYTES else None


def parse_checkpoint(content: Any, owner: str) -> Checkpoint | Flaw:
    """The checkpoint in a store's content, or why it is none.

    :param content: JSON text, or what JSON text stands for
    """
    if content is None:
        return Flaw.MISSING
    if not isinstance(content, (str, Mapping)):
        return Flaw.FOREIGN
    if (len(content) if isinstance(content, str) else _size(content)) > 4 * MAX_BYTES:
        return Flaw.OVERSIZED
    whole = _json(content) if isinstance(content, str) else content
    if not isinstance(whole, Mapping) or whole.get("version") != CHECKPOINT_VERSION or whole.get("owner") != owner:
        return Flaw.FOREIGN
    if _size(whole) > MAX_BYTES:
        return Flaw.OVERSIZED
    if whole.get(DIGEST) != digest_of(_without(whole, DIGEST)) or not _is_whole(whole):
        return Flaw.EDITED
    return Checkpoint(owner, whole["stalled"], whole["tables"])


def digest_of(value: Any) -> str:
    """The same for values that JSON stores as the same, whatever order a database gives them back in."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def _is_whole(whole: Mapping[str, Any]) -> bool:
    tables = whole.get("tables")
    if not _is_count(whole.get("stalled")) or not isinstance(tables, Mapping):
        return False
    return all(isinstance(one, Mapping) and all(_is_count(one.get(key)) for key in _COUNTS) for one in tables.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _size(value: Any) -> int:
    return len(_canonical(value))


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    """Some databases give 137.0 back as 137."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}
