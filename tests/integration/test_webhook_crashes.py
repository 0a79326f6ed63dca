"""SIGKILL at every place that matters, by real processes, on SQLite and on PostgreSQL; a real endpoint counts calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.store.deliveries import Selection
from airflow_provider_rfr.store.engine import open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.outbox import delivery_id
from tests import forked
from tests.integration import webhook_program
from tests.integration.conftest import Lake
from tests.soon import SOON, wait_until
from tests.webhook_receiver import Received, Receiver, Reply, receiver

ID = delivery_id("commit-1", "hook")
ALL = (("commit", 1), ("enqueue",), ("deliver",))
AGAIN = (("enqueue",), ("deliver",))


@dataclass
class Scene:
    """A lake, a store, endpoints, and processes that work with them."""

    folder: Path
    store: str
    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)

    def endpoint(self, name: str, url: str, **more: Any) -> None:
        payload = {"id": "{{delivery_id}}", "commits": "{{merged_commits}}", "last": "{{commit_id}}"}
        # Long enough for an answer on a busy machine; the claim of a killed process is held a second longer.
        common = {"payload": payload, "timeout": "3s"}
        self.endpoints[name] = {"url": url, **common, **more}

    def task(self, *steps: tuple[Any, ...], kill: str | None = None) -> dict[str, Any]:
        lake = Lake(self.folder).properties
        triggers = {"config": self.endpoints}
        return {"lake": lake, "store": self.store, "steps": steps, "kill": kill, "triggers": triggers}

    def start(self, *steps: tuple[Any, ...], kill: str | None = None) -> ForkServerProcess:
        return forked.start(webhook_program.main, self.task(*steps, kill=kill))

    def killed(self, *steps: tuple[Any, ...], at: str) -> None:
        """A process that is killed at the place."""
        assert forked.exit_code(self.start(*steps, kill=at)) == -9

    def run(self, *steps: tuple[Any, ...]) -> None:
        """By somebody who is not killed: here, which is another process than that one."""
        webhook_program.main(self.task(*steps))

    def states(self) -> dict[str, str]:
        store = open_store(self.store)
        states = {row.id: row.state for row in operations.deliveries(store, Selection(), None)}
        store.close()
        return states


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.gate), "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, server: Receiver) -> Scene:
    is_sqlite = request.param == "sqlite"
    store = f"sqlite:///{tmp_path}/store.db" if is_sqlite else request.getfixturevalue("postgres").new_database()
    scene = Scene(tmp_path, store)
    scene.endpoint("hook", server.url)
    return scene


@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("before the commit", 0),
        ("after the commit", 1),
        ("before the rows", 1),
        ("in the rows' transaction", 1),
        ("after the rows", 1),
        ("in the claim's transaction", 1),
        ("after the claim", 1),
        ("after the answer", 2),
        ("in the settlement's transaction", 2),
        ("after the settlement", 1),
    ],
)
def test_a_sigkill_loses_no_event_and_doubles_none_but_where_it_must(
    place: str, calls: int, scene: Scene, server: Receiver
) -> None:
    scene.killed(*ALL, at=place)
    scene.run(*AGAIN, *AGAIN)
    assert server.ids == [ID] * calls
    assert set(scene.states().values()) <= {"delivered"}


def test_a_sigkill_while_the_endpoint_is_at_it_repeats_the_call_under_the_same_id(
    scene: Scene, server: Receiver
) -> None:
    processes: list[ForkServerProcess] = []

    def answer(request: Received) -> Reply:
        if len(server.received) == 1:
            processes[0].kill()
            forked.exit_code(processes[0])
        return Reply(200)

    server.answers_by(answer)
    processes.append(scene.start(*ALL))
    assert forked.exit_code(processes[0]) == -9
    assert scene.states() == {ID: "pending"}
    scene.run(*AGAIN)
    assert server.ids == [ID, ID]
    assert scene.states() == {ID: "delivered"}


def test_four_deliverers_at_once_call_once_for_each_delivery(scene: Scene, server: Receiver) -> None:
    scene.run(("enqueue",), ("commit", *range(1, 31)), ("enqueue",))
    processes = [scene.start(("deliver",)) for _ in range(4)]
    assert [forked.exit_code(process) for process in processes] == [0] * 4
    assert sorted(server.ids) == sorted(delivery_id(f"commit-{n}", "hook") for n in range(1, 31))
    assert set(scene.states().values()) == {"delivered"}


def test_four_deliverers_of_whom_two_are_killed_converge(scene: Scene, server: Receiver) -> None:
    scene.run(("enqueue",), ("commit", *range(1, 31)), ("enqueue",))

    def answer(request: Received) -> Reply:
        time.sleep(0.02)
        return Reply(200)

    server.answers_by(answer)
    processes = [scene.start(("deliver",)) for _ in range(4)]
    for number, process in enumerate(processes[:2]):
        wait_until(lambda: len(server.received) >= 5 * (number + 1), every=0.005)  # noqa: B023
        process.kill()
    for process in processes:
        forked.exit_code(process)
    scene.run(*AGAIN)
    assert set(server.ids) == {delivery_id(f"commit-{n}", "hook") for n in range(1, 31)}
    assert set(scene.states().values()) == {"delivered"}
    # What a killed one had under way, on at most four threads.
    assert len(server.ids) - 30 <= 2 * 16


def test_a_dead_endpoint_costs_the_living_one_no_second_call(scene: Scene, server: Receiver) -> None:
    with receiver() as silent:

        def answer(request: Received) -> Reply:
            silent.closing.wait(SOON)
            return Reply(200)

        silent.answers_by(answer)
        scene.endpoint("dead", silent.url, maxAttempts=50)
        scene.run(("commit", 1), ("enqueue",))
        for number in range(3):
            process = scene.start(*AGAIN)
            while len(silent.received) <= number or scene.states()[ID] != "delivered":
                assert process.exitcode is None
                time.sleep(0.02)
            process.kill()
            forked.exit_code(process)
    assert server.ids == [ID]
    assert set(silent.ids) == {delivery_id("commit-1", "dead")}


@pytest.mark.parametrize(
    ("place", "calls"),
    [("in the claim's transaction", 1), ("after the claim", 1), ("after the answer", 2), ("after the settlement", 1)],
)
def test_a_window_of_commits_survives_a_sigkill_whole(place: str, calls: int, scene: Scene, server: Receiver) -> None:
    scene.endpoint("hook", server.url, interval="1h")
    scene.run(("enqueue",), ("commit", 1, 2, 3), ("enqueue",))
    scene.killed(("deliver",), at=place)
    scene.run(*AGAIN)
    assert len(set(server.ids)) == 1
    assert [request.json for request in server.received] == [
        {"id": server.ids[0], "commits": 3, "last": "commit-3"}
    ] * calls
    assert sorted(scene.states().values()) == ["delivered", "merged", "merged", "merged"]
