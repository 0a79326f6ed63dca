"""The application, killed by SIGKILL at a named place; run as a process by the crash tests.

``RFR_TEST_KILL`` names the place. The process kills itself there as the kernel would: no handler, no finally.
``RFR_TEST_STOP`` names a place to stop (SIGSTOP) at instead, until somebody continues it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


def _at(
    owner: Any, name: str, *, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def _kill(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _pages_only(action: Callable[..., None]) -> Callable[..., None]:
    """For ledger commits: only one that names pages."""

    def act(table: Any, files: Any, *args: Any, **kwargs: Any) -> None:
        if any("/open-" not in file.location for file in files):
            action()

    return act


def _after_writes(count: int, action: Callable[..., None]) -> Callable[..., None]:
    seen = [0]

    def act(writer: Any, rows: Any) -> None:
        # A write of nothing may follow, and must not stop a process again that was just woken.
        if rows:
            seen[0] += 1
            if seen[0] == count:
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
    from airflow_provider_rfr.lake.target import TargetTable
    from airflow_provider_rfr.refresh.ledger import Ledger
    from airflow_provider_rfr.refresh.pages import FlushWriter

    places: dict[str, Callable[[], None]] = {
        "before the opening commit": lambda: _at(LedgerTable, "commit", before=action),
        "after the opening commit": lambda: _at(LedgerTable, "commit", after=action),
        "before a flush": lambda: _at(FlushWriter, "write", before=_after_writes(6, action)),
        "after a flush": lambda: _at(FlushWriter, "write", after=_after_writes(6, action)),
        "after the first flush": lambda: _at(FlushWriter, "write", after=_after_writes(1, action)),
        "before a ledger commit": lambda: _at(LedgerTable, "commit", before=_pages_only(action)),
        "after a ledger commit": lambda: _at(LedgerTable, "commit", after=_pages_only(action)),
        "before the target commit": lambda: _at(TargetTable, "commit", before=action),
        "after the target commit": lambda: _at(TargetTable, "commit", after=action),
        "after the published mark": lambda: _at(Ledger, "commit", after=_published_only(action)),
    }
    places[place]()


if __name__ == "__main__":
    began = time.monotonic()
    if "RFR_TEST_KILL" in os.environ:
        install(os.environ["RFR_TEST_KILL"], _kill)
    if "RFR_TEST_STOP" in os.environ:
        install(os.environ["RFR_TEST_STOP"], _stop)
    from airflow_provider_rfr.refresh.application import main

    sys.exit(main(sys.argv[sys.argv.index("--config") + 1], began=began))
