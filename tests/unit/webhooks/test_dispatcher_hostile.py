"""Delivery when clocks, stores and servers misbehave."""

from __future__ import annotations

import gzip
import random
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.claims import ClaimRequest, claim
from airflow_provider_rfr.store.deliveries import Selection, endpoints_of_table, endpoints_with_ids, load_endpoints
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.calls import ConnectionSettings
from airflow_provider_rfr.webhooks.dispatcher import EndpointWorker, _merge_events
from airflow_provider_rfr.webhooks.outbox import enqueue
from tests.soon import SOON
from tests.unit.messages import raises
from tests.webhook_receiver import (
    FakeClock,
    Post,
    Received,
    Receiver,
    Reply,
    endpoint,
    events,
    key,
    loopback_dispatcher,
)


@pytest.mark.parametrize("jump", [-86400.0 * 400, -3600.0, 3600.0, 86400.0 * 400])
def test_a_clock_that_jumps_between_two_goes_loses_nothing(server: Receiver, post: Post, jump: float) -> None:
    post.clock.time += 86400 * 500
    server.answers(500, 500, 200)
    post.owe(server.url, 1, 2, 3, maxAttempts=10)
    post.deliver()
    post.clock.time += jump
    began = post.clock.time
    post.hop()
    assert operations.counts(post.store)["delivered"] == 3
    longest = 3600 if jump == -3600.0 else 0
    assert post.clock.time - began <= longest + 120, "what lies ages ahead is brought back, an hour is waited"


@pytest.mark.parametrize("text", ["1000000000", "-5", "inf", "9" * 4000, "Thu, 01 Jan 1970 00:00:00 GMT", "\xff"])
def test_no_retry_after_puts_a_delivery_off_for_ever(server: Receiver, post: Post, text: str) -> None:
    server.answers(Reply(503, headers={"Retry-After": text}), Reply(200))
    post.owe(server.url, 1)
    due = post.deliver().next_due
    assert 0 < due.timestamp() - post.clock.now() <= 3600 * 1.05 + 1
    post.clock.time = due.timestamp() + 0.001
    assert post.deliver().delivered == 1


def test_a_bomb_in_the_answer_of_a_success_is_still_a_success(server: Receiver, post: Post) -> None:
    server.answers(Reply(200, gzip.compress(b"\0" * 50_000_000, 9), {"Content-Encoding": "gzip"}))
    post.owe(server.url, 1)
    assert post.deliver().delivered == 1
    (attempt,) = operations.history(post.store, post.row().id)
    assert len(attempt.answer.encode()) <= 2048


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 2000,
        b"\x00" * 70_000,
    ],
)
def test_an_answer_that_is_not_whole_is_no_delivery(server: Receiver, post: Post, answer: bytes) -> None:
    server.answers(Reply(raw=lambda sock: sock.sendall(answer)), Reply(200))
    post.owe(server.url, 1)
    tally = post.drain()
    assert (tally.failed, tally.delivered) == (1, 1)
    assert len(set(server.ids)) == 1


@pytest.mark.full
def test_a_store_that_is_locked_for_ten_seconds_costs_time_and_no_second_call(
    server: Receiver, post: Post, tmp_path: Path
) -> None:
    post.owe(server.url, *range(1, 11))
    other = sqlite3.connect(tmp_path / "control.db", isolation_level=None, check_same_thread=False)

    def lock(request: Received) -> Reply:
        if len(server.received) == 1:
            other.execute("BEGIN IMMEDIATE")
            threading.Timer(10.0, lambda: other.execute("COMMIT")).start()
        return Reply(200)

    server.answers_by(lock)
    began = time.monotonic()
    tally = post.deliver()
    assert time.monotonic() - began > 9
    assert (tally.delivered, tally.lost, len(server.received)) == (10, 0, 10)
    other.close()


@pytest.mark.parametrize("interval", ["0s", "60s"])
def test_an_event_that_nobody_can_read_is_given_up_and_the_others_are_sent(
    server: Receiver, post: Post, tmp_path: Path, interval: str
) -> None:
    post.owe(server.url, 1, 2, interval=interval)
    with sqlite3.connect(tmp_path / "control.db") as connection:
        connection.execute("UPDATE rfr_webhook_deliveries SET event = 'spoiled' WHERE last_commit = 'commit-1'")
    tally = post.drain()
    assert (tally.delivered, tally.dead, len(server.received)) == (1, 1, 1)


def abandoned(store: ControlStore, endpoints: Any, lease: int, interval: float, *, strict: bool) -> None:
    """Claims of a dispatcher that was killed before it sent anything."""

    def work(connection: Connection) -> None:
        ids = tuple(row.id for row in load_endpoints(connection, endpoints).values())
        request = ClaimRequest(ids, 5, lease, int(interval * 1000), strict)
        claim(connection, store.now(connection), "killed", request, endpoints_with_ids(connection, ids), _merge_events)

    store.run(work)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_whatever_order_every_commit_is_told_and_none_before_it_was_made(
    seed: int, server: Receiver, tmp_path: Path
) -> None:
    chance, clock = random.Random(seed), FakeClock()
    interval, strict = chance.choice([0.0, 60.0]), chance.random() < 0.4
    fields: dict[str, Any] = {"ordering": "strict" if strict else "none", "maxAttempts": 100}
    endpoints = {key(): endpoint(server.url, interval=f"{int(interval)}s", **fields)}
    committed: list[int] = []
    healthy, stores = [False], [0]
    accepted: list[str] = []

    def answer(request: Received) -> Reply:
        assert request.json["sequence"] <= max(committed), "before it was committed"
        if healthy[0] or chance.random() < 0.6:
            accepted.append(request.id)
            return Reply(200)
        return Reply(chance.choice([500, 503, 429]))

    def new_store() -> ControlStore:
        stores[0] += 1
        return open_store(f"sqlite:///{tmp_path}/{stores[0]}.db", clock=clock)

    server.answers_by(answer)
    store = new_store()
    for _ in range(60):
        step = chance.random()
        if step < 0.35:
            committed.append(len(committed) + 1)
        elif step < 0.6:
            enqueue(store, events(*committed), endpoints)
        elif step < 0.8:
            loopback_dispatcher(store, endpoints).deliver_due()
        elif step < 0.88:
            abandoned(store, endpoints, 25_000, interval, strict=strict)
        elif step < 0.97:
            clock.sleep(chance.choice([0.5, 5, 40, 300]))
        else:
            store = new_store()
    healthy[0] = True
    clock.sleep(100)
    enqueue(store, events(*committed), endpoints)
    while (due := loopback_dispatcher(store, endpoints).deliver_due().next_due) is not None:
        clock.time = max(clock.time, due.timestamp()) + 0.001
    rows = {row.id: row for row in operations.deliveries(store, Selection(), None)}
    ended = [rows.get(row.merged_into or "", row) for row in rows.values()]
    assert {row.state for row in ended} <= {"delivered"}
    assert {row.id for row in ended} <= set(accepted)
    commit_ids = {row.last_commit for row in rows.values() if row.commits == 1}
    assert commit_ids == {f"commit-{number}" for number in committed}


@pytest.mark.parametrize("location", ["http://a\x00b.example/", "http://[", "\xff\xfe", "http://" + "x" * 5000, ""])
def test_a_strange_location_is_told_in_words_that_every_database_takes(
    server: Receiver, post: Post, location: str
) -> None:
    answer = b"HTTP/1.1 302 x\r\nContent-Length: 0\r\nLocation: " + location.encode("latin-1") + b"\r\n\r\n"
    server.answers(Reply(raw=lambda sock: sock.sendall(answer)))
    post.owe(server.url, 1)
    assert post.drain().dead == 1
    assert post.row().detail.isprintable()
    assert len(post.row().detail) <= 1000


def test_an_id_that_somebody_made_up_stops_nobody_else(server: Receiver, post: Post) -> None:
    post.owe(server.url, 1)
    for strange in ("a\x00b", "x" * 5000, "\udcff", ""):
        enqueue(post.store, [replace(events(2)[0], commit_id=strange, dag_id=strange)], post.endpoints)
    tally = post.deliver()
    assert (tally.delivered, tally.dead) == (4, 1)
    rows = post.rows()
    assert all(row.last_commit.isprintable() for row in rows)
    with post.store.read() as connection:
        (endpoint,) = endpoints_of_table(connection, rows[0].key.lake)
        assert endpoint.dag_ids == {None, "x" * 5000}


def test_a_secrets_backend_that_is_away_for_a_while_kills_few_deliveries(server: Receiver, post: Post) -> None:
    post.endpoints[key()] = parse_triggers({"config": {"hook": {"connection": "c", "payload": {}}}}).config["hook"]
    post.commit(*range(1, 51))
    away = [True]

    def connections(name: str) -> ConnectionSettings:
        if away[0]:
            raise TimeoutError
        return ConnectionSettings(server.url)

    dispatcher = post.dispatcher(connections=connections)
    dispatcher.deliver_due(until_empty=True, patience=10)
    away[0] = False
    assert dispatcher.deliver_due(until_empty=True).delivered >= 45


def test_an_interrupted_dispatcher_writes_what_has_ended(
    server: Receiver, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.owe(server.url, *range(1, 6))
    real, calls, first_ended = EndpointWorker.finish, [], threading.Event()

    def answer(request: Received) -> Reply:
        # So that the results come in more than one burst.
        assert len(server.received) == 1 or first_ended.wait(SOON)
        return Reply(200)

    def interrupted(self: EndpointWorker, results: Any) -> bool:
        calls.append(len(results))
        if len(calls) == 2:
            while self._done.qsize() < self.in_hand - len(results):
                time.sleep(0.01)
            raise KeyboardInterrupt
        changed = real(self, results)
        first_ended.set()
        return changed

    server.answers_by(answer)
    monkeypatch.setattr(EndpointWorker, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        post.deliver()
    monkeypatch.undo()
    assert operations.counts(post.store)["delivered"] >= 5 - calls[1]


def test_a_block_that_is_still_sealed_is_refused_before_anything_is_claimed(post: Post) -> None:
    sealed = "ENC[AES256_GCM,data:abc,iv:def,tag:ghi,type:str]"
    document = {"config": {"hook": {"url": sealed, "payload": {}}}, "sops": {"mac": "x"}}
    post.endpoints[key()] = parse_triggers(document).config["hook"]
    with raises(ConfigurationError):
        post.dispatcher()
