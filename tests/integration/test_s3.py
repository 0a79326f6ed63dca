"""A whole refresh on an S3-compatible store: tables, ledger and files by PyIceberg's FileIO, and where its key goes.

On moto, and on SeaweedFS, which checks signatures and keeps its data.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.airflow_tasks import Onlooker, execute, items_operator, later_children, set_connections
from tests.integration.conftest import CRASHING_APP, Lake, Runner, assert_whole, kill_half_way, shop
from tests.integration.object_store import moto_server
from tests.integration.weed import SeaweedServer
from tests.soon import PATIENCE, soon

KEY_ID = "canary-id-8f21"
SECRET = "canary-secret-77b0c4-key"
BUCKET = "lake"
PAGES = 8 * 20
CONFIG = {"partitions": 8, "page_size": 25}
OPTIONS = {"round_seconds": 0.5, "concurrency": 8, "head_start": False}


class Store:
    """The S3-compatible store, looked into past the product."""

    def __init__(self, endpoint: str, server: SeaweedServer | None = None) -> None:
        import boto3  # type: ignore[import-untyped]

        self.endpoint = endpoint
        self.server = server
        self._client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET
        )

    def make_bucket(self) -> None:
        for item in self.objects():
            self._client.delete_object(Bucket=BUCKET, Key=item)
        if BUCKET not in [bucket["Name"] for bucket in self._client.list_buckets()["Buckets"]]:
            self._client.create_bucket(Bucket=BUCKET)

    def objects(self) -> list[str]:
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            return [item["Key"] for page in pages for item in page.get("Contents", ())]
        except self._client.exceptions.NoSuchBucket:
            return []

    def tag(self, key: str) -> str:
        return str(self._client.head_object(Bucket=BUCKET, Key=key)["ETag"]).strip('"')

    def read(self, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


class Requests(logging.Handler):
    """Keeps method and key of each request that the store serves."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[tuple[str, str]] = []

    def __enter__(self) -> Requests:
        logger = logging.getLogger("werkzeug")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logger = logging.getLogger("werkzeug")
        logger.removeHandler(self)
        logger.propagate = True
        logger.setLevel(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(rf"([A-Z]+) /{BUCKET}/(\S+) HTTP", record.getMessage()):
            self.served.append((found[1], found[2]))

    def of_ledger_files(self) -> Counter[str]:
        """Return the requests of the ledger's data files by method."""
        return Counter(method for method, key in self.served if "__rfr_ledger/data/" in key and ".parquet" in key)


@pytest.fixture(scope="module")
def moto() -> Iterator[Store]:
    with moto_server() as (host, port):
        yield Store(f"http://{host}:{port}")


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("weed")
    with SeaweedServer(folder, ["tableBucket=", f"bucket={BUCKET}"], key=(KEY_ID, SECRET)) as server:
        yield Store(server.endpoint, server)


MOTO_IN_THE_GATE = pytest.mark.parametrize(
    "store", [pytest.param("moto", marks=pytest.mark.gate), "weed"], indirect=True
)


@pytest.fixture(params=["moto", "weed"])
def store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(request.param)
    store.make_bucket()
    return store


@pytest.fixture
def lake(tmp_path: Path, store: Store) -> Lake:
    return Lake(
        tmp_path,
        {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{BUCKET}/warehouse",
            "s3.endpoint": store.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
        },
    )


def items(runner: Runner, api: SampleApi) -> Path:
    return runner.config(source=shop(api, **CONFIG), streams=["items"], options=OPTIONS)


def test_a_kill_in_a_round_on_s3_is_gone_on_with(lake: Lake, runner: Runner, api: SampleApi, store: Store) -> None:
    config = items(runner, api)
    killed_at = kill_half_way(runner, api, config, PAGES)
    before = api.counts(path="/partitions/*")
    assert not lake.has("raw.items")
    figures = runner.run(config).figures
    assert_whole(lake, api)
    assert (figures["generation"], figures["attempts"]) == (1, 2)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - figures["overlap_checks"]
    newest = sum(entry["at"] > killed_at - 3 for entry in api.log(path="/partitions/*") if entry["at"] <= killed_at)
    assert again <= newest + OPTIONS["concurrency"]
    assert any(name.startswith("warehouse/raw/items/data/") for name in store.objects())
    assert not (lake.folder / "warehouse").exists()


@pytest.mark.parametrize("store", [pytest.param("moto", marks=pytest.mark.gate)], indirect=True)
def test_a_small_refresh_costs_few_requests(lake: Lake, runner: Runner, api: SampleApi) -> None:
    config = runner.config(source=shop(api, partitions=8, page_size=12), streams=["items"], options={"concurrency": 8})
    with Requests() as requests:
        figures = runner.run(config).figures
    assert figures["pages"] == 8 * 42
    counts = requests.of_ledger_files()
    puts = sum(method == "PUT" for method, _ in requests.served)
    print("all requests:", Counter(method for method, _ in requests.served), "of ledger files:", counts)
    # In each second of reading a file for each core and for the driver prefetch, and one more at its end.
    assert counts["PUT"] <= 3 * (figures["seconds"]["read"] + 1), counts
    assert puts - counts["PUT"] <= 30
    assert counts["GET"] + counts["HEAD"] <= 3 * counts["PUT"], counts
    assert_whole(lake, api)


def test_a_small_object_is_stored_in_one_request_which_leaves_no_parts_when_it_is_cut_off(
    lake: Lake, store: Store
) -> None:
    files = FileStore(lake.properties)
    files.write(f"s3://{BUCKET}/some/object", b"small")
    assert files.read(f"s3://{BUCKET}/some/object") == b"small"
    assert "-" not in store.tag("some/object"), "a tag with a dash counts the parts of an upload"
    assert files.list(f"s3://{BUCKET}/some") == [(f"s3://{BUCKET}/some/object", 5)]
    assert files.delete([f"s3://{BUCKET}/some/object", f"s3://{BUCKET}/some/other"]) == 1
    assert files.list(f"s3://{BUCKET}/some") == []
    assert files.read_footer(f"s3://{BUCKET}/some/object") is None


def test_a_kill_in_the_publish_on_s3_is_gone_on_with(lake: Lake, runner: Runner, api: SampleApi) -> None:
    config = items(runner, api)
    runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": "before the target commit"}, expect=-9)
    assert not lake.has("raw.items")
    figures = runner.run(config).figures
    assert_whole(lake, api)
    assert (figures["generation"], figures["attempts"]) == (1, 2)


def test_a_second_refresh_on_s3_replaces_the_first_and_collects_it(
    lake: Lake, runner: Runner, api: SampleApi, store: Store
) -> None:
    config = items(runner, api)
    runner.run(config)
    figures = runner.run(config).figures
    assert_whole(lake, api)
    assert figures["generation"] == 2
    ledger = [name for name in store.objects() if "__rfr_ledger" in name and name.endswith(".parquet")]
    assert ledger
    assert all("/generation=2/" in name for name in ledger)


@pytest.fixture
def connections(lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "s3_endpoint": lake.properties["s3.endpoint"],
        "s3_region": "us-east-1",
        "s3_access_key_id": KEY_ID,
        "s3_secret_access_key": SECRET,
    }
    set_connections(monkeypatch, lake, api, lake_extra=extra)


def run_operator(**arguments: Any) -> dict[str, Any]:
    """One try of one run, as the task runner would make it."""
    # All of Spark's settings go to the log, and the event log keeps them and the jobs' properties.
    return execute(items_operator(CONFIG, OPTIONS, verbose=True, **arguments))


@MOTO_IN_THE_GATE
def test_the_stores_secret_key_is_seen_nowhere(
    connections: None,
    lake: Lake,
    api: SampleApi,
    store: Store,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    with Onlooker(later_children()) as onlooker:
        log = {"enabled": "true", "dir": f"file://{events}", "compress": "false"}
        result = run_operator(conf={f"spark.eventLog.{key}": value for key, value in log.items()})
    assert_whole(lake, api)
    assert result["rows"] == PAGES * 25
    processes = "".join(onlooker.seen.values())
    assert "full_refresh.py" in processes
    printed = capfd.readouterr()
    logs = printed.out + printed.err + caplog.text
    assert "spark.eventLog.dir" in logs
    conf = b"".join(file.read_bytes() for file in events.rglob("*") if file.is_file())
    assert b"spark.eventLog.dir" in conf
    objects = store.objects()
    assert any(name.endswith(".metadata.json") for name in objects)
    tables = b"".join(store.read(name) for name in objects)
    catalog = (tmp_path / "catalog.db").read_bytes()
    for place in (processes.encode(), logs.encode(), conf, json.dumps(result).encode(), tables, catalog):
        assert SECRET.encode() not in place
        assert KEY_ID.encode() not in place


def run_and_tell(capfd: pytest.CaptureFixture[str]) -> str:
    """Run a refresh that fails at once; return the texts of its errors, and what it wrote."""
    with soon(), pytest.raises(Exception) as raised:
        run_operator()
    printed = capfd.readouterr()
    chain = []
    error: BaseException | None = raised.value
    while error is not None:
        chain.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    return " ".join(chain) + printed.out + printed.err


def change_connection(monkeypatch: pytest.MonkeyPatch, **extra: str) -> None:
    connection = json.loads(os.environ["AIRFLOW_CONN_LAKE"])
    connection["extra"] = json.dumps({**json.loads(connection["extra"]), **extra})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))


def test_a_store_that_does_not_answer_is_told_of_without_its_key(
    connections: None, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    change_connection(monkeypatch, warehouse="s3://no-such-bucket/warehouse")
    output = run_and_tell(capfd)
    assert SECRET not in output
    assert KEY_ID not in output
    assert "no-such-bucket" in output


def test_the_lake_connection_opens_the_catalog_on_s3(connections: None, lake: Lake) -> None:
    assert LakeHook("lake").test_connection()[0]
    settings = LakeHook("lake").get_lake_settings()
    assert open_catalog(settings).properties["s3.endpoint"] == lake.properties["s3.endpoint"]
    assert SECRET not in repr(settings)


@pytest.mark.parametrize("store", ["weed"], indirect=True)
def test_a_wrong_secret_key_is_refused_and_shown_nowhere(
    connections: None, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = "canary-wrong-55e01b-key"
    change_connection(monkeypatch, s3_secret_access_key=wrong)
    output = run_and_tell(capfd)
    for secret in (wrong, SECRET, KEY_ID):
        assert secret not in output
    assert "ACCESS_DENIED" in output
    assert not lake.has("raw.items")
    passed, message = LakeHook("lake").test_connection()
    assert not passed
    assert "SIGNATURE_DOES_NOT_MATCH" in message
    assert wrong not in message


@pytest.mark.parametrize("store", ["weed"], indirect=True)
def test_a_refresh_goes_on_after_a_kill_of_the_store_which_has_all_that_it_acknowledged(
    lake: Lake, runner: Runner, api: SampleApi, store: Store
) -> None:
    assert store.server is not None
    config = runner.config(
        source=shop(api, **CONFIG), streams=["items"], options={**OPTIONS, "requests_per_second": 40}
    )
    process = runner.start(config)
    api.wait_for_pages(PAGES // 2)
    before = {key: store.tag(key) for key in store.objects() if "__rfr_ledger/data/" in key}
    assert before
    store.server.kill()
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, output[-3000:]
    assert SECRET not in output
    store.server.start()
    assert {key: store.tag(key) for key in before} == before
    figures = runner.run(config).figures
    assert_whole(lake, api)
    assert (figures["generation"], figures["attempts"]) == (1, 2)
