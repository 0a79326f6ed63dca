"""Batches posted to a real endpoint: what it acknowledged is done, and nothing tells a secret."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from socket import socket
from threading import Event

import pytest
from sqlalchemy import select, update

from airflow_provider_rfr.exceptions import ConfigurationError, SinkBusyError, SinkDeliveryError, SinkLeaseLostError
from airflow_provider_rfr.sinks.run import HttpTarget
from airflow_provider_rfr.store.tables import LEASES
from tests.unit.messages import raises
from tests.unit.sinks.exporting import LOOPBACK, SINK, Scene, numbers
from tests.webhook_receiver import Received, Receiver, Reply

SECRET = "hush-hush"


@pytest.fixture
def posting(scene: Scene, server: Receiver) -> Scene:
    scene.to_http(f"http://127.0.0.1:{server.port}/base/", batch_size=2)
    scene.target = replace(scene.target, headers={"Authorization": SECRET})
    return scene.create()


def keys(server: Receiver) -> list[str]:
    return [item.headers["idempotency-key"] for item in server.received]


def test_a_batch_says_what_it_is(posting: Scene, server: Receiver) -> None:
    first = posting.add(*numbers((1,)))
    posting.run()
    last = posting.add(*numbers((2, 3, 4)))
    assert posting.run().batches == 2
    one, two, three = server.received
    assert one.path == "/base/in" and one.headers["authorization"] == SECRET
    assert one.headers["content-type"] == "application/json"
    snapshots = {"from_snapshot": str(first), "to_snapshot": str(last), "resend": 0, "sink": SINK}
    part = {"part": 0, "last": False, "rows": [{"id": 2, "v": "v2"}, {"id": 3, "v": "v3"}]}
    assert two.json == {**snapshots, **part, "batch_id": keys(server)[1]}
    part = {"part": 1, "last": True, "rows": [{"id": 4, "v": "v4"}]}
    assert three.json == {**snapshots, **part, "batch_id": keys(server)[2]}
    assert one.json["from_snapshot"] is None and one.json["to_snapshot"] == str(first)
    assert keys(server) == sorted(set(keys(server))) and posting.row().last_batch == keys(server)[-1]


def test_what_is_sent_once_more_says_so(posting: Scene, server: Receiver) -> None:
    posting.add((1, "a"))
    posting.run()
    posting.deploy("resend")
    posting.run()
    assert [item.json["resend"] for item in server.received] == [0, 1]
    assert len(set(keys(server))) == 2


@pytest.mark.parametrize("status", [400, 302, 503])
def test_a_batch_that_is_refused_is_sent_again_by_the_next_run_with_its_id(
    posting: Scene, server: Receiver, status: int
) -> None:
    server.answers(200, Reply(status, headers={"Location": "http://127.0.0.1:1/"}), 200)
    posting.add(*numbers(range(3)))
    with raises(SinkDeliveryError):
        posting.run()
    posting.add((9, "late"))
    posting.run()
    ids = keys(server)
    assert ids[1] == ids[2] and len(set(ids)) == 3
    assert server.received[1].body == server.received[2].body
    assert [row["id"] for item in (0, 2, 3) for row in server.received[item].json["rows"]] == [0, 1, 2, 9]


@pytest.fixture
def pause(server: Receiver) -> Iterator[tuple[Event, Event]]:
    """The endpoint answers the first request only when it may go on; both are events."""
    inside, go_on = Event(), Event()

    def answer(request: Received) -> Reply:
        if len(server.received) == 1:
            inside.set()
            go_on.wait(60)
        return Reply()

    server.answers_by(answer)
    yield inside, go_on
    go_on.set()


def test_a_busy_endpoint_is_asked_again_when_it_says_so(posting: Scene, server: Receiver) -> None:
    posting.target = replace(posting.target, patience=60)
    server.answers(Reply(429, headers={"Retry-After": "0"}), 500, 200)
    posting.add((1, "a"))
    assert posting.run().batches == 1
    assert len(server.received) == 3 and len(set(keys(server))) == 1


def test_a_busy_endpoint_that_asks_for_no_wait_is_not_asked_without_end(posting: Scene, server: Receiver) -> None:
    posting.target = replace(posting.target, patience=1)
    server.answers(Reply(503, headers={"Retry-After": "0"}))
    posting.add((1, "a"))
    with raises(SinkDeliveryError):
        posting.run()
    assert len(server.received) < 30


def test_an_acknowledgement_counts_however_slowly_its_body_comes(posting: Scene, server: Receiver) -> None:
    def drip(connection: socket) -> None:
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n")
        while not server.closing.wait(0.1):
            connection.sendall(b"x")

    posting.target = replace(posting.target, timeout=3)
    server.answers(Reply(raw=drip))
    posting.add((1, "a"))
    assert posting.run().batches == 1
    assert posting.run().batches == 0 and len(server.received) == 1


def test_an_acknowledgement_counts_though_its_body_breaks_off(posting: Scene, server: Receiver) -> None:
    server.answers(Reply(raw=lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")))
    posting.add((1, "a"))
    assert posting.run().batches == 1 and len(server.received) == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nx", b"HTTP/1.1 20"],
    ids=["nothing", "half a body", "half a status"],
)
def test_an_answer_that_breaks_off_is_no_acknowledgement_though_it_begins_like_one(
    posting: Scene, server: Receiver, answer: bytes
) -> None:
    server.answers(Reply(raw=lambda connection: connection.sendall(answer)), 200)
    posting.add((1, "a"))
    with raises(SinkDeliveryError):
        posting.run()
    assert posting.run().batches == 1


def test_a_private_host_has_to_be_allowed(posting: Scene, server: Receiver) -> None:
    posting.target = replace(posting.target, allowed_hosts=("10.0.0.0/8",), patience=60)
    posting.add((1, "a"))
    with raises(ConfigurationError):
        posting.run()
    assert not server.received and posting.row().cursor is None


def test_a_receiver_that_wants_more_time_than_there_is_gets_the_batch_by_the_next_run(
    posting: Scene, server: Receiver
) -> None:
    posting.target = replace(posting.target, patience=5)
    server.answers(Reply(503, headers={"Retry-After": "3600"}), Reply(403, headers={"Retry-After": "0"}), 200)
    posting.add((1, "a"))
    with raises(SinkDeliveryError):
        posting.run()
    assert len(server.received) == 1
    assert posting.run().batches == 1 and len(set(keys(server))) == 1


def test_why_a_batch_is_refused_is_told_without_secrets(posting: Scene, server: Receiver) -> None:
    server.answers(Reply(422, f'{{"error": "no column v", "token": "x", "seen": "{SECRET}"}}'.encode()))
    posting.add((1, "a"))
    with raises(SinkDeliveryError) as caught:
        posting.run()
    assert SECRET not in str(caught.value) and '"x"' not in str(caught.value)


def test_no_error_and_no_text_tells_a_secret(posting: Scene, server: Receiver) -> None:
    url, headers = f"http://user:{SECRET}@127.0.0.1:1/{SECRET}", {"X-Key": SECRET}
    posting.target = HttpTarget(url, headers, patience=0, allowed_hosts=LOOPBACK)
    posting.add((1, "a"))
    with pytest.raises(SinkDeliveryError) as caught:
        posting.run()
    texts = [str(caught.value), repr(caught.value), repr(posting.target)]
    assert not [text for text in texts if SECRET in text]
    assert caught.value.__cause__ is None and caught.value.sink == SINK


def test_a_netrc_file_does_not_take_the_place_of_the_headers(
    posting: Scene, server: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    posting.add((1, "a"))
    posting.run()
    assert server.received[0].headers["authorization"] == SECRET


def test_an_address_that_is_none_is_told(posting: Scene) -> None:
    for url in ("ftp://host/x", "http:///x", "host/x"):
        posting.target = HttpTarget(url)
        with raises(ConfigurationError):
            posting.run()


def test_two_runs_at_once_send_each_batch_once(posting: Scene, server: Receiver, pause: tuple[Event, Event]) -> None:
    inside, go_on = pause
    posting.add((1, "a"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(posting.run)
        assert inside.wait(60)
        with pytest.raises(SinkBusyError, match="holds its lease"):
            posting.run()
        go_on.set()
        assert first.result(60).batches == 1
    assert posting.run().batches == 0 and len(server.received) == 1


def test_a_run_that_slept_through_its_lease_moves_nothing(
    posting: Scene, server: Receiver, pause: tuple[Event, Event]
) -> None:
    """The other one sends the same batch with the same id: the endpoint takes it once."""
    inside, go_on = pause
    posting.add(*numbers(range(4)))
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(posting.run)
        assert inside.wait(60)
        posting.store.run(lambda value: value.execute(update(LEASES).values(until=0)))
        assert posting.run().batches == 2
        go_on.set()
        assert isinstance(sleeper.exception(60), SinkLeaseLostError)
    assert keys(server)[0] == keys(server)[1] and len(set(keys(server))) == 2
    assert posting.row().batches == 2
    with posting.store.read() as connection:
        assert connection.execute(select(LEASES.c.holder)).scalar_one() is None


def test_a_deploy_that_holds_a_sink_stops_the_run_that_is_at_it(posting: Scene, server: Receiver) -> None:
    def answer(request: Received) -> Reply:
        posting.deploy("hold")
        return Reply()

    server.answers_by(answer)
    posting.add(*numbers(range(4)))
    with pytest.raises(SinkLeaseLostError):
        posting.run()
    assert len(server.received) == 1
