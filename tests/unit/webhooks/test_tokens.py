"""The token step: fetched once, fetched again at 401, and all within the attempt's time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.dispatcher import Dispatcher
from tests.unit.messages import check_messages
from tests.webhook_receiver import Post, Received, Receiver, Reply, receiver


class Airflow:
    """Gives tokens, and knows which are good."""

    def __init__(self, server: Receiver) -> None:
        self.server = server
        self.good: set[str] = set()
        self.status = 201
        server.answers_by(self.answer)

    def answer(self, request: Received) -> Reply:
        if request.path.endswith("/auth/token"):
            token = f"token-{len(self.tokens)}"
            self.good.add(token)
            return Reply(self.status, json.dumps({"access_token": token}).encode())
        good = request.headers["authorization"].removeprefix("Bearer ") in self.good
        return Reply(200 if good else 401)

    @property
    def tokens(self) -> list[Received]:
        return [request for request in self.server.received if request.path.endswith("/auth/token")]

    @property
    def runs(self) -> list[Received]:
        return [request for request in self.server.received if request.path.endswith("/dagRuns")]


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    with receiver() as server:
        yield Airflow(server)


def office(post: Post, airflow: Airflow, *sequences: int, **fields: object) -> Dispatcher:
    login = {"dagId": "load orders", "username": "robot", "password": "hunter22"}
    base = airflow.server.url.removesuffix("/hook")
    post.owe(f"{base}/af", *sequences, preset="airflow-dag-run", **{"with": login}, **fields)
    return post.dispatcher()


def test_a_token_is_fetched_once_and_used_for_all(airflow: Airflow, post: Post) -> None:
    dispatcher = office(post, airflow, *range(1, 11))
    assert dispatcher.deliver_due().delivered == 10
    assert len(airflow.tokens) == 1
    assert airflow.tokens[0].json == {"username": "robot", "password": "hunter22"}
    run = airflow.runs[0]
    assert run.path == "/af/api/v2/dags/load%20orders/dagRuns"
    assert run.json["dag_run_id"] == run.id
    assert "webhook-id" not in airflow.tokens[0].headers


def test_an_expired_token_is_replaced_within_the_same_attempt(airflow: Airflow, post: Post) -> None:
    dispatcher = office(post, airflow, 1)
    dispatcher.deliver_due()
    airflow.good.clear()
    post.commit(2)
    tally = dispatcher.deliver_due()
    assert (tally.delivered, tally.failed) == (1, 0)
    assert len(airflow.tokens) == 2
    assert len(airflow.runs) == 3


def test_a_token_that_is_never_good_is_fetched_again_once_and_then_given_up(airflow: Airflow, post: Post) -> None:
    airflow.good = type("None_", (set,), {"add": lambda self, each: None})()
    tally = office(post, airflow, 1).deliver_due(until_empty=True)
    assert tally.dead == 1
    assert (len(airflow.tokens), len(airflow.runs)) == (2, 2)


@pytest.mark.parametrize(("status", "calls"), [(401, 1), (403, 1), (500, 3), (429, 3)])
def test_a_login_that_is_refused_is_given_up_and_one_that_fails_is_retried(
    airflow: Airflow, post: Post, status: int, calls: int
) -> None:
    airflow.status = status
    dispatcher = office(post, airflow, 1)
    assert dispatcher.deliver_due(until_empty=True).dead == 1
    assert (len(airflow.tokens), len(airflow.runs)) == (calls, 0)
    (row,) = operations.deliveries(post.store)
    assert row.reason == "token"
    check_messages(row.detail)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"access_token": 7}', b'{"access_token": "a\\r\\nb"}', b'{"x": "y"}'])
def test_an_answer_without_a_token_that_a_header_can_carry_is_no_token(
    airflow: Airflow, post: Post, body: bytes
) -> None:
    airflow.server.answers(Reply(201, body))
    dispatcher = office(post, airflow, 1, maxAttempts=1)
    assert dispatcher.deliver_due().dead == 1
    assert not airflow.runs


def test_the_token_is_part_of_the_attempt_s_time(airflow: Airflow, post: Post) -> None:
    real = airflow.answer

    def slow(request: Received) -> Reply:
        time.sleep(0.7)
        return real(request)

    airflow.server.answers_by(slow)
    dispatcher = office(post, airflow, 1, timeout="1s", maxAttempts=1)
    assert dispatcher.deliver_due().dead == 1
    (row,) = operations.deliveries(post.store)
    assert row.reason == "timeout"


def test_threads_that_all_meet_401_fetch_one_token(airflow: Airflow, post: Post) -> None:
    dispatcher = office(post, airflow, 1)
    dispatcher.deliver_due()
    airflow.good.clear()
    barrier = threading.Event()
    real = airflow.answer

    def slow(request: Received) -> Reply:
        barrier.wait(0.1)
        return real(request)

    airflow.server.answers_by(slow)
    post.commit(*range(2, 20))
    assert dispatcher.deliver_due().delivered == 18
    assert len(airflow.tokens) == 2
