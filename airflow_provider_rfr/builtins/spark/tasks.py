"""What runs in Spark's tasks: data files to rows, and rows of a query to data files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.conform import conform
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.input_files import InputFile, InputReader
from airflow_provider_rfr.lake.work_files import WorkFolder

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Of rows in memory, before they are written; the file is some times smaller."""
RESULT = "file binary, error string"
"""Columns, in Spark's words, of what a task sends back."""
_ONE_RESULT = pa.schema([("file", pa.binary()), ("error", pa.string())])


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task computes, and what is noted when it is finished.

    :ivar name: made of its inputs
    """

    name: str
    inputs: tuple[InputFile, ...]

    @property
    def identities(self) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(each.identity for each in self.inputs)


@dataclass(frozen=True, slots=True)
class ReadUnits:
    """Rows of units, by their numbers.

    :ivar columns: as Spark holds them
    """

    reader: InputReader
    units: tuple[Unit, ...]
    columns: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file in self.units[number].inputs:
                    yield from self._read(file)

    def _read(self, file: InputFile) -> Iterator[pa.RecordBatch]:
        for batch in self.reader.read(file):
            yield from conform(pa.Table.from_batches([batch]), self.columns).to_batches()


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows to data files, which are sent back; an error of ours is no reason to run the task again, and is sent too.

    :ivar units: of each of Spark's partitions; empty where they have none
    """

    work: WorkFolder
    units: tuple[Unit, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            files = [file for rows in _gathered(batches) for file in self.work.write(rows)]
            self._note(files)
        except RfrError as error:
            yield _results([None], [str(error)])
            return
        yield _results([pickle.dumps(each) for each in files], [None] * len(files))

    def _note(self, files: list[StoredFile]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        if self.units and context is not None:
            unit = self.units[context.partitionId()]
            self.work.note(unit.name, unit.identities, files)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about :data:`MAX_FILE_BYTES`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= MAX_FILE_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _results(files: list[bytes | None], errors: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(files, pa.binary()), pa.array(errors, pa.string())], schema=_ONE_RESULT)
