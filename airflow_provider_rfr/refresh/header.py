"""What every ledger commit says of the refresh as a whole: its snapshot summary.

The newest snapshot's header is the state of the refresh; the rows only hold what is per partition. A header is
written by each commit, so trimming old snapshots loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
    :ivar progressed_at: when pages were last added; a take-over alone is no progress
    :ivar refused_under: digest of what the publish was refused under; while that stays, so does the refusal. None
        where it was not refused
    :ivar ended_at: when the attempt ended, None while it works or where it was killed
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

    def to_summary(self) -> dict[str, str]:
        """Snapshot summary properties."""
        values = {key: _to_text(value) for key, value in asdict(self).items() if value is not None}
        return {
            PREFIX + "format": str(_FORMAT),
            **{PREFIX + key.replace("_", "-"): text for key, text in values.items()},
        }

    def advanced(self, **changes: Any) -> LedgerHeader:
        """The header of the next commit; who commits has not ended, unless that is what it says."""
        now = datetime.now(timezone.utc)
        progress = now if changes.get("pages", self.pages) > self.pages else self.progressed_at
        return replace(self, committed_at=now, progressed_at=progress, **{"ended_at": None, "error": None, **changes})


def read_header(summary: Mapping[str, str] | None) -> LedgerHeader | None:
    """The header in a summary, None where there is none.

    :raises LedgerError: it was written by a version of this package that is too new, or by hand
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


def _to_text(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else json.dumps(value)


_TEXTS = ("read_fingerprint", "publish_fingerprint", "run_key", "replace_where", "dag_id", "dag_run_id", "task_id")
_PARSERS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, str),
    "state": RefreshState,
    "opened_at": datetime.fromisoformat,
    "committed_at": datetime.fromisoformat,
    "progressed_at": datetime.fromisoformat,
    "refused_under": str,
    "ended_at": datetime.fromisoformat,
    "error": str,
}
_FIELDS = {
    name: (PREFIX + name.replace("_", "-"), _PARSERS.get(name, int)) for name in LedgerHeader.__dataclass_fields__
}
