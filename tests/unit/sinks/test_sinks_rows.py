"""Each row that comes is sent once, in order; migrations, compactions and deletions send nothing."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import IntegerType

from airflow_provider_rfr.exceptions import ConfigurationError, SinkDeliveryError, SinkError
from airflow_provider_rfr.lake.expiry import _MAX_AGE, _MIN_SNAPSHOTS, HOLD, expire_table
from airflow_provider_rfr.sinks.run import hold_snapshots
from tests.unit.messages import raises
from tests.unit.sinks.exporting import SINK, SOURCE, SOURCE_ID, Scene, numbers, replace_files


def test_what_the_table_holds_is_sent_first_and_then_what_comes_once(scene: Scene) -> None:
    scene.create().add((1, "a"), (2, None))
    scene.table.delete("id == 1")
    first = scene.run()
    assert scene.sent() == [{"id": 2, "v": None}]
    scene.add((3, "c"))
    last = scene.add((4, "d"))
    second, third = scene.run(), scene.run()
    assert scene.ids() == [2, 3, 4]
    assert (first.batches, second.batches, third.batches) == (1, 1, 0)
    assert (second.rows, second.cursor, second.done) == (2, last, True)
    state = scene.state()
    assert (state.name, state.source, state.cursor) == (SINK, SOURCE_ID, last)
    assert scene.row().physical == str(scene.table.metadata.table_uuid) and state.on_replace == "hold"


def test_a_sink_of_a_table_without_rows_waits_for_them(scene: Scene) -> None:
    scene.create()
    assert scene.run().cursor is None and scene.state().cursor is None
    scene.add((1, "a"))
    assert scene.run().rows == 1


def test_small_commits_go_together_and_large_ones_in_parts(scene: Scene) -> None:
    scene.begin((0, "a"), settings={"batch_size": 3})
    for number in (1, 2):
        scene.add((number, "b"))
    scene.add(*numbers(range(3, 10)))
    assert scene.run().batches == 3
    assert [len(file.read_text().splitlines()) for file in scene.files()] == [1, 3, 3, 3]
    assert scene.ids() == list(range(10))
    assert (scene.row().rows, scene.row().batches) == (10, 4)


def test_a_run_may_end_after_some_batches_and_the_next_one_goes_on(scene: Scene) -> None:
    scene.redeclare(settings={"batch_size": 2})
    scene.create().add(*numbers(range(7)))
    assert [scene.run(batches=1).done for _ in range(3)] == [False] * 3
    scene.add((7, "late"))
    assert scene.run().done
    assert scene.ids() == list(range(8))


def test_the_batch_size_may_change_in_the_middle_of_a_commit(half_sent: Scene) -> None:
    half_sent.redeclare(settings={"batch_size": 50})
    half_sent.deploy("metadata")
    half_sent.run()
    assert half_sent.ids() == list(range(5))


def test_migrations_are_passed_and_appends_around_them_are_sent_once(begun: Scene) -> None:
    """Both snapshots of a rewrite carry the tag."""
    begun.add((2, "b"))
    begun.rewrite((1, "A"), (2, "B"))
    begun.add((3, "c"))
    assert begun.operations()[-3:] == ["delete", "append", "append"]
    begun.run()
    assert begun.sent() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]


def test_a_migration_alone_moves_the_cursor_and_sends_nothing(begun: Scene) -> None:
    begun.rewrite((1, "A"))
    done = begun.run()
    assert (done.batches, done.cursor) == (0, begun.table.current_snapshot().snapshot_id)
    assert begun.state().cursor == done.cursor and len(begun.files()) == 1


def test_deletions_and_compactions_send_nothing(begun: Scene) -> None:
    begun.add((2, "b"))
    begun.run()
    begun.table.delete("id == 1")
    replace_files(begun.table, None)
    begun.add((3, "c"))
    assert begun.operations() == ["append", "append", "delete", "replace", "append"]
    begun.run()
    assert sorted(begun.ids()) == [1, 2, 3]


def test_a_partitioned_source_with_a_column_that_came_later(scene: Scene) -> None:
    with scene.table.update_spec() as update:
        update.add_identity("v")
    scene.redeclare(columns=("later", "v", "id"))
    scene.create().run()
    scene.add((1, "a"), (2, "b"))
    with scene.table.update_schema() as update:
        update.add_column("later", IntegerType())
    scene.run()
    scene.add((3, "a"))
    scene.run()
    assert sorted(scene.ids()) == [1, 2, 3]
    assert {(row["later"], row["v"]) for row in scene.sent()} == {(None, "a"), (None, "b")}


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_a_file_is_named_by_its_batch_and_is_there_whole(scene: Scene, name: str) -> None:
    scene.begin((1, "a"), settings={"path": f"file://{scene.out}", "format": name})
    (file,) = scene.files()
    assert file.name == f"{scene.row().last_batch}.{name}" and file.name.startswith("0000000000-")
    if name == "parquet":
        assert pq.read_table(file).to_pylist() == [{"id": 1, "v": "a"}]
        assert pq.read_metadata(file).metadata[b"rfr.batch"].decode() == scene.row().last_batch
    else:
        assert json.loads(file.read_text()) == {"id": 1, "v": "a"}


def test_files_go_to_any_file_system(scene: Scene) -> None:
    scene.begin((1, "a"), settings={"path": f"memory://{scene.folder.name}/out"})
    files = fsspec.filesystem("memory")
    (path,) = files.ls(f"/{scene.folder.name}/out", detail=False)
    assert files.cat_file(path) == b'{"id":1,"v":"a"}\n'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"to": "ftp"}, "sink.to: 'ftp' is not a target; allowed: files, http"),
        ({"to": "http", "settings": {"connection": "c"}}, "target: is not one of a sink to http"),
        ({"settings": {"batch_size": 0}}, "sink.settings.batch_size: 0 is not a number of rows"),
        ({"settings": {"batchsize": 9}}, "sink.settings.batchsize: is not a setting of a sink to files"),
        ({"settings": {"emit": "all"}}, "sink.settings.emit: 'all' is unknown; allowed: rows, diff"),
        ({"settings": {"emit": "diff"}}, "has no keys to determine changes by; declare keys of the source"),
        ({"settings": {"format": "csv"}}, "sink.settings.format: 'csv' is not a format; allowed: jsonl, parquet"),
        ({"settings": {"path": "nowhere://x"}}, "sink.settings.path: a file system of this protocol can't be opened"),
    ],
)
def test_what_is_declared_wrong_is_told_before_anything_is_sent(scene: Scene, change: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        scene.begin((1, "a"), **change)
    assert scene.row().batches == 0


def test_a_sink_that_was_never_deployed_and_one_without_a_source_say_so(scene: Scene) -> None:
    with raises(ConfigurationError):
        scene.run()
    scene.create()
    scene.redeclare(source="ops.other")
    with raises(SinkError):
        scene.run()


def expire(scene: Scene) -> tuple[int, list[int]]:
    """Return how many snapshots expired, and how many each sink kept."""
    with scene.table.transaction() as transaction:
        transaction.set_properties({_MAX_AGE: "0", _MIN_SNAPSHOTS: "1"})
    expired = expire_table(scene.catalog, SOURCE, now_ms=int(time.time() * 1000) + 1)
    return expired.snapshots, list(expired.held.values())


def test_an_expiry_keeps_what_a_sink_has_not_sent(begun: Scene) -> None:
    for number in range(2, 6):
        begun.add((number, "x"))
    assert expire(begun) == (0, [4])
    begun.run()
    assert expire(begun) == (4, [])
    begun.add((6, "y"))
    begun.run()
    assert begun.ids() == [1, 2, 3, 4, 5, 6]


def test_a_run_that_dies_at_its_first_batch_has_said_what_it_needs(scene: Scene) -> None:
    scene.create().add((1, "a"))
    scene.to_http("http://127.0.0.1:9")
    with pytest.raises(SinkDeliveryError):
        scene.run()
    scene.add((2, "b"))
    assert expire(scene)[0] == 0


def test_a_sink_of_another_name_holds_once_and_one_that_is_gone_not_at_all(begun: Scene) -> None:
    def holds() -> list[str]:
        return [key for key in begun.table.properties if key.startswith(HOLD)]

    begun.sink = replace(begun.sink, name="ops.other")
    begun.deploy("metadata")
    begun.run()
    assert holds() == [f"{HOLD}sink.ops.other.{begun.sink.id.hex[:8]}"]
    hold_snapshots(begun.catalog, SOURCE, begun.sink.id)
    assert not holds()
