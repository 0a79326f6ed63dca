"""Watches the ledger while Spark runs, in a thread: a log line each round, a checkpoint in one of Airflow's stores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.refresh.progress import ProgressBook

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.status import RefreshStatus

log = logging.getLogger(__name__)

FIRST_WAIT = 2.0
JOIN_SECONDS = 15.0

StatusReader = Callable[[str], "RefreshStatus | None"]


class LedgerFollower:
    """A context manager that follows the tables' ledgers from before the submit to after its end.

    A ledger that can't be read, or a store that can't be written, never fails the task: both only show things.

    :param read: the ledger's state of one table; None where there is none yet
    :param recall: takes the states that the attempt finds, before it changes any
    :param remember: takes the checkpoint of all tables after each change
    :param tell: takes one line a round
    :param poll_interval: seconds between looks once the refresh runs for a while; 2 at first
    """

    def __init__(
        self,
        tables: tuple[str, ...],
        read: StatusReader,
        *,
        remember: Callable[[dict[str, Any]], None],
        tell: Callable[[str], None],
        recall: Callable[[Mapping[str, RefreshStatus | None]], None] | None = None,
        poll_interval: float = 10.0,
    ) -> None:
        self._tables = tables
        self._read = read
        self._recall = recall
        self._remember = remember
        self._poll_interval = poll_interval
        self._book = ProgressBook(tell)
        self._complained: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rfr-follower", daemon=True)

    def __enter__(self) -> LedgerFollower:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join(JOIN_SECONDS)

    @property
    def latest(self) -> Mapping[str, RefreshStatus]:
        """The last known state of each table that this attempt changed."""
        return self._book.latest

    def _follow(self) -> None:
        for table in self._tables:
            self._book.begin(table, self._look(table))
        if self._recall is not None:
            self._guarded("last checkpoint", self._recall, self._book.before)
        wait = min(FIRST_WAIT, self._poll_interval)
        while not self._done.wait(wait):
            began = time.monotonic()
            self._round()
            wait = min(max(wait * 1.2, 4 * (time.monotonic() - began)), self._poll_interval)
        self._round()

    def _round(self) -> None:
        changed = [table for table in self._tables if self._book.take(table, self._look(table))]
        if changed:
            self._guarded("checkpoint", self._remember, self._book.checkpoint())

    def _look(self, table: str) -> RefreshStatus | None:
        status: RefreshStatus | None = self._guarded(f"ledger of {table}", self._read, table)
        return status

    def _guarded(self, what: str, function: Callable[[Any], Any], argument: Any) -> Any:
        """Errors are named by their kind alone: a catalog's texts may hold addresses with credentials."""
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001 - following is never worth a refresh
            if what not in self._complained:
                self._complained.add(what)
                log.warning("the %s can't be followed (%s); the refresh goes on", what, type(error).__name__)
            return None
