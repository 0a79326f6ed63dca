"""Which columns are sent, and under which names: a column is known by its id, whatever its source calls it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType, PrimitiveType, StringType

from airflow_provider_rfr.exceptions import ConfigurationError, SinkError
from airflow_provider_rfr.sinks import SinkSpec
from airflow_provider_rfr.sinks.windows import SentColumn, SentColumns
from tests.unit.messages import raises
from tests.unit.sinks.exporting import Overwriting, Scene, replace_files, rows

CHANGES = {"emit": "diff", "keys": ["id"]}


def rename(scene: Scene, old: str, new: str) -> None:
    with scene.table.update_schema() as update:
        update.rename_column(old, new)


def add_column(scene: Scene, name: str, kind: PrimitiveType) -> None:
    with scene.table.update_schema() as update:
        update.add_column(name, kind)


def append(scene: Scene, **columns: list[Any]) -> None:
    scene.table.append(pa.table(columns))


def test_a_sink_without_columns_sends_those_of_its_registration_under_the_names_of_now(begun: Scene) -> None:
    """Row 51."""
    begun.add((2, "b"))
    add_column(begun, "more", IntegerType())
    rename(begun, "v", "w")
    append(begun, id=[3], w=["c"], more=pa.array([5], pa.int32()))
    assert begun.run().rows == 2
    assert begun.sent() == [{"id": 1, "v": "a"}, {"id": 2, "w": "b"}, {"id": 3, "w": "c"}]
    assert begun.run().rows == 0


def test_a_sink_with_columns_sends_under_the_names_that_it_declares(begun: Scene) -> None:
    begun.redeclare(columns=("V", "id"))
    begun.deploy("metadata", columns=("v", "id"))
    rename(begun, "v", "w")
    begun.deploy("metadata", columns=("w", "id"), renamed={"v": "w"})
    append(begun, id=[2], w=["b"])
    begun.run()
    rename(begun, "w", "x")
    append(begun, id=[3], x=["c"])
    begun.run()
    begun.redeclare(columns=("x", "id"))
    begun.deploy("metadata", columns=("x", "id"))
    append(begun, id=[4], x=["d"])
    begun.run()
    assert begun.sent()[1:] == [{"V": "b", "id": 2}, {"V": "c", "id": 3}, {"x": "d", "id": 4}]


@pytest.mark.parametrize(("columns", "name"), [((), "w"), (("id", "v"), "v"), (("id", "w"), "w")])
def test_a_rename_that_a_deploy_told_of_before_the_first_run_is_followed_too(
    scene: Scene, columns: tuple[str, ...], name: str
) -> None:
    scene.create()
    rename(scene, "v", "w")
    scene.redeclare(columns=columns)
    scene.deploy("metadata", columns=("id", "w"))
    append(scene, id=[1], w=["a"])
    scene.run()
    assert scene.sent() == [{"id": 1, name: "a"}]


def test_columns_that_swap_their_names_stay_what_they_are(begun: Scene) -> None:
    for old, new in (("v", "between"), ("id", "v"), ("between", "id")):
        rename(begun, old, new)
    append(begun, v=[2], id=["b"])
    begun.run()
    assert begun.sent()[1:] == [{"v": 2, "id": "b"}]


def test_a_window_keeps_its_names_to_the_end(scene: Scene) -> None:
    scene.redeclare(settings={"batch_size": 1})
    scene.create().add((1, "a"), (2, "b"))
    scene.run(batches=1)
    rename(scene, "v", "w")
    append(scene, id=[3], w=["c"])
    scene.run()
    assert scene.sent() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "w": "c"}]


def test_differences_are_found_across_a_rename_of_a_key(scene: Scene) -> None:
    scene.begin((1, "a"), (2, "b"), (3, "c"), settings=CHANGES)
    rename(scene, "id", "nr")
    same = rows((1, "a"), (2, "b"), (3, "c")).rename_columns(["nr", "v"])
    replace_files(scene.table, same, Overwriting)
    assert scene.run().batches == 0
    replace_files(scene.table, rows((1, "a"), (2, "B")).rename_columns(["nr", "v"]), Overwriting)
    scene.run()
    assert scene.sent()[3:] == [{"_op": "upsert", "nr": 2, "v": "B"}, {"_op": "delete", "nr": 3}]


def test_differences_are_found_across_other_columns_of_a_source_that_is_followed(scene: Scene) -> None:
    scene.begin((1, "a"), (2, "b"), (3, "c"), settings=CHANGES, follow_schema=True)
    rename(scene, "v", "w")
    add_column(scene, "more", IntegerType())
    more = pa.table({"id": [1, 2], "w": ["a", "b"], "more": pa.array([5, None], pa.int32())})
    replace_files(scene.table, more, Overwriting)
    scene.run()
    assert scene.sent()[3:] == [{"_op": "upsert", "id": 1, "w": "a", "more": 5}, {"_op": "delete", "id": 3}]


def test_a_sink_that_follows_its_source_sends_new_columns_from_then_on(scene: Scene) -> None:
    scene.begin((1, "a"), follow_schema=True)
    scene.add((2, "b"))
    add_column(scene, "more", IntegerType())
    append(scene, id=[3], v=["c"], more=pa.array([5], pa.int32()))
    scene.run()
    assert scene.sent() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c", "more": 5}]


def test_rows_that_came_before_a_column_was_made_anew_are_sent_with_the_old_one(scene: Scene) -> None:
    scene.begin((1, "1")).add((2, "2"))
    scene.retype("v", "v", (1, 1), (2, 2))
    append(scene, id=[3], v=[3])
    scene.run()
    assert scene.sent() == [{"id": 1, "v": "1"}, {"id": 2, "v": "2"}, {"id": 3, "v": 3}]
    assert scene.run().batches == 0


def test_a_column_that_is_renamed_and_then_made_anew_under_a_third_name_loses_no_value(begun: Scene) -> None:
    """Rows of each time were not sent before."""
    begun.add((2, "2"))
    rename(begun, "v", "w")
    begun.deploy("metadata", columns=("id", "w"))
    append(begun, id=[3], w=["3"])
    begun.retype("w", "x", (1, 1), (2, 2), (3, 3))
    begun.deploy("metadata", columns=("id", "x"))
    append(begun, id=[4], x=[4])
    begun.run()
    assert begun.sent()[1:] == [{"id": 2, "x": "2"}, {"id": 3, "x": "3"}, {"id": 4, "x": 4}]


def test_a_column_that_came_later_is_null_in_earlier_rows_and_one_that_is_gone_stops_the_sink(begun: Scene) -> None:
    begun.add((2, "b"))
    add_column(begun, "w", StringType())
    begun.redeclare(columns=("w", "id"))
    begun.deploy("metadata")
    begun.run()
    assert begun.sent()[1:] == [{"w": None, "id": 2}]
    with begun.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("w")
    begun.add((3, "c"))
    with raises(SinkError):
        begun.run()


def test_a_key_that_is_not_sent_is_refused(scene: Scene) -> None:
    with raises(ConfigurationError):
        scene.begin((1, "a"), settings=CHANGES, columns=("v",))


NOW = (("Id", 1), ("w", 2), ("v", 9))
SPEC = SinkSpec("ops.t", "files")


def test_pins_know_a_column_by_its_id_then_by_its_name() -> None:
    seen = SentColumns((SentColumn("id", "id"), SentColumn("v", "v", (2,)))).seen(NOW, "t")
    assert seen == SentColumns((SentColumn("id", "Id", (1,)), SentColumn("v", "w", (2,))), table="t")
    assert SentColumns.loads(seen.dumps()) == seen
    assert seen.resolve(NOW, (), "k") == (("Id", 1), ("w", 2))
    other = (("id", 2), ("v", 1), ("w", 3))
    assert seen.seen(other, "t2") == SentColumns((SentColumn("id", "id", (2,)), SentColumn("v", "w", (3,))), table="t2")
    assert SentColumns().seen(NOW, "t").columns == (
        SentColumn("Id", "Id", (1,)),
        SentColumn("w", "w", (2,)),
        SentColumn("v", "v", (9,)),
    )
    assert SentColumns().seen((("Id", 1),), "t").resolve((("Id", 1),), NOW, "k") == (("Id", 1),)
    again = SentColumns((SentColumn("v", "v", (8, 7)),)).seen(NOW, "t")
    assert again.columns == (SentColumn("v", "v", (9, 8, 7)),)
    assert again.resolve((("x", 7),), NOW, "k") == (("v", 7),)
    assert again.resolve((), NOW, "k") == (("v", 9),)
    with raises(SinkError):
        SentColumns((SentColumn("x", "x", (6,)),)).resolve(NOW, NOW, "k")


def test_a_declaration_keeps_the_ids_of_known_columns() -> None:
    declared = SentColumns((SentColumn("a", "a", (1,)), SentColumn("b", "x", (2,))), named=True, table="t")

    def columns(*names: str, called: tuple[str, ...], before: SentColumns = declared, **renamed: str) -> SentColumns:
        return SentColumns.of(SinkSpec("ops.t", "files", columns=names), called, before, renamed)

    again = SentColumns((SentColumn("a", "C", (1,)), SentColumn("b", "x", (2,))), named=True, table="t")
    assert columns("a", "b", called=("C", "x"), a="C") == again
    assert columns("a", "b", called=("C", "x"), before=again, a="C") == again
    assert columns("C", called=("c",), a="C").columns == (SentColumn("C", "c", (1,)),)
    assert columns("b", called=("b",)).columns == (SentColumn("b", "b"),), "another column has that name now"
    assert columns("c", "a", called=("c", "a"), a="c").columns == (SentColumn("c", "c"), SentColumn("a", "a"))
    assert columns("n", called=()).columns == (SentColumn("n", "n"),)
    assert SentColumns.of(SPEC, ("C", "x"), declared) == SentColumns(again.columns, table="t")
    assert SentColumns.of(SPEC, (), declared).columns == declared.columns
    assert SentColumns.of(SPEC, ("a", "b")) == SentColumns((SentColumn("a", "a"), SentColumn("b", "b")))
    assert SentColumns.of(SinkSpec("ops.t", "files", follow_schema=True), ("a",), declared) == SentColumns()
