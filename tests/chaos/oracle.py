"""What a published table has to hold, told from the source's own history; nothing the refresh says is believed.

The source changes only while no process of an earlier attempt lives. Its *versions* are the states it had since the
refresh was opened. Then:

* **rows lost**: a partition that is read by page numbers has to be one version as a whole; rows of the nearest version
  that are missing are lost. A partition that is read by cursors holds its place while records before it go, so there
  rows are lost whose id is in every version and not in the table.
* **rows doubled**: one for each time that an id comes again.
* **rows foreign**: rows that the nearest version (by cursors: any version) does not have, whose content is not what
  the API gives for that id and revision, or that the API's diary does not name in this refresh.
* **chains broken**: partitions of the ledger whose live chain has a page twice, or none, or is open, or whose page is
  none that the API gave; and ledgers whose live chains together are not the table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.sample_api.dataset import Dataset, canonical
from tests.chaos.plan import CHILDREN, COLLECTIONS, PARENTS, SIZES

Pair = tuple[int, int]


@dataclass(slots=True)
class Findings:
    """All zeros is what is guaranteed."""

    rows_lost: int = 0
    rows_doubled: int = 0
    rows_foreign: int = 0
    chains_broken: int = 0

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))


class Source:
    """The source as the API has it, version by version.

    :ivar changes: all so far, for an API that has to start again
    """

    def __init__(self, stream: str, revision: int) -> None:
        self.stream = stream
        self._dataset = Dataset(SIZES)
        self.changes: list[dict[str, Any]] = []
        self._versions: list[dict[str, set[Pair]]] = []
        for _ in range(revision):
            self._apply({"kind": "edit", "collection": COLLECTIONS[stream]})
        self._note()

    def change(self, change: dict[str, Any]) -> None:
        self._apply(change)
        self._note()

    def _apply(self, change: dict[str, Any]) -> None:
        self.changes.append(change)
        if change["kind"] == "shrink":
            self._dataset.shrink(change["collection"], change["records"])
        else:
            self._dataset.edit(change["collection"])

    def _note(self) -> None:
        family = self._dataset.family(COLLECTIONS[self.stream])
        self._versions.append({one.path: {(number, one.revision) for number in one.numbers} for one in family})

    def partition_of(self, number: int) -> str:
        if self.stream == CHILDREN:
            return f"/customers/{(number - 1) % SIZES.customers + 1}/orders"
        if self.stream == PARENTS:
            return COLLECTIONS[PARENTS]
        return f"/partitions/{(number - 1) // SIZES.items_per_partition}/items"

    def own(self, pages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the pages of the diary that are of this stream."""
        return [page for page in pages if page["path"] in self._versions[0]]

    def pages(self, page_size: int) -> int:
        """Pages of the newest version."""
        return sum(-(-len(pairs) // page_size) for pairs in self._versions[-1].values())

    def judge(self, rows: pa.Table, served: set[Pair]) -> Findings:
        """Compare one whole table with the source.

        :param served: what the diary names
        """
        findings = Findings()
        parts: dict[str, Counter[Pair]] = {path: Counter() for path in self._versions[0]}
        for row in rows.to_pylist():
            pair = (row["id"], row["revision"])
            content = self._dataset.family(COLLECTIONS[self.stream])[0].make(*pair)
            place = parts.get(self.partition_of(row["id"]))
            if place is None or pair not in served or canonical(row) != canonical(content):
                findings.rows_foreign += 1
            else:
                place[pair] += 1
        for path, present in parts.items():
            ids = Counter(number for number, _ in present.elements())
            findings.rows_doubled += ids.total() - len(ids)
            lost, foreign = self._compared(path, set(present))
            findings.rows_lost += lost
            findings.rows_foreign += foreign
        return findings

    def _compared(self, path: str, present: set[Pair]) -> tuple[int, int]:
        versions = [version[path] for version in self._versions]
        if self.stream == CHILDREN:
            always = set.intersection(*({number for number, _ in version} for version in versions))
            ever = set.union(*versions)
            return len(always - {number for number, _ in present & ever}), len(present - ever)
        nearest = min(versions, key=lambda version: len(version ^ present))
        return len(nearest - present), len(present - nearest)


def diary_of(path: Path) -> list[dict[str, Any]]:
    """The pages that the API gave, in their order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def served_pairs(pages: Iterable[dict[str, Any]]) -> set[Pair]:
    return {(number, revision) for page in pages for number, revision in page["records"]}


def refetched(pages: Sequence[dict[str, Any]]) -> int:
    """Pages that were given again, whatever for."""
    return len(pages) - len({page["page"] for page in pages})


def broken_chains(ledger: pa.Table, table: pa.Table, pages: Iterable[dict[str, Any]]) -> int:
    """How many partitions' live chains are not whole, plus one where they are not the table together."""
    served = {(page["path"], tuple(map(tuple, page["records"]))) for page in pages}
    partitions: dict[int, list[dict[str, Any]]] = {}
    for row in ledger.to_pylist():
        partitions.setdefault(row["partition_ordinal"], []).append(row)
    broken, rows = 0, Counter[Pair]()
    for every in partitions.values():
        newest = max(row["chain"] for row in every)
        chain = sorted((row for row in every if row["chain"] == newest and row["page"]), key=lambda row: row["page"])
        contents = [_contents(row) for row in chain]
        rows.update(pair for content in contents for pair in content)
        numbers = [row["page"] for row in chain] == list(range(1, len(chain) + 1))
        ends = [row["complete"] for row in chain] == [False] * (len(chain) - 1) + [True]
        known = all((_path(row), content) in served for row, content in zip(chain, contents, strict=True))
        broken += not (numbers and ends and known)
    published = Counter(zip(table["id"].to_pylist(), table["revision"].to_pylist(), strict=True))
    return broken + (rows != published)


def _contents(row: dict[str, Any]) -> tuple[Pair, ...]:
    records = [json.loads(line) for line in (row["records"] or "").splitlines()]
    return tuple((record["id"], record["revision"]) for record in records)


def _path(row: dict[str, Any]) -> str:
    return str(row["request"]).partition(" ")[2].partition("?")[0]
