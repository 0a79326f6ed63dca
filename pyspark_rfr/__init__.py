"""The data source ``rfr`` of PySpark: the streams of a source as DataFrames, on Spark 4.0 and newer.

Spark looks for data sources in top-level modules named ``pyspark_*``, and imports all of them in every session, so this
one imports nothing else before a stream is read. See docs/notebooks.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

try:
    # Imported here, because Spark looks for their subclasses as soon as it has imported this module.
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    raise ImportError('format("rfr") needs Spark 4.0 or newer: Spark 3.5 has no data sources in Python') from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider_rfr.refresh.data_source import StreamScan

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]  # of a package without type hints
    """The data source of one ``load()``, whose options name the stream."""

    @classmethod
    def name(cls) -> str:
        return "rfr"

    def schema(self) -> StructType:
        from airflow_provider_rfr.refresh.data_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from airflow_provider_rfr.refresh.data_source import StreamScan

        return _StreamReader(StreamScan.of(self.options, schema))


class _StreamReader(DataSourceReader):  # type: ignore[misc]
    """A reader of one stream, which Spark sends to its executors."""

    def __init__(self, scan: StreamScan) -> None:
        self._scan = scan

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(stream_slice) for stream_slice in self._scan.slices()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # If partitions() returns none, Spark reads one partition that is None, or whose value is None.
        stream_slice: Any = getattr(partition, "value", None)
        return iter(()) if stream_slice is None else self._scan.batches(stream_slice)
