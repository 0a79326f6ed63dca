"""``airflow rfr`` with connections that are in Airflow's database and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.models import Connection
from airflow.utils.session import create_session
from cryptography.fernet import Fernet
from sqlalchemy import delete

from tests.airflow_versions import rfr_command
from tests.unit.cli.calls import rfr, told

OBJECTS = "kind: table\nname: ops.runs\ncolumns: [{name: id, type: int}]\n"
RFR = ("rfr_lake_default", "rfr_control_store")


@pytest.fixture
def objects(airflow: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Declarations, for a lake and a control store that only Airflow's database knows."""
    for name in ("_AIRFLOW_PROCESS_CONTEXT", *(f"AIRFLOW_CONN_{connection.upper()}" for connection in RFR)):
        monkeypatch.delenv(name, raising=False)
    lake = {"warehouse": f"file://{tmp_path}/warehouse"}
    with create_session() as session:
        session.execute(delete(Connection).where(Connection.conn_id.in_(RFR)))
        host = f"sqlite:///{tmp_path}/catalog.db"
        session.add(Connection(conn_id=RFR[0], conn_type="rfr_lake", host=host, extra=json.dumps(lake)))
        session.add(Connection(conn_id=RFR[1], uri=f"sqlite:///{tmp_path}/control.db"))
    (tmp_path / "ops.yaml").write_text(OBJECTS)
    yield tmp_path / "ops.yaml"
    with create_session() as session:
        session.execute(delete(Connection).where(Connection.conn_id.in_(RFR)))


@pytest.mark.gate
def test_all_groups_find_connections_that_are_stored_in_airflows_database(
    objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rfr("triggers", "list", "-o", "json") == 0, capsys.readouterr().err
    assert told(capsys) == []
    assert rfr("objects", "plan", "--objects", objects, "-o", "json") == 2, capsys.readouterr().err
    assert "ops.runs" in [step["name"] for step in told(capsys)["steps"]]
    assert rfr("objects", "status", "--objects", objects) == 0
    capsys.readouterr()
    assert (objects.parent / "control.db").is_file(), "the control store is the one that the database names"
    assert rfr("connection", "history", "-o", "json") == 0
    assert told(capsys) == []
    assert rfr("connection", "history") == 0
    assert capsys.readouterr().err.splitlines()[-1] == "no ALTER CONNECTION yet"
    assert "_AIRFLOW_PROCESS_CONTEXT" not in os.environ, "a command leaves the process as it was"


def test_a_reader_that_goes_away_ends_a_command_without_a_traceback(objects: Path) -> None:
    """``airflow rfr objects graph | head``."""
    tables = "---\n".join(OBJECTS.replace("ops.runs", f"ops.t{number}") for number in range(3000))
    objects.write_text(tables)
    command = rfr_command("objects", "graph", "--objects", str(objects))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert process.returncode == 1
    assert "Traceback" not in errors and "BrokenPipe" not in errors, errors[-2000:]


def test_doctor_tries_the_connections_that_airflows_database_knows(
    objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_session() as session:
        session.add(Connection(conn_id="doctors_shop", conn_type="rfr_api", password="canary-77d0"))
    try:
        assert rfr("doctor", "--json") == 1
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id == "doctors_shop"))
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err
    assert "scheme" not in printed.err, "Airflow's remark on the names of our types is no news"
    checks = {check["check"]: check for check in json.loads(printed.out)["checks"]}
    assert [checks[name]["outcome"] for name in ("catalog", "warehouse", "control store")] == ["ok", "ok", "ok"]
    shop = checks["connection doctors_shop (rfr_api)"]
    assert shop["outcome"] == "skipped", shop


def test_the_doctor_tells_a_key_that_does_not_fit_from_a_connection_that_is_not_there(
    objects: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.models import crypto

    def with_key(key: str) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", key)
        crypto.get_fernet.cache_clear()

    with_key(Fernet.generate_key().decode())
    with create_session() as session:
        session.execute(delete(Connection).where(Connection.conn_id == RFR[0]))
        session.add(Connection(conn_id=RFR[0], conn_type="rfr_lake", host="sqlite://", password="canary-77d0"))
    with_key(Fernet.generate_key().decode())
    try:
        assert rfr("doctor", "--json") == 1
    finally:
        monkeypatch.undo()
        crypto.get_fernet.cache_clear()
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err
    assert "Traceback" not in printed.err
    checks = {check["check"]: check for check in json.loads(printed.out)["checks"]}
    assert "'rfr_lake_default' can't be decrypted with this machine's [core] fernet_key" in checks["catalog"]["detail"]
    assert checks["catalog"]["remedy"].startswith("set the key with which it was stored, or store it again")
    assert checks["warehouse"]["outcome"] == "skipped"
