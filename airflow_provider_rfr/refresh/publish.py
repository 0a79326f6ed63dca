"""The publish: pages of the ledger become typed rows, which one commit shows in the target.

Nothing is published if the counts of fetched, staged and written records differ, or if the result is empty or has
shrunk more than is allowed. Publishing a generation twice is a no-op that returns the first commit.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr import __version__
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    FencedError,
    LedgerError,
    PublishRefusedError,
    ReconciliationError,
    RfrError,
    SchemaEvolutionError,
    TypeMismatchError,
)
from airflow_provider_rfr.lake.commit_event import Binding, CommitEvent, collections_of, published_span
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError, retry_conflicts
from airflow_provider_rfr.lake.data_files import FileTarget
from airflow_provider_rfr.lake.files import naming
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.lake.schemas import full_names, listed
from airflow_provider_rfr.lake.sync_state import NO_STATE, SyncState, state_properties
from airflow_provider_rfr.lake.target import SCHEMA_CHANGES_KEY, Publication, TargetTable, discarding
from airflow_provider_rfr.refresh.cluster import Cluster, DriverJobs, equal_shares
from airflow_provider_rfr.refresh.column_rules import ColumnRules
from airflow_provider_rfr.refresh.config import RefreshConfig, RefreshOptions
from airflow_provider_rfr.refresh.cursor_values import comparable, value_of
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.merge import MergeCounts
from airflow_provider_rfr.refresh.merge_task import KeyRules
from airflow_provider_rfr.refresh.page_rows import SeenColumns, key_columns
from airflow_provider_rfr.refresh.partitions import (
    LeftOut,
    PartitionBook,
    check_absent_fields,
    check_complete,
    check_gapless,
    check_ignored_tokens,
    check_promises,
    cursors_of,
    live_pages,
    skipped_pages,
    tokens_of_last_pages,
)
from airflow_provider_rfr.refresh.publish_task import (
    KeySearch,
    LedgerFiles,
    PublishResult,
    PublishTask,
    WrittenFile,
    drop_rows,
    find_losers,
    run_publish_task,
    see_share,
)
from airflow_provider_rfr.refresh.state import PREFIX, LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.sync import SyncChanges, SyncPlan
from airflow_provider_rfr.streams.core import key_paths
from airflow_provider_rfr.streams.incremental import DELETED_FIELD, CursorColumn, StatefulRead
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.text import page_place, quantity

_log = logging.getLogger(__name__)

_IMAGE = f"airflow-provider-rfr:{__version__}"
_TRIES = 10
_COMMIT_SECONDS = 600.0
_KEYS_A_BUCKET = 4_000_000
_CHANGES = tuple(count.name for count in fields(MergeCounts))


def _changes_in(counts: Mapping[str, Any]) -> dict[str, int] | None:
    """Return an incremental sync's counts from a summary whose keys lack the prefix; None if it has none."""
    return {name: int(counts[key]) for name in _CHANGES if (key := name.replace("_", "-")) in counts} or None


def _check_guards(options: RefreshOptions, *, rows: int, previous: int | None) -> None:
    """Raise :class:`PublishRefusedError` if ``allow_empty`` or ``max_shrink`` forbids ``rows`` after ``previous``."""
    if rows == 0:
        if options.allow_empty:
            return
        raise PublishRefusedError(
            "the source gave no rows, so nothing was published and readers keep the old table;"
            " set allow_empty to true if that is right"
        )
    if options.max_shrink is None or not previous or options.mode == "append":
        return
    shrunk = 1 - rows / previous
    if shrunk > options.max_shrink:
        raise PublishRefusedError(
            f"{rows} rows after {previous}: {shrunk:.0%} fewer, and max_shrink allows {options.max_shrink:.0%};"
            " nothing was published and readers keep the old table; if the source is right, set max_shrink to a greater"
            " share, or to null to allow any, and run again: nothing is fetched again"
        )


def commit_summary(
    ledger: str,
    header: LedgerHeader,
    config: RefreshConfig,
    binding: Binding,
    fetched: tuple[datetime | None, datetime | None],
    counts: Mapping[str, int],
) -> dict[str, str]:
    """Return the snapshot properties of the commit that publishes a generation, with the event for webhooks.

    :param fetched: when its earliest and its latest page were fetched
    :param counts: of rows that were removed, pages that were skipped, and records that are missing
    """
    # The same for every try, so that receivers recognise a repeat.
    commit_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ledger}:{header.generation}"))
    changes = _changes_in(counts)
    # A sync that only deletes rows has no documents.
    deletes_only = not binding.documents and changes is not None and changes.get("deleted", 0) > 0
    begin, end = published_span([fetched] if binding.documents or deletes_only else [])
    event = CommitEvent(
        commit_id=commit_id,
        target=binding.table,
        lake=config.lake.name,
        target_name=config.run.materialization_name or binding.table,
        run_id=commit_id,
        generation=header.generation,
        collection_names=(binding.collection,) if deletes_only else collections_of([binding]),
        producer=_IMAGE,
        fetched_at_min=begin,
        fetched_at_max=end,
        bindings=(binding,),
        changes=changes,
        **(run.for_webhooks() if (run := config.run.airflow) is not None else {}),
    )
    values = {
        "ledger": ledger,
        **{name: getattr(header, name) for name in ("generation", "epoch", "attempts", "pages", "partitions")},
        "stream": binding.collection,
        "mode": config.options.mode,
        "rows": binding.documents,
        **counts,
        "opened-at": header.opened_at.isoformat(),
        "published-at": datetime.now(timezone.utc).isoformat(),
        "commit-id": commit_id,
        **({"run-key": header.run_key} if header.run_key else {}),
    }
    return {**{PREFIX + key: str(value) for key, value in values.items()}, **event.to_summary()}


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """The outcome of a publish, with fields as of :class:`RefreshFigures`.

    :ivar duplicates_removed: rows dropped because a later one has the same primary key
    :ivar pages_skipped: pages without records, because their error was ignored
    :ivar rows: rows of the table after an incremental sync; else the published rows
    :ivar schema_changes: text of the snapshot's summary about changed columns; None if there was no change
    :ivar changes: records of an incremental sync by outcome (:class:`MergeCounts`); None for a full refresh
    """

    snapshot_id: int | None
    rows: int
    duplicates_removed: int = 0
    pages_skipped: int = 0
    records_missing: int = 0
    schema_changes: str | None = None
    changes: Mapping[str, int] | None = None


def published_fields(outcome: PublishOutcome, publication: Publication | None) -> dict[str, Any]:
    """Return the fields of the ledger's header that describe the publish.

    :param publication: the generation's commit; None where there was nothing to commit
    """
    changes = None
    if outcome.changes is not None:
        doubled = 0 if publication is None else int(publication.summary.get("rfr.doubled-keys") or 0)
        changes = {**outcome.changes, "doubled_keys": doubled}
    return {
        "state": RefreshState.PUBLISHED,
        "snapshot_id": outcome.snapshot_id,
        "published_rows": outcome.rows,
        "changes": changes,
    }


def _without(rows: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([column for column in rows if column.name not in names])


def outcome_of(publication: Publication, header: LedgerHeader) -> PublishOutcome:
    """Return the outcome of a publication; counts that its summary lacks are the header's."""
    summary = publication.summary
    changes = _changes_in({key.removeprefix(PREFIX): value for key, value in summary.items()})
    rows = summary.get("total-records") if changes else summary.get("rfr.rows")
    return PublishOutcome(
        publication.snapshot_id,
        int(rows or header.published_rows or header.records),
        int(summary.get("rfr.duplicates-removed") or 0),
        int(summary.get("rfr.pages-skipped") or 0),
        int(summary.get("rfr.records-missing") or 0),
        summary.get(SCHEMA_CHANGES_KEY),
        changes,
    )


def commit_with_retries(commit: Callable[[], PublishOutcome]) -> PublishOutcome:
    """Run ``commit``, and again after each conflict with another writer's commit, for ten minutes.

    :raises LedgerError: there was still a conflict
    """
    try:
        return retry_conflicts(seconds=_COMMIT_SECONDS)(commit)
    except CommitConflictError as error:
        raise LedgerError(
            f"other writers changed the target at each try to publish for {_COMMIT_SECONDS / 60:.0f} minutes;"
            " the retry publishes what was read"
        ) from error


def published_already(target: TargetTable, ledger: str, header: LedgerHeader) -> PublishOutcome | None:
    """Return the earlier publication of this generation; None if it is not published.

    :raises FencedError: a newer attempt published it, or a newer generation is published
    """
    publication = target.published(ledger)
    if publication is None or publication.generation < header.generation:
        return None
    epoch = int(publication.summary.get("rfr.epoch", 0))
    if publication.generation > header.generation or epoch > header.epoch:
        raise FencedError(
            f"generation {publication.generation}, epoch {epoch} was published meanwhile, so generation"
            f" {header.generation}, epoch {header.epoch} is not",
            epoch=header.epoch,
            newer_epoch=max(epoch, header.epoch + 1),
        )
    return outcome_of(publication, header)


@dataclass(slots=True)
class Publisher:
    """A publisher of one complete generation.

    :ivar sync: the plan by which the stream is read; None without a cursor, or if no state can be kept
    :ivar left_out: pages and records that are missing; ``fetched``: when the earliest and the latest page were fetched
    :ivar sent: paths of the fields that records have
    """

    ledger: Ledger
    book: PartitionBook
    jobs: Cluster | DriverJobs
    target: TargetTable
    stream: PagedStream
    rules: ColumnRules
    config: RefreshConfig
    left_out: LeftOut = field(default_factory=LeftOut)
    sync: SyncPlan | None = None
    fetched: tuple[datetime | None, datetime | None] = (None, None)
    sent: frozenset[str] = frozenset()

    def publish(self) -> PublishOutcome:
        """Check the pages, write typed rows and commit them; return the outcome.

        :raises PublishRefusedError: the rows are refused: too few, or outside of ``replace_where``
        :raises TypeMismatchError: values do not fit their columns
        :raises ReconciliationError: counts differ
        :raises FencedError: a newer attempt or generation was published
        """
        header = self.ledger.held
        self.ledger.renew_credentials()
        self.target.renew_credentials()
        staged = self._check_staged()
        self._check_staged_rows(header, staged)
        # Checked again after the opening: another attempt may have published while this one was reading.
        if (earlier := published_already(self.target, self.ledger.id, header)) is not None:
            return earlier
        sync = self.sync
        for _ in range(_TRIES):
            self.sync = sync  # a former try may have given it up
            try:
                outcome = self._write_and_commit(header, staged)
            except TargetChangedError as error:
                _log.info("%s; they are written again", error)
                continue
            _log.info("published %s rows as snapshot %s of %s", outcome.rows, outcome.snapshot_id, self.target.name)
            return outcome
        raise LedgerError(
            f"schema of {self.target.name} changed concurrently {_TRIES} times; the retry publishes what was read"
        )

    def _check_staged(self) -> int:
        """Check that partitions are complete, each page is there once, and counts agree; return the staged records."""
        table = self.ledger.read_pages()
        cursors = cursors_of(table) if table is not None else {}
        if table is not None:
            pages = live_pages(table, cursors)
            check_gapless(pages, cursors)
            span = pc.min_max(pages["fetched_at"])
            self.fetched = span["min"].as_py(), span["max"].as_py()
            # By the API's own fields and counts: skipped pages, wrong paging and missing records.
            skipped = skipped_pages(pages, self.book.keys)
            if not self.stream.absent_field_ends:
                check_absent_fields(pages, self.book.keys, self.stream.page_size)
            check_ignored_tokens(pages, self.book.keys, self.stream.page_size)
            fail = self.config.options.on_missing_records == "fail"
            self.left_out = LeftOut.of(skipped, check_promises(pages, self.book.keys, fail=fail))
        check_complete(self.book, cursors)
        return sum(cursor.records for cursor in cursors.values())

    @property
    def _options(self) -> RefreshOptions:
        """Return the options; an incremental sync that reads everything, such as the first one, replaces all rows."""
        is_sync = self.config.sync == "incremental"
        return self.config.options.model_copy(update={"mode": "replace"} if is_sync else {})

    def _check_staged_rows(self, header: LedgerHeader, staged: int) -> None:
        _check_guards(self._options, rows=staged, previous=header.previous_rows)

    def _index_of(self, target: FileTarget) -> KeyRules | None:
        """Return the rules of the index that is written beside each file; None if there is no index."""
        return None

    def _write_and_commit(self, header: LedgerHeader, staged: int) -> PublishOutcome:
        tasks, target = self._plan(header, staged)
        with discarding(target):
            results = self._typed(tasks, target, staged)
            written = [file for result in results for file in result.written]
            deletions = [location for result in results for location in result.changes.deletions]
            written, removed = self._without_duplicates(tasks, written, deletions, staged)
            removed += sum(result.changes.deleted for result in results)
            # Again, because duplicates are dropped by now. The first check saves the job if the source sent too little.
            _check_guards(self._options, rows=staged - removed, previous=header.previous_rows)
            state = self._state_after_full(header, results)
            # Checked before the commit is tried, while the files may still be deleted. After a try without an answer,
            # the table may name them.
            self.ledger.check_epoch()
        try:
            return self._commit(header, target, written, staged - removed, removed, state)
        except (LedgerError, SchemaEvolutionError, ConfigurationError):
            # Not after other errors: the commit may have succeeded, and then the table names these files.
            target.discard()
            raise
        finally:
            self.ledger.store.tidy_folder(self._scratch(header))

    def _typed(self, tasks: Sequence[PublishTask], target: FileTarget, staged: int) -> list[PublishResult]:
        """Write the rows in the table's types, check that all are there, and record the fields of the records."""
        results = self.jobs.run(run_publish_task, tasks)
        self._check_results(results, staged)
        if not self.rules.infers:
            self.sent = frozenset().union(*(result.fields for result in results))
            rows = _without(target.rows, self.rules.constants)
            columns = {name for column in rows for name in full_names(column.name, column.type)}
            if dropped := sorted(self.sent - columns):
                _log.warning(
                    "%s: json_schema drops %s of the records that it does not name: %s",
                    *(self.target.name, quantity(len(dropped), "field"), listed(dropped)),
                )
        if staged and (unseen := [name for name in self.rules.hints if name not in self.sent]):
            _log.warning(
                "%s: no record has these fields, which are named in columns: %s", self.target.name, listed(unseen)
            )
        return results

    def _plan(self, header: LedgerHeader, rows: int) -> tuple[list[PublishTask], FileTarget]:
        files, options = self.ledger.page_files(), self._options
        marks_deleted = self.sync is not None and self.sync.read.marks_deleted
        deletion_fields: frozenset[str] = frozenset()
        if self.sync is not None and marks_deleted and options.mode != "append":
            # The fields that count in a deletion record. In an append such records are rows.
            key = {path[0] for path in key_paths(self.stream.primary_key)}
            deletion_fields = frozenset({DELETED_FIELD, self.sync.read.column.name, *key})
        shares, seen = self._shares(files), self._seen_columns(files)
        deletes_alone = self.rules.infers and not seen.schema.kinds
        seen = replace(seen, schema=seen.schema.with_deletions(deletion_fields or None))
        has_rows = rows > 0 and not (deletes_alone and deletion_fields)
        target, where = self._prepare(header, seen, has_rows), options.replace_where
        schema = _without(target.rows, self.rules.constants)
        if marks_deleted:
            schema = schema.append(pa.field(DELETED_FIELD, pa.bool_()))
        task = PublishTask(
            source=LedgerFiles(self.ledger.store, (), {}),
            target=target,
            schema=schema,
            constants=tuple(
                (column.name, pa.scalar(self.rules.constants[column.name], target.rows.field(column.name).type))
                for column in self.rules.constant_columns()
            ),
            generation=header.generation,
            on_type_error=options.on_type_error,
            max_offenders=options.max_offenders,
            # Without rows, the inferred columns lack those of the key.
            key_columns=key_columns(self.stream.primary_key, target.rows, self.rules.infers) if rows else (),
            row_filter=RowFilter(where, target.layout.schema) if where else None,
            scratch=self._scratch(header),
            note_fields=not self.rules.infers,
            casts=self.stream.casts,
            cursor=self._cursor_of(target.rows, deletes_alone) if rows else None,
            index=self._index_of(target) if rows else None,
            window=self._window,
            deletion_fields=deletion_fields,
        )
        return [replace(task, source=share) for share in shares], target

    @property
    def _window(self) -> tuple[int, int] | None:
        """Return the start and end of the window as comparable cursor values; None without a window."""
        if self.sync is None or self.sync.window is None:
            return None
        window, column = self.sync.window, self.sync.read.column
        return value_of(window.start, column), value_of(window.end, column)

    def _prepare(self, header: LedgerHeader, seen: SeenColumns, has_rows: bool) -> FileTarget:
        """Plan the table's columns; return the target of this attempt's files.

        :param has_rows: whether any row is written
        """
        self.sent = frozenset(seen.schema.paths()) - {DELETED_FIELD}
        target = self.target.prepare(
            self.rules.columns(seen, self.target.row_columns()),
            self._options.on_schema_change,
            inferred=self.rules.infers,
            declared=self.rules.typed_names(),
            rows_stay=self._options.mode != "replace" or self._options.replace_where is not None,
            has_rows=has_rows,
        )
        return replace(target, family=self.ledger.file_family(header.generation), label=f"e{header.epoch}-")

    def _seen_columns(self, files: Mapping[str, int]) -> SeenColumns:
        """Return the columns of the records if columns are inferred from them, else none.

        Writers note them in the files. After a restart the notes are not used: they include superseded chains.
        """
        if not self.rules.infers:
            return SeenColumns()
        seen, noted = self.ledger.noted_columns()
        if self.book.live_chains:
            seen, noted = SeenColumns(), frozenset()
        shares = self._shares({location: size for location, size in files.items() if location not in noted})
        return sum(self.jobs.run(see_share, shares), seen)

    def _shares(self, files: Mapping[str, int]) -> list[LedgerFiles]:
        """Divide the ledger files into shares: one a core, more if they are large; ``files`` has their bytes."""
        # Sorted, so that files of equal size are shared out in the same way by every attempt.
        shares = equal_shares(sorted(files, reverse=True), self.jobs.cores, files.__getitem__)
        return [LedgerFiles(self.ledger.store, tuple(share), self.book.live_chains) for share in shares]

    def _check_results(self, results: Sequence[PublishResult], staged: int) -> None:
        count = sum(result.offender_count for result in results)
        if count and self.config.options.on_type_error == "fail":
            offenders = [item for result in results for item in result.offenders][: self.config.options.max_offenders]
            named = "; ".join(
                f"{page_place(item['partition'], item['page'], item['record'])}: {item['column']} is"
                f" {item['value']}, expected {item['expected']}"
                for item in offenders
            )
            more = f" (and {count - len(offenders)} more)" if count > len(offenders) else ""
            raise TypeMismatchError(
                f"{count} values do not fit their columns: {named}{more}. Correct the schema and run again, nothing is"
                " fetched again; or set on_type_error to null. A fix by a transformation fetches all pages again",
                offenders,
            )
        outside = sum(result.outside_filter for result in results)
        if outside:
            raise PublishRefusedError(
                f"{outside} rows do not match replace_where ({self.config.options.replace_where});"
                " published, they would double at the next run; nothing is published"
            )
        rows = sum((Counter(result.rows_by_partition) for result in results), Counter[int]())
        written = sum(file.file.rows for result in results for file in result.written)
        written += sum(result.changes.deleted + result.changes.outside for result in results)
        wrong = [n for n, cursor in self.book.cursors.items() if rows[n] != cursor.records]
        if wrong or written != staged:
            place = page_place(self.book.keys[wrong[0]], start=", first in ") if wrong else ""
            raise ReconciliationError(
                f"{staged} records are staged, {written} were written{place}; nothing is published"
            )

    def _without_duplicates(
        self, tasks: Sequence[PublishTask], written: list[WrittenFile], deletions: Sequence[str], staged: int
    ) -> tuple[list[WrittenFile], int]:
        """Write files that hold duplicates of a primary key again without them; return the files, and rows dropped.

        :param deletions: companions of deletion records: rows with their keys are dropped, unless they are newer
        """
        companions = tuple(file.keys for file in written if file.keys is not None)
        if not companions:
            return written, 0
        buckets = max(1, staged // _KEYS_A_BUCKET)
        search = KeySearch(
            self.ledger.store, companions, 0, buckets, tuple(deletions), is_one_partition=len(self.book.slices) == 1
        )
        losers: dict[str, list[int]] = {}
        for duplicates in self.jobs.run(find_losers, [replace(search, bucket=bucket) for bucket in range(buckets)]):
            for companion, rows in duplicates.items():
                losers.setdefault(companion, []).extend(rows)
        if not losers:
            return written, 0
        hit = [(tasks[0], file, losers[file.keys]) for file in written if file.keys in losers]
        kept = [file for file in written if file.keys not in losers]
        again = [file for files in self.jobs.run(lambda item: drop_rows(*item), hit) for file in files]
        # Deleted only after the job, because a task that Spark runs again reads its file once more.
        self.ledger.store.delete(file.file.location for _, file, _ in hit)
        return [*kept, *again], sum(len(rows) for rows in losers.values())

    def _commit(
        self,
        header: LedgerHeader,
        target: FileTarget,
        written: Sequence[WrittenFile],
        rows: int,
        removed: int,
        state: SyncState | None,
    ) -> PublishOutcome:
        files = [file.file.describe(target.layout) for file in written]
        binding = Binding(self.target.name, self.stream.name, rows, sum(file.file.size for file in written))
        counts = {"duplicates-removed": removed, **self.left_out.counts}
        summary = commit_summary(self.ledger.id, header, self.config, binding, self.fetched, counts)

        def commit() -> PublishOutcome:
            if (earlier := self._reload(header)) is not None:
                return earlier
            where = self.config.options.replace_where
            if where is not None and self.target.state_digest != header.base_state:
                # A sync that was published since the opening of the part may have written newer versions of its rows,
                # which no later sync would read again.
                raise LedgerError(
                    f"{self.target.name} was synced, rolled back or replaced while the rows of {where} were read, which"
                    " may be older than the table's now; the next attempt reads them again. If that takes longer than"
                    " the time between two syncs, pause the syncs until it is done"
                )
            with naming(target.folder), self.target.side_files() as side:
                properties = dict(summary)
                if state is not None:
                    properties |= state_properties(state, side)
                elif self._replaces_all and self.target.has_state:
                    properties |= NO_STATE  # the table's state no longer applies
                publication = self.target.commit(
                    files,
                    (self.ledger.id, header.generation),
                    mode=self._options.mode,
                    replace_where=where,
                    summary=properties,
                    sent=self.sent.union(self.rules.constants),
                )
            target.collect(file.file for file in written)
            return outcome_of(publication, header)

        return commit_with_retries(commit)

    def _reload(self, header: LedgerHeader) -> PublishOutcome | None:
        """Load the target again before a try to commit; return the earlier publication of this generation.

        :raises FencedError: another attempt took over, or published
        """
        # An attempt that took over meanwhile may not have published yet, so the target alone can't show it.
        self.ledger.check_epoch()
        # The snapshot that was loaded before the files were written may have expired.
        self.target.reload()
        return published_already(self.target, self.ledger.id, header)

    def _cursor_of(self, rows: pa.Schema, deletes_alone: bool) -> CursorColumn | None:
        """Return the cursor column; None if the publish keeps no state, or if only deletions without it were read.

        :param deletes_alone: whether all records are deletions, which need no cursor value
        :raises ConfigurationError: the rows have no such column, or its type is no cursor's
        """
        column = None if self.sync is None else self.sync.read.column
        if column is None or (deletes_alone and column.name not in rows.names):
            return None
        try:
            if column.name not in rows.names:
                field = f"streams.{self.stream.name}.incremental.cursor_field"
                raise ConfigurationError(field, f"no record has {column.name!r}", suggestion(column.name, rows.names))
            comparable(pa.array([], rows.field(column.name).type), column)
        except ConfigurationError as error:
            self._give_up_state(error)
            return None
        return column

    def _give_up_state(self, error: RfrError) -> None:
        """Publish without a state, with a warning, in a full refresh of a stream that keeps a state of its own.

        :raises RfrError: ``error``, in all other cases
        """
        if self.config.sync == "incremental" or self.sync is None or not isinstance(self.sync.read, StatefulRead):
            raise error
        _log.warning("%s: an incremental sync would read everything again: %s", self.target.name, error)
        self.sync = None

    def _last_tokens(self) -> dict[int, Any]:
        """Return the token of each partition's last page, from which a stream may make its own state; else nothing."""
        is_stateful = self.sync is not None and isinstance(self.sync.read, StatefulRead)
        if not is_stateful or (table := self.ledger.read_pages()) is None:
            return {}
        cursors = cursors_of(table)
        return tokens_of_last_pages(live_pages(table, cursors), cursors)

    @property
    def _replaces_all(self) -> bool:
        """Tell whether the publish replaces all rows of the table."""
        return self._options.mode == "replace" and self._options.replace_where is None

    def _state_after_full(self, header: LedgerHeader, results: Sequence[PublishResult]) -> SyncState | None:
        """Return the table's state after all its rows are replaced; None without a state, or if other rows stay."""
        if self.sync is None or not self._replaces_all:
            return None
        changes = SyncChanges.of(results)
        if changes.without_key is not None and self.config.sync == "full":
            message = "%s: %s: %s is null, so no state is kept, and an incremental sync would read everything again"
            _log.warning(message, self.target.name, *changes.without_key)
            return None
        try:
            seen = changes.seen_in_full(self.target.name, header.records, self.config.sync)
            left = self.left_out.ordinals
            return self.sync.next_state(self.book.slices, seen, header.opened_at, self._last_tokens(), left)
        except RfrError as error:
            self._give_up_state(error)
            return None

    def _scratch(self, header: LedgerHeader) -> str:
        return f"{self.ledger.folder}/publish-{header.epoch}"
