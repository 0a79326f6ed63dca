"""The ledger of one target as one attempt sees it: it opens or takes over a generation, and then commits to it.

Every commit names the attempt's epoch and the snapshot it builds on. When another attempt has taken over, the next
commit finds another epoch in the newest header and ends with :class:`FencedError`; until it has found that, nothing
of it was written.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import FencedError, LedgerError
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.ledger_columns import ledger_arrow_schema
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.adoption import CURSOR_COLUMNS, Cursor, LeftFile, choose, left_files
from airflow_provider_rfr.refresh.flush import STATISTICS, generation_folder
from airflow_provider_rfr.refresh.header import GENERATION_KEY, LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.refresh.pages import opening_rows, rows_to_table
from airflow_provider_rfr.refresh.partitions import OPENING_COLUMNS, PartitionBook, cursors_of, open_book

log = logging.getLogger(__name__)

_COMMIT_ID = "rfr.commit-id"
_OPENING_PREFIX = "open-"
_OPENING_ROWS_A_FILE = 50_000
_TRIES = 8
_TRIM_EVERY = 8
_LONGEST_ERROR = 2_000


class Ledger:
    """One attempt's hold on the newest generation; commits may be made from two threads.

    :ivar header: as of our last commit
    """

    def __init__(self, table: LedgerTable) -> None:
        self._table = table
        self._commits = 0
        self._committed: float | None = None
        self._fenced: FencedError | None = None
        self._lock = threading.RLock()
        self.header = read_header(table.summary(GENERATION_KEY))

    @property
    def id(self) -> str:
        """Tells this ledger from another one of the same name."""
        return self._table.id

    @property
    def store(self) -> FileStore:
        """Files of the ledger."""
        return self._table.store

    @property
    def folder(self) -> str:
        """Where the generation's files lie."""
        return generation_folder(self._table.location, self._held().generation)

    def open_generation(
        self,
        slices: Iterable[tuple[str, Mapping[str, Any]]],
        *,
        read_fingerprint: str,
        publish_fingerprint: str,
        run_key: str | None,
        words: Mapping[str, Any] | None = None,
    ) -> PartitionBook:
        """Begin the next generation: the commit freezes its list of partitions.

        :param words: fields of the header that say in words which part it is, and which task reads it
        :raises FencedError: somebody else opened or took over a generation meanwhile
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
            previous_rows=_previous_rows(before),
            **(words or {}),
        )
        folder = generation_folder(self._table.location, header.generation)
        keys: list[str] = []
        values: list[str] = []
        locations = list(self._write_openings(slices, header, folder, keys, values))
        self._commit(locations, header.advanced(partitions=len(keys)), expected=before)
        return PartitionBook(keys, values)

    def take_over(
        self, publish_fingerprint: str, run_key: str | None = None, words: Mapping[str, Any] | None = None
    ) -> PartitionBook:
        """Go on with the open generation under the next epoch, adopting what its attempts flushed.

        One commit raises the epoch and names the adopted files, so a live predecessor either gets its own commit in
        before, and we look again, or can't commit any more.

        :param words: as for :meth:`open_generation`
        """
        for _ in range(_TRIES):
            held = self._held()
            book, rows, (adopted, moved, tables) = self._look_for_files()
            book.adopt(moved)
            header = held.advanced(
                epoch=held.epoch + 1,
                attempts=held.attempts + 1,
                publish_fingerprint=publish_fingerprint,
                refused_under=None,
                run_key=run_key or held.run_key,
                pages=rows + sum(table.num_rows for table in tables),
                records=book.records,
                partitions_done=book.done,
                **(words or {}),
            )
            try:
                self._commit_once([file.location for file in adopted], header)
            except CommitConflictError:
                self._reload_open(held)
                continue
            return book
        raise LedgerError("the ledger changed hands too often to be taken over; is the refresh running many times?")

    def flushed_pages(self) -> int:
        """Pages in files that no commit names yet, and that the next attempt adopts."""
        with self._lock:
            tables = self._look_for_files()[2][2]
        return sum(table.num_rows for table in tables)

    def commit(self, names: Sequence[str], **changes: Any) -> LedgerHeader:
        """Name a round's files, and advance the header.

        :raises FencedError: another attempt took over
        """
        with self._lock:
            header = self._held().advanced(**changes)
            self._commit([f"{self.folder}/{name}" for name in names], header, expected=self._held())
            self._commits += 1
            if self._commits % _TRIM_EVERY == 0:
                self._table.trim()
                # It may have loaded what a newer attempt committed meanwhile.
                self._expect(header)
        return header

    @property
    def silent_seconds(self) -> float:
        """Since our last commit; 0 before there is one."""
        return 0.0 if self._committed is None else time.monotonic() - self._committed

    def end(self, error: str, refused_under: str | None = None) -> None:
        """Say that this attempt is over and holds nobody up; nothing where it never held the generation.

        :param refused_under: what the publish refused its rows under; None where it did not
        :raises FencedError: another attempt took over
        """
        if self._committed is None or self._held().state is not RefreshState.OPEN:
            return
        refused = {} if refused_under is None else {"refused_under": refused_under}
        try:
            self.commit([], ended_at=datetime.now(timezone.utc), error=error[:_LONGEST_ERROR], **refused)
        except FencedError:
            raise
        except Exception:
            # The catalog is lost, perhaps; its files may be there all the same.
            self.store.write(self._end_mark(), b"")
            raise

    @property
    def has_ended(self) -> bool:
        """Whether the attempt that holds the generation said that it is over, in the ledger or beside it."""
        return self._held().ended_at is not None or self.store.exists(self._end_mark())

    def read_pages(self, columns: Sequence[str]) -> pa.Table | None:
        """Some columns of all committed page rows of the generation; None for no pages."""
        return self._table.read(self.page_files(), columns)

    def page_files(self) -> list[str]:
        """Locations of the generation's committed files that hold pages."""
        with self._lock:
            return [name for name in self._table.committed_files(self._held().generation) if not _is_opening(name)]

    def look_again(self) -> None:
        """See what others did since; only before a generation is opened or taken over."""
        self._table.reload()
        self.header = read_header(self._table.summary(GENERATION_KEY))

    def check_epoch(self) -> None:
        """Look whether nobody took the generation over; raises :class:`FencedError`."""
        with self._lock:
            self._reload_expecting(self.header)

    def is_ours(self) -> bool:
        """Whether nobody took the generation over, as far as the catalog answers."""
        try:
            self.check_epoch()
        except FencedError:
            return False
        except Exception:
            log.debug("the ledger can't be asked who holds it", exc_info=True)
        return True

    def collect(self, keep_generations: int = 1) -> None:
        """After the publish: forget older generations and what late writers left."""
        self._table.trim()
        try:
            self._table.drop_generations_below(self._held().generation - keep_generations + 1)
        except CommitConflictError:
            log.info("older generations are left for the next refresh to collect: the ledger was busy")

    def _look_for_files(self) -> tuple[PartitionBook, int, tuple[list[LeftFile], dict[int, Cursor], list[pa.Table]]]:
        """What commits name, as a book and a number of pages, and of the other files those to adopt."""
        committed = self._table.committed_files(self._held().generation)
        book, rows = self._read_book(committed)
        files = left_files(self._table.store, self.folder, committed)
        return book, rows, choose(self._table.store, files, _all_cursors(book), committed)

    def _read_book(self, committed: Sequence[str]) -> tuple[PartitionBook, int]:
        openings = [name for name in committed if _is_opening(name)]
        pages = [name for name in committed if not _is_opening(name)]
        book = open_book(self._table.store.read_table(name, OPENING_COLUMNS) for name in openings)
        table = self._table.read(pages, CURSOR_COLUMNS)
        if table is None:
            return book, 0
        book.adopt(cursors_of(table))
        return book, table.num_rows

    def _write_openings(
        self,
        slices: Iterable[tuple[str, Mapping[str, Any]]],
        header: LedgerHeader,
        folder: str,
        keys: list[str],
        values: list[str],
    ) -> Iterator[str]:
        rows = iter(opening_rows(slices, generation=header.generation, epoch=header.epoch))
        while chunk := list(islice(rows, _OPENING_ROWS_A_FILE)):
            keys.extend(row.partition_key for row in chunk)
            values.extend(row.slice or "{}" for row in chunk)
            location = f"{folder}/{_OPENING_PREFIX}{uuid.uuid4().hex}.parquet"
            table = rows_to_table(chunk, ledger_arrow_schema())
            self._table.store.write_parquet(location, table, footer="{}", statistics=STATISTICS)
            yield location

    def _commit(self, locations: Sequence[str], header: LedgerHeader, *, expected: LedgerHeader | None) -> None:
        if self._fenced is not None:
            # The table was loaded again when that was found out, so the next commit would build on the newer attempt's.
            raise self._fenced
        for attempt in range(_TRIES):
            try:
                self._commit_once(locations, header)
                return
            except CommitConflictError:
                # A maintenance job of the user's, or a newer attempt: only the header tells.
                self._reload_expecting(expected)
                time.sleep(0.05 * 2**attempt)
        raise LedgerError("the ledger's commits were refused too often")

    def _commit_once(self, locations: Sequence[str], header: LedgerHeader) -> None:
        commit_id = uuid.uuid4().hex
        try:
            self._table.commit(locations, header.generation, {**header.to_summary(), _COMMIT_ID: commit_id})
        except (CommitConflictError, LedgerError):
            raise
        except Exception as error:
            # The catalog did not answer, so the commit may have happened; or a newer attempt trimmed what we built on.
            before = self._table.snapshot_id
            self._table.reload()
            if (self._table.summary(GENERATION_KEY) or {}).get(_COMMIT_ID) != commit_id:
                if self._table.snapshot_id == before:
                    raise
                raise CommitConflictError(str(error)) from error
        self.header = header
        self._committed = time.monotonic()

    def _reload_open(self, before: LedgerHeader) -> None:
        """Look again at the generation that is to be taken over; somebody may have finished or replaced it."""
        self._table.reload()
        self.header = found = read_header(self._table.summary(GENERATION_KEY))
        if found is None or (found.generation, found.state) != (before.generation, RefreshState.OPEN):
            raise FencedError(
                f"generation {before.generation} was taken over and ended by another attempt",
                epoch=before.epoch,
                newer_epoch=found.epoch if found else 0,
            )

    def _reload_expecting(self, expected: LedgerHeader | None) -> None:
        self._table.reload()
        self._expect(expected)

    def _expect(self, expected: LedgerHeader | None) -> None:
        """Look at the table as it was loaded last; who is fenced once stays so, whatever is loaded."""
        found = read_header(self._table.summary(GENERATION_KEY))
        mine = (expected.generation, expected.epoch) if expected else None
        if found is not None and (found.generation, found.epoch) != mine:
            self._fenced = FencedError(
                f"another attempt took over (generation {found.generation}, epoch {found.epoch});"
                " this one ends without writing anything more",
                epoch=expected.epoch if expected else 0,
                newer_epoch=found.epoch,
            )
            raise self._fenced

    def _end_mark(self) -> str:
        return f"{self.folder}/ended-{self._held().epoch}"

    def _held(self) -> LedgerHeader:
        if self.header is None:
            raise LedgerError("no generation is open")
        return self.header


def _previous_rows(before: LedgerHeader | None) -> int | None:
    if before is None:
        return None
    return before.published_rows if before.state is RefreshState.PUBLISHED else before.previous_rows


def _is_opening(location: str) -> bool:
    return location.rpartition("/")[2].startswith(_OPENING_PREFIX)


def _all_cursors(book: PartitionBook) -> dict[int, Cursor]:
    fresh = {ordinal: Cursor() for ordinal in range(len(book)) if ordinal not in book.cursors}
    return {**fresh, **book.cursors}
