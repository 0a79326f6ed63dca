"""Reads the ledgers for whoever watches a refresh: its state, and for the checkpoint where each partition is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.operators.checkpoints.content import DIGEST, STATES, digest_of
from airflow_provider_rfr.operators.outcome import RUN_KEY, figures_of_commit, figures_of_ledger

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.lake import LakeDocument
    from airflow_provider_rfr.lake.ledger_table import LedgerTable
    from airflow_provider_rfr.refresh.status import RefreshStatus

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
        from airflow_provider_rfr.lake.row_filter import part_of
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
