"""Commits of lake tables, as JSON values for sensors and triggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_rfr.hooks.lake import lake_document, table_asset

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.lake.catalog import Catalog
    from airflow_provider_rfr.lake.commits import CommitLog, CommitRecord

_FIGURES = {"rfr.generation": "generation", "rfr.rows": "rows", "rfr.stream": "stream", "rfr.run-key": "run_key"}


class Position(NamedTuple):
    """A place in a table's history; a table that was dropped and made again has another uuid, and counts from 1."""

    table_uuid: str
    sequence: int


class CommitsReader:
    """A reader of the commits of an ``rfr_lake`` connection's catalog; blocking, so a trigger calls it in a thread.

    :raises ConfigurationError: the connection is of another type, or says too little
    """

    def __init__(self, connection: Connection) -> None:
        self._settings = lake_document(connection).settings()

    def position(self, table: str) -> Position | None:
        """Return the position of the table's newest commit; None where there is no table."""
        log = self._log(table)
        if log is None:
            return None
        records = log.commits()
        return Position(log.table_uuid, records[-1].sequence if records else 0)

    def commits(self, table: str, after: Position | None) -> list[tuple[Position, dict[str, Any] | None]]:
        """Return the commits after the position, oldest first, as JSON values; all of them if it is of a dropped table.

        A compaction has a position and None: it is no event.
        """
        log = self._log(table)
        if log is None:
            return []
        known = after is not None and after.table_uuid == log.table_uuid
        records = log.commits(after.sequence if after is not None and known else None)
        return [
            (Position(log.table_uuid, record.sequence), _values(table, record) if record.changes_rows else None)
            for record in records
        ]

    def newest_after(
        self, tables: Sequence[str], after: datetime, snapshots: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Return each table's newest commit; None if a table has none that counts. A compaction never does.

        :param after: later commits count
        :param snapshots: by table, a snapshot that counts as well, and so do the commits that follow it
        """
        commits = {}
        for table in tables:
            records = self._changes(table)
            counts = any(str(record.snapshot_id) == snapshots.get(table) for record in records)
            if not records or not (counts or _committed_at(records[-1]) > after):
                return None
            commits[table] = _values(table, records[-1])
        return commits

    def newest(self, table: str) -> dict[str, Any] | None:
        """Return the table's newest commit; None if it has none."""
        records = self._changes(table)
        return _values(table, records[-1]) if records else None

    def _changes(self, table: str) -> list[CommitRecord]:
        """Return the commits that are no compactions, oldest first."""
        log = self._log(table)
        return [record for record in log.commits() if record.changes_rows] if log is not None else []

    def _log(self, table: str) -> CommitLog | None:
        from airflow_provider_rfr.lake.commits import CommitLog

        return CommitLog.load(self._catalog, table)

    @cached_property
    def _catalog(self) -> Catalog:
        from airflow_provider_rfr.lake.catalog import open_catalog

        return open_catalog(self._settings)


def snapshots_of(events: Iterable[Any], tables: Sequence[str], lake_conn_id: str) -> dict[str, str]:
    """Return the snapshot by table that asset events name; of several events of a table, the last one's.

    :param events: of refreshes, with the figures of the asset's table in ``extra``, and of ``CommitTrigger``
    """
    by_uri = {table_asset(table, lake_conn_id).uri: table for table in tables}
    snapshots = {}
    for event in sorted(events, key=lambda event: event.timestamp):
        payload = event.extra.get("payload")
        watched = payload if isinstance(payload, Mapping) else {}
        table = watched.get("table", by_uri.get(event.asset.uri))
        snapshot = watched.get("snapshot_id", event.extra.get("snapshot_id"))
        if table in tables and snapshot is not None:
            snapshots[table] = str(snapshot)
    return snapshots


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
