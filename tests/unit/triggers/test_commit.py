from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook
from asgiref.sync import async_to_sync

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.lake import CommitsReader
from airflow_provider_rfr.triggers import CommitReachedTrigger, CommitTrigger, in_thread
from tests.soon import SOON, soon
from tests.unit.sinks.exporting import replace_files
from tests.unit.triggers.lake import Lake


class AssetState:
    """What the triggerer gives an event trigger to remember with."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.kept.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = value


def watcher(memory: AssetState | None) -> CommitTrigger:
    trigger = CommitTrigger("raw.orders", asset="orders", lake_conn_id="lake", poll_interval=0.01)
    trigger.asset_state_store = memory  # type: ignore[assignment]
    return trigger


async def events(trigger: CommitTrigger | CommitReachedTrigger, count: int) -> list[dict[str, Any]]:
    """The first events."""
    stream: AsyncIterator[Any] = trigger.run()
    try:
        return [(await asyncio.wait_for(anext(stream), SOON)).payload for _ in range(count)]
    finally:
        await stream.aclose()


def ids(trigger: CommitTrigger, count: int = 1) -> list[str]:
    """Snapshots of the first events."""
    return [event["snapshot_id"] for event in asyncio.run(events(trigger, count))]


def looked(memory: AssetState | None = None) -> AssetState:
    """What a trigger remembers that has looked at the table, and was ended."""
    memory = memory or AssetState()
    asyncio.run(nothing(watcher(memory), memory))
    return memory


async def nothing(trigger: CommitTrigger | CommitReachedTrigger, memory: AssetState | None = None) -> None:
    """There is no event; with a memory, the trigger has looked by then."""
    before = None if memory is None else dict(memory.kept)
    stream: AsyncIterator[Any] = trigger.run()
    first = asyncio.ensure_future(anext(stream))
    with soon():
        while memory is not None and memory.kept == before:
            await asyncio.sleep(0.01)
    done, _ = await asyncio.wait([first], timeout=1.0)
    assert not done
    first.cancel()
    await asyncio.wait([first])
    await stream.aclose()


def test_a_catalog_that_does_not_answer_for_a_while_ends_no_wait(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    file = Path(lake.catalog.properties["uri"].removeprefix("sqlite:///"))
    reached = CommitReachedTrigger(["raw.orders"], datetime.now(timezone.utc).isoformat(), {}, "lake", 0.01)

    async def wait() -> list[list[dict[str, Any]]]:
        memory = AssetState()
        file.rename(file.with_suffix(".away"))
        file.mkdir()
        waiting = asyncio.gather(events(reached, 1), events(watcher(memory), 1))
        while caplog.text.count("unable to open database file; check that it runs") < 2:
            await asyncio.sleep(0.01)
        assert memory.kept == {}, "it knows nothing yet"
        file.rmdir()
        file.with_suffix(".away").rename(file)
        while not memory.kept:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(lake.commit, "raw.orders")
        return list(await waiting)

    reached_with, watched = asyncio.run(wait())
    assert reached_with[0]["commits"]["raw.orders"] == watched[0]


def test_every_commit_after_the_first_look_is_told_once_and_in_order(lake: Lake) -> None:
    lake.commit("raw.orders")
    memory = AssetState()

    async def watch() -> list[dict[str, Any]]:
        watching = asyncio.create_task(events(watcher(memory), 2))
        while not memory.kept:
            await asyncio.sleep(0.01)
        ids = [await asyncio.to_thread(lake.commit, "raw.orders", rfr_generation="7", rfr_rows="12") for _ in range(2)]
        told = await watching
        assert [event["snapshot_id"] for event in told] == ids
        return told

    told = asyncio.run(watch())
    assert [event["sequence"] for event in told] == [2, 3]
    assert told[0]["table"] == "raw.orders"
    assert (told[0]["generation"], told[0]["rows"]) == (7, 12)


def test_commits_made_while_no_triggerer_ran_are_told_afterwards(lake: Lake) -> None:
    lake.commit("raw.orders")
    memory = looked()
    missed = [lake.commit("raw.orders") for _ in range(3)]
    assert ids(watcher(memory), 3) == missed


def test_a_triggerer_that_dies_after_an_event_tells_it_again_and_loses_none(lake: Lake) -> None:
    lake.commit("raw.orders")
    memory = looked()
    first, second = lake.commit("raw.orders"), lake.commit("raw.orders")
    # The stream is closed where the event has been given and not yet been noted.
    assert ids(watcher(memory)) == [first]
    assert ids(watcher(memory), 2) == [first, second]


@pytest.mark.parametrize("kept", [{}, {"rfr_commit_seen": {"sequence": "?"}}])
def test_the_first_commit_of_a_table_that_was_not_there_is_told(lake: Lake, kept: dict[str, Any]) -> None:
    """Also where the memory says something else, which is no memory."""
    memory = AssetState()
    memory.kept |= kept
    looked(memory)
    snapshot = lake.commit("raw.orders")
    assert ids(watcher(memory)) == [snapshot]


def test_a_table_made_anew_is_told_from_its_first_commit(lake: Lake) -> None:
    for _ in range(3):
        lake.commit("raw.orders")
    memory = looked()
    lake.drop("raw.orders")
    made_anew = [lake.commit("raw.orders") for _ in range(5)]
    assert ids(watcher(memory), 5) == made_anew


def test_without_a_memory_the_next_commit_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.commit("raw.orders")
    real, looked = CommitsReader.position, threading.Event()

    def position(reader: CommitsReader, table: str) -> Any:
        found = real(reader, table)
        looked.set()
        return found

    monkeypatch.setattr(CommitsReader, "position", position)

    async def watch() -> tuple[str, list[dict[str, Any]]]:
        watching = asyncio.create_task(events(watcher(None), 1))
        assert await asyncio.to_thread(looked.wait, SOON)
        return await asyncio.to_thread(lake.commit, "raw.orders"), await watching

    snapshot, told = asyncio.run(watch())
    assert [event["snapshot_id"] for event in told] == [snapshot]


def test_a_wait_for_several_tables_ends_once_all_have_a_late_commit(lake: Lake) -> None:
    lake.commit("raw.orders")
    since = datetime.now(timezone.utc).isoformat()
    trigger = CommitReachedTrigger(["raw.orders", "raw.items"], since, {}, "lake", 0.01)
    asyncio.run(nothing(trigger))
    items = lake.commit("raw.items")
    asyncio.run(nothing(trigger))
    orders = lake.commit("raw.orders")
    (found,) = asyncio.run(events(trigger, 1))
    assert {table: commit["snapshot_id"] for table, commit in found["commits"].items()} == {
        "raw.orders": orders,
        "raw.items": items,
    }


def test_the_commit_that_an_event_named_counts_and_so_do_later_ones(lake: Lake) -> None:
    rolled_back = CommitReachedTrigger(["raw.orders"], "2999-01-01T00:00:00+00:00", {"raw.orders": "7"}, "lake", 0.01)
    snapshot = lake.commit("raw.orders")
    asyncio.run(nothing(rolled_back))
    trigger = CommitReachedTrigger(["raw.orders"], rolled_back.after, {"raw.orders": snapshot}, "lake", 0.01)
    for _ in range(2):
        [event] = asyncio.run(events(trigger, 1))
        assert event["commits"]["raw.orders"]["snapshot_id"] == snapshot
        snapshot = lake.commit("raw.orders")


@pytest.mark.parametrize(
    "trigger",
    [
        watcher(None),
        CommitReachedTrigger(["raw.orders"], "2026-01-01T00:00:00+00:00", {"raw.orders": "7"}, "lake", 5.0),
    ],
)
def test_a_trigger_is_made_again_from_what_it_says(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    assert type(trigger)(**arguments).serialize() == (path, arguments)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the connections that were asked for."""
    seen: list[str] = []
    read = BaseHook.aget_connection

    async def counted(conn_id: str) -> Any:
        seen.append(conn_id)
        return await read(conn_id)

    monkeypatch.setattr(BaseHook, "aget_connection", counted)
    return seen


WRONG_TYPE = json.dumps({"conn_type": "http", "host": "example.com"})


def test_a_watcher_waits_for_its_connection_and_warns_once_for_each_problem(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reads: list[str]
) -> None:
    lake.commit("raw.orders")
    right = os.environ["AIRFLOW_CONN_LAKE"]
    monkeypatch.delenv("AIRFLOW_CONN_LAKE")
    memory = AssetState()

    async def polls(count: int) -> None:
        reads.clear()
        while len(reads) < count:
            await asyncio.sleep(0.01)

    async def story() -> tuple[str, list[dict[str, Any]]]:
        watching = asyncio.create_task(events(watcher(memory), 1))
        await polls(4)
        assert caplog.text.count("checked again every 0.01 s") == 1
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", WRONG_TYPE)
        await polls(4)
        assert caplog.text.count("checked again every 0.01 s") == 2
        assert not watching.done()
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", right)
        while not memory.kept:
            await asyncio.sleep(0.01)
        return await asyncio.to_thread(lake.commit, "raw.orders"), await watching

    snapshot, seen = asyncio.run(asyncio.wait_for(story(), SOON))
    assert [event["snapshot_id"] for event in seen] == [snapshot]


@pytest.mark.parametrize(("connection", "error"), [(None, AirflowNotFoundException), (WRONG_TYPE, ConfigurationError)])
def test_a_sensors_trigger_fails_at_once_for_its_connection(
    monkeypatch: pytest.MonkeyPatch, connection: str | None, error: type[Exception]
) -> None:
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_LATE", connection)
    trigger = CommitReachedTrigger(["raw.orders"], "2026-01-01T00:00:00+00:00", {}, "late", 0.01)
    with pytest.raises(error):
        asyncio.run(events(trigger, 1))


def test_a_connection_that_works_is_not_read_at_each_poll(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    polls = []
    read = CommitsReader.commits

    def counted(reader: CommitsReader, *arguments: Any) -> Any:
        polls.append(1)
        return read(reader, *arguments)

    monkeypatch.setattr(CommitsReader, "commits", counted)

    async def story() -> None:
        watching = asyncio.create_task(events(watcher(AssetState()), 1))
        while len(polls) < 3:
            await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(asyncio.wait_for(story(), SOON))
    assert reads == ["lake"]


def test_a_compaction_is_no_commit(lake: Lake) -> None:
    """Neither for a watcher nor for a sensor; a watcher's position moves past it."""
    commits = [lake.commit("raw.orders") for _ in range(2)]
    since = datetime.now(timezone.utc)
    table = lake.catalog.load_table("raw.orders")
    replace_files(table, None)
    reader, memory = CommitsReader(BaseHook.get_connection("lake")), AssetState()
    assert [commit and commit["snapshot_id"] for _, commit in reader.commits("raw.orders", None)] == [*commits, None]
    assert reader.newest_after(["raw.orders"], since, {}) is None
    memory.kept["rfr_commit_seen"] = [str(table.metadata.table_uuid), 1]
    asyncio.run(events(watcher(memory), 1))
    memory.kept["rfr_commit_seen"] = [str(table.metadata.table_uuid), 2]
    looked(memory)
    assert memory.kept["rfr_commit_seen"] == [str(table.metadata.table_uuid), 3]
    last = lake.commit("raw.orders")
    assert ids(watcher(memory)) == [last]
    newest = reader.newest_after(["raw.orders"], since, {})
    assert newest is not None
    assert newest["raw.orders"]["snapshot_id"] == last


def test_a_thread_asks_airflow_in_the_event_loop_of_the_triggerer() -> None:
    """Airflow 3.1 and 3.2 take one answer for another where two event loops ask for connections."""

    async def trigger() -> bool:
        loop, name = asyncio.get_running_loop(), threading.current_thread().name

        async def loop_of_the_question() -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        def look() -> tuple[str, asyncio.AbstractEventLoop]:
            return threading.current_thread().name, async_to_sync(loop_of_the_question)()

        thread, asked = await in_thread(look)
        return thread != name and asked is loop

    assert asyncio.run(trigger())
