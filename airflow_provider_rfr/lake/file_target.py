"""Where and how tasks write a target's data files, without a word to its catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile, split_by_partition, store_file
from airflow_provider_rfr.lake.files import FileStore


@dataclass(frozen=True, slots=True)
class FileTarget:
    """What a task needs to write data files of the target; picklable.

    :ivar folder: where the files go
    :ivar rows: the columns to read rows as, without the system columns
    """

    layout: FileLayout
    store: FileStore
    folder: str
    rows: pa.Schema

    def write(self, table: pa.Table) -> Iterator[tuple[StoredFile, pa.Table]]:
        """Write the rows, one file for each partition of the table that they fall into; each with its rows in order."""
        name = uuid.uuid4().hex
        for number, (partition, rows) in enumerate(split_by_partition(table, self.layout)):
            location = f"{self.folder}/{name}-{number}.parquet"
            if rows.num_rows:
                yield store_file(self.store, location, rows, self.layout, partition=partition), rows
