"""A deploy may die before any of its effects: whoever deploys next brings it to the same end, doing nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec, Was
from airflow_provider_rfr.builtins.plan import Plan, Why
from airflow_provider_rfr.exceptions import BlockedPlanError, StalePlanError, StepError
from tests.unit.builtins.catalogs import column, made, mview, spec, table, view
from tests.unit.builtins.execution.crashing import Worlds
from tests.unit.builtins.execution.everything import AFTER, CORRECTED, POLICIES, check, check_corrected, prepare
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

LATER = replace(AFTER, version="3.0")
MECHANISMS = {
    *("create", "adopt", "metadata", "evolve", "rewrite", "recompute", "replace_empty"),
    *("replace", "bridge", "rebind", "mark_broken", "rename", "drop", "remove", "hold", "resume_from_new"),
}
PARTS = 16
"""Every crash is tried by one of so many tests, which can run side by side."""


def approved_or_refused(place: Place, plan: Plan, wanted: CatalogSpec) -> bool:
    """Apply a plan that was made before a crash: it is done as it is, or nothing is touched."""
    before = place.snapshots()
    try:
        assert place.apply(plan, wanted).plan_hash == plan.plan_hash
    except StalePlanError:
        after = place.snapshots()
        assert {name: after[name] for name in before if "__g" not in name} == {
            name: item for name, item in before.items() if "__g" not in name
        }
        return False
    return True


def again(place: Place, number: int, plan: Plan) -> CatalogSpec:
    """Who comes next: the same plan, a plan of what is there now, or a later version of the code."""
    if number % 3 == 0 and approved_or_refused(place, plan, AFTER):
        return AFTER
    wanted = LATER if number % 3 == 2 else AFTER
    place.deploy(wanted, **POLICIES)
    return wanted


def corrected(place: Place, number: int, plan: Plan) -> CatalogSpec:
    """The declaration is corrected first, with or without a new version."""
    wanted = replace(CORRECTED, version="2.1") if number % 2 else CORRECTED
    place.deploy(wanted, **POLICIES)
    return wanted


@contextmanager
def died(worlds: Worlds, number: int) -> Iterator[Place]:
    place = worlds.restore(number)
    try:
        yield place
    except BaseException as error:
        error.add_note(f"died before effect {number} of {len(worlds.names)}, {worlds.names[number]}")
        raise
    finally:
        place.close()


def recorded(
    folder: Path, *before: tuple[CatalogSpec, dict[str, list[dict[str, Any]]]], wanted: CatalogSpec, **policies: Any
) -> Worlds:
    """Each world in which a deploy may leave what it works on, after versions with rows that came after each."""
    worlds = Worlds(folder)
    place = worlds.open()
    for version, rows in before:
        place.deploy(version, **policies)
        for name, more in rows.items():
            place.append(name, *more)
    worlds.record(place, lambda: place.deploy(wanted, **policies))
    place.close()
    return worlds


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worlds, Plan]:
    """Each world in which a deploy with every mechanism may leave what it works on."""
    worlds = Worlds(tmp_path_factory.mktemp("crashes"))
    place = worlds.open()
    prepare(place)
    plan = place.plan(AFTER, **POLICIES)
    assert {step.how.value for step in plan.steps} == MECHANISMS
    worlds.record(place, lambda: place.apply(plan, AFTER))
    check(place)
    place.close()
    return worlds, plan


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, PARTS))])
@pytest.mark.parametrize(
    ("come_next", "checked"), [(again, check), (corrected, check_corrected)], ids=["as it was", "corrected"]
)
def test_a_deploy_with_every_mechanism_converges_after_a_crash_before_any_of_its_effects(
    crashed: tuple[Worlds, Plan], come_next: Callable[..., CatalogSpec], checked: Callable[..., None], part: int
) -> None:
    worlds, plan = crashed
    for number in range(part, len(worlds.names), PARTS):
        with died(worlds, number) as place:
            checked(place, come_next(place, number // PARTS, plan))


def test_names_that_go_round_in_a_circle_converge_after_any_crash(tmp_path: Path) -> None:
    worlds = Worlds(tmp_path)
    place = worlds.open()
    one, two = table("ops.a", "id int"), table("ops.b", "id int")
    place.deploy(spec("1.0", one, two))
    place.append("ops.a", {"id": 1})
    place.append("ops.b", {"id": 2})
    wanted = spec("2.0", replace(one, name="ops.b"), replace(two, name="ops.a"))
    plan = place.plan(wanted)
    worlds.record(place, lambda: place.apply(plan, wanted))
    place.close()
    for number in range(len(worlds.names)):
        with died(worlds, number) as place:
            if number % 2 == 0 or not approved_or_refused(place, plan, wanted):
                place.deploy(wanted)
            assert (place.rows("ops.a"), place.rows("ops.b")) == ([{"id": 2}], [{"id": 1}]), number
            assert place.plan(wanted).steps == () and place.tables() == ["ops.a", "ops.b"]


@pytest.mark.parametrize("given_up", [False, True], ids=["goes on", "is given up"])
def test_a_table_that_becomes_a_view_for_the_second_time_converges_after_any_crash(
    tmp_path: Path, given_up: bool
) -> None:
    """The table that was retired the first time, with other rows, waits for its deletion beside it."""
    accepted = {"accept_data_loss": frozenset({"ops.x"})}
    base, stored, shown = (
        table("ops.base", "id int"),
        table("ops.x", "id int"),
        view("ops.x", "SELECT id FROM ops.base"),
    )
    wanted = spec("4.0", base, shown)
    worlds = recorded(
        tmp_path,
        (spec("1.0", base, stored), {"ops.x": [{"id": 1}]}),
        (spec("2.0", base, shown), {}),
        (spec("3.0", base, stored), {"ops.x": [{"id": 3}]}),
        wanted=wanted,
        **accepted,
    )
    for number in range(len(worlds.names)):
        with died(worlds, number) as place:
            finished = place.plan(wanted, **accepted).steps == ()
            later = spec("5.0", base, stored) if given_up else wanted
            place.deploy(later, **accepted)
            assert place.plan(later).steps == ()
            if given_up:
                assert place.rows("ops.x") in ([{"id": 3}], [] if finished else None)


BEFORE = table("ops.t", "a int", "b int")
SWAPPED = table("ops.t", "a int < b", "b int < a")
TIMES_TEN = table("ops.t", made("a bigint", "b * 10", name="b"), "b int < a")
IN_PLACE = table("ops.t", made("a bigint", "a * 10", type="int"), "b int")
OTHER_TYPES, OTHER_SWAPPED = table("ops.t", "a int", "b string"), table("ops.t", "a string < b", "b int < a")
STRUCT = table("ops.t", "s struct<a:int,b:int>")
SWAPPED_FIELDS = table("ops.t", column("s struct<a:int,b:int>", Was(fields={"a": "b", "b": "a"})))
WITH_C = replace(SWAPPED, columns=(*SWAPPED.columns, made("c int", "a * 100")))
"""With a new column, of what its author knows as ``a``."""
RENAMED = table("ops.t", "c int < a", "d int < b")
Row = dict[str, Any]
EXCHANGES: dict[str, tuple[BuiltinObject, Row, BuiltinObject, BuiltinObject, Row, Row | None]] = {
    "again": (BEFORE, {"a": 1, "b": 2}, SWAPPED, SWAPPED, {"a": 2, "b": 1}, None),
    "comment": (BEFORE, {"a": 1, "b": 2}, SWAPPED, replace(SWAPPED, comment="x"), {"a": 2, "b": 1}, None),
    "column": (
        BEFORE, {"a": 1, "b": 2}, SWAPPED, WITH_C, {"a": 2, "b": 1, "c": 100}, {"a": 2, "b": 1, "c": 200},
    ),
    "given up": (BEFORE, {"a": 1, "b": 2}, SWAPPED, BEFORE, {"a": 1, "b": 2}, {"a": 2, "b": 1}),
    "renamed": (BEFORE, {"a": 1, "b": 2}, SWAPPED, RENAMED, {"c": 1, "d": 2}, {"c": 2, "d": 1}),
    "types": (OTHER_TYPES, {"a": 1, "b": "2"}, OTHER_SWAPPED, OTHER_SWAPPED, {"a": "2", "b": 1}, None),
    "computed": (BEFORE, {"a": 1, "b": 2}, TIMES_TEN, replace(TIMES_TEN, comment="x"), {"a": 20, "b": 1}, None),
    "computed in place": (BEFORE, {"a": 1, "b": 2}, IN_PLACE, replace(IN_PLACE, comment="x"), {"a": 10, "b": 2}, None),
    **{
        f"fields, {name}": (STRUCT, {"s": {"a": 1, "b": 2}}, SWAPPED_FIELDS, later, {"s": {"a": 2, "b": 1}}, None)
        for name, later in {"again": SWAPPED_FIELDS, "comment": replace(SWAPPED_FIELDS, comment="x")}.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "first", "died_in", "later", "row", "once_finished"), EXCHANGES.values(), ids=EXCHANGES
)
def test_columns_and_fields_that_exchange_their_names_keep_their_values_whatever_comes_after_a_crash(
    tmp_path: Path,
    before: BuiltinObject,
    first: Row,
    died_in: BuiltinObject,
    later: BuiltinObject,
    row: Row,
    once_finished: Row | None,
) -> None:
    """Their names are the same before and after."""
    worlds = recorded(tmp_path, (spec("1.0", before), {"ops.t": [first]}), wanted=spec("2.0", died_in))
    for number in range(len(worlds.names)):
        with died(worlds, number) as place:
            finished = place.recorded("ops.t").columns == died_in.columns
            place.deploy(spec("2.1", later))
            assert place.rows("ops.t") == [once_finished if finished and once_finished else row]
            assert place.plan(spec("2.1", later)).steps == ()


def behind_the_last_commit(worlds: Worlds) -> int:
    """Where everything is done but for the registry."""
    return len(worlds.names) - worlds.names[::-1].index("commit_table")


def test_deploys_that_die_one_after_the_other_exchange_names_once(tmp_path: Path) -> None:
    worlds = Worlds(tmp_path)
    place = worlds.open()
    place.deploy(spec("1.0", BEFORE))
    place.append("ops.t", {"a": 1, "b": 2})
    rows = []
    for wanted in (SWAPPED, replace(SWAPPED, comment="x"), BEFORE, SWAPPED):
        worlds.record(place, partial(place.deploy, spec("2.0", wanted)))
        place.close()
        place = worlds.restore(behind_the_last_commit(worlds))
        rows += place.rows("ops.t")
    assert rows == [{"a": 2, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]
    place.deploy(spec("2.0", SWAPPED))
    assert place.rows("ops.t") == [{"a": 2, "b": 1}] and place.plan(spec("2.0", SWAPPED)).steps == ()
    place.close()


@pytest.mark.parametrize(("made_as", "row"), [(BEFORE, {"a": 2, "b": 1}), (SWAPPED, {"a": 1, "b": 2})])
def test_a_table_that_a_deploy_made_before_it_died_knows_what_its_columns_were(
    tmp_path: Path, made_as: BuiltinObject, row: dict[str, int]
) -> None:
    """The next declaration exchanges their names, or it is the one that the table was made by."""
    worlds = recorded(tmp_path, wanted=spec("1.0", made_as))
    with died(worlds, behind_the_last_commit(worlds)) as place:
        place.append("ops.t", {"a": 1, "b": 2})
        place.deploy(spec("1.1", SWAPPED))
        assert place.rows("ops.t") == [row]


def test_a_version_that_was_given_up_makes_way_for_an_older_one_unless_it_is_done(tmp_path: Path) -> None:
    """Row 31."""
    before, begun = table("ops.a", "id int"), table("ops.a", "id bigint", comment="3")
    wanted = spec("2.0", table("ops.a", "id bigint", "n int", comment="2"))
    rows = {"ops.a": [{"id": 1}]}
    worlds = recorded(tmp_path, (spec("1.0", before), rows), wanted=spec("3.0", begun, table("ops.b", "id int")))
    refused = []
    for number in range(len(worlds.names)):
        with died(worlds, number) as place:
            plan = place.plan(wanted)
            if plan.recorded_version == "3.0":
                assert {finding.problems[0].why for finding in plan.blocked} == {Why.DOWNGRADE}
                refused.append(number)
                continue
            place.deploy(wanted)
            assert place.rows("ops.a") == [{"id": 1, "n": None}] and "ops.b" not in place.tables()
            assert place.catalog.load_table("ops.a").properties["comment"] == "2"
            assert place.plan(wanted).steps == ()
    assert 0 not in refused and len(worlds.names) - 1 in refused


OLD = table("ops.b", "id int", "n int", keep=False)


def rewritten(using: str) -> BuiltinObject:
    return table("ops.b", "id int", made("n string", using, type="int"))


@pytest.fixture
def failed(place: Place) -> Callable[..., None]:
    """A deploy of ``ops.a`` and ``ops.b`` that fails in one of them, before it has changed it."""
    place.deploy(spec("1.0", table("ops.a", "id int"), OLD))
    place.append("ops.b", {"id": 1, "n": 10}, {"id": 2, "n": 20})

    def fail(wanted: CatalogSpec, **policies: Any) -> None:
        def die() -> None:
            raise OSError("executor lost")

        place.engine.during = die
        with pytest.raises(StepError):
            place.deploy(wanted, **policies)

    return fail


def test_an_expression_that_is_corrected_after_a_failed_deploy_is_the_one_that_runs(
    place: Place, failed: Callable[..., None]
) -> None:
    first = table("ops.a", "id int")
    failed(spec("2.0", first, rewritten("CAST(n AS string)")))
    wanted = spec("2.0", first, rewritten("CAST(n * 100 AS string)"))
    plan = place.plan(wanted)
    assert place.apply(plan, wanted).plan_hash == plan.plan_hash
    assert place.rows("ops.b") == [{"id": 1, "n": "1000"}, {"id": 2, "n": "2000"}]


@pytest.mark.parametrize(
    ("lossy", "loss"),
    [
        (table("ops.b", "id int", "n string", keep=False), frozenset[str]()),
        (rewritten("TRY_CAST(n AS string)"), frozenset({"ops.b.n"})),
    ],
    ids=["emptied", "narrowed"],
)
def test_a_loss_that_is_taken_back_after_a_failed_deploy_loses_nothing(
    place: Place, failed: Callable[..., None], lossy: BuiltinObject, loss: frozenset[str]
) -> None:
    """The permission is still given, and nothing makes use of it."""
    first = table("ops.a", made("id string", "CAST(id AS string)", type="int"))
    place.append("ops.a", {"id": 5})
    failed(spec("2.0", first, lossy), accept_data_loss=loss)
    wanted = spec("2.0", first, rewritten("CAST(n AS string)"))
    plan = place.plan(wanted, accept_data_loss=loss)
    assert [tuple(step.losses) for step in plan.steps if step.losses] == []
    done = place.apply(plan, wanted)
    assert [(step.name, step.how) for step in done.steps] == [("ops.a", "rewrite"), ("ops.b", "rewrite")]
    assert place.rows("ops.b") == [{"id": 1, "n": "10"}, {"id": 2, "n": "20"}]


def test_a_cast_that_a_value_stopped_runs_as_the_remedy_says(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.s", "score string")))
    place.append("ops.s", {"score": "7"}, {"score": "x"})

    def wanted(cast: str) -> CatalogSpec:
        return spec("2.0", table("ops.s", made("score int", f"{cast}(score AS int)", type="string")))

    with raises(StepError):
        place.deploy(wanted("CAST"))
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted("TRY_CAST")), wanted("TRY_CAST"))
    place.deploy(wanted("TRY_CAST"), accept_data_loss=frozenset({"ops.s.score"}))
    assert place.rows("ops.s") == [{"score": 7}, {"score": None}]


def test_what_reads_a_table_sees_its_new_rows_though_the_deploy_died_between_the_two(tmp_path: Path) -> None:
    """The table is as wanted when the next plan is made; its readers are not."""
    readers = (
        mview("ops.m", "SELECT id, CAST(n AS string) AS n FROM ops.b", "id int", "n string"),
        view("ops.v", "SELECT n FROM ops.b"),
    )
    wanted = spec("2.0", rewritten("CAST(n + 1 AS string)"), *readers)
    rows = {"ops.b": [{"id": 1, "n": 10}]}
    worlds = recorded(tmp_path, (spec("1.0", OLD), rows), (spec("1.1", OLD, *readers), {}), wanted=wanted)
    for number in range(len(worlds.names)):
        with died(worlds, number) as place:
            bound = place.recorded("ops.v").deploy_id
            done = place.deploy(wanted)
            assert place.rows("ops.m") == [{"id": 1, "n": "11"}]
            finished = place.recorded("ops.v").deploy_id != bound or done.state == "nothing"
            assert finished, "the view was bound to the old columns"
