from __future__ import annotations

import copy
import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.sample_api import SHOP as DEFINITION
from tests.unit.cli.calls import Printed, Rfr
from tests.unit.messages import check_messages

SHOP = Path(__file__).parents[1] / "streams" / "airbyte" / "manifests" / "shop.yaml"
has_cdk = importlib.util.find_spec("airbyte_cdk") is not None
needs_cdk = pytest.mark.skipif(not has_cdk, reason="the extra airbyte is not installed")
CODE = {"type": "CustomPaginationStrategy", "class_name": "source_declarative_manifest.components.Counting"}
COUNTER = """
from airbyte_cdk.sources.declarative.requesters.paginators.strategies.page_increment import PageIncrement

class Counting(PageIncrement):
    pass
"""


@pytest.fixture(autouse=True)
def _nothing_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(*_: Any) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", connected)


@pytest.fixture
def manifest(command: Rfr) -> Rfr:
    """``airflow rfr source ...`` of a manifest, without a request."""

    def call(name: str, *arguments: Any, code: int = 0) -> Printed:
        return command("source", name, *arguments, *(["--offline"] if name == "check" else []), code=code)

    return call


def checked(printed: Printed) -> list[dict[str, Any]]:
    streams: list[dict[str, Any]] = printed.json["streams"]
    return streams


def by_name(printed: Printed) -> dict[str, dict[str, Any]]:
    return {one["stream"]: one for one in checked(printed)}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text("url: http://127.0.0.1:9\napi_key: canary-0815\n")
    return file


def written(folder: Path, **changes: Any) -> Path:
    """The shop's manifest with other parts."""
    document = {**copy.deepcopy(yaml.safe_load(SHOP.read_text())), **changes}
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def definitions() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SHOP.read_text())["definitions"]
    return found


@needs_cdk
def test_check_says_how_each_stream_would_be_read(config: Path, manifest: Rfr) -> None:
    found = by_name(manifest("check", SHOP, "--config", config, "--json"))
    assert [row["table"] for row in found.values()] == ["customers", "orders", "offset_events", "links", "windows"]
    assert {row["resumable"] for row in found.values()} == {"by page"}
    assert found["orders"] == {
        "stream": "orders",
        "table": "orders",
        "ok": True,
        "problem": "",
        "records": None,
        "paging": "page by page, by CursorPaginationStrategy",
        "resumable": "by page",
        "incremental": [],
        "why": "the manifest has no incremental_sync for this stream",
        "partitions": ["SubstreamPartitionRouter of customers"],
        "primary_key": ["id"],
        "columns": [
            {"name": "id", "type": "bigint", "declared": True},
            {"name": "name", "type": "string", "declared": True},
        ],
        "notes": [],
    }
    assert (found["windows"]["incremental"], found["windows"]["why"]) == (["merge", "append"], "by day")
    assert (found["windows"]["partitions"], found["links"]["primary_key"]) == (["DatetimeBasedCursor by P4D"], [])


@needs_cdk
def test_check_prints_the_same_for_people(config: Path, manifest: Rfr) -> None:
    printed = manifest("check", SHOP, "--config", config)
    head, *lines = printed.out.splitlines()
    assert head.split()[:6] == ["STREAM", "TABLE", "RESULT", "PAGING", "RESUMABLE", "INCREMENTAL"]
    events = next(line for line in lines if line.startswith("Offset Events  offset_events  not read  page by page"))
    assert "  by page  " in events
    windows = next(line for line in lines if line.startswith("windows"))
    assert "  merge, append (by day)  " in windows and "  DatetimeBasedCursor by P4D  " in windows
    assert "canary" not in printed.out + printed.err


@needs_cdk
def test_check_says_how_fast_a_stream_is_read_at_most(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    rate = {"type": "Rate", "limit": 100, "interval": "PT1M"}
    budget = {"type": "MovingWindowCallRatePolicy", "rates": [rate], "matchers": []}
    level = {"type": "ConcurrencyLevel", "default_concurrency": 4}
    limits = {"api_budget": {"type": "HTTPAPIBudget", "policies": [budget]}, "concurrency_level": level}
    streams = checked(manifest("check", written(tmp_path, **limits), "--config", config, "--json"))
    notes = [one["notes"] for one in streams]
    assert notes == 5 * [["at most 1.667 requests per second", "at most 4 requests at the same time"]]


@needs_cdk
def test_check_makes_up_a_configuration_that_it_is_not_given(manifest: Rfr) -> None:
    assert manifest("check", SHOP).err.splitlines()[0] == "made-up values of url, api_key; --config FILE gives others"


@needs_cdk
def test_a_stream_of_one_request_is_counted_apart(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    links, orders = definitions()["links"], definitions()["orders"]
    for stream in links, orders:
        del stream["retriever"]["paginator"]
    file = written(tmp_path, streams=[links, orders])
    streams = checked(manifest("check", file, "--config", config, "--json"))
    assert [(one["resumable"], one["paging"]) for one in streams] == [
        ("one request", "no paging, no partitions"),
        ("by page", "one page a slice"),
    ]


@needs_cdk
def test_a_stream_that_can_not_be_built_is_named_and_the_others_are_checked(
    config: Path, tmp_path: Path, manifest: Rfr
) -> None:
    windows = definitions()["windows"]
    windows["incremental_sync"]["start_datetime"] = "{{ config['start'] }}"
    file = written(tmp_path, streams=[windows, definitions()["links"]])
    config.write_text(config.read_text() + "start: '12/24/2025'\n")
    captured = manifest("check", file, "--config", config, code=1)
    assert [line.split()[:2] for line in captured.out.splitlines()[1:]] == [["windows", "failed"], ["links", "not"]]
    assert captured.err.startswith("windows: ValueError: ")
    assert "'12/24/2025'" in captured.err and "; see config.start; correct the source" in captured.err


@needs_cdk
def test_two_dynamic_streams_of_one_name_are_told_with_it(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    mapping = {"type": "ComponentMappingDefinition", "field_path": ["name"], "value": "{{ components_values['name'] }}"}
    parameters = [{"name": "twice"}, {"name": "twice"}]
    listed = {"type": "StreamParametersDefinition", "list_of_parameters_for_stream": parameters}
    resolver = {"type": "ParametrizedComponentsResolver", "stream_parameters": listed, "components_mapping": [mapping]}
    template = definitions()["links"]
    dynamic = {"type": "DynamicDeclarativeStream", "stream_template": template, "components_resolver": resolver}
    error = manifest("check", written(tmp_path, streams=[], dynamic_streams=[dynamic]), "--config", config, code=1).err
    assert error == "source.manifest: Dynamic streams list contains a duplicate name: twice.\n"


@needs_cdk
def test_check_says_what_is_read_by_slice_or_at_once_and_why(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    orders, customers = definitions()["orders"], definitions()["customers"]
    for stream in orders, customers:
        stream["retriever"]["paginator"]["pagination_strategy"] = {**CODE, "page_size": 3}
    orders["retriever"]["partition_router"] = [
        orders["retriever"]["partition_router"],
        {"type": "ListPartitionRouter", "values": ["a", "b"], "cursor_field": "kind"},
    ]
    file = written(tmp_path, streams=[orders, customers])
    error = manifest("check", file, "--config", config, code=1).err
    assert "which is Python code that comes with the connector; if you trust it" in error
    components = tmp_path / "components.py"
    components.write_text(COUNTER)
    found = by_name(manifest("check", file, "--config", config, "--components", components, "--json"))
    assert (found["orders"]["resumable"], found["customers"]["resumable"]) == ("by slice", "no")
    assert found["orders"]["partitions"] == ["SubstreamPartitionRouter of customers", "ListPartitionRouter of 2 values"]
    assert found["orders"]["paging"] == "a slice is read whole: Counting may keep state"
    assert found["customers"]["paging"] == "a slice is read whole: Counting may keep state, and there is one slice"


@needs_cdk
def test_a_refresh_token_that_each_use_replaces_is_no_obstacle(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    customers = definitions()["customers"]
    customers["retriever"]["requester"] = {
        **definitions()["requester"],
        "path": "customers",
        "authenticator": {
            "type": "OAuthAuthenticator",
            "token_refresh_endpoint": "{{ config['url'] }}/token",
            "client_id": "me",
            "client_secret": "{{ config['api_key'] }}",
            "refresh_token": "{{ config['api_key'] }}",
            "refresh_token_updater": {"refresh_token_config_path": ["api_key"]},
        },
    }
    file = written(tmp_path, streams=[customers])
    [row] = checked(manifest("check", file, "--config", config, "--json"))
    assert (row["resumable"], row["ok"]) == ("by page", True)


@needs_cdk
def test_streams_and_schemas_that_the_api_is_asked_for_are_said_to_be_so(
    config: Path, tmp_path: Path, manifest: Rfr
) -> None:
    customers, retriever = definitions()["customers"], definitions()["customers"]["retriever"]
    dynamic = {
        "type": "DynamicSchemaLoader",
        "retriever": retriever,
        "schema_type_identifier": {"key_pointer": ["name"], "type_pointer": ["type"]},
    }
    tables = {
        "type": "DynamicDeclarativeStream",
        "name": "tables",
        "stream_template": customers,
        "components_resolver": {
            "type": "HttpComponentsResolver",
            "retriever": retriever,
            "components_mapping": [
                {"type": "ComponentMappingDefinition", "field_path": ["name"], "value": "{{ components_values['id'] }}"}
            ],
        },
    }
    file = written(tmp_path, streams=[{**customers, "schema_loader": dynamic}], dynamic_streams=[tables])
    asked, listed = checked(manifest("check", file, "--config", config, "--json"))
    assert (asked["notes"], asked["columns"]) == (["the schema is asked of the API"], [])
    assert (listed["stream"], listed["table"], listed["resumable"]) == ("tables", None, None)
    assert listed["paging"] == "not known before the API lists these streams"
    assert listed["incremental"] == []


@needs_cdk
def test_check_says_what_a_stream_lacks_for_a_merge_and_which_cursors_are_read(
    config: Path, tmp_path: Path, manifest: Rfr
) -> None:
    windows, links, orders = (definitions()[name] for name in ("windows", "links", "orders"))
    del windows["primary_key"]
    links["incremental_sync"] = {"type": "IncrementingCountCursor", "cursor_field": "id", "start_value": 0}
    delegating = {
        "type": "StateDelegatingStream",
        "name": "orders",
        "full_refresh_stream": orders,
        "incremental_stream": {**definitions()["windows"], "name": "orders"},
    }
    file = written(tmp_path, streams=[windows, links, delegating])
    found = by_name(manifest("check", file, "--config", config, "--json"))
    assert found["windows"]["incremental"] == ["append"]
    assert found["windows"]["why"] == "by day; merge needs a primary key"
    assert found["links"]["incremental"] == []
    assert "IncrementingCountCursor" in found["links"]["why"]
    assert found["orders"]["why"] == "by day, changes by incremental_stream"
    links["incremental_sync"] = {"type": "CustomIncrementalSync", "class_name": "Cursor"}
    refused = manifest("check", written(tmp_path, streams=[links]), "--config", config, code=1)
    assert "streams.0.incremental_sync: CustomIncrementalSync is code for airbyte-cdk before 7" in refused.err


@needs_cdk
def test_what_keeps_a_manifest_from_building_is_one_sentence_each(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    def said(*arguments: Any) -> str:
        captured = manifest("check", *arguments, code=1)
        assert not captured.out
        return captured.err

    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("{}")
    check_messages(said(SHOP, "--config", nothing))
    components = tmp_path / "components.py"
    components.write_text("from airbyte_cdk import NoSuchClassAnyMore\n")
    older = written(tmp_path, version="6.44.0")
    check_messages(said(older, "--config", config, "--components", components))
    check_messages(said("no.yaml", "--config", config))
    check_messages(said(SHOP, "--config", "nope.yaml"))
    config.write_text("[canary")
    check_messages(said(SHOP, "--config", config), config)


@pytest.mark.skipif(has_cdk, reason="the extra airbyte is installed")
def test_without_the_extra_one_sentence_says_what_to_install(config: Path, manifest: Rfr) -> None:
    error = manifest("check", SHOP, "--config", config, code=1).err
    assert "; write pip install 'airflow-provider-rfr[airbyte]'" in error


def test_the_connection_to_make_has_the_fields_of_the_spec(tmp_path: Path, manifest: Rfr) -> None:
    key = {"type": "string", "airbyte_secret": True}
    login = {"title": "Log in", "properties": {"kind": {"const": "login"}, "pin": key}, "required": ["pin"]}
    specification = {
        "required": ["api_key"],
        "properties": {
            "api_key": {**key, "title": "API key"},
            "token": key,
            "start": {"type": ["string", "null"]},
            "region": {"enum": ["eu", "us"]},
            "credentials": {"oneOf": [login, {"title": "None", "properties": {"kind": {"const": "none"}}}]},
        },
    }
    file = written(tmp_path, spec={"type": "Spec", "connection_specification": specification})
    found = manifest("connection", file, "--json").json
    assert found["conn_type"] == "rfr_api"
    assert [(field["field"], field["secret"], field["required"], field["type"]) for field in found["fields"]] == [
        ("password", True, True, "string"),
        ("extra.secrets.token", True, False, "string"),
        ("extra.start", False, False, "string or null"),
        ("extra.region", False, False, "'eu' or 'us'"),
        ("extra.credentials.kind", False, False, "'login'"),
        ("extra.secrets.credentials.pin", True, True, "string"),
        ("extra.credentials.kind", False, False, "'none'"),
    ]
    out = manifest("connection", file).out
    assert "  password: api_key (secret, required, string) API key\n" in out
    assert "  extra.secrets.credentials.pin: credentials.pin of 'Log in' (secret, required, string)\n" in out


def test_a_definition_has_no_fields_of_a_connection(tmp_path: Path, manifest: Rfr) -> None:
    check_messages(manifest("connection", DEFINITION, code=1).err, DEFINITION)
    check_messages(manifest("connection", tmp_path / "no.yaml", code=1).err, tmp_path)


def test_a_definition_is_checked_without_a_request_as_well(config: Path, manifest: Rfr) -> None:
    config.write_text("base_url: http://127.0.0.1:9\ntoken: canary-0815\npartitions: 2\n")
    found = by_name(manifest("check", DEFINITION, "--config", config, "--json"))
    assert {one["records"] for one in found.values()} == {None}
    assert found["shipments"]["incremental"] == ["merge", "append"]
    assert found["customer_orders"]["partitions"] == ["customer_id"]
    assert found["orders"]["columns"][0] == {"name": "id", "type": "bigint", "declared": True}
