"""The publish of an incremental sync: the rows that were read are merged into the table, or appended to it.

Rows and state are one commit. If neither changes, nothing is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Final

from airflow_provider_rfr.exceptions import (
    LedgerError,
    PublishRefusedError,
    ReconciliationError,
    SchemaEvolutionError,
)
from airflow_provider_rfr.lake.commit_event import EVENT_KEY, Binding
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.files import naming
from airflow_provider_rfr.lake.inference import InferredSchema
from airflow_provider_rfr.lake.row_changes import RowChanges
from airflow_provider_rfr.lake.schemas import full_names, is_system_column
from airflow_provider_rfr.lake.sync_state import SyncState, state_properties
from airflow_provider_rfr.lake.target import SCHEMA_CHANGES_KEY, UPSTREAM_KEY, discarding
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.merge import Merge, MergeLimits, MergePlan
from airflow_provider_rfr.refresh.merge_task import ChangeBatch, IndexedFile, KeyRules
from airflow_provider_rfr.refresh.page_rows import SeenColumns, key_columns
from airflow_provider_rfr.refresh.publish import Publisher, PublishOutcome, commit_summary, commit_with_retries
from airflow_provider_rfr.refresh.publish_task import (
    LedgerFiles,
    PublishResult,
    PublishTask,
    WrittenFile,
    drop_rows,
)
from airflow_provider_rfr.refresh.state import PREFIX, LedgerHeader
from airflow_provider_rfr.refresh.sync import SyncChanges
from airflow_provider_rfr.streams.core import key_paths

_log = logging.getLogger(__name__)
_MOVED: Final = "moved-"
"""Label in the names of rewritten files, whose rows the table had before."""


class ChangesPublisher(Publisher):
    """A publisher of the records that changed since the last sync, or of those of a window."""

    @property
    def _options(self) -> RefreshOptions:
        return self.config.options

    def _check_staged_rows(self, header: LedgerHeader, staged: int) -> None:
        """Allow any number of rows: few records change, or none."""

    def _prepare(self, header: LedgerHeader, seen: SeenColumns, has_rows: bool) -> FileTarget:
        typed = self.rules.typed_names()
        for path in key_paths(self.stream.primary_key) if self._options.mode == "merge" else ():
            if path[0] in typed:
                # Every value is read as the type that the stream declares, so equal keys stay equal.
                continue
            schema = seen.schema
            for name in path:
                schema = schema.fields.get(name, InferredSchema())
            if len(schema.kinds) > 1:
                place = "columns" if len(path) == 1 else "json_schema"
                raise PublishRefusedError(
                    f"{self.target.name}: the key {'.'.join(path)} has values of several types"
                    f" ({', '.join(sorted(schema.kinds))}), so 1 and '1' would be one row; give it a type in {place} of"
                    " the stream; nothing was published"
                )
        return super()._prepare(header, seen, has_rows)

    def _shares(self, files: Mapping[str, int]) -> list[LedgerFiles]:
        # At least one share, because the merge needs a task: a sync that had nothing to ask for has no pages.
        return super()._shares(files) or [LedgerFiles(self.ledger.store, (), {})]

    def _write_and_commit(self, header: LedgerHeader, staged: int) -> PublishOutcome:
        tasks, target = self._plan(header, staged)
        with discarding(target):
            results = self._typed(tasks, target, staged)
            changes = SyncChanges.of(results)
            changes.check(self.target.name, staged)
            self.ledger.check_epoch()
        try:
            return self._merge_and_commit(header, target, tasks[0], changes, results)
        except (LedgerError, SchemaEvolutionError):
            # These errors are raised before a commit is tried. After any other error, the table may name the files.
            target.discard()
            raise
        finally:
            self.ledger.store.tidy_folder(self._scratch(header))

    def _index_of(self, target: FileTarget) -> KeyRules:
        """Return the columns by which rows of the batch are matched with rows of the table."""
        assert self.sync is not None
        column = self.sync.read.column
        # The table lacks it if there were only deletions so far.
        cursor = column if column.name in target.layout.arrow.names else None
        key = key_columns(self.stream.primary_key, target.rows, self.rules.infers)
        if self._options.mode == "merge":
            end = None if self._window is None else self._window[1]
            return KeyRules(key, cursor, key, end, is_one_partition=len(self.book.slices) == 1)
        # An append leaves out rows that the table has: those with the same key and cursor value. Without a key, those
        # that are equal in all columns, also in columns that this batch lacks.
        names = key or tuple((name,) for name in target.layout.arrow.names if not is_system_column(name))
        version = () if cursor is None else ((cursor.name,),)
        return KeyRules(tuple(dict.fromkeys((*names, *version))), None, key)

    def _merge_and_commit(
        self,
        header: LedgerHeader,
        target: FileTarget,
        task: PublishTask,
        changes: SyncChanges,
        results: Sequence[PublishResult],
    ) -> PublishOutcome:
        """Merge the rows into the table in one commit; make no commit if neither rows nor state change."""
        sync = self.sync
        assert sync is not None
        before, state = None if sync.window is not None else sync.state, None
        written = {file.file.location: file for result in results for file in result.written}
        with discarding(target):
            if before is not None:
                tokens, left = self._last_tokens(), self.left_out.ordinals
                state = sync.next_state(self.book.slices, changes.seen, header.opened_at, tokens, left)
            merge = self._merge_of(task, target, written, results)

        def commit() -> PublishOutcome:
            with discarding(target):
                if (earlier := self._reload(header)) is not None:
                    return earlier
                current = None if before is None else self.target.sync_state()
                if before is not None and (current is None or current.digest != before.digest):
                    raise LedgerError(
                        f"the state of {self.target.name} changed after this sync was opened, by a rollback or by"
                        " another writer; the next attempt reads what it then lacks"
                    )
                plan = merge.plan(self.target.reader(), self.target.live_files())
            plan = replace(plan, counts=replace(plan.counts, outside=changes.outside))
            if not plan.counts.changes_rows and (state is None or not sync.moves_state(state)):
                target.discard()
                return self._outcome(self.target.snapshot_id, plan)
            return self._commit_merge(header, target, plan, state)

        return commit_with_retries(commit)

    def _merge_of(
        self,
        task: PublishTask,
        target: FileTarget,
        written: Mapping[str, WrittenFile],
        results: Sequence[PublishResult],
    ) -> Merge:
        parts = [IndexedFile(str(file.keys), location) for location, file in written.items()]
        parts += [IndexedFile(location, None) for result in results for location in result.changes.deletions]

        def without(dropped: Sequence[tuple[str, Sequence[int]]]) -> list[StoredFile]:
            hit = [(replace(task, index=None, key_columns=()), written[location], rows) for location, rows in dropped]
            again = self.jobs.run(lambda item: drop_rows(*item), hit)
            return [file.file for files in again for file in files]

        options = self._options
        limits = MergeLimits(options.mode == "append", options.max_rewrite_bytes, options.max_deleted)
        files = {location: file.file for location, file in written.items()}
        rules = task.index or KeyRules((), None, ())
        store = self.ledger.store
        batch = ChangeBatch.load(store, task.scratch, parts, rules)
        rewrites = replace(target, label=f"{target.label}{_MOVED}")
        sent = frozenset(path for column in target.rows for path in full_names(column.name, column.type))
        if self.rules.infers:
            # A field that is null in all records makes no inferred column, but it was sent. With declared columns,
            # fields that the schema drops do not count.
            sent |= self.sent
        return Merge(self.jobs, store, batch, rules, rewrites, limits, sent, files, without)

    def _commit_merge(
        self, header: LedgerHeader, target: FileTarget, plan: MergePlan, state: SyncState | None
    ) -> PublishOutcome:
        counts = asdict(plan.counts)
        rows = plan.counts.inserted + plan.counts.updated
        binding = Binding(self.target.name, self.stream.name, rows, sum(file.size for file in plan.new))
        more = {**self.left_out.counts, "doubled-keys": plan.doubled}
        more |= {name.replace("_", "-"): count for name, count in counts.items()}
        summary = commit_summary(self.ledger.id, header, self.config, binding, self.fetched, more)
        if not plan.counts.changes_rows:
            # Only the state changes, so there are no rows to call webhooks for.
            del summary[EVENT_KEY]
        if header.fixed_window is not None:
            summary[f"{PREFIX}window"] = header.fixed_window
            if self.sync is not None and (upstream := self.sync.rules.get("upstream")) is not None:
                summary[UPSTREAM_KEY] = upstream
        if plan.doubled:
            _log.warning("%s: %s rows had a key that another row has, too", self.target.name, plan.doubled)
        new = [file.describe(target.layout) for file in plan.new]
        changes = None
        if plan.old:
            # By these, readers of increments tell new rows from moved ones. Without replaced files the commit is a
            # plain append, in which every row is new.
            schema, paths = target.layout.schema, key_paths(self.stream.primary_key)
            keys = tuple(schema.find_field(".".join(path)).field_id for path in paths)
            changes = RowChanges(f"{target.family}{target.label}{_MOVED}", keys, rows, plan.deleted.num_rows)
            written = sum(file.rows for file in plan.new if not changes.has_moved(file.location))
            if written != rows:
                raise ReconciliationError(
                    f"{self.target.name}: {rows} rows are new versions, and the files for them have {written}; nothing"
                    " is published"
                )
        with naming(target.folder), self.target.side_files() as side:
            if state is not None:
                summary |= state_properties(state, side)
            if changes is not None:
                summary |= changes.properties(plan.deleted, side)
            publication = self.target.merge(plan.old, new, (self.ledger.id, header.generation), summary)
        target.collect(plan.new)
        return self._outcome(publication.snapshot_id, plan, publication.summary.get(SCHEMA_CHANGES_KEY))

    def _outcome(self, snapshot_id: int | None, plan: MergePlan, schema_changes: str | None = None) -> PublishOutcome:
        return PublishOutcome(
            snapshot_id,
            plan.rows,
            pages_skipped=self.left_out.skipped,
            records_missing=self.left_out.missing,
            schema_changes=schema_changes,
            changes=asdict(plan.counts),
        )
