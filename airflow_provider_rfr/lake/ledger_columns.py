"""The ledger's columns: one row a page, and one opening row (page 0) a partition. Needs PyArrow alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa

PAGE_COLUMNS = (
    "partition_ordinal",
    "chain",
    "page",
    "token_in",
    "token_out",
    "complete",
    "record_count",
    "checksum",
    "skipped",
    "fetched_at",
    "received",
    "promised",
    "absent",
)
"""What the driver reads of a page: its place, cursors and counts, but no records."""

_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("generation", pa.int64(), "the refresh this row belongs to"),
    ("epoch", pa.int32(), "the attempt that read the page"),
    ("partition_ordinal", pa.int64(), "place of the partition in the frozen list, from 0"),
    ("partition_key", pa.large_string(), "canonical JSON of the declared partition key"),
    ("chain", pa.int32(), "0, and one more each time the partition started again; the highest counts"),
    ("page", pa.int32(), "number of the page in its chain, from 1; 0 is the opening row"),
    ("token_in", pa.large_string(), "JSON of the token that asked for the page, null for the first"),
    ("token_out", pa.large_string(), "JSON of the next page's token, null when complete"),
    ("complete", pa.bool_(), "true on the chain's last page"),
    ("record_count", pa.int64(), "records in this page"),
    ("checksum", pa.large_string(), "of the page's records, to recognise a page that changed or came twice"),
    ("request", pa.large_string(), "method and address, without credentials"),
    ("status", pa.int32(), "HTTP status"),
    ("skipped", pa.large_string(), "why an ignored error left this page without records"),
    ("fetched_at", pa.timestamp("us", tz="UTC"), "when the page arrived"),
    ("slice", pa.large_string(), "JSON of the partition's slice, on the opening row"),
    ("records", pa.large_string(), "the page's records, one JSON text a line"),
    ("received", pa.int64(), "records that the API sent, before any filter"),
    ("promised", pa.int64(), "records that the partition has by the API's own count, null if it does not say"),
    (
        "absent",
        pa.large_string(),
        "why the first page may not be the last: the absent field that would lead on, or a second page like it",
    ),
)


@cache
def ledger_arrow_schema() -> pa.Schema:
    """Return the columns with Iceberg's field ids, which are their places from 1."""
    return pa.schema(
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number), "doc": doc})
        for number, (name, kind, doc) in enumerate(_COLUMNS, start=1)
    )


def select_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the columns of page rows in the ledger's types; one that was added after they were written is null."""
    schema = pa.schema([(name, ledger_arrow_schema().field(name).type) for name in columns])
    for name in (name for name in columns if name not in table.column_names):
        table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
    return table.select(columns).cast(schema)
