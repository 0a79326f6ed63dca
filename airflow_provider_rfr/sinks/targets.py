"""Targets of sinks: batches as POST requests, or as files. A batch that is taken without an error is acknowledged."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.exceptions import ConfigurationError, SinkDeliveryError
from airflow_provider_rfr.http import client as http
from airflow_provider_rfr.http.redaction import Masker, host_of, secrets_of_url
from airflow_provider_rfr.http.sockets import AddressGuard, Deadline
from airflow_provider_rfr.sinks.windows import Batch, dumps, rows_of


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """An HTTP endpoint, its connection resolved; ``repr`` shows no secret.

    :ivar timeout: seconds for one request, from connecting to the acknowledgement
    :ivar patience: seconds for which a batch is tried again where that may help
    :ivar allowed_hosts: private hosts, addresses and networks that may be called
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    patience: float = 60.0
    verify: bool | str = True
    allowed_hosts: Sequence[str] = ()


_BUSY: Final = (408, 425, 429)
_STATUS_COUNTS: Final = http.Limits(body=1.0)
"""A status acknowledges or refuses. The body is for messages: one that drips is left after a second."""


class HttpSender:
    """A sender that posts to one address."""

    def __init__(self, settings: Mapping[str, Any], target: HttpTarget) -> None:
        self._target = target
        self._url = "/".join((target.url.rstrip("/"), str(settings.get("path", "")).lstrip("/"))).rstrip("/")
        self._host = host_of(self._url)
        if not self._host.startswith(("http://", "https://")):
            remedy = "a host, and http or https as its schema"
            raise ConfigurationError("sink.settings.connection", "must be an HTTP address", remedy)
        self._verify = http.trusted_certificates(target.verify)
        self._guard = AddressGuard.of(target.allowed_hosts)
        self._masker = Masker((*secrets_of_url(self._url), *target.headers.values()))
        self._client = http.Client()

    def send(self, batch: Batch) -> None:
        """Post the batch, and repeat it as long as that may help and the target's patience lasts."""
        window = batch.window
        body = {
            "sink": batch.sink,
            "batch_id": batch.id,
            # Texts: these numbers exceed what JavaScript can count.
            "from_snapshot": None if window.before is None else str(window.before),
            "to_snapshot": str(window.after),
            "part": window.part,
            "last": batch.last,
            "resend": batch.again,
            "rows": list(rows_of(batch.rows, window.keys)),
        }
        headers = {**self._target.headers, "Content-Type": "application/json", "Idempotency-Key": batch.id}
        request = http.Request("POST", self._url, headers, dumps(body), self._verify)
        until, longest = time.monotonic() + self._target.patience, 0.2
        while (busy := self._post(batch, request)) is not None:
            problem, asked = busy
            wait = random.uniform(0, longest) if asked is None else asked
            longest *= 2
            if time.monotonic() + wait >= until:
                raise SinkDeliveryError(batch.sink, f"{self._host} did not take batch {batch.id}: {problem}")
            time.sleep(wait)

    def close(self) -> None:
        self._client.close()

    def _post(self, batch: Batch, request: http.Request) -> tuple[str, float | None] | None:
        """Post the batch once; None if it is acknowledged.

        :returns: the problem, if another try may succeed, and the seconds that the target asked to wait
        :raises ConfigurationError: no try with this connection can get an answer
        :raises SinkDeliveryError: the target refuses the batch
        """
        answer = self._client.send(request, Deadline(self._target.timeout), self._guard, _STATUS_COUNTS)
        if isinstance(answer, http.NoAnswer):
            if answer.permanent:
                raise ConfigurationError("sink.settings.connection", answer.detail)
            return answer.detail, None
        if 200 <= answer.status < 300:
            return None
        problem = f"HTTP {answer.status}"
        if answer.body:
            problem += f": {self._masker.one_line(self._masker.kept(answer.body))}"
        asked = http.retry_after(answer.headers.get("Retry-After"))
        if answer.status in _BUSY or answer.status >= 500 or (answer.status == 403 and asked is not None):
            return problem, asked
        problem = f"{self._host} refused batch {batch.id} with {problem}"
        raise SinkDeliveryError(batch.sink, problem, "correct what it refuses; the next run sends the batch again")


_WHOLE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})
"""Protocols of stores that show an object when it is complete."""


class FileSender:
    """A sender that writes below one folder of one file system."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._collected = False
        self._format = str(settings.get("format", "jsonl"))
        try:
            self._files, root = fsspec.core.url_to_fs(str(settings["path"]))
        except (ValueError, ImportError, OSError) as error:
            problem = f"a file system of this protocol can't be opened ({type(error).__name__})"
            raise ConfigurationError("sink.settings.path", problem, "install fsspec's package for it") from None
        self._folder = root.rstrip("/")
        protocol = self._files.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else {*protocol}

    def send(self, batch: Batch) -> None:
        """Write the file unless it exists: an existing file is complete."""
        try:
            if not self._files.exists(f"{self._folder}/{batch.id}.{self._format}"):
                self._write(f"{batch.id}.{self._format}", self._encoded(batch))
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own; some print credentials
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SinkDeliveryError(batch.sink, f"the file {batch.id} can't be written: {why}") from None

    def close(self) -> None:
        """Do nothing: the sender holds no resources."""

    def _encoded(self, batch: Batch) -> bytes:
        if self._format == "jsonl":
            return b"".join(dumps(row) + b"\n" for row in rows_of(batch.rows, batch.window.keys))
        buffer = pa.BufferOutputStream()
        marks = {"rfr.sink": batch.sink, "rfr.batch": batch.id, "rfr.resend": str(batch.again)}
        pq.write_table(batch.rows.replace_schema_metadata(marks), buffer, compression="zstd")
        return bytes(buffer.getvalue())

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._folder}/{name}"
        if self._protocols & _WHOLE:
            self._files.pipe_file(path, data)
            return
        self._files.makedirs(self._folder, exist_ok=True)
        if not self._collected:
            # What killed runs left is of their last batch, which is the first one of this run.
            for file in map(str, self._files.ls(self._folder, detail=False)):
                if file.rpartition("/")[2].startswith(f".{name}."):
                    self._files.rm_file(file)
            self._collected = True
        # A hidden name, so that readers of the folder skip it; a new one, so that two runs never share it.
        hidden = f"{self._folder}/.{name}.{uuid4().hex}.part"
        self._files.pipe_file(hidden, data)
        if "file" not in self._protocols:
            self._files.mv(hidden, path)
            return
        # An acknowledged batch outlives a power cut.
        _sync(hidden)
        os.replace(hidden, path)
        _sync(self._folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
