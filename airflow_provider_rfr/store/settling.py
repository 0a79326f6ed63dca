"""Writing how attempts ended: only for those whose token is still the row's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select, update

from airflow_provider_rfr.store.claims import Claim
from airflow_provider_rfr.store.endpoints import insert_missing
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES

_D: Final = DELIVERIES.c


class Ending(str, Enum):
    """How an attempt ended, for its delivery."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    UNSENT = "unsent"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a claim.

    :ivar reason: of a failure, one word: ``http``, ``connection``, ``template`` ...
    :ivar detail: ... and for people; neither holds a secret
    :ivar answer: what the endpoint said, masked
    :ivar wait: milliseconds until the next attempt, for ``RETRY`` and ``UNSENT``
    :ivar asked: milliseconds for which the endpoint asked to be left alone
    :ivar at: when the attempt began, in milliseconds since 1970
    :ivar milliseconds: that it took
    :ivar on_failure: the endpoint's policy, kept with what is dead
    :ivar told: nobody is to be told of its death
    """

    claim: Claim
    ending: Ending
    reason: str | None = None
    detail: str | None = None
    status: int | None = None
    answer: str | None = None
    body_sha256: str | None = None
    wait: int = 0
    asked: int = 0
    at: int = 0
    milliseconds: int = 0
    on_failure: str | None = None
    told: bool = False


def settle(connection: Connection, now: int, results: Sequence[Result]) -> set[str]:
    """Write the results; returns the ids of deliveries that somebody else has taken over, or that were cancelled.

    Their attempts are noted all the same: the endpoint has seen them.
    """
    ours = _still_ours(connection, [result.claim for result in results])
    for ending in Ending:
        rows = [_values(result, now) for result in results if result.ending is ending and result.claim in ours]
        if rows:
            names = [name for name in rows[0] if name != "key"]
            change = update(DELIVERIES).where(_D.id == bindparam("key"))
            connection.execute(change.values({name: bindparam(name) for name in names}), rows)
    sent = [_attempt(result) for result in results if result.ending is not Ending.UNSENT]
    insert_missing(connection, ATTEMPTS, sent)
    return {result.claim.delivery_id for result in results if result.claim not in ours}


def _still_ours(connection: Connection, claims: Collection[Claim]) -> set[Claim]:
    by_id = {claim.delivery_id: claim for claim in claims}
    # In one order, so that two who settle never wait for each other.
    query = select(_D.id, _D.token, _D.lease_owner).where(_D.id.in_(sorted(by_id)), _D.state == "pending")
    rows = connection.execute(query.order_by(_D.id).with_for_update())
    return {by_id[row.id] for row in rows if (row.token, row.lease_owner) == (by_id[row.id].token, by_id[row.id].owner)}


def _values(result: Result, now: int) -> dict[str, Any]:
    claim = result.claim
    free = {"key": claim.delivery_id, "lease_owner": None, "lease_until": None, "due_at": now + result.wait}
    if result.ending is Ending.UNSENT:
        return {**free, "attempts": claim.attempt - 1}
    values = {
        **free,
        "reason": result.reason,
        "detail": result.detail,
        "status": result.status,
        "body_sha256": result.body_sha256,
    }
    if result.ending is Ending.DELIVERED:
        return {**values, "state": "delivered", "ended_at": now}
    values["failures"] = claim.failures + 1
    if result.ending is Ending.RETRY:
        return values
    told_at = now if result.told else None
    return {**values, "state": "dead", "ended_at": now, "on_failure": result.on_failure, "told_at": told_at}


def _attempt(result: Result) -> dict[str, Any]:
    return {
        "delivery_id": result.claim.delivery_id,
        "number": result.claim.attempt,
        "at": result.at,
        "milliseconds": result.milliseconds,
        "outcome": result.ending.value,
        "status": result.status,
        "detail": result.detail,
        "answer": result.answer,
        "body_sha256": result.body_sha256,
    }
