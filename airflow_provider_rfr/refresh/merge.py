"""The merge of a batch into a table. It decides which rows are new, replaced, unchanged or stale, and plans a commit.

The plan is made for the snapshot that was loaded. If another commit comes first, the table is loaded again, and only
files that are new, or that have other delete files, are searched. Files that were already written are used again if the
new plan still needs them.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import PublishRefusedError, ReconciliationError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.table_reader import TableReader, bounds_of
from airflow_provider_rfr.refresh.cluster import Cluster, DriverJobs, equal_shares
from airflow_provider_rfr.refresh.merge_task import (
    Bounds,
    ChangeBatch,
    Hits,
    KeyRules,
    Replaced,
    RewriteTask,
    Rewritten,
    SearchTask,
    find_hits,
    rewrite,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask

_log = logging.getLogger(__name__)

_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Content = tuple[str, ...]
"""Identity of a data file's live rows: its location, and those of its delete files."""

_SMALL_BYTES: Final = 8 * 1024 * 1024
_MANY_SMALL_FILES: Final = 32
_FOLDED_BYTES: Final = 64 * 1024 * 1024
"""Limit of the bytes of small files that one merge compacts."""
_LARGE_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """The records of a batch, by their outcome; their sum is the number of records that were read.

    :ivar inserted: rows with a key that the table lacked
    :ivar updated: rows that replaced a row with the same key
    :ivar unchanged: records that equal the row of the table
    :ivar stale: records older than the row of the table
    :ivar deleted: records that removed a row
    :ivar unknown_deletions: deletions of a key that the table lacked
    :ivar older_versions: records of which the batch has a newer version
    :ivar outside: records outside of the window that was asked for
    """

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    stale: int = 0
    deleted: int = 0
    unknown_deletions: int = 0
    older_versions: int = 0
    outside: int = 0

    @property
    def read(self) -> int:
        """Return the number of the batch's records."""
        found = self.inserted + self.updated + self.unchanged + self.stale
        return found + self.deleted + self.unknown_deletions + self.older_versions + self.outside

    @property
    def changes_rows(self) -> bool:
        """Tell whether the table's rows change."""
        return bool(self.inserted or self.updated or self.deleted)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """The limits of a merge.

    :ivar appends: whether rows are only added: records that the table already has are left out, and no row is replaced
    :ivar max_rewrite_bytes: bytes of the table's files that may be rewritten; None for any
    :ivar max_deleted: share of the table's rows that records may remove
    """

    appends: bool = False
    max_rewrite_bytes: int | None = None
    max_deleted: float = 0.2


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The planned commit: its files, and the counts of rows.

    :ivar old: files of the table that are replaced
    :ivar new: files that replace them, and files with new rows
    :ivar rows: number of rows in the table after the commit
    :ivar deleted: keys of the rows that the commit deletes, with a column for each path of the key
    :ivar doubled: surplus rows that the commit removes, because the table had several rows with the same key
    """

    old: tuple[DataFile, ...]
    new: tuple[StoredFile, ...]
    counts: MergeCounts
    rows: int
    deleted: pa.Table
    doubled: int = 0


@dataclass(slots=True)
class _Verdict:
    """The verdict on each winner, the newest row of its key in the batch; arrays are in the order of the winners.

    :ivar hits: number of the table's rows with the key
    :ivar is_stale: whether one of these is newer
    :ivar is_deletion: whether the winner deletes rows
    :ivar is_unchanged: whether the winner equals the table's row
    """

    hits: _Numbers
    is_stale: _Mask
    is_deletion: _Mask
    is_unchanged: _Mask

    @property
    def replaces(self) -> _Mask:
        return (self.hits > 0) & ~self.is_stale


@dataclass(slots=True)
class Merge:
    """A merge of one batch.

    :ivar jobs: runner of the tasks
    :ivar store: store of the batch's files
    :ivar sent: paths of the columns that the batch has, with or without a value
    :ivar files: data files of the batch, by location
    :ivar without: rewrites data files of the batch without some of their rows, and returns the new files; called with
        pairs of a location and the places of these rows
    """

    jobs: Cluster | DriverJobs
    store: FileStore
    batch: ChangeBatch
    rules: KeyRules
    target: FileTarget
    limits: MergeLimits
    sent: frozenset[str]
    files: Mapping[str, StoredFile]
    without: Callable[[Sequence[tuple[str, Sequence[int]]]], list[StoredFile]]
    _hits: dict[_Content, Hits] = field(default_factory=dict)
    _rewritten: dict[tuple[_Content, ...], tuple[bytes, Rewritten]] = field(default_factory=dict)
    _new_rows: tuple[bytes, list[StoredFile]] | None = None
    _fold: tuple[_Content, ...] | None = None

    def plan(self, reader: TableReader, live: Sequence[FileScanTask]) -> MergePlan:
        """Plan the commit on a table with these files.

        :raises PublishRefusedError: the merge would do more than its limits allow
        :raises ReconciliationError: counts differ
        """
        self._search(reader, live)
        before = sum(self._hits[_content(task)].total for task in live)
        verdict = self._judge(live)
        rewritten = self._rewrite(reader, live, verdict)
        counts = self._counts(verdict)
        if counts.deleted > self.limits.max_deleted * before:
            raise PublishRefusedError(
                f"{counts.deleted} of {before} rows would be deleted, and max_deleted allows"
                f" {self.limits.max_deleted:.0%}; nothing was published and readers keep the old table; if the source"
                " is right, set max_deleted to a greater share and run again: nothing is fetched again"
            )
        new_rows = self._write_new_rows(verdict)
        old = [file for files, result in rewritten for file, kept in zip(files, result.kept, strict=True) if not kept]
        new = [file for _, result in rewritten for file in result.written]
        removed = sum(result.removed for _, result in rewritten)
        added = sum(file.rows for file in new_rows)
        keys = [table for _, result in rewritten for table in result.deleted]
        deleted = pa.concat_tables(keys) if keys else pa.table({})
        if keys:
            # Distinct ones, because the table may have several rows with the same key.
            deleted = deleted.group_by(deleted.column_names, use_threads=False).aggregate([])
        plan = MergePlan(
            tuple(task.file for task in old),
            (*new, *new_rows),
            counts,
            before - removed + added,
            deleted,
            int((verdict.hits[verdict.replaces & ~verdict.is_unchanged] - 1).clip(0).sum()),
        )
        self._check(plan, before, removed, added)
        return plan

    def _search(self, reader: TableReader, live: Sequence[FileScanTask]) -> None:
        """Find the rows with keys of the batch in the files that were not searched yet."""
        fresh = [task for task in live if _content(task) not in self._hits]
        # A file with delete files is always read, because its remaining rows have to be counted.
        wanted = [task for task in fresh if task.delete_files]
        if self.batch.key_files:
            schema = reader.columns()
            columns = [
                (schema.find_field(".".join(path)).field_id, bounds)
                for path, bounds in zip(self.rules.paths, self.batch.bounds, strict=True)
                if bounds is not None
            ]
            wanted = [
                task
                for task in fresh
                if task.delete_files
                or all(_overlaps(bounds, bounds_of(task.file, schema, field_id)) for field_id, bounds in columns)
            ]
        shares = equal_shares(wanted, self.jobs.cores, lambda task: task.file.file_size_in_bytes)
        tasks = [SearchTask(reader, self.store, self.batch.key_files, self.rules, tuple(share)) for share in shares]
        for task, found in zip(tasks, self.jobs.run(find_hits, tasks), strict=True):
            self._hits.update({_content(file): hits for file, hits in zip(task.files, found, strict=True)})
        for file in fresh:
            self._hits.setdefault(_content(file), Hits.none(file.file.record_count))

    def _judge(self, live: Sequence[FileScanTask]) -> _Verdict:
        """Compare the winners with the table's rows that have their keys."""
        winners = self.batch.winners
        count = winners.num_rows
        hits, stale = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
        for task in live:
            found = self._hits[_content(task)]
            np.add.at(hits, found.winners, 1)
            np.logical_or.at(stale, found.winners, found.is_newer)
        deleted = winners["deleted"].to_numpy().astype(bool)
        unchanged = np.zeros(count, dtype=bool)
        if self.limits.appends:
            unchanged, stale = hits > 0, np.zeros(count, dtype=bool)
        return _Verdict(hits, stale, deleted, unchanged)

    def _rewrite(
        self, reader: TableReader, live: Sequence[FileScanTask], verdict: _Verdict
    ) -> list[tuple[tuple[FileScanTask, ...], Rewritten]]:
        """Rewrite the files that hold replaced rows; record in the verdict which rows are unchanged."""
        replaced = {} if self.limits.appends else self._replaced(live, verdict)
        hit = [rows.file for rows, _ in replaced.values()]
        self._check_bytes(hit, live)
        shares = [[task] for task in hit if task.file.file_size_in_bytes >= _SMALL_BYTES]
        # Small files of one partition are written together, as fewer files.
        for small in _small_files(hit):
            shares += equal_shares(small, 1, lambda task: task.file.file_size_in_bytes)
        groups = [[replaced[task.file.file_path][0] for task in share] for share in shares]
        nothing: _Numbers = np.zeros(0, dtype=np.int64)
        groups += [
            [Replaced(task, nothing, nothing.astype(bool), nothing, nothing) for task in share]
            for share in self._files_to_compact(live, replaced, verdict)
        ]
        outcomes = self._run(reader, groups)
        for group, result in outcomes:
            for rows, stays in zip(group, result.stays, strict=True):
                if rows.file.file.file_path in replaced:
                    verdict.is_unchanged[replaced[rows.file.file.file_path][1][stays]] = True
        return [(tuple(rows.file for rows in group), result) for group, result in outcomes]

    def _replaced(self, live: Sequence[FileScanTask], verdict: _Verdict) -> dict[str, tuple[Replaced, _Numbers]]:
        """Return the rows that the batch may replace, with the places of their winners, by file."""
        replaces, winners = verdict.replaces, self.batch.winners
        compares = replaces & ~verdict.is_deletion & (verdict.hits == 1)
        parts, places = winners["part"].to_numpy(), winners["row"].to_numpy()
        replaced = {}
        for task in live:
            hits = self._hits[_content(task)]
            chosen = replaces[hits.winners]
            if chosen.any():
                mine = hits.winners[chosen]
                rows = Replaced(task, hits.rows[chosen], compares[mine], parts[mine], places[mine])
                replaced[task.file.file_path] = (rows, mine)
        return replaced

    def _run(
        self, reader: TableReader, groups: Sequence[Sequence[Replaced]]
    ) -> list[tuple[Sequence[Replaced], Rewritten]]:
        """Rewrite each group of files, unless an earlier try rewrote it in the same form; return all results."""
        digests = [
            _digest(numbers for rows in group for numbers in (rows.rows, rows.compares, rows.parts, rows.places))
            for group in groups
        ]
        names = [tuple(_content(rows.file) for rows in group) for group in groups]
        wanted = [
            number
            for number, (name, digest) in enumerate(zip(names, digests, strict=True))
            if name not in self._rewritten or self._rewritten[name][0] != digest
        ]
        keys = self.rules.paths
        tasks = [
            RewriteTask(reader, self.batch.parts, self.target, tuple(groups[number]), keys, self.sent)
            for number in wanted
        ]
        for number, result in zip(wanted, self.jobs.run(rewrite, tasks), strict=True):
            self._rewritten[names[number]] = digests[number], result
        return [(group, self._rewritten[name][1]) for group, name in zip(groups, names, strict=True)]

    def _files_to_compact(
        self, live: Sequence[FileScanTask], replaced: Mapping[str, Any], verdict: _Verdict
    ) -> list[list[FileScanTask]]:
        """Return a group of small files to compact, so that a sync each hour does not leave thousands of files.

        Return none unless rows are inserted: only then a commit is certain, and it adds one more small file.
        """
        if not ((verdict.hits == 0) & ~verdict.is_deletion).any():
            return []
        free = {_content(task): task for task in live if task.file.file_path not in replaced}
        if self._fold is None:
            # Of the partition that has most small files; none if it has few.
            small = max(_small_files(free.values()), key=len, default=[])
            sizes = np.cumsum([task.file.file_size_in_bytes for task in small])
            count = int(np.searchsorted(sizes, _FOLDED_BYTES, side="right"))
            self._fold = tuple(map(_content, small[:count])) if len(small) > _MANY_SMALL_FILES else ()
        # The same files at each try, whose rewrite is used again: a retry must be fast, to win against busy writers.
        group = [free[content] for content in self._fold if content in free]
        return [group] if group and len(group) == len(self._fold) else []

    def _write_new_rows(self, verdict: _Verdict) -> list[StoredFile]:
        """Return data files with exactly those rows of the batch that the commit adds to the table."""
        leaves, dropped = verdict.is_stale | verdict.is_unchanged, self.batch.losers
        if self.rules.is_whole_row:
            # Equal rows of a stream without a key are different rows: the table gets all of them or none.
            dropped = dropped.filter(pa.array(leaves[dropped["winner"].to_numpy()]))
        names = self.batch.winners.column_names
        dropped = pa.concat_tables([dropped.select(names), self.batch.winners.filter(pa.array(leaves))])
        dropped = dropped.filter(pc.invert(dropped["deleted"]))
        parts, rows = dropped["part"].to_numpy(), dropped["row"].to_numpy()
        digest = _digest([parts, rows])
        if self._new_rows is None or self._new_rows[0] != digest:
            hit: dict[int, Any] = {int(number): rows[parts == number] for number in np.unique(parts)}
            files = [part.file for part in self.batch.parts]
            stay = [self.files[file] for number, file in enumerate(files) if file is not None and number not in hit]
            again = self.without([(str(files[number]), places) for number, places in hit.items()])
            self._new_rows = digest, [*stay, *again]
        return self._new_rows[1]

    def _counts(self, verdict: _Verdict) -> MergeCounts:
        deletion, hit, replaces = verdict.is_deletion, verdict.hits > 0, verdict.replaces
        older, of_rows = self.batch.losers.num_rows, np.zeros(0, dtype=bool)
        if self.rules.is_whole_row:
            older, of_rows = 0, hit[self.batch.losers["winner"].to_numpy()]
        return MergeCounts(
            inserted=int((~hit & ~deletion).sum() + (~of_rows).sum()),
            updated=int((replaces & ~deletion & ~verdict.is_unchanged).sum()),
            unchanged=int((verdict.is_unchanged & ~deletion).sum() + of_rows.sum()),
            stale=int(verdict.is_stale.sum()),
            deleted=int((replaces & deletion).sum()),
            unknown_deletions=int((~hit & deletion).sum()),
            older_versions=older,
        )

    def _check(self, plan: MergePlan, before: int, removed: int, added: int) -> None:
        """Compare the counts of records with those of rows.

        :raises ReconciliationError: they differ
        """
        counts, staged = plan.counts, self.batch.records
        expected = before + counts.inserted - counts.deleted - plan.doubled
        if (
            counts.read != staged
            or added != counts.inserted + counts.updated
            or removed != counts.updated + counts.deleted + plan.doubled
            or plan.rows != expected
            or plan.deleted.num_rows != counts.deleted
        ):
            raise ReconciliationError(
                f"{staged} records are staged and {counts.read} are accounted for ({counts}); {added} rows were"
                f" written, {removed} removed, and {before} would become {plan.rows}; nothing is published"
            )

    def _check_bytes(self, hit: Sequence[FileScanTask], live: Sequence[FileScanTask]) -> None:
        size = sum(task.file.file_size_in_bytes for task in hit)
        whole = sum(task.file.file_size_in_bytes for task in live)
        most = self.limits.max_rewrite_bytes
        advice = "partition or sort the table by a column that recent records share, or use a full refresh"
        if most is not None and size > most:
            raise PublishRefusedError(
                f"the changed keys are in {len(hit)} files of {size:,} bytes, which would have to be written again, and"
                f" max_rewrite_bytes is {most:,}; {advice}, or set a greater number and run again: nothing is fetched"
                " again"
            )
        if size > _LARGE_SHARE * whole and len(hit) > 1:
            _log.warning(
                "the changed keys are in %s of %s files, %s of %s bytes, which are written again; if that is so at each"
                " sync, %s",
                *(len(hit), len(live), f"{size:,}", f"{whole:,}", advice),
            )


def _small_files(files: Iterable[FileScanTask]) -> list[list[FileScanTask]]:
    """Return the small files, in a group for each partition: files of several partitions can't become one."""
    partitions: dict[Any, list[FileScanTask]] = {}
    for task in files:
        if task.file.file_size_in_bytes < _SMALL_BYTES:
            partitions.setdefault((task.file.spec_id, str(task.file.partition)), []).append(task)
    return list(partitions.values())


def _content(task: FileScanTask) -> _Content:
    """Return the identity of a file's live rows: it differs for every other file, and for other delete files."""
    return (task.file.file_path, *sorted(file.file_path for file in task.delete_files))


def _digest(arrays: Iterable[_Numbers | _Mask]) -> bytes:
    digest = hashlib.blake2b()
    for numbers in arrays:
        digest.update(len(numbers).to_bytes(8, "big") + numbers.tobytes())
    return digest.digest()


def _overlaps(bounds: Bounds, span: tuple[Any, Any] | None) -> bool:
    """Tell whether any of the ascending ranges and a file's range, which may be unknown, have a value in common."""
    if span is None:
        return True
    try:
        place = bisect.bisect_left(bounds, span[0], key=lambda bound: bound[1])
        return place < len(bounds) and bool(bounds[place][0] <= span[1])
    except TypeError:
        return True  # bounds of another type than the keys exclude nothing
