"""What is tidied up after a publish: old snapshots of the target, and ledgers of parts that nobody resumes."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.expiry import expire_table, is_ours
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.header import GENERATION_KEY, LedgerHeader, RefreshState, read_header
from airflow_provider_rfr.refresh.messages import RefreshFigures

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_LEDGER_SECONDS: Final = 7 * 86400.0
"""For how long a part's ledger is kept after its last commit, or for ``resume_within`` where that is longer."""
_LOOKS: Final = 20


@dataclass(frozen=True, slots=True)
class PartLedger:
    """The ledger of a part of a target.

    :ivar table: the ledger's own name
    :ivar header: of its newest generation; None where none was ever opened
    :ivar idle: seconds since its last commit
    """

    table: str
    header: LedgerHeader | None
    idle: float

    def may_go(self, seconds: float, resume_within: float = _LEDGER_SECONDS) -> bool:
        """Whether it has been idle for so long, and an unfinished one for so long that nobody resumes it."""
        published = self.header is not None and self.header.state is RefreshState.PUBLISHED
        return self.idle > (seconds if published else max(seconds, resume_within))


def maintain(catalog: Catalog, options: RefreshOptions, figures: RefreshFigures) -> None:
    """After a publish. It is done whatever comes: what fails here is a warning, and the next publish tries again."""
    if options.expire is False:
        return
    try:
        _expire(catalog, options, figures)
        seconds = max(_LEDGER_SECONDS, options.resume_within)
        if options.replace_where is not None:
            drop_part_ledgers(catalog, figures.target, seconds, seconds, looks=_LOOKS)
    except Exception as error:
        # Catalogs and stores fail in ways of their own, and their texts may name secrets.
        told = str(error) if isinstance(error, RfrError) else type(error).__name__
        log.warning("%s is published, but could not be tidied up: %s", figures.target, told)
        log.debug("tidying up failed", exc_info=error)


def _expire(catalog: Catalog, options: RefreshOptions, figures: RefreshFigures) -> None:
    table = load_table(catalog, figures.target)
    if table is None or not (options.expire or is_ours(table.properties)):
        return
    done = expire_table(catalog, figures.target)
    figures.snapshots_expired, figures.files_deleted, figures.files_undeleted = (
        done.snapshots,
        done.files,
        done.undeleted,
    )
    if done.snapshots:
        log.info("%s: %s snapshots expired, %s files deleted", figures.target, done.snapshots, done.files)
    for holder, count in done.held.items():
        log.warning(
            "%s: %s snapshots past their age are kept for %s, which has not read them;"
            " if it is gone for good: airflow rfr tables expire --release %s %s",
            figures.target,
            count,
            holder,
            holder,
            figures.target,
        )


def part_ledgers(catalog: Catalog, target: str, looks: int | None = None) -> Iterator[PartLedger]:
    """The ledgers of the target's parts; each one is loaded, so it takes its time.

    :param looks: at most so many of them, chosen by chance
    """
    for _, found in _loaded(catalog, target, looks):
        yield found


def drop_part_ledgers(
    catalog: Catalog,
    target: str,
    seconds: float,
    resume_within: float = _LEDGER_SECONDS,
    *,
    looks: int | None = None,
) -> list[PartLedger]:
    """Drop ledgers of parts with their files; returns them.

    A refresh of a part whose ledger is gone begins anew, with generation 1.

    :param seconds: since its last commit, for which a ledger is kept
    :param resume_within: likewise, for one whose refresh did not finish
    :param looks: as for :func:`part_ledgers`
    """
    dropped = []
    for ledger, found in _loaded(catalog, target, looks):
        if found.may_go(seconds, resume_within):
            ledger.drop()
            log.info("%s: dropped, nothing was committed to it for %.1f days", found.table, found.idle / 86400)
            dropped.append(found)
    return dropped


def _loaded(catalog: Catalog, target: str, looks: int | None) -> Iterator[tuple[LedgerTable, PartLedger]]:
    parts = LedgerTable.parts(catalog, target)
    for part in parts if looks is None else random.sample(parts, min(looks, len(parts))):
        ledger = LedgerTable.load(catalog, target, part)
        if ledger is not None:
            idle = max(0.0, time.time() - ledger.changed_ms / 1000)
            yield ledger, PartLedger(ledger.name, read_header(ledger.summary(GENERATION_KEY)), idle)
