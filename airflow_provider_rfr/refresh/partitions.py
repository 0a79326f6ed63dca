"""The driver's view of a refresh's partitions: the frozen list, and where each of them stands.

Of a partition that was read only its last cursor is kept, so that memory follows the list, not the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import LedgerError, ReconciliationError
from airflow_provider_rfr.refresh.adoption import CURSOR_COLUMNS, Cursor
from airflow_provider_rfr.refresh.chains import marks_of_rows
from airflow_provider_rfr.refresh.messages import OverlapCheck, PartitionProgress, PartitionWork

OPENING_COLUMNS = ("partition_ordinal", "page", "partition_key", "slice")


@dataclass(slots=True)
class PartitionBook:
    """Every partition of one generation.

    :ivar keys: canonical keys, by ordinal
    :ivar cursors: of partitions that have pages, by ordinal
    :ivar failed: why a partition can't go on in this attempt
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
    done: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def records(self) -> int:
        """Records on live chains."""
        return sum(cursor.records for cursor in self.cursors.values())

    @property
    def live_chains(self) -> dict[int, int]:
        """The chain that counts, of every partition that was started again."""
        return {ordinal: cursor.chain for ordinal, cursor in self.cursors.items() if cursor.chain}

    def open_ordinals(self) -> list[int]:
        """Partitions that this attempt still has to read, begun ones first."""
        begun = [n for n, cursor in self.cursors.items() if not cursor.complete and n not in self.failed]
        fresh = [n for n in range(len(self.keys)) if n not in self.cursors and n not in self.failed]
        return begun + fresh

    def work(self, ordinal: int) -> PartitionWork:
        """The partition as a task gets it."""
        cursor = self.cursors.get(ordinal, Cursor())
        return PartitionWork(
            ordinal=ordinal,
            key=self.keys[ordinal],
            slice=orjson.loads(self.slices[ordinal]),
            chain=cursor.chain,
            pages=cursor.pages,
            token=cursor.token,
            records=cursor.records,
            seen=self.seen.get(ordinal, b""),
            overlap=self.overlaps.get(ordinal),
            restarts=self.restarts.get(ordinal, 0),
            asked=ordinal in self.asked,
        )

    def apply(self, progress: PartitionProgress) -> None:
        """Move a partition on."""
        ordinal = progress.ordinal
        if progress.pages or progress.chain:
            self._move(
                ordinal, Cursor(progress.chain, progress.pages, progress.token, progress.complete, progress.records)
            )
        self.restarts[ordinal] = progress.restarts
        self.seen[ordinal] = progress.seen
        if progress.checked:
            self.overlaps.pop(ordinal, None)
        if progress.complete:
            self.seen.pop(ordinal, None)
        if progress.error is not None:
            self.failed[ordinal] = progress.error
        (self.overran.add if progress.overran else self.overran.discard)(ordinal)
        (self.asked.add if progress.asked else self.asked.discard)(ordinal)

    def adopt(self, moved: Mapping[int, Cursor]) -> None:
        """Move partitions on to where adopted files end."""
        for ordinal, cursor in moved.items():
            self._move(ordinal, cursor)

    def remember(self, table: pa.Table, *, addressable: bool) -> None:
        """Take the marks of open chains, and their last page for the overlap check, from the page rows."""
        open_ones = [n for n, cursor in self.cursors.items() if not cursor.complete]
        if not open_ones:
            return
        rows = table.filter(pc.is_in(table["partition_ordinal"], pa.array(np.array(open_ones))))
        by_ordinal: dict[int, list[dict[str, Any]]] = {}
        for row in rows.to_pylist():
            if row["page"] and row["chain"] == self.cursors[row["partition_ordinal"]].chain:
                by_ordinal.setdefault(row["partition_ordinal"], []).append(row)
        for ordinal, own in by_ordinal.items():
            self.seen[ordinal] = marks_of_rows(own)
            last = max(own, key=lambda row: int(row["page"]))
            if addressable:
                self.overlaps[ordinal] = OverlapCheck(last["token_in"], last["checksum"])

    def _move(self, ordinal: int, cursor: Cursor) -> None:
        before = self.cursors.get(ordinal)
        self.done += int(cursor.complete) - int(before is not None and before.complete)
        self.cursors[ordinal] = cursor


def open_book(openings: Iterable[pa.Table]) -> PartitionBook:
    """The frozen list, from the opening rows."""
    found: dict[int, tuple[str, str]] = {}
    for table in openings:
        for row in table.to_pylist():
            if row["page"] == 0:
                found[row["partition_ordinal"]] = (row["partition_key"], row["slice"])
    if sorted(found) != list(range(len(found))):
        raise LedgerError("the ledger's list of partitions has gaps; open a new generation with force_restart")
    return PartitionBook([found[n][0] for n in range(len(found))], [found[n][1] for n in range(len(found))])


def cursors_of(table: pa.Table) -> dict[int, Cursor]:
    """Where the page rows leave each partition: its highest chain, and there its highest page."""
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    order = np.lexsort((page, chain, ordinal))
    last = order[np.append(np.diff(ordinal[order]) != 0, True)] if len(order) else order
    last = last[page[last] > 0]
    live = dict(zip(ordinal[last].tolist(), chain[last].tolist(), strict=True))
    records = _records_by_partition(ordinal, chain, table["record_count"].to_numpy(), live)
    ends = table.select(["token_out", "complete"]).take(pa.array(last))
    return {
        number: Cursor(chain_number, pages, token, complete, records[number])
        for (number, chain_number), pages, token, complete in zip(
            live.items(), page[last].tolist(), ends["token_out"].to_pylist(), ends["complete"].to_pylist(), strict=True
        )
    }


def check_gapless(table: pa.Table, cursors: Mapping[int, Cursor]) -> None:
    """Every live chain has each page once; raises :class:`ReconciliationError` naming the first that has not."""
    counts: dict[int, int] = {}
    columns = [table[name].to_pylist() for name in ("partition_ordinal", "chain", "page")]
    for ordinal, chain, page in zip(*columns, strict=True):
        if page and chain == cursors[ordinal].chain:
            counts[ordinal] = counts.get(ordinal, 0) + 1
    for ordinal, cursor in cursors.items():
        if counts.get(ordinal) != cursor.pages:
            raise ReconciliationError(
                f"partition {ordinal}, chain {cursor.chain}: {counts.get(ordinal)} page rows up to page {cursor.pages}"
            )


def skipped_pages(table: pa.Table, cursors: Mapping[int, Cursor]) -> int:
    """Pages of live chains that an ignored error left without records."""
    rows = table.filter(pc.is_valid(table["skipped"])).select(["partition_ordinal", "chain"]).to_pylist()
    return sum(row["chain"] == cursors[row["partition_ordinal"]].chain for row in rows)


def fetched_span(table: pa.Table, cursors: Mapping[int, Cursor]) -> tuple[datetime | None, datetime | None]:
    """When the earliest and the latest page of live chains was fetched; None for no pages."""
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    live_chain = np.zeros(int(ordinal.max()) + 1 if len(ordinal) else 0, dtype=np.int64)
    for number, cursor in cursors.items():
        live_chain[number] = cursor.chain
    found = pc.min_max(table["fetched_at"].filter(pa.array((page > 0) & (chain == live_chain[ordinal]))))
    return found["min"].as_py(), found["max"].as_py()


def _records_by_partition(
    ordinal: np.ndarray[Any, Any], chain: np.ndarray[Any, Any], count: np.ndarray[Any, Any], live: Mapping[int, int]
) -> dict[int, int]:
    size = int(ordinal.max()) + 1 if len(ordinal) else 0
    live_chain = np.zeros(size, dtype=np.int64)
    for number, chain_number in live.items():
        live_chain[number] = chain_number
    counts = np.where(chain == live_chain[ordinal], count, 0) if size else count
    sums = np.bincount(ordinal, weights=counts, minlength=size) if size else np.zeros(0)
    return {number: int(sums[number]) for number in live}


__all__ = [
    "CURSOR_COLUMNS",
    "OPENING_COLUMNS",
    "PartitionBook",
    "check_gapless",
    "cursors_of",
    "fetched_span",
    "open_book",
    "skipped_pages",
]
