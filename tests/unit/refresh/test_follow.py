"""What a follower knows of a real ledger; the bar of a refresh in a real pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.refresh.follow import LedgerFollower
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import REQUESTS
from tests.unit.refresh.test_rounds import TABLE, Bench


def follower(uri: str, warehouse: str) -> LedgerFollower:
    settings = LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse})
    return LedgerFollower(lambda: settings, (TABLE,), show=lambda line: None)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    REQUESTS.clear()
    return Bench(tmp_path)


@pytest.fixture
def ledgers(bench: Bench, tmp_path: Path) -> LedgerFollower:
    return follower(f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/w")


def test_a_table_without_a_ledger_is_known_to_have_none(ledgers: LedgerFollower) -> None:
    assert ledgers.read(TABLE) is None
    assert ledgers.is_complete
    assert not ledgers.poll()
    assert ledgers.checkpoint() == {}


def test_a_ledger_that_cannot_be_read_is_not_taken_for_one_without_progress() -> None:
    ledgers = follower("sqlite:////nowhere/c.db", "x")
    with raises(Exception):
        ledgers.read(TABLE)
    assert not ledgers.is_complete


def test_a_checkpoint_points_to_the_ledgers_snapshot(bench: Bench, ledgers: LedgerFollower) -> None:
    ledgers.begin()
    ledger, _, _ = bench.read(bench.source(partitions=5, pages=6))
    assert ledgers.poll()
    checkpoint = ledgers.checkpoint()[TABLE]
    assert checkpoint["pointer"] == {"ledger": ledger.id, "snapshot": str(bench.ledger()._table.snapshot_id)}
    assert (checkpoint["partitions_done"], checkpoint["pages"]) == (5, 30)


def test_neither_token_nor_key_nor_address_is_in_it(bench: Bench, ledgers: LedgerFollower) -> None:
    ledgers.begin()
    ledger, _, _ = bench.read(bench.source(partitions=3, pages=2))
    columns = ("partition_key", "token_out", "request")
    tables = [ledger.store.read_table(file, columns) for file in ledger.page_files()]
    assert ledgers.poll()
    shown = json.dumps(ledgers.checkpoint())
    assert "fingerprint" not in shown and "run_key" not in shown
    private = {text for table in tables for column in table.columns for text in column.to_pylist() if text}
    assert private
    assert not [text for text in private if len(text) > 2 and text in shown]


PROGRAM = """
from datetime import datetime, timezone
from airflow_provider_rfr.refresh.follow import drawn_bar
from airflow_provider_rfr.refresh.state import State, TableStatus
with drawn_bar() as bar:
    bar.say("Spark is starting")
    print("a line of the log")
    bar.update(TableStatus("raw.\\x1b]0;x\\x07[bold]orders", "", State.READING, ""))
    bar.say("Spark runs")
    bar.update(TableStatus("raw.customers", "", State.READING, ""))
print("the last line")
"""


def drawn(**environment: str) -> str:
    """What the program writes to a terminal."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    done = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, env=given)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
    assert done.wait() == 0
    return shown.decode()


@pytest.mark.test
def test_a_bar_has_a_line_for_each_table_and_text_stands_above_it() -> None:
    shown = drawn()
    assert "Spark is starting" in shown
    assert "Spark runs" not in shown, "a table has a line already"
    last = shown[shown.rindex("orders") :]
    assert "customers" in last
    assert "a line of the log\r\n" in shown
    assert shown.rstrip().endswith("the last line")


@pytest.mark.test
def test_a_table_s_name_does_not_steer_the_terminal() -> None:
    shown = drawn()
    assert "\x1b]0;" not in shown and "\x07" not in shown
    assert "[bold]orders" in shown
