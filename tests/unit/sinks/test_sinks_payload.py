"""Rows as JSON: nothing is lost that JSON has no word for."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.sinks.windows import dumps, rows_of

UTC, LOCAL = timezone.utc, timezone(timedelta(hours=1))
PAIR = pa.struct({"a": pa.decimal128(3, 0), "b": pa.date32()})
DAY = datetime(2026, 1, 2, 3, 4, 5, 600)


@pytest.mark.parametrize(
    ("value", "kind", "written"),
    [
        (2**60, pa.int64(), 2**60),
        (True, pa.bool_(), True),
        ("ü", pa.large_string(), "ü"),
        (1.5, pa.float64(), 1.5),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float32(), "-Infinity"),
        (float("inf"), pa.float32(), "Infinity"),
        (Decimal("1.10"), pa.decimal128(9, 2), "1.10"),
        (date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (time(3, 4), pa.time64("us"), "03:04:00"),
        (DAY, pa.timestamp("us"), "2026-01-02T03:04:05.000600"),
        (DAY.replace(tzinfo=UTC), pa.timestamp("us", "UTC"), "2026-01-02T03:04:05.000600Z"),
        (DAY.replace(tzinfo=LOCAL), pa.timestamp("us", "+01:00"), "2026-01-02T03:04:05.000600+01:00"),
        (b"\x00\xff", pa.binary(), "AP8="),
        ([1, None], pa.list_(pa.int32()), [1, None]),
        ([date(2026, 1, 2), None], pa.large_list(pa.date32()), ["2026-01-02", None]),
        ({"a": Decimal("1"), "b": None}, PAIR, {"a": "1", "b": None}),
        ([("k", Decimal("1"))], pa.map_(pa.string(), pa.decimal128(3, 0)), {"k": "1"}),
        ([(1, "x")], pa.map_(pa.int64(), pa.string()), [[1, "x"]]),
        (None, pa.decimal128(3, 0), None),
        (None, pa.null(), None),
    ],
)
def test_values_are_written_as_json_can_hold_them(value: Any, kind: pa.DataType, written: Any) -> None:
    table = pa.table({"c": pa.array([value], kind)})
    (row,) = rows_of(table)
    assert json.loads(dumps(row)) == {"c": written}


def test_a_deleted_row_has_its_keys_alone() -> None:
    table = pa.table({"_op": ["upsert", "delete"], "id": [1, 2], "v": ["a", None]})
    assert list(rows_of(table, ("id",))) == [{"_op": "upsert", "id": 1, "v": "a"}, {"_op": "delete", "id": 2}]
