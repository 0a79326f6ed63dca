"""``airflow rfr bundle``: the document and its references. tests/integration/test_bundle.py submits bundles."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators.bundle import write_bundle
from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
from airflow_provider_rfr.refresh.config import parse_config, secrets_of
from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages, raises

CANARY = "canary-71d0"
DEFINITION = {
    "version": 1,
    "base_url": "{{ config.base_url }}",
    "streams": {"orders": {"request": {"path": "/orders"}}},
}
Connect = Callable[..., None]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a connection of the environment."""

    def make(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return make


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a worker: only connections of the environment are known.
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    connect("shop", conn_type="rfr_api", host="https://shop.example.com", password=f"{CANARY}-key")
    connect("lake", conn_type="rfr_lake", host="sqlite:////data/catalog.db", extra={"warehouse": "file:///data"})
    connect("rfr_control_store", conn_type="sqlite", host=f"{tmp_path}/control.db")


def refresh(**arguments: Any) -> ResumableFullRefreshOperator:
    usual = {"source": {"definition": DEFINITION}, "streams": ["orders"], "target": "raw.orders"}
    connections = {"api_conn_id": "shop", "lake_conn_id": "lake"}
    return ResumableFullRefreshOperator(task_id="load", **{**usual, **connections, **arguments})


def bundled(folder: Path, **arguments: Any) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The document, and the fields that refer to each secret."""
    secrets = write_bundle(refresh(), folder, **arguments)
    assert all(CANARY.encode() not in file.read_bytes() for file in folder.iterdir())
    return json.loads((folder / "run.json").read_text()), {secret.name: secret.fields for secret in secrets}


def test_each_secret_is_a_reference_under_a_name_of_its_own_and_the_driver_finds_its_value(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"page_size": 50, "client_secret": f"{CANARY}-client", "secrets": {"oauth": {"pin": 4711, "on": True}}}
    connect("shop", conn_type="rfr_api", host="https://shop.example.com", password=f"{CANARY}-key", extra=extra)
    storage = {"warehouse": "s3://lake", "properties": {"s3.session-token": f"{CANARY}-s3", "s3.region": "eu-west-1"}}
    catalog = f"postgresql+psycopg2://rfr:{CANARY}/pg@db.example.com/catalog"
    connect("lake", conn_type="rfr_lake", host=catalog, extra=storage)
    connect("rfr_control_store", conn_type="postgres", host="db.example.com", login="rfr", password=f"{CANARY}-store")
    document, fields = bundled(tmp_path / "out")
    assert fields == {
        "RFR_SHOP_CLIENT_SECRET": ["source.secrets.client_secret"],
        "RFR_SHOP_PASSWORD": ["source.secrets.password", "source.secrets.token", "source.secrets.api_key"],
        "RFR_SHOP_OAUTH_PIN": ["source.secrets.oauth.pin"],
        "RFR_LAKE_URI": ["lake.properties.uri"],
        "RFR_LAKE_S3_SESSION_TOKEN": ["lake.properties.s3.session-token"],
        "RFR_CONTROL_STORE": ["store"],
    }
    assert document["source"]["config"] == {"base_url": "https://shop.example.com", "page_size": 50}
    store = f"postgresql+psycopg2://rfr:{CANARY}#store@db.example.com"
    values = {"CLIENT_SECRET": f"{CANARY}-client", "PASSWORD": f"{CANARY}-key", "OAUTH_PIN": "4711"}
    values = {f"RFR_SHOP_{name}": value for name, value in values.items()} | {"RFR_CONTROL_STORE": store}
    for name, value in {**values, "RFR_LAKE_URI": catalog, "RFR_LAKE_S3_SESSION_TOKEN": f"{CANARY}-s3"}.items():
        monkeypatch.setenv(name, value)
    config = parse_config(document)
    assert config.source.secrets["api_key"] == f"{CANARY}-key"
    assert config.source.secrets["oauth"] == {"pin": "4711", "on": True}
    assert config.lake.plain_properties()["uri"] == catalog
    assert config.store is not None and config.store.get_secret_value() == store
    assert {f"{CANARY}#store", f"{CANARY}/pg", catalog, "4711"} <= set(secrets_of(config))
    assert (config.run.key, config.run.airflow) == (None, None)


def test_a_connection_can_not_make_the_driver_read_a_variable_or_a_file(tmp_path: Path, connect: Connect) -> None:
    secrets = {"a": {"file": "/etc/passwd"}, "b": {"env": "HOME"}}
    connect("shop", conn_type="rfr_api", host="https://shop.example.com", extra={"secrets": secrets})
    document, _ = bundled(tmp_path / "out")
    expected = {"a": {"file": {"env": "RFR_SHOP_A_FILE"}}, "b": {"env": {"env": "RFR_SHOP_B_ENV"}}}
    assert document["source"]["secrets"] == expected


def test_two_fields_whose_names_differ_in_signs_alone_have_two_names(tmp_path: Path, connect: Connect) -> None:
    extra = {"secrets": {"a.b": "one", "a_b": "two"}}
    connect("shop", conn_type="rfr_api", host="https://shop.example.com", extra=extra)
    _, fields = bundled(tmp_path / "out", secret_files="/run/secrets")
    assert fields == {
        "/run/secrets/RFR_SHOP_A_B": ["source.secrets.a.b"],
        "/run/secrets/RFR_SHOP_A_B_2": ["source.secrets.a_b"],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"options": {"replace_where": "day = '{{ ds }}'"}},
        {"source": {"definition": DEFINITION, "config": {"day": "{{ ds }}"}}},
        {"streams": "{{ params.streams }}"},
        {"lake_conn_id": "{{ params.lake }}"},
    ],
)
def test_a_template_is_refused_because_only_a_run_fills_it_in(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with raises(ConfigurationError):
        write_bundle(refresh(**arguments), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of DAGs."""
    folder = tmp_path / "dags"
    folder.mkdir()
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [{"name": "test", "classpath": local, "kwargs": {"path": str(folder)}}]
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(bundles))
    # Airflow adds the folder for good.
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "loads.py").write_text(f"""
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator

arguments = {{"source": {{"definition": {DEFINITION!r}}}, "api_conn_id": "shop", "lake_conn_id": "lake"}}
with DAG("one"):
    ResumableFullRefreshOperator(task_id="load", streams=["orders"], target="raw.orders", **arguments)
    EmptyOperator(task_id="other")
with DAG("two"):
    ResumableFullRefreshOperator(task_id="first", streams=["orders"], target="raw.first", **arguments)
    second = ResumableFullRefreshOperator.partial(task_id="second", target="raw.second", **arguments)
    second.expand(streams=[["orders"]])
with DAG("none"):
    EmptyOperator(task_id="other")
""")
    return folder


def test_the_command_says_how_the_bundle_is_submitted_and_what_its_job_needs(
    dags: Path, tmp_path: Path, command: Rfr
) -> None:
    printed = command("bundle", tmp_path / "out", "--dag", "one")
    check_messages(printed.out)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "airflow_provider_rfr.zip",
        "refresh.py",
        "run.json",
    ]
    spaced = f"{tmp_path}/two  blanks"
    submit = command("bundle", spaced, "--dag", "one").out.splitlines()[1].removeprefix("submit: ")
    words = ["spark-submit", "--py-files", f"{spaced}/airflow_provider_rfr.zip", f"{spaced}/refresh.py"]
    assert shlex.split(submit) == [*words, "--config", f"{spaced}/run.json"]
    content = command("bundle", tmp_path / "out", "--dag", "two", "--task", "first", "--json").json
    assert [secret["name"] for secret in content["secrets"]] == ["RFR_SHOP_PASSWORD"]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["target"] == "raw.first"


def test_a_folder_that_can_not_be_made_is_told_in_a_line(dags: Path, tmp_path: Path, command: Rfr) -> None:
    (tmp_path / "file").touch()
    told = command("bundle", tmp_path / "file" / "out", "--dag", "one", code=1).err
    assert "Traceback" not in told
    assert told.splitlines()[-1] == f"{tmp_path}/file/out can't be read or written: Not a directory"


@pytest.mark.parametrize(
    "arguments",
    [("none",), ("two",), ("two", "--task", "third"), ("two", "--task", "second"), ("thre",)],
    ids=" ".join,
)
def test_a_task_that_can_not_be_taken_is_refused(
    dags: Path, tmp_path: Path, command: Rfr, arguments: tuple[str, ...]
) -> None:
    check_messages(command("bundle", tmp_path / "out", "--dag", *arguments, code=1).err.splitlines()[-1])
    assert not (tmp_path / "out").exists()
