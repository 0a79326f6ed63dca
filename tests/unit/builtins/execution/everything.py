"""Two versions of a catalog between which every mechanism is needed, and what has to be so when the second is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Stability, Strategy
from airflow_provider_rfr.sinks.registry import sink_states
from tests.unit.builtins.catalogs import contract, migration, mview, sink, spec, table, view
from tests.unit.builtins.execution.places import Place

OLD, NEW = ("id bigint", "n int"), ("id bigint", "n string")
POLICIES: dict[str, Any] = {
    "adopt": frozenset({"ops.theirs"}),
    "accept_data_loss": frozenset({"ops.emptied"}),
}
RETIRED = ("ops.gone", "ops.turned")
"""Names of retired tables."""


def _way(how: Strategy, **expressions: str) -> Any:
    return migration(contract(*OLD), contract(*NEW), how, **expressions)


def _loose(name: str, *columns: str) -> BuiltinObject:
    return table(name, *columns, stability=Stability.UNSTABLE)


_NAMED, _SEEN = table("ops.named", "id int"), view("ops.seen", "SELECT 1 AS one")

BEFORE = spec(
    "1.0",
    table("ops.evolved", "id bigint", "n int"),
    table("ops.rewritten", *OLD),
    table("ops.emptied", *OLD, exportable=True),
    table("ops.said", "id int", comment="old"),
    _loose("ops.gone", "id int"),
    _loose("ops.turned", "id bigint"),
    _NAMED,
    mview("ops.summed", "SELECT id FROM ops.evolved", "id bigint"),
    view("ops.bound", "SELECT n FROM ops.evolved"),
    _SEEN,
    view("ops.lost", "SELECT 2 AS two", stability=Stability.UNSTABLE),
    sink("ops.out", "ops.emptied", on_replace="resume_from_new"),
    sink("ops.stopped", "ops.emptied", on_replace="hold", stability=Stability.UNSTABLE),
    sink("ops.through", "ops.evolved", stability=Stability.UNSTABLE),
)

AFTER = spec(
    "2.0",
    table(
        "ops.evolved", "number bigint < n", "id bigint!", "more string", partitioning=("bucket(2, id)",), keys=("id",)
    ),
    table("ops.rewritten", *NEW, migrations=(_way(Strategy.REWRITE, n="CAST(n * 2 AS string)"),)),
    table("ops.emptied", *NEW, migrations=(_way(Strategy.REPLACE_EMPTY),), exportable=True),
    table("ops.said", "id int", comment="new", properties={"a": "1"}),
    table("ops.theirs", "id int"),
    view("ops.turned", "SELECT id FROM ops.evolved", stability=Stability.UNSTABLE),
    replace(_NAMED, name="ops.called"),
    mview("ops.summed", "SELECT id + 1 AS id FROM ops.evolved", "id bigint"),
    mview("ops.filled", "SELECT id FROM ops.evolved", "id bigint"),
    view("ops.bound", "SELECT number AS n FROM ops.evolved"),
    replace(_SEEN, name="ops.watched"),
    sink("ops.out", "ops.emptied", on_replace="resume_from_new"),
    sink("ops.stopped", "ops.emptied", on_replace="hold", stability=Stability.UNSTABLE),
    sink("ops.more", "ops.theirs", stability=Stability.UNSTABLE),
)

CORRECTED = replace(
    AFTER,
    objects=tuple(
        {
            "ops.rewritten": table(
                "ops.rewritten", *NEW, migrations=(_way(Strategy.REWRITE, n="CAST(n * 3 AS string)"),)
            ),
            "ops.emptied": table(
                "ops.emptied", *NEW, migrations=(_way(Strategy.REWRITE, n="CAST(n AS string)"),), exportable=True
            ),
            "ops.said": table("ops.said", "id int", comment="corrected"),
            "ops.filled": mview("ops.filled", "SELECT id + 7 AS id FROM ops.evolved", "id bigint"),
            "ops.bound": view("ops.bound", "SELECT number + 1 AS n FROM ops.evolved"),
            "ops.called": replace(_NAMED, name="ops.named"),
        }.get(each.name, each)
        for each in AFTER.objects
        if each.name != "ops.more"
    ),
)
"""The second version once more, as somebody corrected it after a deploy of it died."""


def prepare(place: Place) -> None:
    """The first version with rows, and what users made."""
    place.deploy(BEFORE)
    for name in ("ops.evolved", "ops.rewritten", "ops.emptied"):
        place.append(name, {"id": 1, "n": 10}, {"id": 2, "n": 20})
    for number, name in enumerate(("ops.gone", "ops.turned", "ops.named")):
        place.append(name, {"id": number})
    theirs = place.catalog.create_table("ops.theirs", place.catalog.load_table("ops.said").schema())
    assert not theirs.properties
    place.append("ops.theirs", {"id": 9})
    view = "SELECT n FROM ops.bound"
    place.engine.create_view("bob.mine", view, properties={"team": "b"}, comment=None, columns=(), replace=False)


def check(place: Place, wanted: CatalogSpec = AFTER) -> None:
    """The second version is there: every row, each step done once, nothing else."""
    assert place.rows("ops.evolved") == [
        {"number": 10, "id": 1, "more": None},
        {"number": 20, "id": 2, "more": None},
    ]
    assert place.rows("ops.rewritten") == [{"id": 1, "n": "20"}, {"id": 2, "n": "40"}]
    assert place.rows("ops.emptied") == [] and place.rows("ops.theirs") == [{"id": 9}]
    assert place.rows("ops.summed") == [{"id": 2}, {"id": 3}] and place.rows("ops.filled") == [{"id": 1}, {"id": 2}]
    assert place.rows("ops.called") == [{"id": 2}]
    markers = place.markers()
    ours = {each.name: str(each.id) for each in AFTER.objects if each.sink is None}
    assert {name: markers.pop(name) for name in ours} == ours
    assert markers.pop("bob.mine") is None
    aside = {name.partition("__")[0] for name in markers}
    assert aside == set(RETIRED) and len(markers) <= len(RETIRED) + 1, markers
    live = place.catalog.load_table("ops.evolved")
    assert (len(live.metadata.snapshots), len(place.catalog.load_table("ops.rewritten").metadata.snapshots)) == (1, 2)
    again = place.plan(wanted)
    assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())


def check_corrected(place: Place, wanted: CatalogSpec) -> None:
    """The corrected version is there. What was done before it was corrected stays: it is in no recorded state."""
    assert [each["number"] for each in place.rows("ops.evolved")] == [10, 20]
    done = {"ops.rewritten": ("20", "40"), "ops.emptied": ()}
    right = {"ops.rewritten": ("30", "60"), "ops.emptied": ("10", "20")}
    for name, values in right.items():
        assert tuple(each["n"] for each in place.rows(name)) in (values, done[name]), name
    assert place.rows("ops.filled") == [{"id": 8}, {"id": 9}] and place.rows("ops.summed") == [{"id": 2}, {"id": 3}]
    assert place.rows("ops.named") == [{"id": 2}] and place.rows("ops.theirs") == [{"id": 9}]
    assert place.catalog.load_table("ops.said").properties["comment"] == "corrected"
    markers = place.markers()
    ours = {each.name: str(each.id) for each in wanted.objects if each.sink is None}
    assert {name: markers.pop(name) for name in ours} == ours
    assert all("__g" in name for name in markers if name != "bob.mine"), markers
    again = place.plan(wanted)
    assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())
    with place.store.read() as connection:
        assert {each.name for each in sink_states(connection)} == {"ops.out", "ops.stopped"}
