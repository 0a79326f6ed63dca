"""Rows with the same primary key are found without moving rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh.pages import key_columns
from airflow_provider_rfr.refresh.publish_task import _EXTRACTED_AT, KeySearch, _write_keys, find_losers
from tests.unit.messages import raises

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
