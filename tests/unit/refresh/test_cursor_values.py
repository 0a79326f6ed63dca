"""Values of a cursor column: read from every type of column, compared by their kind, and kept as text."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, SyncStateError
from airflow_provider_rfr.refresh.cursor_values import comparable, greatest, text_of, value_of
from airflow_provider_rfr.streams.incremental import CursorColumn
from tests.unit.messages import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
MOMENT, INTEGER, TEXT = (CursorColumn("c", kind) for kind in ("datetime", "integer", "text"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "column", "text"),
    [
        (pa.array([NOON], pa.timestamp("us", "UTC")), MOMENT, "2026-03-01T12:00:00.000000Z"),
        (pa.array([NOON], pa.timestamp("s", "Europe/Zurich")), MOMENT, "2026-03-01T12:00:00.000000Z"),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), MOMENT, "2026-03-01T12:00:00.000000Z"),
        (
            pa.array([datetime(2026, 3, 1, 21)], pa.timestamp("us")),
            CursorColumn("c", timezone="Asia/Tokyo"),
            "2026-03-01T12:00:00.000000Z",
        ),
        (pa.array([date(2026, 3, 1)]), MOMENT, "2026-03-01T00:00:00.000000Z"),
        (pa.array([date(2026, 3, 1)]), CursorColumn("c", timezone="America/New_York"), "2026-03-01T05:00:00.000000Z"),
        (pa.array([date(2026, 3, 1)]), CursorColumn("c", timezone="Europe/Zurich"), "2026-02-28T23:00:00.000000Z"),
        (pa.array(["2026-03-01T14:00:00+02:00"]), MOMENT, "2026-03-01T12:00:00.000000Z"),
        (pa.array(["2026-03-01"]), CursorColumn("c", timezone="Europe/Zurich"), "2026-02-28T23:00:00.000000Z"),
        (pa.array(["01.03.2026 12:00"]), CursorColumn("c", format="%d.%m.%Y %H:%M"), "2026-03-01T12:00:00.000000Z"),
        (pa.array([1772366400]), CursorColumn("c", format="epoch"), "2026-03-01T12:00:00.000000Z"),
        (pa.array(["1772366400000"]), CursorColumn("c", format="epoch_ms"), "2026-03-01T12:00:00.000000Z"),
        (pa.array([1772366400.5]), CursorColumn("c", format="epoch"), "2026-03-01T12:00:00.500000Z"),
        (pa.array(["1772366400.5"]), CursorColumn("c", format="epoch"), "2026-03-01T12:00:00.500000Z"),
        (pa.array([1772366400000000]), CursorColumn("c", format="epoch_us"), "2026-03-01T12:00:00.000000Z"),
        (
            pa.array([1772366400000]),
            CursorColumn("c", format="%Y", tried_before=("epoch_ms",)),
            "2026-03-01T12:00:00.000000Z",
        ),
        (
            pa.array(["03.01.2026"]),
            CursorColumn("c", format="%d.%m.%Y", tried_before=("%m.%d.%Y",)),
            "2026-03-01T00:00:00.000000Z",
        ),
        (pa.array([2**62]), INTEGER, str(2**62)),
        (pa.array([Decimal(2**80)], pa.decimal128(38, 0)), INTEGER, str(2**80)),
        (pa.array(["é"]), TEXT, "é"),
    ],
)
def test_a_value_is_read_from_its_column_and_back_from_its_text(
    values: pa.Array, column: CursorColumn, text: str
) -> None:
    value = comparable(pa.chunked_array([values]), column)[0].as_py()
    assert text_of(value, column) == text
    assert value_of(text, column) == value


EPOCH = CursorColumn("c", format="epoch")


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (1772366400000, EPOCH),  # milliseconds
        (-(2**63), EPOCH),
        (1772366400000.5, EPOCH),
        ("9" * 30, EPOCH),
        ("9999-12-31 23:59:59", CursorColumn("c", format="%Y-%m-%d %H:%M:%S", timezone="America/New_York")),
        ("0001-01-01 00:00:00", CursorColumn("c", format="%Y-%m-%d %H:%M:%S", timezone="Asia/Tokyo")),
    ],
)
def test_a_value_beyond_all_years_is_none(value: Any, column: CursorColumn) -> None:
    assert comparable(pa.chunked_array([[value, None]]), column).null_count == 2


def test_fractions_and_zones_do_not_mislead_the_comparison() -> None:
    texts = pa.array(["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.5Z", "2026-03-01T13:00:00+02:00", None, "soon"])
    values = comparable(texts, MOMENT)
    assert values.null_count == 2
    assert comparable(pa.array([1e300, -1e300, 1.0]), CursorColumn("c", format="epoch")).null_count == 2
    assert pc.max(values).as_py() == (NOON + timedelta(seconds=0.5)).timestamp() * 1_000_000


def test_texts_are_compared_by_their_bytes() -> None:
    assert text_of(pc.max(comparable(pa.array(["Z", "a", "\uffee", "\U0001f600"]), TEXT)).as_py(), TEXT) == "\U0001f600"


@pytest.mark.parametrize(
    ("values", "column"),
    [(pa.array([1.5]), MOMENT), (pa.array([1]), MOMENT), (pa.array(["1"]), INTEGER), (pa.array([1]), TEXT)],
)
def test_a_column_of_another_type_is_no_cursor(values: pa.Array, column: CursorColumn) -> None:
    with raises(ConfigurationError):
        comparable(values, column)


@pytest.mark.parametrize(("text", "column"), [("soon", MOMENT), ("2026-03-01T12:00:00", MOMENT), ("x", INTEGER)])
def test_another_text_is_no_value(text: str, column: CursorColumn) -> None:
    with raises(SyncStateError):
        value_of(text, column)


@pytest.mark.parametrize(
    ("texts", "column", "found"),
    [((None, "9", "10"), INTEGER, "10"), ((None, None), INTEGER, None), (("b", "a"), TEXT, "b")],
)
def test_the_greatest_is_found_by_value(texts: tuple[Any, ...], column: CursorColumn, found: str | None) -> None:
    assert greatest(*texts, column=column) == found
