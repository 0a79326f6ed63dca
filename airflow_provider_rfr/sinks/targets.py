"""Targets of sinks: batches as POST requests, or as files. A target acknowledges a batch by taking it without an error.

Rows become JSON. Decimals, dates, times and UUIDs are texts (ISO 8601; UTC is ``Z``), bytes are base64, floats that
JSON can't express are ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; a map with text keys is an object, any other a
list of pairs. Ids of snapshots are texts: they exceed what JavaScript can count."""

from __future__ import annotations

import base64
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec  # type: ignore[import-untyped]
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from airflow_provider_rfr.exceptions import ConfigurationError, SinkDeliveryError
from airflow_provider_rfr.http.addresses import AddressGuard
from airflow_provider_rfr.http.client import Client, Limits, NoAnswer, Request, retry_after, trusted_certificates
from airflow_provider_rfr.http.redaction import Masker, secrets_of_url
from airflow_provider_rfr.http.sockets import Deadline
from airflow_provider_rfr.sinks._windows import Window


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent at once.

    :ivar id: the same when the same rows are sent again after a crash
    :ivar last: whether it ends its window
    :ivar again: how often everything was sent again before: above 0, rows are declared duplicates
    """

    id: str
    sink: str
    window: Window
    rows: pa.Table
    last: bool
    again: int


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """An HTTP endpoint, its connection resolved; ``repr`` shows no secret.

    :ivar url: of the connection; the sink's ``path`` comes behind it
    :ivar headers: sent with each request, e.g. ``Authorization``
    :ivar timeout: seconds for one request, from connecting to the acknowledgement
    :ivar patience: seconds for which a batch is tried again where that may help
    :ivar verify: whether certificates are checked, or the file of those that are trusted
    :ivar allowed_hosts: private hosts, addresses and networks that may be called; public ones always may
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    patience: float = 60.0
    verify: bool | str = True
    allowed_hosts: Sequence[str] = ()


OP: Final = "_op"
"""Name of the field that says what became of a row, in exports of changes."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"

_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def rows_of(table: pa.Table | pa.RecordBatch, keys: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows by column, as :func:`dumps` takes them; a deleted one has its keys alone."""
    names, kinds = table.schema.names, table.schema.types
    columns = [_expressed(column.to_pylist(), kind) for column, kind in zip(table.columns, kinds, strict=True)]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        yield {name: row[name] for name in (OP, *keys)} if row.get(OP) == DELETE and keys else row


def dumps(value: Any) -> bytes:
    """JSON in one line, in UTF-8."""
    return orjson.dumps(value, default=_text, option=orjson.OPT_UTC_Z)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        # A class of its own, with nanoseconds.
        return value.isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _expressed(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Maps, and floats that JSON has no word for, in its own terms; what orjson and :func:`_text` write stays."""
    types = pa.types
    if types.is_floating(kind):
        return [each if each is None or math.isfinite(each) else _NOT_FINITE.get(each, "NaN") for each in values]
    if types.is_map(kind):
        make = dict if kind.key_type in (pa.string(), pa.large_string()) else list

        def written(pairs: list[tuple[Any, Any]]) -> Any:
            keys, items = [key for key, _ in pairs], [item for _, item in pairs]
            return make(zip(_expressed(keys, kind.key_type), _expressed(items, kind.item_type), strict=True))

        return [None if each is None else written(each) for each in values]
    if types.is_list(kind) or types.is_large_list(kind):
        return [None if each is None else _expressed(each, kind.value_type) for each in values]
    if types.is_struct(kind):
        return [
            None if each is None else {part.name: _expressed([each[part.name]], part.type)[0] for part in kind}
            for each in values
        ]
    return values


_BUSY: Final = frozenset({408, 425, 429})
_LONGEST_WAIT: Final = 30.0
_STATUS_COUNTS: Final = Limits(body=1.0)
"""A status acknowledges or refuses. The body is for messages: one that drips is left after a second."""


class HttpSender:
    """Posts to one address."""

    def __init__(self, settings: Mapping[str, Any], target: HttpTarget) -> None:
        self._target = target
        self._url = "/".join((target.url.rstrip("/"), str(settings.get("path", "")).lstrip("/"))).rstrip("/")
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            remedy = "a host, and http or https as its schema"
            raise ConfigurationError("sink.settings.connection", "must be an HTTP address", remedy)
        self._host = parts.hostname
        self._verify = trusted_certificates(target.verify)
        self._guard = AddressGuard.of(target.allowed_hosts)
        self._masker = Masker((*secrets_of_url(self._url), *target.headers.values()))
        self._client = Client()

    def send(self, batch: Batch) -> None:
        """Post the batch; again, as long as that may help and the target's patience lasts.

        :raises ConfigurationError: the address is private, and not allowed
        :raises SinkDeliveryError: it was not acknowledged
        """
        window = batch.window
        body = dumps(
            {
                "sink": batch.sink,
                "batch_id": batch.id,
                "from_snapshot": None if window.before is None else str(window.before),
                "to_snapshot": str(window.after),
                "part": window.part,
                "last": batch.last,
                "resend": batch.again,
                "rows": list(rows_of(batch.rows, window.keys)),
            }
        )
        until, longest = time.monotonic() + self._target.patience, 0.2
        while (busy := self._post(batch, body)) is not None:
            problem, asked = busy
            wait = random.uniform(0, longest) if asked is None else asked
            longest = min(2 * longest, _LONGEST_WAIT)
            if time.monotonic() + wait >= until:
                raise SinkDeliveryError(batch.sink, f"{self._host} did not take batch {batch.id}: {problem}")
            time.sleep(wait)

    def close(self) -> None:
        self._client.close()

    def _post(self, batch: Batch, body: bytes) -> tuple[str, float | None] | None:
        """None once the batch is acknowledged; else what another try may mend, and the seconds asked to wait for it."""
        headers = {**self._target.headers, "Content-Type": "application/json", "Idempotency-Key": batch.id}
        request = Request("POST", self._url, headers, body, self._verify)
        answer = self._client.send(request, Deadline(self._target.timeout), self._guard, _STATUS_COUNTS)
        if isinstance(answer, NoAnswer):
            if answer.permanent:
                raise ConfigurationError("sink.settings.connection", answer.detail)
            return answer.detail, None
        if 200 <= answer.status < 300:
            return None
        problem = f"HTTP {answer.status}"
        if answer.body:
            problem += f": {self._masker.one_line(self._masker.kept(answer.body))}"
        asked = retry_after(answer.headers.get("Retry-After"))
        if answer.status in _BUSY or answer.status >= 500 or (answer.status == 403 and asked is not None):
            return problem, asked
        problem = f"{self._host} refused batch {batch.id} with {problem}"
        raise SinkDeliveryError(batch.sink, problem, "correct what it refuses; the next run sends the batch again")


_WHOLE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})
"""Protocols of stores that show an object when it is complete."""


class FileSender:
    """Writes below one folder of one file system."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._collected = False
        self._format = str(settings.get("format", "jsonl"))
        try:
            self._files, root = fsspec.core.url_to_fs(str(settings["path"]))
        except (ValueError, ImportError, OSError) as error:
            problem = f"a file system of this protocol can't be opened ({type(error).__name__})"
            raise ConfigurationError("sink.settings.path", problem, "install fsspec's package for it") from None
        self._folder = root.rstrip("/")

    def send(self, batch: Batch) -> None:
        """Write the file unless it is there: what is there is whole.

        :raises SinkDeliveryError: it can't be written
        """
        name = f"{batch.id}.{self._format}"
        try:
            if not self._files.exists(f"{self._folder}/{name}"):
                self._write(name, self._encoded(batch))
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own; some print credentials
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SinkDeliveryError(batch.sink, f"the file {batch.id} can't be written: {why}") from None

    def close(self) -> None:
        """Nothing is held."""

    def _encoded(self, batch: Batch) -> bytes:
        if self._format == "jsonl":
            return b"".join(dumps(row) + b"\n" for row in rows_of(batch.rows, batch.window.keys))
        buffer = pa.BufferOutputStream()
        marks = {"rfr.sink": batch.sink, "rfr.batch": batch.id, "rfr.resend": str(batch.again)}
        pq.write_table(batch.rows.replace_schema_metadata(marks), buffer, compression="zstd")
        return bytes(buffer.getvalue())

    def _write(self, name: str, data: bytes) -> None:
        path, protocol = f"{self._folder}/{name}", self._files.protocol
        if not _WHOLE.isdisjoint([protocol] if isinstance(protocol, str) else protocol):
            self._files.pipe_file(path, data)
            return
        self._files.makedirs(self._folder, exist_ok=True)
        # A hidden name, so that readers of the folder skip it; a new one, so that two runs never share it.
        hidden = f"{self._folder}/.{name}.{uuid4().hex}.part"
        if not self._collected:
            # What killed runs left is of their last batch, which is the first one of this run.
            for each in map(str, self._files.ls(self._folder, detail=False)):
                if each.rpartition("/")[2].startswith(f".{name}."):
                    self._files.rm_file(each)
            self._collected = True
        if isinstance(self._files, LocalFileSystem):
            _write_local(Path(hidden), Path(path), data)
        else:
            self._files.pipe_file(hidden, data)
            self._files.mv(hidden, path)


def _write_local(hidden: Path, path: Path, data: bytes) -> None:
    """An acknowledged batch outlives a power cut."""
    with hidden.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(hidden, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
