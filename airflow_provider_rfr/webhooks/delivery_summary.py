"""Summary of one run of a dispatcher, and notifications of dead letters: at least one for each."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from airflow_provider_rfr.exceptions import DeliveryError
from airflow_provider_rfr.store.claims import AttemptOutcome, Result
from airflow_provider_rfr.store.deliveries import EndpointKey, mark_notified, unnotified_dead_letters
from airflow_provider_rfr.store.engine import ControlStore, instant

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Failure:
    """A delivery that was given up in this run, or that was refused here and never sent.

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
    """Counts of one run.

    :ivar delivered: deliveries, not commits: several commits merged into one delivery count once
    :ivar failed: attempts that failed and will be repeated
    :ivar dead: deliveries that were given up
    :ivar unsent: claims that were given back without an attempt
    :ivar lost: attempts whose lease had run out, so that another dispatcher decides how they end
    :ivar skipped: pending deliveries of triggers that were removed from the configuration
    :ivar pending: deliveries that are left, of the triggers in the configuration
    :ivar next_due: when the next of them can be sent; None for none
    :ivar failures: of deliveries that were given up, at most one for each trigger and reason
    :ivar refusals: of deliveries that were not sent because a setting is wrong, given up or not
    :ivar notification_errors: errors of ``on_dead`` with their deliveries; the next run calls it for them again
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
    notification_errors: list[str] = field(default_factory=list)

    def add(self, results: Iterable[tuple[Result, Failure | None]], lost: set[str]) -> None:
        """Count the results that were written to the store; ``lost``: ids of deliveries whose lease had run out."""
        for result, failure in results:
            if failure is not None and failure.is_refusal and failure not in self.refusals:
                self.refusals.append(failure)
            if result.claim.delivery_id in lost:
                self.lost += 1
            elif result.ending is AttemptOutcome.DELIVERED:
                self.delivered += 1
            elif result.ending is AttemptOutcome.RETRY:
                self.failed += 1
            elif result.ending is AttemptOutcome.UNSENT:
                self.unsent += 1
            else:
                self.dead += 1
                if failure is not None and failure not in self.failures:
                    self.failures.append(failure)

    @property
    def problems(self) -> list[Failure]:
        """Return the failures that were given up or refused, each once."""
        return list(dict.fromkeys((*self.failures, *self.refusals)))

    def error(self) -> DeliveryError | None:
        """Return the error that fails a task after failed deliveries; those with ``onFailure: ignore`` don't count."""
        failures = [problem for problem in self.problems if problem.on_failure != "ignore"]
        if not failures:
            return None
        triggers = {failure.trigger for failure in failures}
        return DeliveryError(f"{len(triggers)} trigger(s) failed: {'; '.join(map(str, failures))}")


Notifier = Callable[[DeadLetter], None]


def notify_dead_letters(store: ControlStore, endpoint_ids: Collection[int], notifier: Notifier) -> list[str]:
    """Call the notifier for each dead letter until it succeeds once; return its errors, without the texts."""
    with store.read() as connection:
        rows = unnotified_dead_letters(connection, endpoint_ids)
    failed = []
    for row in rows:
        letter = DeadLetter(
            id=row.id,
            key=row.key,
            commit_id=row.last_commit,
            sequence=row.sequence,
            reason=row.reason or "",
            detail=row.detail or "",
            status=row.status,
            attempts=row.attempts,
            on_failure=row.on_failure or "",
            died_at=instant(row.ended_at or 0),
        )
        try:
            notifier(letter)
        except Exception as error:  # noqa: BLE001 - a user's code; its texts may hold secrets
            place = traceback.extract_tb(error.__traceback__)[-1]
            raised = f"{type(error).__name__} ({Path(place.filename).name}, line {place.lineno})"
            failed.append(f"{raised} for delivery {row.id}")
            log.error("on_dead raised %s", failed[-1])
        else:
            # After the call: a crash in between notifies twice, and never not at all.
            _mark_notified(store, row.id)
    return failed


def _mark_notified(store: ControlStore, delivery_id: str) -> None:
    store.run(lambda connection: mark_notified(connection, store.now(connection), delivery_id))
