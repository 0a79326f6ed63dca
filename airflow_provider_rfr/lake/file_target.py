"""Where and how tasks write a target's data files, without a word to its catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile, split_by_partition, store_file
from airflow_provider_rfr.lake.files import FileStore


@dataclass(frozen=True, slots=True)
class FileTarget:
    """What a task needs to write data files of the target; picklable.

    :ivar folder: where the files go
    :ivar family: what the names of one generation's files begin with
    :ivar label: what this attempt's begin with after that
    :ivar rows: the columns to read rows as, without the system columns
    """

    layout: FileLayout
    store: FileStore
    folder: str
    rows: pa.Schema
    family: str = ""
    label: str = ""

    def write(self, table: pa.Table) -> Iterator[tuple[StoredFile, pa.Table]]:
        """Write the rows, one file for each partition of the table that they fall into; each with its rows in order."""
        name = f"{self.family}{self.label}{uuid.uuid4().hex}"
        for number, (partition, rows) in enumerate(split_by_partition(table, self.layout)):
            location = f"{self.folder}/{name}-{number}.parquet"
            if rows.num_rows:
                yield store_file(self.store, location, rows, self.layout, partition=partition), rows

    def discard(self) -> None:
        """Delete what this attempt wrote. Only before it has tried to commit: afterwards the files may be named."""
        self._delete(self.family + self.label, keep=frozenset())

    def collect(self, committed: Iterable[StoredFile]) -> None:
        """After the commit: delete what killed attempts at the same generation wrote. None of them can commit now."""
        self._delete(self.family, keep={file.location.rpartition("/")[2] for file in committed})

    def _delete(self, prefix: str, keep: Set[str]) -> None:
        if not prefix:
            return
        names = [location for location, _ in self.store.list(self.folder)]
        mine = (name for name in names if name.rpartition("/")[2].startswith(prefix))
        self.store.delete(name for name in mine if name.rpartition("/")[2] not in keep)
