"""Maintenance after a publish: expire snapshots of the target, and drop ledgers of parts that will not be resumed."""

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
from airflow_provider_rfr.refresh._messages import RefreshFigures
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.header import GENERATION_KEY, LedgerHeader, RefreshState, read_header

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_log = logging.getLogger(__name__)

_LEDGER_SECONDS: Final = 7 * 86400.0
"""Seconds for which a part's ledger is kept after its last commit, or for ``resume_within`` where that is longer."""
_SAMPLE: Final = 20


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

    def is_expired(self, seconds: float, resume_within: float = _LEDGER_SECONDS) -> bool:
        """Tell whether the ledger has been idle for ``seconds``; one not published, also for ``resume_within``."""
        published = self.header is not None and self.header.state is RefreshState.PUBLISHED
        return self.idle > (seconds if published else max(seconds, resume_within))


def maintain(catalog: Catalog, options: RefreshOptions, figures: RefreshFigures) -> None:
    """Expire snapshots and drop ledgers after a publish. A failure is a warning, and the next publish tries again."""
    if options.expire is False:
        return
    target = figures.target
    try:
        table = load_table(catalog, target)
        if table is not None and (options.expire or is_ours(table.properties)):
            done = expire_table(catalog, target)
            figures.snapshots_expired = done.snapshots
            figures.files_deleted, figures.files_undeleted = done.files, done.undeleted
            if done.snapshots:
                _log.info("%s: %s snapshots expired, %s files deleted", target, done.snapshots, done.files)
            for holder, count in done.held.items():
                _log.warning(
                    "%s: %s snapshots that would expire are kept for %s, which has not read them; if it does not exist"
                    " any more: airflow rfr tables expire --release %s %s",
                    *(target, count, holder, holder, target),
                )
        seconds = max(_LEDGER_SECONDS, options.resume_within)
        if options.replace_where is not None:
            drop_part_ledgers(catalog, target, seconds, seconds, sample=_SAMPLE)
    except Exception as error:  # noqa: BLE001 - catalogs and stores fail in their own ways
        # Texts of their errors may name secrets.
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        _log.warning("%s is published, but could not be tidied up: %s", target, reason)
        _log.debug("tidying up failed", exc_info=error)


def part_ledgers(catalog: Catalog, target: str) -> Iterator[PartLedger]:
    """Yield the ledgers of the target's parts; each is loaded from the catalog."""
    return (found for _, found in _loaded(catalog, target, None))


def drop_part_ledgers(
    catalog: Catalog, target: str, seconds: float, resume_within: float = _LEDGER_SECONDS, *, sample: int | None = None
) -> list[PartLedger]:
    """Drop ledgers of parts with their files; return them.

    The next refresh of such a part begins with generation 1.

    :param seconds: since its last commit, for which a ledger is kept
    :param resume_within: likewise, for one whose refresh did not finish
    :param sample: load at most so many, chosen at random
    """
    dropped = []
    for ledger, found in _loaded(catalog, target, sample):
        if found.is_expired(seconds, resume_within):
            ledger.drop()
            _log.info("%s: dropped, nothing was committed to it for %.1f days", found.table, found.idle / 86400)
            dropped.append(found)
    return dropped


def _loaded(catalog: Catalog, target: str, sample: int | None) -> Iterator[tuple[LedgerTable, PartLedger]]:
    parts = LedgerTable.parts(catalog, target)
    for part in parts if sample is None else random.sample(parts, min(sample, len(parts))):
        ledger = LedgerTable.load(catalog, target, part)
        if ledger is not None:
            idle = max(0.0, time.time() - ledger.changed_ms / 1000)
            yield ledger, PartLedger(ledger.name, read_header(ledger.summary(GENERATION_KEY)), idle)
