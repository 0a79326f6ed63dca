"""The header: state of the refresh as a whole, in the snapshot summary of every ledger commit.

The newest snapshot's header is the state; page rows only hold what is per partition. Each commit writes all of it, so
trimming old snapshots loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from airflow_provider_rfr.exceptions import LedgerError

PREFIX = "rfr."
_FORMAT = 1
GENERATION_KEY = PREFIX + "generation"


class RefreshState(str, Enum):
    """Life of a generation."""

    OPEN = "open"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """State of the newest generation of one target.

    :ivar epoch: the attempt that may commit
    :ivar read_fingerprint: of what decides which requests are made
    :ivar publish_fingerprint: of what decides how rows are typed
    :ivar progressed_at: when pages were last added; a take-over alone does not count
    :ivar refused_under: fingerprint of the rules under which the publish was refused; under the same rules it would be
        refused again. None if it was not refused
    :ivar ended_at: when the attempt ended, None while it works, and if it was killed
    :ivar error: what it ended with, without secrets
    :ivar run_key: the run that holds the generation
    :ivar replace_where: the part of the target, as its last attempt wrote it; None for the whole
    :ivar dag_id: the task of the run that holds it; None outside of Airflow. ``dag_run_id``, ``task_id`` and
        ``map_index`` (-1 where the task is not mapped) likewise
    :ivar records: records on live chains
    :ivar pages: page rows committed, superseded chains included
    :ivar previous_rows: rows of the last published generation, None before the first
    :ivar published_rows: rows of this generation in the target, once published
    :ivar snapshot_id: the target's commit, once published
    """

    generation: int
    epoch: int
    state: RefreshState
    read_fingerprint: str
    publish_fingerprint: str
    opened_at: datetime
    committed_at: datetime
    progressed_at: datetime | None = None
    refused_under: str | None = None
    ended_at: datetime | None = None
    error: str | None = None
    run_key: str | None = None
    replace_where: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    attempts: int = 1
    rounds: int = 0
    pages: int = 0
    records: int = 0
    partitions: int = 0
    partitions_done: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    previous_rows: int | None = None
    published_rows: int | None = None
    snapshot_id: int | None = None

    @property
    def last_published_rows(self) -> int | None:
        """Rows of the last published generation, which may be this one; None before the first."""
        return self.published_rows if self.state is RefreshState.PUBLISHED else self.previous_rows

    def to_summary(self) -> dict[str, str]:
        summary = {PREFIX + "format": str(_FORMAT)}
        for name, value in asdict(self).items():
            if isinstance(value, Enum):
                value = value.value
            if value is not None:
                summary[_key(name)] = value.isoformat() if isinstance(value, datetime) else str(value)
        return summary

    def advanced(self, **changes: Any) -> LedgerHeader:
        """The header of the next commit. It clears ``ended_at`` and ``error``, unless ``changes`` set them."""
        now = datetime.now(timezone.utc)
        progress = now if changes.get("pages", self.pages) > self.pages else self.progressed_at
        return replace(self, committed_at=now, progressed_at=progress, **{"ended_at": None, "error": None, **changes})


def read_header(summary: Mapping[str, str] | None) -> LedgerHeader | None:
    """The header in a summary, None if it has none.

    :raises LedgerError: it has another format, or can't be parsed
    """
    if summary is None or GENERATION_KEY not in summary:
        return None
    if summary.get(PREFIX + "format") != str(_FORMAT):
        raise LedgerError(
            f"the ledger was written in format {summary.get(PREFIX + 'format')!r}, this version reads {_FORMAT}"
        )
    try:
        values = {name: parse(summary[key]) for name, (key, parse) in _FIELDS.items() if key in summary}
        return LedgerHeader(**values)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"the ledger's header can't be read: {error}") from error


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


# By the type of the field, as its annotation is written.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "datetime": datetime.fromisoformat,
    "RefreshState": RefreshState,
}
_FIELDS = {
    each.name: (_key(each.name), _PARSERS[str(each.type).removesuffix(" | None")]) for each in fields(LedgerHeader)
}
