"""The retry policy of refreshes: whether a failed one is tried again, and after how long."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS, RetryDecision, RetryPolicy, airflow_version
from airflow_provider_rfr.exceptions import ConfigurationError, RateLimitedError, RfrError

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONGEST_WAIT = timedelta(days=7)


class RefreshRetryPolicy(RetryPolicy):
    """A retry policy for refresh tasks: waits as long as the API asks, and does not repeat tries that can't succeed.

    * Rate limited: the next try begins when the API allows it, instead of after ``retry_delay``.
    * Configuration, authentication and schema errors, and all others that would recur: no retry.
    * No progress since the last try, that is no page, partition or publish more: no retry. An attempt that was asked to
      stop, or that found another run refreshing the table, does not count.
    * Everything else: as the task's ``retries`` and ``retry_delay`` say.

    Airflow has retry policies since 3.3. A policy can't give more tries than ``retries``, so set that high.

    :param stalled_tries: consecutive tries without progress after which the task fails, 1 by default. The task's first
        try is never counted alone, because it has no last try to be compared with
    :param longest_wait: the task fails if the API asks for more; 7 days by default
    :raises ConfigurationError: ``stalled_tries`` is below 1, or ``longest_wait`` is not positive; or Airflow is older
        than 3.3
    """

    def __init__(self, stalled_tries: int = 1, longest_wait: timedelta = _LONGEST_WAIT) -> None:
        if not AIRFLOW_V_3_3_PLUS:
            problem, remedy = f"Airflow {airflow_version()} has no retry policies", "leave it out, or use Airflow 3.3"
            raise ConfigurationError("retry_policy", problem, remedy)
        if stalled_tries < 1:
            raise ConfigurationError("stalled_tries", f"{stalled_tries!r} is below 1", "write 1 or more")
        if longest_wait <= timedelta(0):
            raise ConfigurationError("longest_wait", f"{longest_wait} is not positive", "write e.g. timedelta(hours=6)")
        self.stalled_tries = stalled_tries
        self.longest_wait = longest_wait

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Return the decision about a failed try. Airflow calls this in the worker."""
        if isinstance(exception, RateLimitedError):
            seconds = exception.retry_after
            if not math.isfinite(seconds) or seconds <= 0:
                return RetryDecision.retry(reason="rate limited; the API did not say for how long")
            if seconds > self.longest_wait.total_seconds():
                return RetryDecision.fail(f"the API asks to wait {seconds:,.0f} s, longer than longest_wait")
            return RetryDecision.retry(timedelta(seconds=math.ceil(seconds)), f"the API asks to wait {seconds:,.0f} s")
        if isinstance(exception, RfrError):
            if not exception.retryable:
                return RetryDecision.fail(f"{type(exception).__name__}: a retry would meet the same")
            if exception.excused:
                return RetryDecision.default()
        task = getattr(context["ti"], "task", None) if context is not None else None
        # Clearing a task sets max_tries to the tries so far plus its retries; the tries before do not count.
        retries = getattr(task, "retries", None)
        tries = try_number - (max(0, max_tries - retries) if isinstance(retries, int) else 0)
        stalled = getattr(task, "stalled_tries", None)
        if tries > 1 and isinstance(stalled, int) and stalled >= self.stalled_tries:
            return RetryDecision.fail(f"no progress since the last try ({stalled} in a row brought no page)")
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return JSON from which :meth:`deserialize` makes the same policy."""
        return {
            "__type": type(self).__name__,
            "stalled_tries": self.stalled_tries,
            "longest_wait": self.longest_wait.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> RefreshRetryPolicy:
        """Return the policy that :meth:`serialize` described."""
        return cls(data["stalled_tries"], timedelta(seconds=data["longest_wait"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefreshRetryPolicy) and other.serialize() == self.serialize()

    def __hash__(self) -> int:
        return hash((self.stalled_tries, self.longest_wait))
