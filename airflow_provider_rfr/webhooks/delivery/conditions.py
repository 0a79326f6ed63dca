"""What attempts tell of the endpoint as a whole: that it is there, fails, wants rest, or is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from airflow_provider_rfr.store.settling import Ending, Result
from airflow_provider_rfr.webhooks.delivery.schedules import rest_after

_FAILURES: Final = frozenset({"connection", "timeout", "tls", "token", "redirect", "configuration", "lookup"})
_BUSY: Final = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class Condition:
    """Of an endpoint.

    :ivar failing: failed attempts in a row
    :ivar rest: milliseconds for which nothing is sent
    :ivar gone: it wants no more calls
    """

    failing: int = 0
    rest: int = 0
    gone: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it can be called now."""
        return not (self.rest or self.gone)

    def after(self, results: Iterable[Result]) -> Condition:
        """The condition after these attempts, in the order in which they ended."""
        failing, rest, gone = self.failing, 0, self.gone
        for result in results:
            found = _failed(result)
            if found is not None:
                failing = failing + 1 if found else 0
                rest = max(result.asked, int(rest_after(failing) * 1000)) if found else 0
            gone = gone or result.reason == "gone"
        return Condition(failing, rest, gone)


def _failed(result: Result) -> bool | None:
    """Whether the endpoint was not able to answer; None where it was not asked."""
    if result.ending is Ending.DELIVERED:
        return False
    if result.reason in _FAILURES:
        return True
    if result.status is None:
        return None
    return result.status >= 500 or result.status in _BUSY
