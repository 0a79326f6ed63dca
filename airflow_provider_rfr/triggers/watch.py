"""One look after another at a refresh in a cluster: at its ledgers and at its driver. For a thread: it blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_rfr.hooks.cluster_driver import (
    OVER,
    ClusterDriver,
    ClusterManagerError,
    DriverReport,
    DriverState,
)
from airflow_provider_rfr.hooks.drivers import open_driver
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.refresh.progress import ProgressBook
from airflow_provider_rfr.triggers.deferred import DeferredRefresh, End, Ending

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.status import RefreshStatus

T = TypeVar("T")

TIDY_SECONDS = 60.0
"""What a driver gets for its cleaning up once the ledger says that everything is published."""
LOST_SECONDS = 900.0
"""As long as a publish may be silent."""
SURE_LOOKS = 2
"""A manager that fails over may not know a driver for a moment."""


class RefreshWatch:
    """Follows one refresh. Losing sight of either ledger or driver ends nothing; losing both for long does.

    Connections are read again after each failure: somebody may have corrected them.

    :param tell: takes one line for people
    """

    def __init__(
        self, refresh: DeferredRefresh, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._refresh = refresh
        self._tell = tell
        self._clock = clock
        self._book = ProgressBook(tell)
        self._known: dict[str, RefreshStatus | None] = {}
        self._driver: ClusterDriver | None = None
        self._catalog: Any = None
        self._told = ""
        self._complained: set[str] = set()
        self._gone = 0
        self._heard = clock()
        self._published: float | None = None

    def look(self) -> Ending | None:
        """Look at everything once; None while the refresh goes on."""
        for table in self._refresh.tables.values():
            self._look_at_ledger(table)
        report = self._look_at_driver()
        now = self._clock()
        if report.state is DriverState.ACTIVE:
            self._heard = now
        if self._is_over(report):
            return Ending(End.DRIVER_OVER, report)
        if self._is_published():
            self._published = now if self._published is None else self._published
            return Ending(End.PUBLISHED, report) if now - self._published >= TIDY_SECONDS else None
        return Ending(End.LOST, report) if now - self._heard >= LOST_SECONDS else None

    def stop(self) -> None:
        """End the driver.

        :raises Exception: that could not be done
        """
        self._open().stop()

    def _look_at_ledger(self, table: str) -> None:
        seen = self._guarded(f"ledger of {table}", lambda: (self._status(table),))
        if seen is None:
            self._catalog = None
            return
        if table not in self._known:
            self._book.begin(table, seen[0])
        elif self._book.take(table, seen[0]):
            self._heard = self._clock()
        self._known[table] = seen[0]

    def _look_at_driver(self) -> DriverReport:
        report = self._guarded("driver", lambda: self._open().look())
        if report is None:
            self._driver = None
            return DriverReport(DriverState.UNKNOWN, "UNKNOWN")
        if report.told != self._told:
            self._told = report.told
            self._tell(f"the driver {self._refresh.driver.driver_id} is {report.told}")
        return report

    def _is_over(self, report: DriverReport) -> bool:
        self._gone = self._gone + 1 if report.state is DriverState.GONE else 0
        return report.state in OVER and (report.state is not DriverState.GONE or self._gone >= SURE_LOOKS)

    def _is_published(self) -> bool:
        states = [self._known.get(table) for table in self._refresh.tables.values()]
        return all(
            state is not None and state.snapshot_id is not None and state.run_key == self._refresh.run_key
            for state in states
        )

    def _open(self) -> ClusterDriver:
        if self._driver is None:
            self._driver = open_driver(self._refresh.driver)
        return self._driver

    def _status(self, table: str) -> RefreshStatus | None:
        from airflow_provider_rfr.lake.catalog import open_catalog
        from airflow_provider_rfr.refresh.status import status_in

        if self._catalog is None:
            self._catalog = open_catalog(LakeHook(self._refresh.lake_conn_id).get_lake_settings())
        return status_in(self._catalog, table, self._refresh.replace_where)

    def _guarded(self, what: str, look: Callable[[], T]) -> T | None:
        """Errors are named by their kind alone: a catalog's texts may hold addresses with credentials."""
        try:
            found = look()
        except Exception as error:  # noqa: BLE001 - looking is never worth a refresh
            if what not in self._complained:
                self._complained.add(what)
                why = str(error) if isinstance(error, ClusterManagerError) else type(error).__name__
                self._tell(f"the {what} can't be looked at ({why}); the refresh goes on")
            return None
        if what in self._complained:
            self._complained.remove(what)
            self._tell(f"the {what} can be looked at again")
        return found
