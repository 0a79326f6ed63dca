"""Streams of one document, side by side over real HTTP and a real catalog; the driver reads and publishes alone."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RefreshFailedError, RefreshStoppedError, SparkJobError, TypeMismatchError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh import ledger
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.refresh.round_task import TaskResult
from airflow_provider_rfr.refresh.rounds import Rounds, StreamReader, divided
from airflow_provider_rfr.refresh.side_by_side import StreamRuns
from tests.soon import SOON, wait_until
from tests.unit.refresh.in_driver import DriverOnly
from tests.unit.refresh.test_rounds import Threads

sys.path.append(str(Path(__file__).parents[1] / "streams"))
from rest_api import Api, Asked, Reply

PARENTS = 7
PAGES = 3
TEAMS = {"request": {"path": "/teams"}, "records": {"path": "data"}, "paginator": {"type": "page_number"}}
CHAIN = {"records": {"path": "data"}, "paginator": {"type": "cursor", "cursor": {"path": "next"}}}


def chain(path: str) -> dict[str, Any]:
    return {**CHAIN, "request": {"path": path}}


def children(path: str) -> dict[str, Any]:
    partitions = {"type": "substream", "parent": "teams", "parent_key": "id", "field": "team"}
    return {**chain(path + "/{{ stream_slice.team }}"), "partitions": partitions}


class World:
    """An API of chains of three pages, of pages of teams, and a lake."""

    def __init__(self, folder: Path) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", self.properties))
        self.api = Api()
        self.api.answer = self.answer
        self.seconds = 0.0
        self.broken: tuple[str, ...] = ()
        self.stopping = threading.Event()
        self.in_flight: Counter[str] = Counter()
        self.most_in_flight = 0
        #: Answers wait until so many requests have been in flight.
        self.gathers = 0
        self._lock = threading.Condition()

    def answer(self, asked: Asked) -> Reply:
        path = asked.path.split("?")[0]
        with self._lock:
            self.in_flight[path] += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight.total())
            self._lock.notify_all()
            self._lock.wait_for(lambda: self.most_in_flight >= self.gathers, SOON)
        time.sleep(self.seconds)
        with self._lock:
            self.in_flight[path] -= 1
        if path in self.broken:
            return Reply({"error": "gone"}, 403)
        if path == "/teams":
            first = (asked.page - 1) * 2
            return Reply({"data": [{"id": number} for number in range(first, min(first + 2, PARENTS))]})
        page = int(asked.query.get("cursor", 1))
        return Reply({"data": [{"id": page}], "next": page + 1 if page < PAGES else None})

    def run(
        self, streams: dict[str, Any], *loaded: str, cluster: Any = None, sync: str = "full", **options: Any
    ) -> StreamRuns:
        document = {
            "sync": sync,
            "source": {"definition": {"base_url": self.api.url, "streams": streams}},
            "streams": list(loaded or streams),
            "target": "raw.{stream}",
            "lake": {"name": "rfr", "properties": self.properties},
            "options": options,
        }
        runs = StreamRuns(
            parse_config(document),
            cluster or DriverOnly("test"),
            stopping=self.stopping,
            report=lambda stream, report: None,
            report_failure=lambda stream, error: None,
            open_history=None,
        )
        self.figures, self.errors = runs.run()
        return runs

    def rows(self, stream: str) -> int:
        return self.catalog.load_table(f"raw.{stream}").scan().to_arrow().num_rows

    def asked(self, path: str) -> Counter[str]:
        return Counter(asked.path for asked in self.api.asked if asked.path.startswith(path))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.api.close()


def test_all_streams_are_published_and_none_is_asked_twice(world: World) -> None:
    streams = {f"s{number}": chain(f"/s{number}") for number in range(6)}
    world.run(streams)
    assert not world.errors
    assert {stream: world.rows(stream) for stream in streams} == dict.fromkeys(streams, PAGES)
    assert set(world.asked("/s").values()) == {1}


def test_a_failing_stream_harms_no_other(world: World) -> None:
    world.broken = ("/b",)
    world.run({name: chain(f"/{name}") for name in "abc"})
    assert {name: type(error) for name, error in world.errors.items()} == {"b": RefreshFailedError}
    assert (world.rows("a"), world.rows("c")) == (PAGES, PAGES)
    assert set(world.figures) == {"a", "b", "c"}


@pytest.mark.parametrize("concurrency", [2, 5])
def test_the_streams_share_one_concurrency_and_use_all_of_it(world: World, concurrency: int) -> None:
    world.seconds, world.gathers = 0.05, concurrency
    world.run({f"s{number}": chain(f"/s{number}") for number in range(8)}, concurrency=concurrency)
    assert world.most_in_flight == concurrency


def test_streams_at_once_bounds_how_many_run(world: World) -> None:
    world.seconds = 0.05
    world.run({f"s{number}": chain(f"/s{number}") for number in range(4)}, streams_at_once=1)
    assert not world.errors
    assert world.most_in_flight == 1


@pytest.mark.parametrize("loaded", [True, False])
def test_a_parent_is_read_once_for_all_its_children(world: World, loaded: bool) -> None:
    streams = {"first": children("/first"), "second": children("/second"), "teams": TEAMS}
    world.run(streams, *(() if loaded else ("first", "second")))
    assert not world.errors
    asked = world.asked("/teams")
    assert [asked[f"/teams?page={page}"] for page in range(1, 5)] == [1, 1, 1, 1]
    assert (world.rows("first"), world.rows("second")) == (PARENTS * PAGES, PARENTS * PAGES)


def test_a_child_that_fails_while_it_lists_a_parent_keeps_none_of_the_others_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_OPENING_ROWS_A_FILE", 1)
    write, failures = ledger.write_rows, iter([OSError("the store is away")])

    def away_once(*arguments: Any, **more: Any) -> Any:
        for failure in failures:
            raise failure
        return write(*arguments, **more)

    monkeypatch.setattr(ledger, "write_rows", away_once)
    world.run({"first": children("/first"), "second": children("/second"), "teams": TEAMS}, "first", "second")
    [failed] = world.errors
    assert world.rows("second" if failed == "first" else "first") == PARENTS * PAGES


def test_a_sync_asks_for_the_children_of_parents_that_did_not_change(world: World) -> None:
    """The parent's generation has the changed records alone, and its ledger is no list of all parents."""
    changes = {"cursor_field": "id", "type": "integer", "start": "0", "send_as": {"query": "since"}}
    streams = {
        "child": {**children("/child"), "primary_key": "id", "incremental": changes},
        "teams": {**TEAMS, "primary_key": "id", "incremental": changes},
    }
    for _ in range(2):
        world.api.asked.clear()
        world.run(streams, sync="incremental", mode="merge")
        assert not world.errors
        assert {path.split("?")[0] for path in world.asked("/child")} == {f"/child/{team}" for team in range(PARENTS)}


def test_children_of_a_parent_that_fails_read_it_from_the_api(world: World) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "boolean"}}}
    world.run({"child": children("/child"), "teams": {**TEAMS, "json_schema": schema}})
    assert {name: type(error) for name, error in world.errors.items()} == {"teams": TypeMismatchError}
    assert world.rows("child") == PARENTS * PAGES


def test_an_application_that_ends_begins_no_other_stream(world: World) -> None:
    world.stopping.set()
    world.run({"a": chain("/a"), "b": chain("/b")})
    assert {name: type(error) for name, error in world.errors.items()} == {
        "a": RefreshStoppedError,
        "b": RefreshStoppedError,
    }
    assert not world.api.asked


def test_one_core_reads_several_streams_at_once(world: World) -> None:
    """A Spark job for each stream would leave all but one chain waiting for the core."""
    world.seconds = 0.2
    streams = {f"s{number}": chain(f"/s{number}") for number in range(4)}
    world.run(streams, cluster=Threads(cores=1), head_start=False)
    assert not world.errors
    assert world.most_in_flight > 1


def test_a_round_that_fails_ends_no_stream_that_waits_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {f"s{number}": chain(f"/s{number}") for number in range(5)}
    take_part, asked_for_a_round = Rounds.take_part, set()

    def noted(rounds: Rounds, reader: StreamReader, wanted: int) -> list[TaskResult]:
        asked_for_a_round.add(reader.stream)
        return take_part(rounds, reader, wanted)

    class FailsInTheSecondRound(Threads):
        rounds = 0

        def run(self, function: Any, items: Any) -> list[Any]:
            self.rounds += any(isinstance(item, tuple) for item in items)
            if self.rounds == 2:
                raise SparkJobError("the job failed")
            # Two of the streams that wait get a thread in the second round.
            wait_until(lambda: asked_for_a_round == set(streams))
            return super().run(function, items)

    monkeypatch.setattr(Rounds, "take_part", noted)
    world.run(streams, cluster=FailsInTheSecondRound(), head_start=False, concurrency=2, streams_at_once=5)
    assert [type(error) for error in world.errors.values()] == [SparkJobError, SparkJobError]
    published = set(streams) - set(world.errors)
    assert {stream: world.rows(stream) for stream in published} == dict.fromkeys(published, PAGES)


@pytest.mark.parametrize(
    ("wanted", "total", "shares"),
    [
        ([16], 16, [16]),
        ([1, 1, 1], 16, [1, 1, 1]),
        ([16, 1, 16], 16, [8, 1, 7]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([0, 3], 16, [0, 3]),
    ],
)
def test_threads_are_divided_evenly(wanted: list[int], total: int, shares: list[int]) -> None:
    assert divided(wanted, total) == shares
