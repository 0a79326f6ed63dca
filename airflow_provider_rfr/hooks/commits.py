"""Commits of lake tables, as JSON values for sensors and triggers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_rfr.hooks.lake import lake_document

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord

_FIGURES = {"rfr.generation": "generation", "rfr.rows": "rows", "rfr.stream": "stream", "rfr.run-key": "run_key"}


class Position(NamedTuple):
    """A place in a table's history; a table that was dropped and made again has another uuid, and counts from 1."""

    table_uuid: str
    sequence: int


class CommitsReader:
    """Reads the commits of the catalog of an ``rfr_lake`` connection; blocking, so a trigger calls it in a thread.

    :raises ConfigurationError: the connection is of another type, or says too little
    """

    def __init__(self, connection: Connection) -> None:
        self._settings = lake_document(connection).settings()

    def position(self, table: str) -> Position | None:
        """The table's newest commit; None where there is no table."""
        log = self._log(table)
        if log is None:
            return None
        records = log.commits()
        return Position(log.table_uuid, records[-1].sequence if records else 0)

    def commits(self, table: str, after: Position | None) -> list[tuple[Position, dict[str, Any]]]:
        """The commits after the position, oldest first, as JSON values; all of them if it is of a dropped table."""
        log = self._log(table)
        if log is None:
            return []
        known = after is not None and after.table_uuid == log.table_uuid
        records = log.commits(after.sequence if after is not None and known else None)
        return [(Position(log.table_uuid, each.sequence), _values(table, each)) for each in records]

    def newest_after(self, tables: Sequence[str], after: datetime) -> dict[str, Any] | None:
        """Each table's newest commit, if every table has one later than ``after``."""
        found = {}
        for table in tables:
            log = self._log(table)
            records = log.commits() if log is not None else []
            if not records or _committed_at(records[-1]) <= after:
                return None
            found[table] = _values(table, records[-1])
        return found

    def _log(self, table: str) -> CommitLog | None:
        from airflow_provider_rfr.lake.catalog import open_catalog
        from airflow_provider_rfr.lake.commits import CommitLog

        return CommitLog.load(open_catalog(self._settings), table)


def _values(table: str, record: CommitRecord) -> dict[str, Any]:
    figures: dict[str, Any] = {name: record.summary[key] for key, name in _FIGURES.items() if key in record.summary}
    figures |= {name: int(figures[name]) for name in ("generation", "rows") if str(figures.get(name, "")).isdecimal()}
    return {
        "table": table,
        "snapshot_id": str(record.snapshot_id),  # Airflow's pages round a number of this size
        "sequence": record.sequence,
        "committed_at": _committed_at(record).isoformat(),
        **figures,
    }


def _committed_at(record: CommitRecord) -> datetime:
    return datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc)
