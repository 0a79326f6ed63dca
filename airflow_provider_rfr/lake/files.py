"""A store that writes, reads, lists and deletes objects by location, and the columns of a ledger's files.

Local paths need only PyArrow; other stores are opened by PyIceberg's FileIO with the catalog's properties. A ledger's
file has one row for each page, and one opening row (page 0) for each partition.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from airflow_provider_rfr.http.redaction import is_secret

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

FOOTER_KEY = "rfr"
OWN_FILE = ".puffin"
"""Suffix of the files in a table's folder that hold neither rows nor Iceberg's metadata.

Stores for tables alone, such as SeaweedFS's table buckets, accept only names that Iceberg uses. Puffin is Iceberg's
container for arbitrary data, and readers open only the Puffin files that the table's metadata names.
"""
_RENEWAL_SECONDS = 600.0
_EXPIRY = "token-expires-at"
_OF_CATALOG = ("uri", "credential", "token", "auth", "auth.manager")
"""Properties with the credentials of a catalog; ``uri`` may have a database's password."""


@contextmanager
def naming(location: str) -> Iterator[None]:
    """Add the location to an ``OSError`` of the system, and keep a path that the error names already."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        reason = error.strerror or ""
        if "/" in reason:
            raise OSError(error.errno, f"{reason}, while writing to {location}") from error
        raise OSError(error.errno, os.strerror(error.errno), location) from error


@contextmanager
def tidying(location: str) -> Iterator[None]:
    """Log an error of deletions as a warning: the work is done, or has failed for a reason that must not be hidden."""
    try:
        yield
    except OSError as error:
        log.warning("files in %s that no snapshot names could not be deleted: %s", location, error)


def is_local(location: str) -> bool:
    """Tell whether the location is a path of this machine, with or without ``file:``."""
    return urlparse(location).scheme in ("", "file")


@dataclass(frozen=True, slots=True)
class FileStore:
    """A store that reads and writes objects; picklable, opens its filesystem on use.

    :ivar properties: the table's FileIO properties; they may hold secrets
    """

    properties: Mapping[str, str]

    @classmethod
    def of(cls, io: FileIO) -> FileStore:
        """Return the store of a table's files, which is pickled into tasks.

        The catalog's credentials are left out. Files do not need them, and a REST catalog adds its client to them,
        which is a different object in each task.
        """
        kept = {name: value for name, value in io.properties.items() if name not in _OF_CATALOG}
        return cls({name: value for name, value in kept.items() if not name.startswith("header.")})

    def __repr__(self) -> str:
        return "FileStore()"

    def write_parquet(
        self,
        location: str,
        table: pa.Table,
        footer: Mapping[str, str],
        *,
        row_group_size: int | None = None,
        **options: Any,
    ) -> tuple[int, pq.FileMetaData]:
        """Write one Parquet object in one request; return its bytes and its metadata.

        An object store shows it whole or not at all; on a local disk a killed writer may leave a torn file, which
        :meth:`read_footer` recognises. An object that is there is replaced.

        :param footer: kept in the file's own key-value metadata
        """
        buffer = pa.BufferOutputStream()
        # The Arrow schema is left out: readers use Iceberg's, and it would double the size of a small file.
        with pq.ParquetWriter(buffer, table.schema, compression="zstd", store_schema=False, **options) as writer:
            writer.write_table(table, row_group_size=row_group_size)
            if footer:
                writer.add_key_value_metadata(dict(footer))
        return self.write(location, buffer.getvalue()), writer.writer.metadata

    def write(self, location: str, data: Any) -> int:
        """Write one object; return its bytes."""
        filesystem, path = self._open(location)
        with naming(location):
            if isinstance(filesystem, pafs.LocalFileSystem):
                filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            # By default PyArrow compresses by the ending of the name.
            with filesystem.open_output_stream(path, compression=None) as stream:
                stream.write(data)
        return len(data)

    def read(self, location: str) -> bytes:
        """Return the object's content; raise FileNotFoundError if there is no object."""
        filesystem, path = self._open(location)
        with filesystem.open_input_file(path) as stream:
            return bytes(stream.read())

    def read_footer(self, location: str) -> tuple[str, pq.FileMetaData] | None:
        """Return the footer of :meth:`write_parquet` and the file's metadata; None for a torn, missing or other file.

        :raises OSError: the store does not answer, which must not be taken for a torn object
        """
        filesystem, path = self._open(location)
        try:
            with filesystem.open_input_file(path) as stream:
                metadata = pq.read_metadata(stream)
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        except OSError:
            # An invalid footer and a failing store raise the same error, but only the store fails again.
            self.read(location)
            return None
        footer = (metadata.metadata or {}).get(FOOTER_KEY.encode())
        return None if footer is None else (footer.decode(), metadata)

    def read_table(self, location: str, columns: Sequence[str]) -> pa.Table:
        filesystem, path = self._open(location)
        with filesystem.open_input_file(path) as stream:
            return pq.ParquetFile(stream).read(columns=list(columns), use_threads=False)

    def exists(self, location: str) -> bool:
        filesystem, path = self._open(location)
        return bool(filesystem.get_file_info(path).type == pafs.FileType.File)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """List location and bytes of every object below the folder ``prefix``; return [] if there is no such folder."""
        filesystem, path = self._open(prefix)
        infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        root = prefix.rstrip("/")
        base = path.rstrip("/")
        return [(root + info.path.removeprefix(base), info.size) for info in infos if info.type == pafs.FileType.File]

    def delete(self, locations: Iterable[str]) -> int:
        """Delete objects, ignoring missing ones; return how many existed."""
        count = 0
        for location in locations:
            filesystem, path = self._open(location)
            try:
                filesystem.delete_file(path)
                count += 1
            except FileNotFoundError:
                continue
        return count

    def tidy_folder(self, prefix: str) -> None:
        """Delete a folder of temporary files; a failure is a warning."""
        with tidying(prefix):
            filesystem, path = self._open(prefix)
            if filesystem.get_file_info(path).type == pafs.FileType.Directory:
                # Google's storage has no folders: its client deletes all objects, and then misses the folder itself.
                with suppress(FileNotFoundError):
                    filesystem.delete_dir(path)

    def _open(self, location: str) -> tuple[pafs.FileSystem, str]:
        if is_local(location):
            # Catalogs and Hadoop write /x, file:/x, file:///x and file://localhost/x.
            path = location.removeprefix("file:")
            return pafs.LocalFileSystem(), "/" + path[2:].partition("/")[2] if path.startswith("//") else path
        from airflow_provider_rfr.lake.file_io import LakeFileIO

        scheme, netloc, path = LakeFileIO.parse_location(location, dict(self.properties))
        return _filesystem(scheme, netloc, tuple(sorted(self.properties.items()))), path


def renewal_time(table: Table) -> float:
    """Return the time to renew the vended credentials of a table just loaded; infinity if it has none.

    The time is on the monotonic clock. It is half of their lifetime from now, if the properties have its end
    (``s3.session-token-expires-at-ms``), and ten minutes from now at the latest.
    """
    own = table.catalog.properties
    vended = {key: value for key, value in table.io.properties.items() if own.get(key) != value}
    if not any(map(is_secret, vended)):
        return math.inf
    ends = [int(value) / 1000 for key, value in vended.items() if _EXPIRY in key and str(value).isdecimal()]
    life = min(ends) - time.time() if ends else 2 * _RENEWAL_SECONDS
    return time.monotonic() + max(0.0, min(life / 2, _RENEWAL_SECONDS))


@lru_cache(maxsize=16)
def _filesystem(scheme: str, netloc: str, properties: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    """Return the client for the store that this process shares, because each client holds connections of its own."""
    from airflow_provider_rfr.lake.file_io import LakeFileIO

    filesystem = LakeFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    # A retry strategy is the one setting of an S3 client that a copy does not keep.
    if not isinstance(filesystem, pafs.S3FileSystem) or "s3.retry-strategy-impl" in dict(properties):
        return filesystem
    remake, (options,) = filesystem.__reduce__()
    if "allow_delayed_open" not in options:  # an older PyArrow
        return filesystem
    # PyIceberg's client begins a multipart upload for every object: three requests for a small file, and a process that
    # is killed between them leaves parts that cost money and that no listing shows. This one stores it in one request.
    return remake({**options, "allow_delayed_open": True})


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
"""The columns that the driver reads of a page: its place, cursors and counts, but no records."""

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
    """Return the Arrow schema of a ledger's files. Its Iceberg field ids are the columns' positions, from 1."""
    return pa.schema(
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number), "doc": doc})
        for number, (name, kind, doc) in enumerate(_COLUMNS, start=1)
    )


def select_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return these columns of page rows, in the ledger's types; a column that the rows lack is null.

    The table keeps its metadata, which is the file's footer.
    """
    schema = pa.schema([(name, ledger_arrow_schema().field(name).type) for name in columns])
    for name in (name for name in columns if name not in table.column_names):
        table = table.append_column(name, pa.nulls(table.num_rows, schema.field(name).type))
    return table.select(columns).cast(schema.with_metadata(table.schema.metadata))
