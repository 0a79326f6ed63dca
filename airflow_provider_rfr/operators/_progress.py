"""Follows the ledgers while Spark runs: a log line per round, and a checkpoint in one of Airflow's stores."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.operators._checkpoints import Checkpoint, CheckpointStore
from airflow_provider_rfr.refresh.state import PREFIX
from airflow_provider_rfr.refresh.status import ProgressBook, ProgressPoint

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.lake import LakeDocument
    from airflow_provider_rfr.lake.ledger_table import LedgerTable
    from airflow_provider_rfr.refresh.state import LedgerHeader

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_FIRST_WAIT = 2.0
_JOIN_SECONDS = 15.0
_MAX_PARTITIONS = 128
_MAX_PAGES = 10_000
"""Above either, a checkpoint has counts alone: no display is worth reading more page rows than this."""
_COLUMNS = ("partition_key", "chain", "page", "complete")
_COMPARED = ("generation", "epoch", "pages")
_RUN_KEY = f"{PREFIX}run-key"
"""In the summary of the target's commits: the run that made them."""
_FIGURES_OF_COMMIT = ("generation", "pages", "rows", "attempts", "partitions")


class _PartitionStates:
    """The last page of each partition of one generation. Each committed file is read once, since none ever changes."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._files: set[str] = set()
        self._ends: dict[str, tuple[int, int, bool]] = {}

    def read(self, ledger: LedgerTable) -> dict[str, dict[str, Any]]:
        """Return each partition's pages, and whether it is done, by a digest of its key.

        The key itself may be a person's name.
        """
        fresh = [location for location in ledger.committed_files(self.generation) if location not in self._files]
        for table in ledger.read(fresh, _COLUMNS):
            for key, chain, page, complete in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
                # The opening row, page 0 of chain 0, is below every page.
                self._ends[key] = max(self._ends.get(key, (0, 0, False)), (chain, page, bool(complete)))
        self._files.update(fresh)
        return {
            hashlib.sha256(key.encode()).hexdigest()[:12]: {"pages": page, "done": done}
            for key, (_, page, done) in self._ends.items()
        }


class LedgerReader:
    """The ledgers of one task's tables. Not thread-safe.

    :param replace_where: the part of the targets, as in the refresh's options
    """

    def __init__(self, lake: LakeDocument, replace_where: str | None = None) -> None:
        self._lake = lake
        self._replace_where = replace_where
        self._seen: dict[str, tuple[LedgerTable, LedgerHeader]] = {}
        self._states: dict[str, _PartitionStates] = {}
        self._failed: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Tell whether the last look at each table succeeded; a table without a ledger counts as read."""
        return not self._failed

    def status(self, table: str) -> LedgerHeader | None:
        """Return the newest generation's header; None before the first refresh."""
        from airflow_provider_rfr.lake.catalog import open_catalog
        from airflow_provider_rfr.lake.ledger_table import LedgerTable
        from airflow_provider_rfr.lake.row_filter import part_of
        from airflow_provider_rfr.refresh.state import GENERATION_KEY, read_header

        self._failed.add(table)
        catalog = open_catalog(self._lake.settings())
        ledger = LedgerTable.load(catalog, table, part_of(self._replace_where))
        found = None if ledger is None else read_header(ledger.summary(GENERATION_KEY))
        if ledger is not None and found is not None:
            self._seen[table] = ledger, found
        self._failed.discard(table)
        return found

    def latest(self, table: str) -> LedgerHeader | None:
        """Return the header that the last look found."""
        return self._seen[table][1] if table in self._seen else None

    def published(self, table: str, run_key: str) -> dict[str, Any] | None:
        """Return the figures of the commit that this run made on the table; None where it made none."""
        from airflow_provider_rfr.lake.catalog import load_table, open_catalog
        from airflow_provider_rfr.lake.commits import newest_summary_with
        from airflow_provider_rfr.lake.target import SCHEMA_CHANGES_KEY

        status = self.status(table)
        target = load_table(open_catalog(self._lake.settings()), table)
        summary = (None if target is None else newest_summary_with(target, _RUN_KEY, run_key)) or {}
        more = {"schema_changes": summary.get(SCHEMA_CHANGES_KEY)}
        if status is not None and status.snapshot_id is not None and status.run_key == run_key:
            return {
                "target": table,
                "generation": status.generation,
                "snapshot_id": str(status.snapshot_id),
                "pages": status.pages,
                "rows": status.published_rows or 0,
                "pages_refetched": status.pages_refetched,
                "attempts": status.attempts,
                "partitions": status.partitions,
                **more,
            }
        # A waiting run may have opened the next generation already. The target's commit says what was published, but
        # not which pages were read twice.
        if not summary:
            return None
        counts = {name: int(summary[PREFIX + name]) for name in _FIGURES_OF_COMMIT if PREFIX + name in summary}
        return {"target": table, "snapshot_id": summary["snapshot-id"], **counts, **more}

    def details(self, table: str) -> dict[str, Any]:
        """Return a checkpoint's fields of a table besides the counts, as of the last :meth:`status`."""
        if table not in self._seen:
            return {}
        ledger, header = self._seen[table]
        pointer = {"ledger": ledger.id, "snapshot": str(ledger.snapshot_id)}
        if header.partitions > _MAX_PARTITIONS or header.pages > _MAX_PAGES:
            return {"pointer": pointer}
        states = self._states.get(table)
        if states is None or states.generation != header.generation:
            states = self._states[table] = _PartitionStates(header.generation)
        return {"pointer": pointer, "partition_states": states.read(ledger)}


class ProgressMonitor:
    """A context manager around one attempt: follows its ledgers, and leaves a checkpoint if the attempt fails.

    Neither a ledger that can't be read nor a store that can't be written ever fails the refresh. Such errors are logged
    by class name alone, once: their texts may hold addresses with credentials.

    :param owner: the task instance; a checkpoint of another one is ignored
    :param show: takes a line of text for each round
    :param is_first: whether this is the task's first try, which finds no checkpoint
    :ivar stalled: consecutive attempts, up to this one, without progress; None while a ledger can't be read
    """

    def __init__(
        self,
        ledgers: LedgerReader,
        tables: Sequence[str],
        store: CheckpointStore,
        owner: str,
        *,
        show: Callable[[str], None],
        is_first: bool = False,
    ) -> None:
        self._ledgers = ledgers
        self._names = tables
        self._store = store
        self._is_first = is_first
        self._book = ProgressBook(show)
        self._before: Mapping[str, ProgressPoint | None] | None = None
        self._last = Checkpoint(owner=owner)
        self._tables: dict[str, dict[str, Any]] = {}
        self._is_over = False
        self._is_excused = False
        self._logged: set[str] = set()
        # A follower that outlives its join must not write a checkpoint after the publish removed it.
        self._writing = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.stalled: int | None = None

    def __enter__(self) -> ProgressMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join(_JOIN_SECONDS)
        # An attempt that never reached the ledger counts as well, so its checkpoint is written here at the latest.
        if error is not None and self._before is not None:
            self._is_excused = isinstance(error, RfrError) and error.excused
            self._write()

    @property
    def before(self) -> tuple[Mapping[str, ProgressPoint | None] | None, int]:
        """Return the progress at the attempt's start, and the number of stalled attempts before it.

        The progress is None if it is unknown.
        """
        return self._before if self._ledgers.is_complete else None, self._last.stalled

    def follow(self, poll_interval: float) -> None:
        """Look at the ledgers from another thread until the context ends.

        :param poll_interval: seconds between looks once the refresh runs for a while; 2 at first
        """
        # The checkpoint is read here, because `airflow dags test` answers no second thread while it answers the first.
        arguments = (self.read_checkpoint(), poll_interval)
        self._thread = threading.Thread(target=self._follow, args=arguments, name="rfr-follower", daemon=True)
        self._thread.start()

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the last attempt's checkpoint; None, with a line in the log, where there is none of this task."""
        try:
            content = self._store.read()
        except Exception as error:  # noqa: BLE001 - see the class
            _log.warning("the checkpoint in %s can't be read (%s)", self._store.place, type(error).__name__)
            return None
        checkpoint = Checkpoint.parse(content, self._last.owner)
        if content is None:
            if not self._is_first:
                _log.info("there is no checkpoint in %s", self._store.place)
        elif checkpoint is None:
            _log.warning("the content of %s is ignored: it is not a checkpoint of this task", self._store.place)
        return checkpoint

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Record the state of the ledgers at the attempt's start, and compare the last attempt's checkpoint with it."""
        for table in self._names:
            self._book.begin(table, self._look(table))
        before = self._book.before
        self._before = {table: None if one is None else ProgressPoint.of(one) for table, one in before.items()}
        if checkpoint is None:
            return
        if self._ledgers.is_complete and not _agree(checkpoint.tables, before):
            # Someone else continued the refresh, or the last try died between a commit and its checkpoint.
            _log.info("the checkpoint in %s is ignored: the ledger is in another state", self._store.place)
        else:
            self._last = checkpoint
            agrees = "agrees with the ledger" if self._ledgers.is_complete else "can't be compared with the ledger now"
            _log.info("the checkpoint in %s %s", self._store.place, agrees)

    def resume(self, before: Mapping[str, ProgressPoint | None] | None, stalled: int) -> None:
        """Continue the attempt of another process, whose :attr:`before` this is."""
        self._before = before
        self._last = self._last.model_copy(update={"stalled": stalled})
        # The triggerer has logged the rounds.
        self._book = ProgressBook(lambda line: None)

    def take(self, statuses: Mapping[str, LedgerHeader | None]) -> None:
        """Log the rounds that are over, and write a checkpoint if any table has changed."""
        changed = [table for table, status in statuses.items() if self._book.take(table, status)]
        if not changed:
            return
        for table, counts in self._book.checkpoint()["tables"].items():
            details = self._guarded(f"the partitions of {table} can't be read", partial(self._ledgers.details, table))
            self._tables[table] = {**counts, **(details or {})}
        self._write()

    def published(self, *, keep: bool) -> None:
        """End the attempt, and remove the checkpoint unless it is to be kept; nothing is written after this."""
        with self._writing:
            self._is_over = True
            if not keep:
                self._guarded(f"the checkpoint in {self._store.place} can't be removed", self._store.clear)

    def _follow(self, checkpoint: Checkpoint | None, poll_interval: float) -> None:
        self.begin(checkpoint)
        wait = min(_FIRST_WAIT, poll_interval)
        is_done = False
        while not is_done:
            is_done = self._done.wait(wait)
            began = time.monotonic()
            self.take({table: self._look(table) for table in self._names})
            wait = min(max(wait * 1.2, 4 * (time.monotonic() - began)), poll_interval)

    def _look(self, table: str) -> LedgerHeader | None:
        return self._guarded(f"the ledger of {table} can't be read", lambda: self._ledgers.status(table))

    def _write(self) -> None:
        with self._writing:
            if self._is_over:
                return
            if self._before is None or not self._ledgers.is_complete:
                self.stalled = None
            elif any(_has_advanced(self._before.get(table), counts) for table, counts in self._tables.items()):
                self.stalled = 0
            else:
                self.stalled = self._last.stalled + (0 if self._is_excused else 1)
            stalled = self._last.stalled if self.stalled is None else self.stalled
            tables = {**self._last.tables, **self._tables}
            content = self._last.model_copy(update={"stalled": stalled, "tables": tables}).content()
            self._guarded(f"the checkpoint in {self._store.place} can't be written", lambda: self._store.write(content))

    def _guarded(self, problem: str, action: Callable[[], _T]) -> _T | None:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - see the class
            if problem not in self._logged:
                self._logged.add(problem)
                _log.warning("%s (%s); the refresh continues", problem, type(error).__name__)
            return None


def _agree(tables: Mapping[str, Mapping[str, Any]], before: Mapping[str, LedgerHeader | None]) -> bool:
    """Tell whether a checkpoint's counts are those of the ledgers."""
    return all(
        (status := before.get(table)) is not None
        and all(counts.get(name) == getattr(status, name) for name in _COMPARED)
        for table, counts in tables.items()
    )


def _has_advanced(before: ProgressPoint | None, counts: Mapping[str, Any]) -> bool:
    """Tell whether a table is further than it was: more pages or partitions, a generation with pages, a publish."""
    if before is None or before.generation != counts["generation"]:
        return bool(counts["pages"])
    if counts.get("snapshot_id") is not None and before.snapshot_id is None:
        return True
    return bool(counts["pages"] > before.pages or counts["partitions_done"] > before.partitions_done)
