"""Progress of a refresh for those who watch it: a poller of its ledgers, and a progress bar for a terminal."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_rfr.refresh.state import (
    GENERATION_KEY,
    PREFIX,
    LedgerHeader,
    Progress,
    TableStatus,
    duration_in_words,
    rate_in_words,
    read_header,
)
from airflow_provider_rfr.text import printable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from rich.progress import Progress as Bars

    from airflow_provider_rfr.lake.catalog import LakeSettings

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_RUN_KEY = f"{PREFIX}run-key"
"""Property in the snapshot summaries of the target: key of the run that made the commit."""
_FIGURES_OF_COMMIT = ("generation", "pages", "rows", "attempts", "partitions")


class Outages:
    """The services that are unavailable at present. Their errors are shown, and never fail a refresh.

    An outage is shown once, and only by the class of its error: the message may contain addresses with credentials.

    :param show: called with one line of text
    :param shows_ends: whether the end of an outage is shown, too; then the next outage is shown again
    :param quotable: classes of errors whose messages may be shown
    """

    def __init__(
        self, show: Callable[[str], None], *, shows_ends: bool = False, quotable: tuple[type[Exception], ...] = ()
    ) -> None:
        self._show = show
        self._shows_ends = shows_ends
        self._quotable = quotable
        self._shown: set[str] = set()

    def guard(self, subject: str, verb: str, action: Callable[[], _T]) -> _T | None:
        """Return the result of an action; None if it fails.

        :param subject: the service, as the shown line names it
        :param verb: participle of the action, such as ``read``
        """
        problem = f"{subject} can't be {verb}"
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 - see the class
            if problem not in self._shown:
                self._shown.add(problem)
                why = str(error) if isinstance(error, self._quotable) else type(error).__name__
                self._show(f"{problem} ({why}); the refresh continues")
            return None
        if self._shows_ends and problem in self._shown:
            self._shown.remove(problem)
            self._show(f"{subject} can be {verb} again")
        return result


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """The progress of one table's refresh at one moment, small enough to be stored with a deferred task."""

    generation: int
    epoch: int
    pages: int
    partitions_done: int
    snapshot_id: int | None = None

    @classmethod
    def of(cls, status: LedgerHeader) -> ProgressPoint:
        return cls(status.generation, status.epoch, status.pages, status.partitions_done, status.snapshot_id)


class LedgerFollower:
    """A poller of the ledgers of one refresh, which notices the commits of its attempt. Not thread-safe.

    :param settings: returns the lake's settings; called again after each failure, since they may have been corrected
    :param replace_where: the part of the targets, as in the refresh's options
    :param show: called with a line of text when a round has ended
    :ivar before: header of each table at the first successful poll; None for a table without a ledger
    :ivar headers: header of each table at the last successful poll
    """

    def __init__(
        self,
        settings: Callable[[], LakeSettings],
        tables: Sequence[str],
        replace_where: str | None = None,
        *,
        show: Callable[[str], None],
        outages: Outages | None = None,
    ) -> None:
        self.tables = tables
        self.show = show
        self.outages = outages or Outages(_log.warning)
        self.before: dict[str, LedgerHeader | None] = {}
        self.headers: dict[str, LedgerHeader | None] = {}
        self._settings = settings
        self._replace_where = replace_where
        self._catalog: Catalog | None = None
        self._shown: dict[str, Progress] = {}
        self._pointers: dict[str, dict[str, str]] = {}
        self._unread: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Tell whether the last poll of each table succeeded; a table without a ledger counts as read."""
        return not self._unread

    def begin(self) -> dict[str, ProgressPoint | None]:
        """Poll for the first time; return the progress of each table, None if it has no ledger or can't be read."""
        self.poll()
        before = {table: self.before.setdefault(table, None) for table in self.tables}
        return {table: None if header is None else ProgressPoint.of(header) for table, header in before.items()}

    def poll(self) -> bool:
        """Read the header of every table; tell whether the attempt has changed any since the last poll."""
        for table in self.tables:
            self.outages.guard(f"the ledger of {table}", "read", partial(self.read, table))
        return self.advance()

    def read(self, table: str) -> LedgerHeader | None:
        """Return the newest generation's header; None before the first refresh.

        :raises Exception: the ledger can't be read
        """
        self._unread.add(table)
        try:
            header = self.headers[table] = self._header(table)
        except Exception:
            # The settings are read again with the next catalog: somebody may have corrected them meanwhile.
            self._catalog = None
            raise
        self._unread.discard(table)
        return header

    def advance(self) -> bool:
        """Compare the headers with those of the last call; tell whether any changed, and show a line for new rounds."""
        changed = False
        for table, header in self.headers.items():
            if table not in self.before:
                self.before[table] = header
            last = self._shown[table].status if table in self._shown else self.before[table]
            if header is None or (last is not None and header.committed_at == last.committed_at):
                continue
            changed = True
            progress = self._shown[table] = Progress.of(header)
            if header.rounds > (last.rounds if last is not None and last.generation == header.generation else 0):
                self.show(progress.line(table))
        return changed

    def checkpoint(self) -> dict[str, dict[str, Any]]:
        """Return the progress of each table that the attempt has changed, with the id and snapshot of its ledger."""
        return {
            table: {**progress.checkpoint(), "pointer": self._pointers.get(table)}
            for table, progress in list(self._shown.items())
        }

    def is_published(self, run_key: str) -> bool:
        """Tell whether this run has published every table, as of the last poll."""
        headers = [self.headers.get(table) for table in self.tables]
        return all(header is not None and _is_published(header, run_key) for header in headers)

    def published(self, table: str, run_key: str) -> dict[str, Any] | None:
        """Return the figures of the commit that this run made on the table; None where it made none."""
        from airflow_provider_rfr.lake.catalog import load_table
        from airflow_provider_rfr.lake.commits import newest_summary_with
        from airflow_provider_rfr.lake.target import SCHEMA_CHANGES_KEY

        header = self.read(table)
        target = load_table(self._open(), table)
        summary = (None if target is None else newest_summary_with(target, _RUN_KEY, run_key)) or {}
        more = {"schema_changes": summary.get(SCHEMA_CHANGES_KEY)}
        if header is not None and _is_published(header, run_key):
            return {
                "target": table,
                "generation": header.generation,
                "snapshot_id": str(header.snapshot_id),
                "pages": header.pages,
                "rows": header.published_rows or 0,
                "pages_refetched": header.pages_refetched,
                "attempts": header.attempts,
                "partitions": header.partitions,
                **more,
            }
        # A waiting run may have opened the next generation already. The target's commit says what was published, but
        # not which pages were read twice.
        if not summary:
            return None
        counts = {name: int(summary[PREFIX + name]) for name in _FIGURES_OF_COMMIT if PREFIX + name in summary}
        return {"target": table, "snapshot_id": summary["snapshot-id"], **counts, **more}

    def _open(self) -> Catalog:
        from airflow_provider_rfr.lake.catalog import open_catalog

        if self._catalog is None:
            self._catalog = open_catalog(self._settings())
        return self._catalog

    def _header(self, table: str) -> LedgerHeader | None:
        from airflow_provider_rfr.lake.ledger_table import LedgerTable
        from airflow_provider_rfr.lake.row_filter import part_of

        ledger = LedgerTable.load(self._open(), table, part_of(self._replace_where))
        if ledger is None:
            return None
        self._pointers[table] = {"ledger": ledger.id, "snapshot": str(ledger.snapshot_id)}
        return read_header(ledger.summary(GENERATION_KEY))


def _is_published(header: LedgerHeader, run_key: str) -> bool:
    return header.snapshot_id is not None and header.run_key == run_key


class Bar:
    """A progress display in a terminal, with a line for each table below all other output; thread-safe.

    Until the first table has a line, there is a line without a table.
    """

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._lines = {"": bars.add_task("", total=None, text="")}

    def say(self, text: str) -> None:
        """Show a text in the line without a table; do nothing once a table has a line."""
        with self._lock:
            if "" in self._lines:
                self._bars.update(self._lines[""], text=text, refresh=True)

    def update(self, status: TableStatus) -> None:
        """Show the progress of the table's refresh in its line."""
        parts, percent = [status.state.value], status.percent
        if (header := status.header) is not None:
            progress = Progress.of(header)
            parts += [] if percent is None else [f"{percent} %"]
            parts += [f"{header.partitions_done:,} of {header.partitions:,}", f"{header.pages:,} pages"]
            if (rate := progress.pages_per_second) is not None:
                parts.append(f"{rate_in_words(rate)}/s")
            if progress.seconds_left is not None and status.state.value == "reading":
                parts.append(f"{duration_in_words(progress.seconds_left)} left")
        total = None if percent is None else 100
        text, table = ", ".join(parts), printable(status.table)
        with self._lock:
            if (before := self._lines.pop("", None)) is not None:
                self._bars.remove_task(before)
            if table not in self._lines:
                self._lines[table] = self._bars.add_task(table, total=total, text=text)
            self._bars.update(self._lines[table], total=total, completed=percent or 0, text=text)


def can_draw() -> bool:
    """Tell whether standard output is a terminal that can redraw a line."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


@contextmanager
def drawn_bar() -> Iterator[Bar]:
    """Draw a bar on standard output, and remove it afterwards."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    # Names come from a catalog, and brackets in them are no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Bars(*columns, TextColumn("{task.fields[text]}", markup=False), transient=True) as bars:
        yield Bar(bars)
