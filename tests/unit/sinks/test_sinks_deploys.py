"""Sinks go on across real deploys: rows sent before are not sent again, those that came meanwhile are sent once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from airflow_provider_rfr.builtins.maintenance import Collected, gc, read_recorded
from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec
from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.lake.expiry import HOLD
from airflow_provider_rfr.sinks.run import SinkRun, release_sink, run_sink
from airflow_provider_rfr.store.deploys import SinkRow, load_sink
from tests.unit.builtins.catalogs import PROJECT, column, made, mview, sink, spec, table, view
from tests.unit.builtins.execution.crashing import Worlds, before_each_effect
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

OLD, NEW = ("id bigint", "n int"), ("id bigint", "n string")


T = table("ops.t", *OLD, exportable=True, keep=False)
EVOLVED = replace(T, columns=(*T.columns, column("more string")))
REWRITTEN = replace(T, columns=(T.columns[0], made("n string", "CAST(n AS string)", type="int")))
EMPTY = table("ops.t", *NEW, exportable=True, keep=False)


@dataclass
class Deployed:
    """A place with a sink on one of its objects."""

    place: Place
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = "ops.t"
    columns: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        return self.place.folder / "out"

    def sink(self) -> BuiltinObject:
        settings = {"path": str(self.out), "batch_size": 2, **self.settings}
        return sink("ops.k", self.source, *self.columns, settings=settings, keep=False)

    def deploy(self, version: str, *objects: BuiltinObject, **policies: Any) -> CatalogSpec:
        wanted = spec(version, *objects, self.sink())
        self.place.settle(wanted, **policies)
        return wanted

    def add(self, *rows: tuple[int, Any]) -> None:
        self.place.append("ops.t", *({"id": number, "n": n} for number, n in rows))

    def run(self, source: UUID | None = None) -> SinkRun:
        sink, catalog, store = self.sink(), self.place.catalog, self.place.store
        assert sink.sink is not None
        with store.read() as connection:
            recorded = {obj.key: obj.uuid for obj in read_recorded(connection, PROJECT).objects}
        source = source or recorded.get(self.source)
        return run_sink(sink.id, sink.name, sink.sink, catalog=catalog, store=store, source_id=source)

    def holds(self, name: str) -> dict[str, str]:
        properties = self.place.catalog.load_table(name).properties
        return {name: value for name, value in properties.items() if name.startswith(HOLD)}

    def lines(self) -> list[dict[str, Any]]:
        files = sorted(self.out.iterdir()) if self.out.exists() else []
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def sent(self) -> list[tuple[Any, ...]]:
        return [tuple(line.values()) for line in self.lines()]

    def release(self, choice: str) -> None:
        store = self.place.store
        store.run(lambda value: release_sink(value, self.sink().id, choice, store.now(value)))

    def row(self) -> SinkRow:
        with self.place.store.read() as connection:
            row = load_sink(connection, self.sink().id)
        assert row is not None
        return row


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    place = Place(tmp_path)
    made = Deployed(place)
    made.deploy("1.0", T)
    made.add((1, 10), (2, 20), (3, 30))
    made.run()
    made.add((4, 40))
    yield made
    place.close()


@pytest.mark.parametrize(
    ("wanted", "last"),
    [(EVOLVED, 60), (REWRITTEN, "60"), (replace(EVOLVED, name="ops.renamed"), 60)],
    ids=["evolved", "rewritten", "renamed"],
)
def test_a_sink_goes_on_across_the_mechanism(deployed: Deployed, wanted: BuiltinObject, last: Any) -> None:
    """Row 51 and its like. One row was not sent before the migration, one comes after it."""
    deployed.source = wanted.name
    deployed.deploy("2.0", wanted)
    deployed.place.append(wanted.name, {"id": 6, "n": last})
    assert deployed.run().rows == 2
    assert deployed.sent() == [(1, 10), (2, 20), (3, 30), (4, 40), (6, last)]
    assert deployed.run().rows == 0


@pytest.mark.parametrize(("columns", "name"), [((), "m"), (("id", "n"), "n"), (("id", "m"), "m")])
@pytest.mark.parametrize("retyped", [False, True])
def test_a_sink_goes_on_across_a_rename(deployed: Deployed, columns: tuple[str, ...], name: str, retyped: bool) -> None:
    """One row was not sent before; a new type is another column to Iceberg."""
    m = made("m string", "CAST(n AS string)", name="n") if retyped else column("m int < n")
    wanted = table("ops.t", "id bigint", m, exportable=True)
    deployed.columns = columns
    deployed.deploy("2.0", wanted)
    deployed.place.append("ops.t", {"id": 6, "m": "60" if retyped else 60})
    assert deployed.run().rows == 2
    assert deployed.lines()[3:] == [{"id": 4, name: 40}, {"id": 6, name: "60" if retyped else 60}]
    assert deployed.run().rows == 0


def test_a_sink_that_runs_during_the_migration_sends_each_row_once(deployed: Deployed) -> None:
    """And a writer appends meanwhile."""

    def meanwhile() -> None:
        deployed.run()
        deployed.add((5, 50))

    deployed.place.engine.during = meanwhile
    deployed.deploy("2.0", REWRITTEN)
    deployed.add((6, "60"))
    deployed.run()
    assert deployed.sent() == [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, "60")]


@pytest.mark.parametrize("choice", [None, "resume_from_new", "resend"])
def test_runs_before_each_effect_of_a_deploy_send_each_row_once(deployed: Deployed, choice: str | None) -> None:
    wanted, policies = (REWRITTEN, {}) if choice is None else (EMPTY, {"sinks": {"ops.k": choice}})
    begun, running = False, False

    def run(name: str) -> None:
        nonlocal begun, running
        begun = begun or name != "run"
        if begun and not running:
            running = True
            deployed.run()
            running = False

    with before_each_effect(deployed.place, run):
        deployed.place.deploy(spec("2.0", wanted, deployed.sink()), **policies)
    deployed.add((6, "60"))
    deployed.run()
    assert deployed.sent() == [(1, 10), (2, 20), (3, 30), (4, 40), (6, "60")]
    assert deployed.row().held_at is None


@pytest.mark.parametrize("settings", [{}, {"emit": "diff", "keys": ["id"]}])
def test_a_materialized_view_that_is_computed_anew_sends_what_is_other(tmp_path: Path, settings: Any) -> None:
    """Row 54: equal contents send nothing; an export of changes sends the differences of others."""
    place = Place(tmp_path)
    made = Deployed(place, settings, "ops.m")

    def version(number: str, query: str, kind: str = "bigint") -> None:
        made.deploy(number, T, mview("ops.m", query, f"id {kind}", "n bigint", exportable=True))

    made.place.deploy(spec("1.0", T))
    made.add((1, 10), (2, 20))
    version("1.1", "SELECT id, CAST(n AS BIGINT) AS n FROM ops.t")
    made.run()
    first = made.sent()
    assert [row[-2:] for row in first] == [(1, 10), (2, 20)]
    version("1.2", "SELECT id, CAST(n + 0 AS BIGINT) AS n FROM ops.t")
    assert len(place.catalog.load_table("ops.m").metadata.snapshots) > 1
    assert made.run().batches == 0
    version("1.3", "SELECT id, CAST(n + id - 1 AS BIGINT) AS n FROM ops.t")
    made.run()
    assert made.sent() == [*first, *([("upsert", 2, 21)] if settings else [])]
    place.close()


@pytest.mark.parametrize("choice", ["resume_from_new", "resend", "hold"])
def test_what_was_decided_of_a_sink_is_done_once_though_the_deploy_that_emptied_its_source_died(
    tmp_path: Path, choice: str
) -> None:
    """Row 53. Rows come in before the next deploy; where the first one got as far as the sink, that sends them, too."""
    worlds, policies = Worlds(tmp_path), {"sinks": {"ops.k": choice}}
    made = Deployed(worlds.open())
    made.deploy("1.0", T)
    made.add((1, 10), (2, 20), (3, 30))
    made.run()
    made.add((4, 40))
    wanted = spec("2.0", EMPTY, made.sink())
    worlds.record(made.place, lambda: made.place.deploy(wanted, **policies))
    made.place.close()
    seen = set()
    for number in range(len(worlds.names)):
        made = Deployed(worlds.restore(number))
        is_emptied = not made.place.rows("ops.t")
        if is_emptied:
            made.add((5, "50"))
        row = made.row()
        if row.decided_by is not None and row.held_at is None:
            made.run()
        seen.add((is_emptied, row.decided_by is not None))
        made.place.deploy(wanted, **policies)
        if choice == "hold":
            assert "emptied" in (made.row().held_reason or "")
            made.release("resume_from_new")
        made.add((6, "60"))
        made.run()
        assert made.sent() == [(1, 10), (2, 20), (3, 30), *([(5, "50")] if is_emptied else []), (6, "60")], number
        made.place.close()
    assert {(False, False), (True, True)} <= seen and (choice == "hold" or (True, False) in seen)


@pytest.mark.parametrize(("choice", "later"), [("resume_from_new", [(9, 9)]), ("resend", [(7, 7), (9, 9)])])
def test_a_sink_that_exports_another_source_asks_what_to_do_with_its_rows(
    deployed: Deployed, choice: str, later: Any
) -> None:
    other = table("ops.u", *OLD, exportable=True)
    deployed.deploy("2.0", T, other)
    deployed.place.append("ops.u", {"id": 7, "n": 7})
    deployed.source = "ops.u"
    deployed.deploy("3.0", replace(T, name="ops.renamed"), other, sinks={"ops.k": choice})
    # Nobody reads the former source any more, so its snapshots may expire.
    assert not deployed.holds("ops.renamed")
    # A worker that still has the code of the former deploy.
    deployed.source = "ops.renamed"
    with raises(SinkError):
        deployed.run()
    assert not deployed.holds("ops.renamed")
    deployed.source = "ops.u"
    deployed.place.append("ops.u", {"id": 9, "n": 9})
    deployed.run()
    assert deployed.sent() == [(1, 10), (2, 20), (3, 30), *later]


def test_a_run_with_a_former_source_of_the_same_name_leaves_the_hold_of_the_present_one(deployed: Deployed) -> None:
    deployed.run()
    assert (held := deployed.holds("ops.t"))
    with raises(SinkError):
        deployed.run(UUID(int=1))
    assert deployed.holds("ops.t") == held


def test_a_sink_may_leave_and_come_back_as_another_one(deployed: Deployed) -> None:
    deployed.place.settle(spec("2.0", T))
    with deployed.place.store.read() as connection:
        assert load_sink(connection, deployed.sink().id) is None
    deployed.deploy("3.0", T)
    deployed.run()
    assert sorted(deployed.sent()) == [(1, 10), (1, 10), (2, 20), (2, 20), (3, 30), (3, 30), (4, 40)]


def test_the_table_that_a_sink_was_at_is_kept_until_somebody_decides_what_becomes_of_the_sink(
    deployed: Deployed,
) -> None:
    """Rows 30 and 53. A row was not sent before the table became a view."""
    place = deployed.place

    def collect() -> Collected:
        return gc(project=PROJECT, catalog=place.catalog, store=place.store)

    shown = view("ops.t", "SELECT id, n FROM ops.base", *OLD)
    done = place.deploy(spec("2.0", table("ops.base", *OLD), shown, deployed.sink()), keep_days=0)
    aside = f"ops.t__g{done.deploy_id[:8]}"
    assert collect() == Collected(kept={aside: "a sink still reads from it"})
    assert {"id": 4, "n": 40} in place.rows(aside)
    deployed.release("resend")
    assert collect().deleted == (aside,)
