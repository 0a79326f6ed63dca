"""``airflow rfr refresh state import``: the states of other tools, set on a table that they wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from airflow_provider_rfr.cli.common import json_of
from airflow_provider_rfr.numbers import LongNumber
from airflow_provider_rfr.operators import connections
from airflow_provider_rfr.refresh.config import parse_config
from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages
from tests.unit.refresh import python_sources
from tests.unit.refresh.changing_api import ChangingApi, children_of, datetime_cursor, manifest_of, moment, stream_of
from tests.unit.refresh.in_driver import refresh_of
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


def test_the_state_is_of_the_api_that_the_connection_leads_to_now(
    lake: Lake, rfr: Rfr, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "api_addresses", lambda conn_id: [{"upstream": "other"}, {"base_url": "http://b"}])
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    assert rfr(*arguments, "--stream", "orders", "--json").json["state"]["rules"]["upstream"] == "other"


def test_a_stream_of_a_class_has_another_name_there(lake: Lake, rfr: Rfr, arguments: list[str]) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    source = ["--source", f"{python_sources.__name__}:Sliced"]
    done = rfr(*arguments[:3], *source, "--stream", "orders", "--as", "sliced", "--json").json
    assert done["state"]["of_source"] == {"{}": {"updated_at": "2026-03-01T06:00:00Z"}}


def test_a_stream_of_another_name_has_to_be_named(rfr: Rfr, arguments: list[str], tmp_path: Path) -> None:
    only_invoices = SHOP.replace("orders:", "invoices:").replace("  customers", "  # customers")
    (tmp_path / "shop.yaml").write_text(only_invoices)
    said = rfr(*arguments, "--stream", "orders", code=1).err
    assert "--as: is needed: the source has no stream 'orders'; one of invoices" in said
    assert "table: raw.orders does not exist" in rfr(*arguments, "--stream", "orders", "--as", "invoices", code=1).err
    arguments[1] = "orders"
    assert "table: 'orders' is not a table name" in rfr(*arguments, "--stream", "orders", code=1).err


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


def test_a_state_that_is_set_is_checked_first(lake: Lake, rfr: Rfr, tmp_path: Path) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    rules = {"cursor": {"field": "updated_at", "type": "datetime"}, "primary_key": [["id"]]}
    file = tmp_path / "own.json"
    for value in ("2900-01-01T00:00:00Z", "soon", "0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-02:00"):
        file.write_text(json.dumps({"version": 1, "rules": rules, "values": {"{}": value}}))
        check_messages(rfr("set", NAME, str(file), code=1).err.splitlines()[-1])
    file.write_text("[" * 100_000)
    assert "is not JSON" in rfr("set", NAME, str(file), code=1).err
    file.write_text(json.dumps({"version": 1, "rules": {}, "values": {}}))
    check_messages(rfr("set", NAME, str(file), code=1).err.splitlines()[-1])
    assert lake.catalog.load_table(NAME).metadata.current_snapshot_id is None


def test_a_state_is_set_as_it_was_shown(lake: Lake, rfr: Rfr, tmp_path: Path) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    rules = {"cursor": {"field": "updated_at", "type": "datetime"}, "primary_key": [["id"]]}
    key = json.dumps({"shop": "two  blanks\u00a0\u200d\U0001f600"}, ensure_ascii=False)
    state = {"version": 1, "rules": rules, "values": {key: "2026-03-01T06:00:00.000000Z"}}
    file = tmp_path / "own.json"
    file.write_text(json.dumps(state))
    rfr("set", NAME, file)
    shown = rfr("show", NAME).out
    assert json.loads(shown)["values"] == state["values"]
    file.write_text(shown, encoding="ascii")
    rfr("set", NAME, file)
    assert rfr("show", NAME).out == shown


def test_a_long_number_of_a_state_keeps_its_digits(lake: Lake, rfr: Rfr, tmp_path: Path) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    number = "1764547200.123456789"
    file = tmp_path / "own.json"
    cursor = {"field": "updated_at", "type": "datetime"}
    state = {"version": 1, "rules": {"cursor": cursor}, "values": {}, "of_source": {"é": 0.5}}
    file.write_text(json.dumps(state).replace("0.5", number))
    rfr("set", NAME, file)
    assert number in rfr("show", NAME).out
    for form in ("json", "yaml"):
        assert number in rfr("show", NAME, "--output", form).out
    file.write_text(file.read_text().replace(number, f"[{number}, {2**64}]"))
    check_messages(rfr("set", NAME, file, code=1).err.splitlines()[-1])
    assert "/lake" in json_of([LongNumber(number), Path("/lake"), 2**64])


def test_a_file_that_is_not_there_is_named(rfr: Rfr, arguments: list[str], tmp_path: Path) -> None:
    arguments[2] = str(tmp_path / "nope.json")
    assert "state: " in rfr(*arguments, code=1).err


@pytest.fixture
def api() -> Iterator[ChangingApi]:
    """An API with the orders of three shops, of which another tool has read two."""
    pytest.importorskip("airbyte_cdk")
    server = ChangingApi()
    server.change("/shops", ["a", "b", "c"], 0)
    for shop, hours in (("a", 5), ("b", 10), ("c", 20)):
        server.change(f"/shops/{shop}", [f"{shop}1"], hours)
    yield server
    server.close()


@pytest.fixture
def of_manifest(api: ChangingApi, arguments: list[str], tmp_path: Path) -> list[str]:
    """The arguments, with a manifest as the source."""
    manifest = manifest_of(children_of(stream_of("/shops", None, "shops"), datetime_cursor()))
    source, config = tmp_path / "manifest.json", tmp_path / "config.json"
    source.write_text(json.dumps(manifest))
    config.write_text(json.dumps({"url": api.url}))
    return [*arguments[:3], "--source", str(source), "--config", str(config)]


def of_shops(cursor_field: str = "updated_at") -> dict[str, Any]:
    """A state of Airbyte with a value for each shop."""
    values = {shop: {cursor_field: moment(hours)} for shop, hours in (("a", 5), ("b", 10))}
    states = [{"partition": {"parent_slice": {}, "shop": shop}, "cursor": value} for shop, value in values.items()]
    return {"states": states, "state": values["b"], "lookback_window": 3600, "use_global_cursor": False}


@pytest.mark.test
def test_a_manifest_continues_from_the_state_as_it_is(
    api: ChangingApi, lake: Lake, rfr: Rfr, of_manifest: list[str], tmp_path: Path
) -> None:
    of_columns = [NestedField(number, name, StringType()) for number, name in enumerate(("id", "updated_at", "value"))]
    table = lake.catalog.create_table(NAME, Schema(*of_columns, NestedField(9, "seconds", DoubleType())))
    rows = [{"id": f"{shop}1", "updated_at": moment(hours)} for shop, hours in (("a", 5), ("b", 10))]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    (tmp_path / "state.json").write_text(json.dumps({"orders": of_shops()}))
    done = rfr(*of_manifest, "--json").json
    assert done["state"]["of_source"] == of_shops()
    assert rfr("show", NAME, "--json").json == done["state"]
    assert not api.asked

    api.change("/shops/a", ["a2"], 300)
    document = {
        "source": {"manifest": str(tmp_path / "manifest.json"), "config": {"url": api.url}},
        "streams": ["orders"],
        "target": NAME,
        "lake": {"name": "rfr", "properties": lake.catalog.properties},
        "sync": "incremental",
        "options": {"mode": "merge"},
    }
    refresh_of(parse_config(document), lake.catalog).run()
    # As in Airbyte, a shop that the state lacks is read from the state of all, less the seconds of the last sync.
    lower_bounds = {"a": moment(5), "b": moment(10), "c": moment(9)}
    assert {path for path in api.taken() if "since" in path} == {
        f"/shops/{shop}?since={quote(since)}" for shop, since in lower_bounds.items()
    }
    keys = lake.catalog.load_table(NAME).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert sorted(keys) == ["a1", "a2", "b1", "c1"]


@pytest.mark.parametrize(
    "content",
    [
        of_shops("created_at"),
        {**of_shops(), "state": {"created_at": moment(0)}},
        {"created_at": moment(0)},
        {},
        {"updated_at": "soon"},
        {"states": [{"partition": {"shop": "a"}}]},
    ],
)
def test_a_state_that_a_manifest_would_not_continue_is_refused(
    content: dict[str, Any], lake: Lake, rfr: Rfr, of_manifest: list[str], tmp_path: Path
) -> None:
    lake.catalog.create_table(NAME, Schema(*COLUMNS))
    (tmp_path / "state.json").write_text(json.dumps({"orders": content}))
    check_messages(rfr(*of_manifest, code=1).err.splitlines()[-1])
    assert lake.catalog.load_table(NAME).metadata.current_snapshot_id is None
