"""Exports of changes: what differs by the keys goes out, whoever replaced the rows and in whatever files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_provider_rfr.exceptions import SinkError
from tests.unit.messages import raises
from tests.unit.sinks.exporting import SOURCE, Overwriting, Scene, numbers, replace_files, rows


@pytest.fixture
def changing(scene: Scene) -> Scene:
    """An export of changes that has sent three rows."""
    scene.begin(*numbers((1, 2, 3)), settings={"emit": "diff", "keys": ["ID"], "batch_size": 4})
    assert scene.sent() == [{"_op": "upsert", "id": item, "v": f"v{item}"} for item in (1, 2, 3)]
    return scene


def news(scene: Scene) -> list[dict[str, Any]]:
    return scene.sent()[3:]


def test_a_full_refresh_with_equal_contents_sends_nothing(changing: Scene) -> None:
    replace_files(changing.table, rows(*numbers((3, 2, 1))), Overwriting)
    done = changing.run()
    assert (done.batches, done.cursor) == (0, changing.table.current_snapshot().snapshot_id)


def test_a_full_refresh_sends_what_came_what_changed_and_what_is_gone(changing: Scene) -> None:
    replace_files(changing.table, rows((4, "v4"), (2, "other"), (3, None), (5, "v5"), (6, "v6")), Overwriting)
    changing.run()
    upserts = [{"_op": "upsert", "id": number, "v": v} for number, v in ((4, "v4"), (2, "other"), (3, None))]
    more = [{"_op": "upsert", "id": number, "v": f"v{number}"} for number in (5, 6)]
    assert news(changing) == [*upserts, *more, {"_op": "delete", "id": 1}]
    assert len(changing.files()) == 3


def test_a_materialized_view_that_is_computed_anew_sends_its_differences_alone(changing: Scene) -> None:
    """Row 54: two tagged snapshots, the first of which deletes everything."""
    changing.rewrite(*numbers((1, 2, 3)))
    assert changing.run().batches == 0
    changing.rewrite((1, "v1"), (2, "two"), (3, "v3"))
    changing.add((4, "v4"))
    changing.run()
    changes = sorted(news(changing), key=lambda row: row["id"])
    assert changes == [{"_op": "upsert", "id": 2, "v": "two"}, {"_op": "upsert", "id": 4, "v": "v4"}]


def test_appends_and_deletions_by_others_are_changes(changing: Scene) -> None:
    changing.add((4, "v4"))
    changing.table.delete("id == 2")
    changing.table.upsert(rows((1, "one")), join_cols=["id"])
    changing.run()
    came, *changes = news(changing)
    assert came == {"_op": "upsert", "id": 4, "v": "v4"}
    assert changes == [{"_op": "upsert", "id": 1, "v": "one"}, {"_op": "delete", "id": 2}]


def test_another_type_of_a_column_is_no_change_of_its_values(scene: Scene) -> None:
    scene.begin((1, "1"), (2, "2"), (3, None), settings={"emit": "diff", "keys": ["id"]})
    scene.retype("v", "v", (1, 1), (2, 5), (3, None))
    scene.run()
    assert scene.sent()[3:] == [{"_op": "upsert", "id": 2, "v": 5}]


def test_an_interrupted_comparison_goes_on_with_the_same_batches(changing: Scene) -> None:
    replace_files(changing.table, rows(*((number, "new") for number in range(1, 11))), Overwriting)
    changing.run(batches=1)
    half = [file.name for file in changing.files()]
    replace_files(changing.table, rows(*((number, "newer") for number in range(1, 4))), Overwriting)
    changing.run()
    assert [file.name for file in changing.files()][: len(half)] == half
    assert [row.get("v") for row in news(changing)] == ["new"] * 10 + ["newer"] * 3 + [None] * 7
    last = {row["id"]: row.get("v", row["_op"]) for row in changing.sent()}
    assert last == {**dict.fromkeys((1, 2, 3), "newer"), **dict.fromkeys(range(4, 11), "delete")}


def test_the_identifier_columns_of_the_source_are_its_keys(scene: Scene) -> None:
    scene.catalog.drop_table(SOURCE)
    fields = (NestedField(1, "id", LongType(), required=True), NestedField(2, "v", StringType()))
    table = scene.catalog.create_table(SOURCE, Schema(*fields, identifier_field_ids=[1]))
    scene.redeclare(settings={"emit": "diff"})
    scene.create()
    shape = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table.append(pa.table({"id": [1], "v": ["a"]}, schema=shape))
    scene.run()
    table.overwrite(pa.table({"id": [2], "v": ["a"]}, schema=shape))
    scene.run()
    assert scene.sent()[1:] == [{"_op": "upsert", "id": 2, "v": "a"}, {"_op": "delete", "id": 1}]


def test_keys_that_tell_nothing_apart_are_refused(changing: Scene) -> None:
    replace_files(changing.table, rows((1, "a"), (1, "b")), Overwriting)
    with raises(SinkError):
        changing.run()
