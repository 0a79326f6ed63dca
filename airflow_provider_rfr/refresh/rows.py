"""Page rows: how a fetched page becomes a line of the ledger."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.streams.json_numbers import dumps
from airflow_provider_rfr.streams.page import Page
from airflow_provider_rfr.streams.state import NextPage


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
