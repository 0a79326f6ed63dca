"""One go of a courier: lanes at work, and the one thread that speaks with the store for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Final

from sqlalchemy import Connection

from airflow_provider_rfr.store.agenda import next_due
from airflow_provider_rfr.store.claims import Claim, claim
from airflow_provider_rfr.store.endpoints import change_endpoints, endpoints_with_ids
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.settling import Ending, Result, settle
from airflow_provider_rfr.webhooks.delivery.conditions import Condition
from airflow_provider_rfr.webhooks.delivery.lanes import Done, Lane
from airflow_provider_rfr.webhooks.delivery.tally import Failure, Tally
from airflow_provider_rfr.webhooks.delivery.windows import merge_events

_LOOK: Final = 0.1
_LINGER: Final = 0.008
_MOST: Final = 128
_REFUSED: Final = frozenset({"address", "configuration"})


class Round:
    """Lanes, and what is under way in them.

    :ivar tally: of what was written to the store
    """

    def __init__(
        self, store: ControlStore, lanes: Sequence[Lane], done: SimpleQueue[Done], owner: str, *, tells: bool
    ) -> None:
        self.tally = Tally()
        self._store = store
        # In one order, so that two couriers that change endpoints do not wait for each other.
        self._lanes = sorted(lanes, key=lambda lane: min(lane.keys))
        self._done = done
        self._owner = owner
        self._tells = tells

    @property
    def in_hand(self) -> int:
        """Claims that have not ended."""
        return sum(lane.in_hand for lane in self._lanes)

    def step(self, *, claiming: bool = True) -> int:
        """Write what has ended and claim what there is room for; returns the number of claims.

        Waits a moment for something to end, if something is under way.
        """
        done = self._ended()
        changed = self._changed(done)
        for lane in self._lanes:
            if not claiming or (lane in changed and not changed[lane].is_open):
                done += lane.take_back()
        asked = [lane for lane in self._lanes if claiming and self._may_ask(lane)]
        if not done and not asked:
            return 0
        results = [self._addressed(each.result) for each in done]
        asked_at = time.monotonic()
        lost, claims = self._store.run(lambda connection: self._write(connection, results, changed, asked))
        self.tally.add([(result, _failure(each, result)) for each, result in zip(done, results, strict=True)], lost)
        for lane, found in zip(asked, claims, strict=True):
            lane.put(found, asked_at)
            lane.ask_again(asked_at, len(found))
        for lane in self._lanes:
            lane.widen()
        return sum(map(len, claims))

    def milliseconds_until_due(self) -> int | None:
        """Until there is something to claim; None if nothing is pending."""
        ids = [each for lane in self._lanes for each in lane.keys]
        with self._store.read() as connection:
            now = self._store.now(connection)
            moment = next_due(connection, [lane.wish() for lane in self._lanes], endpoints_with_ids(connection, ids))
        return None if moment is None else max(0, moment - now)

    def close(self) -> None:
        """Give back what was not begun, wait for what was, and write both."""
        while self.in_hand:
            self.step(claiming=False)
        self.abandon()

    def abandon(self, *, settling: bool = False) -> None:
        """Only let the threads end: what they are at is not written, and is done again when the leases run out.

        :param settling: write at least what has ended, and give back what was not begun
        """
        if settling:
            with contextlib.suppress(Exception):
                self.step(claiming=False)
        for lane in self._lanes:
            lane.take_back()
            lane.close()

    def _ended(self) -> list[Done]:
        """What has ended by now; a little more patience makes one transaction of many."""
        found: list[Done] = []
        wait, end = (_LOOK if self.in_hand else 0.0), 0.0
        while len(found) < _MOST and self.in_hand:
            try:
                each = self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait()
            except Empty:
                break
            each.lane.in_hand -= 1
            found.append(each)
            end = end or time.monotonic() + _LINGER
            wait = max(0.0, end - time.monotonic())
        return found

    def _changed(self, done: Sequence[Done]) -> dict[Lane, Condition]:
        """Conditions that have to be written."""
        found: dict[Lane, Condition] = {}
        for lane in dict.fromkeys(each.lane for each in done):
            condition = lane.condition.after(each.result for each in done if each.lane is lane)
            if condition != lane.condition or not condition.is_open:
                found[lane] = lane.condition = condition
        return found

    def _may_ask(self, lane: Lane) -> bool:
        if not self.in_hand:
            return True
        # Half of it at once, rather than one by one.
        return lane.in_hand <= lane.depth // 2 and time.monotonic() >= lane.ask_after

    def _addressed(self, result: Result) -> Result:
        """With whether anybody is to be told."""
        told = result.ending is Ending.DEAD and (not self._tells or result.on_failure == "ignore")
        return replace(result, told=True) if told else result

    def _write(
        self, connection: Connection, results: Sequence[Result], changed: dict[Lane, Condition], asked: Sequence[Lane]
    ) -> tuple[set[str], list[list[Claim]]]:
        now = self._store.now(connection)
        lost = settle(connection, now, results) if results else set()
        for lane, condition in changed.items():
            change_endpoints(connection, lane.keys, **_values(lane, condition, now))
        rows = endpoints_with_ids(connection, [each for lane in asked for each in lane.keys])
        return lost, [claim(connection, now, self._owner, lane.wish(), rows, merge_events) for lane in asked]


def _values(lane: Lane, condition: Condition, now: int) -> dict[str, Any]:
    resting = now + condition.rest if condition.rest else None
    values: dict[str, Any] = {"failing": condition.failing, "resting_until": resting}
    if condition.gone:
        values |= {
            "disabled_at": now,
            "disabled_reason": "it answered 410 Gone",
            "disabled_address": lane.address_digest,
        }
    return values


def _failure(done: Done, result: Result) -> Failure | None:
    is_refusal = result.reason in _REFUSED
    if result.ending is not Ending.DEAD and not is_refusal:
        return None
    lane, detail = done.lane, result.detail or result.reason or ""
    key = lane.keys[result.claim.endpoint_id]
    return Failure(key.trigger, lane.host, detail, lane.endpoint.on_failure.value, is_refusal)
