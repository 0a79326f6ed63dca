"""Checks that a generation is complete: no pages lost by a wrong path, and no records missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import PublishRefusedError
from airflow_provider_rfr.refresh.pages import REMEDY_FOR_IGNORED_TOKEN, REPEATS_FIRST_PAGE
from airflow_provider_rfr.streams.paged import REMEDY_FOR_ABSENT_FIELD

_log = logging.getLogger(__name__)

_NAMED_PARTITIONS = 10


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A partition for which the API sent fewer records than it counted."""

    ordinal: int
    received: int
    promised: int

    @property
    def missing(self) -> int:
        return self.promised - self.received


def shortfalls(pages: pa.Table) -> list[Shortfall]:
    """Return the partitions that lack records.

    The promise is that of the last page with records: data that is deleted while it is read lowers it, and the empty
    page at the end often says 0. A partition without records has the promise of its first page.

    :param pages: page rows with ``partition_ordinal``, ``chain``, ``page``, ``received`` and ``promised``; those of
        older chains do not count
    """
    if not pc.any(pc.is_valid(pages["promised"])).as_py():
        return []
    ordinal, chain, page = (pages[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    received = pages["received"].to_numpy().astype(np.float64)
    promised = pc.fill_null(pages["promised"], -1).to_numpy()
    numbers, place = np.unique(ordinal, return_inverse=True)
    newest = np.zeros(len(numbers), dtype=chain.dtype)
    np.maximum.at(newest, place, chain)
    is_live = chain == newest[place]
    totals = np.bincount(place, weights=np.nan_to_num(received) * is_live, minlength=len(numbers)).astype(np.int64)
    # The page that decides comes last in its partition: of pages with records the highest, else the lowest.
    rank = np.where(received > 0, page, -page)
    order = np.lexsort((rank, received > 0, is_live & (promised >= 0), place))
    last = order[np.append(np.diff(place[order]) != 0, True)]
    # A page that an older release wrote does not say how many records it received.
    is_known = np.bincount(place, weights=np.isnan(received) & is_live, minlength=len(numbers)) == 0
    promises = np.where(is_live[last] & is_known, promised[last], -1)
    return [
        Shortfall(int(number), int(total), int(promise))
        for number, total, promise in zip(numbers, totals, promises, strict=True)
        if total < promise
    ]


def check_promises(pages: pa.Table, keys: Sequence[str], *, fail: bool) -> int:
    """Warn of missing records and return their number.

    :param keys: of the partitions
    :param fail: refuse them instead
    :raises PublishRefusedError: records are missing, and ``fail`` is set
    """
    short = shortfalls(pages)
    if not short:
        return 0
    named = "; ".join(
        f"partition {keys[item.ordinal]}: {item.received:,} of {item.promised:,} records"
        for item in short[:_NAMED_PARTITIONS]
    )
    more = f"; and {len(short) - _NAMED_PARTITIONS} more partitions" if len(short) > _NAMED_PARTITIONS else ""
    missing = sum(item.missing for item in short)
    problem = f"fewer records came than the API's own count promises: {named}{more}"
    if fail:
        raise PublishRefusedError(
            f"{problem}; nothing was published and readers keep the old table; if the API counts wrongly, set"
            " on_missing_records to warn"
        )
    _log.warning("%s; they are published anyway, because on_missing_records is warn", problem)
    return missing


def check_absent_fields(pages: pa.Table, keys: Sequence[str], page_size: int | None) -> None:
    """Refuse partitions that ended at an absent field if no page of the load has the field: its path is wrong.

    :param pages: live page rows
    :param keys: of the partitions
    :raises PublishRefusedError: such a partition may have more pages
    """
    is_marked = pc.is_valid(pages["absent"])
    may_have_more = pc.greater_equal(pages["received"], page_size or 1)
    unexplained = pages.filter(pc.and_(is_marked, may_have_more))
    if not unexplained.num_rows:
        return
    has_records = pc.and_(pc.greater(pages["received"], 0), pc.is_null(pages["skipped"]))
    has_field = pc.and_(pc.invert(is_marked), pc.or_(pc.is_valid(pages["token_out"]), has_records))
    if pc.any(has_field).as_py():
        return
    first = unexplained.slice(0, 1).to_pylist()[0]
    raise PublishRefusedError(
        f"no partition has a second page, and of {unexplained.num_rows} the first page may not be the last: partition"
        f" {keys[first['partition_ordinal']]}: {first['absent']}; nothing was published and readers keep the old table;"
        f" {REMEDY_FOR_ABSENT_FIELD}"
    )


def check_ignored_tokens(pages: pa.Table, keys: Sequence[str], page_size: int | None) -> None:
    """Refuse partitions that ended at a repeat of page 1 if no partition has a second page: the token is ignored.

    :param pages: live page rows
    :param keys: of the partitions
    :raises PublishRefusedError: such a partition may have more pages
    """
    has_records = pc.greater(pages["record_count"], 0)
    if pc.any(pc.and_(has_records, pc.greater(pages["page"], 1))).as_py():
        return
    repeats = pages.filter(pc.equal(pages["absent"], REPEATS_FIRST_PAGE))
    is_full = pc.and_(pc.equal(pages["page"], 1), pc.greater_equal(pages["received"], page_size or 1))
    is_suspect = pc.and_(is_full, pc.is_in(pages["partition_ordinal"], repeats["partition_ordinal"].combine_chunks()))
    suspects = pages.filter(is_suspect)
    if not suspects.num_rows:
        return
    first = keys[suspects["partition_ordinal"][0].as_py()]
    raise PublishRefusedError(
        f"no partition has a second page of its own, and in {suspects.num_rows} of them {REPEATS_FIRST_PAGE}, first in"
        f" partition {first}: the API seems to ignore which page is asked for; nothing was published and readers keep"
        f" the old table; {REMEDY_FOR_IGNORED_TOKEN}; if one page is all there is, set paginator.page_size to more than"
        " its records, or declare a total"
    )
