"""Claims, leases and tokens: who may send, and who may say how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, select

from airflow_provider_rfr.store.claims import (
    AttemptOutcome,
    Claim,
    ClaimRequest,
    MergedCommits,
    Result,
    claim,
    next_due,
    settle,
)
from airflow_provider_rfr.store.deliveries import (
    Delivery,
    EndpointKey,
    EndpointRow,
    Selection,
    add_deliveries,
    attempts_of,
    change_endpoints,
    count_states,
    endpoints_with_ids,
    ensure_endpoint,
    limit_future_times,
    select_deliveries,
    set_cancelled,
    set_pending,
)
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.tables import DELIVERIES
from tests.unit.store.conftest import Call
from tests.webhook_receiver import FakeClock

KEY = EndpointKey("rfr", "raw.orders", "hook")
LEASE = 30_000


def enrolled(store: ControlStore, *sequences: int, key: EndpointKey = KEY) -> int:
    def work(connection: Connection) -> int:
        row = ensure_endpoint(connection, key)
        new = []
        for number in sequences:
            commit = {"sequence": number, "snapshot_id": 1, "first_commit": f"c{number}", "last_commit": f"c{number}"}
            new.append({"id": f"{key.trigger}-{number:04}", "endpoint_id": row.id, "event": f"e{number}", **commit})
        add_deliveries(connection, store.now(connection), new)
        return row.id

    return store.run(work)


def merge(endpoint: EndpointRow, texts: Sequence[str]) -> MergedCommits:
    return MergedCommits(f"m:{texts[0]}:{texts[-1]}", "+".join(texts))


def claimed(store: ControlStore, *ids: int, owner: str = "one", **request) -> list[Claim]:
    wanted = ClaimRequest(**{"endpoint_ids": ids, "capacity": 100, "lease": LEASE, **request})

    def work(connection: Connection) -> list[Claim]:
        rows = endpoints_with_ids(connection, ids)
        return claim(connection, store.now(connection), owner, wanted, rows, merge)

    return store.run(work)


def settled(store: ControlStore, *results: Result) -> set[str]:
    return store.run(lambda connection: settle(connection, store.now(connection), results))


def now_do(store: ControlStore, work: Callable[..., Any], *arguments: Any) -> None:
    """Call a function that writes with the present time."""
    store.run(lambda connection: work(connection, store.now(connection), *arguments))


def rows(store: ControlStore) -> dict[str, Delivery]:
    with store.read() as connection:
        return {delivery.id: delivery for delivery in select_deliveries(connection, Selection())}


def due(store: ControlStore, *ids: int, **request) -> int | None:
    wanted = ClaimRequest(**{"endpoint_ids": ids, "capacity": 1, "lease": LEASE, **request})
    with store.read() as connection:
        moment = next_due(connection, [wanted], endpoints_with_ids(connection, ids))
        return None if moment is None else moment - store.now(connection)


def test_what_is_claimed_is_claimed_once_until_the_lease_runs_out(store: ControlStore, clock: FakeClock) -> None:
    number = enrolled(store, 1, 2)
    first = claimed(store, number)
    claims = [(taken.delivery_id, taken.attempt, taken.token) for taken in first]
    assert claims == [("hook-0001", 1, 1), ("hook-0002", 1, 1)]
    assert claimed(store, number, owner="two") == []
    assert due(store, number) == LEASE
    clock.sleep(LEASE / 1000 + 0.01)
    assert [(taken.attempt, taken.token) for taken in claimed(store, number, owner="two")] == [(2, 2), (2, 2)]


def test_only_the_newest_token_may_say_how_it_ended(store: ControlStore, call: Call, clock: FakeClock) -> None:
    number = enrolled(store, 1)
    (late,) = claimed(store, number)
    clock.sleep(31)
    (new,) = claimed(store, number, owner="two")
    assert settled(store, Result(late, AttemptOutcome.DELIVERED, status=200)) == {"hook-0001"}
    assert rows(store)["hook-0001"].state == "pending"
    assert settled(store, Result(new, AttemptOutcome.DELIVERED, status=200)) == set()
    assert rows(store)["hook-0001"].state == "delivered"
    assert settled(store, Result(late, AttemptOutcome.DEAD, "http", on_failure="block")) == {"hook-0001"}
    assert rows(store)["hook-0001"].state == "delivered"
    assert [attempt.number for attempt in call(attempts_of, "hook-0001")] == [1, 2]


def test_a_claim_that_is_given_back_costs_no_attempt(store: ControlStore, call: Call) -> None:
    number = enrolled(store, 1)
    (first,) = claimed(store, number)
    settled(store, Result(first, AttemptOutcome.UNSENT))
    row = rows(store)["hook-0001"]
    assert (row.state, row.attempts, row.failures, row.lease_until) == ("pending", 0, 0, None)
    (again,) = claimed(store, number)
    assert (again.attempt, again.token) == (1, 2)
    assert call(attempts_of, "hook-0001") == []


def test_a_failure_waits_and_is_counted(store: ControlStore, clock: FakeClock) -> None:
    number = enrolled(store, 1)
    (first,) = claimed(store, number)
    settled(store, Result(first, AttemptOutcome.RETRY, "http", "HTTP 500", 500, wait=4000))
    assert claimed(store, number) == []
    assert due(store, number) == 4000
    clock.sleep(4)
    (second,) = claimed(store, number)
    assert (second.attempt, second.failures) == (2, 1)


def test_the_dead_are_not_claimed_and_a_replay_gives_them_a_new_budget(store: ControlStore) -> None:
    number = enrolled(store, 1)
    (first,) = claimed(store, number)
    settled(store, Result(first, AttemptOutcome.DEAD, "http", "HTTP 400", 400, on_failure="block"))
    assert claimed(store, number) == []
    assert due(store, number) is None
    row = rows(store)["hook-0001"]
    assert (row.state, row.reason, row.on_failure) == ("dead", "http", "block")
    now_do(store, set_pending, ["hook-0001"])
    (again,) = claimed(store, number)
    assert (again.delivery_id, again.attempt, again.failures) == ("hook-0001", 2, 0)


def test_who_was_at_a_cancelled_delivery_can_t_say_how_it_ended(store: ControlStore) -> None:
    number = enrolled(store, 1)
    (first,) = claimed(store, number)
    now_do(store, set_cancelled, ["hook-0001"], "by a test")
    assert settled(store, Result(first, AttemptOutcome.RETRY, "http")) == {"hook-0001"}
    now_do(store, set_pending, ["hook-0001"])
    assert settled(store, Result(first, AttemptOutcome.DELIVERED)) == {"hook-0001"}
    assert rows(store)["hook-0001"].state == "pending"


@pytest.mark.parametrize(("column", "waits"), [("paused_at", None), ("disabled_at", None), ("open_until", 5000)])
def test_paused_disabled_and_resting_endpoints_are_left_alone(
    store: ControlStore, call: Call, clock: FakeClock, column: str, waits: int | None
) -> None:
    number = enrolled(store, 1)
    call(change_endpoints, [number], **{column: int(clock.now() * 1000) + (waits or 0)})
    assert claimed(store, number) == []
    assert due(store, number) == waits
    if waits:
        clock.sleep(waits / 1000)
    else:
        call(change_endpoints, [number], **{column: None})
    assert len(claimed(store, number)) == 1


def test_strict_order_is_one_at_a_time_and_the_oldest_first(store: ControlStore, clock: FakeClock) -> None:
    number = enrolled(store, 3, 1, 2)
    (first,) = claimed(store, number, strict=True)
    assert first.delivery_id == "hook-0001"
    assert claimed(store, number, strict=True, owner="two") == []
    settled(store, Result(first, AttemptOutcome.RETRY, "http", wait=9000))
    assert claimed(store, number, strict=True) == []
    assert due(store, number, strict=True) == 9000
    clock.sleep(9)
    (again,) = claimed(store, number, strict=True)
    settled(store, Result(again, AttemptOutcome.DEAD, "http", on_failure="dead_letter"))
    (second,) = claimed(store, number, strict=True)
    assert second.delivery_id == "hook-0002"
    settled(store, Result(second, AttemptOutcome.DEAD, "http", on_failure="block"))
    assert claimed(store, number, strict=True) == []
    assert due(store, number, strict=True) is None
    now_do(store, set_cancelled, ["hook-0002"], "")
    assert [taken.delivery_id for taken in claimed(store, number, strict=True)] == ["hook-0003"]


def test_strict_order_is_kept_for_each_table_by_itself(store: ControlStore) -> None:
    one = enrolled(store, 1, 2)
    other = enrolled(store, 1, key=KEY._replace(table="raw.items", trigger="other"))
    found = claimed(store, one, other, strict=True)
    assert {claim.endpoint_id for claim in found} == {one, other}
    assert len(found) == 2


def test_a_window_is_opened_by_the_first_commit_and_then_gathers(store: ControlStore, clock: FakeClock) -> None:
    number = enrolled(store, 1)
    (first,) = claimed(store, number, interval=600_000)
    assert first.delivery_id == "hook-0001"
    settled(store, Result(first, AttemptOutcome.DELIVERED))
    clock.sleep(100)
    enrolled(store, 2, 3, 4)
    assert claimed(store, number, interval=600_000) == []
    assert due(store, number, interval=600_000) == 500_000
    clock.sleep(500)
    (window,) = claimed(store, number, interval=600_000)
    assert (window.delivery_id, window.event, window.attempt) == ("m:e2:e4", "e2+e3+e4", 1)
    found = rows(store)
    assert {found[f"hook-000{n}"].merged_into for n in (2, 3, 4)} == {"m:e2:e4"}
    assert {found[f"hook-000{n}"].state for n in (2, 3, 4)} == {"merged"}
    merged = found["m:e2:e4"]
    assert (merged.commits, merged.sequence, merged.first_commit, merged.last_commit) == (3, 4, "c2", "c4")
    settled(store, Result(window, AttemptOutcome.RETRY, "http", wait=1000))
    clock.sleep(1)
    (again,) = claimed(store, number, interval=600_000)
    assert (again.delivery_id, again.attempt) == ("m:e2:e4", 2)
    settled(store, Result(again, AttemptOutcome.DELIVERED))
    clock.sleep(10_000)
    assert claimed(store, number, interval=600_000) == []


def test_what_was_claimed_for_a_window_and_lost_comes_again_under_its_own_id(
    store: ControlStore, clock: FakeClock
) -> None:
    number = enrolled(store, 1, 2)
    (window,) = claimed(store, number, interval=600_000)
    enrolled(store, 3)
    clock.sleep(31)
    (again,) = claimed(store, number, interval=600_000)
    assert again.delivery_id == window.delivery_id == "m:e1:e2"
    settled(store, Result(again, AttemptOutcome.UNSENT))
    assert [taken.delivery_id for taken in claimed(store, number, interval=600_000)] == ["m:e1:e2"]


def test_an_interval_with_strict_order_opens_no_window_while_the_last_one_is_undone(
    store: ControlStore, clock: FakeClock
) -> None:
    number = enrolled(store, 1)
    options = {"interval": 60_000, "strict": True}
    (first,) = claimed(store, number, **options)
    settled(store, Result(first, AttemptOutcome.RETRY, "http", wait=3_600_000))
    enrolled(store, 2, 3)
    clock.sleep(61)
    assert claimed(store, number, **options) == []
    clock.sleep(3600)
    (again,) = claimed(store, number, **options)
    assert again.delivery_id == "hook-0001"
    settled(store, Result(again, AttemptOutcome.DELIVERED))
    assert [taken.delivery_id for taken in claimed(store, number, **options)] == ["m:e2:e3"]


def test_a_clock_that_is_set_back_delays_nothing_for_longer_than_it_may_take(
    store: ControlStore, call: Call, clock: FakeClock
) -> None:
    number = enrolled(store, 1, 2)
    clock.time += 30 * 86400
    first, _ = claimed(store, number)
    settled(store, Result(first, AttemptOutcome.RETRY, "http", wait=1000))
    now = int(clock.now() * 1000)
    call(change_endpoints, [number], last_fired_at=now, open_until=now + 9000)
    clock.time -= 30 * 86400
    now_do(store, limit_future_times, [number], LEASE)
    assert [taken.delivery_id for taken in claimed(store, number)] == ["hook-0001"]
    clock.sleep(LEASE / 1000 + 1)
    assert {taken.delivery_id for taken in claimed(store, number)} == {"hook-0001", "hook-0002"}
    enrolled(store, 3)
    assert claimed(store, number, interval=60_000, capacity=100) == []
    clock.sleep(61)
    assert "hook-0003" in {taken.delivery_id for taken in claimed(store, number, interval=60_000)}


def test_four_deliverers_at_once_claim_each_row_once(store_url: str) -> None:
    store = open_store(store_url)
    number = enrolled(store, *range(1, 201))
    found: list[list[str]] = [[] for _ in range(4)]

    def work(mine: list[str], owner: str) -> None:
        own = open_store(store_url)
        while claims := claimed(own, number, owner=owner, capacity=7):
            mine.extend(taken.delivery_id for taken in claims)
            settled(own, *(Result(taken, AttemptOutcome.DELIVERED) for taken in claims))
        own.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, found, "0123"))
    everything = [delivery_id for mine in found for delivery_id in mine]
    assert len(everything) == len(set(everything))
    # One that met only rows that others were just claiming has stopped early.
    rest = claimed(store, number, owner="last", capacity=1000)
    assert len(everything) + len(rest) == 200
    assert not [taken for taken in rest if taken.attempt > 1]


def test_four_deliverers_open_one_window(store_url: str) -> None:
    store = open_store(store_url)
    number = enrolled(store, *range(1, 50))
    found: list[Claim] = []
    barrier = threading.Barrier(4)

    def work(owner: str) -> None:
        own = open_store(store_url)
        barrier.wait()
        found.extend(claimed(own, number, owner=owner, interval=600_000))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "0123"))
    assert [claim.delivery_id for claim in found] == ["m:e1:e49"]


def test_four_deliverers_keep_a_strict_order(store_url: str) -> None:
    store = open_store(store_url)
    number = enrolled(store, *range(1, 41))
    order: list[str] = []
    under_way: set[str] = set()
    together: list[set[str]] = []
    lock, over = threading.Lock(), threading.Event()

    def work(owner: str) -> None:
        own = open_store(store_url)
        while not over.is_set():
            for taken in claimed(own, number, owner=owner, strict=True):
                with lock:
                    under_way.add(taken.delivery_id)
                    together.append(set(under_way))
                    order.append(taken.delivery_id)
                    under_way.discard(taken.delivery_id)
                settled(own, Result(taken, AttemptOutcome.DELIVERED))
            if len(order) >= 40:
                over.set()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, "0123"))
    assert order == [f"hook-{n:04}" for n in range(1, 41)]
    assert max(map(len, together)) == 1


def test_rows_are_made_once_whoever_makes_them(store: ControlStore, call: Call) -> None:
    enrolled(store, 1, 2)
    enrolled(store, 2, 3)
    assert call(count_states, Selection())["pending"] == 3


def test_a_settlement_of_many_kinds_is_one_transaction(store: ControlStore) -> None:
    number = enrolled(store, 1, 2, 3, 4, 5)
    claims = claimed(store, number)
    foreign = replace(claims[4], token=99)
    lost = settled(
        store,
        Result(claims[0], AttemptOutcome.DELIVERED, status=204, body_sha256="aa"),
        Result(claims[1], AttemptOutcome.RETRY, "timeout", "slow", wait=5),
        Result(claims[2], AttemptOutcome.DEAD, "template", "line 1", on_failure="ignore", notified=True),
        Result(claims[3], AttemptOutcome.UNSENT),
        Result(foreign, AttemptOutcome.DELIVERED),
    )
    assert lost == {"hook-0005"}
    found = rows(store)
    assert [found[f"hook-000{n}"].state for n in range(1, 6)] == ["delivered", "pending", "dead", "pending", "pending"]
    assert (found["hook-0001"].status, found["hook-0001"].body_sha256) == (204, "aa")
    with store.read() as connection:
        told = connection.execute(select(DELIVERIES.c.id).where(DELIVERIES.c.notified_at.is_not(None))).scalars().all()
    assert told == ["hook-0003"]


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_no_more_is_claimed_than_there_is_room_for(store: ControlStore, capacity: int) -> None:
    number = enrolled(store, 1, 2, 3, 4)
    assert len(claimed(store, number, capacity=capacity)) == capacity
