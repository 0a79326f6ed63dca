"""Two versions of a catalog between which every mechanism is needed, and what has to be so when the second is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_rfr.builtins.model import BROKEN, BuiltinObject, CatalogSpec
from airflow_provider_rfr.sinks.run import sink_states
from tests.unit.builtins.catalogs import made, mview, sink, spec, table, view
from tests.unit.builtins.execution.places import Place

OLD, NEW = ("id bigint", "n int"), ("id bigint", "n string")
POLICIES: dict[str, Any] = {
    "adopt": frozenset({"ops.theirs"}),
    "accept_data_loss": frozenset({"ops.turned"}),
    "break_views": frozenset({"bob.old"}),
}
RETIRED = ("ops.gone", "ops.turned")
"""Names of retired tables."""
USERS = ("bob.mine", "bob.old", "bob.wide")
"""Views of users."""


def _rewritten(name: str, using: str, **more: Any) -> BuiltinObject:
    return table(name, "id bigint", made("n string", using, type="int"), **more)


_NAMED, _SEEN = table("ops.named", "id int"), view("ops.seen", "SELECT 1 AS one")

BEFORE = spec(
    "1.0",
    table("ops.evolved", "id bigint", "n int"),
    table("ops.rewritten", *OLD),
    table("ops.emptied", *OLD, exportable=True, keep=False),
    table("ops.said", "id int", comment="old"),
    table("ops.widened", "id int"),
    table("ops.gone", "id int", keep=False),
    table("ops.turned", "id bigint"),
    _NAMED,
    mview("ops.summed", "SELECT id FROM ops.evolved", "id bigint"),
    view("ops.bound", "SELECT n FROM ops.evolved"),
    view("ops.watching", "SELECT id FROM ops.widened"),
    _SEEN,
    view("ops.lost", "SELECT 2 AS two"),
    sink("ops.out", "ops.emptied", on_replace="resume_from_new"),
    sink("ops.stopped", "ops.emptied", on_replace="hold"),
    sink("ops.through", "ops.evolved", keep=False),
)

AFTER = spec(
    "2.0",
    table(
        "ops.evolved", "number bigint < n", "id bigint!", "more string", partitioning=("bucket(2, id)",), keys=("id",)
    ),
    _rewritten("ops.rewritten", "CAST(n * 2 AS string)"),
    table("ops.emptied", *NEW, exportable=True, keep=False),
    table("ops.said", "id int", comment="new", properties={"a": "1"}),
    table("ops.widened", "id bigint"),
    table("ops.theirs", "id int"),
    view("ops.turned", "SELECT id FROM ops.evolved"),
    replace(_NAMED, name="ops.called"),
    mview("ops.summed", "SELECT id + 1 AS id FROM ops.evolved", "id bigint"),
    mview("ops.filled", "SELECT id FROM ops.evolved", "id bigint"),
    view("ops.bound", "SELECT number AS n FROM ops.evolved"),
    view("ops.watching", "SELECT id FROM ops.widened"),
    replace(_SEEN, name="ops.watched"),
    sink("ops.out", "ops.emptied", on_replace="resume_from_new"),
    sink("ops.stopped", "ops.emptied", on_replace="hold"),
    sink("ops.more", "ops.theirs", keep=False),
    removed=("ops.lost",),
)

CORRECTED = replace(
    AFTER,
    objects=tuple(
        {
            "ops.rewritten": _rewritten("ops.rewritten", "CAST(n * 3 AS string)"),
            "ops.emptied": _rewritten("ops.emptied", "CAST(n AS string)", exportable=True, keep=False),
            "ops.said": table("ops.said", "id int", comment="corrected"),
            "ops.filled": mview("ops.filled", "SELECT id + 7 AS id FROM ops.evolved", "id bigint"),
            "ops.bound": view("ops.bound", "SELECT number + 1 AS n FROM ops.evolved"),
            "ops.called": replace(_NAMED, name="ops.named"),
        }.get(obj.name, obj)
        for obj in AFTER.objects
        if obj.name != "ops.more"
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
    place.append("ops.widened", {"id": 7})
    texts = ("SELECT n FROM ops.bound", "SELECT two FROM ops.lost", "SELECT id FROM ops.watching")
    for name, text in zip(USERS, texts, strict=True):
        place.engine.create_view(name, text, {"team": "b"})


def check(place: Place, wanted: CatalogSpec = AFTER) -> None:
    """The second version is there: every row, each step done once, nothing else."""
    assert place.rows("ops.evolved") == [
        {"number": 10, "id": 1, "more": None},
        {"number": 20, "id": 2, "more": None},
    ]
    assert place.rows("ops.rewritten") == [{"id": 1, "n": "20"}, {"id": 2, "n": "40"}]
    assert place.rows("ops.emptied") == [] and place.rows("ops.theirs") == [{"id": 9}]
    assert place.rows("ops.summed") == [{"id": 2}, {"id": 3}] and place.rows("ops.filled") == [{"id": 1}, {"id": 2}]
    assert place.rows("ops.called") == [{"id": 2}] and place.rows("ops.widened") == [{"id": 7}]
    markers = place.markers()
    ours = {obj.name: str(obj.id) for obj in AFTER.objects if obj.sink is None}
    assert {name: markers.pop(name) for name in ours} == ours
    check_users(place, markers)
    aside = {name.partition("__")[0] for name in markers}
    assert aside == set(RETIRED) and len(markers) <= len(RETIRED) + 1, markers
    live = place.catalog.load_table("ops.evolved")
    assert (len(live.metadata.snapshots), len(place.catalog.load_table("ops.rewritten").metadata.snapshots)) == (1, 2)
    again = place.plan(wanted)
    assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())


def check_users(place: Place, markers: dict[str, str | None]) -> None:
    """Users' views are theirs, with their own texts; the one that was let break says so."""
    assert [markers.pop(name) for name in USERS] == [None] * len(USERS)
    found = {view.name: view for view in place.engine.views(place.catalog)}
    properties = {name: dict(found[name].properties) for name in USERS}
    assert properties["bob.old"].pop(BROKEN).endswith("reads ops.lost, which is removed")
    assert properties == {name: {"team": "b"} for name in USERS}
    assert found["bob.wide"].query == "SELECT id FROM ops.watching"
    assert found["ops.watching"].query == "SELECT id FROM ops.widened"


def check_corrected(place: Place, wanted: CatalogSpec) -> None:
    """The corrected version is there. What was done before it was corrected stays: it is in no recorded state."""
    assert [row["number"] for row in place.rows("ops.evolved")] == [10, 20]
    done = {"ops.rewritten": ("20", "40"), "ops.emptied": ()}
    right = {"ops.rewritten": ("30", "60"), "ops.emptied": ("10", "20")}
    for name, values in right.items():
        assert tuple(row["n"] for row in place.rows(name)) in (values, done[name]), name
    assert place.rows("ops.filled") == [{"id": 8}, {"id": 9}] and place.rows("ops.summed") == [{"id": 2}, {"id": 3}]
    assert place.rows("ops.named") == [{"id": 2}] and place.rows("ops.theirs") == [{"id": 9}]
    assert place.catalog.load_table("ops.said").properties["comment"] == "corrected"
    markers = place.markers()
    ours = {obj.name: str(obj.id) for obj in wanted.objects if obj.sink is None}
    assert {name: markers.pop(name) for name in ours} == ours
    check_users(place, markers)
    assert all("__g" in name for name in markers), markers
    again = place.plan(wanted)
    assert (again.steps, again.drift, again.records, again.blocked) == ((), (), (), ())
    with place.store.read() as connection:
        assert {sink_state.name for sink_state in sink_states(connection)} == {"ops.out", "ops.stopped"}
