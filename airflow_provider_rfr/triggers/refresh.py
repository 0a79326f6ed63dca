"""The trigger that follows a refresh whose driver runs in a cluster, while its task holds no slot.

Airflow stores and logs the trigger's arguments and events. So they name connections by their ids, and hold no secret.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from airflow.sdk import TaskInstanceState
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import (
    ClusterDriver,
    ClusterManager,
    ClusterManagerError,
    DriverAddress,
    DriverReport,
    DriverState,
    open_driver,
)
from airflow_provider_rfr.refresh.follow import LedgerFollower, Outages, ProgressPoint
from airflow_provider_rfr.triggers import in_stop_thread, in_thread


@dataclass(frozen=True, slots=True)
class DeferredRefresh:
    """An attempt whose task is deferred while its driver runs in a cluster.

    :ivar tables: table by stream
    :ivar run_key: the attempt's run, as the ledger names it
    :ivar before: progress of each table when the attempt began; None if a ledger could not be read
    :ivar stalled: consecutive attempts before this one that made no progress
    :ivar source: name of the source, for lineage
    :ivar mode: how the publish writes, for lineage
    """

    tables: Mapping[str, str]
    run_key: str
    driver: DriverAddress
    lake_conn_id: str
    replace_where: str | None = None
    before: Mapping[str, ProgressPoint | None] | None = None
    stalled: int = 0
    source: str = ""
    mode: str = ""

    @property
    def stop_command(self) -> str:
        """Return the shell command by which a person ends the driver."""
        driver = self.driver
        if driver.manager == ClusterManager.YARN:
            return f"yarn application -kill {driver.driver_id}"
        namespace, _, pod = driver.driver_id.partition(":")
        return f"kubectl delete pod {pod} --namespace {namespace}"

    def to_json(self) -> dict[str, Any]:
        """Return the refresh as a JSON object, for a trigger's arguments and event."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DeferredRefresh:
        before = content["before"]
        marks = None if before is None else {table: mark and ProgressPoint(**mark) for table, mark in before.items()}
        return cls(**{**content, "driver": DriverAddress(**content["driver"]), "before": marks})


class End(str, Enum):
    """The reason why the triggerer stopped following a refresh. The ledger says how the refresh itself ended."""

    PUBLISHED = "published"
    DRIVER_OVER = "driver over"
    OUT_OF_TIME = "out of time"
    NOT_ENDED = "out of time, driver not ended"
    """The driver could not be ended at the deadline, so it may still run."""
    LOST = "lost"
    """For a quarter of an hour, no ledger has changed, and the driver was not seen at work."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of following a refresh, with the last known report of the driver."""

    end: End
    driver: DriverReport = field(default_factory=lambda: DriverReport(DriverState.UNKNOWN, "UNKNOWN"))

    def to_json(self) -> dict[str, Any]:
        """Return the end for an event, without the cluster's own text for a failure, which may hold anything."""
        driver = self.driver
        return {
            "end": self.end.value,
            "driver": {"state": driver.state.value, "status": driver.status, "exit_code": driver.exit_code},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ending:
        driver = content["driver"]
        report = DriverReport(DriverState(driver["state"]), driver["status"], driver["exit_code"])
        return cls(End(content["end"]), report)


_TIDY_SECONDS = 60.0
"""Seconds that a driver gets to clean up once the ledger says that everything is published."""
_LOST_SECONDS = 900.0
"""Seconds without a sign of driver and ledger after which both count as lost; a publish may be silent for as long."""
_SURE_LOOKS = 2
"""Polls in a row that must find no driver: a manager that fails over may not know one for a moment."""


class _RefreshWatch:
    """A poller of one refresh's driver and ledgers. It gives up only if neither shows a sign of life for long.

    Connections are read again after each failure, since they may have been corrected.

    :param show: takes one line of progress
    """

    def __init__(
        self, refresh: DeferredRefresh, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._refresh = refresh
        self._show = show
        self._clock = clock
        self._outages = Outages(show, shows_ends=True, quotable=(ClusterManagerError,))
        self._ledgers = LedgerFollower(
            lambda: LakeHook(refresh.lake_conn_id).get_lake_settings(),
            tuple(refresh.tables.values()),
            refresh.replace_where,
            show=show,
            outages=self._outages,
        )
        self._driver: ClusterDriver | None = None
        self._driver_state = ""
        self._gone = 0
        self._heard = clock()
        self._published: float | None = None

    def look(self) -> Ending | None:
        """Poll driver and ledgers once; return the end, None while the refresh runs."""
        has_changed = self._ledgers.poll()
        report = self._outages.guard("the driver", "read", lambda: self._open().look())
        if report is None:
            self._driver, report = None, DriverReport(DriverState.UNKNOWN, "UNKNOWN")
        elif report.status != self._driver_state:
            self._driver_state = report.status
            self._show(f"the driver {self._refresh.driver.driver_id} is {report.status}")
        now = self._clock()
        if has_changed or report.state is DriverState.ACTIVE:
            self._heard = now
        self._gone = self._gone + 1 if report.state is DriverState.GONE else 0
        if report.state in (DriverState.SUCCEEDED, DriverState.FAILED) or self._gone >= _SURE_LOOKS:
            return Ending(End.DRIVER_OVER, report)
        if self._ledgers.is_published(self._refresh.run_key):
            self._published = now if self._published is None else self._published
            return Ending(End.PUBLISHED, report) if now - self._published >= _TIDY_SECONDS else None
        return Ending(End.LOST, report) if now - self._heard >= _LOST_SECONDS else None

    def _open(self) -> ClusterDriver:
        if self._driver is None:
            self._driver = open_driver(self._refresh.driver)
        return self._driver


_FIRST_WAIT = 2.0
_ANSWER_SECONDS = 9.0
"""Seconds that Airflow has to tell a task's state. A triggerer of Airflow 3.2 that shuts down gets no answer, and has
10 seconds to log that."""


class RefreshTrigger(BaseTrigger):
    """A trigger that follows a deferred refresh; one event when there is nothing more to wait for.

    It keeps no state besides its arguments, so a triggerer that takes over simply polls again. The driver is ended when
    the task is marked or cleared, and at the deadline; not when a triggerer ends, or loses its triggers to another one.

    :param refresh: :class:`DeferredRefresh` as JSON: ids and names, never a secret
    :param poll_interval: seconds between polls of ledger and driver, 10 by default; 2 at first
    :param deadline: ISO time at which the driver is ended, None (the default) for never; Airflow itself does not time a
        deferred task
    """

    def __init__(self, refresh: Mapping[str, Any], poll_interval: float = 10.0, deadline: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refresh = dict(refresh)
        self.poll_interval = poll_interval
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in ("refresh", "poll_interval", "deadline")}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll in threads until there is an end; yield one event with it."""
        try:
            ending = await self._follow()
        except asyncio.CancelledError:
            if not AIRFLOW_V_3_3_PLUS:
                # Airflow 3.1 and 3.2 cancel a trigger for every reason alike, and do not call on_kill.
                await self.on_kill()
            raise
        yield TriggerEvent({**ending.to_json(), "refresh": self.refresh})

    async def on_kill(self) -> None:
        """End the driver, as a running task would, if the task was marked or cleared.

        Airflow 3.3 also calls it if this triggerer stalled, and another one has taken over its triggers.
        """
        stop = asyncio.ensure_future(self._stop_unless_deferred())
        while not stop.done():
            # Airflow cancels a trigger again each second until it has ended, which would cut the requests off.
            with suppress(asyncio.CancelledError):
                await asyncio.wait({stop})

    async def _follow(self) -> Ending:
        # A task's log may only be written from the event loop, so the watch collects its lines.
        lines: list[str] = []
        watch = _RefreshWatch(DeferredRefresh.from_json(self.refresh), lines.append)
        wait = min(_FIRST_WAIT, self.poll_interval)
        while True:
            look = asyncio.ensure_future(in_thread(watch.look))
            # The deadline does not wait for a poll that hangs, or that waits for a thread behind such polls.
            await asyncio.wait({look}, timeout=max(self._seconds_left(), _FIRST_WAIT))
            for line in lines:
                self.log.info("%s", line)
            lines.clear()
            if look.done() and (ending := look.result()) is not None:
                return ending
            left = self._seconds_left()
            if left <= 0 or not look.done():
                return Ending(End.OUT_OF_TIME if await self._stop("its time is up") else End.NOT_ENDED)
            await asyncio.sleep(min(wait, left))
            wait = min(wait * 1.2, self.poll_interval)

    def _seconds_left(self) -> float:
        if self.deadline is None:
            return math.inf
        return (datetime.fromisoformat(self.deadline) - datetime.now(timezone.utc)).total_seconds()

    async def _stop_unless_deferred(self) -> None:
        refresh = DeferredRefresh.from_json(self.refresh)
        try:
            # Shielded: in Airflow 3.1, the unread answer of a cancelled request would end the triggerer.
            question = asyncio.shield(_is_deferred(self.task_instance))
            is_deferred = await asyncio.wait_for(question, _ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is, the task may still be deferred
            self.log.warning(
                "The driver %s goes on: Airflow did not tell the state of its task (%s). If the task was marked or"
                " cleared, end the driver with: %s",
                refresh.driver.driver_id,
                type(error).__name__,
                refresh.stop_command,
            )
            return
        if is_deferred:
            self.log.info("The driver %s goes on, since its task is still deferred", refresh.driver.driver_id)
        else:
            await self._stop("the task was marked or cleared")

    async def _stop(self, why: str) -> bool:
        """End the driver; return whether the cluster manager took the request."""
        refresh = DeferredRefresh.from_json(self.refresh)
        driver = refresh.driver.driver_id
        self.log.info("Ending the driver %s: %s; what was read is kept", driver, why)
        try:
            await in_stop_thread(lambda: open_driver(refresh.driver).stop())
        except Exception as error:  # noqa: BLE001 - its text may name addresses
            self.log.warning(
                "The driver %s could not be ended (%s). It goes on, and may publish, until another attempt takes over;"
                " end it with: %s",
                driver,
                type(error).__name__,
                refresh.stop_command,
            )
            return False
        return True


async def _is_deferred(task_instance: Any) -> bool:
    """Ask Airflow whether a task instance is deferred; one that was deleted is not."""
    # Imported here, because a DAG's parse does not need them.
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetTaskStates

    dag_id, run_id, task_id = task_instance.dag_id, task_instance.run_id, task_instance.task_id
    index = task_instance.map_index
    request = GetTaskStates(dag_id=dag_id, run_ids=[run_id], task_ids=[task_id], map_index=index)
    # Not from a thread: without an answer, it would keep the process from ending.
    answer: Any = await task_runner.SUPERVISOR_COMMS.asend(request)
    name = task_id if index < 0 else f"{task_id}_{index}"
    return bool(answer.task_states.get(run_id, {}).get(name) == TaskInstanceState.DEFERRED)
