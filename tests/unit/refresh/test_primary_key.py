"""A wrong primary key is found before all pages are read for nothing; rows with equal keys without moving rows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.page_rows import check_key_of_page, key_columns
from airflow_provider_rfr.refresh.publish_task import _EXTRACTED_AT, KeySearch, _write_keys, find_losers
from airflow_provider_rfr.streams import NextPage, Page
from airflow_provider_rfr.streams.incremental import CursorColumn
from tests.unit.messages import raises
from tests.unit.refresh.test_failed_publish import ASKED, MONDAY, NUMBER, RECORDS, Orders, Shop, shop, source_gives

__all__ = ["shop"]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pages of the source's records."""

    def read_page(self: Orders, stream_slice: Any, token: Any) -> Page:
        ASKED.append(self.name)
        number = (token or 1) + 1
        return Page([{**record, "page": number} for record in RECORDS], NextPage(number) if number <= 10 else None)

    monkeypatch.setattr(Orders, "read_page", read_page)


@pytest.mark.usefixtures("endless")
def test_a_key_that_no_record_of_the_first_page_has_ends_the_refresh_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", "order_id", raising=False)
    source_gives(orderid=1, amount=5)
    with raises(ConfigurationError):
        shop.run(MONDAY)
    assert len(ASKED) == 1


@pytest.mark.parametrize("small", [[{"id": 3}], [{"id": 3}, {"id": 4}]])
def test_a_single_page_may_lack_a_part_of_the_key_that_other_partitions_have(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, small: list[dict[str, Any]]
) -> None:
    pages = {"large": [{"id": 1, "version": 1}, {"id": 2}], "small": small}
    monkeypatch.setattr(Orders, "primary_key", ["id", "version"], raising=False)
    monkeypatch.setattr(Orders, "stream_slices", lambda self: [{"group": group} for group in pages])
    monkeypatch.setattr(Orders, "read_page", lambda self, stream_slice, token: Page(pages[stream_slice["group"]], None))
    shop.run(MONDAY)
    assert sorted(shop.rows["id"].to_pylist()) == list(range(1, 3 + len(small)))


def test_a_wrong_key_of_a_single_page_fails_the_publish_and_nothing_is_fetched_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", "order_id", raising=False)
    with raises(ConfigurationError):
        shop.run(MONDAY)
    monkeypatch.setattr(Orders, "primary_key", "id")
    shop.run(MONDAY)
    assert (shop.rows["id"].to_pylist(), len(ASKED)) == ([1], 1)


def test_a_key_that_the_declared_schema_lacks_is_refused_before_a_request(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Orders, "primary_key", ["ID"], raising=False)
    with raises(ConfigurationError):
        shop.run(MONDAY, NUMBER)
    assert ASKED == []


@pytest.mark.parametrize(
    ("key", "records"),
    [
        (None, [{"a": 1}]),
        ("id", []),
        ("id", [{"a": 1}, {"id": None}]),
        (["id", ["user", "no"]], [{"id": 1}, {"user": {"no": 1}}]),
    ],
)
def test_a_key_that_some_record_has_is_accepted(key: Any, records: list[dict[str, Any]]) -> None:
    check_key_of_page(key, records)


@pytest.mark.parametrize("key", ["id", [["user", "no"]], ["a", ["a", "b"]]])
def test_a_key_that_no_record_has_is_named_by_its_path(key: Any) -> None:
    with raises(ConfigurationError):
        check_key_of_page(key, [{"a": 1, "user": {"id": 1}}, {"user": None}])


STORE = FileStore({})
TIME = pa.timestamp("us", tz="UTC")


def companion(folder: Path, name: str, keys: list[Any], times: list[int]) -> str:
    table = pa.table({"id": pa.array(keys), _EXTRACTED_AT: pa.array(times, TIME)})
    pq.write_table(table, folder / f"{name}.parquet")
    location = str(folder / f"{name}.keys")
    _write_keys(STORE, location, table, [("id",)])
    return location


def search(*companions: str, buckets: int = 1) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for bucket in range(buckets):
        for name, rows in find_losers(KeySearch(STORE, companions, bucket, buckets)).items():
            found.setdefault(Path(name).stem, []).extend(rows)
    return {name: sorted(rows) for name, rows in found.items()}


def test_the_row_that_was_fetched_last_wins_whatever_file_it_is_in(tmp_path: Path) -> None:
    first = companion(tmp_path, "first", [1, 2, 3], [10, 50, 10])
    second = companion(tmp_path, "second", [2, 3, 4], [40, 20, 10])
    assert search(first, second) == {"first": [2], "second": [0]}


def test_rows_without_a_key_are_all_kept(tmp_path: Path) -> None:
    assert search(companion(tmp_path, "one", [None, None, 1], [1, 2, 3])) == {}


def test_zeros_of_both_signs_are_one_key(tmp_path: Path) -> None:
    assert search(companion(tmp_path, "one", [0.0, 1.5, -0.0, -1.5], [1, 2, 3, 4])) == {"one": [0]}


def test_no_duplicates_and_no_rows_are_no_trouble(tmp_path: Path) -> None:
    assert search(companion(tmp_path, "one", ["a", "b"], [1, 1])) == {}
    empty = companion(tmp_path, "none", pa.array([], pa.string()), [])
    assert search(empty) == {}


def test_every_share_of_the_key_space_together_finds_what_one_finds(tmp_path: Path) -> None:
    seed = 7
    generator = np.random.default_rng(seed)
    names = [
        companion(tmp_path, f"f{n}", generator.integers(0, 300, 200).tolist(), generator.integers(0, 9, 200).tolist())
        for n in range(4)
    ]
    whole, shares = search(*names), search(*names, buckets=7)
    assert whole == shares, f"seed {seed}"
    distinct = len({key for n in range(4) for key in pq.read_table(tmp_path / f"f{n}.parquet")["id"].to_pylist()})
    assert 800 - sum(len(rows) for rows in whole.values()) == distinct


def test_key_columns_are_checked_against_the_rows() -> None:
    rows = pa.schema([("id", pa.int64()), ("at", pa.struct([("day", pa.string())]))])
    assert key_columns("id", rows) == (("id",),)
    assert key_columns(["id", ["at", "day"]], rows) == (("id",), ("at", "day"))
    assert key_columns(None, rows) == ()
    with raises(ConfigurationError):
        key_columns([["at", "month"]], rows)


@pytest.mark.parametrize(
    ("kind", "older", "newer"),
    [
        ("text", "2026-01-01", "2026-01-01b"),
        ("text", "Z", "\u00e4"),
        ("integer", Decimal(-(10**37)), Decimal(2)),
        ("integer", Decimal(9), Decimal(10**37)),
        ("integer", -5, 3),
        ("text", None, "a"),
    ],
)
@pytest.mark.parametrize("is_newer_first", [True, False])
def test_the_version_with_the_greatest_cursor_wins_in_any_order(
    kind: Literal["text", "integer"], older: Any, newer: Any, is_newer_first: bool, tmp_path: Path
) -> None:
    column, columns = CursorColumn("cursor", kind), {str: pa.string(), Decimal: pa.decimal128(38, 0), int: pa.int64()}
    locations = []
    for number, value in enumerate([newer, older] if is_newer_first else [older, newer]):
        times = pa.array([number], TIME)
        cursors = pa.array([value], columns[type(newer)])
        table = pa.table({"id": pa.array([1]), "cursor": cursors, _EXTRACTED_AT: times})
        locations.append(str(tmp_path / f"{number}.keys"))
        _write_keys(STORE, locations[-1], table, [("id",)], column)
    assert search(*locations) == {"1" if is_newer_first else "0": [0]}


def test_only_equal_integers_are_the_same_key(tmp_path: Path) -> None:
    numbers = [0, None, 1, -1, 2**63 - 1, -(2**63), 0, None, 2**32, -(2**63), *range(2, 50_000)]
    times = pa.array(range(len(numbers)), pa.timestamp("us", "UTC"))
    table = pa.table({"id": pa.array(numbers, pa.int64()), _EXTRACTED_AT: times})
    location = str(tmp_path / "integers.keys")
    _write_keys(STORE, location, table, [("id",)])
    losers = [find_losers(KeySearch(STORE, (location,), bucket, 4)) for bucket in range(4)]
    assert sorted(row for found in losers for row in found.get(location, ())) == [0, 5]
    assert all(0.2 < rows / len(numbers) < 0.3 for rows in _rows_by_bucket(location, len(numbers)))


def _rows_by_bucket(location: str, count: int) -> list[int]:
    keys = np.frombuffer(STORE.read(location)[16 : 16 + 16 * count], dtype=np.uint64).reshape(-1, 2)
    return np.bincount((keys[:, 0] >> np.uint64(48)) % np.uint64(4)).tolist()
