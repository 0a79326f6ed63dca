"""Self-describing ledger files, and when a task writes one.

A file holds page rows with their cursors. Its footer names the task attempt and the file before it, so the next attempt
can use files that no commit names. A task flushes when the waiting pages are a share of the attempt's pages, or when a
share of its reading time has passed. So a SIGKILL costs a share of the work and never a number of minutes, and the
number of files grows with the logarithm of the time. Where a store is slower than the API, readers wait a little.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.pages import PageRow, rows_to_table

STATISTICS = ("generation", "epoch", "partition_ordinal", "chain", "page")


@dataclass(frozen=True, slots=True)
class FlushLabel:
    """Which task attempt wrote a file, and which file it wrote before.

    :ivar previous: name of the file before this one in its sequence, None for the first
    """

    generation: int
    epoch: int
    round: int
    task: int
    attempt: int
    sequence: int
    previous: str | None = None

    def file_name(self) -> str:
        """A name nobody else uses: a late writer can't replace a file that a commit names."""
        place = f"e{self.epoch}-r{self.round}-t{self.task}-a{self.attempt}-s{self.sequence}"
        return f"{place}-{uuid.uuid4().hex[:12]}.parquet"

    def to_footer(self) -> str:
        """As the file's footer carries it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_footer(cls, text: str) -> FlushLabel | None:
        """Read :meth:`to_footer`; None for what is not ours."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None


def generation_folder(table_location: str, generation: int) -> str:
    """Where a generation's files lie, committed or not."""
    return f"{table_location.rstrip('/')}/data/generation={generation}"


@dataclass(slots=True)
class FlushWriter:
    """Writes one task attempt's sequence of files.

    :ivar label: of the next file
    :ivar files: names written so far, an adopted predecessor's first
    """

    store: FileStore
    folder: str
    schema: pa.Schema
    label: FlushLabel
    files: list[str]

    def write(self, rows: list[PageRow]) -> None:
        """Write the rows as the next file of the sequence."""
        if not rows:
            return
        name = self.label.file_name()
        table = rows_to_table(rows, self.schema)
        self.store.write_parquet(f"{self.folder}/{name}", table, footer=self.label.to_footer(), statistics=STATISTICS)
        self.files.append(name)
        self.label = FlushLabel(**{**asdict(self.label), "sequence": self.label.sequence + 1, "previous": name})


_PATIENCE_SECONDS = 0.05
_SHARE_OF_SECONDS = 0.02
_SHARE_OF_PAGES = 0.02
_YOUNG_SHARE_OF_PAGES = 0.005
_YOUNG_PAGES = 5_000


def _pages_due(done: float) -> float:
    """So many waiting pages are flushed.

    Near 2 % of those done in a long refresh. Half a percent of the first thousands: there the pages in flight and the
    overlap checks take the larger part of what a kill may cost.
    """
    return max(_YOUNG_SHARE_OF_PAGES * done, _SHARE_OF_PAGES * (done - _YOUNG_PAGES))


class _WaitingPages(Protocol):
    """Pages that were read and are in no file yet.

    :ivar full: set when they should not wait any longer
    :ivar taken: pages that the task has read, those that were taken included
    """

    full: threading.Event

    def close(self) -> None:
        """Ask for no more pages."""

    @property
    def taken(self) -> int: ...

    @property
    def waiting(self) -> int:
        """Pages that :meth:`take_ready` would return."""

    def take_ready(self) -> list[PageRow]:
        """The pages that wait; they wait no more."""


class Flusher(threading.Thread):
    """Flushes when it is due, until stopped; then flushes the rest.

    The threads that read do most of it, in passing: a thread of its own would first have to win the interpreter from
    all of them, which takes longer than the flush. It is there for the times when no page arrives.

    :param read_seconds: that the attempt had read before this task began
    :param read_pages: this task's share of the pages that the attempt had read before
    """

    def __init__(self, writer: FlushWriter, pages: _WaitingPages, *, read_seconds: float, read_pages: float) -> None:
        super().__init__(name="rfr-flush", daemon=True)
        self._writer = writer
        self._pages = pages
        self._seconds_before = read_seconds
        self._pages_before = read_pages
        self._began = time.monotonic()
        self._last = self._began
        self._in_write = 0
        self._over = False
        self._busy = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        while not self._over:
            rest = self._last + self._interval() - time.monotonic()
            if rest > 0 and not self._pages.full.wait(min(rest, 0.1)):
                continue
            self.flush_if_due()
            # Somebody else may be at it: look again soon, but don't stand in the way.
            time.sleep(0.002)

    def flush_if_due(self) -> None:
        """Flush if it is due. Who finds another at it goes on reading, or waits a little where too much is at risk.

        An error ends the reading, since what is read from then on would be lost; :meth:`finish` raises it.
        """
        if not self._due() or self._over or self.error is not None:
            return
        if not self._busy.acquire(timeout=_PATIENCE_SECONDS if self._at_risk() else 0):
            return
        try:
            if self._due():
                self._flush()
        except BaseException as error:  # noqa: BLE001 - told by finish()
            self.error = error
            self._pages.close()
        finally:
            self._busy.release()

    def finish(self) -> None:
        """Stop, write what is left, and raise what went wrong in the background."""
        self._over = True
        self.join()
        with self._busy:
            if self.error is not None:
                raise self.error
            self._flush()

    def _interval(self) -> float:
        return _SHARE_OF_SECONDS * (self._seconds_before + time.monotonic() - self._began)

    def _share(self) -> float:
        return _pages_due(self._pages_before + self._pages.taken)

    def _due(self) -> bool:
        waiting = self._pages.waiting
        if not waiting:
            return False
        return waiting >= self._share() or self._pages.full.is_set() or self._last + self._interval() < time.monotonic()

    def _at_risk(self) -> bool:
        return self._pages.waiting + self._in_write > 2 * self._share()

    def _flush(self) -> None:
        rows = self._pages.take_ready()
        self._in_write = len(rows)
        self._writer.write(rows)
        self._in_write = 0
        self._last = time.monotonic()
