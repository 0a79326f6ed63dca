"""One attempt's dealings with its checkpoint: look at the last attempt's, write its own, remove it when published."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.operators.checkpoints.content import Checkpoint, Flaw, parse_checkpoint
from airflow_provider_rfr.refresh.progress import Mark

if TYPE_CHECKING:
    from airflow_provider_rfr.operators.checkpoints.stores import CheckpointStore
    from airflow_provider_rfr.refresh.status import RefreshStatus

log = logging.getLogger(__name__)

Details = Callable[[str], Mapping[str, Any]]


class CheckpointKeeper:
    """A context manager around one attempt; an attempt that fails leaves its checkpoint for the next one.

    No error of a store ever fails the refresh: a checkpoint is worth a log line, not a try.

    :param owner: the task instance; content of another one is ignored
    :param details: what else to keep of a table: pointer, digest, states of partitions
    :param known: whether the ledgers could be read when they were last looked at
    :param first: whether this is the first try, which has nothing to miss
    :ivar stalled: attempts in a row, up to this one, without progress; None while that can't be told
    """

    def __init__(
        self,
        store: CheckpointStore,
        owner: str,
        *,
        details: Details,
        known: Callable[[], bool] = lambda: True,
        first: bool = True,
    ) -> None:
        self._store = store
        self._owner = owner
        self._details = details
        self._known = known
        self._first = first
        self._before: Mapping[str, Mark | None] | None = None
        self._last = Checkpoint(owner)
        self._tables: dict[str, Mapping[str, Any]] = {}
        self._over = False
        self._excused = False
        self._complained: set[str] = set()
        self._lock = threading.Lock()
        self.stalled: int | None = None

    def __enter__(self) -> CheckpointKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Also an attempt that never reached the ledger counts, so its checkpoint is written here at the latest."""
        if error is not None and self._before is not None:
            self._excused = isinstance(error, RfrError) and error.excused
            self._write()

    def recall(self, before: Mapping[str, RefreshStatus | None]) -> None:
        """Compare the last attempt's checkpoint with the ledgers, and say what is wrong with it.

        :param before: state of each table's ledger as this attempt finds it
        """
        self._before = marks_of(before)
        try:
            found = parse_checkpoint(self._store.read(), self._owner)
        except Exception as error:  # noqa: BLE001 - a store's error is worth one line
            self._ignored(Flaw.UNREADABLE, type(error).__name__)
            return
        if isinstance(found, Flaw):
            self._ignored(found)
            return
        apart = difference(found.tables, before) if self._known() else ""
        if apart:
            self._ignored(Flaw.STALE, apart)
            return
        self._last = found
        agrees = "agrees with the ledger" if self._known() else "can't be compared now: the ledger can't be read"
        log.info("the checkpoint in %s %s", self._store.place, agrees)

    @property
    def before(self) -> tuple[Mapping[str, Mark | None] | None, int]:
        """What the attempt found, as far as it is known, and how many attempts before it brought nothing."""
        return self._before if self._known() else None, self._last.stalled

    def go_on(self, before: Mapping[str, Mark | None] | None, stalled: int) -> None:
        """Be the keeper of an attempt that began in another process."""
        self._before, self._last = before, Checkpoint(self._owner, stalled)

    def remember(self, checkpoint: Mapping[str, Any], *, guarded: bool = False) -> None:
        """Take the counts of all tables after a change, and write them.

        :param guarded: turn the store's errors into a log line; the follower names them itself
        :raises Exception: the store's own, unless guarded
        """
        for table, counts in checkpoint["tables"].items():
            self._tables[table] = {**counts, **self._detailed(table)}
        self._write(guarded=guarded)

    def published(self, *, keep: bool = False) -> None:
        """The refresh is done: remove the checkpoint unless it is to be kept. Nothing is written after this."""
        with self._lock:
            self._over = True
            if not keep:
                self._guard(self._store.clear)

    def _write(self, *, guarded: bool = True) -> None:
        with self._lock:
            if self._over:
                return
            self.stalled = self._judged()
            stalled = self._last.stalled if self.stalled is None else self.stalled
            content = Checkpoint(self._owner, stalled, {**self._last.tables, **self._tables}).content()
            if content is None:
                self._complain("it would be too large")
            elif guarded:
                self._guard(lambda: self._store.write(content))
            else:
                self._store.write(content)

    def _detailed(self, table: str) -> Mapping[str, Any]:
        """Counts without them are still worth writing."""
        try:
            return self._details(table)
        except Exception as error:  # noqa: BLE001 - see the class
            log.debug("the partitions of %s can't be told (%s)", table, type(error).__name__)
            return {}

    def _judged(self) -> int | None:
        """How many attempts in a row have stalled if this one ended now."""
        if self._before is None or not self._known():
            return None
        if advanced(self._before, self._tables):
            return 0
        return self._last.stalled + (0 if self._excused else 1)

    def _ignored(self, flaw: Flaw, detail: str = "") -> None:
        if flaw is Flaw.MISSING and self._first:
            return
        level = logging.INFO if flaw in (Flaw.MISSING, Flaw.STALE) else logging.WARNING
        why = f"{flaw.value} ({detail})" if detail else flaw.value
        log.log(level, "the checkpoint in %s is ignored: %s; the ledger wins", self._store.place, why)

    def _guard(self, action: Callable[[], None]) -> None:
        """Errors are named by their kind alone: their texts may quote what was written."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - see the class
            self._complain(type(error).__name__)

    def _complain(self, why: str) -> None:
        if why not in self._complained:
            self._complained.add(why)
            log.warning(
                "the checkpoint in %s can't be written or removed: %s; the refresh goes on", self._store.place, why
            )


def marks_of(statuses: Mapping[str, RefreshStatus | None]) -> dict[str, Mark | None]:
    """How far each table is; None for one without a ledger."""
    return {table: None if status is None else Mark.of(status) for table, status in statuses.items()}


def difference(tables: Mapping[str, Mapping[str, Any]], before: Mapping[str, RefreshStatus | None]) -> str:
    """How a checkpoint and the ledgers disagree, for the first table that does; empty where they agree."""
    for table, counts in tables.items():
        status = before.get(table)
        if status is None:
            return f"{table}: no such ledger"
        for name in ("generation", "epoch", "pages"):
            theirs = getattr(status, name)
            if counts[name] != theirs:
                return f"{table}: {name} {counts[name]:,}, in the ledger {theirs:,}"
    return ""


def advanced(before: Mapping[str, Mark | None], tables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether any table is further than it was: more pages or partitions, a generation with pages, a publish."""
    return any(_further(before.get(table), counts) for table, counts in tables.items())


def _further(before: Mark | None, counts: Mapping[str, Any]) -> bool:
    if before is None or before.generation != counts["generation"]:
        return bool(counts["pages"])
    if counts.get("snapshot_id") is not None and before.snapshot_id is None:
        return True
    return bool(counts["pages"] > before.pages or counts["partitions_done"] > before.partitions_done)
