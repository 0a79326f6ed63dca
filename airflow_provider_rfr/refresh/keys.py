"""Finding rows with the same primary key, without moving the rows.

Each data file gets a small companion of sixteen bytes a row. One job, each task with its share of the key space,
finds the rows that lose; only files that hold such rows are written again. The row that was fetched last wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.files import FileStore

KEY_BYTES = 16
EXTRACTED_AT = "_rfr_extracted_at"


@dataclass(frozen=True, slots=True)
class KeySearch:
    """A task's share of the search: keys whose first two bytes fall into one of ``buckets`` classes."""

    store: FileStore
    companions: tuple[str, ...]
    bucket: int
    buckets: int


def key_columns(
    primary_key: str | Sequence[str] | Sequence[Sequence[str]] | None, rows: pa.Schema
) -> tuple[tuple[str, ...], ...]:
    """Paths of the key's columns; raises :class:`ConfigurationError` for a column that the rows lack."""
    if primary_key is None:
        return ()
    parts = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    paths = tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)
    for path in paths:
        kind: pa.DataType = pa.struct(list(rows))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise ConfigurationError(
                    "primary_key", f"the rows have no column {'.'.join(path)}", f"columns are {', '.join(rows.names)}"
                )
            kind = kind.field(name).type
    return paths


def write_keys(store: FileStore, location: str, table: pa.Table, key_columns: Sequence[Sequence[str]]) -> None:
    """Write the companion of a data file: key and time of each of its rows, in the file's order."""
    times = table[EXTRACTED_AT].cast(pa.int64()).to_numpy()
    body = _keys(table, key_columns).tobytes() + times.tobytes()
    store.write(location, len(times).to_bytes(8, "big") + body)


def find_losers(search: KeySearch) -> dict[str, list[int]]:
    """Rows to drop, by companion: of equal keys all but the one that was fetched last."""
    keys, times, places = [], [], []
    for number, location in enumerate(search.companions):
        key, time = _read_keys(search.store.read(location))
        rows = np.flatnonzero((key[:, 0] >> np.uint64(48)) % np.uint64(search.buckets) == search.bucket)
        rows = rows[(key[rows] != 0).any(axis=1)]
        keys.append(key[rows])
        times.append(time[rows])
        places.append(np.column_stack([np.full(len(rows), number), rows]))
    key, time, place = np.concatenate(keys), np.concatenate(times), np.concatenate(places)
    order = np.lexsort((place[:, 1], place[:, 0], time, key[:, 1], key[:, 0]))
    ordered = key[order]
    loses = np.append((ordered[1:] == ordered[:-1]).all(axis=1), False)[: len(order)]
    found: dict[str, list[int]] = {}
    for number, row in place[order[loses]].tolist():
        found.setdefault(search.companions[number], []).append(row)
    return found


def _keys(table: pa.Table, key_columns: Sequence[Sequence[str]]) -> np.ndarray[Any, Any]:
    """Sixteen bytes a row; all zero for a row whose key has a null, which equals no other."""
    columns = [_column(table, path).to_pylist() for path in key_columns]
    keys = bytearray()
    for values in zip(*columns, strict=True):
        if None in values:
            keys += bytes(KEY_BYTES)
        else:
            keys += hashlib.blake2b(orjson.dumps(values, default=str), digest_size=KEY_BYTES).digest()
    return np.frombuffer(bytes(keys), dtype=np.uint64).reshape(-1, 2)


def _column(table: pa.Table, path: Sequence[str]) -> Any:
    import pyarrow.compute as pc

    column = table[path[0]]
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _read_keys(data: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    count = int.from_bytes(data[:8], "big")
    end = 8 + count * KEY_BYTES
    return np.frombuffer(data[8:end], dtype=np.uint64).reshape(-1, 2), np.frombuffer(data[end:], dtype=np.int64)
