"""The ledger of one target as one attempt uses it: the attempt opens or takes over a generation, then commits to it.

Every commit names the attempt's epoch and the snapshot it builds on. When another attempt has taken over, the next
commit is refused. It finds another epoch in the newest header, and raises :class:`FencedError`; nothing was written.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import filterfalse, islice
from posixpath import basename
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import FencedError, LedgerError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import OWN_FILE, PAGE_COLUMNS, FileStore
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.numbers import loads
from airflow_provider_rfr.refresh.chains import Cursor
from airflow_provider_rfr.refresh.page_rows import PageFile, SeenColumns, opening_rows, write_rows
from airflow_provider_rfr.refresh.partitions import (
    PartitionBook,
    choose_adopted,
    cursors_of,
    open_book,
    retried_by_writers,
    uncommitted_files,
)
from airflow_provider_rfr.refresh.state import GENERATION_KEY, LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.streams.core import Page

_log = logging.getLogger(__name__)

_OPENING_PREFIX = "open-"
_OPENING_ROWS_A_FILE = 50_000
_TRIES = 8
_TRIM_EVERY = 8
_LONGEST_ERROR = 2_000
_KEPT_PAGES = 100_000
_RECORD_COLUMNS = ("partition_ordinal", "chain", "record_count", "request", "skipped", "records")


class Ledger:
    """The ledger as one attempt uses it; :meth:`commit` is thread-safe.

    :ivar id: UUID of the ledger's table; a ledger that was dropped and created again has another one
    :ivar header: header of the newest generation, as of the last commit or load; None before the first refresh
    """

    def __init__(self, table: LedgerTable) -> None:
        self._table = table
        self.id = table.id
        self._commits = 0
        self._committed: float | None = None
        self._fenced: FencedError | None = None
        self._lock = threading.RLock()
        self._retried: Counter[str] = Counter()
        self._forget_files()
        self.header = read_header(table.summary(GENERATION_KEY))

    @property
    def held(self) -> LedgerHeader:
        """Return the header of the newest generation.

        :raises LedgerError: there is no generation yet
        """
        if self.header is None:
            raise LedgerError("no generation is open")
        return self.header

    @property
    def store(self) -> FileStore:
        """Return the store of the ledger's files, with the credentials of the ledger as it was last loaded."""
        return self._table.store

    @property
    def needs_renewal(self) -> bool:
        """Tell whether the credentials for the ledger's files are old, so that the ledger has to be loaded again."""
        return self._table.needs_renewal

    def renew_credentials(self) -> None:
        """Load the ledger again if its credentials are old. If another attempt took over, the next commit fails."""
        if self.needs_renewal:
            self.is_ours()

    @property
    def folder(self) -> str:
        """Return the folder of the generation's files, committed or not."""
        return self._folder_of(self.held.generation)

    def open_generation(
        self,
        slices: Iterable[tuple[str, Mapping[str, Any]]],
        *,
        read_fingerprint: str,
        publish_fingerprint: str,
        run_key: str | None,
        labels: Mapping[str, Any] | None = None,
        describe: Callable[[Sequence[str]], Mapping[str, Any]] | None = None,
    ) -> PartitionBook:
        """Open the next generation; the commit freezes its list of partitions.

        :param slices: partition key and slice of each partition
        :param labels: header fields that name the source, the mode of publish and the task of the attempt
        :param describe: returns header fields that follow from the slices, and is called with the JSON of each slice
        :raises FencedError: another attempt opened or took over a generation meanwhile
        """
        before = self.header
        now = datetime.now(timezone.utc)
        header = LedgerHeader(
            generation=before.generation + 1 if before else 1,
            epoch=1,
            state=RefreshState.OPEN,
            read_fingerprint=read_fingerprint,
            publish_fingerprint=publish_fingerprint,
            run_key=run_key,
            opened_at=now,
            committed_at=now,
            began_at=now,
            previous_rows=before.last_published_rows if before else None,
            past=before.with_past if before else (),
            **(labels or {}),
        )
        keys: list[str] = []
        values: list[str] = []
        files = []
        rows = iter(opening_rows(slices, generation=header.generation, epoch=header.epoch))
        while chunk := list(islice(rows, _OPENING_ROWS_A_FILE)):
            keys.extend(row.partition_key for row in chunk)
            values.extend(row.slice or "{}" for row in chunk)
            location = f"{self._folder_of(header.generation)}/{_OPENING_PREFIX}{uuid.uuid4().hex}.parquet"
            files.append(write_rows(self.store, location, chunk, footer="{}").stored)
        # If this process dies before the commit, nothing names the files. Their footer has no label, so no attempt
        # adopts them, and they are deleted with the generation's folder.
        described = {} if describe is None else describe(values)
        self._commit(files, header.taken_over(partitions=len(keys), **described), expected=before)
        self._forget_files()
        return PartitionBook(keys, values)

    def take_over(
        self, publish_fingerprint: str, run_key: str | None = None, labels: Mapping[str, Any] | None = None
    ) -> PartitionBook:
        """Continue the open generation under the next epoch, and adopt the files that its attempts flushed.

        :raises FencedError: another run took over the generation meanwhile, or it was published or replaced
        """
        # One commit raises the epoch and names the adopted files, so a live predecessor either commits before it, and
        # this attempt looks for files again, or can't commit any more.
        for _ in range(_TRIES):
            held = self.held
            try:
                book, pages, adopted, moved, retried = self._look_for_files()
                book.move(moved)
                before = replace(held, retried=dict(Counter(held.retried) + retried) or None)
                header = before.taken_over(
                    epoch=held.epoch + 1,
                    attempts=held.attempts + 1,
                    publish_fingerprint=publish_fingerprint,
                    refused_under=None,
                    run_key=run_key or held.run_key,
                    pages=pages + sum(file.pages.num_rows for file in adopted),
                    records=book.records,
                    partitions_done=book.done,
                    **(labels or {}),
                )
                self._commit_once([file.stored for file in adopted], header)
                self._keep(adopted)
                return book
            except CommitConflictError:
                self.look_again()
            newest = self.held
            is_open = (newest.generation, newest.state) == (held.generation, RefreshState.OPEN)
            # By another attempt, or by one that was only silent.
            is_held = newest.ended_at is None and newest.committed_at != held.committed_at
            is_held = is_held or newest.epoch != held.epoch
            if not is_open or (is_held and not newest.is_held_by(run_key)):
                raise FencedError(
                    f"another attempt holds generation {held.generation}",
                    epoch=held.epoch,
                    newer_epoch=newest.epoch,
                )
        raise LedgerError("the ledger changed hands too often to be taken over; is the refresh running many times?")

    def flushed_pages(self) -> int:
        """Count the pages in files that no commit names yet, and that the next attempt adopts."""
        with self._lock:
            _, _, left, *_ = self._look_for_files()
        return sum(file.pages.num_rows for file in left)

    def commit(self, files: Sequence[PageFile], **changes: Any) -> LedgerHeader:
        """Commit a round's files with an advanced header; return that header.

        :param files: files that tasks wrote into :attr:`folder`
        :param changes: new values of header fields
        :raises FencedError: another attempt took over
        """
        with self._lock:
            if self._retried:
                changes["retried"] = dict(self._retried)
            header = self.held.advanced(**changes)
            self._commit([file.stored for file in files], header, expected=self.held)
            self._keep(files)
            self._commits += 1
            if self._commits % _TRIM_EVERY == 0:
                self._table.trim()
                # Trimming loads the table again, perhaps with the commit of a newer attempt.
                self._expect(header)
            return self.held

    def note_retried(self, counts: Mapping[str, int]) -> None:
        """Add to the counts of errors that this attempt has retried; its next commit writes them."""
        with self._lock:
            self._retried.update(counts)

    @property
    def silent_seconds(self) -> float:
        """Return the seconds since this attempt's last commit; 0 before the first."""
        return 0.0 if self._committed is None else time.monotonic() - self._committed

    def end(self, error: str, outcome: str = "failed", refused_under: str | None = None) -> None:
        """Record the end of this attempt, so that no other run waits for it; do nothing if it held no generation.

        :param error: class and message of the error that ended it
        :param outcome: the error's ``outcome``
        :param refused_under: fingerprint of the rules under which the publish refused its rows; None if it did not
        :raises FencedError: another attempt took over
        """
        if self._committed is None or self.held.state is not RefreshState.OPEN:
            return
        report = {"outcome": outcome, "error": error[:_LONGEST_ERROR]}
        try:
            self.commit([], ended_at=datetime.now(timezone.utc), refused_under=refused_under, **report)
        except FencedError:
            raise
        except Exception:
            # If the catalog does not answer, the object store may, so the end is recorded in a file.
            self.store.write(self._end_mark(), json.dumps(report).encode())
            raise

    @property
    def has_ended(self) -> bool:
        """Tell whether the attempt that holds the generation recorded its end, in the header or as a file."""
        return self.held.ended_at is not None or self.store.exists(self._end_mark())

    def end_in_file(self) -> dict[str, str] | None:
        """Return ``outcome`` and ``error`` from the file in which the attempt recorded its end; None without one."""
        try:
            report: dict[str, str] = json.loads(self.store.read(self._end_mark()))
        except FileNotFoundError:
            return None
        return report

    def read_pages(self) -> pa.Table | None:
        """Return all committed page rows of the generation, with the columns ``PAGE_COLUMNS``; None for no pages."""
        return self._pages_in(self.page_files())

    def read_records(self) -> Iterator[tuple[Mapping[str, Any], Page]]:
        """Yield the pages on live chains of the newest generation, with their slices, in the order of their files."""
        with self._lock:
            committed = self._table.committed_files(self.held.generation)
            book, _ = self._committed_book(committed)
        chains = book.live_chains
        for location in filterfalse(_is_opening, committed):
            for row in self.store.read_table(location, _RECORD_COLUMNS).to_pylist():
                ordinal = row["partition_ordinal"]
                if row["chain"] == chains.get(ordinal, 0):
                    lines = row["records"].encode().split(b"\n") if row["record_count"] else ()
                    records = [loads(line) for line in lines]
                    page = Page(records, request=row["request"], skipped=row["skipped"])
                    yield loads(book.slices[ordinal].encode()), page

    def page_files(self) -> dict[str, int]:
        """Return the bytes of the generation's committed files that hold pages, by location."""
        with self._lock:
            files = self._table.committed_files(self.held.generation)
        return {location: size for location, size in files.items() if not _is_opening(location)}

    def noted_columns(self) -> tuple[SeenColumns, frozenset[str]]:
        """Return the columns that writers noted in the footers of files, and the locations of these files."""
        return self._seen, frozenset(self._noted)

    def file_family(self, generation: int) -> str:
        """Return the prefix in the names of a generation's data files; no other ledger has the same one."""
        return f"rfr-{self.id.replace('-', '')}-g{generation}-"

    def look_again(self) -> None:
        """Load the ledger and its header again; only before this attempt opens or takes over a generation."""
        # What this attempt committed before, if anything, was to a generation that another one has replaced.
        self._fenced = self._committed = None
        self._forget_files()
        self._table.reload()
        self.header = read_header(self._table.summary(GENERATION_KEY))

    def check_epoch(self) -> None:
        """Check that no other attempt took over.

        :raises FencedError: another attempt did
        """
        with self._lock:
            self._table.reload()
            self._expect(self.header)

    def is_ours(self) -> bool:
        """Tell whether no other attempt took over; return True if the catalog does not answer."""
        try:
            self.check_epoch()
        except FencedError:
            return False
        except Exception:  # noqa: BLE001 - each catalog fails in its own way
            # A catalog that is away must not end an attempt. If another one took over, the next commit is refused
            # anyway.
            _log.debug("can't check who holds the ledger", exc_info=True)
        return True

    def collect(self) -> None:
        """Drop older generations after the publish, with files that late writers left in their folders."""
        self._table.trim()
        try:
            self._table.drop_generations_below(self.held.generation)
        except CommitConflictError:
            _log.info("older generations are left for the next refresh to collect: the ledger was busy")

    def _look_for_files(self) -> tuple[PartitionBook, int, list[PageFile], dict[int, Cursor], Counter[str]]:
        """Read the committed state of the generation, and choose the uncommitted files to adopt.

        :return: the partitions and the number of pages in committed files; the files to adopt, the cursors after them
            by partition, and the errors that their writers retried
        """
        committed = self._table.committed_files(self.held.generation)
        book, pages = self._committed_book(committed)
        cursors = {ordinal: book.cursors.get(ordinal, Cursor()) for ordinal in range(len(book))}
        # A predecessor that commits after the table was loaded makes its own files look uncommitted here. The
        # take-over's commit is then refused, and the files are looked for again.
        files = uncommitted_files(self.store, self.folder, committed)
        adopted, moved = choose_adopted(self.store, files, cursors, committed)
        return book, pages, adopted, moved, retried_by_writers(files, adopted)

    def _committed_book(self, committed: Iterable[str]) -> tuple[PartitionBook, int]:
        """Return the partitions with their cursors as of committed files, and the number of committed pages."""
        book = open_book(self.store, filter(_is_opening, committed))
        table = self._pages_in(filterfalse(_is_opening, committed))
        if table is None:
            return book, 0
        book.move(cursors_of(table))
        return book, table.num_rows

    def _pages_in(self, locations: Iterable[str]) -> pa.Table | None:
        """Return the page rows of committed files; None for no files."""
        locations = list(locations)
        unread = [location for location in locations if location not in self._kept]
        read = dict(zip(unread, self._table.read(unread, PAGE_COLUMNS), strict=True))
        tables = [read[location] if location in read else self._kept[location] for location in locations]
        for location, pages in read.items():
            self._keep_rows(location, pages.replace_schema_metadata(), SeenColumns.from_footer(pages.schema.metadata))
        return pa.concat_tables(tables) if tables else None

    def _forget_files(self) -> None:
        """Clear the cache of files' pages and columns, which may be those of another generation."""
        # Cached so that the publish of a small refresh reads no file again. Files are never changed.
        self._kept: dict[str, pa.Table] = {}
        self._kept_pages = 0
        self._noted: set[str] = set()
        self._seen = SeenColumns()

    def _keep(self, files: Iterable[PageFile]) -> None:
        for file in files:
            self._keep_rows(file.location, file.pages, file.seen)

    def _keep_rows(self, location: str, pages: pa.Table, seen: SeenColumns | None) -> None:
        if seen is not None and location not in self._noted:
            self._noted.add(location)
            self._seen += seen
        if self._kept_pages + pages.num_rows <= _KEPT_PAGES:
            self._kept[location] = pages
            self._kept_pages += pages.num_rows

    def _commit(self, files: Sequence[StoredFile], header: LedgerHeader, *, expected: LedgerHeader | None) -> None:
        """Commit files and header. Retry after commits of others, unless one of them is another attempt's.

        :param expected: header that the table has unless another attempt took over
        """
        if self._fenced is not None:
            # The table was loaded again when the other attempt was found, so a commit now would succeed on top of it.
            raise self._fenced
        for attempt in range(_TRIES):
            try:
                self._commit_once(files, header)
                return
            except CommitConflictError:
                # A maintenance job of the user or a newer attempt made the other commit: the header shows which.
                self._table.reload()
                self._expect(expected)
                time.sleep(0.05 * 2**attempt)
        raise LedgerError("the ledger's commits were refused too often")

    def _commit_once(self, files: Sequence[StoredFile], header: LedgerHeader) -> None:
        header = replace(header, bytes=header.bytes + sum(file.size for file in files))
        snapshot_id = self._table.commit(files, header.to_summary())
        if self._table.snapshot_id != snapshot_id:
            # The commit's answer was lost, and the table that was loaded again has later commits.
            self._expect(header)
        # Set only after the commit: if it is refused, the next try has to build on the table's header.
        self.header = header
        self._committed = time.monotonic()

    def _expect(self, expected: LedgerHeader | None) -> None:
        """Check that the loaded table has the expected generation and epoch.

        An attempt that is fenced stays fenced, whatever is loaded later, except by :meth:`look_again`.

        :raises FencedError: the table has others, so another attempt took over
        """
        newest = read_header(self._table.summary(GENERATION_KEY))
        mine = (expected.generation, expected.epoch) if expected else None
        if newest is not None and (newest.generation, newest.epoch) != mine:
            self._fenced = FencedError(
                f"another attempt took over (generation {newest.generation}, epoch {newest.epoch});"
                " this one ends without writing anything more",
                epoch=expected.epoch if expected else 0,
                newer_epoch=newest.epoch,
            )
            raise self._fenced

    def _end_mark(self) -> str:
        """Return the location of the file that records the attempt's end while the catalog does not answer."""
        return f"{self.folder}/ended-{self.held.epoch}{OWN_FILE}"

    def _folder_of(self, generation: int) -> str:
        return f"{self._table.location.rstrip('/')}/data/generation={generation}"


def _is_opening(location: str) -> bool:
    return basename(location).startswith(_OPENING_PREFIX)
