"""The publish: ledger to typed rows to one commit on the target, or nothing at all.

Fetched, staged and published counts are equal, or nothing is published. Publishing a generation twice is a no-op
that returns the first commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from airflow_provider_rfr.exceptions import (
    LedgerError,
    PublishRefusedError,
    ReconciliationError,
)
from airflow_provider_rfr.lake.commit_event import Binding
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.lake.file_target import FileTarget
from airflow_provider_rfr.lake.files import naming
from airflow_provider_rfr.lake.inference import InferredSchema
from airflow_provider_rfr.lake.json_schema import arrow_schema
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.commit_summary import commit_event, commit_summary
from airflow_provider_rfr.refresh.config import PublishMode, RefreshConfig
from airflow_provider_rfr.refresh.guards import check_guards, type_mismatch
from airflow_provider_rfr.refresh.header import LedgerHeader
from airflow_provider_rfr.refresh.infer_task import InferTask, merge_schemas, run_infer_task
from airflow_provider_rfr.refresh.keys import KeySearch, find_losers, key_columns
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.outcome import PublishOutcome, published_already
from airflow_provider_rfr.refresh.partitions import (
    CURSOR_COLUMNS,
    PartitionBook,
    check_gapless,
    cursors_of,
    fetched_span,
    skipped_pages,
)
from airflow_provider_rfr.refresh.publish_task import (
    PublishResult,
    PublishTask,
    WrittenFile,
    drop_rows,
    run_publish_task,
)
from airflow_provider_rfr.streams.core import Stream

log = logging.getLogger(__name__)

_TRIES = 10
_KEYS_A_BUCKET = 4_000_000
_BYTES_A_TASK = 64 * 1024 * 1024


class Publisher:
    """Publishes one complete generation."""

    def __init__(
        self,
        ledger: Ledger,
        book: PartitionBook,
        cluster: Cluster,
        target: TargetTable,
        stream: Stream,
        config: RefreshConfig,
    ) -> None:
        self._ledger = ledger
        self._book = book
        self._cluster = cluster
        self._target = target
        self._stream = stream
        self._config = config
        self._options = config.options
        self._skipped = 0
        self._fetched: tuple[datetime | None, datetime | None] = (None, None)

    def publish(self) -> PublishOutcome:
        """Check, type, write, commit; raises before the commit, or not at all."""
        header = self._header()
        staged = self._check_staged()
        check_guards(self._options, rows=staged, previous=header.previous_rows)
        if (found := published_already(self._target, self._ledger.id, header)) is not None:
            return found
        for _ in range(_TRIES):
            try:
                outcome = self._write_and_commit(header, staged)
            except TargetChangedError as error:
                log.info("%s; they are written again", error)
                continue
            log.info("published %s rows as snapshot %s of %s", outcome.rows, outcome.snapshot_id, self._target.name)
            return outcome
        raise LedgerError(f"the columns of {self._target.name} change all the time; the retry publishes what was read")

    def _write_and_commit(self, header: LedgerHeader, staged: int) -> PublishOutcome:
        tasks, target = self._plan(staged)
        try:
            written, removed = self._write(tasks, staged)
        except BaseException:
            target.discard()
            raise
        try:
            return self._commit(header, target, written, staged - removed, removed)
        except TargetChangedError:
            target.discard()
            raise
        finally:
            self._ledger.store.delete_folder(self._scratch())

    def _write(self, tasks: Sequence[PublishTask], staged: int) -> tuple[list[WrittenFile], int]:
        """Write the data files and check all that can be checked; returns them, and the rows dropped as duplicates."""
        results = self._cluster.run(_run_publish, tasks)
        self._check_results(results, staged)
        written = [file for result in results for file in result.written]
        written, removed = self._without_duplicates(tasks, written, staged)
        check_guards(self._options, rows=staged - removed, previous=self._header().previous_rows)
        self._ledger.check_epoch()
        return written, removed

    def _check_staged(self) -> int:
        """Every partition complete, every page there once, and the counts those that were fetched."""
        table = self._ledger.read_pages((*CURSOR_COLUMNS, "skipped", "fetched_at"))
        cursors = cursors_of(table) if table is not None else {}
        if table is not None:
            check_gapless(table, cursors)
            self._skipped = skipped_pages(table, cursors)
            self._fetched = fetched_span(table, cursors)
        if self._skipped:
            log.warning("%s pages have no records, because an error of theirs was ignored", self._skipped)
        unfinished = [n for n in range(len(self._book)) if n not in cursors or not cursors[n].complete]
        if unfinished:
            raise ReconciliationError(
                f"{len(unfinished)} partitions are not complete, the first is {self._book.keys[unfinished[0]]}"
            )
        for ordinal, cursor in cursors.items():
            if self._book.cursors[ordinal].records != cursor.records:
                raise ReconciliationError(
                    f"partition {self._book.keys[ordinal]}: {self._book.cursors[ordinal].records} records were fetched,"
                    f" {cursor.records} are staged; nothing is published"
                )
        return sum(cursor.records for cursor in cursors.values())

    def _plan(self, rows: int) -> tuple[list[PublishTask], FileTarget]:
        schema = self._stream.json_schema
        wanted = arrow_schema(schema, "json_schema") if schema is not None else self._inferred()
        options = self._options
        rows_stay = options.mode is PublishMode.APPEND or options.replace_where is not None
        target = self._target.prepare(
            wanted, options.on_schema_change.value, inferred=schema is None, rows_stay=rows_stay
        )
        header = self._header()
        family = f"rfr-{self._ledger.id[:8]}-g{header.generation}-"
        target = replace(target, family=family, label=f"e{header.epoch}-")
        where = self._options.replace_where
        base = PublishTask(
            store=self._ledger.store,
            files=(),
            live_chains=self._book.live_chains,
            target=target,
            schema=target.rows,
            generation=header.generation,
            on_type_error=self._options.on_type_error.value,
            max_offenders=self._options.max_offenders,
            # Columns inferred from no rows lack the key's.
            key_columns=key_columns(self._stream.primary_key, target.rows) if rows else (),
            row_filter=RowFilter(where, target.layout.schema) if where else None,
            scratch=self._scratch(),
        )
        return [replace(base, files=group) for group in self._groups()], target

    def _inferred(self) -> pa.Schema:
        """The columns that the records of the whole generation have."""
        base = InferTask(self._ledger.store, (), self._book.live_chains)
        tasks = [replace(base, files=group) for group in self._groups()]
        return merge_schemas(self._cluster.run(_run_infer, tasks))

    def _groups(self) -> list[tuple[str, ...]]:
        """Ledger files in groups of about equal size: one a core, more when there is much."""
        sizes = sorted(((self._ledger.store.size(name), name) for name in self._ledger.page_files()), reverse=True)
        total = sum(size for size, _ in sizes)
        count = min(len(sizes), max(self._cluster.cores, total // _BYTES_A_TASK))
        groups: list[tuple[int, list[str]]] = [(0, []) for _ in range(count)]
        for size, name in sizes:
            lightest = min(range(count), key=lambda index: groups[index][0])
            groups[lightest] = (groups[lightest][0] + size, [*groups[lightest][1], name])
        return [tuple(names) for _, names in groups]

    def _check_results(self, results: Sequence[PublishResult], staged: int) -> None:
        offenders = [item for result in results for item in result.offenders]
        count = sum(result.offender_count for result in results)
        if count and self._options.on_type_error.value == "fail":
            raise type_mismatch(offenders[: self._options.max_offenders], count)
        outside = sum(result.outside_filter for result in results)
        if outside:
            raise PublishRefusedError(
                f"{outside} rows do not match replace_where ({self._options.replace_where});"
                " published, they would double at the next run; nothing is published"
            )
        rows: dict[int, int] = {}
        for result in results:
            for ordinal, number in result.rows_by_partition.items():
                rows[ordinal] = rows.get(ordinal, 0) + number
        written = sum(file.file.rows for result in results for file in result.written)
        wrong = [n for n, cursor in self._book.cursors.items() if rows.get(n, 0) != cursor.records]
        if wrong or written != staged:
            place = f", first in partition {self._book.keys[wrong[0]]}" if wrong else ""
            raise ReconciliationError(
                f"{staged} records are staged, {written} were written{place}; nothing is published"
            )

    def _without_duplicates(
        self, tasks: Sequence[PublishTask], written: Sequence[WrittenFile], staged: int
    ) -> tuple[list[WrittenFile], int]:
        companions = tuple(file.keys for file in written if file.keys is not None)
        if not companions:
            return list(written), 0
        buckets = max(1, staged // _KEYS_A_BUCKET)
        searches = [KeySearch(self._ledger.store, companions, bucket, buckets) for bucket in range(buckets)]
        losers: dict[str, list[int]] = {}
        for found in self._cluster.run(_run_search, searches):
            for companion, rows in found.items():
                losers.setdefault(companion, []).extend(rows)
        if not losers:
            return list(written), 0
        hit = [(tasks[0], file, losers[file.keys]) for file in written if file.keys in losers]
        kept = [file for file in written if file.keys not in losers]
        again = [file for files in self._cluster.run(_run_drop, hit) for file in files]
        self._ledger.store.delete(file.file.location for _, file, _ in hit)
        return [*kept, *again], sum(len(rows) for rows in losers.values())

    def _commit(
        self, header: LedgerHeader, target: FileTarget, written: Sequence[WrittenFile], rows: int, removed: int
    ) -> PublishOutcome:
        files = [file.file.describe(target.layout) for file in written]
        stream, mode = self._stream.name, self._options.mode.value
        binding = Binding(self._target.name, stream, rows, sum(file.file.size for file in written))
        event = commit_event(self._ledger.id, header, self._config, binding, self._fetched)
        counts = {"rows": rows, "removed": removed, "skipped": self._skipped}
        summary = commit_summary(self._ledger.id, header, stream=stream, mode=mode, event=event, **counts)
        for attempt in range(_TRIES):
            # Whoever took over meanwhile may not have published yet, so that the target can't tell.
            self._ledger.check_epoch()
            # What was loaded before the files were written may have expired.
            self._target.reload()
            if (found := published_already(self._target, self._ledger.id, header)) is not None:
                return found
            try:
                with naming(target.folder):
                    snapshot_id = self._target.commit(
                        files,
                        (self._ledger.id, header.generation),
                        mode=self._options.mode.value,
                        replace_where=self._options.replace_where,
                        summary=summary,
                    )
                self._collect(target, written)
                return PublishOutcome(snapshot_id, rows, removed, self._skipped)
            except CommitConflictError:
                time.sleep(0.05 * 2**attempt)
        raise LedgerError("the target changed under every attempt to publish; the retry publishes what was read")

    def _collect(self, target: FileTarget, written: Sequence[WrittenFile]) -> None:
        try:
            target.collect(file.file for file in written)
        except OSError as error:
            log.warning("published; files of earlier attempts could not be collected: %s", error)

    def _scratch(self) -> str:
        header = self._header()
        return f"{self._ledger.folder}/publish-{header.epoch}"

    def _header(self) -> LedgerHeader:
        assert self._ledger.header is not None
        return self._ledger.header


def _run_publish(place: object, task: PublishTask) -> PublishResult:
    return run_publish_task(task)


def _run_infer(place: object, task: InferTask) -> InferredSchema:
    return run_infer_task(task)


def _run_search(place: object, search: KeySearch) -> dict[str, list[int]]:
    return find_losers(search)


def _run_drop(place: object, item: tuple[PublishTask, WrittenFile, list[int]]) -> list[WrittenFile]:
    return drop_rows(*item)
