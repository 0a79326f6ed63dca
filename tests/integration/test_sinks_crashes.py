"""SIGKILL before and after each acknowledgement, by real processes: the receiver takes every row once, by batch ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from airflow_provider_rfr.store.tables import LEASES
from tests import forked
from tests.integration import sink_program
from tests.unit.sinks.exporting import Scene, numbers
from tests.webhook_receiver import Received, Receiver, Reply

pytestmark = pytest.mark.gate


@dataclass
class Exporting:
    """A sink with three commits to send, and processes that send them."""

    scene: Scene
    url: str | None = None

    def task(self, **more: Any) -> dict[str, Any]:
        store = f"sqlite:///{self.scene.folder}/control.db"
        return {"folder": str(self.scene.folder), "store": store, "url": self.url, **more}

    def start(self, **more: Any) -> ForkServerProcess:
        return forked.start(sink_program.main, self.task(**more))

    def killed(self, **more: Any) -> None:
        assert forked.exit_code(self.start(**more)) == -9
        self.end_lease()

    def end_lease(self) -> None:
        """What time does; the killed one can't give it back."""
        self.scene.store.run(lambda connection: connection.execute(update(LEASES).values(until=1)))

    def go_on(self) -> None:
        sink_program.main(self.task())


@pytest.fixture
def exporting(tmp_path: Path) -> Iterator[Exporting]:
    scene = Scene.of(tmp_path).create()
    scene.add(*numbers(range(5)))
    yield Exporting(scene)
    scene.store.close()


def later(exporting: Exporting) -> None:
    """What happens while nobody runs: rows come, and a migration rewrites all of them."""
    exporting.scene.add((5, "v5"))
    exporting.scene.rewrite(*((number, "rewritten") for number in range(6)))
    exporting.scene.add((6, "v6"))


def taken(server: Receiver) -> list[int]:
    """The rows as a receiver has them that takes each batch id once."""
    bodies: dict[str, Any] = {}
    for request in server.received:
        known = bodies.setdefault(request.headers["idempotency-key"], request.json)
        assert known == request.json, "an id stands for the same rows for ever"
    return [row["id"] for _, body in sorted(bodies.items()) for row in body["rows"]]


@pytest.mark.parametrize(
    ("place", "number", "repeated"),
    [
        ("before the window", 0, 0),
        ("after the window", 0, 0),
        ("before the batch", 1, 0),
        ("after the batch", 2, 1),
        ("before the cursor", 3, 1),
        ("after the cursor", 3, 0),
    ],
)
def test_a_sigkill_repeats_at_most_the_last_batch_with_its_id(
    place: str, number: int, repeated: int, exporting: Exporting, server: Receiver
) -> None:
    exporting.url = f"http://127.0.0.1:{server.port}"
    exporting.killed(kill=place, number=number)
    if number:
        later(exporting)
    else:
        exporting.scene.add(*numbers((5, 6)))
    exporting.go_on()
    exporting.go_on()
    assert sorted(taken(server)) == list(range(7))
    # No batch reaches over the migration.
    batches = 5 if number else 4
    assert len({request.headers["idempotency-key"] for request in server.received}) == batches
    assert len(server.received) == batches + repeated


def test_a_sigkill_while_the_endpoint_is_at_it_repeats_the_batch_with_its_id(
    exporting: Exporting, server: Receiver
) -> None:
    exporting.url = f"http://127.0.0.1:{server.port}"
    processes: list[ForkServerProcess] = []

    def answer(request: Received) -> Reply:
        if len(server.received) == 2:
            processes[0].kill()
            forked.exit_code(processes[0])
        return Reply(200)

    server.answers_by(answer)
    processes.append(exporting.start())
    forked.exit_code(processes[0])
    exporting.end_lease()
    later(exporting)
    exporting.go_on()
    assert sorted(taken(server)) == list(range(7))
    keys = [received.headers["idempotency-key"] for received in server.received]
    assert keys[1] == keys[2] and len(keys) - len(set(keys)) == 1


def contents(exporting: Exporting) -> dict[str, tuple[bytes, int]]:
    """What is in the files, and which file it is: nobody replaces one that somebody may be reading."""
    return {file.name: (file.read_bytes(), file.stat().st_ino) for file in exporting.scene.files()}


@pytest.mark.parametrize(
    ("place", "number"), [("half a file", 0), ("after the batch", 1), ("after the cursor", 2), ("before the batch", 3)]
)
def test_a_sigkill_leaves_whole_files_with_each_row_once(exporting: Exporting, place: str, number: int) -> None:
    exporting.killed(kill=place, number=number)
    before = {name: content for name, content in contents(exporting).items() if not name.startswith(".")}
    assert [file.name.startswith(".") for file in exporting.scene.files()].count(True) == (place == "half a file")
    later(exporting)
    exporting.go_on()
    assert sorted(exporting.scene.ids()) == list(range(7))
    after = contents(exporting)
    assert before.items() <= after.items() and not [name for name in after if name.startswith(".")]
