"""PyIceberg's scan of data files, corrected so that nulls are kept.

PyIceberg 0.12 projects the rows that it reads or writes to the columns of a table. It rebuilds lists of structs, and
maps with structs as values, from offsets alone, so that a null list or map becomes empty. It casts lists and maps that
contain these with Arrow, which matches fields of structs by name, so that a renamed field loses its values. The first
import of this module corrects both in the whole process, for every caller of PyIceberg.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan
from pyiceberg.types import ListType, MapType

__all__ = ["ArrowScan"]


class NullKeepingProjection(ArrowProjectionVisitor):
    """A projection that builds each list and map from its own nulls and offsets and the projected values."""

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        if not isinstance(list_array, (pa.ListArray, pa.LargeListArray)) or value_array is None:
            return super().list(list_type, list_array, value_array)
        values = self._cast_if_needed(list_type.element_field, value_array)
        make = pa.large_list if isinstance(list_array, pa.LargeListArray) else pa.list_
        return _rebuilt(list_array, make(self._construct_field(list_type.element_field, values.type)), values)

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        if not isinstance(map_array, pa.MapArray) or key_result is None or value_result is None:
            return super().map(map_type, map_array, key_result, value_result)
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        key_field = self._construct_field(map_type.key_field, keys.type)
        kind = pa.map_(key_field, self._construct_field(map_type.value_field, values.type))
        entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
        return _rebuilt(map_array, kind, entries)


def _rebuilt(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return the lists or maps with other values inside, which must be as many as in the whole, unsliced array."""
    buffers: Any = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children=[values])


pyiceberg_arrow.ArrowProjectionVisitor = NullKeepingProjection  # type: ignore[misc]
