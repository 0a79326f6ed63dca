"""Operations on deliveries and endpoints: list, replay, cancel, pause, resume, try. Reports on deliveries: the summary
of a dispatcher's run, notifications of dead letters, the history in the lake.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy import Connection, Row, RowMapping

from airflow_provider_rfr.exceptions import ConfigurationError, DeliveryError
from airflow_provider_rfr.http.client import Client
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim, Result
from airflow_provider_rfr.store.deliveries import EVERYTHING, Delivery, EndpointKey, EndpointRow, Selection
from airflow_provider_rfr.store.engine import ControlStore, SystemClock, in_chunks, instant
from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.calls import Connections, call_endpoint, no_connections, resolve

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_FORGOTTEN_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class _TestAnswer:
    """The result of a test call; nothing in it is secret.

    :ivar detail: reason of a failure, for people
    :ivar answer: the endpoint's answer, at most 2 KB, masked
    """

    __test__ = False

    delivered: bool
    delivery_id: str
    status: int | None
    detail: str | None
    answer: str | None
    milliseconds: int


def deliveries(store: ControlStore, selection: Selection = EVERYTHING, limit: int | None = 100) -> list[Delivery]:
    """Return deliveries, the newest first."""
    with store.read() as connection:
        return rows.select_deliveries(connection, selection, limit)


def history(store: ControlStore, delivery_id: str) -> list[Row[Any]]:
    """Return the attempts of one delivery that ended, the oldest first. A dispatcher that was killed records none."""
    with store.read() as connection:
        return rows.attempts_of(connection, delivery_id)


def counts(store: ControlStore, selection: Selection = EVERYTHING) -> dict[str, int]:
    """Return the number of deliveries by state."""
    with store.read() as connection:
        return rows.count_states(connection, selection)


def endpoints(store: ControlStore, lake: str, table: str | None = None) -> list[EndpointRow]:
    """Return the rows of all endpoints of a lake or of one of its tables: paused, disabled, failing, last fired."""
    with store.read() as connection:
        return rows.endpoints_of_table(connection, lake, table)


def endpoint_named(store: ControlStore, lake: str, table: str, name: str) -> EndpointKey:
    """Return the key of the table's endpoint with this name, ``trigger`` or ``block/trigger``.

    :raises ConfigurationError: there is none, or there are several
    """
    keys = known_endpoints(store, lake, table, name)
    if len(keys) > 1:
        names = ", ".join(key.name for key in keys)
        raise ConfigurationError(
            "trigger", f"several blocks have a trigger {name!r} for {table}", f"write one of {names}"
        )
    return keys[0]


def known_endpoints(store: ControlStore, lake: str, table: str | None, name: str | None) -> list[EndpointKey]:
    """Return the keys of the endpoints with this name that a table has, or the whole lake if ``table`` is None.

    :param name: ``trigger`` or ``block/trigger``; None for all endpoints
    :raises ConfigurationError: the table has no endpoint yet, or none has this name
    """
    endpoint_rows = endpoints(store, lake, table)
    if table is not None and not endpoint_rows:
        tables = ", ".join(sorted({row.key.table for row in endpoints(store, lake)})) or "none"
        raise ConfigurationError("target", f"{table} has no endpoint yet", f"the tables known are {tables}")
    keys = [row.key for row in endpoint_rows]
    if name is None:
        return keys
    trigger, block = rows.parts_of(name)
    named = [key for key in keys if key.trigger == trigger and block in (None, key.block)]
    if not named:
        names = ", ".join(sorted({key.name for key in keys})) or "none"
        of = "" if table is None else f" for {table}"
        raise ConfigurationError("trigger", f"there is no endpoint {name!r}{of} yet", f"those known are {names}")
    return named


def replay(store: ControlStore, selection: Selection) -> list[str]:
    """Replay deliveries that ended, with the same id and commit, and the present template and address; return the ids.

    If the selection has no states, dead deliveries are replayed, or, if it has ids, all that are dead, cancelled or
    delivered. A merged delivery is not replayed: replay the one that it was merged into.
    """
    return _change(store, selection, rows.REPLAYABLE if selection.ids else ("dead",), rows.REPLAYABLE, rows.set_pending)


def why_not_changed(store: ControlStore, lake: str, ids: Iterable[str], *, is_replay: bool) -> dict[str, str]:
    """Return, by id, the reason for which :func:`replay` or :func:`cancel` did not change a delivery, for people.

    :param ids: ids that the function was given and did not return
    """
    reasons = dict.fromkeys(ids, "there is no such delivery")
    if not reasons:
        # A selection without ids selects everything.
        return reasons
    with store.read() as connection:
        unchanged = rows.select_deliveries(connection, Selection(lake=lake, ids=list(reasons)))
    for delivery in unchanged:
        if delivery.merged_into is not None:
            done = "replay" if is_replay else "cancel"
            reasons[delivery.id] = f"it was delivered with others as {delivery.merged_into}; {done} that"
        elif is_replay and delivery.state == "pending":
            reasons[delivery.id] = "it is pending, so it is delivered anyway"
        else:
            reasons[delivery.id] = f"it is {delivery.state}, and not what the other options name"
            if not is_replay and delivery.state not in rows.CANCELLABLE:
                reasons[delivery.id] = f"it is {delivery.state}, so there is nothing to cancel"
    return reasons


def cancel(store: ControlStore, selection: Selection, *, detail: str = "cancelled") -> list[str]:
    """Cancel pending or dead deliveries and return the ids. An attempt that is under way is not stopped."""
    return _change(store, selection, rows.CANCELLABLE, rows.CANCELLABLE, partial(rows.set_cancelled, detail=detail))


def pause(store: ControlStore, keys: Iterable[EndpointKey]) -> int:
    """Pause endpoints until :func:`resume`, and return their number. Commits are still enqueued."""
    with store.read() as connection:
        ids = _ids(connection, keys)
    return store.run(lambda connection: rows.change_endpoints(connection, ids, paused_at=store.now(connection)))


def resume(store: ControlStore, keys: Iterable[EndpointKey]) -> int:
    """Resume endpoints that are paused, have an open circuit breaker, or were disabled by 410; return their number.

    The recorded places of their blocks, addresses and connections are cleared, so that a block may move and a
    connection may be dropped. The next delivery records them again.
    """
    with store.read() as connection:
        ids = _ids(connection, keys)
    forgotten = dict.fromkeys(("address", "conn_id", "places"))
    store.run(lambda connection: rows.change_endpoints(connection, ids, **forgotten))
    return enable(store, ids)


def oldest_pending_seconds(store: ControlStore, lake: str | None = None, table: str | None = None) -> float:
    """Return the age of the oldest pending delivery in seconds; 0 for none."""
    with store.read() as connection:
        created_at = rows.oldest_pending(connection, Selection(lake=lake, tables=(table,) if table else ()))
        return 0.0 if created_at is None else max(0.0, (store.now(connection) - created_at) / 1000)


def blocked_reason(store: ControlStore, lake: str, table: str) -> str | None:
    """Return the reason for which the next refresh of the table has to wait; None if it need not.

    It waits while a delivery of a trigger with ``onFailure: block`` is dead, until it is replayed or cancelled.
    """
    with store.read() as connection:
        dead = rows.select_deliveries(connection, Selection(lake=lake, tables=(table,), states=("dead",)))
    blocking = [delivery for delivery in dead if delivery.on_failure == "block"]
    if not blocking:
        return None
    newest = blocking[0]
    more = f", and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    return (
        f"{newest.key}: delivery {newest.id} was given up ({newest.detail}){more}; "
        "replay or cancel it, then the table is refreshed again"
    )


def forget(store: ControlStore, older_than_seconds: float) -> int:
    """Delete deliveries that ended longer ago than this; return their number. Pending and dead ones stay.

    A transaction deletes at most a thousand, so that no dispatcher waits long for it.
    """
    deleted, age = 0, int(older_than_seconds * 1000)

    def delete_some(connection: Connection) -> int:
        return rows.delete_ended(connection, store.now(connection) - age, EVERYTHING, _FORGOTTEN_AT_ONCE)

    while (some := store.run(delete_some)) == _FORGOTTEN_AT_ONCE:
        deleted += some
    return deleted + some


def test_fire(
    endpoint: Endpoint,
    event: CommitEvent,
    *,
    connections: Connections = no_connections,  # noqa: PT028 - not a test
    allowed_hosts: Iterable[str] = (),  # noqa: PT028
) -> _TestAnswer:
    """Call the endpoint once, now, with a random delivery id. The control store is neither read nor written.

    :raises ConfigurationError: the endpoint's address or connection can't be resolved
    """
    call = resolve(endpoint, connections, allowed_hosts)
    claim = Claim(uuid.uuid4().hex, endpoint_id=0, event="", attempt=1, failures=0, token=0, owner="", started_at=0)
    with contextlib.closing(Client()) as client:
        result = call_endpoint(call, event, claim, client, SystemClock(), trigger_name=endpoint.name)
    return _TestAnswer(
        delivered=result.ending is AttemptOutcome.DELIVERED,
        delivery_id=claim.delivery_id,
        status=result.status,
        detail=result.detail,
        answer=result.answer,
        milliseconds=result.milliseconds,
    )


test_fire.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it


def _change(
    store: ControlStore,
    selection: Selection,
    default: tuple[str, ...],
    allowed: tuple[str, ...],
    work: Callable[[Connection, int, list[str]], None],
) -> list[str]:
    states = tuple(state for state in (selection.states or default) if state in allowed)

    def transaction(connection: Connection) -> list[str]:
        matching = rows.select_deliveries(connection, replace(selection, states=states))
        ids = [delivery.id for delivery in matching]
        for chunk in in_chunks(ids):
            work(connection, store.now(connection), chunk)
        return ids

    return store.run(transaction) if states else []


def _ids(connection: Connection, keys: Iterable[EndpointKey]) -> list[int]:
    return [row.id for row in rows.load_endpoints(connection, keys).values()]


def enable(store: ControlStore, ids: Iterable[int]) -> int:
    """Enable endpoints that were paused, disabled or failing, and return their number."""
    wanted = list(ids)
    values = dict.fromkeys(("paused_at", "disabled_at", "disabled_reason", "disabled_address", "open_until"))
    return store.run(lambda connection: rows.change_endpoints(connection, wanted, failing=0, **values))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up; nothing in it is secret.

    :ivar reason: one word: ``http``, ``connection``, ``timeout``, ``template``, ``gone`` ...
    :ivar on_failure: value of the endpoint's ``onFailure``
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
    """Counts of one run of a dispatcher.

    :ivar delivered: deliveries, not commits: several commits merged into one delivery count once
    :ivar failed: attempts that failed and will be repeated
    :ivar dead: deliveries that were given up
    :ivar unsent: claims that were given back without an attempt
    :ivar lost: attempts whose result was not stored: another dispatcher claimed the delivery, or it was cancelled
    :ivar skipped: pending deliveries of triggers that were removed from the configuration
    :ivar pending: pending deliveries that are left, of the triggers in the configuration
    :ivar next_due: time at which the next of them can be sent; None if none is pending
    :ivar failures: reports of deliveries that were given up; equal ones count once
    :ivar refusals: reports of deliveries that were not sent because a setting is wrong, given up or not
    :ivar notification_errors: errors that ``on_dead`` raised, with their deliveries; the next run calls it again
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
        """Count results that were written to the store.

        :param results: each with the report of its failure, if it is one
        :param lost: ids of deliveries that another dispatcher has claimed, or that were cancelled
        """
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
        """Return the reports of deliveries that were given up or refused, each once."""
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
    """Call the notifier for dead letters without a notification, at most a hundred; return its errors without texts.

    A call that raises is repeated by the next run.
    """
    with store.read() as connection:
        dead = rows.unnotified_dead_letters(connection, endpoint_ids)
    failed = []
    for row in dead:
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
            # Marked after the call: a crash in between may repeat a notification, but loses none.
            _mark_notified(store, row.id)
    return failed


def _mark_notified(store: ControlStore, delivery_id: str) -> None:
    store.run(lambda connection: rows.mark_notified(connection, store.now(connection), delivery_id))


_TABLE: Final = "rfr_system.delivery_history"
_KEYS: Final = ("delivery_id", "attempt")


def record_deliveries(
    store: ControlStore, catalog: Catalog, lake: str, endpoints: Mapping[EndpointKey, Endpoint]
) -> None:
    """Queue rows for the attempts of the last days that the history table lacks, and append queued rows if it is time.

    A history that can't be written is a warning and not an error: the deliveries were made.

    :param lake: the catalog's name, by which the store knows it
    :param endpoints: endpoints by key; a row gets the host of its endpoint's ``url``
    """
    # Imported here: PyIceberg takes a second to import, and whoever only reads the store does not need it.
    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.lake.rows import REPORTED_AGAIN

    since = int((datetime.now(timezone.utc) - REPORTED_AGAIN).timestamp() * 1000)
    try:
        history = History(store, catalog)
        if not history.has(_TABLE):
            return
        with store.read() as connection:
            tried = rows.attempts_since(connection, lake, since, unreported_in=_TABLE)
            untried = rows.ended_without_attempt(connection, lake, since)
        reports = []
        for row in tried:
            is_delivered = row["outcome"] == "delivered"
            attempt = {
                "attempt": row["number"],
                "outcome": "delivered" if is_delivered else "failed",
                "attempted_at": instant(row["at"]),
                "next_at": None if is_delivered or row["state"] != "pending" else instant(row["due_at"]),
                **{name: row[name] for name in ("status", "detail", "answer", "body_sha256", "milliseconds")},
            }
            reports.append({**_delivery(row, lake, endpoints), **attempt})
        for row in untried:
            ended = {"attempt": 0, "outcome": row["state"], "attempted_at": instant(row["ended_at"])}
            reports.append({**_delivery(row, lake, endpoints), **ended})
        history.report(_TABLE, reports, _KEYS)
        history.maintain()
    except Exception as error:  # noqa: BLE001 - each catalog fails in its own way; the text may hold its credentials
        problem = type(error).__name__
        log.warning("the history of deliveries can't be written (%s); the deliveries are not affected", problem)


def _delivery(row: RowMapping, lake: str, endpoints: Mapping[EndpointKey, Endpoint]) -> dict[str, Any]:
    key = EndpointKey(lake, row["target"], row["trigger"], row["block"])
    url = endpoints[key].url if key in endpoints else None
    # Only scheme and host of the address: its path may be secret.
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
