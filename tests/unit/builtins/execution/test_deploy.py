"""A plan applied to a real catalog: what was planned is there afterwards, the next deploy does nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType
from sqlalchemy import MetaData

from airflow_provider_rfr.builtins.maintenance import gc
from airflow_provider_rfr.builtins.model import DEPLOY, MARKER, BuiltinObject, Column, Kind, Was
from airflow_provider_rfr.builtins.plan import summary
from airflow_provider_rfr.exceptions import (
    BlockedPlanError,
    CatalogError,
    ConfigurationError,
    StalePlanError,
    StepError,
)
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.migrated_table import MigratedTable
from airflow_provider_rfr.lake.rows import MIGRATION_TAG
from airflow_provider_rfr.store.deploys import history, steps_of
from tests.unit.builtins.catalogs import PROJECT, column, made, mview, obj, spec, table, view
from tests.unit.builtins.execution.crashing import before_each_effect
from tests.unit.builtins.execution.places import Place, told
from tests.unit.messages import raises

T = table("ops.t", "id bigint!", "n int", "made timestamp", keys=("id",), partitioning=("days(made)",), comment="rows")
V = view("ops.v", "SELECT id, n FROM ops.t", comment="newest")
M = mview("ops.m", "SELECT id FROM ops.t", "id bigint")
FIRST = spec("1.0", T, V, M)
A, B = table("ops.a", "id int"), table("ops.b", "id int")
Objects = tuple[BuiltinObject, ...]
Rows = list[dict[str, Any]]


def filled(place: Place, declared: BuiltinObject, *rows: dict[str, Any]) -> None:
    """Deploy a table, and append rows to it."""
    place.deploy(spec("1.0", declared))
    place.append(declared.name, *rows)


def tags(place: Place, name: str) -> list[str | None]:
    snapshots = place.catalog.load_table(name).metadata.snapshots
    return [
        snapshot.summary.additional_properties.get(MIGRATION_TAG) if snapshot.summary else None
        for snapshot in snapshots
    ]


def test_a_first_deploy_creates_everything_and_the_next_one_does_nothing_and_is_in_the_journal(place: Place) -> None:
    done = place.settle(FIRST)
    assert told(done) == [("create", "ops.t"), ("create", "ops.v"), ("create", "ops.m")]
    live = place.catalog.load_table("ops.t")
    assert live.properties["comment"] == "rows" and live.properties[MARKER] == str(T.id)
    assert live.properties[DEPLOY] == place.recorded("ops.t").deploy_id == done.deploy_id
    assert live.schema().identifier_field_names() == {"id"} and not live.metadata.snapshots
    with place.store.read() as connection:
        found = [(item.state.value, item.revision) for item in history(connection, PROJECT)]
    assert found == [("nothing", None), ("done", 1)]


@dataclass(frozen=True)
class Change:
    """Two releases, and the steps of the second one.

    :ivar rows: of tables, that come between the two; ``ends``: those of then
    :ivar lost: a name whose loss is accepted, and asked about without that
    """

    before: Objects
    after: Objects
    steps: list[str]
    rows: dict[str, Rows] = field(default_factory=dict)
    ends: dict[str, Rows] = field(default_factory=dict)
    lost: str | None = None


def numbers(*columns: str | Column, **more: Any) -> BuiltinObject:
    return table("ops.t", "id bigint", *columns, **more)


def widened(old: str, new: str) -> Change:
    return Change((table("ops.t", f"s {old}"),), (table("ops.t", f"s {new}"),), ["evolve ops.t"])


def required(**more: str) -> Change:
    """A column becomes required, and an expression makes the values of rows without one."""
    after = numbers(made("n int!", "coalesce(n, 0)", **more))
    ends = {"ops.t": [{"id": 1, "n": 5}, {"id": 2, "n": 0}]}
    return Change((numbers("n int"),), (after,), ["rewrite ops.t"], {"ops.t": [{"id": 1, "n": 5}, {"id": 2}]}, ends)


OLD, BASE = table("ops.x", "id bigint", "n int"), table("ops.base", "id bigint")
ON_T, ON_V, ON_W = (view(f"ops.{name}", f"SELECT id FROM ops.{read}") for name, read in ("vt", "wv", "vw"))
FROM_TEXT = made("rows bigint", "try_cast(row_count AS bigint)", name="row_count", type="string")
CHANGES = {
    "a struct widens": widened("struct<a:int,b:int>", "struct<c:string,b:bigint,a:int>"),
    "structs in a list widen": widened("array<struct<a:int>>", "array<struct<a:bigint,b:date>>"),
    "structs in a map widen": widened("map<string,struct<a:float>>", "map<string,struct<b:int,a:double>>"),
    "a struct in a struct widens": widened("struct<a:struct<x:int>>", "struct<a:struct<y:array<int>,x:bigint>>"),
    "a decimal widens": widened("decimal(9,2)", "decimal(12,2)"),
    "columns swap their names": Change(
        (table("ops.t", "a int", "b int"),), (table("ops.t", "a int < b", "b int < a"),), ["evolve ops.t"],
        {"ops.t": [{"a": 1, "b": 2}]}, {"ops.t": [{"a": 2, "b": 1}]},
    ),
    "a kept table gets a column": Change(
        (numbers(keep="billing"),), (numbers("n int", keep="billing"),), ["evolve ops.t"],
        {"ops.t": [{"id": 1}]}, {"ops.t": [{"id": 1, "n": None}]},
    ),
    "a using makes the values of a new column": Change(
        (numbers(),), (numbers(made("n int!", "CAST(id * 10 AS int)")),), ["rewrite ops.t"],
        {"ops.t": [{"id": 1}, {"id": 2}]}, {"ops.t": [{"id": 1, "n": 10}, {"id": 2, "n": 20}]},
    ),
    "a column becomes required": required(),
    "a column of a type becomes required": required(type="int"),
    "a column of a name and type becomes required": required(name="n", type="int"),
    "a column has another name and type, and a value that is no number": Change(
        (numbers("row_count string"),), (numbers(FROM_TEXT),), ["rewrite ops.t"],
        {"ops.t": [{"id": 1, "row_count": "7"}, {"id": 2, "row_count": "x"}]},
        {"ops.t": [{"id": 1, "rows": 7}, {"id": 2, "rows": None}]}, lost="ops.t.rows",
    ),
    "a table that never was is created at its newest": Change(
        (), (table("ops.t", "id bigint < number", made("n int", "0"), made("s int", "1", type="string")),),
        ["create ops.t"],
    ),
    "tables swap their names": Change(
        (A, B), (replace(A, name="ops.b"), replace(B, name="ops.a")),
        ["rename ops.a", "rename ops.b", f"rename ops.a__r{A.id.hex[:8]}"],
        {"ops.a": [{"id": 1}], "ops.b": [{"id": 2}]}, {"ops.a": [{"id": 2}], "ops.b": [{"id": 1}]},
    ),
    "an edge of views turns round": Change(
        (T, ON_T, ON_V), (T, view("ops.w", "SELECT id FROM ops.t"), ON_W), ["replace ops.w", "replace ops.v"],
    ),
    # Names are compared without case, but a catalog finds a table only as it is written there.
    "only the case of names changes": Change(
        (table("ops.Runs", "id int"), view("ops.Seen", "SELECT id FROM ops.Runs")),
        (table("ops.runs", "id bigint", "n int"), view("ops.seen", "SELECT id FROM ops.Runs")),
        ["evolve ops.Runs", "rebind ops.Seen"], {"ops.Runs": [{"id": 1}]}, {"ops.Runs": [{"id": 1, "n": None}]},
    ),
    "a table is removed": Change((OLD,), (), ["remove ops.x"], {"ops.x": [{"id": 1}]}, lost="ops.x"),
    "a table becomes a view": Change(
        (OLD, BASE, view("ops.y", "SELECT id FROM ops.x")),
        (view("ops.x", "SELECT id FROM ops.base"), BASE, view("ops.y", "SELECT id FROM ops.x")),
        ["drop ops.x", "create ops.x", "rebind ops.y"], {"ops.x": [{"id": 1}]}, lost="ops.x",
    ),
    "a table becomes a materialized view": Change(
        (OLD, BASE), (mview("ops.x", "SELECT id FROM ops.base", "id bigint"), BASE), ["recompute ops.x"],
        {"ops.x": [{"id": 1}]}, {"ops.x": []}, lost="ops.x",
    ),
    "a column is dropped": Change(
        (OLD,), (table("ops.x", "id bigint"),), ["evolve ops.x"],
        {"ops.x": [{"id": 1, "n": 5}]}, {"ops.x": [{"id": 1}]}, lost="ops.x.n",
    ),
    "a type gets narrower": Change(
        (OLD,), (table("ops.x", made("id int", "CAST(id AS int)", type="bigint"), "n int"),), ["rewrite ops.x"],
        {"ops.x": [{"id": 1, "n": 5}]}, {"ops.x": [{"id": 1, "n": 5}]}, lost="ops.x.id",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_release_does_its_steps_and_rows_end_as_they_should(place: Place, change: Change) -> None:
    place.deploy(spec("1.0", *change.before))
    for name, rows in change.rows.items():
        place.append(name, *rows)
    wanted, accepted = spec("1.1", *change.after), frozenset[str]()
    if change.lost is not None:
        with raises(BlockedPlanError):
            place.apply(place.plan(wanted), wanted)
        accepted = frozenset({change.lost})
        assert summary(place.plan(wanted, accept_data_loss=accepted))["data_loss"] == 1
    done = place.settle(wanted, accept_data_loss=accepted)
    assert [" ".join(step) for step in told(done) if "bridge" not in step] == change.steps
    assert {name: place.rows(name) for name in change.ends} == change.ends
    markers = place.markers()
    retired = [markers.pop(name) for name in list(markers) if "__g" in name]
    assert {name.casefold(): marker for name, marker in markers.items()} == {
        obj.key: str(obj.id) for obj in change.after
    }
    assert len(retired) == len([step for step in change.steps if step.startswith(("drop", "remove"))])


EVOLVED = table(
    "ops.t",
    "made timestamp",
    "number bigint < n",
    "id bigint!",
    "more struct<a:int,b:array<string>>",
    keys=("id",),
    partitioning=("bucket(4, id)",),
    comment="lines",
)


def test_columns_partitioning_and_keys_change_in_one_commit_that_makes_no_snapshot(place: Place) -> None:
    place.deploy(spec("1.0", T))
    place.append("ops.t", {"id": 1, "n": 7, "made": None})
    before = place.snapshots()["ops.t"]
    assert told(place.settle(spec("1.1", EVOLVED))) == [("evolve", "ops.t")]
    assert place.rows("ops.t") == [{"made": None, "number": 7, "id": 1, "more": None}]
    assert place.snapshots()["ops.t"] == [before[0] + 1, *before[1:]]
    live = place.catalog.load_table("ops.t")
    assert [field.name for field in live.schema().fields] == ["made", "number", "id", "more"]
    assert [field.name for field in live.spec().fields] == ["id_bucket_4"]
    assert live.properties["comment"] == "lines"


def stored(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the control store, by tables."""
    tables = MetaData()
    with place.store.read() as connection:
        tables.reflect(connection)
        return {
            known.name: [tuple(row) for row in connection.execute(known.select())] for known in tables.sorted_tables
        }


def test_a_plan_writes_nothing_anywhere(place: Place) -> None:
    """Row 55."""
    place.settle(FIRST)
    place.append("ops.t", {"id": 1, "n": 7, "made": None})

    def world() -> tuple[Any, ...]:
        return place.snapshots(), place.markers(), [*place.engine.calls], stored(place)

    before = world()
    assert before[3]["rfr_builtin_deploys"]
    plan = place.plan(spec("2.0", EVOLVED, replace(V, query="SELECT id, number AS n FROM ops.t"), M))
    assert {step.name for step in plan.steps} == {"ops.t", "ops.v"} and plan.applicable
    assert world() == before


ROW = {"id": 1, "s": {"a": 1, "b": 2}, "l": [{"a": 1, "b": 2}, None], "m": [("k", {"a": 1, "b": 2})]}


def nested(fields: str, *former: dict[str, str]) -> BuiltinObject:
    """A table with a struct, also inside a list and a map."""
    kinds = (f"s struct<{fields}>", f"l array<struct<{fields}>>", f"m map<string,struct<{fields}>>")
    return table("ops.t", "id int", *(column(kind, *(Was(fields=names) for names in former)) for kind in kinds))


def in_all(struct: dict[str, int | None]) -> dict[str, Any]:
    return {"id": 1, "s": struct, "l": [struct, None], "m": [("k", struct)]}


def data_files(place: Place, name: str) -> list[str]:
    return [task.file.file_path for task in place.catalog.load_table(name).scan().plan_files()]


@pytest.mark.parametrize(
    ("fields", "former", "struct"),
    [
        ("b:int,c:string,a:int", {}, {"b": 2, "c": None, "a": 1}),
        ("x:int,b:int", {"x": "a"}, {"x": 1, "b": 2}),
        ("a:int,b:int", {"a": "b", "b": "a"}, {"a": 2, "b": 1}),
        ("b:bigint,c:int,a:date", {"b": "a", "c": "b"}, {"b": 1, "c": 2, "a": None}),
    ],
    ids=["added and moved", "renamed", "swapped", "shifted, widened and added"],
)
def test_fields_change_without_a_rewrite_wherever_their_struct_is(
    place: Place, fields: str, former: dict[str, str], struct: dict[str, int | None]
) -> None:
    filled(place, nested("a:int,b:int"), ROW)
    files, after = data_files(place, "ops.t"), spec("1.1", nested(fields, former))
    assert told(place.settle(after)) == [("evolve", "ops.t")]
    assert place.rows("ops.t") == [in_all(struct)] and data_files(place, "ops.t") == files
    # The names stay in the declaration, and mean nothing to the fields of now.
    place.append("ops.t", in_all(struct))
    again = replace(after, version="1.2", objects=(replace(after.objects[0], comment="again"),))
    place.settle(again)
    assert place.rows("ops.t") == [in_all(struct)] * 2


def test_a_field_that_seems_to_have_another_name_is_asked_about(place: Place) -> None:
    filled(place, nested("a:int,b:int"), ROW)
    found = place.plan(spec("1.1", nested("x:int,b:int")))
    said = [str(problem) for problem in found.blocked[0].problems]
    assert "if s.x is s.a under a new name, write was: {fields: {x: a}}" in said
    place.settle(spec("1.1", nested("x:int,b:int", {"x": "a"})))


def test_a_field_does_not_take_the_name_of_one_that_is_there(place: Place) -> None:
    place.deploy(spec("1.0", nested("a:int,b:int")))
    found = place.plan(spec("1.1", nested("a:int", {"a": "b"})), accept_data_loss=frozenset({"ops.t.s.b"}))
    said = [str(problem) for problem in found.blocked[0].problems]
    assert any("a field of s is to take the name of one that is still there" in text for text in said)


def test_a_column_is_required_only_if_every_row_has_a_value(place: Place) -> None:
    filled(place, table("ops.t", "id bigint", "n int"), {"id": 1, "n": 5}, {"id": None, "n": 6})
    wanted = spec("1.1", table("ops.t", "id bigint!", "n int!", keys=("id",)))
    (stopped,) = place.plan(wanted).blocked
    assert [str(problem) for problem in stopped.problems] == [
        "id: optional -> required needs values: write in its `was` how they are made"
    ]
    assert stopped.paste == (
        "- {name: id, type: bigint, required: true, was: {using: 'coalesce(id, CAST(0 AS bigint))'}}",
    )
    place.catalog.load_table("ops.t").delete("id is null")
    place.settle(wanted)
    schema = place.catalog.load_table("ops.t").schema()
    assert [field.required for field in schema.fields] == [True, True] and schema.identifier_field_names() == {"id"}


@pytest.mark.parametrize("kind", ["struct<a:int>", "array<int>", "map<string,int>"])
def test_a_nested_column_of_which_no_counts_are_kept_is_required_by_an_expression(place: Place, kind: str) -> None:
    place.deploy(spec("1.0", table("ops.t", "id bigint", f"n {kind}")))
    wanted = spec("1.1", table("ops.t", "id bigint", f"n {kind}!"))
    assert told(place.apply(place.plan(wanted), wanted)) == [("evolve", "ops.t")], "there is no row"
    place.settle(spec("1.1", table("ops.t", "id bigint", f"n {kind}")))
    place.append("ops.t", {"id": 1, "n": {"a": 1} if "struct" in kind else [1] if "array" in kind else {"k": 1}})
    assert [str(problem) for problem in place.plan(wanted).blocked[0].problems] == [
        "n: optional -> required needs values: write in its `was` how they are made"
    ]


def test_a_row_without_a_value_that_comes_after_the_plan_is_not_required_to_have_one(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id bigint")))
    wanted = spec("1.1", table("ops.t", "id bigint!"))
    calls = []

    def append(effect: str) -> None:
        calls.append(effect)
        if effect == "run" and calls.count("run") == 3:
            place.append("ops.t", {"id": None})

    with before_each_effect(place, append), raises(StepError):
        place.deploy(wanted)
    (problem,) = place.plan(wanted).blocked[0].problems
    assert str(problem).startswith("id: optional -> required")


def test_an_expression_of_an_earlier_release_is_not_run_again_for_a_column_that_becomes_required(place: Place) -> None:
    filled(place, table("ops.t", "n string"), {"n": "5"})
    for kind in ("int", "int!"):
        place.settle(spec("1.1", table("ops.t", made(f"n {kind}", "CAST(n AS int) * 2"))))
    assert place.rows("ops.t") == [{"n": 10}]


def test_a_key_of_optional_columns_is_kept_in_its_order(place: Place) -> None:
    place.settle(spec("1.0", table("ops.t", "b int", "a int", keys=("b", "a"))))
    place.settle(spec("1.1", table("ops.t", "b int", "a int", keys=("a", "b"))))
    place.settle(spec("1.2", table("ops.t", "b int!", "a int!", keys=("a", "b"))))
    place.settle(spec("1.3", table("ops.t", "b int", "a int")))


def test_keys_are_compared_without_case(place: Place) -> None:
    place.settle(spec("1.0", table("ops.t", "d date!", "i int!", keys=("I", "D"))))
    place.settle(spec("1.1", table("ops.t", "d date!", "i int!", keys=("i", "d"))))


def test_only_what_is_said_about_a_table_changes(place: Place) -> None:
    before = table("ops.t", "id int", comment="old", owner="ann", properties={"a": "1", "b": "2"})
    after = table("ops.t", "id int", comment="new", properties={"a": "3"})
    place.deploy(spec("1.0", before))
    assert place.catalog.load_table("ops.t").properties["owner"] == "ann"
    assert told(place.settle(spec("1.1", after))) == [("metadata", "ops.t")]
    found = place.catalog.load_table("ops.t").properties
    assert (found["comment"], found["a"], "owner" in found, "b" in found) == ("new", "3", False, False)


def test_a_view_that_is_bound_again_keeps_what_is_said_about_it(place: Place) -> None:
    said = {"comment": "c", "owner": "ann", "properties": {"a": "1"}}
    shown = view("ops.v", "SELECT id FROM ops.t", **said)
    place.deploy(spec("1.0", table("ops.t", "id int"), shown))
    done = place.settle(spec("1.1", table("ops.t", "id bigint"), shown))
    assert told(done) == [("bridge", "ops.v"), ("evolve", "ops.t"), ("rebind", "ops.v")]
    [found] = place.engine.views(place.catalog)
    kept = {"comment": "c", "owner": "ann", "a": "1", MARKER: str(shown.id)}
    assert {name: found.properties.get(name) for name in kept} == kept


def test_a_view_with_another_text_loses_what_is_no_longer_said_about_it(place: Place) -> None:
    said = {"comment": "c", "owner": "ann", "properties": {"a": "1", "b": "2"}}
    place.deploy(spec("1.0", T, view("ops.v", "SELECT id FROM ops.t", **said)))
    place.settle(spec("1.1", T, view("ops.v", "SELECT id, n FROM ops.t", properties={"b": "2"})))
    [found] = place.engine.views(place.catalog)
    # An owner can't be removed.
    left = {"comment": None, "owner": "", "a": None, "b": "2"}
    assert {name: found.properties.get(name) for name in left} == left


def test_no_secret_of_the_lake_gets_from_an_error_into_the_journal_or_the_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.catalog.properties["s3.secret-access-key"] = "canary-5b1e"

    def refuse(*_: Any) -> None:
        raise OSError("the store refuses canary-5b1e")

    with monkeypatch.context() as patched, raises(StepError):
        patched.setattr(MigratedTable, "alter", refuse)
        place.deploy(spec("1.0", T))
        place.deploy(spec("1.1", replace(T, comment="lines")))
    with monkeypatch.context() as patched:
        patched.setattr(History, "report", refuse)
        place.deploy(spec("1.1", replace(T, comment="lines")))
    with place.store.read() as connection:
        assert "canary" not in str([item.error for item in history(connection, PROJECT)])
    assert "history of migrations can't be written" in caplog.text and "canary" not in caplog.text


INCOMPATIBLE = table("ops.t", "id bigint!", "n string", keys=("id",))
NARROW = table("ops.t", "id bigint!", "n int", keys=("id",))


def text_of(using: str) -> BuiltinObject:
    """The incompatible change with what makes the values."""
    return table("ops.t", "id bigint!", made("n string", using, type="int"), keys=("id",))


def test_a_rewrite_changes_columns_and_rows_in_one_tagged_snapshot(place: Place) -> None:
    other = table("ops.other", "id int")
    place.deploy(spec("1.0", NARROW, other))
    place.append("ops.t", {"id": 1, "n": 5}, {"id": 2, "n": None})
    before, old = place.snapshots(), place.catalog.load_table("ops.t")
    done = place.settle(spec("1.1", text_of("CAST(n * 2 AS string)"), other))
    assert told(done) == [("rewrite", "ops.t")]
    assert place.rows("ops.t") == [{"id": 1, "n": "10"}, {"id": 2, "n": None}]
    assert tags(place, "ops.t") == [None, f"{done.deploy_id}/1"]
    assert place.snapshots()["ops.other"] == before["ops.other"]
    live = place.catalog.load_table("ops.t")
    assert live.metadata.table_uuid == old.metadata.table_uuid and live.properties[MARKER] == str(T.id)
    earlier = live.scan(snapshot_id=before["ops.t"][1]).to_arrow().to_pylist()
    assert sorted(earlier, key=str) == [{"id": 1, "n": 5}, {"id": 2, "n": None}]
    with place.store.read() as connection:
        assert json.loads(steps_of(connection, done.deploy_id)[0].evidence or "")["rows"] == 2


@pytest.mark.parametrize("how", ["gc", "next deploy"])
def test_files_of_a_rewrite_that_died_and_was_given_up_are_deleted(place: Place, how: str) -> None:
    filled(place, NARROW, {"id": 1, "n": 5})
    before = sorted(place.folder.rglob("*.parquet"))

    def die(effect: str) -> None:
        if effect == "commit_table":
            raise KeyboardInterrupt

    with before_each_effect(place, die), pytest.raises(KeyboardInterrupt):
        place.deploy(spec("1.1", text_of("CAST(n AS string)")))
    assert len(sorted(place.folder.rglob("*.parquet"))) == len(before) + 1
    if how == "gc":
        gc(project=PROJECT, catalog=place.catalog, store=place.store)
    else:
        place.deploy(spec("1.1", NARROW, table("ops.u", "id bigint")))
    assert sorted(place.folder.rglob("*.parquet")) == before
    assert place.rows("ops.t") == [{"id": 1, "n": 5}]


def test_rows_appended_while_a_table_is_rewritten_are_not_lost(place: Place) -> None:
    filled(place, NARROW, {"id": 1, "n": 5})
    place.engine.during = lambda: place.append("ops.t", {"id": 2, "n": 6})
    place.settle(spec("1.1", text_of("CAST(n AS string)")))
    assert place.rows("ops.t") == [{"id": 1, "n": "5"}, {"id": 2, "n": "6"}]
    assert place.engine.calls == ["compute ops.t", "compute ops.t"]


def test_an_expression_that_leaves_a_required_column_without_a_value_changes_nothing(place: Place) -> None:
    filled(place, table("ops.t", "id bigint"), {"id": 1})
    before = place.snapshots()
    with raises(StepError):
        place.deploy(spec("1.1", table("ops.t", "id bigint", made("n int!", "CAST(NULL AS int)"))))
    assert place.snapshots() == before


def test_an_emptied_table_keeps_its_identity_and_its_older_snapshots(place: Place) -> None:
    """What says that its rows may be made again is emptied rather than asked about."""
    filled(place, replace(NARROW, keep=False), {"id": 1, "n": 5})
    done = place.settle(spec("1.1", replace(INCOMPATIBLE, keep=False)))
    assert told(done) == [("replace_empty", "ops.t")]
    assert place.rows("ops.t") == [] and tags(place, "ops.t") == [None, f"{done.deploy_id}/1"]
    place.append("ops.t", {"id": 2, "n": "x"})
    assert place.rows("ops.t") == [{"id": 2, "n": "x"}]


def test_a_materialized_view_is_filled_and_computed_anew_when_its_query_changes(place: Place) -> None:
    place.deploy(spec("1.0", T))
    place.append("ops.t", {"id": 1, "n": 7, "made": None})
    place.settle(spec("1.1", T, M))
    assert place.rows("ops.m") == [{"id": 1}]
    done = place.settle(spec("1.2", T, mview("ops.m", "SELECT id + 1 AS id FROM ops.t", "id bigint")))
    assert told(done) == [("recompute", "ops.m")] and place.rows("ops.m") == [{"id": 2}]
    assert tags(place, "ops.m")[-1] == f"{done.deploy_id}/1"


def test_versions_in_between_may_be_left_out(place: Place, tmp_path_factory: Any) -> None:
    """Whoever skips versions needs nothing for it, and has the same columns and values."""
    total = Was("total", "string", "CAST(total AS int)")
    versions = [
        table("ops.t", "id int", "n string"),
        table("ops.t", "id int", "a int", "total string < n"),
        table(
            "ops.t", "id bigint", "a int", column("sum int", total, Was("n", "string", "CAST(n AS int)")), "b string"
        ),
    ]
    one = Place(tmp_path_factory.mktemp("one"))
    for item in (place, one):
        item.deploy(spec("1.0", versions[0]))
        item.append("ops.t", {"id": 1, "n": "7"})
    assert [told(place.settle(spec(f"1.{number}", versions[number]))) for number in (1, 2)] == [
        [("evolve", "ops.t")],
        [("rewrite", "ops.t")],
    ]
    assert told(one.settle(spec("1.2", versions[2]))) == [("rewrite", "ops.t")]
    assert place.rows("ops.t") == one.rows("ops.t") == [{"id": 1, "a": None, "sum": 7, "b": None}]
    schemas = [
        [(field.name, field.field_type) for field in where.catalog.load_table("ops.t").schema().fields]
        for where in (place, one)
    ]
    assert schemas[0] == schemas[1]
    one.close()


def test_what_somebody_else_made_is_taken_over_only_on_request_and_keeps_its_rows(place: Place) -> None:
    place.catalog.create_namespace("ops")
    mine = place.catalog.create_table("ops.t", pa.schema([("id", pa.int32())]))
    mine.append(pa.table({"id": pa.array([4], pa.int32())}))
    wanted = spec("1.0", table("ops.t", "id int", comment="ours"))
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted), wanted)
    assert told(place.settle(wanted, adopt=frozenset({"ops.t"}))) == [("adopt", "ops.t")]
    assert place.rows("ops.t") == [{"id": 4}]
    assert place.catalog.load_table("ops.t").properties[MARKER] == str(T.id)


def test_a_removed_object_is_forgotten_and_comes_back_empty(place: Place) -> None:
    loose = table("ops.x", "id int", keep=False)
    place.deploy(spec("1.0", T, loose))
    place.append("ops.x", {"id": 1})
    done = place.settle(spec("1.1", T))
    assert told(done) == [("remove", "ops.x")] and f"ops.x__g{done.deploy_id[:8]}" in place.tables()
    place.settle(spec("1.2", T, table("ops.x", "id string", keep=False)))
    assert place.rows("ops.x") == []


def test_an_older_version_changes_nothing(place: Place) -> None:
    place.deploy(spec("2.0", table("ops.t", "id int", "n int")))
    wanted = spec("1.0", table("ops.t", "id int"))
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted), wanted)
    same = spec("1.0", table("ops.t", "id int", "n int"))
    assert place.deploy(same).state == "nothing"
    assert place.plan(spec("2.0", table("ops.t", "id int", "n int"))).recorded_version == "2.0"


def test_a_plan_is_refused_when_somebody_changed_a_table_since(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int")))
    wanted = spec("1.1", table("ops.t", "id bigint"))
    plan = place.plan(wanted)
    with place.catalog.load_table("ops.t").update_schema() as update:
        update.add_column("x", update._schema.find_field("id").field_type)
    with raises(StalePlanError):
        place.apply(plan, wanted)


def test_drift_is_repaired_when_somebody_says_so(place: Place) -> None:
    said = {"comment": "rows", "owner": "ann", "properties": {"a": "1"}}
    wanted = spec("1.0", table("ops.t", Column("id", "int", comment="key"), **said))
    place.deploy(wanted)
    by_hand = {"a": "2", "comment": "mine", "owner": "bob"}
    with place.catalog.load_table("ops.t").transaction() as transaction:
        transaction.set_properties(by_hand)
        with transaction.update_schema() as update:
            update.update_column("id", doc="mine")
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted), wanted)
    assert told(place.settle(wanted, drift="repair")) == [("metadata", "ops.t")]
    found = place.catalog.load_table("ops.t")
    assert {name: found.properties[name] for name in by_hand} == {"a": "1", "comment": "rows", "owner": "ann"}
    assert found.schema().find_field("id").doc == "key"


def test_a_rewrite_keeps_the_values_of_a_column_that_others_added(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id bigint", "n string")))
    with place.catalog.load_table("ops.t").update_schema() as update:
        update.add_column("theirs", StringType())
    place.append("ops.t", {"id": 1, "n": "5", "theirs": "x"})
    number = replace(column("n bigint"), was=(Was(type="string", using="CAST(n AS bigint)"),))
    declared = table("ops.t", "id bigint")
    wanted = spec("2.0", replace(declared, columns=(*declared.columns, number)))
    assert told(place.deploy(wanted, drift="adopt")) == [("rewrite", "ops.t")]
    assert place.rows("ops.t") == [{"id": 1, "n": 5, "theirs": "x"}]


def test_what_takes_sql_is_refused_without_an_engine_before_anything_is_done(place: Place) -> None:
    with raises(ConfigurationError):
        place.apply(place.plan(FIRST), FIRST, sql=None)
    assert not list(place.catalog.list_namespaces())


def test_a_plan_that_takes_no_sql_starts_no_engine_though_views_read_what_it_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy(FIRST)

    def start(*arguments: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(place.engine, "analyse", start)
    wanted = replace(T, comment="lines", columns=(*T.columns, column("more string")))
    assert told(place.settle(spec("1.1", wanted, V, M))) == [("evolve", "ops.t")]


def test_a_source_may_get_columns_from_its_refresh(place: Place) -> None:
    source = obj(Kind.SOURCE, "ops.raw", "id bigint", source={"stream": "orders"})
    place.settle(spec("1.0", source))
    with place.catalog.load_table("ops.raw").update_schema() as update:
        update.union_by_name(pa.schema([("id", pa.int64()), ("_rfr_meta", pa.string()), ("extra", pa.string())]))
    place.settle(spec("1.1", source))
    place.settle(spec("1.2", obj(Kind.SOURCE, "ops.raw", "id bigint", "extra string", source={"stream": "orders"})))


def test_a_deploy_whose_answers_are_lost_ends_as_any_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = type(place.catalog).commit_table
    lost = []

    def unanswered(*arguments: Any) -> Any:
        lost.append(commit(*arguments))
        raise CatalogError("504")

    monkeypatch.setattr(type(place.catalog), "commit_table", unanswered)
    assert told(place.settle(spec("1.0", T, M))) == [("create", "ops.t"), ("create", "ops.m")]
    place.append("ops.t", {"id": 1, "n": 7, "made": None})
    assert ("evolve", "ops.t") in told(place.settle(spec("1.1", EVOLVED, M)))
    assert len(lost) > 2
