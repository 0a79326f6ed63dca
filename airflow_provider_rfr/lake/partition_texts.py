"""Partition transforms as declarations write them: ``region``, ``days(at)``, ``bucket(16, id)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)

from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from typing import Any

    from pyiceberg.schema import Schema

_TIMES: dict[str, Transform[Any, Any]] = {
    "years": YearTransform(),
    "months": MonthTransform(),
    "days": DayTransform(),
    "hours": HourTransform(),
}
_CALL = re.compile(r"(\w+)\((?:(\d+), )?(.+)\)")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """One transform of one column. :ivar suffix: what the partition's name has behind the column's"""

    column: str
    transform: Transform[Any, Any]
    suffix: str = ""


def parse_partition(text: str) -> Partitioned:
    """What a canonical text says.

    :raises ConfigurationError: it is not canonical
    """
    found = _CALL.fullmatch(text)
    if found is None:
        return Partitioned(_bare(text), IdentityTransform())
    name, size, column = found.group(1), found.group(2), _bare(found.group(3))
    if name in _TIMES and size is None:
        return Partitioned(column, _TIMES[name], f"_{name[:-1]}")
    if name == "bucket" and size is not None:
        return Partitioned(column, BucketTransform(int(size)), f"_bucket_{size}")
    if name == "truncate" and size is not None:
        return Partitioned(column, TruncateTransform(int(size)), f"_trunc_{size}")
    raise ConfigurationError("partitioning", f"{text!r} is no transform", "write e.g. days(at)")


def partition_spec(texts: Sequence[str], schema: Schema) -> PartitionSpec | None:
    """The partitioning of a new table; None for none."""
    if not texts:
        return None
    fields = []
    for number, text in enumerate(texts):
        part = parse_partition(text)
        source = schema.find_field(part.column, case_sensitive=False)
        name = f"{source.name}{part.suffix}"
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, part.transform, name))
    return PartitionSpec(*fields)


def partition_texts(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """How a table is partitioned."""
    return tuple(
        partition_text(field, schema) for field in spec.fields if not isinstance(field.transform, VoidTransform)
    )


def partition_text(field: PartitionField, schema: Schema) -> str:
    """One partition field; a transform that declarations don't have is shown as Iceberg calls it."""
    name = schema.find_column_name(field.source_id) or f"#{field.source_id}"
    column = name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    word = next((word for word, kind in _TIMES.items() if transform == kind), str(transform))
    return f"{word}({column})"


def _bare(name: str) -> str:
    quoted = len(name) > 2 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if quoted else name
