"""What the target's commit says of itself, in its snapshot summary."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timezone

from airflow_provider_rfr.refresh.header import PREFIX, LedgerHeader


def commit_summary(
    ledger: str, header: LedgerHeader, *, stream: str, mode: str, rows: int, removed: int, skipped: int
) -> Mapping[str, str]:
    """Properties of the commit that publishes ``header``'s generation; the delivery id is the same for every try.

    :param removed: rows dropped because a later one has the same primary key
    :param skipped: pages without records, because an error of theirs was ignored
    """
    values = {
        "ledger": ledger,
        "generation": header.generation,
        "epoch": header.epoch,
        "attempts": header.attempts,
        "stream": stream,
        "mode": mode,
        "rows": rows,
        "duplicates-removed": removed,
        "pages": header.pages,
        "pages-skipped": skipped,
        "partitions": header.partitions,
        "opened-at": header.opened_at.isoformat(),
        "published-at": datetime.now(timezone.utc).isoformat(),
        "delivery-id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ledger}:{header.generation}")),
        **({"run-key": header.run_key} if header.run_key else {}),
    }
    return {PREFIX + key: str(value) for key, value in values.items()}
