"""Rows of history are there once, whoever tells them and however often."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake import commits
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import append_once

NAME = "rfr.told"
SCHEMA = pa.schema([("target", pa.string()), ("number", pa.int64()), ("names", pa.list_(pa.string()))])


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    return LakeSettings("rfr", properties)


@pytest.fixture
def table(settings: LakeSettings) -> None:
    catalog = open_catalog(settings)
    catalog.create_namespace("rfr")
    catalog.create_table(NAME, schema=SCHEMA)


def tell(settings: LakeSettings, *numbers: int | None, target: str = "raw.a", **more: object) -> int:
    rows = [{"target": target, "number": number, **more} for number in numbers]
    return append_once(open_catalog(settings), NAME, rows, keys=("target", "number"), scope={"target": target})


def told(settings: LakeSettings) -> list[dict[str, object]]:
    found = open_catalog(settings).load_table(NAME).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["target"], row["number"] or 0))


def test_where_there_is_no_table_nothing_is_kept_and_nothing_fails(settings: LakeSettings) -> None:
    assert tell(settings, 1) == 0


@pytest.mark.usefixtures("table")
def test_what_is_told_twice_is_there_once(settings: LakeSettings) -> None:
    assert tell(settings, 1, 2, 2, names=["a"]) == 2
    assert tell(settings, 2, 3) == 1
    assert tell(settings, 1, target="raw.b") == 1
    assert [(row["target"], row["number"]) for row in told(settings)] == [
        ("raw.a", 1),
        ("raw.a", 2),
        ("raw.a", 3),
        ("raw.b", 1),
    ]


@pytest.mark.usefixtures("table")
def test_a_key_without_a_value_is_a_value_of_its_own(settings: LakeSettings) -> None:
    assert tell(settings, None) == 1
    assert tell(settings, None) == 0


@pytest.mark.usefixtures("table")
def test_columns_that_the_table_lacks_are_left_out_and_nothing_new_makes_no_commit(settings: LakeSettings) -> None:
    assert tell(settings, 1, invented="x") == 1
    (row,) = told(settings)
    assert row == {"target": "raw.a", "number": 1, "names": None}
    before = open_catalog(settings).load_table(NAME).current_snapshot()
    assert tell(settings, 1) == tell(settings) == 0
    assert open_catalog(settings).load_table(NAME).current_snapshot() == before


@pytest.mark.usefixtures("table")
def test_four_that_tell_the_same_at_once_tell_it_once(settings: LakeSettings) -> None:
    appended: list[int] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            appended.append(sum(tell(settings, number) for number in range(5)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sum(appended) == 5
    assert [row["number"] for row in told(settings)] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("table")
def test_whoever_is_always_too_late_says_so(settings: LakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    load, others = commits.load_table, iter(range(100, 200))

    def load_before_another_writes(*arguments: object) -> object:
        found = load(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(commits, "load_table", load)
        tell(settings, next(others))
        monkeypatch.setattr(commits, "load_table", load_before_another_writes)
        return found

    monkeypatch.setattr(commits, "_TRIES", 2)
    monkeypatch.setattr(commits, "load_table", load_before_another_writes)
    with pytest.raises(LedgerError, match="other commits came first each of 2 times"):
        tell(settings, 1)
