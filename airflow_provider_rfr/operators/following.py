"""Following a refresh by its ledger while Spark runs, whatever became of the driver's own output."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.refresh.status import RefreshStatus, read_status

FIRST_POLL_SECONDS = 2.0
GROWTH = 1.5


class LedgerFollower:
    """Polls the ledgers of some targets; one log line and one checkpoint for each round that it sees.

    A ledger that can't be read now is asked again later: following is a display, and stops no refresh.

    :param checkpoint: called with all targets' progress after each change
    """

    def __init__(
        self,
        settings: LakeSettings,
        targets: list[str],
        *,
        checkpoint: Callable[[dict[str, Any]], None],
        log: logging.Logger,
        poll_seconds: float,
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._checkpoint = checkpoint
        self._log = log
        self._poll_seconds = poll_seconds
        self._over = threading.Event()
        self._seen: dict[str, RefreshStatus] = {}
        self._first: dict[str, tuple[float, int]] = {}
        self._thread = threading.Thread(target=self._run, name="rfr-follow", daemon=True)

    def __enter__(self) -> LedgerFollower:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(timeout=30)

    def look(self) -> None:
        """Read every ledger once."""
        changed = False
        for target in self._targets:
            status = self._status(target)
            if status is not None and status != self._seen.get(target):
                changed = True
                self._tell(target, status)
                self._seen[target] = status
        if changed:
            self._checkpoint({target: progress_of(status) for target, status in self._seen.items()})

    def _run(self) -> None:
        wait = min(FIRST_POLL_SECONDS, self._poll_seconds)
        while not self._over.wait(wait):
            self.look()
            wait = min(self._poll_seconds, wait * GROWTH)
        self.look()

    def _status(self, target: str) -> RefreshStatus | None:
        try:
            return read_status(self._settings, target)
        except Exception as error:  # noqa: BLE001 - a catalog that does not answer now may answer at the next poll
            self._log.debug("%s: the ledger can't be read now: %s", target, type(error).__name__)
            return None

    def _tell(self, target: str, status: RefreshStatus) -> None:
        began, pages = self._first.setdefault(target, (time.monotonic(), status.pages))
        seconds = time.monotonic() - began
        rate = (status.pages - pages) / seconds if seconds > 0 else 0.0
        line = (
            f"{target}: generation {status.generation} is {status.state.value}, {status.pages:,} pages,"
            f" {status.records:,} records, {status.partitions_done:,} of {status.partitions:,} partitions"
        )
        if rate > 0:
            line += f", {rate:,.0f} pages/s"
        if rate > 0 and 0 < status.partitions_done < status.partitions:
            left = status.pages / status.partitions_done * (status.partitions - status.partitions_done) / rate
            line += f", about {left:,.0f} s left"
        self._log.info(line)


def progress_of(status: RefreshStatus) -> dict[str, Any]:
    """What a checkpoint says of one target: numbers and times, never a token or an address."""
    return {
        "generation": status.generation,
        "epoch": status.epoch,
        "state": status.state.value,
        "pages": status.pages,
        "records": status.records,
        "partitions": status.partitions,
        "partitions_done": status.partitions_done,
        "attempts": status.attempts,
        "snapshot_id": status.snapshot_id,
        "committed_at": status.committed_at.isoformat(),
    }
