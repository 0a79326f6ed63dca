"""Refreshes and deploys on the catalogs and stores of the clouds: Glue, Hive; Azure's and Google's storage.

Glue and S3 are moto's; the other servers are described in ``cloud_servers.py``.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pyarrow.fs as pafs
import pytest

from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError, append_files
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.airflow_tasks import Onlooker, execute, items_operator, later_children
from tests.integration.builtin_platform import Platform
from tests.integration.builtin_sql_deploy import SPARK
from tests.integration.cloud_servers import azurite, gcs_server, hive_metastore
from tests.integration.conftest import Lake, Runner, assert_one_of_two_publishes, assert_whole, kill_half_way
from tests.integration.object_store import moto_server
from tests.integration.sources import checksum_of, schema_like, source_of, stream_like
from tests.integration.test_crash_matrix import OPTIONS, PAGES, items
from tests.integration.test_readers import PollingReader
from tests.strict_commits import KINDS, CommitKind

KEY_ID, SECRET = "canary-id-8f21", "canary-secret-77b0c4-key"
ACCOUNT, ACCOUNT_KEY = "lakeaccount", base64.b64encode(b"canary-azure-key-" * 4).decode()
TOKEN = "canary-gcs-token-90ab"
ON_S3 = {"s3.region": "us-east-1", "s3.access-key-id": KEY_ID, "s3.secret-access-key": SECRET}


@dataclass(frozen=True)
class Cloud:
    """Running servers.

    :ivar properties: of the catalog; ``{folder}`` stands for the test's folder, ``{name}`` for one of its own
    :ivar connection: fields of the Airflow connection, beside those that the properties give
    :ivar secrets: which must be seen nowhere
    """

    properties: dict[str, str]
    connection: dict[str, str]
    secrets: tuple[str, ...] = ()


def make_bucket(endpoint: str) -> None:
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET
    )
    client.create_bucket(Bucket="lake")


def on_aws(stack: ExitStack, folder: Path) -> Cloud:
    host, port = stack.enter_context(moto_server())
    endpoint = f"http://{host}:{port}"
    make_bucket(endpoint)
    glue = {"glue.endpoint": endpoint, "glue.region": "us-east-1", "glue.id": "{name}"}
    properties = {"type": "glue", "warehouse": "s3://lake/{name}", "s3.endpoint": endpoint, **ON_S3, **glue}
    keys = {"client.access-key-id": KEY_ID, "client.secret-access-key": SECRET}
    return Cloud({**properties, **keys}, {"login": KEY_ID, "password": SECRET}, (KEY_ID, SECRET))


def on_hive(stack: ExitStack, folder: Path) -> Cloud:
    uri = f"thrift://127.0.0.1:{stack.enter_context(hive_metastore(folder))}"
    return Cloud({"type": "hive", "uri": uri, "warehouse": "file://{folder}/warehouse"}, {})


def on_azure(stack: ExitStack, folder: Path) -> Cloud:
    place = f"127.0.0.1:{stack.enter_context(azurite(folder, ACCOUNT, ACCOUNT_KEY))}"
    schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    authorities = {"blob_storage_authority": place, "dfs_storage_authority": place}
    pafs.AzureFileSystem(ACCOUNT, account_key=ACCOUNT_KEY, **authorities, **schemes).create_dir("lake")
    adls = {f"adls.{name.replace('_', '-')}": value for name, value in {**schemes, **authorities}.items()}
    warehouse = f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/{{name}}"
    properties = {"type": "sql", "uri": "sqlite:///{folder}/catalog.db", "warehouse": warehouse, **adls}
    return Cloud({**properties, "adls.account-key": ACCOUNT_KEY}, {}, (ACCOUNT_KEY,))


def on_google(stack: ExitStack, folder: Path) -> Cloud:
    endpoint = f"http://127.0.0.1:{stack.enter_context(gcs_server(folder))}"
    body, headers = json.dumps({"name": "lake"}).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/storage/v1/b?project=p", body, headers)).close()
    expiry = str(int((time.time() + 86_400) * 1000))
    gcs = {"gcs.service.host": endpoint, "gcs.oauth2.token": TOKEN, "gcs.oauth2.token-expires-at": expiry}
    properties = {"type": "sql", "uri": "sqlite:///{folder}/catalog.db", "warehouse": "gs://lake/{name}", **gcs}
    return Cloud(properties, {}, (TOKEN,))


STARTS = {"glue": on_aws, "hive": on_hive, "adls": on_azure, "gcs": on_google}


@pytest.fixture(scope="module", params=STARTS)
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with ExitStack() as stack:
        yield STARTS[request.param](stack, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def target() -> str:
    """A table of the test's own: the servers are shared."""
    return f"raw_{uuid.uuid4().hex[:8]}.items"


@pytest.fixture
def lake(cloud: Cloud, tmp_path: Path) -> Lake:
    name = uuid.uuid4().hex[:8]
    return Lake(tmp_path, {key: value.format(folder=tmp_path, name=name) for key, value in cloud.properties.items()})


def test_a_refresh_that_is_killed_half_way_is_resumed(
    lake: Lake, runner: Runner, api: SampleApi, target: str, cloud: Cloud
) -> None:
    config = items(runner, api, target, head_start=False)
    killed_at = kill_half_way(runner, api, config, PAGES)
    before = api.counts(path="/partitions/*")
    assert not lake.has(target)
    outcome = runner.run(config)
    assert_whole(lake, api, target)
    assert (outcome.figures["generation"], outcome.figures["attempts"]) == (1, 2)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - outcome.figures["overlap_checks"]
    newest = sum(killed_at - 3 < entry["at"] <= killed_at for entry in api.log(path="/partitions/*"))
    print("pages before the kill:", before["pages"], "in the last 3 s:", newest, "asked for again:", again)
    assert again <= newest + OPTIONS["concurrency"] < PAGES // 2
    assert not [secret for secret in cloud.secrets if secret in outcome.output]


def test_a_reader_who_polls_during_the_next_publish_sees_the_old_rows_or_the_new_ones(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    namespace = f"raw_{uuid.uuid4().hex[:8]}"
    config = runner.config(
        source=source_of(api, {"orders": stream_like("orders")}), streams=["orders"], target=f"{namespace}.{{stream}}"
    )
    runner.run(config)
    old = checksum_of(lake.rows(f"{namespace}.orders"))
    assert old == api.truth("/orders")["checksum"]
    api.set_faults({"kind": "edit", "path": "/orders"})
    reader = PollingReader(lake, f"{namespace}.orders")
    reader.start()
    figures = runner.run(config).figures
    reader.finish()
    new = api.truth("/orders")["checksum"]
    assert (figures["generation"], checksum_of(lake.rows(f"{namespace}.orders"))) == (2, new)
    assert set(reader.seen) <= {old, new}
    assert reader.seen.count(old) > 5, "too few polls to mean anything"
    assert reader.seen == sorted(reader.seen, key=[old, new].index), "the old table came back"


def test_a_part_of_the_rows_is_replaced(lake: Lake, runner: Runner, api: SampleApi) -> None:
    namespace = f"raw_{uuid.uuid4().hex[:8]}"
    daily = stream_like(
        "items",
        partitions={"type": "list", "field": "partition", "values": "{{ config.parts }}"},
        transformations=[{"type": "add", "fields": {"day": "{{ config.day }}"}}],
        json_schema=schema_like("items", day={"type": "string", "format": "date"}),
    )

    def refresh(number: int) -> None:
        day = f"2026-01-0{number + 1}"
        source = source_of(api, {"items": daily}, day=day, parts=[number])
        options = {"replace_where": f"day = '{day}'"}
        runner.run(runner.config(source=source, streams=["items"], target=f"{namespace}.{{stream}}", options=options))

    refresh(0)
    refresh(1)
    api.set_faults({"kind": "edit", "path": "/partitions/0/items", "collection": "/partitions/0/items"})
    refresh(0)
    rows = lake.rows(f"{namespace}.items").to_pylist()
    found = {(row["day"].day, row["revision"]) for row in rows}
    assert found == {(1, 1), (2, 0)}
    assert sorted(row["id"] for row in rows) == sorted(
        key for number in (0, 1) for key in api.truth(f"/partitions/{number}/items")["ids"]
    )


def test_of_two_drivers_that_start_at_once_one_publishes_and_the_other_is_fenced(
    lake: Lake, runner: Runner, api: SampleApi, target: str
) -> None:
    assert_one_of_two_publishes(lake, runner, api, items(runner, api, target), target)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_commit(lake: Lake, target: str, kind: CommitKind) -> None:
    kind.prepare(open_catalog(lake.settings), target)()
    kind.check(open_catalog(lake.settings), target)


def test_a_commit_on_a_table_that_has_changed_is_refused(lake: Lake, target: str) -> None:
    KINDS["target: replace"].prepare(open_catalog(lake.settings), target)()
    first, second = lake.table(target), lake.table(target)
    append_files(first, [], {})
    with pytest.raises(CommitConflictError):
        append_files(second, [], {})


def test_many_threads_share_one_catalog(lake: Lake, target: str) -> None:
    KINDS["target: replace"].prepare(open_catalog(lake.settings), target)()
    catalog = open_catalog(lake.settings)
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(catalog.load_table, [target] * 64))
    assert len({table.metadata_location for table in tables}) == 1


def test_the_connection_takes_what_the_catalog_needs(lake: Lake, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    set_lake(monkeypatch, lake, cloud)
    hook = LakeHook("lake")
    assert hook.get_lake_settings().properties == lake.properties
    found = hook.test_connection()
    assert found[0], found[1]
    assert not [secret for secret in cloud.secrets if secret in repr(hook.get_lake_settings())]


def set_lake(monkeypatch: pytest.MonkeyPatch, lake: Lake, cloud: Cloud) -> None:
    """Set the connection `lake`, with fields of their own for what has one."""
    by_login = {"client.access-key-id", "client.secret-access-key"} if cloud.connection else set()
    own = {"type": "catalog_type", "warehouse": "warehouse"}
    own |= {f"s3.{name}": f"s3_{name.replace('-', '_')}" for name in ("endpoint", "region", "access-key-id")}
    own["s3.secret-access-key"] = "s3_secret_access_key"
    properties = {name: value for name, value in lake.properties.items() if name not in by_login}
    host = properties.pop("uri", None)
    extra: dict[str, Any] = {own[name]: properties.pop(name) for name in [*properties] if name in own}
    extra["properties"] = properties
    connection = {"conn_type": "rfr_lake", "host": host, "extra": json.dumps(extra), **cloud.connection}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))


# A metastore without Kerberos has none.
@pytest.mark.parametrize("cloud", ["glue", "adls", "gcs"], indirect=True)
def test_the_secrets_are_seen_nowhere(
    lake: Lake,
    cloud: Cloud,
    api: SampleApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    target: str,
) -> None:
    set_lake(monkeypatch, lake, cloud)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "rfr_api", "host": api.base_url, "password": "k"}))
    events = tmp_path / "events"
    events.mkdir()
    log = {"enabled": "true", "dir": f"file://{events}", "compress": "false"}
    operator = items_operator(
        {"partitions": 8, "page_size": 25},
        {**OPTIONS, "spark": "always"},
        target=target,
        verbose=True,
        conf={f"spark.eventLog.{key}": value for key, value in log.items()},
    )
    with Onlooker(later_children()) as onlooker:
        result = execute(operator)
    assert_whole(lake, api, target)
    processes = "".join(onlooker.seen.values())
    printed = capfd.readouterr()
    logs = printed.out + printed.err + caplog.text
    conf = b"".join(file.read_bytes() for file in events.rglob("*") if file.is_file())
    store = FileStore(lake.properties)
    root = lake.table(target).location().rpartition("/")[0]
    stored = store.list(root)
    assert any("__rfr_ledger" in place for place, _ in stored)
    assert ("full_refresh.py" in processes, "spark.eventLog.dir" in logs, b"spark.eventLog.dir" in conf) == (True,) * 3
    places = [processes.encode(), logs.encode(), conf, json.dumps(result).encode()]
    places += [store.read(place) for place, _ in stored]
    for secret in cloud.secrets:
        assert not [place[:200] for place in places if secret.encode() in place]


TABLE = "kind: table\nname: ops.runs\ncolumns: [{name: id, type: bigint}]\n"
VIEW = "kind: view\nname: ops.seen\ncolumns: [{name: id, type: bigint}]\nquery: SELECT id FROM ops.runs\n"


# Where the catalog has views, SQL on Spark needs Iceberg's bundle for the store.
@pytest.mark.parametrize("cloud", ["adls", "gcs"], indirect=True)
def test_a_deploy_makes_tables(lake: Lake, tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    (platform.objects / "runs.yaml").write_text(TABLE)
    code, figures, output = platform.run_app(lake.settings, project="acme")
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    assert lake.has("ops.runs")


@pytest.mark.parametrize("cloud", ["glue", "hive"], indirect=True)
def test_a_deploy_makes_tables_and_refuses_a_view_where_the_catalog_has_none(lake: Lake, tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    (platform.objects / "runs.yaml").write_text(TABLE)
    code, figures, output = platform.run_app(lake.settings, spark=SPARK)
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    assert lake.has("ops.runs")
    assert lake.has("rfr_system.refresh_history")
    (platform.objects / "seen.yaml").write_text(VIEW)
    code, figures, _ = platform.run_app(lake.settings, spark=SPARK, version="2.0")
    assert code == 1
    assert "ops.seen is a view, and the catalog rfr can't hold views" in figures["error"]["message"]
    assert figures["error"]["message"].endswith("nothing was done")
