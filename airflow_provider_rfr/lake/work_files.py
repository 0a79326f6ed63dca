"""Data files of a piece of work that may be killed and gone on with, and the notes of what is finished.

Everything lies in one folder of the table's data folder, and every name begins with the target's family, by which
:meth:`FileTarget.collect` finds what no commit names. A note is one object, stored after the files that it names: what
has no note was not finished, and is done again. Notes hold no code: who can write to the lake must not be able to run
anything in the driver.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes

from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile, split_by_partition, store_file
from airflow_provider_rfr.lake.file_target import FileTarget
from airflow_provider_rfr.lake.files import FOOTER_KEY

_NOTE = ".done.json"
_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class FinishedUnit:
    """A part of the work that is done.

    :ivar inputs: identities of the input files that it took
    """

    inputs: tuple[str, ...]
    files: tuple[StoredFile, ...]

    @property
    def rows(self) -> int:
        """In its files."""
        return sum(each.rows for each in self.files)


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Where a piece of work puts its files; picklable.

    :ivar key: of what the work is; files and notes of another key are not taken for its own
    """

    target: FileTarget
    key: str

    @property
    def folder(self) -> str:
        """Where the files are."""
        return f"{self.target.folder}/{self.target.family.strip('-_.') or 'rfr-work'}"

    def write(self, rows: pa.Table) -> Iterator[StoredFile]:
        """Write rows, a file for each of the table's partitions that they fall into.

        :raises SchemaError: they don't fit the target's columns
        """
        name, layout = f"{self.target.family}{uuid.uuid4().hex}", self.target.layout
        for number, (partition, part) in enumerate(split_by_partition(rows, layout)):
            if part.num_rows:
                location = f"{self.folder}/{name}-{number}.parquet"
                footer = {FOOTER_KEY.decode(): self.key}
                yield store_file(self.target.store, location, part, layout, partition=partition, footer=footer)

    def note(self, unit: str, inputs: Sequence[str], files: Sequence[StoredFile]) -> None:
        """Say that a unit is finished. Two that did the same at the same time: either one's files will do."""
        said = {
            "key": self.key,
            "inputs": list(inputs),
            "files": [
                {
                    "location": each.location,
                    "size": each.size,
                    "partition": partition_to_json(each.partition, self.target.layout),
                }
                for each in files
            ],
        }
        self.target.store.write(f"{self.folder}/{self.target.family}{unit}{_NOTE}", json.dumps(said).encode())

    def finished(self) -> tuple[FinishedUnit, ...]:
        """What earlier runs of this work have finished."""
        names = sorted(name for name, _ in self.target.store.list(self.folder) if name.endswith(_NOTE))
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="rfr-work-notes") as pool:
            return tuple(each for each in pool.map(self._read, names) if each is not None)

    def _read(self, location: str) -> FinishedUnit | None:
        """None for a note of other work, one that a killed writer left half written, or whose files are gone."""
        try:
            said = json.loads(self.target.store.read(location))
            if said["key"] != self.key:
                return None
            files = [self._file(each) for each in said["files"]]
            inputs = tuple(map(str, said["inputs"]))
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            return None
        found = tuple(each for each in files if each is not None)
        return FinishedUnit(inputs, found) if len(found) == len(files) else None

    def _file(self, said: Mapping[str, Any]) -> StoredFile | None:
        location = str(said["location"])
        footer = self.target.store.read_footer(location)
        if footer is None or footer[0] != self.key or not location.startswith(f"{self.folder}/"):
            return None
        partition = partition_from_json(said["partition"], self.target.layout)
        return StoredFile(location, int(said["size"]), footer[1], partition)


def partition_to_json(partition: Mapping[str, Any], layout: FileLayout) -> dict[str, str | None]:
    """A file's partition values as Iceberg's single-value serialization, in hexadecimal digits."""
    kinds = _partition_types(layout)
    return {name: None if value is None else to_bytes(kinds[name], value).hex() for name, value in partition.items()}


def partition_from_json(said: Mapping[str, str | None], layout: FileLayout) -> dict[str, Any]:
    """The values of :func:`partition_to_json`.

    :raises ValueError, KeyError: they are none
    """
    kinds = _partition_types(layout)
    return {
        name: None if value is None else from_bytes(kinds[name], bytes.fromhex(value)) for name, value in said.items()
    }


def _partition_types(layout: FileLayout) -> dict[str, Any]:
    return {
        each.name: each.transform.result_type(layout.schema.find_type(each.source_id)) for each in layout.spec.fields
    }
