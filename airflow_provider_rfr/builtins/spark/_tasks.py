"""The task that writes the rows of a query as data files.

Executors have PyArrow and PyIceberg, and need neither SQLAlchemy nor sqlglot: nothing here may import those.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile

_MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Of rows in memory, before they are written; the file is some times smaller."""
RESULT: Final = "files binary, error string"
"""Columns, in Spark's words, of the one row that a task sends back."""
_ONE_RESULT: Final = pa.schema([("files", pa.binary()), ("error", pa.string())])


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows to data files, which are sent back. So is an error of ours, so that Spark does not repeat the task."""

    target: FileTarget

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files: list[StoredFile] = []
        problem = None
        try:
            for rows in _gathered(batches):
                files += [file for file, _ in self.target.write(rows)]
        except RfrError as error:
            problem = str(error)
        yield pa.RecordBatch.from_pylist([{"files": pickle.dumps(files), "error": problem}], _ONE_RESULT)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about :data:`_MAX_FILE_BYTES`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _MAX_FILE_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
