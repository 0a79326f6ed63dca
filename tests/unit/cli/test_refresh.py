"""``airflow rfr refresh``, by Airflow's own parser, on real ledgers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from sqlalchemy.exc import OperationalError

from airflow_provider_rfr.cli import common
from airflow_provider_rfr.cli import refresh as commands
from airflow_provider_rfr.exceptions import CatalogError, DamagedLedgerError, LedgerError
from airflow_provider_rfr.hooks import task_states
from airflow_provider_rfr.lake import sample
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh import inspection
from airflow_provider_rfr.refresh.follow import Bar
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import RefreshState
from tests.airflow_versions import rfr_command
from tests.soon import PATIENCE
from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages
from tests.unit.refresh.test_state import TASK, begun, read_page
from tests.unit.triggers.lake import Lake

NAME = "raw.orders"
CANARY = "canary-5c1e"
ESCAPE = "\x1b[31m\x07\u202ered"


@pytest.fixture
def rfr(command: Rfr, lake: Lake) -> Rfr:
    """``airflow rfr refresh ...`` on the lake."""
    return lambda *arguments, code=0: command("refresh", *arguments, "--lake-conn-id", "lake", code=code)


def published(ledger: Ledger) -> None:
    ledger.commit([], state=RefreshState.PUBLISHED, published_rows=1234, snapshot_id=2**60)


def test_a_lake_without_refreshes_is_told_in_a_sentence(rfr: Rfr) -> None:
    assert "nothing was refreshed yet" in rfr("list").out
    assert rfr("list", "--json").json == {"tables": []}
    for name in ("show", "history", "watch"):
        assert "table: no refresh of raw.orders was begun; see airflow rfr refresh list" in rfr(name, NAME, code=1).err
    assert "table: no refresh of raw.orders was begun" in rfr("list", NAME, code=1).err
    assert "'orders' is not a table name; write namespace.table" in rfr("show", "orders", code=1).err


def test_a_list_has_a_row_for_each_table_and_what_is_wrong(lake: Lake, rfr: Rfr) -> None:
    published(begun(lake.catalog, "raw.fine"))
    ledger = begun(lake.catalog)
    read_page(ledger)
    ledger.end("SourceError: 503")
    head, first, second, why = rfr("list").out.splitlines()
    assert head.split() == [
        "TABLE",
        "STATE",
        "SYNC",
        "LAST",
        "RESULT",
        "DONE",
        "PAGES",
        "RECORDS",
        "PAGES/S",
        "ATTEMPTS",
        "LAST",
        "COMMIT",
        "RUN",
    ]
    assert first.split()[:8] == [NAME, "failed", "full", "refresh", "25", "%,", "1", "of"]
    assert first.endswith("shop/monday/refresh")
    assert second.startswith("raw.fine")
    assert "1,234 rows" in second
    assert why.startswith("raw.orders: Attempt 1 failed; the pages read so far are kept")
    (found,) = rfr("list", "raw.fine", "--json").json["tables"]
    assert (found["state"], found["percent"], found["published_rows"]) == ("published", 100, 1234)


def test_a_table_that_is_named_twice_is_one_row_and_columns_keep_their_places(lake: Lake, rfr: Rfr) -> None:
    begun(lake.catalog, "raw.failed").end("SourceError: 503")
    ledger = begun(lake.catalog)
    read_page(ledger)
    head, first, second, *_ = rfr("list", NAME, NAME, "raw.failed").out.splitlines()
    assert (first.split()[0], second.split()[0]) == ("raw.failed", NAME)
    places = [head.index(name) for name in ("DONE", "LEFT", "PAGES", "PAGES/S", "ATTEMPTS", "RUN")]
    assert places == sorted(places)


def test_a_catalog_that_never_answers_is_told_in_a_sentence(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    monkeypatch.setattr(common, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("airflow_provider_rfr.lake.catalog.open_catalog", lambda _: time.sleep(2))
    assert "the catalog gives no answer within 0.1 s; airflow rfr doctor may say why" in rfr("list", code=1).err


def test_one_refresh_is_shown_whole(lake: Lake, rfr: Rfr) -> None:
    where = "day = '2026-01-01'"
    begun(lake.catalog, where=where).end("SourceError: 503")
    assert f"raw.orders has no refresh of its own, only of parts; give one of: {where}" in rfr("show", NAME, code=1).err
    lines = rfr("show", NAME, "--replace-where", where).out.splitlines()
    assert lines[0] == f"{NAME} ({where}): failed"
    assert "Last error: SourceError: 503" in lines
    assert "The first publish creates the table" in lines
    assert "state: failed" in rfr("show", NAME, "--replace-where", where, "-o", "yaml").out


def test_a_table_that_can_not_be_read_is_not_called_missing(lake: Lake, rfr: Rfr) -> None:
    published(begun(lake.catalog))
    lake.commit(NAME)
    lake.lose_metadata(NAME)
    assert "The table can't be read now" in rfr("show", NAME).out.splitlines()


def test_history_lists_what_became_of_each_generation(lake: Lake, rfr: Rfr) -> None:
    published(begun(lake.catalog))
    begun(lake.catalog).end("TypeMismatchError: no number", refused_under="rules")
    begun(lake.catalog)
    found = rfr("history", NAME, "--json").json
    assert found["table"] == NAME
    assert [generation["outcome"] for generation in found["generations"]] == ["reading", "refused", "published"]
    assert found["generations"][2]["rows"] == 1234
    assert "TypeMismatchError: no number" in rfr("history", NAME).out


def test_each_attempt_is_shown_with_its_run_and_its_try(lake: Lake, rfr: Rfr) -> None:
    first = begun(lake.catalog, try_number=1)
    read_page(first)
    first.end("SourceError: 503")
    Ledger(LedgerTable.load(lake.catalog, NAME)).take_over("p", "k", {**TASK, "try_number": 2})  # type: ignore[arg-type]
    lines = rfr("show", NAME).out.splitlines()
    newest, oldest = lines[lines.index("Attempts") + 2 :][:2]
    assert newest.split()[0] == "2"
    assert newest.endswith("shop/monday/refresh, try 2")
    assert oldest.split()[:2] == ["1", "failed"]
    assert oldest.endswith("SourceError: 503")
    attempts = rfr("show", NAME, "--json").json["attempt_list"]
    assert [(attempt["epoch"], attempt["try_number"]) for attempt in attempts] == [(2, 2), (1, 1)]


def test_rows_of_the_table_are_shown_where_the_setting_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    rows = pa.table({"id": [1], "name": [CANARY], "api_key": [f"{CANARY}-2"]})
    begun(lake.catalog)
    create_table(lake.catalog, NAME, rows.schema).append(rows)
    assert CANARY not in rfr("show", NAME).out + rfr("show", NAME, "--json").out
    monkeypatch.setenv("AIRFLOW__RFR__SHOW_ROWS", "True")
    lines = rfr("show", NAME).out.splitlines()
    head, row, hidden = lines[lines.index("Rows") + 1 :][:3]
    assert (head.split(), row.split()) == (["ID", "NAME"], ["1", CANARY])
    assert hidden == "Not read because of their names: api_key"
    assert rfr("show", NAME, "--json").json["sample"]["rows"] == [["1", CANARY]]
    monkeypatch.setattr(sample, "sample_of", lambda table: 1 / 0)
    assert "The rows of the table can't be read: ZeroDivisionError" in rfr("show", NAME).out.splitlines()


def test_texts_of_a_source_do_not_steer_the_terminal(lake: Lake, rfr: Rfr) -> None:
    where = f"name = '{ESCAPE}[bold]'"
    begun(lake.catalog, where=where, dag_run_id=ESCAPE).end(f"SourceError: {ESCAPE}\n{ESCAPE}")
    part = ("--replace-where", where)
    printed = [rfr("show", NAME, *part), rfr("history", NAME, *part), rfr("watch", NAME, *part, code=1), rfr("list")]
    printed.append(rfr("show", NAME, code=1))
    everything = "".join(out + err for out, err in printed)
    assert not set("\x1b\x07\u202e") & set(everything)
    assert "[bold]" in everything


@pytest.mark.parametrize(("error", "code", "state"), [(None, 0, "published"), ("SourceError: 503", 1, "failed")])
def test_watch_ends_with_the_refresh_and_says_how(
    error: str | None, code: int, state: str, lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    monkeypatch.setattr(commands, "_POLL_SECONDS", 0.05)
    ledger = begun(lake.catalog)

    def work() -> None:
        time.sleep(0.2)
        read_page(ledger)
        time.sleep(0.2)
        published(ledger) if error is None else ledger.end(error)

    thread = threading.Thread(target=work)
    thread.start()
    lines = rfr("watch", NAME, code=code).out.splitlines()
    thread.join()
    assert lines[0].startswith("raw.orders: generation 1, round 1: 1 pages, 1 records, 1 of 4 partitions")
    assert lines[-1].startswith(f"raw.orders: {state}: ")
    assert rfr("watch", NAME, "--json", code=code).json["state"] == state


@pytest.mark.parametrize(("error", "outcome"), [("SourceError: 503", "failed"), ("it was stopped", "stopped")])
def test_watch_follows_a_task_that_airflow_tries_again(
    error: str,
    outcome: str,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    airflow_says: Callable[..., None],
    rfr: Rfr,
) -> None:
    monkeypatch.setattr(commands, "_POLL_SECONDS", 0.05)
    airflow_says("up_for_retry")
    ledger = begun(lake.catalog)
    read_page(ledger)
    ledger.end(error, outcome)
    thread = threading.Timer(0.5, lambda: published(begun(lake.catalog)))
    thread.start()
    assert rfr("watch", NAME).out.splitlines()[-1].startswith("raw.orders: published: ")
    thread.join()


def test_watch_ends_with_a_task_that_airflow_does_not_try_again(
    lake: Lake, airflow_says: Callable[..., None], rfr: Rfr
) -> None:
    airflow_says("failed")
    begun(lake.catalog).end("SourceError: 503")
    rfr("watch", NAME, code=1)


def test_watch_draws_a_bar_in_a_terminal(lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr) -> None:
    monkeypatch.setattr(commands, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    ledger, shown = begun(lake.catalog), []
    update = Bar.update

    def once(bar: Bar, found: Any) -> None:
        update(bar, found)
        shown.append(bar._bars.tasks[0].fields["text"])
        if len(shown) == 1:
            read_page(ledger)
            published(ledger)

    monkeypatch.setattr(Bar, "update", once)
    rfr("watch", NAME)
    assert shown[0] == "reading, 0 %, 0 of 4, 0 pages"
    assert shown[-1].startswith("published, 100 %")


@pytest.mark.parametrize("first", [1, 2])
def test_watch_outlives_a_catalog_that_is_away_for_a_moment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, first: int, rfr: Rfr
) -> None:
    monkeypatch.setattr(commands, "_POLL_SECONDS", 0.0)
    ledger, load, looks = begun(lake.catalog), LedgerTable.load, []

    def flaky(*arguments: Any) -> Any:
        looks.append(1)
        if first <= len(looks) <= 4:
            raise ConnectionError("password=canary-7f1c")
        if len(looks) == 6:
            published(ledger)
        return load(*arguments)

    monkeypatch.setattr(LedgerTable, "load", flaky)
    rfr("watch", NAME)
    looks[:] = [1] * 1
    monkeypatch.setattr(LedgerTable, "load", lambda *_: (_ for _ in ()).throw(ConnectionError("canary-7f1c")))
    rfr("watch", NAME, code=1)
    said = rfr("list", NAME, code=1)
    assert "The ledger can't be read: ConnectionError" in said.out
    assert "canary" not in said.out + said.err


def test_ctrl_c_ends_the_watch_and_not_the_refresh(lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    begun(lake.catalog)
    monkeypatch.setattr(commands.time, "sleep", interrupted)
    rfr("watch", NAME, "--json", code=130)


@pytest.mark.test
@pytest.mark.parametrize(
    ("kind", "host", "words"),
    [("rest", "http://127.0.0.1:{}", ["list"]), ("sql", "postgresql+psycopg2://127.0.0.1:{}/lake", ["watch", NAME])],
)
def test_ctrl_c_ends_a_command_whose_catalog_never_answers(kind: str, host: str, words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lake = {"conn_type": "rfr_lake", "host": host.format(silent.getsockname()[1])}
        lake["extra"] = json.dumps({"catalog_type": kind, "warehouse": "/tmp"})
        command = rfr_command("refresh", *words, "--lake-conn-id", "lake")
        environment = {**os.environ, "AIRFLOW_CONN_LAKE": json.dumps(lake)}
        # Where the tests themselves run in the background, the signal is ignored.
        heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stderr=pipe, text=True, preexec_fn=heeding) as process:
            silent.settimeout(PATIENCE)
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.test
def test_a_terminal_without_the_letters_of_a_name_shows_their_numbers(lake: Lake) -> None:
    begun(lake.catalog, dag_run_id="Größe")
    command = rfr_command("refresh", "list", "--lake-conn-id", "lake")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert r"shop/Gr\xf6\xdfe/refresh" in done.stdout


def test_no_secret_of_the_lake_is_told_whatever_fails(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    ledger = begun(lake.catalog)
    connection = {"conn_type": "rfr_lake", "login": "me", "password": CANARY}
    extra = {
        "warehouse": f"file://{tmp_path}/warehouse",
        "s3_secret_access_key": CANARY,
        "properties": {"token": CANARY},
    }
    there = {**connection, "host": f"sqlite:///{tmp_path}/catalog.db", "extra": extra}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    away = {**connection, "host": f"postgresql+psycopg2://127.0.0.1:{port}/lake?password={CANARY}", "extra": extra}
    for settings, code in ((there, 0), (away, 1)):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(settings))
        for words in (["list"], ["show", NAME], ["history", NAME], ["list", "--json"], ["show", NAME, "--json"]):
            said = rfr(*words, code=code)
            assert said.out + said.err
            assert CANARY not in said.out + said.err
    ledger.end("it is over")


@pytest.mark.parametrize(
    ("host", "kind", "said"),
    [
        ("http://127.0.0.1:1?token=canary-5c1e", "rest", "(http://127.0.0.1:1) failed"),
        ("http://127.0.0.1:1?token=a/canary-5c1e", "rest", "(http://127.0.0.1:1) failed"),
        ("postgresql+psycopg2://me:canary-5c1e@h:port/x", "sql", "lake.properties.uri: its port is not a number"),
        ("postgresql+psycopg2://me:my@canary-5c1e@h/x", "sql", "lake.properties.uri: has an @ in its user or password"),
        ("postgresql+psycopg2://me@h:canary-5c1e/x", "sql", "lake.properties.uri: its port is not a number"),
    ],
)
def test_an_address_is_told_without_what_may_be_secret_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, kind: str, said: str, rfr: Rfr
) -> None:
    extra = {"catalog_type": kind, "warehouse": str(tmp_path)}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "rfr_lake", "host": host, "extra": extra}))
    told = rfr("list", code=1)
    assert said in told.err
    assert CANARY not in told.out + told.err


def test_a_part_s_ledger_that_can_not_be_read_is_told_as_such(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    where = "day = '2026-01-01'"
    begun(lake.catalog, where=where)

    def broken(*_: Any) -> None:
        raise LedgerError("it is broken")

    monkeypatch.setattr(inspection, "_header_now", broken)
    assert "The ledger can't be read: it is broken" in rfr("list", code=1).out
    assert "The ledger can't be read: it is broken; see airflow rfr refresh list" in rfr("show", NAME, code=1).err
    assert "The ledger can't be read: it is broken" in rfr("history", NAME, "--replace-where", where, code=1).out
    found = rfr("history", NAME, "--replace-where", where, "--json", code=1).json
    assert (found["state"], found["generations"]) == ("unreadable", [])


@pytest.mark.parametrize("name", ["list", "show"])
def test_a_killed_attempt_is_told_as_on_the_page_as_soon_as_airflow_knows(
    name: str, lake: Lake, airflow_says: Callable[..., None], rfr: Rfr
) -> None:
    read_page(begun(lake.catalog))
    airflow_says("up_for_retry")
    output = rfr(name, NAME, "--json").json
    status = output["tables"][0] if name == "list" else output
    assert (status["state"], status["seconds_left"]) == ("waiting", None)
    check_messages(status["sentence"])


def test_the_ledgers_alone_are_asked_where_airflow_has_no_database(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    def fail(wanted: Any) -> Any:
        raise OperationalError("SELECT", {}, Exception("no such table"))

    monkeypatch.setattr(task_states, "_states", fail)
    begun(lake.catalog)
    assert rfr("list", "--json").json["tables"][0]["state"] == "reading"


def test_a_dropped_ledger_is_gone_with_its_files_and_the_table_stays(lake: Lake, tmp_path: Path, rfr: Rfr) -> None:
    lake.catalog.create_namespace_if_not_exists("raw")
    lake.catalog.create_table(NAME, Schema())
    ledger = begun(lake.catalog)
    read_page(ledger)
    folder = Path(ledger.folder.removeprefix("file://"))
    assert f"table: a refresh of {NAME} is running; wait for its end" in rfr("drop", NAME, code=1).err
    ledger.end("SourceError: 503")
    assert "The next run reads all pages of raw.orders again" in rfr("drop", NAME).out
    assert LedgerTable.load(lake.catalog, NAME) is None
    assert not [file for file in folder.rglob("*") if file.is_file()]
    assert lake.catalog.table_exists(NAME)
    assert f"table: no refresh of {NAME} was begun" in rfr("drop", NAME, code=1).err


def test_a_ledger_that_could_not_be_read_for_a_moment_is_not_dropped_from_a_refresh_that_works(
    lake: Lake, rfr: Rfr, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_page(begun(lake.catalog))
    load, failures = LedgerTable.load, [CatalogError("the catalog 'rfr' failed: 503")]

    def once_away(*args: Any) -> LedgerTable | None:
        if failures:
            raise failures.pop()
        return load(*args)

    monkeypatch.setattr(LedgerTable, "load", once_away)
    assert f"table: a refresh of {NAME} is running; wait for its end" in rfr("drop", NAME, code=1).err
    assert not failures and LedgerTable.load(lake.catalog, NAME) is not None


def test_a_ledger_whose_metadata_is_lost_is_told_as_such_and_can_be_dropped(lake: Lake, rfr: Rfr) -> None:
    begun(lake.catalog)
    lake.lose_metadata(f"{NAME}__rfr_ledger")
    assert "The ledger can't be read: FileNotFoundError" in rfr("show", NAME, code=1).out
    check_messages(rfr("drop", NAME).out)
    assert LedgerTable.load(lake.catalog, NAME) is None


def test_a_damaged_ledger_is_named_with_its_remedy_and_can_be_dropped(lake: Lake) -> None:
    read_page(begun(lake.catalog))
    [damaged] = lake.catalog.load_table(f"{NAME}__rfr_ledger").metadata.snapshots[-1:]
    Path(damaged.manifest_list.removeprefix("file://")).unlink()
    ledger = LedgerTable.load(lake.catalog, NAME)
    assert ledger is not None
    with pytest.raises(DamagedLedgerError) as caught:
        Ledger(ledger).take_over("publish")
    assert f"the ledger {NAME}__rfr_ledger is damaged: " in str(caught.value)
    check_messages(str(caught.value))
    assert not caught.value.retryable
    ledger.drop()
    assert LedgerTable.load(lake.catalog, NAME) is None


@pytest.mark.parametrize(
    ("words", "unloaded"),
    [
        ("refresh list", "pandas"),
        ("objects status --project p", "pandas"),
        ("triggers deliver triggers.yaml", "pandas"),
        ("triggers list", "pyiceberg"),
        ("version", "pyiceberg"),
    ],
)
def test_a_command_imports_nothing_large_that_it_does_not_need(words: str, unloaded: str, tmp_path: Path) -> None:
    (tmp_path / "triggers.yaml").write_text(
        "triggers: {config: {all: {url: 'https://hooks.example.com', payload: {a: 1}}}}"
    )
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('airflow_provider_rfr', run_name='__main__')\n"
        "except SystemExit as ended: assert not ended.code, ended\n"
        f"sys.exit({unloaded!r} in sys.modules)"
    )
    lake = {
        "conn_type": "rfr_lake",
        "host": f"sqlite:///{tmp_path}/catalog.db",
        "extra": {"warehouse": str(tmp_path)},
    }
    environment = {**os.environ, "AIRFLOW_CONN_RFR_LAKE_DEFAULT": json.dumps(lake)}
    command = [sys.executable, "-c", program, *words.split()]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
