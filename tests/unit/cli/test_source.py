"""``airflow rfr source read`` against the sample API."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.streams.read import ConnectorStateManager
from tests.airflow_versions import rfr_command
from tests.unit.cli.calls import Printed, Rfr, rfr
from tests.unit.messages import check_messages
from tests.unit.refresh import python_sources

pytestmark = pytest.mark.test

KEY = "canary-51ab-key"
SIZES = Sizes(records=23, customers=3, partitions=2, pages=2, page_records=5)
MANIFEST = """
version: 7.0.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
spec:
  type: Spec
  connection_specification:
    type: object
    properties:
      base_url: {type: string}
      api_key: {type: string, airbyte_secret: true}
streams:
  - type: DeclarativeStream
    name: orders
    primary_key: id
    schema_loader: {type: InlineSchemaLoader, schema: {type: object, properties: {id: {type: integer}}}}
    retriever:
      type: SimpleRetriever
      record_selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
      requester:
        type: HttpRequester
        url_base: "{{ config['base_url'] }}"
        path: /orders
        authenticator:
          type: ApiKeyAuthenticator
          api_token: "{{ config['api_key'] }}"
          inject_into: {type: RequestOption, field_name: X-Api-Key, inject_into: header}
      paginator:
        type: DefaultPaginator
        page_size_option: {type: RequestOption, field_name: limit, inject_into: request_parameter}
        page_token_option: {type: RequestOption, field_name: offset, inject_into: request_parameter}
        pagination_strategy: {type: OffsetIncrement, page_size: 5}
"""


@pytest.fixture(scope="module")
def running() -> Iterator[SampleApi]:
    with SampleApi(SIZES, api_key=KEY) as api:
        yield api


@pytest.fixture
def api(running: SampleApi, monkeypatch: pytest.MonkeyPatch) -> SampleApi:
    running.reset()
    connection = {"conn_type": "rfr_api", "host": running.base_url, "password": KEY}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    return running


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"page_size": 5, "partitions": 2}))
    return file


@pytest.fixture
def read(command: Rfr) -> Rfr:
    """``airflow rfr source read``, of the shop or another file."""

    def call(*arguments: Any, file: Path = SHOP, code: int = 0) -> Printed:
        return command("source", "read", file, *arguments, "--api-conn-id", "shop", code=code)

    return call


def ids(printed: Printed) -> list[int]:
    return [json.loads(line)["id"] for line in printed.out.splitlines()]


def state_of(file: Path) -> Any:
    [message] = json.loads(file.read_text())
    return message["stream"]["stream_state"]


@pytest.mark.parametrize("stream", ["orders", "invoices", "customers", "customer_orders", "items"])
def test_every_record_is_a_line_and_the_state_comes_last_on_standard_error(
    api: SampleApi, config: Path, stream: str, read: Rfr
) -> None:
    captured = read(stream, "--config", config)
    records = [json.loads(line) for line in captured.out.splitlines()]
    path = {"items": "/partitions/items", "customer_orders": "/orders"}.get(stream, f"/{stream}")
    assert sorted(record["id"] for record in records) == sorted(api.truth(path)["ids"])
    assert f"{stream}: {len(records)} records, state: " in captured.err.splitlines()[-1]
    assert KEY not in captured.out + captured.err


def test_a_limit_ends_the_read_and_the_next_one_repeats_no_page_that_was_whole(
    api: SampleApi, config: Path, tmp_path: Path, read: Rfr
) -> None:
    state, arguments = tmp_path / "state.json", ("orders", "--config", config)
    first = ids(read(*arguments, "--limit", 7, "--state-file", state))
    assert len(first) == 7
    assert api.counts()["requests"] == 2
    rest = ids(read(*arguments, "--state-file", state))
    assert first[:5] + rest == sorted(api.truth("/orders")["ids"])
    assert ids(read(*arguments, "--state-file", state)) == []


def test_a_limit_at_the_end_of_a_page_asks_for_no_further_page(
    api: SampleApi, config: Path, tmp_path: Path, read: Rfr
) -> None:
    arguments = ("orders", "--config", config, "--limit", 5, "--state-file", tmp_path / "state.json")
    assert (len(ids(read(*arguments))), api.counts()["requests"]) == (5, 1)
    assert ids(read(*arguments))[0] == 6


def test_a_read_that_fails_keeps_the_pages_before(api: SampleApi, config: Path, tmp_path: Path, read: Rfr) -> None:
    state, arguments = tmp_path / "state.json", ("orders", "--config", config)
    api.set_faults({"kind": "error", "path": "/orders", "after": 2, "status": 403})
    captured = read(*arguments, "--state-file", state, code=1)
    assert len(captured.out.splitlines()) == 10
    assert "403" in captured.err and KEY not in captured.err
    api.set_faults()
    assert ids(read(*arguments, "--state-file", state))[0] == 11


def test_a_sigkill_loses_no_record_that_the_state_covers(api: SampleApi, config: Path, tmp_path: Path) -> None:
    state, command = tmp_path / "state.json", rfr_command("source", "read", str(SHOP))
    command += ["orders", "--config", str(config), "--state-file", str(state), "--api-conn-id", "shop"]
    api.set_faults({"kind": "hold", "path": "/orders", "after": 3})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(15)]
        process.send_signal(signal.SIGKILL)
    first = [json.loads(line)["id"] for line in lines]
    api.set_faults()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rest = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    truth = sorted(api.truth("/orders")["ids"])
    assert first == truth[:15]
    # The state of the third page may or may not have reached the file.
    assert first[: truth.index(rest[0])] + rest == truth
    assert rest[0] in (truth[10], truth[15])


def test_states_of_other_streams_stay_in_the_file(api: SampleApi, config: Path, tmp_path: Path, read: Rfr) -> None:
    state = tmp_path / "state.json"
    for stream, limit in (("orders", 10), ("customers", 3), ("orders", 10)):
        assert len(ids(read(stream, "--config", config, "--limit", limit, "--state-file", state))) == limit
    names = [message["stream"]["stream_descriptor"]["name"] for message in json.loads(state.read_text())]
    assert sorted(names) == ["customers", "orders"]


@pytest.mark.skipif(importlib.util.find_spec("airbyte_cdk") is None, reason="the extra airbyte is not installed")
def test_a_manifest_of_airbyte_is_read_and_resumed_by_page(api: SampleApi, tmp_path: Path, read: Rfr) -> None:
    manifest, state = tmp_path / "manifest.yaml", tmp_path / "state.json"
    manifest.write_text(MANIFEST)
    first = ids(read("orders", "--limit", 7, "--state-file", state, file=manifest))
    captured = read("orders", "--state-file", state, file=manifest)
    assert first[:5] + ids(captured) == sorted(api.truth("/orders")["ids"])
    assert KEY not in captured.err + state.read_text()


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        (("ordres",), None),
        (("orders", "--limit", 0), None),
        (("orders", "--components", "components.py"), None),
        (("orders", "--config", "missing.yaml"), None),
        (("orders", "--state-file", "state.json"), "{}"),
        (("orders", "--state-file", "state.json"), "no JSON"),
        (("orders", "--state-file", "state.json"), '[{"type": "LEGACY"}]'),
        (("orders", "--state-file", "missing/state.json"), None),
    ],
)
def test_a_wrong_argument_is_named(
    api: SampleApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[Any, ...],
    content: str | None,
    read: Rfr,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("state.json").write_text(content)
    check_messages(read(*arguments, code=1).err)


def test_records_and_state_are_json_in_every_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": 1, "shop": "a", "version": 1, "name": "two  blanks\u00a0\u00e9\U0001f600"}
    monkeypatch.setattr(python_sources, "ROWS", [row])
    monkeypatch.setattr(ConnectorStateManager, "get_stream_state", lambda *_: {"name": row["name"]})
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert rfr("source", "read", f"{python_sources.__name__}:Sliced", "sliced") == 0
    assert json.loads(terminal.buffer.getvalue()) == row  # type: ignore[attr-defined]
    state = capsys.readouterr().err.splitlines()[-1].partition("state: ")[2]
    assert state.isascii()
    assert json.loads(state) == {"name": row["name"]}


def test_what_a_source_raises_has_no_secret_of_the_connection(monkeypatch: pytest.MonkeyPatch, command: Rfr) -> None:
    def refuse(*_: object) -> None:
        raise SourceError(f"the API does not take the key {KEY}")

    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "rfr_api", "password": KEY}))
    monkeypatch.setattr(python_sources, "since", refuse)
    source = f"{python_sources.__name__}:Sliced"
    told = command("source", "read", source, "sliced", "--api-conn-id", "shop", code=1).err
    assert "the API does not take the key" in told
    assert KEY not in told


def test_a_source_that_is_not_there_is_named(tmp_path: Path, command: Rfr) -> None:
    printed = command("source", "read", tmp_path / "nowhere.yaml", "orders", code=1)
    assert "nowhere.yaml: file: can't be read" in printed.err
