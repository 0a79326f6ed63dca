"""SIGKILL to the whole tree at half of the pages, then the same command again: what was read twice."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_rfr.sample_api import SampleApi
from benchmarks.processes import Tree
from benchmarks.product import Product, RunFailed, last_line
from benchmarks.shapes import Shape

_HALF_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class Crash:
    """Counted by the API and in the published table; only ``overlap_checks`` is the product's own word.

    :ivar pages_before_kill: served by the API before the kill, the ones still in flight included
    :ivar pages_refetched: served again afterwards
    :ivar overlap_checks: of these, pages that the resume read again on purpose
    :ivar pages_lost: of these, all others: what the kill cost
    :ivar lost_share: ``pages_lost`` of ``pages_before_kill``
    :ivar resume_wall_s: seconds of the second run
    """

    pages_total: int
    pages_before_kill: int
    pages_refetched: int
    overlap_checks: int
    pages_lost: int
    refetched_share: float
    lost_share: float
    resume_wall_s: float
    rows_source: int
    rows_published: int
    missing: int
    duplicates: int

    def figures(self) -> dict[str, float]:
        return asdict(self)


def kill_at_half(shape: Shape, api: SampleApi, concurrency: int, folder: Path) -> Crash:
    """One crash and its resume."""
    api.reset()
    product = Product(shape, api.base_url, folder, concurrency)
    with product.start() as tree:
        _wait_for_pages(api, tree, shape.total_pages // 2)
        tree.kill()
    before = api.counts()["pages"]
    with product.start() as tree:
        usage = tree.wait()
    checks = int(last_line(usage).get("overlap_checks", 0))
    refetched = api.counts()["refetched"]
    ids = Counter(product.published_ids())
    source = set(api.truth("/partitions/items")["ids"])
    return Crash(
        pages_total=shape.total_pages,
        pages_before_kill=before,
        pages_refetched=refetched,
        overlap_checks=checks,
        pages_lost=refetched - checks,
        refetched_share=round(refetched / before, 4),
        lost_share=round((refetched - checks) / before, 4),
        resume_wall_s=round(usage.wall, 3),
        rows_source=len(source),
        rows_published=ids.total(),
        missing=len(source - ids.keys()),
        duplicates=ids.total() - len(ids),
    )


def _wait_for_pages(api: SampleApi, tree: Tree, pages: int) -> None:
    """:raises RunFailed: the refresh ended before, or did not get so far in time"""
    until = time.monotonic() + _HALF_WITHIN
    while time.monotonic() < until:
        try:
            api.wait_for_pages(pages, timeout=0.5)
            return
        except TimeoutError:
            if not tree.running():
                last_line(tree.wait())
                raise RunFailed("the refresh ended before half of its pages were read") from None
    raise RunFailed(f"half of the pages were not read within {_HALF_WITHIN:g} s")
