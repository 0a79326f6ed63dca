"""Parquet data files of an Iceberg table, written where the rows are and committed by somebody else.

Executors store files and send back what they stored; the driver describes the files to Iceberg and makes the one
commit. Storing needs little of PyIceberg: the modules that describing needs take a second or two to import, and an
executor starts many processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import sanitize_column_names
from pyiceberg.typedef import Record

from airflow_provider_rfr.lake.conform import conform
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.schemas import file_schema

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


def split_by_partition(table: pa.Table, layout: FileLayout) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
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
