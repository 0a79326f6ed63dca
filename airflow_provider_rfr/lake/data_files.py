"""Parquet data files of an Iceberg table, written by tasks and committed by the driver.

Executors store files and return what they stored; the driver describes the files to Iceberg and makes the one commit.
Storing imports little of PyIceberg, because the modules that describe a file take a second or two to import.

Work that may be killed keeps its files in one folder below the table's data, each with a note that is written after
the files it names. What has no note is done again. Notes hold no code: write access to the lake must not become code
execution in the driver.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import sanitize_column_names
from pyiceberg.typedef import Record

from airflow_provider_rfr.lake.files import FOOTER_KEY, FileStore
from airflow_provider_rfr.lake.inference import conform
from airflow_provider_rfr.lake.types import file_schema

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import StatisticsCollector
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    _Ids = np.ndarray[Any, np.dtype[np.int64]]


_ROW_GROUP_ROWS = 1024 * 1024


@dataclass(frozen=True)
class FileLayout:
    """What a data file of a table looks like. Picklable; what is derived from it is computed once, before it travels.

    :ivar properties: the table's; ``write.metadata.metrics.*`` decides which columns get bounds
    """

    schema: Schema
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table) -> FileLayout:
        """The layout of the table as it was loaded."""
        return cls(table.schema(), table.spec(), dict(table.properties))

    def __getstate__(self) -> dict[str, Any]:
        derived = {"arrow": self.arrow, "stored": self.stored, "stored_arrow": self.stored_arrow}
        return {"schema": self.schema, "spec": self.spec, "properties": dict(self.properties), **derived}

    @cached_property
    def arrow(self) -> pa.Schema:
        """Columns by their names in the table, with field ids."""
        return file_schema(self.schema)

    @cached_property
    def stored(self) -> Schema:
        """Columns by their names in files: Iceberg's writers replace what Avro does not allow in a name."""
        return sanitize_column_names(self.schema)

    @cached_property
    def stored_arrow(self) -> pa.Schema:
        """The same for Arrow."""
        return self.arrow if self.stored == self.schema else file_schema(self.stored)

    @cached_property
    def statistics(self) -> dict[int, StatisticsCollector]:
        """Which metrics to keep, by field id."""
        from pyiceberg.io.pyarrow import compute_statistics_plan

        return compute_statistics_plan(self.stored, dict(self.properties))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Field id by path in the Parquet file."""
        from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

        return parquet_path_to_id_mapping(self.stored)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was written and that no commit names yet; picklable.

    :ivar size: in bytes
    :ivar metadata: its footer
    :ivar partition: value of each partition field by the field's name, after its transform
    """

    location: str
    size: int
    metadata: pq.FileMetaData
    partition: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return int(self.metadata.num_rows)

    def describe(self, layout: FileLayout) -> DataFile:
        """What a commit needs to know of it."""
        return describe_file(self.location, self.size, self.metadata, layout, partition=self.partition)


def store_file(
    store: FileStore,
    location: str,
    table: pa.Table,
    layout: FileLayout,
    *,
    partition: Mapping[str, Any] | None = None,
    footer: Mapping[str, str] | None = None,
) -> StoredFile:
    """Write one Parquet object in one request.

    Columns are matched by name, missing ones are null. The location has to be new: an object there is replaced.

    :param footer: kept in the file's own key-value metadata
    :raises SchemaError: the table's columns don't fit the layout
    """
    shaped = conform(table, layout.arrow)
    if layout.stored_arrow != layout.arrow:
        shaped = _renamed(shaped, layout.stored_arrow)
    buffer = pa.BufferOutputStream()
    # The Arrow schema is not stored: readers go by Iceberg's, and a small file would double.
    with pq.ParquetWriter(
        buffer, shaped.schema, compression="zstd", store_schema=False, store_decimal_as_integer=True
    ) as writer:
        writer.write_table(shaped, row_group_size=_ROW_GROUP_ROWS)
        if footer:
            writer.add_key_value_metadata(dict(footer))
    size = store.write(location, buffer.getvalue())
    return StoredFile(location, size, writer.writer.metadata, dict(partition or {}))


def _split_by_partition(table: pa.Table, layout: FileLayout) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
    """Each partition's values, after the transforms, and its rows; the order of rows is kept."""
    if layout.spec.is_unpartitioned():
        yield {}, table
        return
    shaped = conform(table, layout.arrow)
    fields = layout.spec.fields
    ids, values = zip(*(_partition_ids(shaped, layout, item) for item in fields), strict=True)
    keys, groups = np.unique(np.stack(ids), axis=1, return_inverse=True)
    for number, key in enumerate(keys.T):
        found = np.flatnonzero(groups.reshape(-1) == number)
        rows = pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])
        yield {item.name: values[n][key[n]] for n, item in enumerate(fields)}, shaped.take(rows)


def load_file(store: FileStore, location: str, layout: FileLayout) -> pa.Table:
    """The rows of a file that :func:`store_file` wrote, by their names in the table, in the file's order."""
    table = store.read_table(location, layout.stored_arrow.names)
    return table if layout.stored_arrow is layout.arrow else _renamed(table, layout.arrow)


def describe_file(
    location: str,
    size: int,
    metadata: pq.FileMetaData,
    layout: FileLayout,
    *,
    partition: Mapping[str, Any] | None = None,
) -> DataFile:
    """Describe for a commit a file of this layout, from its footer and its size in bytes."""
    from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata, stats_columns=layout.statistics, parquet_column_mapping=layout.ids
    )
    described = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=_partition_record(layout, partition or {}),
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    described.spec_id = layout.spec.spec_id
    return described


def _partition_record(layout: FileLayout, partition: Mapping[str, Any]) -> Record:
    missing = [item.name for item in layout.spec.fields if item.name not in partition]
    if missing:
        raise ValueError(f"no value for the partition fields {', '.join(missing)}")
    values = [PartitionFieldValue(field=item, value=partition[item.name]) for item in layout.spec.fields]
    return PartitionKey(field_values=values, partition_spec=layout.spec, schema=layout.schema).partition


def _partition_ids(table: pa.Table, layout: FileLayout, item: PartitionField) -> tuple[_Ids, list[Any]]:
    """For each row the place of its partition value in a list, and the list."""
    path = layout.schema.find_column_name(item.source_id) or ""
    outer, *inner = [path] if path in table.column_names else path.split(".")
    column = pc.struct_field(table.column(outer), inner) if inner else table.column(outer)
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    distinct = encoded.dictionary
    if pa.types.is_temporal(distinct.type):
        distinct = distinct.view(pa.int32() if distinct.type.bit_width == 32 else pa.int64())
    # PyIceberg's own Arrow transforms need one more package; its plain ones do for the distinct values.
    transform = item.transform.transform(layout.schema.find_type(item.source_id))
    places: dict[Any, int] = {}
    found = [places.setdefault(transform(value), len(places)) for value in distinct.to_pylist()]
    return np.array(found, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)], list(places)


def _renamed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns under the names of ``schema``, nested ones included: both have one shape."""
    columns = [
        pa.chunked_array([_retyped(chunk, item.type) for chunk in column.chunks], item.type)
        for column, item in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _retyped(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_struct(wanted):
        children = [_retyped(array.field(i), item.type) for i, item in enumerate(wanted)]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_large_list(wanted):
        values = _retyped(array.values, wanted.value_type)
        offsets = array.offsets.cast(pa.int64())
        return pa.LargeListArray.from_arrays(offsets, values, type=wanted, mask=array.is_null())
    return array if array.type == wanted else array.cast(wanted)


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
        for number, (partition, rows) in enumerate(_split_by_partition(table, self.layout)):
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
        for number, (partition, part) in enumerate(_split_by_partition(rows, layout)):
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
                    "partition": _partition_to_json(each.partition, self.target.layout),
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
        partition = _partition_from_json(said["partition"], self.target.layout)
        return StoredFile(location, int(said["size"]), footer[1], partition)


def _partition_to_json(partition: Mapping[str, Any], layout: FileLayout) -> dict[str, str | None]:
    """A file's partition values as Iceberg's single-value serialization, in hexadecimal digits."""
    kinds = _partition_types(layout)
    return {name: None if value is None else to_bytes(kinds[name], value).hex() for name, value in partition.items()}


def _partition_from_json(said: Mapping[str, str | None], layout: FileLayout) -> dict[str, Any]:
    """The values of :func:`_partition_to_json`.

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
