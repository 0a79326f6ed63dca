"""What an API does to a refresh: it changes, refuses, slows down, fails in part; and what becomes of its driver.

A Spark session costs seconds, so one test tells one story with several streams in each run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.ledger_table import _LEDGER_PROPERTIES, LedgerTable, ledger_name
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import FlushLabel, FlushWriter, page_row
from airflow_provider_rfr.refresh.process import process_started
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.streams.core import Page
from tests.headers import read_status
from tests.integration.conftest import APP, Lake, Runner, figures_of, kill_group, run_python, shop
from tests.integration.sources import (
    checksum_of,
    errors_by_stream,
    figures_by_stream,
    schema_like,
    source_of,
    stream_like,
)
from tests.soon import PATIENCE

FAILED, CONFIGURATION = 1, 2
PAGES, PAGE_RECORDS = 20, 25
ROUNDS = 120
MANIFEST_BYTES = int(_LEDGER_PROPERTIES["commit.manifest.target-size-bytes"])


def items_of(*partitions: int) -> dict[str, Any]:
    return stream_like("items", partitions={"type": "list", "field": "partition", "values": list(partitions)})


def ids_of(api: SampleApi, *partitions: int) -> list[int]:
    return sorted(one for number in partitions for one in api.truth(f"/partitions/{number}/items")["ids"])


def pages_asked(api: SampleApi, path: str, *, since: int = 0) -> Counter[str]:
    return Counter(entry["page"] for entry in api.log(since=since, path=path) if entry["page"])


def last_request(api: SampleApi) -> int:
    return int(api.counts()["last_sequence"])


@pytest.mark.gate
def test_a_failing_partition_stops_no_other_and_a_source_that_changed_is_treated_as_the_option_says(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    streams = {"shrunk": items_of(0, 1, 2), "edited": items_of(4, 5, 6)}
    broken = {"shrunk": (0, 1), "edited": (4, 5)}

    def config(*names: str, **options: Any) -> Path:
        return runner.config(source=source_of(api, streams), streams=list(names), options={"concurrency": 4, **options})

    faults = [
        {"kind": "error", "status": 400, "message": f"no page 10 of {number}", "path": path, "query": {"page": "10"}}
        for numbers in broken.values()
        for number in numbers
        for path in [f"/partitions/{number}/items"]
    ]
    api.set_faults(*faults)
    failed = runner.run(config(*streams), expect=FAILED)
    for name, numbers in broken.items():
        error = errors_by_stream(failed)[name]
        assert error["type"] == "RefreshFailedError"
        assert "2 of 3 partitions could not be read" in error["message"]
        for number in numbers:
            assert re.search(rf'{{"partition":{number}}}: .*no page 10 of {number}', error["message"])
        status = read_status(lake.settings, f"raw.{name}")
        assert (status.partitions_done, status.pages) == (1, PAGES + 2 * 9)
        assert not lake.has(f"raw.{name}")

    # What is behind page 10 of the broken partitions moves up, or reads differently.
    api.set_faults(
        *({"kind": "shrink", "records": 10, "path": f"/partitions/{number}/items"} for number in broken["shrunk"]),
        *({"kind": "edit", "path": f"/partitions/{number}/items"} for number in broken["edited"]),
    )
    since = last_request(api)
    changed = errors_by_stream(runner.run(config("edited", on_source_change="fail"), expect=FAILED))["edited"]
    assert "reads differently" in changed["message"]
    for number in broken["edited"]:
        assert f'{{"partition":{number}}}' in changed["message"], "a failed partition is not named"
        assert sum(pages_asked(api, f"/partitions/{number}/items", since=since).values()) == 1
    assert pages_asked(api, "/partitions/6/items", since=since) == {}

    runner.run(config("edited", on_source_change="accept"))
    rows = lake.rows("raw.edited").to_pylist()
    assert sorted(row["id"] for row in rows) == ids_of(api, 4, 5, 6)
    revisions = Counter(((row["id"] - 1) // (PAGES * PAGE_RECORDS), row["revision"]) for row in rows)
    assert revisions[(4, 0)] == revisions[(5, 0)] == 9 * PAGE_RECORDS, "committed pages are kept"
    assert revisions[(4, 1)] == revisions[(5, 1)] == 11 * PAGE_RECORDS
    assert revisions[(6, 0)] == PAGES * PAGE_RECORDS

    since = last_request(api)
    figures = runner.run(config("shrunk", on_source_change="restart")).figures
    rows = lake.rows("raw.shrunk")
    assert sorted(rows["id"].to_pylist()) == ids_of(api, 0, 1, 2)
    assert rows.num_rows == 2 * (PAGES * PAGE_RECORDS - 10) + PAGES * PAGE_RECORDS
    assert figures["overlap_checks"] == 2
    assert figures["pages_refetched"] == 2 * 9
    assert pages_asked(api, "/partitions/2/items", since=since) == {}, "a complete partition was read again"


@pytest.mark.gate
def test_an_expired_token_restarts_its_chain_alone_and_the_parents_are_frozen(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    handler = {"expired_token_status": [410], "rules": [{"action": "IGNORE", "status": 404, "message": "gone"}]}
    streams = {
        "customers": stream_like("customers"),
        "customer_orders": stream_like("customer_orders", error_handler=handler),
    }
    parents = api.truth("/customers")["ids"]
    truth = {number: api.truth(f"/customers/{number}/orders")["ids"] for number in parents}
    expiring, failing, vanishing = 7, 8, 9
    config = runner.config(
        source=source_of(api, streams, page_size=3), streams=["customer_orders"], options={"concurrency": 4}
    )
    api.set_faults(
        {"kind": "expire_token", "path": f"/customers/{expiring}/orders", "after": 2, "times": 1},
        {"kind": "error", "status": 400, "path": f"/customers/{failing}/orders"},
        {"kind": "error", "status": 400, "path": f"/customers/{vanishing}/orders"},
    )
    failed = runner.run(config, expect=FAILED).figures
    assert "2 of 30 partitions could not be read" in failed["error"]["message"]
    pages = pages_asked(api, "/customers/*/orders")
    again = {page.partition(" ")[0] for page, times in pages.items() if times > 1}
    assert again == {f"/customers/{expiring}/orders"}, "more than the expired chain was read again"
    assert failed["pages_refetched"] == 3

    api.set_faults({"kind": "change_parents", "add": 2, "remove": [vanishing], "reverse": True, "path": "/customers/*"})
    since = last_request(api)
    second = runner.run(config).figures
    assert second["partitions"] == len(parents)
    assert second["pages_skipped"] == 1
    assert {entry["path"] for entry in api.log(since=since)} == {
        f"/customers/{failing}/orders",
        f"/customers/{vanishing}/orders",
    }, "the list of parents was read again, or partitions that were complete"
    published = lake.rows("raw.customer_orders")
    expected = sorted(one for number in parents if number != vanishing for one in truth[number])
    assert sorted(published["id"].to_pylist()) == expected


@pytest.mark.gate
def test_one_stream_fails_and_the_others_are_published_through_429_and_short_pages(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    streams = {
        "broken": stream_like("orders", request={"path": "/nothing"}),
        "orders": stream_like("orders"),
        "items": items_of(*range(8)),
    }
    left_out = {"kind": "short_page", "path": "/orders", "query": {"offset": "100"}, "records": 5}
    busy = {"kind": "rate_limit", "path": "/partitions/3/items", "after": 4, "times": 1, "retry_after": 2}
    api.set_faults(left_out, busy)
    # No driver prefetch: the tasks of Spark have to tell each other of the pause, over many short rounds.
    options = {"head_start": False, "concurrency": 4, "round_seconds": 0.3, "requests_per_second": 20}
    config = runner.config(source=source_of(api, streams), streams=list(streams), options=options)
    outcome = runner.run(config, expect=FAILED)
    errors = errors_by_stream(outcome)
    assert set(errors) == {"broken"}
    assert "404" in errors["broken"]["message"]
    assert not lake.has("raw.broken")
    figures = figures_by_stream(outcome)
    assert figures["items"]["pages"] == 8 * PAGES
    assert figures["items"]["rounds"] >= 6
    assert checksum_of(lake.rows("raw.items")) == api.truth("/partitions/items")["checksum"]

    published = set(lake.rows("raw.orders")["id"].to_pylist())
    assert len(published) == figures["orders"]["rows"]
    assert set(api.truth("/orders")["ids"]) - published <= set(range(101, 126)), "a short page ended the stream"
    assert max(published) == 400

    log = api.log(path="/partitions/*")
    refused = next(entry for entry in log if entry["status"] == 429)
    retry_at = refused["at"] + refused["seconds"]
    # Requests that were on their way and the heartbeat that carries the news: then silence, on every thread and task.
    sent = [entry["at"] - retry_at for entry in log if 0.45 < entry["at"] - retry_at < 1.9]
    assert sent == [], "somebody went on although the API asked for a pause"
    assert max(entry["at"] for entry in log) > retry_at + 1.9


@dataclass(frozen=True)
class LedgerSize:
    """:ivar written: bytes that the newest commit wrote, without data files
    :ivar files: in the folder of metadata
    """

    written: int
    snapshots: int
    manifests: int
    files: int

    def assert_bounded(self) -> None:
        # The snapshots kept, those since the last trim, their manifests, and a few versions of the metadata.
        assert self.snapshots <= 12
        assert self.manifests <= 30
        assert self.files <= 70


def size_of(table: Any) -> LedgerSize:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io)
    own = [one.manifest_path for one in manifests if one.added_snapshot_id == snapshot.snapshot_id]
    written = sum(local(name).stat().st_size for name in [table.metadata_location, snapshot.manifest_list, *own])
    files = len(list(local(table.metadata_location).parent.iterdir()))
    return LedgerSize(written, len(table.metadata.snapshots), len(manifests), files)


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def test_bytes_written_a_round_do_not_grow_with_the_rounds_before(lake: Lake) -> None:
    ledger = Ledger(LedgerTable.load_or_create(open_catalog(lake.settings), "raw.items"))
    slices = [(f'{{"p":{number}}}', {"p": number}) for number in range(4)]
    ledger.open_generation(slices, read_fingerprint="r", publish_fingerprint="p", run_key=None)
    sizes: list[LedgerSize] = []
    for number in range(1, ROUNDS + 1):
        writer = FlushWriter(ledger.store, ledger.folder, FlushLabel(1, 1, number, 0, 0, 0))
        for ordinal, (key, _) in enumerate(slices):
            page = Page([{"id": number}], number)
            token = number - 1 if number > 1 else None
            place = {"generation": 1, "epoch": 1, "ordinal": ordinal, "key": key, "chain": 0, "number": number}
            writer.write([page_row(page, token=token, **place)])
        ledger.commit(writer.files, rounds=number, pages=4 * number)
        sizes.append(size_of(lake.table(ledger_name("raw.items"))))
    for size in sizes:
        size.assert_bounded()
    quarter = ROUNDS // 4
    second, last = sizes[quarter : 2 * quarter], sizes[-quarter:]
    usual = median(size.written for size in second)
    assert median(size.written for size in last) < 1.1 * usual
    # Now and then a commit merges manifests; those that are full are left alone.
    merges = [size for size in sizes if size.written > 2 * usual]
    assert 0 < len(merges) <= ROUNDS // 10
    assert max(size.written for size in merges) < MANIFEST_BYTES + 2 * usual
    assert len(ledger.page_files()) == 4 * ROUNDS


@pytest.mark.test
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("missing.yaml", None, "missing.yaml can't be read"),
        ("broken.yaml", "source: {file: [", "broken.yaml is not YAML at line 1"),
        ("broken.json", '{"source": ', "broken.json is not JSON"),
        ("list.yaml", "- a\n- b\n", "list.yaml: must be a mapping"),
        (
            "typo.yaml",
            "source: {file: x.yaml}\nstreams: [a]\ntarget: raw.a\nlake: {properties: {type: sql}}\n"
            "options: {concurency: 3}\n",
            "options.concurency: unknown field; did you mean concurrency?",
        ),
    ],
)
def test_a_wrong_config_file_ends_at_once_with_one_sentence(
    name: str, text: str | None, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    ended = run_python(APP, "--config", path, expect=CONFIGURATION)
    error = figures_of(ended.stdout)["error"]
    assert error["type"] == "ConfigurationError"
    assert told in error["message"]
    assert "Traceback" not in ended.stderr


@pytest.mark.gate
def test_a_secret_that_the_document_refers_to_is_in_no_output_file_or_setting(
    lake: Lake, runner: Runner, tmp_path: Path
) -> None:
    key, other = "canary-5e0f31-key", "canary-5e0f31-file"
    secret, events, settings = (tmp_path / name for name in ("secret", "events", "settings"))
    secret.write_text(f"{other}\n")
    events.mkdir()
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir file://{events}\n"
    )
    lake.properties["header.X-Team"] = {"file": str(secret)}  # type: ignore[assignment]
    with SampleApi(Sizes(records=100), api_key=key) as api:
        source = source_of(api, {"orders": stream_like("orders")}) | {"secrets": {"api_key": {"env": "SHOP_KEY"}}}
        config = runner.config(source=source, streams=["orders"])
        environment = {"SHOP_KEY": key, "SPARK_CONF_DIR": str(settings)}
        done = runner.run(config, environment=environment)
        api.set_faults({"kind": "error", "status": 403, "path": "/orders"})
        failed = runner.run(config, environment=environment, expect=FAILED)
    del lake.properties["header.X-Team"]
    assert lake.rows("raw.orders").num_rows == api.sizes.records
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != secret]
    written = [path.read_bytes() for path in events.rglob("*") if path.is_file()]
    assert any(b"spark.eventLog.dir" in content for content in written), "Spark wrote down its settings"
    for content in (done.output.encode(), failed.output.encode(), *contents):
        assert b"canary-5e0f31" not in content


def test_what_only_the_source_and_the_table_can_tell_to_be_wrong_is_a_configuration_error_too(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    schema = schema_like("orders", amount={"type": "money"})
    streams = {"typo": stream_like("orders", json_schema=schema), "orders": stream_like("orders")}

    def run(*names: str, **options: Any) -> dict[str, dict[str, Any]]:
        config = runner.config(source=source_of(api, streams), streams=list(names), options=options)
        return errors_by_stream(runner.run(config, expect=CONFIGURATION))

    requests = api.counts()["requests"]
    errors = run("typo", "nowhere", "orders", replace_where="dya = '2026-01-01'")
    assert "money" in errors["typo"]["message"]
    assert "nowhere" in errors["nowhere"]["message"]
    assert errors["orders"]["type"] == "ConfigurationError"
    assert "dya" in errors["orders"]["message"]
    assert "the columns are id, reference" in errors["orders"]["message"]
    assert api.counts()["requests"] == requests, "a filter over a column that there isn't was found after the reading"
    assert not lake.has("raw.orders")


def test_a_driver_whose_supervisor_died_commits_its_round_and_ends(lake: Lake, runner: Runner, api: SampleApi) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = process_started(supervisor.pid)
    run = {"key": "k", "supervisor": {"pid": supervisor.pid, "started": started, "host": socket.gethostname()}}
    options = {"round_seconds": 5, "requests_per_second": 10, "concurrency": 4}
    config = runner.config(source=shop(api, partitions=8, page_size=25), streams=["items"], run=run, options=options)
    api.set_faults({"kind": "hold", "path": "/partitions/*", "after": 90})
    driver = runner.start(config)
    try:
        # Spark has started by then, and the second round is on.
        api.wait_for_pages(90)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
        output, _ = driver.communicate(timeout=PATIENCE)
    finally:
        kill_group(driver)
        supervisor.kill()
    assert driver.returncode == FAILED, output[-4000:]
    error = figures_of(output)["error"]
    assert error["type"] == "RefreshStoppedError"
    assert "for which this refresh ran, has ended" in output
    status = read_status(lake.settings, "raw.items")
    served = api.counts(path="/partitions/*")
    assert status.pages == served["pages"], "pages that were read were not committed"
    assert served["refetched"] == 0
    assert served["pages"] < 8 * PAGES, "it went on for longer than a round"


def test_a_page_that_never_comes_fails_its_partition_although_its_retries_outlast_many_rounds(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    api.set_faults({"kind": "error", "status": 500, "path": "/partitions/0/items", "after": 2})
    options = {"round_seconds": 0.5, "concurrency": 4}
    config = runner.config(source=shop(api, partitions=2, page_size=25), streams=["items"], options=options)
    failed = runner.run(config, expect=FAILED).figures
    assert "1 of 2 partitions could not be read" in failed["error"]["message"]
    assert "gave up after" in failed["error"]["message"]
    statuses = api.counts(path="/partitions/0/items")["statuses"]
    assert statuses["500"] < 40, "each round tried anew"
