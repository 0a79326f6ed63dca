"""Follows the ledger while Spark runs: a log line per round, and a checkpoint in one of Airflow's stores."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.operators.checkpoints import DIGEST, STATES, digest_of
from airflow_provider_rfr.operators.outcome import RUN_KEY, figures_of_commit, figures_of_ledger
from airflow_provider_rfr.refresh.progress import ProgressBook

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.lake import LakeDocument
    from airflow_provider_rfr.lake.ledger_table import LedgerTable
    from airflow_provider_rfr.refresh.status import RefreshStatus


log = logging.getLogger(__name__)

_FIRST_WAIT = 2.0
_JOIN_SECONDS = 15.0

_StatusReader = Callable[[str], "RefreshStatus | None"]


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
        read: _StatusReader,
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
        self._thread.join(_JOIN_SECONDS)

    @property
    def latest(self) -> Mapping[str, RefreshStatus]:
        """The last known state of each table that this attempt changed."""
        return self._book.latest

    def _follow(self) -> None:
        for table in self._tables:
            self._book.begin(table, self._look(table))
        if self._recall is not None:
            self._guarded("last checkpoint", self._recall, self._book.before)
        wait = min(_FIRST_WAIT, self._poll_interval)
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


MAX_PARTITIONS = 128
MAX_PAGES = 10_000
"""Above either, a checkpoint has counts and a digest: no display is worth reading more page rows than this."""
_COLUMNS = ("partition_ordinal", "partition_key", "chain", "page", "complete")


@dataclass(slots=True)
class _Places:
    """Where the partitions of one generation are, as far as its files were read.

    :ivar files: those that were; a committed file never changes, so each is read once
    :ivar ends: chain, page and whether it was the last, by partition
    """

    generation: int
    files: set[str] = field(default_factory=set)
    keys: dict[int, str] = field(default_factory=dict)
    ends: dict[int, tuple[int, int, bool]] = field(default_factory=dict)

    def take(self, rows: Mapping[str, Sequence[Any]]) -> None:
        for ordinal, key, chain, page, complete in zip(*(rows[name] for name in _COLUMNS), strict=True):
            self.keys.setdefault(ordinal, key)
            # The opening row, page 0 of chain 0, is below every page.
            self.ends[ordinal] = max(self.ends.get(ordinal, (0, 0, False)), (chain, page, bool(complete)))

    def states(self) -> dict[str, dict[str, Any]]:
        """By a digest of the partition's key: the key itself may be a customer's name."""
        return {
            hashlib.sha256(self.keys[ordinal].encode()).hexdigest()[:12]: {"pages": page, "done": done}
            for ordinal, (_, page, done) in sorted(self.ends.items())
        }


class LedgerReader:
    """The ledgers of one task's tables. Asked by one thread at a time.

    :param replace_where: the part of the targets, as in the refresh's options
    """

    def __init__(self, lake: LakeDocument, replace_where: str | None = None) -> None:
        self._lake = lake
        self._replace_where = replace_where
        self._seen: dict[str, tuple[LedgerTable, RefreshStatus]] = {}
        self._places: dict[str, _Places] = {}
        self._failed: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether the last look at each table told how it stands, if only that it has no ledger yet."""
        return not self._failed

    def status(self, table: str) -> RefreshStatus | None:
        """The newest generation's header; None before the first refresh."""
        from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
        from airflow_provider_rfr.lake.ledger_table import LedgerTable
        from airflow_provider_rfr.lake.target import part_of
        from airflow_provider_rfr.refresh.header import GENERATION_KEY, read_header

        self._failed.add(table)
        catalog = open_catalog(LakeSettings(self._lake.name, self._lake.properties))
        ledger = LedgerTable.load(catalog, table, part_of(self._replace_where))
        found = None if ledger is None else read_header(ledger.summary(GENERATION_KEY))
        if ledger is not None and found is not None:
            self._seen[table] = ledger, found
        self._failed.discard(table)
        return found

    def published(self, table: str, run_key: str) -> dict[str, Any] | None:
        """Figures of the commit that this run made on the table; None where it made none.

        A run that waited may have opened the next generation before anybody looked: then the target tells.
        """
        status = self.status(table)
        if status is not None and status.snapshot_id is not None and status.run_key == run_key:
            return figures_of_ledger(table, status)
        from airflow_provider_rfr.lake.catalog import LakeSettings, load_table, open_catalog
        from airflow_provider_rfr.lake.commits import newest_summary_with

        target = load_table(open_catalog(LakeSettings(self._lake.name, self._lake.properties)), table)
        summary = None if target is None else newest_summary_with(target, RUN_KEY, run_key)
        return None if summary is None else figures_of_commit(table, summary)

    def details(self, table: str) -> dict[str, Any]:
        """What a checkpoint has beside the counts, as of the last :meth:`status`.

        The digest is of the partitions' states, or, where those would cost too much to read, of the ledger's header.
        """
        if table not in self._seen:
            return {}
        ledger, header = self._seen[table]
        pointer = {"ledger": ledger.id, "snapshot": str(ledger.snapshot_id)}
        if header.partitions > MAX_PARTITIONS or header.pages > MAX_PAGES:
            return {"pointer": pointer, DIGEST: digest_of(asdict(header))}
        states = self._states(table, ledger, header.generation)
        return {"pointer": pointer, DIGEST: digest_of(states), STATES: states}

    def latest(self, table: str) -> RefreshStatus | None:
        """The last known header, without a look."""
        return self._seen[table][1] if table in self._seen else None

    def _states(self, table: str, ledger: LedgerTable, generation: int) -> dict[str, dict[str, Any]]:
        places = self._places.get(table)
        if places is None or places.generation != generation:
            places = self._places[table] = _Places(generation)
        fresh = [location for location in ledger.committed_files(generation) if location not in places.files]
        rows = ledger.read(fresh, _COLUMNS)
        if rows is not None:
            places.take({name: rows[name].to_pylist() for name in _COLUMNS})
        places.files.update(fresh)
        return places.states()
