"""A REST catalog with OAuth clients whose tokens expire, and vended credentials for each table that expire too.

The lake's settings name no key of the store: drivers and executors have what the catalog vends, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.tables import list_views
from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.airflow_tasks import Onlooker, execute, items_operator, set_connections
from tests.integration.builtin_platform import TO_NUMBERS, Platform
from tests.integration.builtin_sql_deploy import SPARK
from tests.integration.conftest import Lake, Runner, assert_whole, kill_group, shop
from tests.integration.sources import checksum_of
from tests.integration.test_crash_matrix import PAGES, items
from tests.integration.test_readers import PollingReader
from tests.integration.users_spark import run_on_spark
from tests.integration.weed import BUCKET, SeaweedServer, vending_server

TOKEN_SECONDS, CREDENTIAL_SECONDS = 10, 30
VENDED = re.compile(rb"ASIA[0-9a-f]{16}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}")
"""An access key's id of the server's STS, or a JSON Web Token: of a session, or of OAuth."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    folder = tmp_path_factory.mktemp("weed")
    with vending_server(folder, token_seconds=TOKEN_SECONDS, credential_seconds=CREDENTIAL_SECONDS) as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path, server: SeaweedServer) -> Lake:
    # Java's client of S3 asks for a region, which this server does not vend under its name there.
    lake = Lake(tmp_path, {**server.catalog_properties, "client.region": "us-east-1"})
    catalog = open_catalog(lake.settings)
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)
    return lake


def test_a_load_outlives_tokens_and_vended_credentials_and_a_kill(
    lake: Lake, runner: Runner, api: SampleApi, server: SeaweedServer
) -> None:
    config = items(runner, api, requests_per_second=2.5, round_seconds=1)
    process = runner.start(config)
    api.wait_for_pages(PAGES // 4)
    kill_group(process)
    outcome = runner.run(config)
    assert_whole(lake, api)
    assert (outcome.figures["generation"], outcome.figures["attempts"]) == (1, 2)
    assert outcome.figures["seconds"]["read"] > 1.4 * CREDENTIAL_SECONDS > TOKEN_SECONDS
    assert server.secret not in outcome.output
    assert not VENDED.search(outcome.output.encode())
    assert not lake.table("raw.items").catalog.properties.keys() & {"s3.access-key-id", "s3.endpoint"}


def test_readers_see_the_old_table_or_the_new_one(lake: Lake, runner: Runner, api: SampleApi) -> None:
    config = runner.config(source=shop(api, page_size=25), streams=["orders"])
    runner.run(config)
    first = checksum_of(lake.rows("raw.orders"))
    api.set_faults({"kind": "edit", "path": "/orders"})
    reader = PollingReader(lake, "raw.orders")
    reader.start()
    runner.run(config)
    reader.finish()
    second = checksum_of(lake.rows("raw.orders"))
    assert first != second
    assert first in reader.seen
    assert set(reader.seen) <= {first, second}


def test_neither_the_clients_secret_nor_what_was_vended_is_seen_anywhere(
    lake: Lake,
    api: SampleApi,
    server: SeaweedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    properties = {"credential": f"{server.key_id}:{server.secret}"}
    properties["oauth2-server-uri"] = lake.properties["oauth2-server-uri"]
    set_connections(monkeypatch, lake, api, lake_extra={"catalog_type": "rest", "properties": properties})
    (tmp_path / "events").mkdir()
    log = {"enabled": "true", "dir": f"file://{tmp_path}/events", "compress": "false"}
    conf = {f"spark.eventLog.{key}": value for key, value in log.items()}
    with Onlooker(lambda: [child for child in psutil.Process().children(True) if child.pid != server.pid]) as onlooker:
        operator = items_operator({"partitions": 8, "page_size": 25}, {"concurrency": 8}, verbose=True, conf=conf)
        result = execute(operator)
    assert_whole(lake, api)
    printed = capfd.readouterr()
    places = {
        "processes": "".join(onlooker.seen.values()).encode(),
        "logs": (printed.out + printed.err + caplog.text).encode(),
        "Spark's events": b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()),
        "result": json.dumps(result).encode(),
        "tables": b"".join(objects(server)),
    }
    assert b"full_refresh.py" in places["processes"]
    assert b"spark.eventLog.dir" in places["logs"]
    assert b"spark.eventLog.dir" in places["Spark's events"]
    for place, content in places.items():
        assert server.secret.encode() not in content, place
        assert not VENDED.search(content), place


def objects(server: SeaweedServer) -> Iterator[bytes]:
    """Yield the content of each object of the store."""
    import boto3

    keys = {"aws_access_key_id": server.key_id, "aws_secret_access_key": server.secret}
    client: Any = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", **keys)
    listed = client.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert any("__rfr_ledger" in item["Key"] for item in listed)
    for item in listed:
        yield client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()


def test_a_deploy_makes_tables_and_views_and_a_later_one_rewrites_them(lake: Lake, tmp_path: Path) -> None:
    import pyarrow as pa

    platform = Platform(tmp_path)
    platform.declare(1, "string")
    code, figures, output = platform.run_app(lake.settings, spark=SPARK, version="1.0")
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    assert {"ops.a", "ops.b"} <= {view.name for view in list_views(open_catalog(lake.settings))}
    table = lake.table("ops.runs")
    rows = [{"id": number, "rows": str(number * 10)} for number in range(4)]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    platform.declare(2, "bigint", TO_NUMBERS)
    code, figures, output = platform.run_app(lake.settings, spark=SPARK, version="2.0")
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    assert lake.properties["credential"].partition(":")[2] not in output
    read = "print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in argument]))"
    queries = ["SELECT * FROM rfr.ops.a ORDER BY id", "SELECT * FROM rfr.ops.sums"]
    in_a, in_sums = run_on_spark(lake.settings, read, queries)
    assert (in_a, in_sums) == ([[1, 10], [2, 20], [3, 30]], [[4, 30]])
