"""Columns of JSON text, filled before Arrow reads: its reader takes only strings for a string column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_rfr.lake.columns import is_json_text
from airflow_provider_rfr.refresh.json_columns import MisfitError
from airflow_provider_rfr.streams.json_numbers import dumps, loads

_Write = Callable[[Any], Any]


def text_writer(schema: pa.Schema) -> Callable[[bytes], bytes] | None:
    """A function that replaces, in a block of lines, each value of a JSON text column by its text.

    None where the schema has no such column. The function raises :class:`MisfitError` for a line that is no JSON, and
    leaves values of a wrong shape as they are, for others to find.
    """
    write = _struct_writer(list(schema))
    if write is None:
        return None

    def rewrite(block: bytes) -> bytes:
        try:
            return b"\n".join([dumps(write(loads(line))) for line in block.split(b"\n")])
        except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
            raise MisfitError(str(error)) from error

    return rewrite


def _writer(field: pa.Field) -> _Write | None:
    if is_json_text(field):
        return _text
    if pa.types.is_struct(field.type):
        return _struct_writer(list(field.type))
    if pa.types.is_list(field.type):
        return _list_writer(_writer(field.type.value_field))
    return None


def _text(value: Any) -> str:
    return dumps(value).decode()


def _struct_writer(fields: list[pa.Field]) -> _Write | None:
    writers = [(field.name, write) for field in fields if (write := _writer(field)) is not None]
    if not writers:
        return None

    def write_fields(value: Any) -> Any:
        if isinstance(value, dict):
            for name, write in writers:
                if (inner := value.get(name)) is not None:
                    value[name] = write(inner)
        return value

    return write_fields


def _list_writer(write: _Write | None) -> _Write | None:
    if write is None:
        return None

    def write_items(value: Any) -> Any:
        return [None if item is None else write(item) for item in value] if isinstance(value, list) else value

    return write_items
