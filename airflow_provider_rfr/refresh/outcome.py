"""What a publish ends with."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_rfr.exceptions import FencedError
from airflow_provider_rfr.lake.target import Publication, TargetTable
from airflow_provider_rfr.refresh.header import LedgerHeader


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What readers see now.

    :ivar rows: in this generation
    :ivar duplicates_removed: rows dropped because a later one has the same primary key
    :ivar pages_skipped: pages without records, because an error of theirs was ignored
    """

    snapshot_id: int
    rows: int
    duplicates_removed: int = 0
    pages_skipped: int = 0


def outcome_of(publication: Publication, header: LedgerHeader) -> PublishOutcome:
    """The outcome of a publication that is there already."""
    rows = publication.summary.get("rfr.rows")
    removed = publication.summary.get("rfr.duplicates-removed")
    return PublishOutcome(
        publication.snapshot_id,
        int(rows) if rows else header.published_rows or header.records,
        int(removed or 0),
        int(publication.summary.get("rfr.pages-skipped", 0)),
    )


def published_already(target: TargetTable, ledger: str, header: LedgerHeader) -> PublishOutcome | None:
    """What the target shows of this generation, None where it is not published.

    :raises FencedError: a newer attempt published it, or a newer generation
    """
    found = target.published(ledger)
    if found is None or found.generation < header.generation:
        return None
    epoch = int(found.summary.get("rfr.epoch", 0))
    if found.generation > header.generation or epoch > header.epoch:
        raise FencedError(
            f"generation {found.generation}, epoch {epoch} was published meanwhile, so generation"
            f" {header.generation}, epoch {header.epoch} is not",
            epoch=header.epoch,
            newer_epoch=max(epoch, header.epoch + 1),
        )
    return outcome_of(found, header)
