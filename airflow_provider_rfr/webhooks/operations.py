"""Operations on deliveries and endpoints: list, replay, cancel, pause, resume, try."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.client import Client
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim
from airflow_provider_rfr.store.deliveries import EVERYTHING, Delivery, EndpointKey, EndpointRow, Selection
from airflow_provider_rfr.store.engine import ControlStore, SystemClock, in_chunks
from airflow_provider_rfr.webhooks._worker import call_endpoint
from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.calls import Connections, resolve
from airflow_provider_rfr.webhooks.dispatcher import enable, no_connections

_FORGOTTEN_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class _TestAnswer:
    """Result of a test fire; nothing of it is secret; ``answer``: at most 2 KB, masked."""

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
    """Return the store's rows of endpoints: paused, disabled, failing, last fired."""
    with store.read() as connection:
        return rows.endpoints_of_table(connection, lake, table)


def endpoint_named(store: ControlStore, lake: str, table: str, name: str) -> EndpointKey:
    """Return the endpoint of the table that a name (``trigger`` or ``block/trigger``) means.

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
    """Return the endpoints of the table, or of the lake if no table is named, that a trigger's name means.

    :param name: None for all
    :raises ConfigurationError: a table or a trigger is named that nothing was ever due to
    """
    endpoint_rows = endpoints(store, lake, table)
    if table is not None and not endpoint_rows:
        tables = ", ".join(sorted({row.key.table for row in endpoints(store, lake)})) or "none"
        raise ConfigurationError("target", f"nothing was ever due for {table}", f"the tables known are {tables}")
    keys = [row.key for row in endpoint_rows]
    if name is None:
        return keys
    trigger, block = rows.parts_of(name)
    named = [key for key in keys if key.trigger == trigger and block in (None, key.block)]
    if not named:
        names = ", ".join(sorted({key.name for key in keys})) or "none"
        of = "" if table is None else f" for {table}"
        raise ConfigurationError("trigger", f"nothing was ever due to {name!r}{of}", f"those known are {names}")
    return named


def replay(store: ControlStore, selection: Selection) -> list[str]:
    """Replay deliveries that ended: same id, same commit, today's template and address; return the ids.

    Without states in the selection, replay dead deliveries, and of those named by id all that ended. A delivery that
    was merged is replayed as the delivery that it was merged into.
    """
    return _change(store, selection, rows.REPLAYABLE if selection.ids else ("dead",), rows.REPLAYABLE, rows.set_pending)


def why_not_changed(store: ControlStore, lake: str, ids: Iterable[str], *, is_replay: bool) -> dict[str, str]:
    """Return, for people, the reasons for ids that :func:`replay` or :func:`cancel` was given and did not return."""
    reasons = dict.fromkeys(ids, "there is no such delivery")
    if not reasons:
        # A selection without ids is everything.
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
    """Send nothing to these endpoints until :func:`resume`; commits are still enqueued. Returns how many there were."""
    with store.read() as connection:
        ids = _ids(connection, keys)
    return store.run(lambda connection: rows.change_endpoints(connection, ids, paused_at=store.now(connection)))


def resume(store: ControlStore, keys: Iterable[EndpointKey]) -> int:
    """Resume endpoints that were paused, fail, or were disabled by 410, and return their number.

    Forgets where their blocks are declared and with which connection they are called, so that a block may move and a
    connection be dropped; the next delivery notes both again.
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


def forget(store: ControlStore, older_than_seconds: float, selection: Selection = EVERYTHING) -> int:
    """Delete deliveries that ended so long ago; return how many. Nothing undelivered is deleted.

    In transactions of a thousand, so that no dispatcher waits long for one.
    """
    deleted, age = 0, int(older_than_seconds * 1000)
    while True:
        some = store.run(
            lambda connection: rows.delete_ended(connection, store.now(connection) - age, selection, _FORGOTTEN_AT_ONCE)
        )
        deleted += some
        if some < _FORGOTTEN_AT_ONCE:
            return deleted


def test_fire(
    endpoint: Endpoint,
    event: CommitEvent,
    *,
    connections: Connections = no_connections,  # noqa: PT028 - not a test
    allowed_hosts: Iterable[str] = (),  # noqa: PT028
) -> _TestAnswer:
    """Call the endpoint once, now, with an id of its own. Nothing is read from the store or written to it.

    :raises ConfigurationError: it can't be found out how to call it
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
