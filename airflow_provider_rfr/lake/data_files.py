"""Parquet data files of an Iceberg table, written by tasks and committed by the driver.

Executors store files and return what they stored; the driver describes the files to Iceberg and makes the one commit.
Storing imports little of PyIceberg, because the modules that describe a file take a second or two to import.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import sanitize_column_names

from airflow_provider_rfr.exceptions import RfrError, SchemaError
from airflow_provider_rfr.lake.files import FileStore, tidying
from airflow_provider_rfr.lake.schemas import file_schema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import StatisticsCollector
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    _Ids = np.ndarray[Any, np.dtype[np.int64]]


_ROW_GROUP_ROWS = 1024 * 1024
_SAMPLED_ROWS: Final = 10_000
_UNIQUE_SHARE: Final = 0.97
"""Share of distinct values in a sample, above which a column is written without a dictionary."""


@dataclass(frozen=True)
class FileLayout:
    """The columns and partitions of a table's data files. Picklable, together with the schemas derived from them.

    :ivar properties: the table's properties; ``write.metadata.metrics.*`` decides which columns get bounds
    """

    schema: Schema
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table | TableMetadata) -> FileLayout:
        """Return the layout of the table as it was loaded, or as a transaction will leave it."""
        return cls(table.schema(), table.spec(), dict(table.properties))

    def __getstate__(self) -> dict[str, Any]:
        # Derived before pickling, so that tasks need not import PyIceberg's slow modules.
        derived = {"arrow": self.arrow, "stored": self.stored, "stored_arrow": self.stored_arrow}
        return {"schema": self.schema, "spec": self.spec, "properties": dict(self.properties), **derived}

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the Arrow schema with the columns' names in the table, and field ids."""
        return file_schema(self.schema)

    @cached_property
    def stored(self) -> Schema:
        """Return the schema with the columns' names in files.

        Iceberg's writers replace characters that Avro does not allow in a name.
        """
        return sanitize_column_names(self.schema)

    @cached_property
    def stored_arrow(self) -> pa.Schema:
        return self.arrow if self.stored == self.schema else file_schema(self.stored)

    @cached_property
    def statistics(self) -> dict[int, StatisticsCollector]:
        """Return the column metrics to collect, by field id."""
        from pyiceberg.io.pyarrow import compute_statistics_plan

        return compute_statistics_plan(self.stored, dict(self.properties))

    @cached_property
    def ids(self) -> dict[str, int]:
        """Return the field ids by column path in the Parquet file."""
        from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

        return parquet_path_to_id_mapping(self.stored)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file that was written and is not committed yet; picklable.

    :ivar size: in bytes
    :ivar partition: value of each partition field by the field's name, after its transform
    """

    location: str
    size: int
    metadata: pq.FileMetaData
    partition: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return int(self.metadata.num_rows)

    def describe(self, layout: FileLayout) -> DataFile:
        """Describe the file for a commit, from its footer.

        :raises ValueError: it has no value for a field of the partitioning
        """
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        if missing := [field.name for field in layout.spec.fields if field.name not in self.partition]:
            raise ValueError(f"no value for the partition fields {', '.join(missing)}")
        values = [PartitionFieldValue(field=field, value=self.partition[field.name]) for field in layout.spec.fields]
        key = PartitionKey(field_values=values, partition_spec=layout.spec, schema=layout.schema)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=self.metadata, stats_columns=layout.statistics, parquet_column_mapping=layout.ids
        )
        described = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.location,
            file_format=FileFormat.PARQUET,
            partition=key.partition,
            file_size_in_bytes=self.size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        described.spec_id = layout.spec.spec_id
        return described


def _store_file(
    store: FileStore,
    location: str,
    table: pa.Table,
    layout: FileLayout,
    *,
    partition: Mapping[str, Any] | None = None,
    footer: Mapping[str, str] | None = None,
) -> StoredFile:
    """Write one Parquet object; columns are matched by name, missing ones are null.

    :raises SchemaError: the table's columns don't fit the layout
    """
    shaped = conform(table, layout.arrow)
    if layout.stored_arrow != layout.arrow:
        shaped = _renamed(shaped, layout.stored_arrow)
    size, metadata = store.write_parquet(
        location,
        shaped,
        footer or {},
        row_group_size=_ROW_GROUP_ROWS,
        store_decimal_as_integer=True,
        use_dictionary=_dictionary_paths(shaped),
    )
    return StoredFile(location, size, metadata, dict(partition or {}))


def _dictionary_paths(rows: pa.Table) -> list[str] | bool:
    """Return the Parquet paths of the columns to write with a dictionary; True for all.

    Parquet's writer gives up a dictionary at 1 MiB, and until then writes indices into it. If hardly a value repeats,
    as in keys and times, indices compress badly: files were 20 to 45 % larger, and took up to a third longer to write.
    """
    if rows.num_rows < _SAMPLED_ROWS:
        return True
    unique = {name for name in rows.column_names if _is_unique(rows[name].slice(0, _SAMPLED_ROWS))}
    if not unique:
        return True
    writer = pq.ParquetWriter(pa.BufferOutputStream(), rows.schema, store_schema=False)
    writer.close()
    stored = writer.writer.metadata.schema
    paths = [stored.column(number).path for number in range(len(stored))]
    return [path for path in paths if path.partition(".")[0] not in unique]


def _is_unique(values: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(values.type) or isinstance(values.type, pa.BaseExtensionType):
        return False  # Arrow does not count their values
    return bool(pc.count_distinct(values).as_py() > _UNIQUE_SHARE * (len(values) - values.null_count))


def _split_by_partition(
    table: pa.Table, layout: FileLayout
) -> Iterator[tuple[Mapping[str, Any], pa.Table, pa.Array | None]]:
    """Yield for each partition its transformed values, its rows, and their positions in ``table`` (None: all rows).

    The order of rows is kept.
    """
    if layout.spec.is_unpartitioned():
        yield {}, table, None
        return
    shaped = conform(table, layout.arrow)
    fields = layout.spec.fields
    # For each partition field: its distinct values, and for each row the index of its value.
    values: list[list[Any]] = []
    indices: list[_Ids] = []
    for item in fields:
        path = layout.schema.find_column_name(item.source_id) or ""
        outer, *inner = [path] if path in shaped.column_names else path.split(".")
        column = pc.struct_field(shaped.column(outer), inner) if inner else shaped.column(outer)
        encoded = storage_of(column.combine_chunks()).dictionary_encode(null_encoding="encode")
        distinct = encoded.dictionary
        if pa.types.is_temporal(distinct.type):
            distinct = distinct.view(pa.int32() if distinct.type.bit_width == 32 else pa.int64())
        # PyIceberg's Arrow transforms need another package; its scalar ones are fast enough for the distinct values.
        transform = item.transform.transform(layout.schema.find_type(item.source_id))
        places: dict[Any, int] = {}
        ids = np.array([places.setdefault(transform(value), len(places)) for value in distinct.to_pylist()], np.int64)
        values.append(list(places))
        indices.append(ids[encoded.indices.to_numpy(zero_copy_only=False)])
    keys, groups = np.unique(np.stack(indices), axis=1, return_inverse=True)
    for number, key in enumerate(keys.T):
        positions = np.flatnonzero(groups.reshape(-1) == number)
        selection = pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])
        yield {item.name: values[n][key[n]] for n, item in enumerate(fields)}, shaped.take(selection), selection


def load_file(store: FileStore, location: str, layout: FileLayout) -> pa.Table:
    """Read the rows of a file that :func:`_store_file` wrote, by their names in the table, in the file's order."""
    table = store.read_table(location, layout.stored_arrow.names)
    return table if layout.stored_arrow is layout.arrow else _renamed(table, layout.arrow)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table's values in the columns, order and types of ``schema``; columns that the table lacks are null.

    Columns are matched by name, nested ones included: Arrow's own cast matches fields of structs by position. Only
    lossless casts are made. A required column is checked.

    :raises SchemaError: the table has a column that ``schema`` lacks, lacks one that is required, holds null in one,
        or holds a value that does not fit
    """
    if unknown := sorted(set(table.column_names) - set(schema.names)):
        raise SchemaError(f"columns {', '.join(unknown)} are not in the table that the file is for")
    columns = []
    for column in schema:
        if column.name in table.column_names:
            chunks = [_cast(chunk, column.type, column.name) for chunk in table.column(column.name).chunks]
            values = pa.chunked_array(chunks, column.type)
        else:
            values = pa.chunked_array([_nulls(table.num_rows, column.type)])
        if not column.nullable and values.null_count:
            raise SchemaError(f"column {column.name} is required and {values.null_count} rows have no value for it")
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=schema)


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return nulls that can be written. ``pa.nulls`` would also make the required fields of a struct null."""
    if not _has_required_fields(kind):
        return pa.nulls(count, kind)
    # Only for such types, because ``pa.array`` imports pandas.
    return pa.array([None], kind).take(pa.array(np.zeros(count, dtype=np.int64)))


def _has_required_fields(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and any(not column.nullable or _has_required_fields(column.type) for column in kind)


def _renamed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rename the columns to the names of ``schema``, nested ones included. Both have the same shape."""
    columns = []
    for values, column in zip(table.columns, schema, strict=True):
        chunks = [_cast(chunk, column.type, column.name, by_name=False) for chunk in values.chunks]
        columns.append(pa.chunked_array(chunks, column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, wanted: pa.DataType, path: str, *, by_name: bool = True) -> pa.Array:
    """Cast the values to the wanted type; match fields of structs by name or by position."""
    if array.type == wanted:
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        numbers = {column.name: number for number, column in enumerate(array.type if by_name else wanted)}
        if unknown := sorted(numbers.keys() - {column.name for column in wanted}):
            raise SchemaError(f"columns {', '.join(f'{path}.{name}' for name in unknown)} are not in the table")
        children = []
        for column in wanted:
            place = f"{path}.{column.name}"
            if column.name in numbers:
                # field() respects the slice, and leaves the parent's nulls to the mask of the new struct.
                child = _cast(array.field(numbers[column.name]), column.type, place, by_name=by_name)
            else:
                child = _nulls(len(array), column.type)
            if not column.nullable and pc.any(pc.and_not(child.is_null(), array.is_null())).as_py():
                raise SchemaError(f"column {place} is required and some rows have no value for it")
            children.append(child)
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if _is_list(wanted) and _is_list(array.type):
        return _cast_list(array, wanted, path, by_name=by_name)
    if pa.types.is_map(wanted) and pa.types.is_map(array.type):
        return _cast_map(array, wanted, path, by_name=by_name)
    try:
        return pc.cast(array, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {path}: {array.type} does not fit into {wanted}: {error}") from error


def _cast_list(array: pa.Array, wanted: pa.DataType, path: str, *, by_name: bool) -> pa.Array:
    large = pa.types.is_large_list(wanted)
    if array.offset:
        array = pa.concat_arrays([array])  # from_arrays() does not accept sliced offsets together with a mask
    offsets = array.offsets.cast(pa.int64() if large else pa.int32())
    values = _cast(array.values, wanted.value_type, f"{path}.element", by_name=by_name)
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(offsets, values, type=wanted, mask=array.is_null() if array.null_count else None)


def _cast_map(array: pa.Array, wanted: pa.DataType, path: str, *, by_name: bool) -> pa.Array:
    """Return the maps in the wanted type. Arrow's own cast drops fields of structs inside them without an error."""
    whole = pa.concat_arrays([array])  # a copy without offset, so that keys and items are those of a slice
    keys = _cast(whole.keys, wanted.key_type, f"{path}.key", by_name=by_name)
    items = _cast(whole.items, wanted.item_type, f"{path}.value", by_name=by_name)
    entries = pa.StructArray.from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])
    return pa.Array.from_buffers(wanted, len(whole), whole.buffers()[:2], whole.null_count, children=[entries])


def storage_of(array: pa.Array) -> pa.Array:
    """Return an extension array, such as one of UUIDs, in its storage type, because Arrow's functions need that."""
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Everything that a task needs to write data files of a table; picklable.

    :ivar folder: location of the files
    :ivar family: prefix of the names of all files of one unit of work, such as a generation. No other work may use it,
        because :meth:`collect` deletes by it
    :ivar label: second part of the names of this attempt's files, after the family
    :ivar rows: the columns that rows are read as
    """

    layout: FileLayout
    store: FileStore
    folder: str
    rows: pa.Schema
    family: str = ""
    label: str = ""

    @classmethod
    def of(cls, metadata: TableMetadata, io: FileIO, *, rows: pa.Schema | None = None, family: str = "") -> FileTarget:
        """Return the target of a table's data files.

        :param rows: the columns that rows are read as; None for the table's own
        """
        layout = FileLayout.of(metadata)
        folder = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data").rstrip("/")
        return cls(layout, FileStore.of(io), folder, layout.arrow if rows is None else rows, family)

    def write(
        self, table: pa.Table, footer: Mapping[str, str] | None = None, *, beside: pa.Table | None = None
    ) -> Iterator[tuple[StoredFile, pa.Table]]:
        """Write the rows, one file for each partition that they fall into; yield each file and its rows, in order.

        :param footer: written to the files' key-value metadata
        :param beside: further columns of the rows, which are not written, but appended to the yielded rows
        :raises SchemaError: the rows don't fit the table's columns
        """
        # A new name each time: Spark may run a task a second time while the first one still writes.
        name = f"{self.family}{self.label}{uuid.uuid4().hex}"
        more = {} if beside is None else dict(zip(beside.column_names, beside.columns, strict=True))
        for number, (partition, rows, positions) in enumerate(_split_by_partition(table, self.layout)):
            location = f"{self.folder}/{name}-{number}.parquet"
            if rows.num_rows:
                stored = _store_file(self.store, location, rows, self.layout, partition=partition, footer=footer)
                for column, values in more.items():
                    rows = rows.append_column(column, values if positions is None else values.take(positions))
                yield stored, rows

    def discard(self) -> None:
        """Delete the files that this attempt wrote; a failure is a warning.

        Do not call it after a commit was tried: the commit may have succeeded.
        """
        self._delete(self.family + self.label, keep=frozenset())

    def collect(self, committed: Iterable[StoredFile]) -> None:
        """Delete the files that killed attempts at the same work wrote; a failure is a warning.

        Call it only after the commit: none of those attempts can commit then.
        """
        self._delete(self.family, keep={file.location.rpartition("/")[2] for file in committed})

    def _delete(self, prefix: str, keep: Set[str]) -> None:
        if not prefix:
            return  # every name starts with the empty prefix, those of other writers too
        with tidying(self.folder):
            for location, _ in self.store.list(self.folder):
                name = location.rpartition("/")[2]
                if name.startswith(prefix) and name not in keep:
                    self.store.delete([location])


_MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Size of rows in memory, in bytes, from which on they are written. The file is several times smaller."""
WRITTEN: Final = "files binary, error string"
"""Spark SQL schema of the one row that a task of :class:`WriteRows` returns."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """A Spark task that writes rows to data files and returns the pickled list of :class:`StoredFile`.

    It returns the text of an :class:`RfrError`, too, instead of raising it, so that Spark does not retry the task.
    """

    target: FileTarget

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files: list[StoredFile] = []
        problem = None
        try:
            for rows in _gathered(batches):
                files += [file for file, _ in self.target.write(rows)]
        except RfrError as error:
            problem = str(error)
        schema = pa.schema([("files", pa.binary()), ("error", pa.string())])
        yield pa.RecordBatch.from_pylist([{"files": pickle.dumps(files), "error": problem}], schema)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
        if sum(table.nbytes for table in waiting) >= _MAX_FILE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
