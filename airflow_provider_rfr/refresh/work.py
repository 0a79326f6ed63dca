"""Values that travel between the driver and the tasks of a round, and the figures of a refresh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.typed_rows import SeenColumns


@dataclass(frozen=True, slots=True)
class FlushLabel:
    """The label of a file: the task attempt that wrote it, and the file that it wrote before.

    :ivar previous: name of the file before this one in its sequence, None for the first
    """

    generation: int
    epoch: int
    round: int
    task: int
    attempt: int
    sequence: int
    previous: str | None = None

    @classmethod
    def from_footer(cls, text: str) -> FlushLabel | None:
        """Return the label in a file's footer; None for any other footer."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class PageFile:
    """A ledger file, with the facts that its writer or finder knows; picklable.

    :ivar pages: its rows, with the columns ``PAGE_COLUMNS``
    :ivar seen: the columns of its records; None where they are not known
    """

    stored: StoredFile
    pages: pa.Table
    seen: SeenColumns | None = None

    @property
    def location(self) -> str:
        return self.stored.location


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position in a partition: its live chain, and the last page read of it.

    :ivar pages: number of the last page, 0 before the first
    :ivar token: JSON of the next page's token, None for the first page
    :ivar records: records on the chain
    """

    chain: int = 0
    pages: int = 0
    token: str | None = None
    complete: bool = False
    records: int = 0


@dataclass(frozen=True, slots=True)
class OverlapCheck:
    """The last committed page of a chain, to be read once more before the chain continues."""

    token_in: str | None
    checksum: str


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One open partition as a task gets it.

    :ivar seen: marks (eight bytes each) of the tokens and page contents that the chain had
    :ivar overlap: set once an attempt, on addressable chains that have pages
    :ivar restarts: chains that this attempt opened for the partition
    :ivar asked: the next page was empty when it was first requested; the second answer counts
    :ivar resumed: an earlier attempt read all pages so far, so the cursor may have expired since
    :ivar streak: pages at the cursor that are empty, and that repeat the page before them
    """

    ordinal: int
    key: str
    slice: Mapping[str, Any]
    cursor: Cursor = Cursor()
    seen: bytes = b""
    overlap: OverlapCheck | None = None
    restarts: int = 0
    asked: bool = False
    resumed: bool = False
    streak: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The position at which a task left a partition. Fields that :class:`PartitionWork` has, too, mean the same.

    :ivar checked: no overlap check is due any more
    :ivar error: why the partition can't continue in this attempt, None if it can
    :ivar overran: the round ended while a page of it was in flight
    """

    ordinal: int
    cursor: Cursor
    seen: bytes
    restarts: int
    checked: bool
    error: BaseException | None = None
    overran: bool = False
    asked: bool = False
    streak: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """The limits at which a task stops requesting pages.

    :ivar seconds: of reading; None until the round is closed
    :ivar bytes: of records
    :ivar read_seconds: seconds that this attempt had read before
    :ivar read_pages: this task's share of the pages that this attempt had read before
    :ivar linger: seconds that a page in flight gets after the round's end
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

    :ivar refetched: pages that an earlier request of this refresh had already fetched
    :ivar skipped: pages without records, because their error was ignored
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
    """The result of one task; the driver commits its ``files``."""

    files: tuple[PageFile, ...] = ()
    progress: tuple[PartitionProgress, ...] = ()
    figures: TaskFigures = field(default_factory=TaskFigures)


@dataclass(frozen=True, slots=True)
class RoundTask:
    """The input of a task; picklable. ``source`` holds secrets, so it is left out of ``repr``.

    :ivar infers: whether columns are inferred from the records
    """

    source: Mapping[str, Any] = field(repr=False)
    stream: str
    store: FileStore
    folder: str
    label: FlushLabel
    limits: RoundLimits
    partitions: tuple[PartitionWork, ...]
    on_source_change: str
    on_repeated_page: str
    infers: bool


@dataclass(slots=True)
class RefreshFigures:
    """Figures that a refresh reports at its end.

    :ivar records_missing: records that the API's own count promises and that did not come
    :ivar schema_changes: in words; None if there was none
    :ivar already_published: an earlier attempt of this run published the table, and nothing was read
    :ivar seconds: by phase
    """

    stream: str
    target: str
    generation: int = 0
    snapshot_id: int | None = None
    pages: int = 0
    pages_fetched: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    pages_skipped: int = 0
    records_missing: int = 0
    partitions: int = 0
    rows: int = 0
    duplicates_removed: int = 0
    schema_changes: str | None = None
    attempts: int = 0
    epoch: int = 0
    rounds: int = 0
    snapshots_expired: int = 0
    files_deleted: int = 0
    files_undeleted: int = 0
    resumed: bool = False
    already_published: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
