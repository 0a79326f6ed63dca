"""Page rows: the rows of the ledger that are made from fetched pages, and the files that tasks write them to.

A ledger file describes itself: it holds page rows with their cursors, and its footer names the task attempt and the
file that this one wrote before. So the next attempt can adopt files that no commit names.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import FOOTER_KEY, PAGE_COLUMNS, FileStore, ledger_arrow_schema
from airflow_provider_rfr.lake.inference import MAX_DEPTH, InferredSchema, Place, infer_records, merge
from airflow_provider_rfr.numbers import dumps, loads
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, arrow_column
from airflow_provider_rfr.streams.core import NextPage, Page, PrimaryKey, key_paths
from airflow_provider_rfr.streams.incremental import DELETED_FIELD
from airflow_provider_rfr.streams.repeats import RetriedErrors

#: Value of ``absent`` in the row of a second page that ended its partition because it repeats the first page.
REPEATS_FIRST_PAGE = "page 2 has the records of page 1"
_COLUMNS_KEY = "rfr.columns"
_LONGEST_NOTE = 16 * 1024
REMEDY_FOR_IGNORED_TOKEN = "check under which name, and where in the request, the paginator sends which page it wants"


@dataclass(frozen=True, slots=True)
class FlushLabel:
    """The label of a file: the task attempt that wrote it, and the file that it wrote before.

    :ivar previous: name of the file before this one in its sequence, None for the first
    :ivar retried: errors that the writer had retried by then, by kind; None without any
    """

    generation: int
    epoch: int
    round: int
    task: int
    attempt: int
    sequence: int
    previous: str | None = None
    retried: dict[str, int] | None = None

    @classmethod
    def from_footer(cls, text: str) -> FlushLabel | None:
        """Return the label in a file's footer; None for any other footer."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class PageFile:
    """A ledger file and its page rows; picklable.

    :ivar pages: its rows without the records: the columns ``PAGE_COLUMNS``
    :ivar seen: the columns of its records; None if its writer noted none
    """

    stored: StoredFile
    pages: pa.Table
    seen: SeenColumns | None = None

    @property
    def location(self) -> str:
        return self.stored.location


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Counts of one task.

    :ivar refetched: pages that an earlier request of this refresh had already fetched
    :ivar skipped: pages without records, because their error was ignored
    """

    pages: int = 0
    records: int = 0
    bytes: int = 0
    refetched: int = 0
    overlap_checks: int = 0
    skipped: int = 0

    def __add__(self, other: TaskFigures) -> TaskFigures:
        return TaskFigures(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """One row of the ledger; ``fetched_at`` in microseconds since 1970, tokens and ``slice`` as JSON text.

    ``skipped``, ``received``, ``promised`` and ``absent`` are those of the :class:`Page`. Only page 0 has a ``slice``.
    """

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

    @property
    def size(self) -> int:
        """Return the bytes of the records."""
        return len(self.records or b"")


def encode_token(token: Any) -> str | None:
    """Encode a token for the ledger; None, for the first page, stays None.

    :raises ConfigurationError: the token can't be written as JSON
    """
    return None if token is None else _encoded("token", "a page token", token)


def _encoded(field: str, name: str, value: Any) -> str:
    try:
        return dumps(value, orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        remedy = "write an integer beyond 64 bits, and a value of another type, as text"
        raise ConfigurationError(field, f"{name} has to be JSON: {error}", remedy) from None


def decode_token(text: str | None) -> Any:
    return None if text is None else loads(text.encode())


def encode_records(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode records as newline-delimited JSON in one value: a list of texts costs many times more in Arrow.

    :raises SourceError: a record can't be written as JSON
    """
    lines: list[bytes] = []
    try:
        lines.extend(map(dumps, records))
    except TypeError as error:
        raise SourceError(f"record {len(lines) + 1} of the page can't be written as JSON: {error}") from None
    return b"\n".join(lines)


def checksum_of(records: bytes) -> str:
    """Return the checksum of a page: a digest of its records alone, so that equal pages are recognised anywhere.

    :param records: as :func:`encode_records` returns them
    """
    return hashlib.blake2b(records, digest_size=12).hexdigest()


def seen_marks(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the marks of the committed rows of one chain, packed as in the state of a chain."""
    marks = array("Q")
    for row in rows:
        checksum = row["checksum"] if row["record_count"] else None
        marks.extend(marks_of(row["page"], row["token_in"], row["token_out"], checksum))
    return marks.tobytes()


def marks_of(page: int, token_in: str | None, token_out: str | None, checksum: str | None) -> dict[int, str]:
    """Return the marks of a page's tokens and records, by which a loop is detected, each with its name in errors.

    :param checksum: None for a page without records, because a chain may have several of them
    """
    names = {}
    if page == 1 and token_in is not None:
        names[f"t{token_in}"] = f"the page token {token_in:.80}"
    if token_out is not None:
        names[f"t{token_out}"] = f"the page token {token_out:.80}"
    # This mark comes last: Chain._repeats_last() takes a chain's last mark for that of its newest records.
    if checksum is not None:
        names[f"c{checksum}"] = "a page with the same records"
    return {digest_of(text): name for text, name in names.items()}


def digest_of(text: str) -> int:
    """Return the mark of a token or of a checksum: a digest of 64 bits."""
    # Eight bytes, because the marks of all pages of a chain travel with each of its tasks.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def page_row(
    page: Page, *, generation: int, epoch: int, ordinal: int, key: str, chain: int, number: int, token: Any
) -> PageRow:
    """Return the row of a fetched page.

    :param number: of the page in its chain, from 1
    :param token: the one that the page was requested with
    """
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
    """Yield page 0 of each partition: together these rows freeze the list of partitions.

    :raises ConfigurationError: a slice can't be written as JSON
    """
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
            slice=_encoded("slices", f"the slice of partition {key}", value),
        )


def write_rows(
    store: FileStore, location: str, rows: Sequence[PageRow], *, footer: str, seen: SeenColumns | None = None
) -> PageFile:
    """Write one ledger file.

    :param rows: at least one, all of the same generation
    :param footer: JSON of the :class:`FlushLabel`; ``{}`` for a file that is never adopted
    :param seen: the columns of the records, for the footer
    """
    schema = ledger_arrow_schema()
    columns = [arrow_column([getattr(row, field.name) for row in rows], field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    statistics = ["generation", "epoch", "partition_ordinal", "chain", "page"]
    notes = {FOOTER_KEY: footer, **(seen.to_footer() if seen is not None else {})}
    size, metadata = store.write_parquet(location, table, notes, use_dictionary=False, write_statistics=statistics)
    stored = StoredFile(location, size, metadata, {"generation": rows[0].generation})
    return PageFile(stored, table.select(PAGE_COLUMNS), seen)


@dataclass(frozen=True, slots=True)
class SeenColumns:
    """The columns that appear in records.

    :ivar places: the first place of each field, by path. It gives columns the order of the source, whichever task
        read them
    """

    schema: InferredSchema = field(default_factory=InferredSchema)
    places: Mapping[str, Place] = field(default_factory=dict)

    def __add__(self, other: SeenColumns) -> SeenColumns:
        places = dict(self.places)
        for path, place in other.places.items():
            places[path] = min(place, places.get(path, place))
        return SeenColumns(merge(self.schema, other.schema), places)

    def to_footer(self) -> dict[str, str]:
        """Return the entry of a file's footer that notes the columns; nothing if it would be longer than 16 KiB."""
        text = orjson.dumps({"schema": self.schema.to_json(), "places": self.places}).decode()
        return {_COLUMNS_KEY: text} if len(text) <= _LONGEST_NOTE else {}

    @classmethod
    def from_footer(cls, metadata: Mapping[bytes, bytes] | None) -> SeenColumns | None:
        """Return the columns that a file's writer noted in the footer; None if it noted none."""
        if (text := (metadata or {}).get(_COLUMNS_KEY.encode())) is None:
            return None
        value = orjson.loads(text)
        return cls(
            InferredSchema.from_json(value["schema"]), {path: (a, b, c) for path, (a, b, c) in value["places"].items()}
        )


def see_columns(batches: Iterable[tuple[Sequence[LedgerPage], Sequence[int]]]) -> SeenColumns:
    """Infer the columns from the records of pages.

    :param batches: pages, and for each page the ordinal of its partition
    """
    schema, places = InferredSchema(), dict[str, Place]()
    for pages, ordinals in batches:
        batch = infer_records(b"\n".join(page.records for page in pages), DELETED_FIELD)
        numbered = sorted(
            (((ordinal, page.page), page.records) for ordinal, page in zip(ordinals, pages, strict=True)),
            key=lambda item: item[0],
        )
        _locate(frozenset(batch.paths()), numbered, places)
        schema = merge(schema, batch)
    return SeenColumns(schema, places)


def _locate(paths: frozenset[str], pages: Sequence[tuple[tuple[int, int], Any]], places: dict[str, Place]) -> None:
    """Record the first place of each path in ordered pages. Most fields appear in the first record already."""
    for number, records in pages:
        wanted = {path for path in paths if path not in places or places[path][:2] > number}
        if not wanted:
            return
        position, text = 0, bytes(records)
        # Parse only pages that may have a wanted field. A name may itself have dots, so its last part is searched for.
        if not any(orjson.dumps(path.rpartition(".")[2])[1:] in text for path in wanted):
            continue
        for line in text.split(b"\n"):
            with suppress(orjson.JSONDecodeError):
                for path in _paths(orjson.loads(line), "", MAX_DEPTH):
                    if path in wanted:
                        wanted.remove(path)
                        places[path] = (*number, position)
                        position += 1
            if not wanted:
                break


def _paths(value: Any, prefix: str, depth: int) -> Iterator[str]:
    """Yield the paths of a value's fields in their order."""
    if depth == 0:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield prefix + name
            yield from _paths(inner, f"{prefix}{name}.", depth - 1)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, f"{prefix}element.", depth - 1)


def key_columns(primary_key: PrimaryKey, rows: pa.Schema, inferred: bool = False) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the key's columns.

    :param inferred: the columns were inferred, so that one may be missing because no record has a value
    :raises ConfigurationError: the rows lack one of them
    """
    paths = key_paths(primary_key)
    problem = "no record has a value of" if inferred else "the rows have no column"
    for path in paths:
        kind: pa.DataType = pa.struct(list(rows))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise _missing(path, problem, rows.names)
            kind = kind.field(name).type
    return paths


def check_key_of_page(primary_key: PrimaryKey, records: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a first page if all its records lack a field of the key, before the other pages are read in vain.

    One record with the field is enough. Null counts as a value, because such rows are published.

    :raises ConfigurationError: a field of the key is missing; the error lists the fields of the records
    """
    if not records:
        return
    for path in key_paths(primary_key):
        found: Sequence[Any] = records
        for name in path:
            found = [value[name] for value in found if isinstance(value, Mapping) and name in value]
        if not found:
            fields = dict.fromkeys(name for record in records for name in record)
            raise _missing(path, "no record of the first page has the field", fields)


def _missing(path: Sequence[str], problem: str, names: Iterable[str]) -> ConfigurationError:
    return ConfigurationError("primary_key", f"{problem} {'.'.join(path)}", suggestion(path[0], names))


@dataclass(slots=True)
class FlushWriter:
    """A writer of one task attempt's sequence of files.

    :ivar label: of the next file
    :ivar files: the files written so far, after those adopted from an earlier attempt at the task
    :ivar infers: whether columns are inferred from the records
    :ivar retried: counts the errors that the task attempt retries
    """

    store: FileStore
    folder: str
    label: FlushLabel
    files: list[PageFile] = field(default_factory=list)
    infers: bool = False
    retried: RetriedErrors | None = None

    def write(self, rows: list[PageRow]) -> None:
        if not rows:
            return
        label = self.label
        if self.retried is not None and (counts := self.retried.counts()):
            label = replace(label, retried=counts)
        place = f"e{label.epoch}-r{label.round}-t{label.task}-a{label.attempt}-s{label.sequence}"
        # The random part keeps a late writer from replacing a file that a commit names.
        name = f"{place}-{uuid.uuid4().hex[:12]}.parquet"
        seen = None
        if self.infers:
            full = [row for row in rows if row.record_count]
            pages = [
                LedgerPage(row.partition_key, row.page, row.records, row.record_count, row.fetched_at) for row in full
            ]
            seen = see_columns([(pages, [row.partition_ordinal for row in full])])
        file = write_rows(self.store, f"{self.folder}/{name}", rows, footer=json.dumps(asdict(label)), seen=seen)
        self.files.append(file)
        self.label = replace(label, sequence=label.sequence + 1, previous=name)
