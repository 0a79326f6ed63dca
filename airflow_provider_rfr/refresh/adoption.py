"""Files that a killed writer left behind: which of them count.

A file counts if every file before it in its sequence is there, whole, and continues the committed pages. Of several
attempts of one task the longest such sequence is taken. A task that Spark runs again continues from its predecessor's
files in the same way.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.chains import marks_of_rows
from airflow_provider_rfr.refresh.flush import FlushLabel
from airflow_provider_rfr.refresh.messages import PartitionProgress, PartitionWork, RoundTask, TaskFigures

CURSOR_COLUMNS = (
    "partition_ordinal",
    "chain",
    "page",
    "token_in",
    "token_out",
    "complete",
    "record_count",
    "checksum",
)


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A whole file that no commit names."""

    location: str
    label: FlushLabel

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return self.location.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where one partition's chain stands."""

    chain: int = 0
    pages: int = 0
    token: str | None = None
    complete: bool = False
    records: int = 0


def left_files(store: FileStore, folder: str, committed: Iterable[str]) -> list[LeftFile]:
    """Whole files below ``folder`` that no commit names; torn and foreign ones are passed over."""
    known = {location.rpartition("/")[2] for location in committed}
    names = [location for location, _ in store.list(folder) if location.rpartition("/")[2] not in known]
    with ThreadPoolExecutor(16) as pool:
        labels = pool.map(lambda location: _label(store, location), names)
        return [LeftFile(name, label) for name, label in zip(names, labels, strict=True) if label is not None]


def _sequences(files: Sequence[LeftFile], committed: Iterable[str] = ()) -> list[list[LeftFile]]:
    """For each task the candidates, longest first flattened: every gapless sequence, as a list of its files.

    A sequence may begin on a committed file: a task attempt that adopted its predecessor's files goes on from them.
    """
    roots = {name.rpartition("/")[2] for name in committed}
    following: dict[str | None, list[LeftFile]] = defaultdict(list)
    for file in files:
        following[file.label.previous].append(file)
    starts = [*following[None]]
    starts += [file for name in roots for file in following.get(name, ())]
    found = [path for start in starts for path in _paths(start, following)]
    return sorted(found, key=lambda path: (path[0].label.epoch, path[0].label.round, path[0].label.task, -len(path)))


def _paths(start: LeftFile, following: Mapping[str | None, list[LeftFile]]) -> Iterable[list[LeftFile]]:
    stack = [[start]]
    while stack:
        path = stack.pop()
        nexts = [
            file for file in following.get(path[-1].name, ()) if file.label.sequence == path[-1].label.sequence + 1
        ]
        if not nexts:
            yield path
        stack.extend([*path, file] for file in nexts)


def choose(
    store: FileStore, files: Sequence[LeftFile], cursors: dict[int, Cursor], committed: Iterable[str] = ()
) -> tuple[list[LeftFile], dict[int, Cursor], list[pa.Table]]:
    """The files to adopt, in order, where they leave each partition they touch, and their cursor columns."""
    adopted: list[LeftFile] = []
    tables: list[pa.Table] = []
    moved: dict[int, Cursor] = {}
    done: set[tuple[int, int, int]] = set()
    for path in _sequences(files, committed):
        task = (path[0].label.epoch, path[0].label.round, path[0].label.task)
        if task in done:
            continue
        before = len(adopted)
        for file in path:
            table = store.read_table(file.location, CURSOR_COLUMNS)
            joined = _join_rows(table, ChainMap(moved, cursors))
            if joined is None:
                break
            adopted.append(file)
            tables.append(table)
            moved.update(joined)
        if len(adopted) > before:
            done.add(task)
    return adopted, moved, tables


def _join_rows(table: pa.Table, cursors: Mapping[int, Cursor]) -> dict[int, Cursor] | None:
    """Where the rows of one file leave their partitions; None if one of them does not join on."""
    moved: dict[int, Cursor] = {}
    for row in table.to_pylist():
        ordinal = row["partition_ordinal"]
        cursor = moved.get(ordinal) or cursors.get(ordinal)
        if cursor is None or (following := _step(cursor, row)) is None:
            return None
        moved[ordinal] = following
    return moved


def _step(cursor: Cursor, row: Mapping[str, object]) -> Cursor | None:
    chain, page, count = row["chain"], row["page"], row["record_count"]
    assert isinstance(chain, int)
    assert isinstance(page, int)
    assert isinstance(count, int)
    token = row["token_out"]
    assert token is None or isinstance(token, str)
    if chain > cursor.chain and page == 1 and row["token_in"] is None:
        return Cursor(chain, 1, token, bool(row["complete"]), count)
    goes_on = chain == cursor.chain and page == cursor.pages + 1 and row["token_in"] == cursor.token
    if cursor.complete or not goes_on:
        return None
    return Cursor(chain, page, token, bool(row["complete"]), cursor.records + count)


def _label(store: FileStore, location: str) -> FlushLabel | None:
    footer = store.read_footer(location)
    return None if footer is None else FlushLabel.from_footer(footer[0])


@dataclass(frozen=True, slots=True)
class _Predecessor:
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


def adopt_predecessor(task: RoundTask) -> _Predecessor:
    """Find and take over the files of earlier attempts at this very task; nothing for a first attempt."""
    if task.label.attempt == 0:
        return _Predecessor(task.label, task.partitions)
    files = [file for file in left_files(task.store, task.folder, ()) if _precedes(file.label, task.label)]
    cursors = {
        work.ordinal: Cursor(work.chain, work.pages, work.token, False, work.records) for work in task.partitions
    }
    adopted, moved, tables = choose(task.store, files, cursors)
    if not adopted:
        return _Predecessor(task.label, task.partitions)
    rows = [row for table in tables for row in table.to_pylist()]
    works = {work.ordinal: work for work in task.partitions}
    progress = {ordinal: _progress(works[ordinal], cursor, rows) for ordinal, cursor in moved.items()}
    return _Predecessor(
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
