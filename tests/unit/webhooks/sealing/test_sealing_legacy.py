"""Documents that Estuary Flow sealed: scenario rows 33 and 34, research 1.6."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.webhooks.sealing import check_sealed, import_file, import_sealed, open_sealed, read_file
from airflow_provider_rfr.webhooks.sealing.files import _write_json
from airflow_provider_rfr.webhooks.sealing.flow_import import _BLANKS, _open_foreign, _restore, _strip, _without_suffix

TOKEN = "Bearer canary-header-ü-9Rk"


def flow_list(second: bool = True) -> dict[str, Any]:
    """Triggers as Flow's second generation has them."""
    first = {
        "url": "https://example.com/webhook",
        "method": "POST",
        "headers": {"Authorization": TOKEN, "X-Team": "data"},
        "payloadTemplate": '{"run": "{{run_id}}"}',
        "timeout": "45s",
        "maxAttempts": 5,
    }
    other = {
        "url": "https://other.example.com",
        "method": "PUT",
        "payloadTemplate": "{}",
        "timeout": "30s",
        "maxAttempts": 3,
    }
    return {"interval": "30m", "config": [first, *([other] if second else [])]}


def suffixed(block: dict[str, Any]) -> dict[str, Any]:
    """Header names as Flow's service of encryption renames them."""
    block = copy.deepcopy(block)
    for endpoint in block["config"].values() if isinstance(block["config"], dict) else block["config"]:
        if "headers" in endpoint:
            endpoint["headers"] = {f"{name}_sops": value for name, value in endpoint["headers"].items()}
    return block


@pytest.fixture
def by_flow(key: Any, like_sops: Any) -> Any:
    """Strip, seal, restore."""

    def seal_as_flow(block: dict[str, Any]) -> dict[str, Any]:
        stripped, originals = _strip(block)
        return _restore(like_sops(suffixed(stripped), key.public, encrypted_suffix="_sops"), originals)

    return seal_as_flow


@pytest.mark.parametrize("block", [flow_list(), {"config": {"a": flow_list()["config"][0], "b": {}}}, {"config": []}])
def test_what_is_stripped_and_restored_is_the_original(block: dict[str, Any]) -> None:
    before = copy.deepcopy(block)
    stripped, originals = _strip(block)
    assert "interval" not in stripped
    for endpoint in stripped["config"].values() if isinstance(stripped["config"], dict) else stripped["config"]:
        assert {name: endpoint[name] for name in _BLANKS if name in endpoint} == {
            name: value for name, value in _BLANKS.items() if name in endpoint
        }
    assert _restore(stripped, originals) == before == block


def test_flows_list_is_imported_as_named_triggers(by_flow: Any, key: Any) -> None:
    flow = by_flow(flow_list())
    assert flow["config"][0]["payloadTemplate"] == '{"run": "{{run_id}}"}'
    assert flow["config"][0]["headers"]["Authorization_sops"].startswith("ENC[")
    sealed = import_sealed(flow, [key.public], environment=key.environment)
    check_sealed(sealed)
    first, second = flow_list()["config"]
    expected = {"interval": "30m", "config": {"trigger0": first, "trigger1": second}}
    assert open_sealed(sealed, environment=key.environment) == expected


def test_flows_tuned_fields_may_have_changed_since(by_flow: Any, key: Any) -> None:
    flow = by_flow(flow_list())
    flow["interval"] = "1m"
    flow["config"][0] |= {"payloadTemplate": "{}", "timeout": "5s", "maxAttempts": 1}
    opened = _open_foreign(flow, environment=key.environment)
    assert opened["interval"] == "1m"
    assert opened["config"]["trigger0"]["timeout"] == "5s"
    assert opened["config"]["trigger0"]["headers"]["Authorization"] == TOKEN


def test_flow_documents_with_other_order_or_without_defaults_are_imported(by_flow: Any, key: Any) -> None:
    """Flow itself writes the document anew, in the order of its own code, before it has the code checked."""
    flow = by_flow(flow_list())
    first = dict(reversed(flow["config"][0].items()))
    first["headers"] = dict(reversed(first["headers"].items()))
    del first["method"]
    flow = {"sops": flow["sops"], "config": [first, flow["config"][1]], "interval": "2h"}
    opened = _open_foreign(flow, environment=key.environment)
    assert opened["config"]["trigger0"]["method"] == "POST"
    assert opened["config"]["trigger0"]["headers"] == {"Authorization": TOKEN, "X-Team": "data"}


def test_flows_first_generation_has_its_timeout_in_seconds(by_flow: Any, key: Any) -> None:
    block = flow_list(second=False)
    del block["config"][0]["timeout"], block["interval"]
    block["config"][0]["timeoutSecs"] = 45
    sealed = import_sealed(by_flow(block), [key.public], environment=key.environment)
    assert open_sealed(sealed, environment=key.environment) == {"config": {"trigger0": block["config"][0]}}


def test_flows_map_with_its_overlay_is_imported(key: Any, like_sops: Any) -> None:
    block = {"interval": "30m", "config": {"onCommit": flow_list()["config"][0]}}
    flow = like_sops(suffixed(block), key.public, encrypted_suffix="_sops")
    flow["sops"]["overlay"] = {"config": {"onCommit": {"timeout": "9s"}}}
    sealed = import_sealed(flow, [key.public], environment=key.environment)
    block["config"]["onCommit"]["timeout"] = "9s"
    assert open_sealed(sealed, environment=key.environment) == block
    assert "overlay" not in sealed["sops"]
    assert "encrypted_suffix" not in sealed["sops"]


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://evil.example.com"},
        {"method": "PUT"},
        {"headers": {}},
        {"extra": "x"},
    ],
)
def test_flow_documents_that_were_changed_are_not_imported(
    change: dict[str, Any], by_flow: Any, key: Any, refusal: Any
) -> None:
    flow = by_flow(flow_list())
    flow["config"][0] |= change
    told = refusal(import_sealed, flow, [key.public], environment=key.environment, secrets=(TOKEN,))
    assert "does not match" in told


def test_flow_documents_are_refused_until_they_are_imported(by_flow: Any, key: Any, refusal: Any) -> None:
    """Their URL is plaintext, and their code does not say where it ends or which trigger it is of."""
    flow = by_flow(flow_list(second=False))
    for call in (check_sealed, open_sealed):
        assert "import it once" in refusal(call, flow)
    moved = copy.deepcopy(flow)
    moved["config"][0] = {"url": "https://example.co", "method": "m/webhookPOST", **moved["config"][0]}
    moved["config"][0] |= {"url": "https://example.co", "method": "m/webhookPOST"}
    assert _open_foreign(moved, environment=key.environment)["config"]["trigger0"]["url"] == "https://example.co"


def test_an_overlay_of_what_is_secret_stops_an_import(by_flow: Any, key: Any, refusal: Any) -> None:
    flow = by_flow(flow_list())
    flow["sops"]["overlay"] = {"config": {"trigger0": {"url": "https://evil.example.com"}}}
    told = refusal(import_sealed, flow, [key.public], environment=key.environment)
    assert "/config/trigger0/url" in told


def test_two_headers_that_would_become_one_stop_an_import(key: Any, like_sops: Any, refusal: Any) -> None:
    block = {"config": {"a": {"url": "https://x", "headers": {"A": "1", "A_sops": "2"}}}}
    flow = like_sops(block, key.public, encrypted_suffix="_sops")
    assert "the key A stands twice" in refusal(import_sealed, flow, [key.public], environment=key.environment)


def test_suffixes_are_taken_off_once_and_at_every_depth() -> None:
    document = {"a_sops": [{"b_sops_sops": 1}], "c": {"_sops": None}, "d_sopsx": 2}
    assert _without_suffix(document, "_sops") == {"a": [{"b_sops": 1}], "c": {"": None}, "d_sopsx": 2}


@pytest.mark.parametrize(
    "document", [{}, {"config": 5, "sops": {"age": [{}]}}, {"config": [5], "sops": {"age": [{}]}}, []]
)
def test_what_is_no_block_is_not_imported(document: Any, key: Any, refusal: Any) -> None:
    refusal(import_sealed, document, [key.public], environment=key.environment)


def test_neighbours_under_one_seal_are_not_left_as_plaintext(key: Any, like_sops: Any, refusal: Any) -> None:
    whole = like_sops({"triggers": {"config": {"a": {"url": "https://x"}}}, "database": "canary-with-2Wp"}, key.public)
    assert "more than triggers under its seal" in refusal(
        import_sealed, whole, [key.public], environment=key.environment
    )


def test_a_file_of_flow_is_imported_as_text(by_flow: Any, key: Any, tmp_path: Path) -> None:
    path = tmp_path / "flow.json"
    path.write_text(_write_json({"triggers": by_flow(flow_list(second=False))}))
    path.write_text(import_file(path, [key.public], environment=key.environment))
    opened = open_sealed(read_file(path), environment=key.environment)["triggers"]
    assert opened == {"interval": "30m", "config": {"trigger0": flow_list()["config"][0]}}
