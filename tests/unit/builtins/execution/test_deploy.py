"""A plan applied to a real catalog: what was planned is there afterwards, the next deploy does nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.builtins import Applied, gc
from airflow_provider_rfr.builtins.execution.maintenance import waiting
from airflow_provider_rfr.builtins.spec import BuiltinObject, Kind, Stability, Strategy
from airflow_provider_rfr.builtins.state import DEPLOY, MARKER
from airflow_provider_rfr.exceptions import BlockedPlanError, ConfigurationError, StalePlanError, StepError
from airflow_provider_rfr.lake.increments import MIGRATION_TAG
from airflow_provider_rfr.store.deploys import history
from tests.unit.builtins.catalogs import PROJECT, contract, migration, mview, obj, spec, table, view
from tests.unit.builtins.execution.places import Place

T = table("ops.t", "id bigint!", "n int", "made timestamp", keys=("id",), partitioning=("days(made)",), comment="rows")
V = view("ops.v", "SELECT id, n FROM ops.t", comment="newest")
M = mview("ops.m", "SELECT id FROM ops.t", "id bigint")
FIRST = spec("1.0", T, V, M)


def told(done: Applied) -> list[tuple[str, str]]:
    return [(each.how, each.name) for each in done.steps]


def tags(place: Place, name: str) -> list[str | None]:
    snapshots = place.catalog.load_table(name).metadata.snapshots
    return [each.summary.additional_properties.get(MIGRATION_TAG) if each.summary else None for each in snapshots]


def test_a_first_deploy_creates_everything_and_the_next_one_does_nothing(place: Place) -> None:
    """Rows 1 and 35."""
    assert told(place.settle(FIRST)) == [("create", "ops.t"), ("create", "ops.m"), ("create", "ops.v")]
    live = place.catalog.load_table("ops.t")
    assert live.properties["comment"] == "rows" and live.properties[MARKER] == str(T.id)
    assert live.schema().identifier_field_names() == {"id"} and not live.metadata.snapshots


def test_a_deploy_that_finds_nothing_to_do_is_in_the_journal_and_nowhere_else(place: Place) -> None:
    """Row 1."""
    place.settle(FIRST)
    with place.store.read() as connection:
        assert [(each.state.value, each.revision) for each in history(connection, PROJECT)] == [
            ("nothing", None),
            ("done", 1),
        ]


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
    assert [each.name for each in live.schema().fields] == ["made", "number", "id", "more"]
    assert [each.name for each in live.spec().fields] == ["id_bucket_4"]
    assert live.properties["comment"] == "lines"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s struct<a:int,b:int>", "s struct<c:string,b:bigint,a:int>"),
        ("s array<struct<a:int>>", "s array<struct<a:bigint,b:date>>"),
        ("s map<string,struct<a:float>>", "s map<string,struct<b:int,a:double>>"),
        ("s struct<a:struct<x:int>>", "s struct<a:struct<y:array<int>,x:bigint>>"),
        ("s decimal(9,2)", "s decimal(12,2)"),
    ],
)
def test_nested_types_widen_field_by_field(place: Place, old: str, new: str) -> None:
    place.deploy(spec("1.0", table("ops.t", old)))
    assert told(place.settle(spec("1.1", table("ops.t", new)))) == [("evolve", "ops.t")]


def test_columns_that_swap_their_names_keep_their_values(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "a int", "b int")))
    place.append("ops.t", {"a": 1, "b": 2})
    place.settle(spec("1.1", table("ops.t", "a int < b", "b int < a")))
    assert place.rows("ops.t") == [{"a": 2, "b": 1}]


def test_a_column_is_required_only_if_every_row_has_a_value(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id bigint", "n int")))
    place.append("ops.t", {"id": 1, "n": 5}, {"id": None, "n": 6})
    wanted = spec("1.1", table("ops.t", "id bigint!", "n int!", keys=("id",)))
    before = place.snapshots()
    with pytest.raises(StepError, match="evolve ops.t: id can't be required: there are rows without a value"):
        place.deploy(wanted)
    assert place.snapshots() == before
    place.catalog.load_table("ops.t").delete("id is null")
    place.settle(wanted)
    schema = place.catalog.load_table("ops.t").schema()
    assert [each.required for each in schema.fields] == [True, True] and schema.identifier_field_names() == {"id"}


def test_a_key_of_optional_columns_is_kept_in_its_order(place: Place) -> None:
    place.settle(spec("1.0", table("ops.t", "b int", "a int", keys=("b", "a"))))
    place.settle(spec("1.1", table("ops.t", "b int", "a int", keys=("a", "b"))))
    place.settle(spec("1.2", table("ops.t", "b int!", "a int!", keys=("a", "b"))))
    place.settle(spec("1.3", table("ops.t", "b int", "a int")))


def test_only_what_is_said_about_a_table_changes(place: Place) -> None:
    before = table("ops.t", "id int", comment="old", owner="ann", properties={"a": "1", "b": "2"})
    after = table("ops.t", "id int", comment="new", properties={"a": "3"})
    place.deploy(spec("1.0", before))
    assert told(place.settle(spec("1.1", after))) == [("metadata", "ops.t")]
    found = place.catalog.load_table("ops.t").properties
    assert (found["comment"], found["a"], "owner" in found, "b" in found) == ("new", "3", False, False)


INCOMPATIBLE = table("ops.t", "id bigint!", "n string", keys=("id",))
NARROW = table("ops.t", "id bigint!", "n int", keys=("id",))


def how(name: str, **expressions: str) -> BuiltinObject:
    """The same change by another mechanism."""
    way = migration(contract("id bigint", "n int"), contract("id bigint", "n string"), Strategy(name), **expressions)
    return table("ops.t", "id bigint!", "n string", keys=("id",), migrations=(way,))


def test_without_an_instruction_nothing_is_done(place: Place) -> None:
    place.deploy(spec("1.0", NARROW))
    wanted = spec("1.1", INCOMPATIBLE)
    with pytest.raises(BlockedPlanError, match="ops.t: contract changed, no migration"):
        place.apply(place.plan(wanted), wanted)


def test_a_rewrite_changes_columns_and_rows_in_one_tagged_snapshot(place: Place) -> None:
    """Row 2."""
    other = table("ops.other", "id int")
    place.deploy(spec("1.0", NARROW, other))
    place.append("ops.t", {"id": 1, "n": 5}, {"id": 2, "n": None})
    before, old = place.snapshots(), place.catalog.load_table("ops.t")
    done = place.settle(spec("1.1", how("rewrite", n="CAST(n * 2 AS string)"), other))
    assert told(done) == [("rewrite", "ops.t")]
    assert place.rows("ops.t") == [{"id": 1, "n": "10"}, {"id": 2, "n": None}]
    assert tags(place, "ops.t") == [None, f"{done.deploy_id}/1"]
    assert place.snapshots()["ops.other"] == before["ops.other"]
    live = place.catalog.load_table("ops.t")
    assert live.metadata.table_uuid == old.metadata.table_uuid and live.properties[MARKER] == str(T.id)
    earlier = live.scan(snapshot_id=before["ops.t"][1]).to_arrow().to_pylist()
    assert sorted(earlier, key=str) == [{"id": 1, "n": 5}, {"id": 2, "n": None}]
    assert done.steps[0].evidence["rows"] == 2


def test_rows_appended_while_a_table_is_rewritten_are_not_lost(place: Place) -> None:
    place.deploy(spec("1.0", NARROW))
    place.append("ops.t", {"id": 1, "n": 5})
    place.engine.during = lambda: place.append("ops.t", {"id": 2, "n": 6})
    place.settle(spec("1.1", how("rewrite", n="CAST(n AS string)")))
    assert place.rows("ops.t") == [{"id": 1, "n": "5"}, {"id": 2, "n": "6"}]
    assert place.engine.calls == ["compute ops.t", "compute ops.t"]


def test_an_expression_that_leaves_a_required_column_without_a_value_changes_nothing(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id bigint")))
    place.append("ops.t", {"id": 1})
    way = migration(contract("id bigint"), contract("id bigint", "n int"), Strategy.REWRITE, n="CAST(NULL AS int)")
    before = place.snapshots()
    with pytest.raises(StepError, match="n can't be required"):
        place.deploy(spec("1.1", table("ops.t", "id bigint", "n int!", migrations=(way,))))
    assert place.snapshots() == before


def test_an_emptied_table_keeps_its_identity_and_its_older_snapshots(place: Place) -> None:
    place.deploy(spec("1.0", NARROW))
    place.append("ops.t", {"id": 1, "n": 5})
    done = place.settle(spec("1.1", how("replace_empty")), accept_data_loss=frozenset({"ops.t"}))
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


def test_an_evolve_step_for_a_table_that_never_was_creates_it_at_its_newest(place: Place) -> None:
    """Row 21."""
    way = migration(contract("id bigint"), contract("id bigint", "n int"), Strategy.EVOLVE)
    assert told(place.settle(spec("2.0", table("ops.t", "id bigint", "n int", migrations=(way,))))) == [
        ("create", "ops.t")
    ]


def test_versions_in_between_may_be_left_out(place: Place, tmp_path_factory: Any) -> None:
    """Rows 22 and 23."""
    versions = [
        table("ops.t", "id int"),
        table("ops.t", "id int", "a int"),
        table("ops.t", "id bigint", "a int", "b string"),
    ]
    one = Place(tmp_path_factory.mktemp("one"))
    for number, each in enumerate(versions):
        place.settle(spec(f"1.{number}", each))
    one.deploy(spec("1.0", versions[0]))
    assert told(one.settle(spec("1.2", versions[2]))) == [("evolve", "ops.t")]
    schemas = [each.catalog.load_table("ops.t").schema().fields for each in (place, one)]
    assert schemas[0] == schemas[1]


def test_a_protected_table_may_get_a_column(place: Place) -> None:
    """Row 26."""
    place.deploy(spec("1.0", table("ops.t", "id int", protect="billing")))
    place.append("ops.t", {"id": 1})
    place.settle(spec("1.1", table("ops.t", "id int", "n int", protect="billing")))
    assert place.rows("ops.t") == [{"id": 1, "n": None}]


def test_what_somebody_else_made_is_taken_over_only_on_request_and_keeps_its_rows(place: Place) -> None:
    """Row 11."""
    place.catalog.create_namespace("ops")
    mine = place.catalog.create_table("ops.t", pa.schema([("id", pa.int32())]))
    mine.append(pa.table({"id": pa.array([4], pa.int32())}))
    wanted = spec("1.0", table("ops.t", "id int", comment="ours"))
    with pytest.raises(BlockedPlanError, match="lacks our marker"):
        place.apply(place.plan(wanted), wanted)
    assert told(place.settle(wanted, adopt=frozenset({"ops.t"}))) == [("adopt", "ops.t")]
    assert place.rows("ops.t") == [{"id": 4}]
    assert place.catalog.load_table("ops.t").properties[MARKER] == str(T.id)


def test_tables_that_swap_their_names_keep_their_rows_and_ids(place: Place) -> None:
    one, two = table("ops.a", "id int"), table("ops.b", "id int")
    place.deploy(spec("1.0", one, two))
    place.append("ops.a", {"id": 1})
    place.append("ops.b", {"id": 2})
    done = place.settle(spec("1.1", table("ops.b", "id int", id=one.id), table("ops.a", "id int", id=two.id)))
    assert [each.how for each in done.steps] == ["rename"] * 3
    assert (place.rows("ops.a"), place.rows("ops.b")) == ([{"id": 2}], [{"id": 1}])
    assert place.markers() == {"ops.a": str(two.id), "ops.b": str(one.id)}


def test_views_whose_edge_turns_round_are_replaced_in_the_new_order(place: Place) -> None:
    """Row 7."""
    a, b = view("ops.a", "SELECT id FROM ops.t"), view("ops.b", "SELECT id FROM ops.a")
    place.deploy(spec("1.0", T, a, b))
    turned = (view("ops.a", "SELECT id FROM ops.b"), view("ops.b", "SELECT id FROM ops.t"))
    assert told(place.settle(spec("1.1", T, *turned))) == [("replace", "ops.b"), ("replace", "ops.a")]
    assert place.markers()["ops.a"] == str(a.id)


def test_a_table_that_becomes_a_view_keeps_its_id_and_its_rows_wait(place: Place) -> None:
    """Rows 3 and 9."""
    place.deploy(spec("1.0", T, table("ops.x", "id bigint"), view("ops.y", "SELECT id FROM ops.x")))
    wanted = spec("1.1", T, view("ops.x", "SELECT id FROM ops.t"), view("ops.y", "SELECT id FROM ops.x"))
    done = place.settle(wanted, accept_data_loss=frozenset({"ops.x"}))
    assert told(done)[0] == ("drop", "ops.x")
    assert place.markers()["ops.x"] == place.markers()[f"ops.x__g{done.deploy_id[:8]}"]
    assert place.recorded("ops.x").kind is Kind.VIEW


def test_a_removed_object_is_forgotten_and_comes_back_empty(place: Place) -> None:
    """Rows 14 and 17."""
    loose = table("ops.x", "id int", stability=Stability.UNSTABLE)
    place.deploy(spec("1.0", T, loose))
    place.append("ops.x", {"id": 1})
    done = place.settle(spec("1.1", T))
    assert told(done) == [("remove", "ops.x")] and f"ops.x__g{done.deploy_id[:8]}" in place.tables()
    place.settle(spec("1.2", T, table("ops.x", "id string", stability=Stability.UNSTABLE)))
    assert place.rows("ops.x") == []


def test_an_older_version_changes_nothing(place: Place) -> None:
    """Row 27."""
    place.deploy(spec("2.0", table("ops.t", "id int", "n int")))
    wanted = spec("1.0", table("ops.t", "id int"))
    with pytest.raises(BlockedPlanError, match="downgrade not supported"):
        place.apply(place.plan(wanted), wanted)
    same = spec("1.0", table("ops.t", "id int", "n int"))
    assert place.deploy(same).state == "nothing"
    assert place.plan(spec("2.0", table("ops.t", "id int", "n int"))).recorded_version == "2.0"


def test_a_saved_plan_is_refused_once_the_base_has_changed(place: Place) -> None:
    """Rows 33 and 57."""
    place.deploy(FIRST)
    one, two = spec("1.1", T, V), spec("1.2", table("ops.t", *("id bigint!", "n int", "made timestamp", "x int")), V)
    with pytest.raises(BlockedPlanError):
        place.apply(place.plan(one), one)
    ours = spec(
        "1.1",
        table("ops.t", "id bigint!", "n bigint", "made timestamp", keys=("id",), partitioning=("days(made)",)),
        V,
        M,
    )
    plans = [(place.plan(ours), ours), (place.plan(FIRST), FIRST)]
    place.apply(*plans[0])
    with pytest.raises(StalePlanError, match="made from revision 1, the registry is at 2"):
        place.apply(*plans[1])
    assert two.version == "1.2"


def test_a_plan_is_refused_when_somebody_changed_a_table_since(place: Place) -> None:
    """Row 57."""
    place.deploy(spec("1.0", table("ops.t", "id int")))
    wanted = spec("1.1", table("ops.t", "id bigint"))
    plan = place.plan(wanted)
    with place.catalog.load_table("ops.t").update_schema() as update:
        update.add_column("x", update._schema.find_field("id").field_type)
    with pytest.raises(StalePlanError, match="stale"):
        place.apply(plan, wanted)


def test_drift_is_repaired_when_somebody_says_so(place: Place) -> None:
    """Row 65."""
    wanted = spec("1.0", table("ops.t", "id int", properties={"a": "1"}))
    place.deploy(wanted)
    with place.catalog.load_table("ops.t").transaction() as transaction:
        transaction.set_properties({"a": "2"})
    with pytest.raises(BlockedPlanError, match="drift"):
        place.apply(place.plan(wanted), wanted)
    place.settle(wanted, drift="repair")
    assert place.catalog.load_table("ops.t").properties["a"] == "1"


def test_a_users_view_is_rebound_and_does_not_become_ours(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int")))
    place.engine.create_view(
        "bob.daily", "SELECT id FROM ops.t", properties={"team": "b"}, comment="mine", columns=(), replace=False
    )
    place.engine.calls.clear()
    done = place.settle(spec("1.1", table("ops.t", "id bigint")))
    assert told(done) == [("evolve", "ops.t"), ("rebind", "bob.daily")]
    found = next(each for each in place.engine.views(place.catalog))
    assert dict(found.properties) == {"team": "b", "comment": "mine"}
    assert place.engine.calls == ["create_view bob.daily"]


def test_what_takes_sql_is_refused_without_an_engine_before_anything_is_done(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="ops.m, ops.v take SQL on Spark"):
        place.apply(place.plan(FIRST), FIRST, sql=None)
    assert not list(place.catalog.list_namespaces())


def test_a_source_may_get_columns_from_its_refresh(place: Place) -> None:
    source = obj(Kind.SOURCE, "ops.raw", "id bigint", source={"stream": "orders"})
    place.settle(spec("1.0", source))
    with place.catalog.load_table("ops.raw").update_schema() as update:
        update.union_by_name(pa.schema([("id", pa.int64()), ("_rfr_meta", pa.string()), ("extra", pa.string())]))
    place.settle(spec("1.1", source))
    place.settle(spec("1.2", obj(Kind.SOURCE, "ops.raw", "id bigint", "extra string", source={"stream": "orders"})))


def test_garbage_goes_when_its_time_has_come_and_only_if_it_is_ours(place: Place) -> None:
    loose = [table(f"ops.{name}", "id int", stability=Stability.UNSTABLE) for name in ("x", "y")]
    place.deploy(spec("1.0", T, *loose))
    place.append("ops.x", {"id": 1})
    done = place.deploy(spec("1.1", T))
    asides = [f"ops.{name}__g{done.deploy_id[:8]}" for name in ("x", "y")]
    early = gc(project=PROJECT, catalog=place.catalog, store=place.store)
    assert set(early.kept) == set(asides) and not early.deleted
    place.deploy(spec("1.2", T, *loose, view("ops.z", "SELECT 1 AS one")))
    done = place.deploy(spec("1.3", T, view("ops.z", "SELECT 1 AS one")), keep_days=0)
    asides = [f"ops.{name}__g{done.deploy_id[:8]}" for name in ("x", "y")]
    with place.catalog.load_table(asides[1]).transaction() as transaction:
        transaction.remove_properties(MARKER)
    found = gc(project=PROJECT, catalog=place.catalog, store=place.store)
    assert found.deleted == (asides[0],) and asides[0] not in place.tables()
    assert found.kept[asides[1]] == "it does not carry our marker" and asides[1] in place.tables()
    assert not gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted
    assert place.plan(spec("1.3", T, view("ops.z", "SELECT 1 AS one"))).steps == ()


def test_every_step_says_in_the_tables_properties_which_deploy_it_was(place: Place) -> None:
    first = place.deploy(FIRST)
    assert place.catalog.load_table("ops.t").properties[DEPLOY] == first.deploy_id
    assert place.recorded("ops.t").deploy_id == first.deploy_id


def test_garbage_that_can_not_be_deleted_stays_in_the_queue_and_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 62."""
    place.deploy(spec("1.0", T, table("ops.x", "id int", stability=Stability.UNSTABLE)))
    done = place.deploy(spec("1.1", T), keep_days=0)
    aside = f"ops.x__g{done.deploy_id[:8]}"

    def refuse(name: str) -> None:
        raise OSError("no route to the store")

    with monkeypatch.context() as patch:
        patch.setattr(place.catalog, "purge_table", refuse)
        assert gc(project=PROJECT, catalog=place.catalog, store=place.store).failed == {aside: "OSError"}
    assert done.state == "done" and aside in place.tables()
    row = waiting(place.store, PROJECT)[aside]
    assert (row.attempts, row.last_error) == (1, "OSError")
    assert gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted == (aside,)
    assert waiting(place.store, PROJECT) == {} and aside not in place.tables()


def test_a_name_whose_case_alone_changes_stays_as_it_was_written_first(place: Place) -> None:
    """Names are compared without case, but a catalog finds a table only as it is written there."""
    place.deploy(spec("1.0", table("ops.Runs", "id int"), view("ops.Seen", "SELECT id FROM ops.Runs")))
    place.append("ops.Runs", {"id": 1})
    place.settle(spec("1.1", table("ops.runs", "id bigint", "n int"), view("ops.seen", "SELECT id FROM ops.Runs")))
    assert place.rows("ops.Runs") == [{"id": 1, "n": None}]
    assert place.tables() == ["ops.Runs"] and place.recorded("ops.Runs").physical == "ops.Runs"


def test_rows_of_history_that_a_change_of_kind_puts_aside_are_told_of(place: Place) -> None:
    """Row 9: nothing is lost by the deploy; what collects garbage later on is another matter."""
    place.deploy(spec("1.0", T, table("ops.x", "id int")))
    turned = spec("1.1", T, view("ops.x", "SELECT 1 AS id"))
    assert place.plan(turned).warnings == ()
    place.append("ops.x", {"id": 1})
    found = place.plan(turned)
    assert found.applicable
    assert found.warnings == ("ops.x: its rows (history) are retired, and deleted by gc after 7 days",)
