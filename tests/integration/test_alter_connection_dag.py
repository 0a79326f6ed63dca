"""The ready DAG and the command line, on Airflow's own database."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import ParamValidationError
from airflow.models import Connection
from airflow.utils.session import create_session

from airflow_provider_rfr.connections.airflow.gateways import DatabaseGateway
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.hooks.connections import ConnectionsHook
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.unit.cli.calls import rfr

pytestmark = pytest.mark.gate

EMPTY = {"statement": None, "connection": None, "set": {}, "drop": [], "reset": [], "dry_run": False}
"""A run of a DAG in this process leaves its params to the next one."""
KEY, CANARY = "canary-b0a117-key", "canary-b0a117-new"


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(records=20)) as api:
        yield api


@pytest.fixture(scope="module")
def dag(airflow: None) -> Any:
    return importlib.import_module("tests.integration.dags.ready").alter_connection


@pytest.fixture
def shop(dag: Any, api: SampleApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A connection of Airflow's database; nobody listens where Airflow's API would be."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("SHOP_KEY", CANARY)
    # The command line says so of its own process, which is this one here.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    connection = Connection(
        conn_id="shop_db", conn_type="rfr_api", host=api.base_url, password=KEY, extra='{"page_size": 20}'
    )
    with create_session() as session:
        session.add(connection)
    yield "shop_db"
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id == "shop_db").delete()


def stored() -> Any:
    with create_session() as session:
        connection = session.query(Connection).filter(Connection.conn_id == "shop_db").one()
        return connection.host, connection.password, json.loads(connection.extra)


def everything_but_connections() -> str:
    with sqlite3.connect(Path(os.environ["AIRFLOW_HOME"]) / "airflow.db") as database:
        tables = database.execute("select name from sqlite_master where type = 'table' and name <> 'connection'")
        return "".join(str(database.execute(f'select * from "{name}"').fetchall()) for (name,) in tables.fetchall())


def test_the_form_changes_a_connection_with_a_secret_that_nobody_sees(
    dag: Any, shop: str, api: SampleApi, tmp_path: Path
) -> None:
    change = {"password": "SECRET 'env:SHOP_KEY'", "extra": {"page_size": 30}}
    run = dag.test(run_conf={**EMPTY, "connection": shop, "set": change})
    (task,) = run.get_task_instances()
    assert task.state == "success"
    result = task.xcom_pull(task_ids="alter")
    assert result["options"]["password"] == {"before": "***", "after": "***"}
    assert stored() == (api.base_url, CANARY, {"page_size": 30})
    (row,) = ConnectionsHook().history(shop)
    assert (row.state, row.validated) == ("applied", True)
    assert row.actor.endswith(f"alter_connection.alter ({run.run_id})")
    for folder in (Path(os.environ["AIRFLOW_HOME"]), tmp_path):
        for file in folder.rglob("*"):
            # This Airflow has no key, so its own table of connections is in plain text.
            if file.is_file() and not file.name.startswith("airflow.db"):
                assert CANARY.encode() not in file.read_bytes(), file
    assert CANARY not in everything_but_connections()


def test_a_dry_run_of_the_form_changes_nothing(dag: Any, shop: str, api: SampleApi) -> None:
    statement = f"ALTER CONNECTION {shop} SET (host = 'http://127.0.0.1:9'), RESET (extra.page_size)"
    run = dag.test(run_conf={**EMPTY, "statement": statement, "dry_run": True})
    (task,) = run.get_task_instances()
    assert task.xcom_pull(task_ids="alter")["result"] == "planned"
    assert stored() == (api.base_url, KEY, {"page_size": 20})


@pytest.mark.parametrize(
    "conf",
    [
        {"connection": "shop_db", "set": {"password": "canary-plain"}},
        {"connection": "shop_db", "set": {"host": "http://127.0.0.1:9"}},
        {"connection": "shop_db", "set": {"port": "abc"}, "drop": ["port"]},
        {"statement": "ALTER CONNECTION shop_db"},
        {"connection": "nowhere", "drop": ["port"]},
    ],
)
def test_what_cant_be_done_fails_the_task_and_changes_nothing(
    dag: Any, shop: str, api: SampleApi, conf: dict[str, Any]
) -> None:
    (task,) = dag.test(run_conf={**EMPTY, **conf}).get_task_instances()
    assert task.state == "failed"
    assert stored() == (api.base_url, KEY, {"page_size": 20})
    if "password" in conf.get("set", {}):
        # What was typed into the form is in the run's own row, as the form says, and nowhere else.
        with sqlite3.connect(Path(os.environ["AIRFLOW_HOME"]) / "airflow.db") as database:
            fields = database.execute("select rendered_fields from rendered_task_instance_fields").fetchall()
        assert "shop_db" in str(fields)
        assert "canary-plain" not in str(fields)


def test_the_form_refuses_what_can_be_no_connection(dag: Any, shop: str) -> None:
    with pytest.raises(ParamValidationError):
        dag.test(run_conf={"connection": "no name"})


def test_the_command_line_does_the_same(
    shop: str, api: SampleApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = tmp_path / "parameters.json"
    parameters.write_text(json.dumps({"new": CANARY}))
    text = f"ALTER CONNECTION {shop} SET (password = :new, extra.deep.a = 1)"
    assert rfr("connection", "alter", text, "--parameters", parameters) == 0
    assert stored() == (api.base_url, CANARY, {"page_size": 20, "deep": {"a": 1}})
    assert rfr("connection", "validate", shop) == 0
    assert rfr("connection", "dependents", shop) == 0
    assert rfr("connection", "history", shop) == 0
    output = "".join(capsys.readouterr())
    assert f"connection {shop}: applied" in output
    assert f"connection {shop}: valid" in output
    assert f"0 tasks use {shop}" in output
    assert "extra.deep.a: None -> 1" in output
    assert CANARY not in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ALTER CONNECTION shop_db SET (host = 'http://127.0.0.1:9')",
            "refused, nothing was changed: the API did not answer at",
        ),
        ("ALTER CONNECTION shop_db SET (password = 'canary-plain')", "line 1, column 31: password: is secret"),
        ("ALTER CONNECTION shop_db", "line 1, column 25"),
        ("ALTER CONNECTION from_env SET (host = 'http://x')", "AIRFLOW_CONN_FROM_ENV"),
        ("ALTER CONNECTION nowhere SET (host = 'http://x')", "is not there"),
    ],
)
def test_the_command_line_says_what_is_wrong_in_a_line(
    shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FROM_ENV", json.dumps({"conn_type": "rfr_api", "host": "http://env"}))
    assert rfr("connection", "alter", text) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "canary-plain" not in error


BROKEN = f'{{"conn_type": "rfr_api", "password": "{CANARY}"'


@pytest.mark.parametrize(
    "text",
    [
        "ALTER CONNECTION broken SET (host = 'http://x')",
        "VALIDATE CONNECTION broken",
        "ALTER CONNECTION shop_db SET (extra.other_conn_id = 'broken')",
        "ALTER CONNECTION shop_db SET (password = SECRET 'file:binary')",
    ],
)
def test_what_cant_be_read_is_told_in_a_line_without_its_content(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" + CANARY.encode())
    monkeypatch.setenv("AIRFLOW__RFR__SECRET_FILES", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", BROKEN)
    assert rfr("connection", "alter", text) == 1
    error = capsys.readouterr().err
    assert "can't be read" in error or "can be read" in error
    assert CANARY not in error


def test_an_edit_by_hand_while_a_change_is_stored_is_a_conflict(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = DatabaseGateway.commit

    def commit_late(gateway: DatabaseGateway, expected: str, candidate: Definition) -> None:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id == shop).one().login = "by-hand"
        commit(gateway, expected, candidate)

    monkeypatch.setattr(DatabaseGateway, "commit", commit_late)
    assert rfr("connection", "alter", f"ALTER CONNECTION {shop} SET (extra.page_size = 30)") == 1
    with create_session() as session:
        connection = session.query(Connection).filter(Connection.conn_id == shop).one()
        assert (connection.login, json.loads(connection.extra)) == ("by-hand", {"page_size": 20})
    (newest, *_) = ConnectionsHook().history(shop)
    assert newest.state == "conflict"


def test_a_password_that_is_dropped_is_gone(shop: str) -> None:
    assert rfr("connection", "alter", f"ALTER CONNECTION {shop} DROP (password), RESET (extra.page_size)") == 0
    with create_session() as session:
        connection = session.query(Connection).filter(Connection.conn_id == shop).one()
        assert (connection.password, connection.extra) == (None, None)
        assert (connection.is_encrypted, connection.is_extra_encrypted) == (False, False)


def test_a_type_that_is_there_only_for_its_fields_is_altered_untried(
    shop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id == shop).one().conn_type = "generic"
    assert rfr("connection", "alter", f"ALTER CONNECTION {shop} SET (host = 'elsewhere')") == 0
    assert stored()[0] == "elsewhere"
    assert "can't be tried here" in capsys.readouterr().out


def test_a_connection_of_the_environment_is_tried_where_it_is(
    shop: str, api: SampleApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "rfr_api", "host": api.base_url, "password": KEY}
    monkeypatch.setenv("AIRFLOW_CONN_FROM_ENV", json.dumps(connection))
    assert rfr("connection", "validate", "from_env") == 0
    assert "connection from_env: valid" in capsys.readouterr().out


def test_a_user_without_a_name_may_alter_connections(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 50000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert rfr("connection", "alter", f"ALTER CONNECTION {shop} SET (description = 'a shop')") == 0
    (row, *_) = ConnectionsHook().history(shop)
    assert row.actor == f"user {os.getuid()} at the command line"


def test_a_connection_is_renamed_in_the_database(shop: str) -> None:
    assert rfr("connection", "alter", f"ALTER CONNECTION {shop} RENAME TO shop_new") == 0
    assert rfr("connection", "alter", f"ALTER CONNECTION shop_new RENAME TO {shop}") == 0
    assert stored()[1] == KEY


def test_a_connection_is_commented_on_and_dropped(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rfr("connection", "alter", f"COMMENT ON CONNECTION {shop} IS 'the shop'") == 0
    with create_session() as session:
        row = session.query(Connection).filter(Connection.conn_id == shop).one()
        assert row.description == "the shop"
        session.add(Connection(conn_id="behind_shop", conn_type="generic", extra=json.dumps({"ssh_conn_id": shop})))
    try:
        assert rfr("connection", "alter", f"DROP CONNECTION {shop}") == 1
        assert "can't be dropped: connection behind_shop refers to it" in capsys.readouterr().err
        assert stored()[1] == KEY
    finally:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id == "behind_shop").delete()
    assert rfr("connection", "alter", f"DROP CONNECTION {shop}") == 0
    with create_session() as session:
        assert session.query(Connection).filter(Connection.conn_id == shop).count() == 0
    assert rfr("connection", "alter", f"DROP CONNECTION IF EXISTS {shop}") == 0
    assert rfr("connection", "history", shop) == 0
    output = capsys.readouterr().out
    assert f"connection {shop}: dropped" in output and f"connection {shop}: missing" in output
    assert "applied, by" in output and f"DROP CONNECTION {shop}" in output
