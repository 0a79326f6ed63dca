"""Reports on deliveries: the summary of a dispatcher's run, notifications of dead letters, the history in the lake."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy import RowMapping

from airflow_provider_rfr.exceptions import DeliveryError
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.rows import REPORTED_AGAIN
from airflow_provider_rfr.store.claims import AttemptOutcome, Result
from airflow_provider_rfr.store.deliveries import (
    EndpointKey,
    attempts_since,
    ended_without_attempt,
    mark_notified,
    unnotified_dead_letters,
)
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.webhooks.block import Endpoint

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

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
class FailedDelivery:
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
    failures: list[FailedDelivery] = field(default_factory=list)
    refusals: list[FailedDelivery] = field(default_factory=list)
    notification_errors: list[str] = field(default_factory=list)

    def add(self, results: Iterable[tuple[Result, FailedDelivery | None]], lost: set[str]) -> None:
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
    def problems(self) -> list[FailedDelivery]:
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


_TABLE: Final = "rfr_system.delivery_history"
_KEYS: Final = ("delivery_id", "attempt")


def record_deliveries(
    store: ControlStore, catalog: Catalog, lake: str, endpoints: Mapping[EndpointKey, Endpoint]
) -> None:
    """Report the attempts of the last days that the history lacks, and append waiting rows if it is time.

    A history that can't be written is a warning and not an error: the deliveries were made.

    :param lake: the catalog's name, by which the store knows it
    :param endpoints: for the hosts of those that have an address of their own
    """
    since = int((datetime.now(timezone.utc) - REPORTED_AGAIN).timestamp() * 1000)
    try:
        history = History(store, catalog)
        if not history.has(_TABLE):
            return
        with store.read() as connection:
            tried = attempts_since(connection, lake, since, unreported_in=_TABLE)
            untried = ended_without_attempt(connection, lake, since)
        rows = []
        for row in tried:
            is_delivered = row["outcome"] == "delivered"
            rows.append(
                {
                    **_delivery(row, lake, endpoints),
                    "attempt": row["number"],
                    "outcome": "delivered" if is_delivered else "failed",
                    "attempted_at": instant(row["at"]),
                    "next_at": None if is_delivered or row["state"] != "pending" else instant(row["due_at"]),
                    **{name: row[name] for name in ("status", "detail", "answer", "body_sha256", "milliseconds")},
                }
            )
        for row in untried:
            ended = {"attempt": 0, "outcome": row["state"], "attempted_at": instant(row["ended_at"])}
            rows.append({**_delivery(row, lake, endpoints), **ended})
        history.report(_TABLE, rows, _KEYS)
        history.maintain()
    except Exception as error:  # noqa: BLE001 - each catalog fails in its own way; the text may hold its credentials
        problem = type(error).__name__
        log.warning("the history of deliveries can't be written (%s); the deliveries are not affected", problem)


def _delivery(row: RowMapping, lake: str, endpoints: Mapping[EndpointKey, Endpoint]) -> dict[str, Any]:
    key = EndpointKey(lake, row["target"], row["trigger"], row["block"])
    url = endpoints[key].url if key in endpoints else None
    # Of the address scheme and host, never the path, which may be secret.
    address = urlsplit(url.get_secret_value() if url is not None else "")
    same = ("state", "reason", "first_commit", "last_commit", "commits", "sequence", "snapshot_id", "merged_into")
    return {
        **{name: row[name] for name in (*same, "target")},
        "delivery_id": row["id"],
        "lake": lake,
        "endpoint": key.name,
        "host": f"{address.scheme}://{address.hostname}" if address.hostname else None,
        "created_at": instant(row["created_at"]),
    }
