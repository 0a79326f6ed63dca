"""Where and how tasks write a target's data files, without a word to its catalog."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile, store_files
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

    def write(self, table: pa.Table) -> list[StoredFile]:
        """Write the rows: one file for each partition of the table that they fall into."""
        name = uuid.uuid4().hex
        return store_files(self.store, lambda number: f"{self.folder}/{name}-{number}.parquet", table, self.layout)
