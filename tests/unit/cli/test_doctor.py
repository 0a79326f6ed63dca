"""``airflow rfr doctor`` where all is well, and with each thing in turn broken."""

from __future__ import annotations

import json
import shlex
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from sqlalchemy.exc import OperationalError

from airflow_provider_rfr.cli import doctor
from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS
from airflow_provider_rfr.connections.airflow import gateways, lookup
from airflow_provider_rfr.connections.statement import parse_statement
from airflow_provider_rfr.hooks import api as api_hook
from airflow_provider_rfr.hooks import control_store
from airflow_provider_rfr.hooks import lake as lake_hook
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.sample_api import SHOP, SampleApi, Sizes
from airflow_provider_rfr.webhooks.sealing import seal_file
from tests.unit.cli import calls
from tests.unit.messages import check_messages
from tests.unit.test_preflight import java
from tests.unit.triggers.lake import Lake

pytestmark = pytest.mark.test

CANARY = "canary-93d1"
Connect = Callable[..., None]
Misses = Callable[..., list[dict[str, str]]]
Miss = Callable[..., dict[str, str]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a connection of the environment."""

    def make(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return make


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def healthy(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: int, connect: Connect) -> Path:
    """A machine that lacks nothing; returns the triggers file."""
    for name in ("SPARK_HOME", "RFR_TRIGGERS_FILE", "SOPS_AGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", 'openjdk version "17.0.15"')))
    spark = tmp_path / "bin" / "spark-submit"
    spark.parent.mkdir()
    spark.write_text("#!/bin/sh\n")
    spark.chmod(0o755)
    monkeypatch.setenv("PATH", str(spark.parent), prepend=":")
    # As on a worker: only connections of the environment are known.
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    connect("spark_default", conn_type="spark", host="local[*]")
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
    return triggers(tmp_path, listener)


def triggers(folder: Path, port: int) -> Path:
    file = folder / "triggers.yaml"
    block = {"name": "shop", "config": {"hook": {"url": f"http://127.0.0.1:{port}/{CANARY}", "payload": {"a": 1}}}}
    file.write_text(json.dumps({"triggers": block}))
    return file


def rfr(*arguments: Any) -> int:
    return calls.rfr("doctor", "--lake-conn-id", "lake", *arguments)


@pytest.fixture
def missing(healthy: Path, capsys: pytest.CaptureFixture[str]) -> Misses:
    """The missing results, each with its remedy; the canary is nowhere."""

    def misses(*arguments: Any, file: Path = healthy) -> list[dict[str, str]]:
        code = rfr("--triggers", file, "--json", *arguments)
        told = capsys.readouterr()
        assert CANARY not in told.out + told.err
        # Airflow 3.1 itself logs the error of a DAG file.
        assert not AIRFLOW_V_3_2_PLUS or "Traceback" not in told.err
        content = json.loads(told.out)
        checks = [check for check in content["checks"] if check["outcome"] == "missing"]
        assert (code, content["ok"]) == ((1, False) if checks else (0, True))
        assert all(doctor._PASTED.search(check["remedy"]) for check in checks), checks
        return checks

    return misses


@pytest.fixture
def miss(missing: Misses) -> Miss:
    """The only one that is missing."""

    def only(*arguments: Any, **file: Path) -> dict[str, str]:
        [check] = missing(*arguments, **file)
        return check

    return only


def test_a_healthy_machine_is_all_ticks(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: Misses
) -> None:
    assert missing() == []
    assert rfr("--triggers", healthy) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "nothing is missing; --dag DAG_ID checks what a DAG's own tasks use"
    checks = [line.partition(":")[0] for line in lines[:-1]]
    assert [check.lstrip("\N{CHECK MARK}- ") for check in checks] == [*list(doctor._CHECKS)[:-2], "webhook hook"]
    left = [path.name for path in (tmp_path / "warehouse").rglob("*") if path.is_file()]
    assert left == [], "what is written for the check is deleted"


@pytest.mark.parametrize(("count", "words"), [(0, "0 namespaces"), (1, "1 namespace"), (2, "2 namespaces")])
def test_one_namespace_is_told_in_the_singular(
    count: int, words: str, healthy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lake_hook.LakeHook, "check_catalog", lambda hook: count)
    assert rfr() == 0
    assert f" catalog: lake has {words}\n" in capsys.readouterr().out
    _, message = lake_hook.LakeHook("lake").test_connection()
    assert message.startswith(f"The catalog has {words}, and ")


def test_what_is_not_named_is_skipped_and_nothing_missing(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rfr() == 0
    out = capsys.readouterr().out
    assert out.count("--triggers") == 1
    assert "- triggers file: none is given: use --triggers, or set RFR_TRIGGERS_FILE" in out
    assert "- connection: no other connection has type rfr_api, rfr_http, rfr_lake" in out


def test_a_miss_is_told_with_its_remedy_below_it(
    healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", 'openjdk version "1.8.0_402"')))
    assert rfr("--triggers", healthy) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if "Java:" in line)
    assert lines[at].endswith("bin/java is Java 8, and Spark needs 17 or 21")
    assert lines[at + 1] == "   run: apt-get install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17 or 21"
    assert lines[-1].startswith("1 of ")


def test_spark_without_its_program_its_connection_or_its_master(closed_port: int, connect: Connect, miss: Miss) -> None:
    connect("spark_default", conn_type="spark", host="spark://127.0.0.1", port=closed_port)
    found = miss()
    assert found["check"] == "Spark"
    check_messages(found["detail"], f"spark://127.0.0.1:{closed_port}:")
    connect("spark_default", conn_type="http", host="local", password=CANARY)
    check_messages(miss()["detail"])
    check_messages(miss("--spark-conn-id", "nope")["remedy"])
    connect("spark_default", conn_type="spark", host="local", extra={"spark-binary": "spark3-submit"})
    check_messages(miss()["detail"])
    if AIRFLOW_V_3_2_PLUS:  # Airflow 3.1 can't read such a connection.
        connect("spark_default", conn_type="spark", host="local", extra=f"{{no {CANARY}")
        check_messages(miss()["detail"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "locl[2]", "local[x]", "local[2", None, "yarn-cluster", "http://me:" + CANARY + "@h"]
)
def test_a_master_that_spark_refuses_is_a_miss(host: str | None, connect: Connect, miss: Miss) -> None:
    connect("spark_default", conn_type="spark", host=host)
    found = miss()
    assert found["check"] == "Spark"
    check_messages(found["detail"])
    example = """export AIRFLOW_CONN_SPARK_DEFAULT='{"conn_type": "spark", "host": "local[*]"}'"""
    assert found["remedy"].endswith(f"or k8s://https://host; run: {example}")


def test_a_server_of_spark_connect_is_a_miss_with_its_reason(connect: Connect, miss: Miss) -> None:
    connect("spark_default", conn_type="spark", host="sc://127.0.0.1", port=15002)
    found = miss()
    assert found["check"] == "Spark"
    check_messages(found["detail"])


@pytest.mark.parametrize(
    "host", ["yarn", "local", "local[4]", "local[*]", "local[*, 3]", "local-cluster[2,1,1024]", "k8s://https://h:6443"]
)
def test_a_master_that_spark_takes_is_a_tick(
    host: str, healthy: Path, capsys: pytest.CaptureFixture[str], connect: Connect
) -> None:
    connect("spark_default", conn_type="spark", host=host)
    assert rfr() == 0
    assert f" Spark: spark_default leads to {host}\n" in capsys.readouterr().out


def test_a_master_written_as_airflow_s_uri_is_the_one_that_the_provider_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, listener: int, missing: Misses, miss: Miss
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", f"spark://127.0.0.1:{listener}")
    assert SparkSubmitHook(conn_id="spark_default")._connection["master"] == f"spark://127.0.0.1:{listener}"
    assert missing() == []
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", f"spark://127.0.0.1:{closed_port}")
    check_messages(miss()["detail"], f"spark://127.0.0.1:{closed_port}:")


def test_a_package_of_another_version(monkeypatch: pytest.MonkeyPatch, miss: Miss) -> None:
    version = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: "0.1" if name == "pyiceberg" else version(name))
    found = miss()
    assert found["detail"] == "pyiceberg is 0.1"
    assert found["remedy"].startswith("run: pip install 'pyiceberg")


def test_a_catalog_that_does_not_answer_and_a_warehouse_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, connect: Connect, miss: Miss
) -> None:
    extra = {"warehouse": f"file://{tmp_path}/warehouse", "properties": {"s3.secret-access-key": CANARY}}
    host = f"postgresql+psycopg2://127.0.0.1:{closed_port}/lake"
    connect("lake", conn_type="rfr_lake", host=host, login="me", password=CANARY, extra=extra)
    assert miss()["check"] == "catalog"
    (tmp_path / "file").write_text("")
    extra = {"warehouse": f"file://{tmp_path}/file/warehouse", "s3_secret_access_key": CANARY}
    connect("lake", conn_type="rfr_lake", host=f"sqlite:///{tmp_path}/catalog.db", extra=extra)
    found = miss()
    assert found["check"] == "warehouse"
    assert "Not a directory" in found["detail"]
    monkeypatch.delenv("AIRFLOW_CONN_LAKE")
    found = miss()
    check_messages(found["detail"])
    command = shlex.split(found["remedy"].removeprefix("run: airflow "))
    typed = get_parser().parse_args(command)
    assert (typed.conn_id, typed.conn_type, json.loads(typed.conn_extra)) == (
        "lake",
        "rfr_lake",
        {"warehouse": "file:///data/warehouse"},
    )


@pytest.mark.parametrize(
    ("fields", "detail", "remedy"),
    [
        ({"conn_type": "http", "host": "h"}, "connection lake: is of type 'http'", "make one of type 'rfr_lake'"),
        ({"host": "sqlite:////c.db"}, "connection lake: warehouse: is empty", "write the folder of the tables"),
        ({"host": "http://[x", "extra": {"catalog_type": "rest"}}, "lake: host: its host can't be read", "write an"),
        ({"host": "sqlite:////no/where/c.db", "extra": {"warehouse": "/w"}}, "the folder /no/where", "create it, or"),
        ({"host": "http://127.0.0.1:{closed}", "extra": {"catalog_type": "rest"}}, "Connection refused", "check that"),
    ],
)
def test_a_lake_that_can_not_be_read_is_one_miss(
    fields: dict[str, Any], detail: str, remedy: str, closed_port: int, connect: Connect, miss: Miss
) -> None:
    fields = {"conn_type": "rfr_lake", "password": CANARY, **fields}
    connect("lake", **fields | {"host": fields["host"].format(closed=closed_port)})
    found = miss()
    assert found["check"] == "catalog"
    assert detail in found["detail"]
    assert found["remedy"].startswith(remedy)


@pytest.mark.parametrize(
    ("host", "kind"), [("http://127.0.0.1:{}", "rest"), ("postgresql+psycopg2://127.0.0.1:{}/lake", "sql")]
)
def test_a_catalog_that_accepts_and_says_nothing_is_not_waited_for_for_ever(
    host: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: int, connect: Connect, miss: Miss
) -> None:
    monkeypatch.setattr(lake_hook, "_TEST_SECONDS", 0.3)
    extra = {"warehouse": "named", "catalog_type": kind} | ({"warehouse": str(tmp_path)} if kind == "sql" else {})
    connect("lake", conn_type="rfr_lake", host=host.format(listener), password=CANARY, extra=extra)
    check_messages(miss()["detail"])


def test_the_warehouse_of_a_catalog_that_says_nothing_is_not_waited_for_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listener: int, connect: Connect, miss: Miss
) -> None:
    monkeypatch.setattr(lake_hook, "_TEST_SECONDS", 0.3)
    silent = f"http://127.0.0.1:{listener}"
    extra = {"catalog_type": "rest", "warehouse": "s3://bucket/w", "s3_endpoint": silent, "s3_region": "eu-west-1"}
    connect("lake", conn_type="rfr_lake", host=silent, extra=extra)
    assert miss()["check"] == "catalog"
    rfr()
    assert "- warehouse: lake does not answer, as the check of the catalog says" in capsys.readouterr().out


def test_connections_that_say_nothing_are_waited_for_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, missing: Misses
) -> None:
    every = [f"lake_{number}" for number in range(4)]
    together = threading.Barrier(len(every))

    def test_connection(hook: lake_hook.LakeHook) -> tuple[bool, str]:
        together.wait(10)
        assert lookup._is_quiet.get(), "a thread warns of secrets that are too short"
        if hook.lake_conn_id == "lake_1":
            raise ValueError(CANARY)
        return False, "no answer"

    monkeypatch.setattr(lake_hook.LakeHook, "test_connection", test_connection)
    for conn_id in reversed(every):
        connect(conn_id, conn_type="rfr_lake", host="sqlite:////c.db", extra={"warehouse": "/w"})
    found = missing()
    assert [result["check"] for result in found] == [f"connection {conn_id} (rfr_lake)" for conn_id in every]
    told = ["no answer", "it failed with ValueError", "no answer", "no answer"]
    assert [result["detail"] for result in found] == told


def test_an_object_store_that_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: int, connect: Connect, miss: Miss
) -> None:
    monkeypatch.setattr(lake_hook, "_TEST_SECONDS", 3.0)
    keys = {"s3_access_key_id": "AK", "s3_secret_access_key": CANARY, "s3_region": "eu-west-1"}
    extra = {"warehouse": "s3://bucket/w", "s3_endpoint": f"http://127.0.0.1:{listener}", **keys}
    connect("lake", conn_type="rfr_lake", host=f"sqlite:///{tmp_path}/catalog.db", extra=extra)
    found = miss()
    assert (found["check"], found["detail"].rpartition(": ")[2]) == ("warehouse", "no answer within 3 s")
    check_messages(found["remedy"])


def test_a_machine_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miss: Miss) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = miss()
    check_messages(found["detail"], tmp_path)
    check_messages(found["remedy"])
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    check_messages(miss()["detail"])


def test_a_client_of_another_version_than_pyspark_is_one_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miss: Miss
) -> None:
    folder = tmp_path / "site" / "pyspark_client-4.0.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.0.0\n")
    monkeypatch.syspath_prepend(folder.parent)
    found = miss()
    assert found["check"] == "pyspark"
    check_messages(found["detail"])


def test_one_of_several_masters_is_enough(closed_port: int, listener: int, connect: Connect, missing: Misses) -> None:
    for masters, says in (
        (f"spark://127.0.0.1:{closed_port},127.0.0.1:{listener}", None),
        (f"spark://127.0.0.1:{closed_port},127.0.0.1:{closed_port}", "Connection refused"),
        (f"spark://[::1]:{closed_port}", "Connection refused"),
        ("spark://127.0.0.1:70x7", "'127.0.0.1:70x7' is not a host and a port"),
        ("spark://127.0.0.1", "'127.0.0.1' is not a host and a port"),
        ("spark://[::1:7077", "'[::1:7077' is not a host and a port"),
    ):
        connect("spark_default", conn_type="spark", host=masters, password=CANARY)
        assert [result["detail"].rpartition(": ")[2] for result in missing()] == [says] * (says is not None)


def test_a_spark_home_that_holds_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miss: Miss) -> None:
    monkeypatch.setenv("SPARK_HOME", f"{tmp_path}/gone")
    found = miss()
    assert (found["check"], found["remedy"]) == ("Spark", "correct it, or run: unset SPARK_HOME")


def test_each_connection_of_ours_is_tried(
    monkeypatch: pytest.MonkeyPatch, closed_port: int, connect: Connect, miss: Miss
) -> None:
    host = f"http://127.0.0.1:{closed_port}"
    connect("shop", conn_type="rfr_api", host=host, password=CANARY, extra={"secrets": {"pin": CANARY}})
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", f'{{"conn_type": "rfr_api", "extra": "{CANARY}')
    found = miss()
    assert found["check"] == "connection shop (rfr_api)"
    check_messages(found["detail"], host)
    check_messages(found["remedy"])


@pytest.mark.parametrize("conn_id", ["shop", "my-shop.eu"])
def test_a_key_that_an_api_refuses_is_replaced_by_the_statement_of_the_remedy(conn_id: str) -> None:
    remedy = doctor._remedy_of_connection(conn_id, "rfr_api", "The API answered 401 Unauthorized")
    assert remedy.startswith("correct it under Admin > Connections, or run: NEW_PASSWORD=")
    statement = shlex.split(remedy.partition("airflow ")[2])[-1]
    assert parse_statement(statement).connection == conn_id


def test_a_control_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, connect: Connect, miss: Miss
) -> None:
    fields = {"host": "127.0.0.1", "port": closed_port, "login": "me", "password": CANARY, "schema": "rfr"}
    connect("rfr_control_store", conn_type="postgres", **fields)
    assert miss()["check"] == "control store"
    connect("rfr_control_store", conn_type="sqlite", host=f"{tmp_path}/nowhere/control.db")
    assert "can't be made" in miss()["detail"]
    connect("rfr_control_store", conn_type="sqlite", host="/proc/control.db")
    assert "can't be made" in miss()["detail"]
    (tmp_path / "garbage.db").write_text("this is no database, and longer than a header of one" * 9)
    connect("rfr_control_store", conn_type="sqlite", host=f"{tmp_path}/garbage.db")
    check_messages(miss()["detail"])
    connect("rfr_control_store", conn_type="sqlite", host=str(tmp_path))
    check_messages(miss()["detail"])
    connect("rfr_control_store", conn_type="sqlite", host=f"{tmp_path}/old.db")
    ControlStoreHook().get_store().close()
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("UPDATE rfr_settings SET value = '1' WHERE name = 'schema'")
    check_messages(miss()["detail"])
    monkeypatch.delenv("AIRFLOW_CONN_RFR_CONTROL_STORE")
    for in_memory in ("sqlite://", "sqlite:///:memory:"):
        monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", in_memory)
        check_messages(miss()["detail"])
    for address, said in (
        (f"sqlite+aiosqlite:///{tmp_path}/new.db", "the driver aiosqlite is for asynchronous programs"),
        (f"postgresql://h:{CANARY}/x", "[rfr] control_store: is not a database URL"),
    ):
        monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", address)
        assert said in miss()["detail"]
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", f"{CANARY} is no address")
    assert "[rfr] control_store" in miss()["detail"]


def test_a_control_store_that_accepts_and_says_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, listener: int, connect: Connect, miss: Miss
) -> None:
    monkeypatch.setattr(doctor, "_STORE_SECONDS", 0.3)
    fields = {"host": "127.0.0.1", "port": listener, "login": "me", "password": CANARY, "schema": "rfr"}
    connect("rfr_control_store", conn_type="postgres", **fields)
    check_messages(miss()["detail"])


def test_a_database_of_airflow_s_that_does_not_answer_is_said_so_and_asked_once_for_the_control_store(
    monkeypatch: pytest.MonkeyPatch, miss: Miss
) -> None:
    reasons = ["no such table: connection", "timeout expired"]

    def session() -> Any:
        raise OperationalError(f"SELECT {CANARY}", {}, Exception(reasons.pop()))

    asked: list[str] = []

    def read(conn_id: str) -> Any:
        asked.append(conn_id)
        return lookup.read_connection(conn_id)

    monkeypatch.setattr(control_store, "read_connection", read)
    monkeypatch.setattr(gateways, "has_airflow_database", lambda: True)
    monkeypatch.setattr(gateways, "session_of_airflow", session)
    for detail, remedy in (
        ("Airflow's database does not answer", "run: airflow db check"),
        ("Airflow's database has no tables", "run: airflow db migrate"),
    ):
        assert miss() == {"check": "connection", "outcome": "missing", "detail": detail, "remedy": remedy}
    assert asked == ["rfr_control_store"] * 2


def test_a_triggers_file_that_is_no_file_is_told_with_what_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], miss: Miss
) -> None:
    found = miss(file=tmp_path / "gone.yaml")
    assert (found["check"], found["remedy"]) == ("triggers file", "write the path of a triggers file in --triggers")
    check_messages(found["detail"], tmp_path / "gone.yaml")
    monkeypatch.setenv("RFR_TRIGGERS_FILE", str(tmp_path))
    assert rfr() == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if " triggers file: " in line)
    assert lines[at].endswith(f" RFR_TRIGGERS_FILE: {tmp_path}: this is a folder, not a file")
    assert lines[at + 1] == "   write the path of a triggers file in RFR_TRIGGERS_FILE"
    assert lines[at + 2] == "- sealed keys: the triggers file can't be read, as its check says"


def test_a_file_s_name_need_not_be_utf_8(healthy: Path, missing: Misses) -> None:
    assert missing(file=healthy.rename(healthy.with_name("\udcff.yaml"))) == []


def test_an_empty_name_of_a_triggers_file_names_none(healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFR_TRIGGERS_FILE", str(healthy))
    assert rfr("--triggers", "") == 0


def test_a_triggers_file_with_a_mistake_leads_to_the_command_that_shows_it(healthy: Path, miss: Miss) -> None:
    healthy.write_text('{"triggers": {"name": "shop"}}')
    found = miss()
    assert (found["check"], found["remedy"]) == ("triggers file", f"run: airflow rfr triggers validate {healthy}")


def test_a_sealed_file_without_its_key(
    healthy: Path, monkeypatch: pytest.MonkeyPatch, missing: Misses, miss: Miss
) -> None:
    key = pyrage.x25519.Identity.generate()
    healthy.write_text(seal_file(healthy, [str(key.to_public())]))
    found = miss()
    assert (found["check"], found["remedy"]) == (
        "sealed keys",
        "run: export SOPS_AGE_KEY_FILE=FILE, the file with the key",
    )
    monkeypatch.setenv("SOPS_AGE_KEY", str(pyrage.x25519.Identity.generate()))
    assert miss()["check"] == "sealed keys"
    monkeypatch.setenv("SOPS_AGE_KEY", str(key))
    assert missing() == []


def test_a_webhook_s_host_that_is_closed_or_refused(
    healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int, miss: Miss
) -> None:
    found = miss(file=triggers(tmp_path, closed_port))
    assert found["check"] == "webhook hook"
    assert found["detail"].startswith(f"http://127.0.0.1:{closed_port}: ")
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "")
    found = miss(file=triggers(tmp_path, closed_port))
    check_messages(found["detail"])
    assert "webhook_allowed_hosts" in found["remedy"]
    block = {"name": "shop", "config": {"hook": {"url": f"https://nowhere.invalid/{CANARY}", "payload": {"a": 1}}}}
    healthy.write_text(json.dumps({"triggers": block}))
    assert miss()["detail"].startswith("https://nowhere.invalid: ")


@pytest.mark.parametrize(
    ("host", "port", "detail"),
    [
        ("hooks.example.com", 99999, "its address has a host or a port that no machine can have"),
        ("a..b", 443, "its address has a host or a port that no machine can have"),
        (f"{'a' * 64}.example.com", 443, "its address has a host or a port that no machine can have"),
        ("[::1", 443, "connection hooks: host: is not a web address"),
    ],
)
def test_a_webhook_with_an_address_that_no_machine_has_is_named_and_the_next_one_is_tried(
    healthy: Path,
    capsys: pytest.CaptureFixture[str],
    listener: int,
    host: str,
    port: int,
    detail: str,
    connect: Connect,
    miss: Miss,
) -> None:
    connect("hooks", conn_type="http", schema="https", host=host, port=port, password=CANARY)
    good = {"url": f"http://127.0.0.1:{listener}", "payload": {"a": 1}}
    config = {"bad": {"connection": "hooks", "payload": {"a": 1}}, "good": good}
    healthy.write_text(json.dumps({"triggers": {"name": "shop", "config": config}}))
    found = miss()
    assert found["check"] == "webhook bad"
    assert found["detail"].startswith(detail)
    assert rfr("--triggers", healthy) == 1
    assert "webhook good: http://127.0.0.1:" in capsys.readouterr().out


@pytest.fixture(scope="module")
def shop() -> Iterator[SampleApi]:
    with SampleApi(Sizes(customers=3, records=120), api_key=CANARY) as api:
        yield api


@pytest.fixture
def dags(healthy: Path, tmp_path: Path, shop: SampleApi, monkeypatch: pytest.MonkeyPatch, connect: Connect) -> Path:
    """The only folder of DAGs; the connection ``shop_api`` leads to the sample API."""
    folder = tmp_path / "dags"
    folder.mkdir()
    bundle = {
        "name": "test",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(folder)},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    # Airflow adds the folder for good.
    monkeypatch.setattr(sys, "path", list(sys.path))
    connect("shop_api", conn_type="rfr_api", host=shop.base_url, password=CANARY)
    return folder


def refresh_dag(folder: Path, dag_id: str = "load_shop", more: str = "", **arguments: Any) -> None:
    """Write a DAG with one refresh of the sample API, ``load``."""
    arguments = {
        "source": {"file": str(SHOP), "config": {"page_size": 50}},
        "streams": ["customers", "orders"],
        "target": "raw.{stream}",
        "api_conn_id": "shop_api",
        "lake_conn_id": "lake",
        **arguments,
    }
    text = f"""
from airflow.sdk import DAG

from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.webhooks import CommitWebhookOperator

print("a DAG's file may print")
with DAG({dag_id!r}):
    arguments = {arguments!r}
    load = ResumableFullRefreshOperator(task_id="load", **arguments)
{more}
"""
    (folder / f"{dag_id}.py").write_text(text)


def details(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, str]:
    """What each check of the DAG says, by check, after those of the machine."""
    rfr("--dag", "load_shop", "--json", *arguments)
    told = capsys.readouterr()
    assert CANARY not in told.out + told.err
    checks = [(check["check"], f"{check['outcome']}: {check['detail']}") for check in json.loads(told.out)["checks"]]
    start = next(number for number, (name, _) in enumerate(checks) if name == "DAG")
    return dict(checks[start:])


def test_a_dag_s_own_connections_are_tried_and_a_page_of_each_stream_is_read(
    dags: Path, shop: SampleApi, capsys: pytest.CaptureFixture[str], missing: Misses
) -> None:
    refresh_dag(dags)
    # The usual connections are not looked at: the DAG names its own.
    usual = ("--lake-conn-id", "nope")
    assert missing("--dag", "load_shop", *usual) == []
    before = shop.counts()["requests"]
    check_messages(details(capsys, *usual))
    assert shop.counts()["requests"] - before <= 2, "a page of each stream, which tries the connection as well"
    assert rfr("--dag", "load_shop") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(" task load, stream orders: first page read, 50 records")
    assert lines[-1] == "nothing is missing"


def test_a_primary_key_that_no_record_of_the_page_has_is_a_miss(dags: Path, shop: SampleApi, miss: Miss) -> None:
    definition = yaml.safe_load(SHOP.read_text())
    definition["streams"]["customers"]["primary_key"] = "customer_id"
    refresh_dag(dags, source={"definition": definition, "config": {"page_size": 50}}, streams=["customers"])
    found = miss("--dag", "load_shop")
    assert found["check"] == "task load, stream customers"
    check_messages(found["detail"])


def test_a_stream_that_can_not_be_synced_is_a_miss(dags: Path, shop: SampleApi, miss: Miss) -> None:
    sync = """
    from airflow_provider_rfr.operators import IncrementalSyncOperator

    IncrementalSyncOperator(task_id="sync", write="merge", **{**arguments, "streams": ["invoices"]})
"""
    refresh_dag(dags, more=sync)
    found = miss("--dag", "load_shop")
    assert found["check"] == "task sync, stream invoices"
    check_messages(found["detail"])
    check_messages(found["remedy"])


def test_a_dag_whose_connection_does_not_exist_is_a_miss(
    dags: Path, capsys: pytest.CaptureFixture[str], missing: Misses, miss: Miss
) -> None:
    refresh_dag(dags, api_conn_id="helpdesk_api")
    assert missing() == [], "without --dag nobody knows of it"
    found = miss("--dag", "load_shop")
    assert found["check"] == "connection helpdesk_api (rfr_api)"
    check_messages(found["detail"])
    check_messages(found["remedy"])
    check_messages(details(capsys))
    refresh_dag(dags, conn_id="spark_here", lake_conn_id="lake_here")
    found_checks = [found["detail"] for found in missing("--dag", "load_shop")]
    assert found_checks == ["there is no connection 'spark_here'", "lake_conn_id: there is no connection 'lake_here'"]


def test_a_key_that_the_dag_s_api_refuses_is_a_miss_of_each_stream(
    dags: Path, shop: SampleApi, connect: Connect, missing: Misses
) -> None:
    refresh_dag(dags)
    connect("shop_api", conn_type="rfr_api", host=shop.base_url, password=f"wrong-{CANARY}")
    *_, customers, orders = missing("--dag", "load_shop")
    assert (customers["check"], orders["check"]) == ("task load, stream customers", "task load, stream orders")
    check_messages(customers["detail"])
    check_messages(customers["remedy"])


def test_a_stream_that_can_not_be_read_hinders_no_other(
    dags: Path, capsys: pytest.CaptureFixture[str], miss: Miss
) -> None:
    key = {"type": "api_key", "value": "{{ config.api_key }}", "send_as": {"header": "X-Api-Key"}}
    definition = {
        "version": 1,
        "base_url": "{{ config.base_url }}",
        "authenticator": key,
        "streams": {
            "gone": {"request": {"path": "/gone"}, "records": {"path": "data"}},
            "orders": {"request": {"path": "/orders"}, "records": {"path": "data"}},
        },
    }
    refresh_dag(dags, source={"definition": definition}, streams="gone, orders")
    found = miss("--dag", "load_shop")
    assert found["check"] == "task load, stream gone"
    assert "404" in found["detail"]
    check_messages(found["remedy"])
    check_messages(details(capsys))


@pytest.mark.parametrize(
    ("raised", "detail"),
    [("ValueError(self.token)", "it failed with ValueError"), ("SourceError(f'not {self.token}')", "not ***")],
)
def test_what_a_source_s_class_raises_may_hold_a_secret_and_is_not_repeated(
    raised: str, detail: str, dags: Path, miss: Miss
) -> None:
    sys.modules.pop("doctors_source", None)
    (dags / "doctors_source.py").write_text(
        "from airflow_provider_rfr.exceptions import SourceError\nfrom airflow_provider_rfr.streams import Stream\n\n"
        "class Leaky(Stream):\n"
        "    def __init__(self, config):\n        self.token = config['token']\n\n"
        "    def read_records(self, stream_slice=None, stream_state=None):\n"
        f"        raise {raised}\n"
    )
    refresh_dag(dags, source={"class": "doctors_source:Leaky"}, streams=["leaky"])
    found = miss("--dag", "load_shop")
    assert (found["check"], found["detail"]) == ("task load, stream leaky", detail)


def test_a_page_that_does_not_come_is_not_waited_for_for_ever(
    dags: Path, shop: SampleApi, monkeypatch: pytest.MonkeyPatch, miss: Miss
) -> None:
    monkeypatch.setattr(api_hook, "_PAGE_SECONDS", 0.3)
    refresh_dag(dags, streams=["orders"])
    shop.set_faults({"kind": "error", "path": "/orders"})
    try:
        found = miss("--dag", "load_shop")
    finally:
        shop.set_faults()
    check_messages(found["detail"])


def test_arguments_that_only_a_run_knows_are_skipped_by_name(
    dags: Path, healthy: Path, capsys: pytest.CaptureFixture[str], missing: Misses
) -> None:
    mapped = """
    each = ResumableFullRefreshOperator.partial(task_id="each", source=arguments["source"], target="raw.{stream}")
    each.expand(streams=[["customers"], ["orders"]])
"""
    source = {"file": str(SHOP), "config": {"day": "{{ ds }}"}}
    refresh_dag(dags, more=mapped, source=source, lake_conn_id="{{ params.lake }}", streams="{{ params.streams }}")
    assert missing("--dag", "load_shop") == []
    found = details(capsys, "--triggers", healthy)
    templates = "streams, source.config are templates, which only a run fills in"
    assert found["task load"] == f"skipped: no page is read: {templates}"
    assert found["task each"] == "skipped: it is mapped, so its arguments are known in a run only"
    assert "catalog" not in found
    rfr("--dag", "load_shop")
    assert "- task load: lake_conn_id is a template, which only a run fills in\n" in capsys.readouterr().out


def test_the_lake_of_a_webhook_s_task_is_tried_too(dags: Path, healthy: Path, miss: Miss) -> None:
    deliver = f"""
    load >> CommitWebhookOperator(task_id="deliver", triggers={str(healthy)!r}, lake_conn_id="lake_there")
"""
    refresh_dag(dags, more=deliver)
    check_messages(miss("--dag", "load_shop")["detail"])


def test_a_dag_that_is_not_there_leads_to_the_nearest_and_one_with_a_mistake_to_its_error(
    dags: Path, miss: Miss
) -> None:
    refresh_dag(dags)
    found = miss("--dag", "load_shops")
    assert (found["check"], found["detail"]) == ("DAG", "--dag: there is no DAG 'load_shops'")
    check_messages(found["remedy"])
    refresh_dag(dags, "broken", options={"concurency": 4})
    found = miss("--dag", "broken")
    check_messages(found["detail"], dags / "broken.py")
    check_messages(found["remedy"], dags / "broken.py")
    check_messages(miss("--dag", "load_shops")["remedy"])


def test_a_dag_without_tasks_of_this_package_has_nothing_to_check(
    dags: Path, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dags / "other.py").write_text("from airflow.sdk import DAG\ndag = DAG('load_shop')\n")
    check_messages(details(capsys))
