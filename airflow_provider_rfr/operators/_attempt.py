"""One attempt of a refresh, also where its task is deferred while the driver runs in a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_provider_rfr.exceptions import ConfigurationError, FencedError, PublishRefusedError, RefreshFailedError
from airflow_provider_rfr.hooks.spark import (
    ClusterDriver,
    ClusterManager,
    DriverAddress,
    DriverState,
    RefreshSparkHook,
    open_driver,
    parse_result_line,
)
from airflow_provider_rfr.operators._checkpoints import ProgressMonitor, open_store
from airflow_provider_rfr.operators._outcome import (
    LONGEST_SENTENCE,
    Lineage,
    cause_in,
    failure_of_driver,
    figures_by_table,
    result_of,
    result_of_ledger,
)
from airflow_provider_rfr.operators.connections import task_of
from airflow_provider_rfr.refresh.config import redact
from airflow_provider_rfr.refresh.follow import LedgerFollower
from airflow_provider_rfr.text import one_line
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, End, Ending

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

_KEPT = "what was read is kept for the next attempt"
_MEANINGS = {kind.exit_code: kind for kind in (ConfigurationError, FencedError)}
"""What a driver's exit code says where nothing else can be known; the others say nothing."""


def leave_driver(hook: RefreshSparkHook, yarn_rm_auth: Any) -> bool:
    """Have the submit return early if the refresh can be deferred; return whether it can, and log why not.

    :raises ConfigurationError: it can be deferred, but a setting is missing or contradicts
    """
    why = None
    if hook.cluster_manager is None:
        why = "the driver runs on this worker as a child of the task (deploy mode client), and would end with it"
    elif yarn_rm_auth is not None and hook.cluster_manager is ClusterManager.YARN:
        why = "yarn_rm_auth is an object of this task and can't travel; the triggerer takes Kerberos or no login"
    if why is not None:
        _log.info("Not deferred, although deferrable is set: %s", why)
        return False
    hook.leave_driver()
    return True


def deadline_of(execution_timeout: timedelta | None, began: datetime) -> str | None:
    """Return when a refresh runs out of time; Airflow itself does not time a deferred task.

    :param began: when Airflow called the task's ``execute``, from which it counts in a task that is not deferred
    """
    return None if execution_timeout is None else (began + execution_timeout).isoformat()


class RefreshAttempt:
    """One try, in one process or, where it was deferred, in two.

    :param run_key: as in the refresh's document
    :param replace_where: the part of the targets, as in the refresh's options
    :ivar lineage: with figures once the tables are published
    """

    def __init__(
        self,
        context: Context,
        lineage: Lineage,
        run_key: str,
        replace_where: str | None,
        store: str,
        show: Callable[[str], None],
    ) -> None:
        self.lineage = lineage
        self.run_key = run_key
        self.replace_where = replace_where
        tables = tuple(lineage.tables.values())
        self._ledgers = LedgerFollower(lambda: lineage.lake, tables, replace_where, show=show)
        self.monitor = ProgressMonitor(
            self._ledgers,
            open_store(store, context),
            task_of(context).consumer,
            is_first=getattr(context["ti"], "try_number", 1) == 1,
        )

    def deferred(self, driver: DriverAddress, lake_conn_id: str) -> DeferredRefresh:
        """Return everything that another process needs to continue this try."""
        before, stalled = self.monitor.before
        lineage = self.lineage
        return DeferredRefresh(
            tables=lineage.tables,
            run_key=self.run_key,
            driver=driver,
            lake_conn_id=lake_conn_id,
            replace_where=self.replace_where,
            before=before,
            stalled=stalled,
            source=lineage.source,
            mode=lineage.mode,
        )

    def published(self) -> dict[str, Any] | None:
        """Return the task's result, by the ledgers; None where this run has not published every table."""
        tables = self.lineage.tables
        figures = {table: self._ledgers.published(table, self.run_key) for table in tables.values()}
        if self._ledgers.advance():
            self.monitor.write()
        published = {table: counts for table, counts in figures.items() if counts is not None}
        return self._noted(result_of_ledger(tables, published)) if len(published) == len(figures) else None

    def result(self, result_line: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the task's return value.

        :param result_line: the driver's figures, None where it ran elsewhere and printed none here
        :raises RefreshFailedError: the ledgers do not say that every table was published
        """
        if result_line is not None:
            return self._noted(result_of(result_line))
        result = self.published()
        if result is None:
            tables = ", ".join(self.lineage.tables.values())
            raise RefreshFailedError(
                f"Spark ended well, but the ledger does not say that {tables} was published; see the driver's log"
            )
        return result

    def is_refused(self) -> bool:
        """Tell whether a publish was refused because of the rows that were read, as of the last look."""
        headers = self._ledgers.headers.values()
        return any(header is not None and header.refused_under is not None for header in headers)

    def _noted(self, result: dict[str, Any]) -> dict[str, Any]:
        self.lineage = replace(self.lineage, figures=figures_by_table(result))
        return result


class EndedDriver:
    """The driver of a deferred refresh, asked once more by the resumed task.

    The trigger's event has its state and exit code alone: the cluster's own text may be long, and may hold what only a
    worker's log can mask.

    :param secrets: masked in the cluster's text
    """

    def __init__(self, refresh: DeferredRefresh, ending: Ending, secrets: Iterable[str]) -> None:
        self._ending = ending
        self._secrets = list(secrets)
        self._id = refresh.driver.driver_id
        self._driver: ClusterDriver | None = None
        self.report = ending.driver
        try:
            self._driver = open_driver(refresh.driver)
            report = self._driver.look()
        except Exception as error:  # noqa: BLE001 - the event says enough
            _log.warning("the driver %s can't be asked again (%s)", self._id, type(error).__name__)
        else:
            self.report = ending.driver if report.state is DriverState.GONE else report

    def forget(self, task_state: Any, key: str) -> None:
        """Let the next attempt submit a driver of its own, unless this one may still run.

        The parent would take a driver that ended well for a refresh that is done, try after try.
        """
        if task_state is not None and self._ending.end is not End.LOST:
            task_state.delete(key)

    def tidy(self) -> None:
        """Remove the resources that a driver that ended well leaves in the cluster."""
        try:
            if self._driver is not None and self.report.state is DriverState.SUCCEEDED:
                self._driver.tidy()
        except Exception as error:  # noqa: BLE001 - the tables are published
            _log.warning("what the driver %s leaves behind was not removed (%s)", self._id, type(error).__name__)

    def failure(self, *, refused: bool) -> BaseException:
        """Return the error of a refresh that is not published.

        :param refused: the ledger says that the publish was refused
        """
        if self._ending.end is End.OUT_OF_TIME:
            return AirflowTaskTimeout(f"the refresh ran out of execution_timeout, and its driver was ended; {_KEPT}")
        if self._ending.end is End.LOST:
            return RefreshFailedError(
                f"neither the driver {self._id} nor the ledgers could be read for a quarter of an hour; {_KEPT}"
            )
        lines: list[str] = []
        try:
            lines = [] if self._driver is None else list(self._driver.last_lines())
        except Exception as error:  # noqa: BLE001 - the exit code says enough
            _log.warning("the log of the driver %s can't be read (%s)", self._id, type(error).__name__)
        parsed = map(parse_result_line, reversed(lines))
        failure = failure_of_driver(next((line for line in parsed if line is not None), None))
        if failure is not None:
            return failure
        if refused:
            why = "the publish was refused for what was read; see the driver's log"
            return AirflowFailException(f"{why}; {PublishRefusedError.advice}")
        if self.report.state is DriverState.SUCCEEDED:
            return RefreshFailedError(
                f"the driver {self._id} ended well, but the ledger does not say that everything was published; {_KEPT}"
            )
        return self._by_exit_code(cause_in(lines) or self.report.why)

    def _by_exit_code(self, why: str) -> Exception:
        report = self.report
        state = "not known to the cluster any more" if report.state is DriverState.GONE else report.status
        problem = f"the Spark driver {self._id} is {state}"
        problem += "" if report.exit_code is None else f" with exit code {report.exit_code}"
        problem += f": {one_line(redact(why, self._secrets), LONGEST_SENTENCE)}" if why else ""
        problem += f" (its log: {report.url})" if report.url else ""
        meaning = _MEANINGS.get(report.exit_code or 0)
        if meaning is not None:
            return AirflowFailException(f"{problem}; {meaning.advice}")
        return RefreshFailedError(f"{problem.rstrip('. ')}; {_KEPT}")
