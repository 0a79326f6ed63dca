"""Tasks of a query that is computed on executors: read the data files of a unit, write rows as data files.

Executors have PyArrow and PyIceberg, and need neither SQLAlchemy nor sqlglot: nothing here may import those.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.data_files import WorkFolder, conform
from airflow_provider_rfr.lake.files import InputFile, InputReader

_MAX_FILE_BYTES = 256 * 1024 * 1024
"""Of rows in memory, before they are written; the file is some times smaller."""
RESULT = "file binary, error string"
"""Columns, in Spark's words, of what a task sends back."""
_ONE_RESULT = pa.schema([("file", pa.binary()), ("error", pa.string())])


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task computes, and what is noted when it is finished."""

    inputs: tuple[InputFile, ...]

    @property
    def name(self) -> str:
        """Made of its inputs, so that a later run finds what was finished."""
        digest = hashlib.blake2b(digest_size=12)
        for each in self.inputs:
            digest.update(each.identity.encode())
            digest.update(b"\0")
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class ReadUnits:
    """Rows of units, by their numbers."""

    reader: InputReader
    units: tuple[Unit, ...]
    columns: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file in self.units[number].inputs:
                    for rows in self.reader.read(file):
                        yield from conform(pa.Table.from_batches([rows]), self.columns).to_batches()


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows to data files, which are sent back. So is an error of ours, so that Spark does not repeat the task.

    :ivar units: of each of Spark's partitions; empty where they have none
    """

    work: WorkFolder
    units: tuple[Unit, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            files = [file for rows in _gathered(batches) for file in self.work.write(rows)]
            from pyspark import TaskContext

            context = TaskContext.get()
            if self.units and context is not None:
                unit = self.units[context.partitionId()]
                self.work.note(unit.name, [each.identity for each in unit.inputs], files)
        except RfrError as error:
            yield _results([None], [str(error)])
            return
        yield _results([pickle.dumps(each) for each in files], [None] * len(files))


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


def _results(files: list[bytes | None], errors: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(files, pa.binary()), pa.array(errors, pa.string())], schema=_ONE_RESULT)
