"""The bar of ``full_refresh.py`` and of ``watch``, drawn in a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

pytestmark = pytest.mark.test

PROGRAM = """
from datetime import datetime, timezone
from airflow_provider_rfr.refresh.follow import drawn_bar
from airflow_provider_rfr.refresh.state import State, TableStatus
with drawn_bar() as bar:
    bar.say("Spark is starting")
    print("a line of the log")
    bar.update(TableStatus("raw.\\x1b]0;x\\x07[bold]orders", "", State.READING, ""))
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


def test_a_bar_says_that_spark_is_starting_and_lines_stand_above_it() -> None:
    shown = drawn()
    assert "Spark is starting" in shown
    assert "a line of the log\r\n" in shown
    assert shown.rstrip().endswith("the last line")


def test_a_table_s_name_does_not_steer_the_terminal() -> None:
    shown = drawn()
    assert "\x1b]0;" not in shown and "\x07" not in shown
    assert "[bold]orders" in shown
