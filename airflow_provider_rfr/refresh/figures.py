"""What a refresh ends with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class RefreshFigures:
    """What a refresh ends with; seconds by phase."""

    stream: str
    target: str
    generation: int = 0
    snapshot_id: int | None = None
    pages: int = 0
    pages_fetched: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    pages_skipped: int = 0
    partitions: int = 0
    rows: int = 0
    duplicates_removed: int = 0
    attempts: int = 0
    epoch: int = 0
    rounds: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0
    files_undeleted: int = 0
    resumed: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


class Phase:
    """Adds the seconds spent inside to one phase."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds = seconds
        self._name = name
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        spent = time.monotonic() - self._began
        self._seconds[self._name] = round(self._seconds.get(self._name, 0.0) + spent, 3)
