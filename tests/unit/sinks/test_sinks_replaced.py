"""A source whose rows were replaced, by a deploy or by others: nothing is sent again that nobody asked for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema

from airflow_provider_rfr.exceptions import ConfigurationError, CursorExpiredError, SinkError, SinkHeldError
from airflow_provider_rfr.lake.rows import SourceTable
from airflow_provider_rfr.sinks.run import needed_physicals, release_sink
from tests.unit.messages import raises
from tests.unit.sinks.exporting import SCHEMA, SOURCE, Overwriting, Scene, numbers, replace_files, rows, tag


def emptied(scene: Scene) -> None:
    """What a migration does that loses the rows."""
    scene.table.delete("true", snapshot_properties=tag())


def made_anew(scene: Scene) -> None:
    scene.catalog.rename_table(SOURCE, "ops.t__g00000001")
    scene.catalog.create_table(SOURCE, SCHEMA)


def release(scene: Scene, choice: str) -> None:
    scene.store.run(lambda value: release_sink(value, scene.sink.id, choice, scene.store.now(value)))


def expire(scene: Scene, *snapshots: int) -> None:
    scene.table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


@pytest.fixture
def filled(scene: Scene) -> Scene:
    """Two rows were sent, one more came."""
    scene.begin(*numbers((1, 2))).add((3, "unsent"))
    return scene


@pytest.mark.parametrize("empty", [emptied, made_anew])
def test_a_sink_that_resumes_from_new_sends_what_came_since_its_source_was_emptied(filled: Scene, empty: Any) -> None:
    empty(filled)
    filled.add((4, "before the step"))
    filled.deploy("resume_from_new")
    filled.add((5, "new"))
    filled.run()
    filled.add((6, "newer"))
    filled.run()
    assert filled.ids() == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("empty", [emptied, made_anew])
def test_a_sink_that_resends_sends_everything_again_under_other_ids(filled: Scene, empty: Any) -> None:
    first = filled.row().last_batch
    empty(filled)
    filled.add(*numbers((1, 2)))
    for _ in range(2):
        filled.deploy("resend")
    assert filled.row().round == 1
    filled.run()
    assert filled.ids() == [1, 2, 1, 2]
    assert first is not None and filled.row().last_batch not in (None, first)
    filled.deploy("resend")
    assert filled.run().batches == 0, "the same step of the same deploy again"
    filled.deploy("resend", deploy_id="d2")
    filled.run()
    assert filled.ids() == [1, 2] * 3


@pytest.mark.parametrize("empty", [emptied, made_anew])
@pytest.mark.parametrize("choice", ["resume_from_new", "resend"])
def test_a_sink_that_is_held_sends_nothing_until_somebody_decides(filled: Scene, empty: Any, choice: str) -> None:
    for _ in range(2):
        filled.deploy("hold")
    empty(filled)
    filled.add((4, "new"))
    for _ in range(2):
        with raises(SinkHeldError):
            filled.run()
    assert filled.ids() == [1, 2]
    release(filled, choice)
    filled.add((5, "newer"))
    filled.run()
    assert sorted(filled.ids()) == [1, 2, 4, 5]


@pytest.mark.parametrize("batches", [1, 2, 3, None])
@pytest.mark.parametrize("early", [True, False])
def test_rows_that_a_run_sent_between_the_emptying_and_the_decision_are_not_sent_again(
    filled: Scene, batches: int | None, early: bool
) -> None:
    filled.redeclare(settings={"batch_size": 2})
    if early:
        filled.run()
    emptied(filled)
    filled.add(*numbers(range(4, 9)))
    filled.run(batches=batches)
    filled.deploy("resume_from_new")
    filled.run()
    assert filled.ids() == [1, 2, 3, *range(4, 9)]


def test_the_rest_of_what_was_emptied_is_not_sent(half_sent: Scene) -> None:
    emptied(half_sent)
    half_sent.deploy("resume_from_new")
    half_sent.add((9, "new"))
    half_sent.run()
    assert half_sent.ids() == [0, 1, 9]


def test_a_sink_that_is_not_held_may_send_everything_again(filled: Scene) -> None:
    filled.run()
    release(filled, "resend")
    filled.run()
    assert sorted(filled.ids()) == [1, 1, 2, 2, 3, 3]
    with raises(ConfigurationError, UUID(int=0)):
        filled.store.run(lambda value: release_sink(value, UUID(int=0), "resend", 1))


def test_a_later_deploy_may_decide_about_a_sink_that_is_held(filled: Scene) -> None:
    filled.deploy("hold")
    emptied(filled)
    filled.deploy("resume_from_new", deploy_id="d2")
    filled.add((4, "new"))
    filled.run()
    assert filled.ids() == [1, 2, 4]


def test_a_source_that_is_another_table_for_no_known_reason_holds_the_sink(filled: Scene) -> None:
    made_anew(filled)
    filled.add(*numbers((1, 2, 3)))
    with raises(SinkError) as caught:
        filled.run()
    assert not isinstance(caught.value, SinkHeldError), "a retry may help"
    assert filled.row().held_at is None, "a deploy may be about to say so"
    release(filled, "resume_from_new")
    filled.add((4, "new"))
    filled.run()
    assert filled.ids() == [1, 2, 4]


@pytest.mark.parametrize(("policy", "sent"), [("resume_from_new", [1, 2, 3, 9]), ("resend", [1, 2, 3, 1, 2, 3, 4, 9])])
def test_a_full_refresh_by_others_obeys_the_sinks_policy(filled: Scene, policy: str, sent: list[int]) -> None:
    filled.redeclare(on_replace=policy)
    replace_files(filled.table, rows(*numbers((1, 2, 3))), Overwriting)
    replace_files(filled.table, rows(*numbers((1, 2, 3, 4))), Overwriting)
    filled.add((9, "new"))
    filled.run()
    assert filled.ids() == sent
    assert filled.run().batches == 0
    assert filled.row().round == (1 if policy == "resend" else 0)


def test_a_full_refresh_by_others_holds_a_sink_behind_what_it_could_send(filled: Scene) -> None:
    replace_files(filled.table, rows(*numbers((1, 2, 3, 4))), Overwriting)
    filled.add((9, "new"))
    for _ in range(2):
        with raises(SinkHeldError):
            filled.run()
    assert filled.ids() == [1, 2, 3]
    release(filled, "resume_from_new")
    filled.run()
    assert filled.ids() == [1, 2, 3, 9]


@pytest.mark.parametrize("how", ["emptied by hand", "a refreshed part", "merged"])
def test_what_counts_as_replaced(filled: Scene, how: str) -> None:
    filled.run()
    if how == "emptied by hand":
        filled.table.delete("true")
    elif how == "merged":
        filled.table.upsert(rows((2, "other"), (4, "new")), join_cols=["id"])
    else:
        with filled.table.transaction() as transaction:
            marks = {"rfr.ledger": "l", "rfr.generation": "7"}
            transaction.delete("id >= 2", snapshot_properties=marks)
            transaction.append(rows(*numbers((2, 3))), snapshot_properties=marks)
    with raises(SinkHeldError):
        filled.run()


def test_the_first_publication_of_a_refresh_replaces_nothing(begun: Scene) -> None:
    with begun.table.transaction() as transaction:
        with transaction.update_snapshot(snapshot_properties={"rfr.ledger": "l"}).overwrite() as overwrite:
            for file in _dataframe_to_data_files(transaction.table_metadata, rows((2, "b")), begun.table.io):
                overwrite.append_data_file(file)
    assert begun.operations()[-1] == "overwrite"
    begun.run()
    assert begun.ids() == [1, 2]


def test_snapshots_that_expired_unsent_stop_the_sink_and_send_nothing_again(filled: Scene) -> None:
    cursor = filled.row().cursor
    unsent = filled.table.current_snapshot().snapshot_id
    filled.add((4, "newest"))
    expire(filled, cursor, unsent)
    with raises(CursorExpiredError, f"between {cursor} and"):
        filled.run()
    with raises(SinkHeldError):
        filled.run()
    assert filled.ids() == [1, 2]
    release(filled, "resume_from_new")
    filled.add((5, "new"))
    filled.run()
    assert filled.ids() == [1, 2, 5]


def test_a_cursor_that_expired_with_nothing_behind_it_lost_goes_on(filled: Scene) -> None:
    expire(filled, filled.row().cursor)
    filled.run()
    assert filled.ids() == [1, 2, 3]


def test_a_table_that_was_rolled_back_behind_the_cursor_stops_the_sink(filled: Scene) -> None:
    first = filled.table.metadata.snapshots[0].snapshot_id
    filled.run()
    filled.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(CursorExpiredError):
        filled.run()
    assert filled.ids() == [1, 2, 3]


def test_a_window_whose_snapshot_expired_half_way_stops_the_sink(half_sent: Scene) -> None:
    first = half_sent.table.current_snapshot().snapshot_id
    half_sent.add((9, "new"))
    expire(half_sent, first)
    with raises(CursorExpiredError, first):
        half_sent.run()
    assert half_sent.ids() == [0, 1]


def test_deploys_that_change_the_source_ask_what_becomes_of_the_cursor(filled: Scene) -> None:
    other = filled.catalog.create_table("ops.other", SCHEMA)
    other.append(rows(*numbers((7, 8))))
    filled.redeclare(source="ops.other")
    filled.deploy("metadata", source=UUID(int=7), columns=["id"])
    with raises(SinkHeldError):
        filled.run()
    filled.deploy("resume_from_new")
    other.append(rows((9, "new")))
    filled.run()
    assert filled.sent()[2:] == [{"id": 9}]


def test_the_newest_snapshot_of_a_deploy_is_found_among_others(scene: Scene) -> None:
    scene.add((1, "a"), **tag(deploy="d10"))
    wanted = scene.add((2, "b"), **tag(step=2, deploy="d1"))
    scene.add((3, "c"), **tag(deploy="d11"))
    found = SourceTable.load(scene.catalog, SOURCE)
    assert found is not None and (found.last_of("d1"), found.last_of("d2")) == (wanted, None)


def test_a_table_that_was_made_anew_is_sent_with_its_own_columns(begun: Scene) -> None:
    begun.catalog.drop_table(SOURCE)
    begun.catalog.create_table(SOURCE, Schema(*SCHEMA.fields[::-1]))
    begun.table.append(rows((2, "two")).select(["v", "id"]))
    begun.deploy("resend")
    begun.run()
    assert begun.sent() == [{"id": 1, "v": "a"}, {"id": 2, "v": "two"}]


def test_a_table_that_a_sink_has_not_left_yet_is_known_as_needed(scene: Scene) -> None:
    def needed() -> frozenset[str]:
        with scene.store.read() as connection:
            return needed_physicals(connection)

    scene.create().add((1, "a"))
    assert needed() == frozenset()
    scene.run()
    old = str(scene.table.metadata.table_uuid)
    made_anew(scene)
    assert needed() == {old}
    scene.deploy("resume_from_new")
    scene.run()
    assert needed() == {str(scene.table.metadata.table_uuid)} != {old}


def test_a_sink_that_has_sent_nothing_begins_in_a_table_that_was_made_anew(scene: Scene) -> None:
    scene.create()
    assert scene.run().batches == 0
    made_anew(scene)
    scene.add((1, "a"))
    scene.run()
    assert scene.ids() == [1]
