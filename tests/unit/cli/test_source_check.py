"""``airflow rfr source check`` against the sample API, and ``airflow rfr source schema``."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.streams.rest.definition import SCHEMA_FILE
from tests.unit.cli.calls import Printed, Rfr
from tests.unit.cli.test_source import MANIFEST
from tests.unit.messages import check_messages

pytestmark = pytest.mark.test

KEY = "canary-77c2-key"
SIZES = Sizes(records=23, customers=3, partitions=2, pages=2, page_records=5)
CODE = """
from airflow_provider_rfr.streams import Stream

class Two(Stream):
    primary_key = "id"

    def read_records(self, stream_slice=None, stream_state=None):
        yield {"id": 1, "at": "2026-01-01"}
        yield {"id": 2}

class Days(Two):
    cursor_field = "at"
    state = {}

    def stream_slices(self):
        return []

class Broken(Two):
    def read_records(self, stream_slice=None, stream_state=None):
        raise RuntimeError("canary-77c2-key")
        yield {}

def streams(config):
    return [Two(), Days(), Broken()]

def unset(config):
    return [Two(config["canary-77c2-key"])]
"""


@pytest.fixture(scope="module")
def running() -> Iterator[SampleApi]:
    with SampleApi(SIZES, api_key=KEY) as api:
        yield api


@pytest.fixture
def api(running: SampleApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SampleApi:
    running.reset()
    monkeypatch.chdir(tmp_path)
    connect(monkeypatch, running, KEY)
    Path("config.json").write_text(json.dumps({"page_size": 5, "partitions": 2}))
    return running


def connect(monkeypatch: pytest.MonkeyPatch, api: SampleApi, key: str) -> None:
    connection = {"conn_type": "rfr_api", "host": api.base_url, "password": key}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))


@pytest.fixture
def check(command: Rfr) -> Rfr:
    """``airflow rfr source check``, of the shop or another file."""

    def call(*arguments: Any, file: Any = SHOP, code: int = 0) -> Printed:
        printed = command("source", "check", file, *arguments, "--api-conn-id", "shop", code=code)
        assert KEY not in printed.out + printed.err
        return printed

    return call


def by_name(printed: Printed) -> dict[str, Any]:
    return {checked["stream"]: checked for checked in printed.json["streams"]}


def test_each_stream_is_a_line_with_how_it_is_read_and_its_columns(api: SampleApi, check: Rfr) -> None:
    head, *lines = check("--config", "config.json").out.splitlines()
    assert " ".join(head.split()) == (
        "STREAM RESULT RECORDS PAGING RESUMABLE INCREMENTAL PARTITIONS PRIMARY KEY COLUMNS"
    )
    assert [line.split()[:3] for line in lines[:2]] == [["customers", "ok", "3"], ["customer_orders", "ok", "5"]]
    assert len(lines) == 6
    orders = next(line for line in lines if line.startswith("orders"))
    assert "offsets, 5 records a page" in orders and "declared: id bigint, reference string" in orders


def test_the_facts_of_a_stream_as_json(api: SampleApi, check: Rfr) -> None:
    checked = by_name(check("--config", "config.json", "--json"))
    assert all(one["ok"] and one["resumable"] == "by page" for one in checked.values())
    shipments, invoices = checked["shipments"], checked["invoices"]
    assert (shipments["incremental"], shipments["why"]) == (["merge", "append"], "by updated_at")
    assert {"name": "updated_at", "type": "timestamp", "declared": True} in shipments["columns"]
    assert invoices["incremental"] == [] and invoices["why"].startswith("is not declared; add incremental")
    assert {"name": "id", "type": "bigint", "declared": False} in invoices["columns"]
    assert invoices["paging"] == "addresses in the header Link, 5 records a page"


def test_fields_that_the_schema_lacks_are_named(api: SampleApi, check: Rfr) -> None:
    definition = yaml.safe_load(SHOP.read_text())
    definition["streams"]["orders"]["json_schema"] = {"properties": {"id": {"type": "integer"}}}
    Path("narrow.yaml").write_text(yaml.safe_dump(definition))
    printed = check("orders", "--config", "config.json", "--json", file="narrow.yaml")
    [note] = by_name(printed)["orders"]["notes"]
    assert note.startswith("fields that the schema lacks, so the table too: amount, ") and "id" not in note.split(", ")


def test_one_page_of_the_named_stream_alone_is_read(api: SampleApi, check: Rfr) -> None:
    assert list(by_name(check("orders", "--config", "config.json", "--json"))) == ["orders"]
    assert api.counts()["requests"] == 1


def test_a_failing_stream_does_not_stop_the_others(api: SampleApi, check: Rfr) -> None:
    api.set_faults({"kind": "error", "path": "/orders", "status": 403})
    printed = check("--config", "config.json", code=1)
    results = {line.split()[0]: line.split()[1] for line in printed.out.splitlines()[1:]}
    assert {name for name, result in results.items() if result == "failed"} == {"orders"}
    assert printed.err.startswith("orders: ") and "403" in printed.err


def test_refused_credentials_lead_to_the_connection(
    api: SampleApi, check: Rfr, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, api, "canary-77c2-wrong")
    printed = check("orders", code=1)
    assert "canary" not in printed.out + printed.err
    check_messages(printed.err)


@pytest.mark.parametrize(
    "stream",
    [
        {"primary_key": "number"},
        {"columns": {"reference": "int"}},
        {"records": {"path": "rows"}},
        {"paginator": {"type": "offset", "page_size": "{{ config.sise }}"}},
        {"request": {"path": "/nowhere"}},
    ],
)
def test_a_page_that_can_t_be_rows_of_a_table_fails_with_a_remedy(
    api: SampleApi, check: Rfr, stream: dict[str, Any]
) -> None:
    usual = {"request": {"path": "/orders", "query": {"limit": 5}}, "records": {"path": "data"}}
    definition = {
        "base_url": "{{ config.base_url }}",
        "authenticator": {"type": "bearer", "token": "{{ config.token }}"},
        "streams": {"orders": {**usual, **stream}, "fine": usual},
    }
    Path("source.json").write_text(json.dumps(definition))
    printed = check("--config", "config.json", file="source.json", code=1)
    assert [line.split()[:2] for line in printed.out.splitlines()[1:]] == [["orders", "failed"], ["fine", "ok"]]
    check_messages(printed.err)


def test_a_document_that_is_wrong_is_refused_before_a_request(api: SampleApi, check: Rfr) -> None:
    Path("source.yaml").write_text("base_url: https://a.example\nstreams: {orders: {paginater: {}, recods: {}}}\n")
    printed = check(file="source.yaml", code=1)
    assert "streams.orders.paginater" in printed.err and "streams.orders.recods" in printed.err
    assert (printed.out, api.counts()["requests"]) == ("", 0)


def test_streams_in_python_say_how_far_they_are_resumed(
    api: SampleApi, check: Rfr, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "checked_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    checked = by_name(check("--json", file="checked_code:streams", code=1))
    assert "source.class: building its streams failed with KeyError;" in check(file="checked_code:unset", code=1).err
    sys.modules.pop("checked_code")
    assert (checked["two"]["records"], checked["two"]["resumable"]) == (2, "no")
    assert (checked["days"]["records"], checked["days"]["incremental"]) == (None, ["merge", "append"])
    assert not checked["broken"]["ok"] and "RuntimeError" in checked["broken"]["problem"]


@pytest.mark.skipif(importlib.util.find_spec("airbyte_cdk") is None, reason="the extra airbyte is not installed")
def test_a_manifest_of_airbyte_is_checked(api: SampleApi, check: Rfr) -> None:
    Path("manifest.yaml").write_text(MANIFEST)
    [orders] = by_name(check("--json", file="manifest.yaml")).values()
    assert (orders["ok"], orders["records"], orders["resumable"]) == (True, 5, "by page")
    assert orders["columns"] == [{"name": "id", "type": "bigint", "declared": True}]


def test_the_schema_is_printed_as_the_package_has_it(command: Rfr) -> None:
    printed = command("source", "schema").out
    assert printed == command("source", "schema", "--json").out == SCHEMA_FILE.read_text(encoding="utf-8")
    assert command("source", "schema", "--output", "yaml").out.startswith("$schema: ")
