"""What must be so whatever was upgraded, crashed or done twice: five versions of a catalog, every scenario.

Random steps are drawn from ``RFR_CHECKS_SEED``, which a failure names.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec, Column, Was
from airflow_provider_rfr.builtins.testing import SCENARIOS, Check, Scenario, World, run_scenario
from airflow_provider_rfr.exceptions import BlockedPlanError
from airflow_provider_rfr.lake.catalog import load_table, open_catalog
from airflow_provider_rfr.sinks.run import run_sink
from tests.integration.conftest import Lake
from tests.unit.builtins.catalogs import column, mview, sink, spec, table, view
from tests.unit.builtins.execution.places import DuckEngine

SEED = int(os.environ.get("RFR_CHECKS_SEED") or random.randrange(2**32))
TEXT = Was("documents", "bigint", "CAST(documents AS string)")
OLDER = Was("rows", using="CAST(rows AS string)")


def versions(folder: Path) -> list[CatalogSpec]:
    """The oldest first; what the columns were leads from each to the newest, also where versions are skipped."""
    v1, v2 = ("id string!", "rows int"), ("id string!", "rows bigint")
    v3 = ("id string!", "documents bigint < rows")
    v4: tuple[str | Column, ...] = ("id string!", column("documents string", TEXT, OLDER))
    v5 = (*v4, "attempts int")
    out = {"settings": {"path": str(folder / "out"), "format": "jsonl"}, "follow_schema": True}

    def version(number: int, columns: tuple[str | Column, ...], query: str, *more: BuiltinObject) -> CatalogSpec:
        return spec(
            f"{number}.0",
            table("ops.runs", *columns, exportable=True),
            view("ops.seen", query),
            mview("ops.total", "SELECT count(id) AS n FROM ops.runs", "n bigint"),
            sink("ops.out", "ops.runs", **out),
            *more,
        )

    return [
        version(1, v1, "SELECT id, rows FROM ops.runs"),
        version(2, v2, "SELECT id, rows FROM ops.runs"),
        version(3, v3, "SELECT id, documents AS rows FROM ops.runs"),
        version(4, v4, "SELECT id, documents AS rows FROM ops.runs"),
        version(5, v5, "SELECT id, documents AS rows FROM ops.runs", table("ops.more", "id string!")),
    ]


def value_column(world: World) -> str:
    table = load_table(world.catalog, "ops.runs")
    return next(field.name for field in table.schema().fields if field.name in ("rows", "documents"))


def written(world: World, *ids: str) -> None:
    column = value_column(world)
    table = load_table(world.catalog, "ops.runs")
    kind: Any = str if str(table.schema().find_type(column)) == "string" else int
    world.append("ops.runs", [{"id": run_id, column: kind(len(run_id))} for run_id in ids])


class RowsAreKept(Check):
    """Every row, and what it says."""

    def initialize(self, world: World) -> None:
        written(world, "a", "bb", "ccc")

    def manipulate(self, world: World, number: int) -> None:
        written(world, f"m{number}")

    def validate(self, world: World) -> None:
        run_ids = ["a", "bb", "ccc", *(f"m{number}" for number in range(1, world.manipulated + 1))]
        column = value_column(world)
        rows = sorted((row["id"], str(row[column])) for row in world.rows("ops.runs"))
        assert rows == sorted((run_id, str(len(run_id))) for run_id in run_ids)


class SinksSendOnce(Check):
    """A sink goes on from its cursor: nothing twice, nothing left out."""

    def __init__(self, sinks: BuiltinObject, folder: Path) -> None:
        self._sink = sinks
        self._folder = folder

    def manipulate(self, world: World, number: int) -> None:
        run_sink(self._sink.id, self._sink.name, self._sink.sink, catalog=world.catalog, store=world.store)

    def validate(self, world: World) -> None:
        files = sorted((self._folder / "out").glob("**/*.jsonl"))
        sent = Counter(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())
        assert not [name for name, count in sent.items() if count > 1]
        missing = {row["id"] for row in world.rows("ops.runs")} - set(sent)
        # The first rows of all are there before the sink runs; what came after its last run is not sent yet.
        assert missing <= {f"m{world.manipulated}"} or not world.manipulated


class IdentitiesStay(Check):
    """A table is the same one in every version."""

    def __init__(self) -> None:
        self._uuid: object = None

    def initialize(self, world: World) -> None:
        self._uuid = world.catalog.load_table("ops.runs").metadata.table_uuid

    def validate(self, world: World) -> None:
        assert world.catalog.load_table("ops.runs").metadata.table_uuid == self._uuid


class UsersViewsAreUntouched(Check):
    """A view of a user has the text and the properties that it was made with, and is not ours."""

    def __init__(self, engine: DuckEngine) -> None:
        self._engine = engine

    def initialize(self, world: World) -> None:
        self._engine.create_view("bob.mine", "SELECT id, rows FROM ops.seen", {"team": "b"})

    def validate(self, world: World) -> None:
        [mine] = (view for view in self._engine.views(world.catalog) if view.name == "bob.mine")
        assert (mine.query, dict(mine.properties)) == ("SELECT id, rows FROM ops.seen", {"team": "b"})


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_everything_is_as_it_must_be_after(scenario: Scenario, tmp_path: Path) -> None:
    lake = Lake(tmp_path).settings
    engine = DuckEngine(open_catalog(lake), tmp_path / "views")
    world = World(lake, f"sqlite:///{tmp_path}/control.db", engine)
    every = versions(tmp_path)
    sinks = next(item for item in every[0].objects if item.sink is not None)
    checks = [RowsAreKept(), SinksSendOnce(sinks, tmp_path), IdentitiesStay(), UsersViewsAreUntouched(engine)]
    run_scenario(scenario, checks, every, world, seed=SEED)
    assert len(world.rows("ops.total")) == 1
    assert {view.name for view in engine.views(world.catalog)} == {"bob.mine", "ops.seen"}


@pytest.mark.parametrize("in_minor", [True, False])
def test_a_column_of_a_patch_release_that_the_next_minor_release_lacks_fails_its_upgrade(
    tmp_path: Path, in_minor: bool
) -> None:
    """Row 67."""
    patched = ("a int", "patched int")
    releases = {"1.0": ("a int",), "1.0.1": patched, "1.1": patched if in_minor else ("a int",)}
    every = [spec(version, table("ops.t", *columns)) for version, columns in releases.items()]
    world = World(Lake(tmp_path).settings, f"sqlite:///{tmp_path}/control.db")
    upgrade = next(scenario for scenario in SCENARIOS if scenario.name == "upgrade over 1")
    if in_minor:
        run_scenario(upgrade, [], every, world)
        return
    with pytest.raises(BlockedPlanError, match="column patched would be lost"):
        run_scenario(upgrade, [], every, world)


def test_a_check_that_does_not_hold_fails_its_scenario_with_the_seed(tmp_path: Path) -> None:
    class Wrong(Check):
        def validate(self, world: World) -> None:
            raise AssertionError("it is not so")

    lake = Lake(tmp_path).settings
    world = World(lake, f"sqlite:///{tmp_path}/control.db")
    only = [spec("1.0", table("ops.runs", "id string!"))]
    with pytest.raises(AssertionError, match="it is not so") as raised:
        run_scenario(SCENARIOS[0], [Wrong()], only, world, seed=7)
    assert "scenario no restart, seed 7" in raised.value.__notes__
