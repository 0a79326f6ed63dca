"""Giving the slot away while a driver runs in a cluster, and what to make of its end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_provider_rfr.exceptions import ConfigurationError, FencedError, PublishRefusedError, RefreshFailedError
from airflow_provider_rfr.hooks.drivers import ClusterDriver, ClusterManager, DriverReport, DriverState
from airflow_provider_rfr.hooks.spark import RefreshSparkHook, last_word
from airflow_provider_rfr.operators import outcome
from airflow_provider_rfr.triggers.refresh import DeferredRefresh, End, Ending, open_driver

log = logging.getLogger(__name__)

_KEPT = "what was read is kept for the next attempt"
_MEANINGS = {kind.exit_code: kind for kind in (ConfigurationError, FencedError)}
"""What a driver's exit code says where nothing else can be known; the others say nothing."""


def prepare(hook: RefreshSparkHook, rm_auth: Any) -> bool:
    """Whether this refresh is deferred once it is submitted; one line says why it is not.

    :param rm_auth: the operator's ``yarn_rm_auth``
    :raises ConfigurationError: it could be, but a setting is missing or says otherwise
    """
    why = None
    if hook.cluster_manager is None:
        why = "the driver runs on this worker as a child of the task (deploy mode client), and would end with it"
    elif rm_auth is not None and hook.cluster_manager is ClusterManager.YARN:
        why = "yarn_rm_auth is an object of this task and can't travel; the triggerer takes Kerberos or no login"
    if why is not None:
        log.info("Not deferred, although deferrable is set: %s", why)
        return False
    hook.leave_driver()
    return True


def deadline_of(execution_timeout: timedelta | None) -> str | None:
    """When a refresh that begins now runs out of time; Airflow itself times no deferred task."""
    return None if execution_timeout is None else (datetime.now(timezone.utc) + execution_timeout).isoformat()


class EndedDriver:
    """The driver of a deferred refresh, asked once more by the task that goes on.

    The event tells how it ended and nothing else: what a cluster says in its own words may be long, and may hold what
    only a worker's log can mask.

    :param secrets: taken out of whatever the cluster says
    """

    def __init__(self, refresh: DeferredRefresh, ending: Ending, secrets: Iterable[str]) -> None:
        self._refresh = refresh
        self._ending = ending
        self._secrets = list(secrets)
        self._driver: ClusterDriver | None = None
        self.report = self._asked()

    @property
    def name(self) -> str:
        """As the cluster calls it."""
        return self._refresh.driver.driver_id

    def forget(self, task_state: Any, key: str) -> None:
        """Let the next attempt submit a driver of its own, unless this one may live on.

        The parent would take a driver that ended well for a refresh that is done, try after try.
        """
        if task_state is not None and self._ending.end is not End.LOST:
            task_state.delete(key)

    def tidy(self) -> None:
        """Remove what it leaves behind, if that can be done."""
        try:
            if self._driver is not None and self.report.state is DriverState.SUCCEEDED:
                self._driver.tidy()
        except Exception as error:  # noqa: BLE001 - the tables are published
            log.warning("what the driver %s leaves behind was not removed (%s)", self.name, type(error).__name__)

    def failure(self, *, refused: bool) -> BaseException:
        """What a refresh that is not published fails with.

        :param refused: the ledger says that the publish was refused
        """
        if self._ending.end is End.OUT_OF_TIME:
            return AirflowTaskTimeout(f"the refresh ran out of execution_timeout, and its driver was ended; {_KEPT}")
        if self._ending.end is End.LOST:
            return RefreshFailedError(
                f"neither the driver {self.name} nor the ledger were heard of for a quarter of an hour; {_KEPT}"
            )
        lines = self._lines()
        word = next((word for line in reversed(lines) if (word := last_word(line)) is not None), None)
        told = outcome.failure_of_driver(word)
        if told is not None:
            return told
        if refused:
            why = "the publish was refused for what was read; see the driver's log"
            return AirflowFailException(f"{why}; {PublishRefusedError.advice}")
        return self._by_exit_code(lines)

    def _by_exit_code(self, lines: Sequence[str]) -> Exception:
        report = self.report
        if report.state is DriverState.SUCCEEDED:
            return RefreshFailedError(
                f"the driver {self.name} ended well, but the ledger does not say that everything was published; {_KEPT}"
            )
        ended = "is not known to the cluster any more" if report.state is DriverState.GONE else f"is {report.told}"
        told = f"the Spark driver {self.name} {ended}"
        told += "" if report.exit_code is None else f" with exit code {report.exit_code}"
        why = outcome.cause_in(lines) or report.why
        told += f": {self._masked(why)}" if why else ""
        told += f" (its log: {report.url})" if report.url else ""
        meaning = _MEANINGS.get(report.exit_code or 0)
        if meaning is not None:
            return AirflowFailException(f"{told}; {meaning.advice}")
        return RefreshFailedError(f"{told.rstrip('. ')}; {_KEPT}")

    def _masked(self, text: str) -> str:
        from airflow_provider_rfr.refresh.errors import redact

        return outcome.one_line(redact(text, self._secrets))

    def _asked(self) -> DriverReport:
        """The driver as it is now; what the event says where it can't be asked."""
        known = self._ending.driver
        try:
            self._driver = open_driver(self._refresh.driver)
            found = self._driver.look()
        except Exception as error:  # noqa: BLE001 - the event is enough to go by
            log.warning("the driver %s can't be asked again (%s)", self.name, type(error).__name__)
            return known
        return known if found.state is DriverState.GONE else found

    def _lines(self) -> list[str]:
        try:
            return [] if self._driver is None else list(self._driver.last_lines())
        except Exception as error:  # noqa: BLE001 - see above
            log.warning("the log of the driver %s can't be read (%s)", self.name, type(error).__name__)
            return []
