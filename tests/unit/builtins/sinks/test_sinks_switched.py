"""A shadow takes its table's place: cursors go on in the new table; what was not sent yet comes from the old one."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.sinks._steps import map_cursor, needed_physicals
from airflow_provider_rfr.exceptions import SinkHeldError
from tests.unit.builtins.sinks.exporting import SCHEMA, SOURCE, SOURCE_ID, Scene, numbers, rows, tag


def head(table: Table) -> int | None:
    found = table.current_snapshot()
    return None if found is None else found.snapshot_id


def switch(scene: Scene, number: int = 1, *, keep: bool = True, schema: Schema = SCHEMA) -> None:
    """Copy the table, put it aside, and map its cursors, as a shadow does."""
    old = scene.table
    aside, shadow = f"{SOURCE}__g0000000{number}", f"{SOURCE}__s0000000{number}"
    new = scene.catalog.create_table(shadow, schema)
    if head(old) is not None:
        new.append(
            old.scan().to_arrow().select(new.schema().column_names), snapshot_properties=tag(deploy=f"d{number}")
        )
    scene.catalog.rename_table(SOURCE, aside)
    scene.catalog.rename_table(shadow, SOURCE)
    for _ in range(2):
        scene.store.run(
            lambda each: map_cursor(
                each,
                SOURCE_ID,
                str(old.metadata.table_uuid),
                head(old),
                str(new.metadata.table_uuid),
                head(new),
                old_name=aside,
                now_ms=1,
            )
        )
    if not keep:
        scene.catalog.drop_table(aside)


def test_a_sink_at_the_end_of_the_old_table_goes_on_in_the_new_one(scene: Scene) -> None:
    scene.create()
    scene.add(*numbers((1, 2)))
    scene.run()
    switch(scene, keep=False)
    assert scene.run().batches == 0
    scene.add((3, "new"))
    scene.run()
    assert scene.ids() == [1, 2, 3]
    assert scene.state().physical == str(scene.table.metadata.table_uuid)


@pytest.mark.parametrize("behind", [False, True])
def test_a_column_has_its_own_values_in_a_table_that_counts_columns_otherwise(scene: Scene, behind: bool) -> None:
    """Ids of columns are one table's own; a new table begins to count anew."""
    scene.create()
    scene.add((1, "one"))
    scene.run()
    if behind:
        scene.add((2, "two"))
    switch(scene, schema=Schema(*SCHEMA.fields[::-1]))
    scene.table.append(rows((3, "three")).select(["v", "id"]))
    scene.run()
    found = [(row["id"], row["v"]) for row in scene.sent()]
    assert found == [(1, "one"), *([(2, "two")] if behind else []), (3, "three")]


def test_a_table_that_was_made_anew_is_sent_with_its_own_columns(scene: Scene) -> None:
    scene.create()
    scene.add((1, "one"))
    scene.run()
    scene.catalog.drop_table(SOURCE)
    scene.catalog.create_table(SOURCE, Schema(*SCHEMA.fields[::-1]))
    scene.table.append(rows((2, "two")).select(["v", "id"]))
    scene.deploy(Action.RESEND)
    scene.run()
    assert [(row["id"], row["v"]) for row in scene.sent()] == [(1, "one"), (2, "two")]


def test_a_sink_that_is_behind_sends_the_rest_from_the_old_table_first(scene: Scene) -> None:
    """Two switches, in the middle of a commit."""
    scene.redeclare(settings={"path": str(scene.out), "batch_size": 2})
    scene.create()
    scene.add((0, "first"))
    scene.run()
    scene.add(*numbers(range(1, 6)))
    scene.run(batches=1)
    scene.add((6, "behind"))
    switch(scene, 1)
    scene.add((7, "between"))
    switch(scene, 2)
    scene.add((8, "new"))
    scene.run()
    assert scene.ids() == list(range(9))
    assert scene.run().batches == 0


def test_a_sink_whose_rest_is_gone_is_held(scene: Scene) -> None:
    scene.create()
    scene.add((1, "a"))
    scene.run()
    scene.add((2, "unsent"))
    switch(scene, keep=False)
    with pytest.raises(SinkHeldError, match="rows that it has not sent are in a table that is gone"):
        scene.run()
    assert scene.ids() == [1]


def test_a_sink_that_has_sent_nothing_begins_in_the_new_table(scene: Scene) -> None:
    scene.create()
    switch(scene, 1, keep=False)
    scene.add((1, "a"))
    scene.run()
    assert scene.ids() == [1]


def test_an_old_table_without_rows_leads_to_a_new_one(scene: Scene) -> None:
    scene.create()
    scene.add((1, "a"))
    scene.run()
    old = str(scene.table.metadata.table_uuid)
    scene.catalog.drop_table(SOURCE)
    new = scene.catalog.create_table(SOURCE, SCHEMA)
    scene.store.run(lambda each: map_cursor(each, SOURCE_ID, old, None, str(new.metadata.table_uuid), None))
    scene.add((2, "b"))
    scene.run()
    assert scene.ids() == [1, 2]


def test_rows_that_came_to_the_old_table_after_the_mapped_snapshot_are_not_sent(scene: Scene) -> None:
    """They are in no new table either: whoever switches sees to it that there are none."""
    scene.create()
    scene.add((1, "a"))
    scene.run()
    switch(scene)
    scene.catalog.load_table(f"{SOURCE}__g00000001").append(rows((9, "late")))
    scene.add((2, "b"))
    scene.run()
    assert scene.ids() == [1, 2]


def test_a_sink_that_went_past_the_mapped_snapshot_goes_on_in_the_new_table(scene: Scene) -> None:
    scene.create()
    scene.add((1, "a"))
    mapped = head(scene.table)
    scene.add((2, "b"))
    scene.run()
    old = str(scene.table.metadata.table_uuid)
    scene.catalog.rename_table(SOURCE, "ops.aside")
    new = scene.catalog.create_table(SOURCE, SCHEMA)
    new.append(rows((1, "a")), snapshot_properties=tag())
    uuids = old, mapped, str(new.metadata.table_uuid), head(new)
    scene.store.run(lambda each: map_cursor(each, SOURCE_ID, *uuids, old_name="ops.aside"))
    scene.add((3, "c"))
    scene.run()
    assert sorted(scene.ids()) == [1, 2, 3]


def test_what_sinks_still_need_is_known(scene: Scene) -> None:
    scene.create()
    scene.add((1, "a"))
    old = str(scene.table.metadata.table_uuid)
    with scene.store.read() as connection:
        assert needed_physicals(connection) == frozenset()
    scene.run()
    scene.add((2, "b"))
    switch(scene)
    with scene.store.read() as connection:
        assert needed_physicals(connection) == {old}
    scene.run()
    with scene.store.read() as connection:
        assert old not in needed_physicals(connection)
