"""What the driver hands to a round's task, and what it gets back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.flush import FlushLabel

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class OverlapCheck:
    """The last committed page of a chain, to be read once more before the chain goes on."""

    token_in: str | None
    checksum: str


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One open partition as a task gets it.

    :ivar token: JSON text of the token to go on from, None for the first page
    :ivar pages: pages that the chain has
    :ivar seen: eight bytes each of the tokens and page contents that the chain had
    :ivar overlap: set once an attempt, on addressable chains that have pages
    :ivar asked: the next page was empty when it was asked for first; what comes now counts
    """

    ordinal: int
    key: str
    slice: Mapping[str, Any]
    chain: int = 0
    pages: int = 0
    token: str | None = None
    records: int = 0
    seen: bytes = b""
    overlap: OverlapCheck | None = None
    restarts: int = 0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a task left a partition.

    :ivar records: records on the live chain, earlier rounds included
    :ivar error: why the partition can't go on in this attempt, None if it can
    :ivar overran: the round ended while a page of it was on its way
    :ivar asked: its next page was empty, and is to be asked for once more
    """

    ordinal: int
    chain: int
    pages: int
    token: str | None
    complete: bool
    records: int
    seen: bytes
    restarts: int
    checked: bool
    error: BaseException | None = None
    overran: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """When a task stops taking new pages.

    :ivar seconds: of reading; None for "until told"
    :ivar read_seconds: that this attempt had read before
    :ivar read_pages: this task's share of the pages that this attempt had read before
    :ivar linger: seconds that a page on its way gets after the round's end
    """

    threads: int
    seconds: float | None
    bytes: int
    read_seconds: float = 0.0
    read_pages: float = 0.0
    linger: float = 2.0


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Counts of one task.

    :ivar refetched: pages that an earlier request of this refresh had brought already
    """

    pages: int = 0
    records: int = 0
    bytes: int = 0
    refetched: int = 0
    overlap_checks: int = 0
    skipped: int = 0

    def __add__(self, other: TaskFigures) -> TaskFigures:
        return TaskFigures(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task did: its files are named by a commit, or never."""

    files: tuple[str, ...]
    progress: tuple[PartitionProgress, ...]
    figures: TaskFigures = field(default_factory=TaskFigures)


@dataclass(frozen=True, slots=True)
class RoundTask:
    """All that a task needs; picklable. ``source`` holds secrets, so it is left out of ``repr``."""

    source: Mapping[str, Any] = field(repr=False)
    stream: str
    store: FileStore
    folder: str
    label: FlushLabel
    limits: RoundLimits
    partitions: tuple[PartitionWork, ...]
    on_source_change: str
    accept_repeats: bool


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
