"""What one run of a dispatcher did, and telling of deliveries that were given up: at least once for each."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from airflow_provider_rfr.exceptions import DeliveryError
from airflow_provider_rfr.store.claims import Ending, Result
from airflow_provider_rfr.store.deliveries import Delivery, EndpointKey, mark_notified, unnotified_dead_letters
from airflow_provider_rfr.store.engine import ControlStore


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up; nothing of it is secret.

    :ivar reason: one word: ``http``, ``connection``, ``timeout``, ``template``, ``gone`` ...
    :ivar on_failure: the endpoint's policy
    """

    id: str
    key: EndpointKey
    commit_id: str
    sequence: int
    reason: str
    detail: str
    status: int | None
    attempts: int
    on_failure: str
    died_at: datetime

    @classmethod
    def of(cls, row: Delivery) -> DeadLetter:
        """From the store's row."""
        return cls(
            id=row.id,
            key=row.key,
            commit_id=row.last_commit,
            sequence=row.sequence,
            reason=row.reason or "",
            detail=row.detail or "",
            status=row.status,
            attempts=row.attempts,
            on_failure=row.on_failure or "",
            died_at=datetime.fromtimestamp((row.ended_at or 0) / 1000, timezone.utc),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A delivery that was given up in this go, or that was refused here and never sent.

    :ivar is_refusal: a setting is wrong (a private address, a connection), so that no retry helps until it is corrected
    """

    trigger: str
    host: str
    detail: str
    on_failure: str
    is_refusal: bool = False

    def __str__(self) -> str:
        return f"{self.trigger} ({self.host}/...): {self.detail}"


@dataclass(slots=True)
class DeliverySummary:
    """Counts of one go.

    :ivar delivered: deliveries, not commits: a window of several commits counts once
    :ivar failed: attempts that failed and will be repeated
    :ivar dead: deliveries that were given up
    :ivar unsent: claims that were given back without an attempt
    :ivar lost: attempts whose lease had run out, so that somebody else says how they end
    :ivar skipped: pending deliveries of triggers that are not in the configuration any more
    :ivar pending: deliveries that are left, of the triggers in the configuration
    :ivar next_due: when the next of them can be sent; None for none
    :ivar failures: of what was given up, at most one for each trigger and reason
    :ivar refusals: of what was not sent because a setting is wrong, given up or not
    :ivar untold: what ``on_dead`` raised, and for which delivery; it is called for them again the next time
    """

    delivered: int = 0
    failed: int = 0
    dead: int = 0
    unsent: int = 0
    lost: int = 0
    skipped: int = 0
    pending: int = 0
    next_due: datetime | None = None
    failures: list[Failure] = field(default_factory=list)
    refusals: list[Failure] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    def add(self, results: Iterable[tuple[Result, Failure | None]], lost: set[str]) -> None:
        """Count what was written to the store."""
        for result, failure in results:
            if failure is not None and failure.is_refusal and failure not in self.refusals:
                self.refusals.append(failure)
            if result.claim.delivery_id in lost:
                self.lost += 1
            elif result.ending is Ending.DELIVERED:
                self.delivered += 1
            elif result.ending is Ending.RETRY:
                self.failed += 1
            elif result.ending is Ending.UNSENT:
                self.unsent += 1
            else:
                self.dead += 1
                if failure is not None and failure not in self.failures:
                    self.failures.append(failure)

    @property
    def problems(self) -> list[Failure]:
        """What was given up or refused, each once."""
        return list(dict.fromkeys((*self.failures, *self.refusals)))

    def error(self) -> DeliveryError | None:
        """What to raise where a failed delivery is to fail a task; endpoints with ``onFailure: ignore`` do not."""
        failures = [each for each in self.problems if each.on_failure != "ignore"]
        if not failures:
            return None
        triggers = {each.trigger for each in failures}
        return DeliveryError(f"{len(triggers)} trigger(s) failed: {'; '.join(map(str, failures))}")


log = logging.getLogger(__name__)

Notifier = Callable[[DeadLetter], None]


def notify_dead_letters(store: ControlStore, endpoint_ids: Collection[int], notifier: Notifier) -> list[str]:
    """Call the notifier for each of the dead that it was not called for; returns what it raised, in words.

    It is called again the next time for a delivery for which it raised.
    """
    with store.read() as connection:
        found = unnotified_dead_letters(connection, endpoint_ids)
    failed = []
    for row in found:
        try:
            notifier(DeadLetter.of(row))
        except Exception as error:  # noqa: BLE001 - anybody's code; its texts may tell secrets
            failed.append(f"{_raised(error)} for delivery {row.id}")
            log.error("on_dead raised %s", failed[-1])
            continue
        _note(store, row.id)
    return failed


def _raised(error: Exception) -> str:
    """The kind and the place, without the text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} ({Path(place.filename).name}, line {place.lineno})"


def _note(store: ControlStore, delivery_id: str) -> None:
    store.run(lambda connection: mark_notified(connection, store.now(connection), delivery_id))
