"""The application, killed by SIGKILL at a named place; run as a process by the crash tests.

``RFR_TEST_KILL`` names the place. ``RFR_TEST_STOP`` names a place to stop (SIGSTOP) at instead, until somebody
continues it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.kill_points import die, intercept


def _stop(*args: Any, **kwargs: Any) -> None:
    # To this thread: a signal to the process may reach another thread later, while this one goes on into its commit.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _pages_only(action: Callable[..., None]) -> Callable[..., None]:
    """For ledger commits: only one that names pages."""

    def act(table: Any, files: Any, *args: Any, **kwargs: Any) -> None:
        if any("/open-" not in file.location for file in files):
            action()

    return act


def _sixth_write(action: Callable[..., None]) -> Callable[..., None]:
    seen = [0]

    def act(writer: Any, rows: Any) -> None:
        # A write of nothing may follow, and must not stop a process again that was just woken.
        if rows:
            seen[0] += 1
            if seen[0] == 6:
                action()

    return act


def _published_only(action: Callable[..., None]) -> Callable[..., None]:
    def act(ledger: Any, names: Any, **changes: Any) -> None:
        if "snapshot_id" in changes:
            action()

    return act


def install(place: str, action: Callable[..., None]) -> None:
    """Let ``action`` happen at the place."""
    from airflow_provider_rfr.lake.ledger_table import LedgerTable
    from airflow_provider_rfr.lake.side_files import SideFiles
    from airflow_provider_rfr.lake.target import TargetTable
    from airflow_provider_rfr.refresh.ledger import Ledger
    from airflow_provider_rfr.refresh.page_rows import FlushWriter

    when, _, what = place.split(" ", 2)
    owner, name, act = {
        "opening commit": (LedgerTable, "commit", action),
        "flush": (FlushWriter, "write", _sixth_write(action)),
        "ledger commit": (LedgerTable, "commit", _pages_only(action)),
        "side file": (SideFiles, "write", action),
        "target commit": (TargetTable, "commit", action),
        "published mark": (Ledger, "commit", _published_only(action)),
    }[what]
    intercept(owner, name, **{when: act})
    if what == "target commit":
        # Of an incremental sync.
        intercept(TargetTable, "merge", **{when: action})


if __name__ == "__main__":
    began = time.monotonic()
    if "RFR_TEST_KILL" in os.environ:
        install(os.environ["RFR_TEST_KILL"], die)
    if "RFR_TEST_STOP" in os.environ:
        install(os.environ["RFR_TEST_STOP"], _stop)
    from airflow_provider_rfr.refresh.application import main

    sys.exit(main(sys.argv[sys.argv.index("--config") + 1], began=began))
