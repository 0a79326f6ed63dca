from __future__ import annotations

import copy
import importlib.util
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.calls import Rfr
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
    """``airflow rfr manifest ...``."""
    return partial(command, "manifest")


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
    found = {row["name"]: row for row in manifest("check", SHOP, "--config", config, "--json").json}
    assert [row["table"] for row in found.values()] == ["customers", "orders", "offset_events", "links", "windows"]
    assert {row["resumable"] for row in found.values()} == {"by page"}
    assert found["orders"] == {
        "table": "orders",
        "name": "orders",
        "resumable": "by page",
        "why": "page by page, by CursorPaginationStrategy",
        "partitions": ["SubstreamPartitionRouter of customers"],
        "primary_key": ["id"],
        "schema": "declared",
        "columns": 2,
        "is_readable": True,
        "notes": [],
        "syncs": ["full"],
        "why_syncs": "the manifest has no incremental_sync for this stream",
    }
    assert found["windows"]["syncs"] == ["full", "incremental append", "incremental merge"]
    assert found["windows"]["why_syncs"] == "by day"
    assert (found["windows"]["partitions"], found["links"]["primary_key"]) == (["DatetimeBasedCursor by P4D"], [])


@needs_cdk
def test_check_prints_the_same_for_people(config: Path, manifest: Rfr) -> None:
    captured = manifest("check", SHOP, "--config", config)
    assert "Offset Events, in a target: offset_events\n  resumable: by page (page by page, by Offset" in captured.out
    assert "  partitions: none\n  primary key: id\n  schema: declared, columns: 2\n" in captured.out
    assert "  sync: full, incremental append, incremental merge (by day)\n" in captured.out
    assert captured.err.endswith("shop.yaml: streams: 5, resumable by page: 5\n")
    assert "canary" not in captured.out + captured.err


@needs_cdk
def test_check_says_how_fast_a_stream_is_read_at_most(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    rate = {"type": "Rate", "limit": 100, "interval": "PT1M"}
    budget = {"type": "MovingWindowCallRatePolicy", "rates": [rate], "matchers": []}
    level = {"type": "ConcurrencyLevel", "default_concurrency": 4}
    limits = {"api_budget": {"type": "HTTPAPIBudget", "policies": [budget]}, "concurrency_level": level}
    notes = [
        line
        for line in manifest("check", written(tmp_path, **limits), "--config", config).out.splitlines()
        if line.startswith("  note: ")
    ]
    assert notes == 5 * ["  note: at most 1.667 requests per second", "  note: at most 4 requests at the same time"]


@needs_cdk
def test_check_makes_up_a_configuration_that_it_is_not_given(manifest: Rfr) -> None:
    assert manifest("check", SHOP).err.splitlines()[0] == "made-up values of url, api_key; --config FILE gives others"


@needs_cdk
def test_a_stream_of_one_request_is_counted_apart(config: Path, tmp_path: Path, manifest: Rfr) -> None:
    links, orders = definitions()["links"], definitions()["orders"]
    for stream in links, orders:
        del stream["retriever"]["paginator"]
    file = written(tmp_path, streams=[links, orders])
    captured = manifest("check", file, "--config", config)
    assert "links\n  resumable: one request (no paging, no partitions)\n" in captured.out
    assert "orders\n  resumable: by page (one page a slice)\n" in captured.out
    assert captured.err.endswith("streams: 2, resumable by page: 1, one request: 1\n")


@needs_cdk
def test_a_stream_that_can_not_be_built_is_named_and_the_others_are_checked(
    config: Path, tmp_path: Path, manifest: Rfr
) -> None:
    windows = definitions()["windows"]
    windows["incremental_sync"]["start_datetime"] = "{{ config['start'] }}"
    file = written(tmp_path, streams=[windows, definitions()["links"]])
    config.write_text(config.read_text() + "start: '12/24/2025'\n")
    captured = manifest("check", file, "--config", config, code=1)
    assert "windows\n  resumable: no (ValueError: " in captured.out
    assert "'12/24/2025'" in captured.out
    assert "; see config.start)\n" in captured.out
    assert "links\n  resumable: by page (" in captured.out


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
    found = {
        row["name"]: row
        for row in manifest("check", file, "--config", config, "--components", components, "--json").json
    }
    assert (found["orders"]["resumable"], found["customers"]["resumable"]) == ("by slice", "no")
    assert found["orders"]["partitions"] == ["SubstreamPartitionRouter of customers", "ListPartitionRouter of 2 values"]
    assert found["orders"]["why"] == "a slice is read whole: Counting may keep state"
    assert found["customers"]["why"] == "a slice is read whole: Counting may keep state, and there is one slice"


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
    [row] = manifest("check", file, "--config", config, "--json").json
    assert (row["resumable"], row["is_readable"]) == ("by page", True)


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
    asked, listed = manifest("check", file, "--config", config, "--json").json
    assert (asked["schema"], asked["columns"]) == ("asked of the API", None)
    assert (listed["name"], listed["table"], listed["resumable"]) == ("tables", None, None)
    assert listed["why"] == "not known before the API lists these streams"
    assert listed["syncs"] == ["full"]


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
    found = {row["name"]: row for row in manifest("check", file, "--config", config, "--json").json}
    assert found["windows"]["syncs"] == ["full", "incremental append"]
    assert found["windows"]["why_syncs"] == "by day; merge needs a primary key"
    assert found["links"]["syncs"] == ["full"]
    assert "IncrementingCountCursor" in found["links"]["why_syncs"]
    assert found["orders"]["why_syncs"] == "by day, changes by incremental_stream"
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
