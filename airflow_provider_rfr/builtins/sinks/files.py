"""Batches as files: one file a batch, named by its id, there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from airflow_provider_rfr.builtins.sinks.payload import dumps, rows_of
from airflow_provider_rfr.builtins.sinks.targets import Batch, FilesTarget
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.exceptions.sinks import SinkDeliveryError

_WHOLE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})
"""Protocols of stores that show an object when it is complete."""


class FileSender:
    """Writes below one folder of one file system."""

    def __init__(self, sink: str, settings: Mapping[str, Any], target: FilesTarget) -> None:
        self._sink = sink
        self._collected = False
        self._format = str(settings.get("format", "jsonl"))
        if self._format not in _ENCODE:
            raise ConfigurationError("sink.settings.format", f"{self._format!r} is no format", "jsonl or parquet")
        try:
            self._files, self._root = fsspec.core.url_to_fs(str(settings["path"]), **target.options)
        except (ValueError, ImportError, OSError) as error:
            problem = f"a file system of this protocol can't be opened ({type(error).__name__})"
            raise ConfigurationError("sink.settings.path", problem, "install fsspec's package for it") from None

    def send(self, batch: Batch) -> None:
        """Write the file unless it is there: what is there is whole."""
        path = f"{self._root.rstrip('/')}/{batch.id}.{self._format}"
        try:
            if not self._files.exists(path):
                self._write(path, _ENCODE[self._format](batch), batch.token)
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own; some print credentials
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SinkDeliveryError(self._sink, f"the file {batch.id} can't be written: {why}") from None

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, path: str, data: bytes, token: int) -> None:
        protocols = {self._files.protocol} if isinstance(self._files.protocol, str) else set(self._files.protocol)
        if protocols & _WHOLE:
            self._files.pipe_file(path, data)
            return
        folder, _, name = path.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        # Hidden, so that whoever lists the folder takes it for none of ours; another run has another token.
        self._collect(folder, f".{name}.", token)
        hidden = f"{folder}/.{name}.{token}.part"
        if isinstance(self._files, LocalFileSystem):
            _write_local(Path(hidden), Path(path), data)
        else:
            self._files.pipe_file(hidden, data)
            self._files.mv(hidden, path)

    def _collect(self, folder: str, prefix: str, token: int) -> None:
        """What runs that were killed left of their last batch, which is the first one of the next run."""
        if self._collected:
            return
        self._collected = True
        for path in self._files.ls(folder, detail=False):
            name = str(path).rpartition("/")[2]
            if name.startswith(prefix) and name.endswith(".part") and int(name.split(".")[-2]) < token:
                self._files.rm_file(path)


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


def _jsonl(batch: Batch) -> bytes:
    lines = BytesIO()
    for row in rows_of(batch.rows, batch.window.keys):
        lines.write(dumps(row) + b"\n")
    return lines.getvalue()


def _parquet(batch: Batch) -> bytes:
    buffer = pa.BufferOutputStream()
    said = {"rfr.sink": batch.sink, "rfr.batch": batch.id, "rfr.resend": str(batch.again)}
    with pq.ParquetWriter(buffer, batch.rows.schema, compression="zstd") as writer:
        writer.write_table(batch.rows)
        writer.add_key_value_metadata(said)
    return bytes(buffer.getvalue())


_ENCODE: Final[Mapping[str, Callable[[Batch], bytes]]] = {"jsonl": _jsonl, "parquet": _parquet}
