"""The driver's view of a refresh's partitions: the frozen list, and the position in each.

Of a partition that was read only its last cursor is kept, so that memory grows with the list and not with the pages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import LedgerError, ReconciliationError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.refresh._chains import seen_marks
from airflow_provider_rfr.refresh._messages import Cursor, OverlapCheck, PartitionProgress, PartitionWork


@dataclass(slots=True)
class PartitionBook:
    """Every partition of one generation; all fields are by ordinal.

    :ivar keys: canonical JSON of the partition keys
    :ivar slices: JSON of the slices
    :ivar cursors: of partitions that have pages
    :ivar failed: why a partition can't continue in this attempt
    :ivar overran: partitions that had a page in flight when the last round ended
    :ivar resumed: open partitions of which this attempt has read no page yet
    """

    keys: Sequence[str]
    slices: Sequence[str]
    cursors: dict[int, Cursor] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)
    restarts: dict[int, int] = field(default_factory=dict)
    overlaps: dict[int, OverlapCheck] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    overran: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    resumed: set[int] = field(default_factory=set)
    streaks: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def records(self) -> int:
        """Count the records on live chains."""
        return sum(cursor.records for cursor in self.cursors.values())

    @property
    def live_chains(self) -> dict[int, int]:
        """Return the chain that counts, by ordinal; partitions that never started again are left out."""
        return {ordinal: cursor.chain for ordinal, cursor in self.cursors.items() if cursor.chain}

    def open_ordinals(self) -> list[int]:
        """Return the partitions that this attempt still has to read, begun ones first."""
        begun = [n for n, cursor in self.cursors.items() if not cursor.complete and n not in self.failed]
        fresh = [n for n in range(len(self.keys)) if n not in self.cursors and n not in self.failed]
        return begun + fresh

    def work(self, ordinal: int) -> PartitionWork:
        return PartitionWork(
            ordinal=ordinal,
            key=self.keys[ordinal],
            slice=orjson.loads(self.slices[ordinal]),
            cursor=self.cursors.get(ordinal, Cursor()),
            seen=self.seen.get(ordinal, b""),
            overlap=self.overlaps.get(ordinal),
            restarts=self.restarts.get(ordinal, 0),
            asked=ordinal in self.asked,
            resumed=ordinal in self.resumed,
            streak=self.streaks.get(ordinal, (0, 0)),
        )

    def apply(self, progress: PartitionProgress) -> None:
        """Take over where a task left a partition."""
        ordinal = progress.ordinal
        if progress.cursor != self.cursors.get(ordinal):
            self.resumed.discard(ordinal)
        # A partition of which no page came has no cursor: it is still to be begun.
        if progress.cursor.pages or progress.cursor.chain:
            self.move({ordinal: progress.cursor})
        self.restarts[ordinal] = progress.restarts
        self.seen[ordinal] = progress.seen
        self.streaks[ordinal] = progress.streak
        if progress.checked:
            self.overlaps.pop(ordinal, None)
        if progress.cursor.complete:
            self.seen.pop(ordinal, None)
            self.streaks.pop(ordinal, None)
        if progress.error is not None:
            self.failed[ordinal] = progress.error
        (self.overran.add if progress.overran else self.overran.discard)(ordinal)
        (self.asked.add if progress.asked else self.asked.discard)(ordinal)

    def move(self, cursors: Mapping[int, Cursor]) -> None:
        for ordinal, cursor in cursors.items():
            before = self.cursors.get(ordinal)
            self.done += int(cursor.complete) - int(before is not None and before.complete)
            self.cursors[ordinal] = cursor

    def remember(self, table: pa.Table, *, addressable: bool) -> None:
        """Set the marks of open chains, and the overlap check of their last page, after a take-over.

        :param table: cursor columns of all committed page rows
        """
        open_ones = [n for n, cursor in self.cursors.items() if not cursor.complete]
        if not open_ones:
            return
        self.resumed.update(open_ones)
        rows = table.filter(pc.is_in(table["partition_ordinal"], pa.array(np.array(open_ones))))
        by_ordinal: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.to_pylist():
            if row["page"] and row["chain"] == self.cursors[row["partition_ordinal"]].chain:
                by_ordinal[row["partition_ordinal"]].append(row)
        for ordinal, own in by_ordinal.items():
            own.sort(key=lambda row: int(row["page"]))
            self.seen[ordinal] = seen_marks(own)
            if addressable:
                self.overlaps[ordinal] = OverlapCheck(own[-1]["token_in"], own[-1]["checksum"])


def open_book(store: FileStore, openings: Iterable[str]) -> PartitionBook:
    """Read the frozen list from the files with the opening rows."""
    found: dict[int, tuple[str, str]] = {}
    for location in openings:
        for row in store.read_table(location, ("partition_ordinal", "page", "partition_key", "slice")).to_pylist():
            if row["page"] == 0:
                found[row["partition_ordinal"]] = (row["partition_key"], row["slice"])
    if sorted(found) != list(range(len(found))):
        raise LedgerError("the ledger's list of partitions has gaps; open a new generation with force_restart")
    return PartitionBook([found[n][0] for n in range(len(found))], [found[n][1] for n in range(len(found))])


def cursors_of(table: pa.Table) -> dict[int, Cursor]:
    """Return the cursors behind the page rows: of each partition its highest chain, and there its highest page."""
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    order = np.lexsort((page, chain, ordinal))
    last = order[np.append(np.diff(ordinal[order]) != 0, True)[: len(order)]]
    _, place = np.unique(ordinal, return_inverse=True)
    live = chain == chain[last][place]
    records = np.bincount(place, weights=table["record_count"].to_numpy() * live, minlength=len(last))
    ends = table.select(["token_out", "complete"]).take(pa.array(last))
    positions = (values[last].tolist() for values in (ordinal, chain, page))
    columns = (*positions, ends["token_out"].to_pylist(), ends["complete"].to_pylist(), records.tolist())
    return {
        number: Cursor(chain_number, pages, token, complete, int(count))
        for number, chain_number, pages, token, complete, count in zip(*columns, strict=True)
        if pages
    }


def live_pages(table: pa.Table, cursors: Mapping[int, Cursor]) -> pa.Table:
    """Return the page rows that count: no opening rows, and none of superseded chains."""
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    live_chain = np.zeros(ordinal.max(initial=-1) + 1, dtype=np.int64)
    for number, cursor in cursors.items():
        live_chain[number] = cursor.chain
    return table.filter(pa.array((page > 0) & (chain == live_chain[ordinal])))


def check_gapless(pages: pa.Table, cursors: Mapping[int, Cursor]) -> None:
    """Check that every live chain has as many rows as pages; raise :class:`ReconciliationError` for the first other.

    :param pages: as of :func:`live_pages`
    """
    counts = Counter(pages["partition_ordinal"].to_pylist())
    for ordinal, cursor in cursors.items():
        if counts[ordinal] != cursor.pages:
            raise ReconciliationError(
                f"partition {ordinal}, chain {cursor.chain}: {counts[ordinal]} page rows up to page {cursor.pages}"
            )
