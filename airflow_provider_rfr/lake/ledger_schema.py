"""The ledger's columns: one row a page, and one opening row (page 0) a partition."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

_COLUMNS: tuple[tuple[str, IcebergType, str], ...] = (
    ("generation", LongType(), "the refresh this row belongs to"),
    ("epoch", IntegerType(), "the attempt that read the page"),
    ("partition_ordinal", LongType(), "place of the partition in the frozen list, from 0"),
    ("partition_key", StringType(), "canonical JSON of the declared partition key"),
    ("chain", IntegerType(), "0, and one more each time the partition started again; the highest counts"),
    ("page", IntegerType(), "number of the page in its chain, from 1; 0 is the opening row"),
    ("token_in", StringType(), "JSON of the token that asked for the page, null for the first"),
    ("token_out", StringType(), "JSON of the next page's token, null when complete"),
    ("complete", BooleanType(), "true on the chain's last page"),
    ("record_count", LongType(), "records in this page"),
    ("checksum", StringType(), "of the page's records, to recognise a page that changed or came twice"),
    ("request", StringType(), "method and address, without credentials"),
    ("status", IntegerType(), "HTTP status"),
    ("skipped", StringType(), "why an ignored error left this page without records"),
    ("fetched_at", TimestamptzType(), "when the page arrived"),
    ("slice", StringType(), "JSON of the partition's slice, on the opening row"),
    ("records", StringType(), "the page's records, one JSON text a line"),
)

COLUMN_NAMES = tuple(name for name, _, _ in _COLUMNS)
SMALL_COLUMNS = tuple(name for name in COLUMN_NAMES if name not in ("records", "request", "slice"))

LEDGER_SCHEMA = Schema(
    *(NestedField(i, name, kind, required=False, doc=doc) for i, (name, kind, doc) in enumerate(_COLUMNS, start=1))
)
LEDGER_SPEC = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="generation")
)
LEDGER_PROPERTIES = {
    # The fence: a commit from a stale table is refused instead of repeated on top of the newer one.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "24",
    # Full manifests are left alone, so a merge never rewrites the whole history.
    "commit.manifest.target-size-bytes": str(256 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "4",
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.generation": "full",
    "write.metadata.metrics.column.partition_ordinal": "full",
    "rfr.kind": "ledger",
}


def ledger_name(target: str) -> str:
    """The ledger's table name for a target: beside it, in the same namespace."""
    return f"{target}__rfr_ledger"


@cache
def ledger_arrow_schema() -> pa.Schema:
    """The ledger's columns for Arrow, with Iceberg's field ids."""
    return schema_to_pyarrow(LEDGER_SCHEMA)
