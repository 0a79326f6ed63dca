"""Materialized views have the rows of what they read: one commit for whatever came, and none where nothing did."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec
from airflow_provider_rfr.builtins.refresh import Refreshed, due, refresh
from airflow_provider_rfr.exceptions import ConfigurationError, SinkHeldError, StepError
from airflow_provider_rfr.lake.rows import MIGRATION_TAG, SnapshotKind, SourceTable
from airflow_provider_rfr.sinks.run import run_sink
from tests.unit.builtins.catalogs import PROJECT, mview, sink, spec, table, view
from tests.unit.builtins.execution.crashing import Worlds
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises
from tests.unit.sinks.exporting import Overwriting, replace_files

T = table("ops.t", "id bigint", "n bigint")
V = view("ops.v", "SELECT id, n FROM ops.t WHERE n > 0")
M = mview("ops.m", "SELECT id, n FROM ops.v", "id bigint", "n bigint", keys=("id",))
COUNT = mview("ops.count", "SELECT count(*) AS many FROM ops.m", "many bigint")
FIRST = spec("1.0", T, V, M)


def again(place: Place, *names: str, force: bool = False) -> list[tuple[str, str]]:
    """Name and state of each."""
    return [(item.name, item.state) for item in refreshed(place, names, force)]


def refreshed(place: Place, names: Sequence[str] = (), force: bool = False) -> tuple[Refreshed, ...]:
    return refresh(
        names,
        project=PROJECT,
        catalog=place.catalog,
        store=place.store,
        sql=place.engine,
        force=force,
    )


def is_due(place: Place, *names: str) -> dict[str, bool]:
    return due(names, project=PROJECT, catalog=place.catalog, store=place.store)


def head(place: Place, name: str = "ops.m") -> Table:
    return place.catalog.load_table(name)


def summary(place: Place, name: str = "ops.m") -> dict[str, str]:
    snapshot = head(place, name).current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


def data_files(place: Place, name: str = "ops.m") -> list[str]:
    """All that lie in the table's folder, whether a commit names them or not."""
    folder = Path(head(place, name).location().removeprefix("file://")) / "data"
    return sorted(item.name for item in folder.rglob("*.parquet"))


def named_files(place: Place, name: str = "ops.m") -> list[str]:
    """Those that a snapshot of the table names."""
    loaded = head(place, name)
    found = {
        task.file.file_path
        for snapshot in loaded.metadata.snapshots
        for task in loaded.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    }
    return sorted(item.rpartition("/")[2] for item in found)


@pytest.fixture
def filled(place: Place) -> Place:
    """Deployed with a row, and another one has come."""
    place.deploy(spec("0.9", T))
    place.append("ops.t", {"id": 1, "n": 10})
    place.deploy(FIRST)
    place.append("ops.t", {"id": 2, "n": 20})
    return place


def test_a_refresh_replaces_all_rows_in_one_commit_and_says_what_they_were_made_of(filled: Place) -> None:
    before = len(head(filled).metadata.snapshots)
    assert filled.rows("ops.m") == [{"id": 1, "n": 10}]
    (done,) = refreshed(filled)
    now = head(filled).current_snapshot()
    assert now is not None
    assert done == Refreshed("ops.m", "refreshed", 2, str(now.snapshot_id))
    assert filled.rows("ops.m") == [{"id": 1, "n": 10}, {"id": 2, "n": 20}]
    assert len(head(filled).metadata.snapshots) == before + 1
    newest = filled.catalog.load_table("ops.t").current_snapshot()
    assert newest is not None
    assert json.loads(summary(filled)["rfr.inputs"]) == {"ops.t": newest.snapshot_id}, "through the view"
    assert MIGRATION_TAG not in summary(filled), "its rows are news"
    again = filled.plan(FIRST)
    assert (again.steps, again.drift, again.records) == ((), (), ()), "a deploy finds what it has left"


def test_where_nothing_came_nothing_is_computed_unless_somebody_insists(filled: Place) -> None:
    assert is_due(filled) == {"ops.m": True}
    again(filled)
    before, filled.engine.calls = filled.snapshots(), []
    assert is_due(filled) == {"ops.m": False}
    assert again(filled) == [("ops.m", "unchanged")]
    assert (filled.snapshots(), filled.engine.calls) == (before, [])
    assert again(filled, force=True) == [("ops.m", "refreshed")]
    assert filled.engine.calls == ["compute ops.m"]
    assert again(filled, "OPS.M") == [("ops.m", "unchanged")]


def test_what_a_deploy_has_computed_is_not_computed_again(place: Place) -> None:
    place.deploy(spec("0.9", T))
    place.append("ops.t", {"id": 1, "n": 10})
    place.deploy(FIRST)
    assert is_due(place) == {"ops.m": False}, "it was created with rows"
    place.append("ops.t", {"id": 2, "n": 20})
    place.deploy(spec("1.1", T, V, mview("ops.m", "SELECT id, n + 1 AS n FROM ops.v", "id bigint", "n bigint")))
    assert is_due(place) == {"ops.m": False}, "it was computed for its new query"
    assert summary(place)[MIGRATION_TAG]


def test_a_result_without_rows_is_a_result(place: Place) -> None:
    place.deploy(FIRST)
    place.append("ops.t", {"id": 1, "n": -1})
    assert again(place) == [("ops.m", "refreshed")]
    assert again(place) == [("ops.m", "unchanged")]
    place.append("ops.t", {"id": 1, "n": 1})
    again(place)
    place.catalog.load_table("ops.t").delete("n > 0")
    assert refreshed(place)[0].rows == 0
    assert place.rows("ops.m") == []
    assert again(place) == [("ops.m", "unchanged")]


def test_files_that_are_put_together_are_no_news_neither_below_it_nor_in_it(filled: Place) -> None:
    again(filled)
    for name in ("ops.t", "ops.m"):
        before = head(filled, name).metadata.current_snapshot_id
        replace_files(head(filled, name), None)
        assert head(filled, name).metadata.current_snapshot_id != before
        assert is_due(filled) == {"ops.m": False}
    replace_files(head(filled), None, Overwriting)
    assert is_due(filled) == {"ops.m": True}, "somebody else has written its rows"


def test_what_is_read_is_refreshed_before_its_readers(place: Place) -> None:
    place.deploy(spec("1.0", T, V, M, COUNT))
    place.append("ops.t", {"id": 1, "n": 1})
    assert is_due(place) == {"ops.m": True, "ops.count": False}
    assert again(place) == [("ops.m", "refreshed"), ("ops.count", "refreshed")]
    assert place.rows("ops.count") == [{"many": 1}]
    assert again(place) == [("ops.m", "unchanged"), ("ops.count", "unchanged")]


def test_views_of_users_are_followed_too_and_what_can_not_be_followed_is_read_anew_each_time(place: Place) -> None:
    def theirs(query: str) -> None:
        place.engine.create_view("bob.mine", query, {})

    place.deploy(spec("0.9", T))
    theirs("SELECT id, n FROM ops.t")
    place.deploy(spec("1.0", T, mview("ops.m", "SELECT id FROM bob.mine", "id bigint")))
    place.append("ops.t", {"id": 1, "n": 1})
    assert again(place) == [("ops.m", "refreshed")]
    theirs("SELECT id, n FROM lake.ops.t")
    assert again(place) == [("ops.m", "unchanged")], "the catalog's name may be before it"
    for query in ("SELECT id, n FROM nowhere.t", "SELECT FROM WHERE"):
        theirs(query)
        assert is_due(place) == {"ops.m": True}


def test_names_that_no_deploy_knows_are_refused_before_anything_is_done(filled: Place) -> None:
    before = filled.snapshots()
    for name in ("ops.t", "ops.nn"):
        with raises(ConfigurationError):
            refreshed(filled, ("ops.m", name))
    assert filled.snapshots() == before


def test_of_two_refreshes_at_once_one_commits_and_the_other_has_nothing_left_to_do(filled: Place) -> None:
    other = Place(filled.folder)
    before = len(head(filled).metadata.snapshots)
    told: list[Any] = []
    filled.engine.during = lambda: told.extend(again(other))
    assert again(filled) == [("ops.m", "unchanged")]
    assert told == [("ops.m", "refreshed")]
    assert len(head(filled).metadata.snapshots) == before + 1
    assert data_files(filled) == named_files(filled), "what the slower one wrote is gone"
    other.close()


def test_a_refresh_after_a_rollback_keeps_the_files_of_what_was_rolled_back(filled: Place) -> None:
    before = head(filled).metadata.current_snapshot_id
    again(filled)
    rolled_back = head(filled).metadata.current_snapshot_id
    assert before is not None and rolled_back is not None
    head(filled).manage_snapshots().create_tag(rolled_back, "june").rollback_to_snapshot(before).commit()
    again(filled, force=True)
    assert head(filled).scan(snapshot_id=rolled_back).to_arrow().num_rows == 2


def test_what_comes_while_rows_are_computed_is_for_the_next_refresh(filled: Place) -> None:
    filled.engine.during = lambda: filled.append("ops.t", {"id": 3, "n": 30})
    assert again(filled) == [("ops.m", "refreshed")]
    assert is_due(filled) == {"ops.m": True}
    assert refreshed(filled)[0].rows == 3


NEWER = spec("1.1", T, V, mview("ops.m", "SELECT id, n * 100 AS n FROM ops.v", "id bigint", "n bigint", keys=("id",)))


def test_a_refresh_does_not_undo_a_deploy_that_came_while_it_computed(filled: Place) -> None:
    other = Place(filled.folder)

    def deploy() -> None:
        other.deploy(NEWER)

    filled.engine.during = deploy
    assert again(filled) == [("ops.m", "unchanged")], "the deploy has computed all there is"
    assert filled.rows("ops.m") == [{"id": 1, "n": 1000}, {"id": 2, "n": 2000}]
    assert filled.plan(NEWER).steps == ()
    assert data_files(filled) == named_files(filled)
    other.close()


def test_a_deploy_does_not_undo_a_refresh_and_is_not_undone_by_it(filled: Place) -> None:
    other = Place(filled.folder)
    told: list[Any] = []
    filled.engine.during = lambda: told.extend(again(other))
    filled.deploy(NEWER)
    assert told == [("ops.m", "refreshed")]
    assert filled.engine.calls.count("compute ops.m") == 3, "created, and computed again on top of the refresh"
    assert filled.rows("ops.m") == [{"id": 1, "n": 1000}, {"id": 2, "n": 2000}]
    assert again(filled) == [("ops.m", "unchanged")]
    other.close()


def test_what_a_deploy_has_changed_waits_until_it_is_finished(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_rfr.builtins.deploy._close", die)
        with pytest.raises(MemoryError):
            filled.deploy(NEWER)
    before = filled.snapshots()
    with raises(StepError) as told:
        refreshed(filled, force=True)
    assert told.value.retryable
    assert filled.snapshots() == before
    filled.deploy(NEWER)
    assert again(filled) == [("ops.m", "unchanged")]
    assert filled.rows("ops.m") == [{"id": 1, "n": 1000}, {"id": 2, "n": 2000}]


def test_a_table_that_others_write_to_all_the_time_is_given_up_with_a_word(filled: Place) -> None:
    def write() -> None:
        filled.append("ops.m", {"id": 9, "n": 9})
        filled.engine.during = write

    filled.engine.during = write
    with raises(StepError):
        refreshed(filled)
    assert data_files(filled) == named_files(filled)


def test_a_table_that_is_gone_or_not_ours_is_not_written_to(filled: Place) -> None:
    with head(filled).transaction() as transaction:
        transaction.remove_properties("rfr.object-id")
    with raises(StepError):
        refreshed(filled)
    filled.catalog.drop_table("ops.m")
    with raises(StepError):
        refreshed(filled)


def test_after_a_crash_before_any_effect_all_is_as_it_was_or_done_and_no_file_is_left(tmp_path: Path) -> None:
    worlds = Worlds(tmp_path)
    place = worlds.open()
    place.deploy(spec("0.9", T))
    place.append("ops.t", {"id": 1, "n": 10})
    place.deploy(FIRST)
    place.append("ops.t", {"id": 2, "n": 20})
    worlds.record(place, lambda: again(place))
    place.close()
    assert worlds.names == ["compute", "commit_table", "the end"]
    for number, name in enumerate(worlds.names):
        place = worlds.restore(number)
        rows = [{"id": 1, "n": 10}, {"id": 2, "n": 20}]
        assert place.rows("ops.m") == (rows if name == "the end" else rows[:1])
        assert again(place) == [("ops.m", "unchanged" if name == "the end" else "refreshed")]
        assert place.rows("ops.m") == rows
        assert data_files(place) == named_files(place), name
        place.close()


def test_readers_see_the_old_rows_until_the_commit(filled: Place) -> None:
    seen: list[Any] = []
    filled.engine.during = lambda: seen.extend(filled.rows("ops.m"))
    again(filled)
    assert seen == [{"id": 1, "n": 10}]


def test_a_required_column_without_a_value_leaves_the_rows_as_they_were(place: Place) -> None:
    strict = mview("ops.m", "SELECT id FROM ops.t", "id bigint!")
    place.deploy(spec("1.0", T, strict))
    place.append("ops.t", {"id": None, "n": 1})
    with raises(Exception):
        refreshed(place)
    assert place.rows("ops.m") == []


def exported(place: Place, **more: Any) -> tuple[CatalogSpec, Callable[[], list[dict[str, Any]]]]:
    """A sink over the materialized view, and what it sends in a run."""
    out = place.folder / "out"
    settings = {"path": str(out), "format": "jsonl", **more}
    keyed = mview("ops.m", "SELECT id, n FROM ops.v", "id bigint", "n bigint", exportable=True)
    to: BuiltinObject = sink("ops.out", "ops.m", settings=settings)

    def run() -> list[dict[str, Any]]:
        before = set(out.iterdir()) if out.exists() else set()
        assert to.sink is not None
        run_sink(to.id, to.name, to.sink, catalog=place.catalog, store=place.store)
        return [json.loads(line) for file in sorted(set(out.iterdir()) - before) for line in file.open()]

    return spec("1.0", T, V, keyed, to), run


def test_a_sink_of_changes_sends_what_a_refresh_has_changed(place: Place) -> None:
    wanted, run = exported(place, emit="diff", keys=["id"])
    place.deploy(spec("0.9", T))
    place.append("ops.t", {"id": 1, "n": 10}, {"id": 2, "n": 20})
    place.deploy(wanted)
    assert [row["id"] for row in run()] == [1, 2]
    place.append("ops.t", {"id": 3, "n": 30})
    again(place)
    assert run() == [{"_op": "upsert", "id": 3, "n": 30}]
    again(place, force=True)
    assert run() == [], "the same rows are no news"


def test_any_other_sink_does_what_it_is_declared_to_when_rows_are_replaced(place: Place) -> None:
    wanted, run = exported(place)
    place.deploy(spec("0.9", T))
    place.append("ops.t", {"id": 1, "n": 10})
    place.deploy(wanted)
    run()
    place.append("ops.t", {"id": 2, "n": 20})
    again(place)
    source = SourceTable.load(place.catalog, "ops.m")
    assert source is not None
    assert source.increments(None)[-1].kind is SnapshotKind.REPLACES_ROWS
    with raises(SinkHeldError):
        run()
        run()
