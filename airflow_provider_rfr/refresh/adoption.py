"""Files that a killed writer left behind: which of them count.

A file counts if every file before it in its sequence is there, whole, and continues the committed pages. Of several
attempts of one task the longest such sequence is taken. A task that Spark runs again continues from its predecessor's
files in the same way.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from posixpath import basename

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import PAGE_COLUMNS, FileStore, select_columns
from airflow_provider_rfr.refresh.chains import seen_marks
from airflow_provider_rfr.refresh.work import (
    Cursor,
    FlushLabel,
    PageFile,
    PartitionProgress,
    RoundTask,
    TaskFigures,
    TaskResult,
)


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A whole file that no commit names.

    :ivar size: in bytes
    """

    location: str
    size: int
    metadata: pq.FileMetaData
    label: FlushLabel

    @property
    def name(self) -> str:
        """Return the file's name without the folder."""
        return basename(self.location)

    def read(self, store: FileStore) -> PageFile:
        """Read the rows of the file, without the records."""
        stored = StoredFile(self.location, self.size, self.metadata, {"generation": self.label.generation})
        return PageFile(stored, select_columns(store.read_table(self.location, PAGE_COLUMNS), PAGE_COLUMNS))


def left_files(store: FileStore, folder: str, committed: Iterable[str]) -> list[LeftFile]:
    """Find the whole files below ``folder`` that no commit names; leave out torn and foreign ones."""
    known = {basename(location) for location in committed}
    listed = [(location, size) for location, size in store.list(folder) if basename(location) not in known]
    with ThreadPoolExecutor(16) as pool:
        footers = list(pool.map(store.read_footer, (location for location, _ in listed)))
    files = []
    for (location, size), footer in zip(listed, footers, strict=True):
        if footer is not None and (label := FlushLabel.from_footer(footer[0])) is not None:
            files.append(LeftFile(location, size, footer[1], label))
    return files


def choose(
    store: FileStore, files: Sequence[LeftFile], cursors: dict[int, Cursor], committed: Iterable[str] = ()
) -> tuple[list[PageFile], dict[int, Cursor]]:
    """Return the files to adopt, in order, and where they leave each partition they touch."""
    adopted: list[PageFile] = []
    moved: dict[int, Cursor] = {}
    done: set[tuple[int, int, int]] = set()
    for path in _sequences(files, committed):
        task = (path[0].label.epoch, path[0].label.round, path[0].label.task)
        if task in done:
            continue
        before = len(adopted)
        for file in path:
            rows = file.read(store)
            joined = _join_rows(rows.pages, ChainMap(moved, cursors))
            if joined is None:
                # The rest of the sequence builds on this file, so it does not count either.
                break
            adopted.append(rows)
            moved.update(joined)
        if len(adopted) > before:
            done.add(task)
    return adopted, moved


def _sequences(files: Sequence[LeftFile], committed: Iterable[str]) -> list[list[LeftFile]]:
    """Return every gapless sequence, by task; of one task the longest comes first."""
    following: dict[str | None, list[LeftFile]] = defaultdict(list)
    for file in files:
        following[file.label.previous].append(file)
    # A task attempt that adopted its predecessor's files continues behind one of them, which may be committed by now.
    roots = (None, *{basename(location) for location in committed})
    stack = [[file] for root in roots for file in following.get(root, ())][::-1]
    found = []
    while stack:
        path = stack.pop()
        last = path[-1]
        nexts = [file for file in following.get(last.name, ()) if file.label.sequence == last.label.sequence + 1]
        if not nexts:
            found.append(path)
        stack.extend([*path, file] for file in nexts)
    return sorted(found, key=lambda path: (path[0].label.epoch, path[0].label.round, path[0].label.task, -len(path)))


def _join_rows(table: pa.Table, cursors: Mapping[int, Cursor]) -> dict[int, Cursor] | None:
    """Return the cursors behind the rows of one file; None if a row does not continue its partition."""
    moved: dict[int, Cursor] = {}
    for row in table.to_pylist():
        ordinal, chain, page, token = row["partition_ordinal"], row["chain"], row["page"], row["token_in"]
        cursor = moved.get(ordinal) or cursors.get(ordinal)
        if cursor is None:
            return None
        is_restart = chain > cursor.chain and page == 1 and token is None
        is_next = chain == cursor.chain and page == cursor.pages + 1 and token == cursor.token
        if not is_restart and (cursor.complete or not is_next):
            return None
        records = row["record_count"] + (0 if is_restart else cursor.records)
        moved[ordinal] = Cursor(chain, page, row["token_out"], bool(row["complete"]), records)
    return moved


def adopt_predecessor(task: RoundTask) -> tuple[RoundTask, TaskResult]:
    """Take over the files of earlier attempts at this very task.

    Returns the task that is left to do, and the result that those files amount to; empty for a first attempt.
    """
    own = task.label
    if own.attempt == 0:
        return task, TaskResult()
    # Nothing of a round is committed while its tasks run. Only files of earlier attempts count: with speculative
    # execution a copy of this task may be writing at the same moment.
    files = [
        file
        for file in left_files(task.store, task.folder, ())
        if (file.label.epoch, file.label.round, file.label.task) == (own.epoch, own.round, own.task)
        and file.label.attempt < own.attempt
    ]
    works = {work.ordinal: work for work in task.partitions}
    adopted, moved = choose(task.store, files, {ordinal: work.cursor for ordinal, work in works.items()})
    if not adopted:
        return task, TaskResult()
    rows = [row for file in adopted for row in file.pages.to_pylist()]
    progress = []
    for ordinal, cursor in moved.items():
        work = works[ordinal]
        restarts = cursor.chain - work.cursor.chain
        on_chain = [row for row in rows if row["partition_ordinal"] == ordinal and row["chain"] == cursor.chain]
        seen = (b"" if restarts else work.seen) + seen_marks(on_chain)
        # Without an overlap check: no page of a chain is requested before its check is done, so the predecessor has
        # done it.
        work = replace(work, cursor=cursor, seen=seen, restarts=work.restarts + restarts, overlap=None, asked=False)
        works[ordinal] = work
        progress.append(PartitionProgress(ordinal, cursor, seen, work.restarts, checked=True))
    last = next(file for file in files if file.location == adopted[-1].location)
    # The first own file names the last adopted one, so that after a kill of the driver the sequence has no gap.
    label = replace(own, sequence=last.label.sequence + 1, previous=last.name)
    left = tuple(work for work in works.values() if not work.cursor.complete)
    figures = TaskFigures(pages=len(rows), records=sum(row["record_count"] for row in rows))
    return replace(task, label=label, partitions=left), TaskResult(tuple(adopted), tuple(progress), figures)
