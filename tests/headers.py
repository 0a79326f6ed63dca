"""Headers of refreshes: that of a table as a test reads it, and one that a test makes up."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.refresh.state import GENERATION_KEY, LedgerHeader, RefreshState, read_header

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def header_of(**fields: Any) -> LedgerHeader:
    """Return the header of a first attempt, which opened its generation at noon."""
    values: dict[str, Any] = {"generation": 1, "epoch": 1, "state": RefreshState.OPEN}
    values |= {"read_fingerprint": "read", "publish_fingerprint": "publish"}
    values |= dict.fromkeys(("opened_at", "committed_at", "began_at"), NOON)
    return LedgerHeader(**{**values, **fields})


def read_status(settings: LakeSettings, target: str, replace_where: str | None = None) -> LedgerHeader | None:
    """Return the newest generation's header; None before the first refresh."""
    table = LedgerTable.load(open_catalog(settings), target, part_of(replace_where))
    return None if table is None else read_header(table.summary(GENERATION_KEY))
