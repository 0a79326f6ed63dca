"""Self-describing ledger files: page rows and their cursors in one object, whole or absent.

A task flushes when a fixed share of the attempt's reading time went by since its last flush. So flushes are frequent
while a refresh is young and rare when it is old: what a SIGKILL costs is a share of what was done, never a number of
minutes, and the number of files grows with the logarithm of the time: an hour takes some hundreds a task.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pyarrow as pa

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.row_table import rows_to_table
from airflow_provider_rfr.refresh.rows import PageRow

STATISTICS = ("generation", "epoch", "partition_ordinal", "chain", "page")
MIN_INTERVAL = 0.02


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


class Flusher(threading.Thread):
    """Flushes when it is due, until stopped; then flushes the rest.

    The threads that read do most of it, in passing: a thread of its own would first have to win the interpreter from
    all of them, which takes longer than the flush. It is there for the times when no page arrives.

    :param take: returns the rows that wait
    :param full: set when they should not wait any longer
    :param read_seconds: that the attempt had read before this task began
    :param fraction: share of the attempt's reading time between two flushes
    """

    def __init__(
        self,
        writer: FlushWriter,
        take: Callable[[], list[PageRow]],
        full: threading.Event,
        *,
        read_seconds: float,
        fraction: float,
    ) -> None:
        super().__init__(name="rfr-flush", daemon=True)
        self._writer = writer
        self._take = take
        self._full = full
        self._before = read_seconds
        self._fraction = fraction
        self._began = time.monotonic()
        self._last = self._began
        self._over = False
        self._busy = threading.Lock()
        self.error: BaseException | None = None

    def interval(self) -> float:
        """Seconds from the last flush to the next."""
        return max(MIN_INTERVAL, self._fraction * (self._before + time.monotonic() - self._began))

    def run(self) -> None:
        while not self._over:
            rest = self._last + self.interval() - time.monotonic()
            if rest > 0 and not self._full.wait(min(rest, 0.1)):
                continue
            self.flush_if_due()
            # Somebody else may be at it: look again soon, but don't stand in the way.
            time.sleep(0.002)

    def flush_if_due(self) -> None:
        """Flush if it is time and nobody else is at it; an error is told by :meth:`finish`."""
        due = self._full.is_set() or time.monotonic() >= self._last + self.interval()
        if not due or self._over or self.error is not None or not self._busy.acquire(blocking=False):
            return
        try:
            self._flush()
        except BaseException as error:  # noqa: BLE001 - told by finish()
            self.error = error
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

    def _flush(self) -> None:
        self._writer.write(self._take())
        self._last = time.monotonic()
