"""Page rows: how a fetched page becomes a row of the ledger, and rows an Arrow table.

Columns are built from buffers: ``pa.array(list)`` imports pandas where it is installed, which stops every reading
thread for more than a second.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.streams.core import NextPage, Page
from airflow_provider_rfr.streams.json_numbers import dumps


@dataclass(frozen=True, slots=True)
class PageRow:
    """One line of the ledger; ``fetched_at`` in microseconds since the epoch, tokens as JSON text."""

    generation: int
    epoch: int
    partition_ordinal: int
    partition_key: str
    chain: int
    page: int
    token_in: str | None
    token_out: str | None
    complete: bool
    record_count: int
    checksum: str | None
    request: str | None
    status: int | None
    skipped: str | None
    fetched_at: int
    slice: str | None
    records: bytes | None


def encode_token(token: Any) -> str | None:
    """A token as the ledger keeps it; None, the first page's absence of a token, stays None."""
    if token is None:
        return None
    try:
        return dumps(token, orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise ConfigurationError("token", f"a page token has to be JSON: {error}") from None


def decode_token(text: str | None) -> Any:
    """The token that :func:`encode_token` wrote."""
    return None if text is None else orjson.loads(text)


def encode_records(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Records as newline-delimited JSON in one value: a list of texts costs many times more in Arrow."""
    try:
        return b"\n".join(map(dumps, records))
    except TypeError:
        return b"\n".join(_encode(record, number) for number, record in enumerate(records, start=1))


def _encode(record: Mapping[str, Any], number: int) -> bytes:
    try:
        return dumps(record)
    except TypeError as error:
        raise SourceError(f"record {number} of the page can't be written as JSON: {error}") from None


def checksum_of(records: bytes) -> str:
    """A page's checksum; of its content only, so that a page that moved is recognised."""
    return hashlib.blake2b(records, digest_size=12).hexdigest()


def page_row(
    page: Page, *, generation: int, epoch: int, ordinal: int, key: str, chain: int, number: int, token: Any
) -> PageRow:
    """The row of a fetched page."""
    records = encode_records(page.records)
    following = encode_token(page.next.token) if isinstance(page.next, NextPage) else None
    return PageRow(
        generation=generation,
        epoch=epoch,
        partition_ordinal=ordinal,
        partition_key=key,
        chain=chain,
        page=number,
        token_in=encode_token(token),
        token_out=following,
        complete=not isinstance(page.next, NextPage),
        record_count=len(page.records),
        checksum=checksum_of(records),
        request=page.request,
        status=page.status,
        skipped=page.skipped,
        fetched_at=time.time_ns() // 1000,
        slice=None,
        records=records,
    )


def opening_rows(slices: Iterable[tuple[str, Mapping[str, Any]]], *, generation: int, epoch: int) -> Iterable[PageRow]:
    """Page 0 of each partition: together they freeze the list of partitions."""
    now = time.time_ns() // 1000
    for ordinal, (key, value) in enumerate(slices):
        yield PageRow(
            generation=generation,
            epoch=epoch,
            partition_ordinal=ordinal,
            partition_key=key,
            chain=0,
            page=0,
            token_in=None,
            token_out=None,
            complete=False,
            record_count=0,
            checksum=None,
            request=None,
            status=None,
            skipped=None,
            fetched_at=now,
            slice=dumps(value, orjson.OPT_SORT_KEYS).decode(),
            records=None,
        )


def rows_to_table(rows: Sequence[PageRow], schema: pa.Schema) -> pa.Table:
    """The rows as a table of ``schema``, whose columns are named as the row's fields."""
    columns = [_BUILDERS[str(field.type)]([getattr(row, field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    code = "q" if kind.bit_width == 64 else "i"
    data = array(code, [0 if value is None else value for value in values])
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(data)])


def _booleans(values: Sequence[bool | None], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(_bits(map(bool, values)))])


def _texts(values: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    data = [b"" if v is None else v if isinstance(v, bytes) else v.encode() for v in values]
    code = "q" if kind == pa.large_string() else "i"
    offsets, end = array(code, [0]), 0
    for item in data:
        end += len(item)
        offsets.append(end)
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(_bits(value is not None for value in values))


def _bits(flags: Any) -> bytes:
    number, length = 0, 0
    for flag in flags:
        number |= bool(flag) << length
        length += 1
    return number.to_bytes((length + 7) // 8 or 1, "little")


_BUILDERS: dict[str, Callable[[Any, pa.DataType], pa.Array]] = {
    "int64": _integers,
    "int32": _integers,
    "timestamp[us, tz=UTC]": _integers,
    "bool": _booleans,
    "string": _texts,
    "large_string": _texts,
}
