"""Collecting what deploys put aside: only what is ours, is nobody's table now, and whose time has come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.builtins.execution.records import read_recorded
from airflow_provider_rfr.builtins.execution.values import Collected
from airflow_provider_rfr.builtins.sinks import needed_physicals
from airflow_provider_rfr.builtins.state import ASIDE, MARKER, SHADOW
from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.migrations import MigratedTable, purge_table
from airflow_provider_rfr.store import garbage
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.garbage import Garbage
from airflow_provider_rfr.store.journal import unfinished_ids
from airflow_provider_rfr.store.lease import SECONDS, Lease, acquire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_PUT_ASIDE: Final = re.compile(rf"(?:{ASIDE}|{SHADOW})[0-9a-f]{{8}}$")


def gc(
    *,
    project: str,
    catalog: LakeSettings | Catalog,
    store: ControlStore,
    patience: float = 60.0,
    lease_seconds: float = SECONDS,
) -> Collected:
    """Delete what waits and may go, with its files. What can't be deleted stays in the queue, and is tried again.

    :raises DeployBusyError: somebody is deploying, and goes on doing so
    """
    opened = open_catalog(catalog) if isinstance(catalog, LakeSettings) else catalog
    with acquire(store, project, seconds=lease_seconds, patience=patience) as lease:
        return _Collection(opened, store, project, lease).run()


class _Collection:
    def __init__(self, catalog: Catalog, store: ControlStore, project: str, lease: Lease) -> None:
        self._catalog = catalog
        self._store = store
        self._project = project
        self._lease = lease
        with store.read() as connection:
            self._now = store.now(connection)
            self._queue = garbage.queued(connection, project)
            self._current = {each.physical.casefold() for each in read_recorded(connection, project).objects}
            self._open = unfinished_ids(connection, project)
            self._needed = needed_physicals(connection)

    def run(self) -> Collected:
        """One after the other; one that can't be deleted does not keep the others."""
        deleted: list[str] = []
        kept: dict[str, str] = {}
        failed: dict[str, str] = {}
        for each in self._queue:
            reason = self._kept(each)
            if reason is not None:
                kept[each.physical] = reason
                continue
            try:
                self._delete(each, deleted, kept)
            except RfrError:
                raise
            except Exception as error:  # noqa: BLE001 - each store refuses in its own way; it is tried again
                failed[each.physical] = type(error).__name__
                self._failed(each, error)
        return Collected(tuple(deleted), kept, failed)

    def _kept(self, row: Garbage) -> str | None:
        """Why it has to wait, without a look at it."""
        if row.not_before > self._now:
            return "its time has not come"
        if row.deploy_id in self._open:
            return "its deploy did not finish, and may go on with it"
        if row.physical.casefold() in self._current:
            return "it is in use"
        if not _PUT_ASIDE.search(row.physical.casefold()):
            return "its name does not say that it was put aside"
        return None

    def _delete(self, row: Garbage, deleted: list[str], kept: dict[str, str]) -> None:
        table = MigratedTable.load(self._catalog, row.physical)
        if table is not None:
            if table.properties.get(MARKER) != row.uuid:
                kept[row.physical] = "it does not carry our marker"
                return
            if table.entry.uuid in self._needed:
                kept[row.physical] = "a sink still reads from it"
                return
            self._lease.ensure()
            purge_table(self._catalog, row.physical)
            deleted.append(row.physical)
        self._lease.write(lambda connection, now: garbage.retract(connection, self._project, row.physical))

    def _failed(self, row: Garbage, error: Exception) -> None:
        told = type(error).__name__
        self._lease.write(lambda connection, now: garbage.failed(connection, self._project, row.physical, told))


def waiting(store: ControlStore, project: str) -> Mapping[str, Garbage]:
    """What is in the queue, by name."""
    with store.read() as connection:
        return {each.physical: each for each in garbage.queued(connection, project)}
