"""``airflow rfr refresh state import``: the states of other tools, set on a table that they wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages
from tests.unit.refresh import python_sources
from tests.unit.triggers.lake import Lake

NAME = "raw.orders"
SHOP = """
version: 1
base_url: https://api.example.com
streams:
  orders:
    primary_key: id
    request: {path: /orders}
    incremental: {cursor_field: updated_at, start: "2024-01-01", send_as: {query: since}}
  customers: {request: {path: /customers}}
"""
STATE = [
    {"streamDescriptor": {"name": "orders"}, "streamState": {"updated_at": "2026-03-01T06:00:00Z"}},
    {"streamDescriptor": {"name": "customers"}, "streamState": {"__ab_full_refresh_sync_complete": True}},
]
COLUMNS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "updated_at", TimestamptzType()),
    NestedField(3, "version", LongType()),
)


@pytest.fixture
def rfr(command: Rfr, lake: Lake, tmp_path: Path) -> Rfr:
    """``airflow rfr refresh state ...`` on the lake, with the files of a user."""
    (tmp_path / "shop.yaml").write_text(SHOP)
    (tmp_path / "state.json").write_text(json.dumps(STATE))
    lake.catalog.create_namespace_if_not_exists("raw")
    return lambda *arguments, code=0: command("refresh", "state", *arguments, "--lake-conn-id", "lake", code=code)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return ["import", NAME, str(tmp_path / "state.json"), "--source", str(tmp_path / "shop.yaml")]


def test_the_state_of_a_connection_is_set_in_a_snapshot_of_its_own(lake: Lake, rfr: Rfr, arguments: list[str]) -> None:
    table = lake.catalog.create_table(NAME, Schema(*COLUMNS))
    table.append(pa.Table.from_pylist([{"id": 1}], schema=table.schema().as_arrow()))
    done = rfr(*arguments, "--stream", "orders", "--json").json
    assert done["state"]["values"] == {"{}": "2026-03-01T06:00:00.000000Z"}
    assert rfr("show", NAME, "--json").json == done["state"]
    assert lake.catalog.load_table(NAME).scan().to_arrow().num_rows == 1


def test_a_stream_of_a_class_has_another_name_there(lake: Lake, rfr: Rfr, arguments: list[str]) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    source = ["--source", f"{python_sources.__name__}:Sliced"]
    done = rfr(*arguments[:3], *source, "--stream", "orders", "--as", "sliced", "--json").json
    assert done["state"]["of_source"] == {"{}": {"updated_at": "2026-03-01T06:00:00Z"}}


@pytest.mark.parametrize(
    ("more", "columns"),
    [
        ((), COLUMNS),
        (("--stream", "items"), COLUMNS),
        (("--stream", "customers"), COLUMNS),
        (("--stream", "orders", "--as", "items"), COLUMNS),
        (("--stream", "orders"), None),
        (("--stream", "orders"), COLUMNS[:1]),
        (("--stream", "orders"), (*COLUMNS, NestedField(9, "_airbyte_raw_id", StringType(), required=True))),
    ],
)
def test_nothing_is_set_where_something_does_not_fit(
    lake: Lake,
    rfr: Rfr,
    arguments: list[str],
    more: tuple[str, ...],
    columns: tuple[NestedField, ...] | None,
    tmp_path: Path,
) -> None:
    if columns is not None:
        lake.catalog.create_table(NAME, Schema(*columns))
    check_messages(rfr(*arguments, *more, code=1).err.replace(str(tmp_path), "<tmp>").splitlines()[-1])
    if columns is not None:
        assert lake.catalog.load_table(NAME).metadata.current_snapshot_id is None


def test_a_file_that_is_not_there_is_named(rfr: Rfr, arguments: list[str], tmp_path: Path) -> None:
    arguments[2] = str(tmp_path / "nope.json")
    assert "state: " in rfr(*arguments, code=1).err
