"""Pages become typed rows, all of them, and what does not fit is named by its place."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.inference import infer_records
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS, TIMESTAMP, json_text_field, mixed_text_field
from airflow_provider_rfr.numbers import LongNumber
from airflow_provider_rfr.refresh.typed_rows import (
    BlockMismatchError,
    BlockReader,
    LedgerPage,
    TypedRows,
    _PageReader,
    read_columns,
    type_pages,
)
from tests.profile import examples
from tests.unit.messages import raises

UTC = dt.timezone.utc
Policy = Literal["fail", "null"]


def page(*records: Any, partition: str = "{}", number: int = 1, at: int = 0) -> LedgerPage:
    return raw("\n".join(map(json.dumps, records)).encode(), len(records), partition, number, at)


def raw(text: bytes, count: int, partition: str = "{}", number: int = 1, at: int = 0) -> LedgerPage:
    return LedgerPage(partition, number, memoryview(text), count, at)


def typed(schema: pa.Schema, *pages: LedgerPage, on_type_error: Policy = "null", **options: Any) -> TypedRows:
    return type_pages(pages, schema, generation=7, on_type_error=on_type_error, **options)


def one_column(kind: pa.DataType | pa.Field, *values: Any) -> TypedRows:
    field = kind.with_name("a") if isinstance(kind, pa.Field) else pa.field("a", kind)
    return typed(pa.schema([field]), page(*({"a": value} for value in values)))


def values(rows: TypedRows, name: str = "a") -> list[Any]:
    found: list[Any] = rows.table[name].to_pylist()
    return found


def test_rows_keep_the_order_of_pages_and_carry_the_system_columns() -> None:
    rows = typed(pa.schema([("a", pa.int64())]), page({"a": 1}, {"a": 2}, at=10), page(), page({"a": 3}, at=20))
    assert rows.table.schema.names == ["a", *SYSTEM_COLUMNS.names]
    assert rows.table.schema.field("_rfr_extracted_at").type == TIMESTAMP
    assert values(rows) == [1, 2, 3]
    assert values(rows, "_rfr_generation") == [7, 7, 7]
    assert rows.table["_rfr_extracted_at"].cast(pa.int64()).to_pylist() == [10, 10, 20]
    assert values(rows, "_rfr_meta") == [None, None, None]


@pytest.mark.parametrize("pages", [[], [page()], [page(), page()]])
def test_no_records_are_a_table_without_rows(pages: list[LedgerPage]) -> None:
    rows = typed(pa.schema([("a", pa.int64()), ("s", pa.struct([("x", TIMESTAMP)]))]), *pages)
    assert rows.table.num_rows == 0
    assert rows.table.schema.names == ["a", "s", *SYSTEM_COLUMNS.names]


def test_a_schema_without_columns_still_counts_the_records() -> None:
    assert typed(pa.schema([]), page({}, {"x": 1}), page({"y": 2})).table.num_rows == 3


def test_records_can_be_bytes_a_view_or_an_arrow_buffer() -> None:
    for records in (b'{"a":1}', memoryview(b'{"a":1}'), pa.py_buffer(b'{"a":1}')):
        good = LedgerPage("p", 1, records, 1, 0)
        assert values(typed(pa.schema([("a", pa.int64())]), good)) == [1]
        bad = LedgerPage("p", 1, records, 1, 0)
        assert typed(pa.schema([("a", pa.bool_())]), bad).offender_count == 1


@pytest.mark.parametrize(
    ("kind", "given_value", "expected"),
    [
        (pa.int64(), 1.0, 1),
        (pa.int64(), -(2**63), -(2**63)),
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.float64(), 3, 3.0),
        (pa.float64(), 2**70, float(2**70)),
        (pa.decimal128(20, 4), 3, Decimal("3.0000")),
        (pa.decimal128(20, 4), 0.1, Decimal("0.1000")),
        (pa.decimal128(20, 4), 1e-4, Decimal("0.0001")),
        (pa.decimal128(20, 4), "12.50", Decimal("12.5000")),
        (pa.decimal128(20, 4), "-1234567890123456.1234", Decimal("-1234567890123456.1234")),
        (pa.decimal128(38, 0), 2**64, Decimal(2**64)),
        (pa.string(), 5, "5"),
        (pa.string(), -0.5, "-0.5"),
        (pa.string(), True, "true"),
        (pa.string(), 2**70, str(2**70)),
        (pa.string(), 'é\u0000\U0001f600\n"', 'é\u0000\U0001f600\n"'),
        (pa.string(), "2026-01-01", "2026-01-01"),
        (pa.string(), "x" * 5_000_000, "x" * 5_000_000),
        (pa.date32(), "2026-02-28", dt.date(2026, 2, 28)),
        (pa.date32(), "2026-02-28T00:00:00Z", dt.date(2026, 2, 28)),
        (pa.time64("us"), "12:30", dt.time(12, 30)),
        (pa.time64("us"), "12:30:59.1234567Z", dt.time(12, 30, 59, 123456)),
        (TIMESTAMP, "2026-01-01T12:00:00Z", dt.datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01T12:00:00", dt.datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01t12:00:00z", dt.datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01 12:00:00+05:30", dt.datetime(2026, 1, 1, 6, 30, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01T12:00:00-0300", dt.datetime(2026, 1, 1, 15, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01T12:00:00.123456789+02", dt.datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        (TIMESTAMP, "2026-01-01", dt.datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), "2026-01-01T12:00:00", dt.datetime(2026, 1, 1, 12)),
        (pa.timestamp("us"), "2026-01-01T12:00:00+01:00", dt.datetime(2026, 1, 1, 11)),
        (pa.bool_(), False, False),
        (pa.list_(pa.int64()), [1, None, 2.0], [1, None, 2]),
        (pa.struct([("x", TIMESTAMP)]), {"x": None, "z": 5}, {"x": None}),
        (
            pa.list_(pa.struct([("x", pa.date32())])),
            [{"x": "2026-01-01"}, None, {}],
            [{"x": dt.date(2026, 1, 1)}, None, {"x": None}],
        ),
    ],
)
def test_what_is_kept_without_loss_is_taken(kind: pa.DataType, given_value: Any, expected: Any) -> None:
    rows = one_column(kind, given_value, None)
    assert rows.offenders == ()
    assert values(rows) == [expected, None]
    assert values(rows, "_rfr_meta") == [None, None]


@pytest.mark.parametrize(
    ("kind", "given_value"),
    [
        (pa.int64(), "5"),
        (pa.int64(), 1.5),
        (pa.int64(), True),
        (pa.int64(), 2**63),
        (pa.int64(), 1e20),
        (pa.int64(), {}),
        (pa.float64(), "1.5"),
        (pa.float64(), False),
        (pa.float64(), 10**400),
        (pa.decimal128(5, 2), 1.255),
        (pa.decimal128(5, 2), 1000),
        (pa.decimal128(5, 2), "1,5"),
        (pa.decimal128(5, 2), ""),
        (pa.decimal128(5, 2), "NaN"),
        (pa.decimal128(5, 2), 1e300),
        (pa.decimal128(5, 2), True),
        (pa.decimal128(5, 2), {}),
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.string(), {"x": 1}),
        (pa.string(), ["x"]),
        (pa.string(), "\ud800"),
        (pa.date32(), "2026-02-30"),
        (pa.date32(), "0000-01-01"),
        (pa.date32(), "2026-02-28T01:00:00Z"),
        (pa.date32(), 20260101),
        (TIMESTAMP, "yesterday"),
        (TIMESTAMP, ""),
        (TIMESTAMP, 1767225600),
        (TIMESTAMP, "2026-01-01T24:00:00Z"),
        (TIMESTAMP, "0001-01-01T00:00:00+05:00"),
        (TIMESTAMP, "9999-12-31T23:59:59-05:00"),
        (TIMESTAMP, "10000-01-01T00:00:00Z"),
        (pa.time64("us"), "12:30:00+01:00"),
        (pa.time64("us"), "25:00"),
        (pa.struct([("x", pa.int64())]), [1]),
        (pa.list_(pa.int64()), 1),
    ],
)
def test_what_does_not_fit_is_named_and_null_and_its_neighbours_stay(kind: pa.DataType, given_value: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", kind)])
    rows = typed(schema, page({"id": 1}), page({"id": 2}, {"id": 3, "a": given_value}, partition="p", number=4))
    assert rows.offender_count == 1
    (found,) = rows.offenders
    assert (found.partition, found.page, found.record, found.column) == ("p", 4, 2, "a")
    assert values(rows, "id") == [1, 2, 3]
    assert values(rows) == [None, None, None]
    (change,) = json.loads(values(rows, "_rfr_meta")[2])["changes"]
    assert change["field"] == "a"
    assert change["change"] == "NULLED"
    assert change["reason"].startswith("expected ")


LONG = [
    (pa.float64(), "9007199254740993", 9007199254740992.0),
    (pa.float64(), "0.12345678901234567890", 0.12345678901234568),
    (pa.float64(), "123456789012345678901", 1.2345678901234568e20),
    (pa.decimal128(38, 20), "0.12345678901234567890", Decimal("0.12345678901234567890")),
    (pa.decimal128(38, 2), "9007199254740993", Decimal(9007199254740993)),
    (pa.string(), "0.12345678901234567890", "0.12345678901234567890"),
    (json_text_field("a"), "0.12345678901234567890", "0.12345678901234567890"),
    (pa.int64(), "9007199254740993.0", 9007199254740993),
]


@pytest.mark.parametrize("policy", ["fail", "null"])
@pytest.mark.parametrize(("kind", "digits", "expected"), LONG)
def test_long_numbers_are_exact_or_noted_with_their_digits(
    kind: Any, digits: str, expected: Any, policy: Policy
) -> None:
    field = kind.with_name("a") if isinstance(kind, pa.Field) else pa.field("a", kind)
    schema = pa.schema([pa.field("s", pa.struct([field, ("l", pa.list_(field.with_name("element")))]))])
    line = f'{{"s":{{"a":{digits},"l":[{digits}]}}}}'.encode()
    rows = typed(schema, page({"s": {"a": 1, "l": []}}), raw(line, 1), on_type_error=policy)
    assert rows.offenders == ()
    assert values(rows, "s")[1] == {"a": expected, "l": [expected]}
    meta = values(rows, "_rfr_meta")
    assert meta[0] is None
    if field.type == pa.float64():
        reason = f"a double can't hold {digits}"
        assert json.loads(meta[1])["changes"] == [
            {"field": path, "change": "ROUNDED", "reason": reason} for path in ("s.a", "s.l[]")
        ]
    else:
        assert meta[1] is None


def test_large_doubles_that_are_exact_are_not_noted() -> None:
    rows = one_column(pa.float64(), 1e300, 2**60, 1e16, 0.30000000000000004, 5e-324)
    assert values(rows) == [1e300, 2.0**60, 1e16, 0.30000000000000004, 5e-324]
    assert set(values(rows, "_rfr_meta")) == {None}


def test_inner_values_are_named_by_their_path_and_only_they_become_null() -> None:
    kind = pa.struct([("name", pa.string()), ("items", pa.list_(pa.struct([("n", pa.int64()), ("at", TIMESTAMP)])))])
    bad = {"name": "x", "items": [{"n": 1, "at": "2026-01-01"}, {"n": "two", "at": "never"}, {"n": 3}]}
    rows = one_column(kind, bad, {"name": "y"})
    assert [item.column for item in rows.offenders] == ["a.items[].n", "a.items[].at"]
    at = dt.datetime(2026, 1, 1, tzinfo=UTC)
    assert values(rows)[0]["items"] == [{"n": 1, "at": at}, {"n": None, "at": None}, {"n": 3, "at": None}]
    assert values(rows)[1] == {"name": "y", "items": None}


def test_under_fail_offenders_are_told_and_no_note_is_made() -> None:
    rows = typed(pa.schema([("a", pa.int64())]), page({"a": "x"}), on_type_error="fail")
    assert rows.offender_count == 1
    assert values(rows, "_rfr_meta") == [None]


def test_only_the_first_offenders_are_kept_and_all_are_counted() -> None:
    pages = [page(*({"a": "x"} for _ in range(10)), number=n) for n in range(1, 6)]
    rows = typed(pa.schema([("a", pa.int64())]), *pages, max_offenders=12)
    assert rows.offender_count == 50
    assert [(item.page, item.record) for item in rows.offenders] == [(1, n) for n in range(1, 11)] + [(2, 1), (2, 2)]


def test_a_long_value_is_cut_in_the_report() -> None:
    (found,) = one_column(pa.int64(), "x" * 1000).offenders
    assert len(found.value) == 80
    assert found.value.endswith("...")
    assert found.expected == "integer of 64 bits"


@pytest.mark.parametrize(
    "line", ["null", "5", '"x"', "[1]", "true", "{broken", '{"a":NaN}', '{"a":1}{"a":2}', "[" * 5000]
)
def test_a_line_that_is_no_object_is_an_offender_and_a_row_of_nulls(line: str) -> None:
    text = f'{{"a":1}}\n{line}\n{{"a":3}}'.encode()
    rows = typed(pa.schema([("a", pa.int64())]), raw(text, 3, "p", 2))
    assert values(rows) == [1, None, 3]
    (found,) = rows.offenders
    assert (found.partition, found.page, found.record, found.column) == ("p", 2, 2, "$")


@pytest.mark.parametrize(("text", "count"), [(b'{"a":1}\n{"a":2}', 1), (b'{"a":1}', 2), (b"", 1), (b'{"a":1}', 0)])
def test_a_page_that_does_not_hold_what_it_says_is_refused(text: bytes, count: int) -> None:
    with raises(LedgerError):
        typed(pa.schema([("a", pa.int64())]), page({"a": 0}), raw(text, count, "p", 9))


def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    rows = typed(pa.schema([("a", pa.int64())]), raw(b'{"a":1,"a":2}\n{"a":3}', 2))
    assert (values(rows), rows.offenders) == ([2, 3], ())


def test_undeclared_fields_are_dropped_whatever_they_hold() -> None:
    deep = b'{"a":1,"z":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    rows = typed(pa.schema([("a", pa.int64())]), raw(b'{"a":1,"z":{"y":1},"A":5}\n{"z":[1,"x"]}\n' + deep, 3))
    assert values(rows) == [1, None, 1]


def test_escapes_in_keys_and_values_are_read() -> None:
    rows = typed(pa.schema([("é", pa.string())]), raw(rb'{"\u00e9":"\ud83d\ude00\u0000\/"}', 1))
    assert values(rows, "é") == ["\U0001f600\0/"]


def test_a_json_text_column_takes_every_shape_as_valid_json() -> None:
    given_values = [{"b": [1, {"c": None}]}, [], "plain", 5, 0.5, True, None, {}]
    rows = one_column(json_text_field("a"), *given_values)
    assert rows.offenders == ()
    assert values(rows)[:3] == ['{"b":[1,{"c":null}]}', "[]", '"plain"']
    assert [None if text is None else json.loads(text) for text in values(rows)] == given_values


def test_a_column_of_mixed_texts_keeps_strings_and_takes_every_other_shape_as_json() -> None:
    given_values = [{"b": [1, {"c": None}]}, [], "plain", 5, 0.5, True, None, {}, 2**70]
    texts = ['{"b":[1,{"c":null}]}', "[]", "plain", "5", "0.5", "true", None, "{}", str(2**70)]
    rows = one_column(mixed_text_field("a"), *given_values)
    assert (rows.offenders, values(rows)) == ((), texts)
    strings = one_column(mixed_text_field("a"), "plain", {"x": 1}, None)
    assert values(strings) == ["plain", '{"x":1}', None]
    inner = pa.list_(pa.struct([mixed_text_field("free")]))
    assert values(one_column(inner, [{"free": "s"}, {"free": {"y": 2**70}}])) == [
        [{"free": "s"}, {"free": '{"y":' + str(2**70) + "}"}]
    ]


def test_json_texts_inside_structs_and_lists_are_written_too() -> None:
    kind = pa.list_(pa.struct([pa.field("n", pa.int64()), json_text_field("free")]))
    expected = [{"n": 1, "free": '{"x":1}'}, None, {"n": 2, "free": '"s"'}]
    good = [{"n": 1, "free": {"x": 1}}, None, {"n": 2, "free": "s"}]
    assert values(one_column(kind, good, None)) == [expected, None]
    rows = one_column(kind, good, [{"n": "bad", "free": {"y": 2**70}}])
    assert values(rows) == [expected, [{"n": None, "free": '{"y":' + str(2**70) + "}"}]]
    assert rows.offender_count == 1


def test_zones_may_differ_from_row_to_row() -> None:
    texts = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01", "2026-01-01T02:00:00.0000001+02:00"]
    rows = one_column(TIMESTAMP, *texts)
    assert rows.offenders == ()
    assert set(values(rows)) == {dt.datetime(2026, 1, 1, tzinfo=UTC)}


def test_misfits_leave_the_order_alone() -> None:
    bad = {13, 14, 57, 99}
    pages = [page(*({"a": "x" if p * 3 + n in bad else p * 3 + n} for n in range(3)), number=p + 1) for p in range(40)]
    rows = typed(pa.schema([("a", pa.int64())]), *pages)
    assert values(rows) == [None if n in bad else n for n in range(120)]
    assert [(item.page - 1) * 3 + item.record - 1 for item in rows.offenders] == sorted(bad)
    noted = [n for n, text in enumerate(values(rows, "_rfr_meta")) if text is not None]
    assert noted == sorted(bad)


INSTANTS = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["2026-01-01", "0001-01-01", "9999-12-31", "2026-02-30", "2024-02-29", "0000-01-01", "2026-1-1"]),
    st.sampled_from(["T", "t", " ", ""]),
    st.sampled_from(["00:00", "12:30:59", "23:59:60", "24:00:00", "12", "1230", ""]),
    st.sampled_from(["", ".1", ".123456", ".123456789", "."]),
    st.sampled_from(["", "Z", "z", "+02:00", "+0200", "-02", "+24:00", " Z", "-0000"]),
)


@examples(400, derandomize=True)
@given(INSTANTS, st.sampled_from([TIMESTAMP, pa.timestamp("us"), pa.date32(), pa.time64("us")]))
def test_a_value_reads_the_same_in_a_clean_batch_and_on_a_misfit_page(text: str, kind: pa.DataType) -> None:
    schema = pa.schema([("a", kind)])
    if kind == pa.time64("us"):
        text = text[11:]
    line = orjson.dumps({"a": text})
    reader = _PageReader(schema, 1, note_changes=False)
    slow = read_columns(reader.rewrite([line], "p", 1), 1, schema)
    try:
        fast = read_columns(line, 1, schema)
    except BlockMismatchError:
        return
    assert fast.equals(slow)


DECIMALS = [(5, 2), (12, 3), (38, 8), (38, 0)]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5).filter(lambda text: text.isprintable()),
    st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "12:00", "null", "{}"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2)
    ),
    max_leaves=5,
)
KINDS = st.recursive(
    st.sampled_from(
        [pa.field("a", kind) for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.date32(), TIMESTAMP)]
        + [json_text_field("a")]
    ),
    lambda inner: st.one_of(
        inner.map(lambda field: pa.field("a", pa.list_(field.with_name("element")))),
        st.tuples(inner, inner).map(
            lambda pair: pa.field("a", pa.struct([pair[0].with_name("x"), pair[1].with_name("y")]))
        ),
    ),
    max_leaves=3,
)
KINDS_WITH_DECIMALS = st.one_of(KINDS, st.sampled_from([pa.field("a", pa.decimal128(p, s)) for p, s in DECIMALS]))
NUMBERS = st.one_of(
    st.sampled_from(["1000", "999.99", "1e3", "99999999999999999999999999999999999999", "1" + "0" * 38]).map(
        LongNumber
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=8).map(lambda number: LongNumber(str(number))),
    st.decimals(-(10**6), 10**6, places=3).map(lambda number: LongNumber(str(number))),
    st.decimals(-(10**6), 10**6, places=3).map(str),
)
RECORDS = st.lists(st.one_of(st.dictionaries(st.just("a"), VALUES, max_size=1), VALUES), max_size=5)


@examples(500, derandomize=True)
@given(KINDS, st.lists(RECORDS, max_size=4))
def test_every_record_becomes_a_row_whatever_it_is_and_whatever_its_neighbours_are(
    field: pa.Field, contents: list[list[Any]]
) -> None:
    schema = pa.schema([field])
    pages = [page(*records, number=number + 1) for number, records in enumerate(contents)]
    together = typed(schema, *pages, max_offenders=1000)
    assert together.table.num_rows == sum(len(records) for records in contents)
    assert together.offender_count == len(together.offenders)
    alone = [typed(schema, page(record)) for records in contents for record in records]
    assert values(together) == [value for rows in alone for value in values(rows)]
    assert together.offender_count == sum(rows.offender_count for rows in alone)


@pytest.mark.parametrize("number", ["9" * 38, "-18446744073709551617", "0.1000000000000000055"])
def test_a_long_number_in_a_column_of_json_texts_is_the_same_whatever_its_neighbours_are(number: str) -> None:
    """Neighbours decide whether a block is read whole."""
    schema = pa.schema([json_text_field("a"), pa.field("n", pa.int64())])
    record = f'{{"a":{{"id":{number}}},"n":1}}'
    alone = typed(schema, raw(record.encode(), 1))
    beside = typed(schema, raw(f'{record}\n{{"n":"x"}}'.encode(), 2))
    assert values(alone)[0] == values(beside)[0] == f'{{"id":{number}}}'


def text_of(value: Any) -> str:
    """JSON with the digits of long numbers and with integers of any size."""
    if isinstance(value, LongNumber):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{text_of(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value)


@examples(600, derandomize=True)
@given(KINDS_WITH_DECIMALS, st.one_of(VALUES, NUMBERS, st.lists(NUMBERS, max_size=2)))
def test_arrow_and_the_reading_by_value_agree_wherever_arrow_takes_a_value(field: pa.Field, value: Any) -> None:
    schema = pa.schema([field])
    line = f'{{"a":{text_of(value)}}}'.encode()
    reader = _PageReader(schema, 1, note_changes=False)
    slow = read_columns(reader.rewrite([line], "p", 1), 1, schema)
    try:
        fast = BlockReader(schema).read(line, 1)
    except BlockMismatchError:
        return
    assert fast.equals(slow)
    assert reader.offender_count == 0


@examples(300, derandomize=True)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2), max_size=5))
def test_records_always_fit_the_columns_inferred_from_them(records: list[Any]) -> None:
    only = page(*records)
    rows = typed(infer_records(bytes(only.records)).to_arrow(), only)
    assert rows.offenders == ()
    assert rows.table.num_rows == len(records)


def test_no_path_needs_pandas() -> None:
    # Its import takes more than a second in each worker. It is installed here, so nothing else hides it.
    program = """
import sys
import pyarrow as pa
from airflow_provider_rfr.lake.schemas import json_text_field
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, type_pages
schema = pa.schema([("a", pa.int64()), ("t", pa.timestamp("us", "UTC")), json_text_field("j")])
good = LedgerPage("p", 1, b'{"a":1,"t":"2026-01-01","j":{"x":1}}', 1, 0)
bad = LedgerPage("p", 2, b'{"a":"x","t":"2026-01-01T00:00:00","j":[]}', 1, 0)
rows = type_pages([good, bad], schema, generation=1, on_type_error="null")
assert rows.table.num_rows == 2 and rows.offender_count == 1
assert "pandas" not in sys.modules
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "sent", "expected"),
    [
        (pa.float64(), ["12", " 1.5 ", "-3e2", "abc", ""], [12.0, 1.5, -300.0, None, None]),
        (pa.int64(), ["12", "+7", "12.0", "1.5", "99999999999999999999"], [12, 7, 12, None, None]),
        (pa.bool_(), ["true", "False", "yes", 1], [True, False, None, None]),
        (pa.string(), [{"a": [1]}, ["x"], 5, True], ['{"a":[1]}', '["x"]', "5", "true"]),
        (pa.decimal128(5, 2), ["12.5", True], [Decimal("12.50"), None]),
        (pa.list_(pa.int64()), [["1", 2], "x"], [[1, 2], None]),
        (pa.struct([("b", pa.bool_())]), [{"b": "true"}, "x"], [{"b": True}, None]),
    ],
)
def test_where_values_are_cast_text_and_objects_fit_if_nothing_is_lost(
    kind: pa.DataType, sent: list[Any], expected: list[Any]
) -> None:
    schema, pages = pa.schema([("a", kind)]), page(*({"a": value} for value in sent))
    rows = typed(schema, pages, casts=True)
    assert values(rows) == expected
    assert rows.offender_count == sum(value is None for value in expected)
    assert typed(schema, pages).offender_count > rows.offender_count or kind == pa.decimal128(5, 2)


def test_a_cast_number_that_a_double_can_not_hold_is_noted() -> None:
    rows = typed(pa.schema([("a", pa.float64())]), page({"a": "9007199254740993"}), on_type_error="fail", casts=True)
    assert (values(rows), rows.offender_count) == ([9007199254740992.0], 0)
    (note,) = json.loads(values(rows, "_rfr_meta")[0])["changes"]
    assert note == {"field": "a", "change": "ROUNDED", "reason": "a double can't hold 9007199254740993"}
