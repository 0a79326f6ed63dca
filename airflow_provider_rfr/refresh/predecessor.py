"""A task that Spark runs again goes on from the files that its predecessor flushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_rfr.refresh.adoption import Cursor, choose, left_files
from airflow_provider_rfr.refresh.flush import FlushLabel
from airflow_provider_rfr.refresh.marks import marks_of_rows
from airflow_provider_rfr.refresh.work import (
    PartitionProgress,
    PartitionWork,
    RoundTask,
    TaskFigures,
)


@dataclass(frozen=True, slots=True)
class Predecessor:
    """What a task begins with.

    :ivar partitions: still open, moved on to where the files end
    :ivar adopted: progress that the files alone made
    """

    label: FlushLabel
    partitions: tuple[PartitionWork, ...]
    files: tuple[str, ...] = ()
    adopted: dict[int, PartitionProgress] = field(default_factory=dict)
    figures: TaskFigures = TaskFigures()

    def merged(self, progress: Sequence[PartitionProgress]) -> tuple[PartitionProgress, ...]:
        """The adopted progress with the task's own on top."""
        return tuple({**self.adopted, **{item.ordinal: item for item in progress}}.values())


def adopt_predecessor(task: RoundTask) -> Predecessor:
    """Find and take over the files of earlier attempts at this very task; nothing for a first attempt."""
    if task.label.attempt == 0:
        return Predecessor(task.label, task.partitions)
    files = [file for file in left_files(task.store, task.folder, ()) if _precedes(file.label, task.label)]
    cursors = {
        work.ordinal: Cursor(work.chain, work.pages, work.token, False, work.records) for work in task.partitions
    }
    adopted, moved, tables = choose(task.store, files, cursors)
    if not adopted:
        return Predecessor(task.label, task.partitions)
    rows = [row for table in tables for row in table.to_pylist()]
    works = {work.ordinal: work for work in task.partitions}
    progress = {ordinal: _progress(works[ordinal], cursor, rows) for ordinal, cursor in moved.items()}
    return Predecessor(
        label=replace(task.label, sequence=adopted[-1].label.sequence + 1, previous=adopted[-1].name),
        partitions=tuple(_moved(work, progress.get(work.ordinal)) for work in task.partitions if _open(work, progress)),
        files=tuple(file.name for file in adopted),
        adopted=progress,
        figures=TaskFigures(pages=len(rows), records=sum(row["record_count"] for row in rows)),
    )


def _precedes(label: FlushLabel, own: FlushLabel) -> bool:
    same = (label.epoch, label.round, label.task) == (own.epoch, own.round, own.task)
    return same and label.attempt < own.attempt


def _progress(work: PartitionWork, cursor: Cursor, rows: Sequence[dict[str, Any]]) -> PartitionProgress:
    own = [row for row in rows if row["partition_ordinal"] == work.ordinal and row["chain"] == cursor.chain]
    before = work.seen if cursor.chain == work.chain else b""
    return PartitionProgress(
        ordinal=work.ordinal,
        chain=cursor.chain,
        pages=cursor.pages,
        token=cursor.token,
        complete=cursor.complete,
        records=cursor.records,
        seen=before + marks_of_rows(own),
        restarts=work.restarts + (cursor.chain - work.chain),
        checked=True,
    )


def _open(work: PartitionWork, progress: dict[int, PartitionProgress]) -> bool:
    return work.ordinal not in progress or not progress[work.ordinal].complete


def _moved(work: PartitionWork, progress: PartitionProgress | None) -> PartitionWork:
    if progress is None:
        return work
    return replace(
        work,
        chain=progress.chain,
        pages=progress.pages,
        token=progress.token,
        records=progress.records,
        seen=progress.seen,
        restarts=progress.restarts,
        overlap=None,
        asked=False,
    )
