"""Page rows: how a fetched page becomes a row of the ledger, and how rows are written.

Columns are built from buffers: ``pa.array(list)`` imports pandas where it is installed, which stops every reading
thread for more than a second.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import FOOTER_KEY, FileStore
from airflow_provider_rfr.lake.ledger_columns import PAGE_COLUMNS, ledger_arrow_schema
from airflow_provider_rfr.numbers import dumps
from airflow_provider_rfr.streams.core import NextPage, Page

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh._columns import SeenColumns

#: Text in ``absent`` of a second page that ended its partition because it repeats the first.
REPEATS_FIRST_PAGE = "page 2 has the records of page 1"
REMEDY_FOR_IGNORED_TOKEN = "check under which name, and where in the request, the paginator sends which page it wants"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """One row of the ledger; ``fetched_at`` in microseconds since 1970, tokens as JSON text."""

    generation: int
    epoch: int
    partition_ordinal: int
    partition_key: str
    chain: int
    page: int
    fetched_at: int
    token_in: str | None = None
    token_out: str | None = None
    complete: bool = False
    record_count: int = 0
    checksum: str | None = None
    request: str | None = None
    status: int | None = None
    skipped: str | None = None
    slice: str | None = None
    records: bytes | None = None
    received: int | None = None
    promised: int | None = None
    absent: str | None = None


def encode_token(token: Any) -> str | None:
    """Encode a token for the ledger; None, for the first page, stays None."""
    if token is None:
        return None
    try:
        return dumps(token, orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise ConfigurationError("token", f"a page token has to be JSON: {error}") from None


def decode_token(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def encode_records(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode records as newline-delimited JSON in one value: a list of texts costs many times more in Arrow."""
    lines = []
    for number, record in enumerate(records, start=1):
        try:
            lines.append(dumps(record))
        except TypeError as error:
            raise SourceError(f"record {number} of the page can't be written as JSON: {error}") from None
    return b"\n".join(lines)


def checksum_of(records: bytes) -> str:
    """Return a page's checksum; of its records only, so that a page that moved is recognised."""
    return hashlib.blake2b(records, digest_size=12).hexdigest()


def page_row(
    page: Page, *, generation: int, epoch: int, ordinal: int, key: str, chain: int, number: int, token: Any
) -> PageRow:
    """Return the row of a fetched page."""
    records = encode_records(page.records)
    return PageRow(
        generation=generation,
        epoch=epoch,
        partition_ordinal=ordinal,
        partition_key=key,
        chain=chain,
        page=number,
        token_in=encode_token(token),
        token_out=encode_token(page.next.token) if isinstance(page.next, NextPage) else None,
        complete=not isinstance(page.next, NextPage),
        record_count=len(page.records),
        checksum=checksum_of(records),
        request=page.request,
        status=page.status,
        skipped=page.skipped,
        fetched_at=time.time_ns() // 1000,
        records=records,
        received=page.record_count,
        promised=page.promised,
        absent=page.absent,
    )


def opening_rows(slices: Iterable[tuple[str, Mapping[str, Any]]], *, generation: int, epoch: int) -> Iterable[PageRow]:
    """Yield page 0 of each partition: together these rows freeze the list of partitions."""
    now = time.time_ns() // 1000
    for ordinal, (key, value) in enumerate(slices):
        yield PageRow(
            generation=generation,
            epoch=epoch,
            partition_ordinal=ordinal,
            partition_key=key,
            chain=0,
            page=0,
            fetched_at=now,
            slice=dumps(value, orjson.OPT_SORT_KEYS).decode(),
        )


@dataclass(frozen=True, slots=True)
class PageFile:
    """A ledger file, with the facts that its writer or finder knows; picklable.

    :ivar pages: its rows, with the columns ``PAGE_COLUMNS``
    :ivar seen: the columns of its records; None where they are not known
    """

    stored: StoredFile
    pages: pa.Table
    seen: SeenColumns | None = None

    @property
    def location(self) -> str:
        return self.stored.location


def write_rows(store: FileStore, location: str, rows: Sequence[PageRow], *, footer: str) -> PageFile:
    """Write one ledger file; ``rows`` are of one generation, and at least one."""
    schema = ledger_arrow_schema()
    columns = [arrow_column([getattr(row, field.name) for row in rows], field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    statistics = ["generation", "epoch", "partition_ordinal", "chain", "page"]
    size, metadata = store.write_parquet(
        location, table, {FOOTER_KEY: footer}, use_dictionary=False, write_statistics=statistics
    )
    stored = StoredFile(location, size, metadata, {"generation": rows[0].generation})
    return PageFile(stored, table.select(PAGE_COLUMNS))


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of integers, microseconds, booleans, or (large) strings; None is null, bytes are UTF-8."""
    valid = None if None not in values else _bits([value is not None for value in values])
    if pa.types.is_boolean(kind):
        buffers = [_bits([bool(value) for value in values])]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        data = [b"" if value is None else value if isinstance(value, bytes) else value.encode() for value in values]
        offsets = np.zeros(len(data) + 1, np.int64 if pa.types.is_large_string(kind) else np.int32)
        np.cumsum([len(item) for item in data], out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    else:
        code = "q" if kind.bit_width == 64 else "i"
        buffers = [pa.py_buffer(array(code, [0 if value is None else value for value in values]))]
    return pa.Array.from_buffers(kind, len(values), [valid, *buffers])


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))
