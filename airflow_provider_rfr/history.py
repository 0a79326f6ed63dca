"""History tables of this package (namespace ``rfr_system``).

Processes report rows to the control store, each in one short transaction. One process at a time, under a lease,
appends the waiting rows to the tables. Rows are deduplicated by their keys, in the store and in the tables, so that no
row is lost or doubled if a process dies at any point, or if two processes append the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson

from airflow_provider_rfr.lake.expiry import expire_table
from airflow_provider_rfr.lake.rows import REPORTED_AGAIN, append_rows_once, merge_days
from airflow_provider_rfr.store import deliveries as store_rows
from airflow_provider_rfr.store.leases import LeaseKind, default_holder, take_lease

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from sqlalchemy import Connection

    from airflow_provider_rfr.store.engine import ControlStore
    from airflow_provider_rfr.store.leases import Grant

_log = logging.getLogger(__name__)

_MAX_WAITING: Final = 100
_MAX_AGE: Final = 3_600_000
_KNOWN: Final = (REPORTED_AGAIN + timedelta(days=1)) // timedelta(milliseconds=1)
"""Milliseconds for which keys of appended rows are kept: longer than processes report the same rows again."""
_LONGEST_WAIT: Final = 7 * 86_400_000
_AT_ONCE: Final = 10_000
_LEASE: Final = 300_000
"""Milliseconds of the lease for appending rows. After a failure, nobody tries again before it expires."""
_PATIENCE: Final = 5.0


class History:
    """The history tables of one lake, and the rows that wait for them in the control store.

    :param store: control store in which rows wait
    """

    def __init__(self, store: ControlStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._lake = str(catalog.name)

    def has(self, table: str) -> bool:
        """Return whether a deploy has created the table."""
        return self._catalog.table_exists(table)

    def report(self, table: str, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
        """Queue rows for :meth:`maintain`, except those that were reported in the last days.

        Do nothing if no deploy has created the table.

        :param keys: columns that identify a row, which are the table's identifier columns
        """
        if rows and self.has(table):
            texts = {store_rows.key_text(row[key] for key in keys): orjson.dumps(row).decode() for row in rows}

            def add(connection: Connection) -> None:
                store_rows.add_rows(connection, self._store.now(connection), self._lake, table, texts)

            self._store.run(add, patience=_PATIENCE)

    def maintain(self, *, always: bool = False) -> int:
        """Append the rows that wait, merge files and expire snapshots; return how many rows were appended.

        Do nothing while few rows wait and none for long, or while another process holds the lease.

        :param always: append even if few rows wait
        :raises Exception: the error of the first table that failed, after all other tables were done
        """
        grant = self._store.run(lambda connection: self._take(connection, always), patience=_PATIENCE)
        if grant is None:
            return 0
        # Not in one transaction with the appends: those take seconds, and SQLite has one writer at a time.
        with self._store.read() as connection:
            batches = store_rows.oldest_rows(connection, self._lake, _AT_ONCE)
        appended, failures = 0, []
        for table, rows in batches.items():
            try:
                appended += self._append(table, rows)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        self._store.run(self._drop_old)
        if failures:
            # The lease is not released, so that no other process tries the failing append before it expires.
            raise failures[0]
        self._store.run(grant.release)
        return appended

    def _take(self, connection: Connection, always: bool) -> Grant | None:
        now = self._store.now(connection)
        count, oldest = store_rows.waiting(connection, self._lake)
        is_due = count > _MAX_WAITING or (oldest is not None and oldest <= now - _MAX_AGE)
        if not (is_due or (always and count)):
            return None
        return take_lease(connection, now, LeaseKind.HISTORY, self._lake, default_holder(), _LEASE)

    def _append(self, table: str, rows: Mapping[str, str]) -> int:
        appended = append_rows_once(self._catalog, table, [orjson.loads(row) for row in rows.values()])
        if appended is None:
            _log.warning("there is no table %s any more; %s rows of it are dropped", table, len(rows))
            self._store.run(lambda connection: store_rows.drop_rows(connection, self._lake, table, rows))
            return 0

        def mark(connection: Connection) -> None:
            store_rows.mark_appended(connection, self._store.now(connection), self._lake, table, rows)

        # If this process dies here, the rows are appended again; append_rows_once() then finds them in the table.
        self._store.run(mark)
        if merge_days(self._catalog, table):
            expire_table(self._catalog, table)
        return appended

    def _drop_old(self, connection: Connection) -> None:
        now = self._store.now(connection)
        appended, reported = now - _KNOWN, now - _LONGEST_WAIT
        if lost := store_rows.drop_old(connection, self._lake, appended_before=appended, reported_before=reported):
            _log.warning("%s rows of the history tables could not be appended for a week; they are dropped", lost)
