"""A refresh that is killed when half of its pages are served, and its resume."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_rfr.sample_api import SampleApi
from benchmarks.processes import Tree
from benchmarks.product import Product, RunFailed, last_line
from benchmarks.shapes import Shape

_HALF_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill and its resume, as counted by the API and in the table; the product reports only ``overlap_checks``.

    :ivar pages_before_kill: pages that the API served before the kill, those still in flight included
    :ivar pages_refetched: pages that the API served more than once, over both runs
    :ivar overlap_checks: of these, pages that the resume read again on purpose
    :ivar empty_confirmed: of these, pages without records, which are requested twice before they count
    :ivar pages_lost: of these, all others, which are the cost of the kill
    :ivar lost_share: ``pages_lost`` as a share of ``pages_before_kill``
    :ivar resume_wall_s: seconds of the second run
    """

    pages_total: int
    pages_before_kill: int
    pages_refetched: int
    overlap_checks: int
    empty_confirmed: int
    pages_lost: int
    lost_share: float
    resume_wall_s: float
    rows_source: int
    rows_published: int
    missing: int
    duplicates: int

    @property
    def is_wrong(self) -> bool:
        """Tell whether rows are missing or doubled."""
        return bool(self.missing or self.duplicates)


def kill_at_half(shape: Shape, api: SampleApi, folder: Path) -> Kill:
    """Kill a refresh at half of its pages, and resume it."""
    api.reset()
    product = Product(shape, api.base_url, folder)
    with product.start() as tree:
        _wait_for_pages(api, tree, shape.total_pages // 2)
        tree.kill()
    before = api.counts()["pages"]
    with product.start() as tree:
        usage = tree.wait()
    checks = int(last_line(usage).get("overlap_checks", 0))
    refetched, confirmed = api.counts()["refetched"], _empty_confirmed(api)
    ids, source = Counter(product.published_ids()), set(api.truth(shape.collection)["ids"])
    lost = refetched - checks - confirmed
    return Kill(
        pages_total=shape.total_pages,
        pages_before_kill=before,
        pages_refetched=refetched,
        overlap_checks=checks,
        empty_confirmed=confirmed,
        pages_lost=lost,
        lost_share=round(lost / before, 4),
        resume_wall_s=round(usage.wall, 3),
        rows_source=len(source),
        rows_published=ids.total(),
        missing=len(source - ids.keys()),
        duplicates=ids.total() - len(ids),
    )


def _empty_confirmed(api: SampleApi) -> int:
    """Count the pages without records that were served again."""
    empty = Counter(entry["page"] for entry in api.log() if entry["status"] == 200 and not entry["records"])
    return empty.total() - len(empty)


def _wait_for_pages(api: SampleApi, tree: Tree, pages: int) -> None:
    """Wait until so many pages are served.

    :raises RunFailed: the refresh ended before, or did not get so far in time
    """
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
