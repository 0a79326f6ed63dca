"""``airflow rfr load``: the file and its document. tests/integration/test_load.py runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.cli import load as commands
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators import IncrementalSyncOperator, ResumableFullRefreshOperator
from airflow_provider_rfr.refresh.config import parse_config
from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages

CANARY = "canary-2f7e"
DEFINITION = {
    "version": 1,
    "base_url": "{{ config.base_url }}",
    "streams": {"orders": {"request": {"path": "/orders"}}, "customers": {}},
}
USUAL = {"source": {"file": "shop.yaml"}, "streams": ["orders"], "target": "raw.orders", "api_conn_id": "shop"}
LAKE = {"name": "rfr", "properties": {"uri": {"env": "LAKE_URI"}, "warehouse": "file:///data"}}
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a worker: only connections of the environment are known.
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    shop = {"conn_type": "rfr_api", "host": "https://shop.example.com", "password": f"{CANARY}-key"}
    lake = {"conn_type": "rfr_lake", "host": "sqlite:////data/catalog.db", "extra": {"warehouse": "file:///data"}}
    control = {"conn_type": "sqlite", "host": f"{tmp_path}/control.db"}
    for name, connection in (("SHOP", shop), ("LAKE", lake), ("RFR_CONTROL_STORE", control)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    monkeypatch.setenv("LAKE_URI", "sqlite:////data/other.db")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file with these arguments beside the usual ones, next to its source, and not in the working folder."""
    monkeypatch.chdir("/")
    (tmp_path / "shop.yaml").write_text(json.dumps(DEFINITION))

    def call(*, name: str = "load.yaml", without: tuple[str, ...] = (), **arguments: Any) -> Path:
        lake = {} if "lake" in arguments else {"lake_conn_id": "lake"}
        document = {**USUAL, **lake, **arguments}
        (tmp_path / name).write_text(json.dumps({key: document[key] for key in document if key not in without}))
        return tmp_path / name

    return call


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ResumableFullRefreshOperator, {}),
        (ResumableFullRefreshOperator, {"streams": "orders, customers", "target": "raw.{stream}"}),
        (ResumableFullRefreshOperator, {"options": {"mode": "append", "concurrency": 4}}),
        (IncrementalSyncOperator, {"write": "merge"}),
        (IncrementalSyncOperator, {"write": "append", "options": {"round_seconds": 5}}),
        (IncrementalSyncOperator, {"full_refresh": True}),
        (IncrementalSyncOperator, {"window": "2026-01-01/2026-01-11"}),
    ],
)
def test_the_file_is_the_document_of_an_operator_with_its_arguments(
    write: Write, tmp_path: Path, kind: type[ResumableFullRefreshOperator], arguments: dict[str, Any]
) -> None:
    file = write(**arguments)
    same = {**yaml.safe_load(file.read_text()), "source": {"file": str(tmp_path / "shop.yaml")}}
    task = kind(task_id="load", **same)
    document = commands._document(file)
    assert document.pop("store").startswith("sqlite:///")
    assert document == task.document_without_run(LakeHook("lake").get_lake_settings())
    assert document["source"]["secrets"]["password"] == f"{CANARY}-key"
    assert "key" not in document["run"], "the next load is another refresh"


def test_a_lake_in_the_file_may_refer_to_its_secrets(write: Write) -> None:
    document = commands._document(write(lake=LAKE))
    assert document["lake"] == LAKE
    assert parse_config(document).lake.plain_properties()["uri"] == "sqlite:////data/other.db"


@pytest.mark.parametrize(
    "arguments",
    [
        {"sream": ["orders"], "tagret": "raw.orders"},
        {"without": ("source", "streams", "target")},
        {"task_id": "load"},
        {"lake": LAKE, "lake_conn_id": "lake"},
        {"streams": ["ordres"]},
        {"target": "orders"},
        {"options": {"concurency": 4}},
        {"options": {"mode": "merge"}},
        {"options": {"replace_where": "a = 1"}, "write": "merge"},
        {"write": "upsert"},
        {"window": "yesterday"},
        {"target": "raw.{{ ds }}"},
        {"source": {"file": "shop.yaml", "secrets": {"api_key": f"{CANARY}-key"}}},
        {"source": {"file": "nowhere.yaml"}},
        {"api_conn_id": "nowhere"},
        {"api_conn_id": 5, "lake_conn_id": ["lake"]},
        {"lake": {"properties": {"uri": {"env": "NOT_SET"}}}},
        {"lake": {"propertys": {}}},
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(
    write: Write, command: Rfr, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    printed = command("load", write(**arguments), code=2)
    assert (printed.out, CANARY in printed.err) == ("", False)
    check_messages(printed.err.replace(str(tmp_path), "<folder>"))


@pytest.mark.parametrize("text", ["- orders", "{", "a: 1\na: 2"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, command: Rfr, text: str) -> None:
    (tmp_path / "load.yaml").write_text(text)
    check_messages(command("load", tmp_path / "load.yaml", code=2).err.replace(str(tmp_path), "<folder>"))


def test_a_file_that_is_not_there_is_named(command: Rfr, tmp_path: Path) -> None:
    assert "nowhere.yaml can't be read" in command("load", tmp_path / "nowhere.yaml", code=2).err
