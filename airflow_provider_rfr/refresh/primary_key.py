"""Checks of a stream's primary key.

The key is checked against declared columns before anything is read, against the first of several pages, and against the
columns that are published.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.core import PrimaryKey, key_paths

_SHOWN = 20


def key_columns(primary_key: PrimaryKey, rows: pa.Schema) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the key's columns.

    :raises ConfigurationError: the rows lack one
    """
    paths = key_paths(primary_key)
    for path in paths:
        kind: pa.DataType = pa.struct(list(rows))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                raise _missing(path, "the rows have no column", "columns", rows.names)
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
        if not any(_has(record, path) for record in records):
            fields = dict.fromkeys(name for record in records for name in record)
            raise _missing(path, "no record of the first page has the field", "fields", fields)


def _has(record: Any, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(record, Mapping) or name not in record:
            return False
        record = record[name]
    return True


def _missing(path: Sequence[str], problem: str, noun: str, names: Iterable[str]) -> ConfigurationError:
    existing = list(names)
    near = difflib.get_close_matches(path[0], existing, 1)
    guess = f"did you mean {near[0]}? " if near and near[0] != path[0] else ""
    more = "" if len(existing) <= _SHOWN else f" and {len(existing) - _SHOWN} more"
    remedy = f"{guess}{noun} are {', '.join(existing[:_SHOWN])}{more}"
    return ConfigurationError("primary_key", f"{problem} {'.'.join(path)}", remedy)
