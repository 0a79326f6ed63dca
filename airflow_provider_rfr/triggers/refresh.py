"""The trigger that follows a refresh whose driver runs in a cluster, while its task holds no slot."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_rfr.triggers.deferred import DeferredRefresh, End, Ending
from airflow_provider_rfr.triggers.watch import RefreshWatch

T = TypeVar("T")

FIRST_WAIT = 2.0
# Threads of our own: a catalog that hangs must not take those of other triggers.
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="rfr-trigger")


class RefreshTrigger(BaseTrigger):
    """One event when there is nothing more to wait for; the task that goes on asks the ledger what became of it.

    It remembers nothing but its arguments, so a triggerer that starts anew simply looks again. The driver is ended when
    somebody marks or clears the task, and when the time is up; not when a triggerer ends.

    :param refresh: :class:`DeferredRefresh` as JSON: ids and names, never a secret
    :param poll_interval: seconds between looks at ledger and driver; 2 at first
    :param deadline: moment at which the driver is ended; Airflow itself does not time a deferred task
    """

    def __init__(self, refresh: Mapping[str, Any], poll_interval: float = 10.0, deadline: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refresh = dict(refresh)
        self.poll_interval = poll_interval
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "refresh": self.refresh,
            "poll_interval": self.poll_interval,
            "deadline": self.deadline,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is an end. Every look is in a thread."""
        watch, lines = self._watch()
        wait = min(FIRST_WAIT, self.poll_interval)
        while True:
            ending, left = await _in_thread(watch.look), self._seconds_left()
            self._say(lines)
            if ending is None and left <= 0:
                await self._stop(watch, lines, "its time is up")
                ending = Ending(End.OUT_OF_TIME)
            if ending is not None:
                yield TriggerEvent({**ending.to_json(), "refresh": self.refresh})
                return
            await asyncio.sleep(min(wait, left))
            wait = min(wait * 1.2, self.poll_interval)

    async def on_kill(self) -> None:
        """Somebody marked or cleared the task: end the driver, as a task that runs would."""
        watch, lines = self._watch()
        await self._stop(watch, lines, "the task was marked or cleared")

    async def _stop(self, watch: RefreshWatch, lines: list[str], why: str) -> None:
        driver = self.refresh["driver"]["driver_id"]
        self.log.info("Ending the driver %s: %s; what was read is kept", driver, why)
        try:
            await _in_thread(watch.stop)
        except Exception as error:  # noqa: BLE001 - its text may name addresses
            self.log.warning("It could not be ended (%s); the next attempt fences it", type(error).__name__)
        self._say(lines)

    def _watch(self) -> tuple[RefreshWatch, list[str]]:
        """A watch, and the lines that it has for people: a task's log is written from the event loop."""
        lines: list[str] = []
        return RefreshWatch(DeferredRefresh.from_json(self.refresh), lines.append), lines

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self.log.info("%s", line)
        lines.clear()

    def _seconds_left(self) -> float:
        if self.deadline is None:
            return math.inf
        return (datetime.fromisoformat(self.deadline) - datetime.now(timezone.utc)).total_seconds()


async def _in_thread(function: Callable[[], T]) -> T:
    """Run something that blocks, with the context of this task: Airflow's log goes by it."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, context.run, function)
