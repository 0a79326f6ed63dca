"""A saved plan is applied only to what it was made from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.plan import ensure_current, load_plan, save_plan
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.exceptions import PlanError, StalePlanError
from tests.unit.builtins.catalogs import Catalog, spec, table, view
from tests.unit.messages import raises

ONE = spec("1.0", table("ops.t", "x int"))
TWO = spec("1.1", table("ops.t", "x bigint"), view("ops.v", "SELECT x FROM ops.t"))


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    found = Catalog().plan(TWO)
    path = save_plan(found, tmp_path / "plan.json")
    assert load_plan(path) == found
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_it_is_applied_while_nothing_has_changed_though_rows_came_in(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.deploy(ONE)
    saved = load_plan(save_plan(catalog.plan(TWO), tmp_path / "plan.json"))
    live = catalog.live()
    more = replace(live, objects={key: replace(obj, rows=1_000, bytes=9) for key, obj in live.objects.items()})
    assert ensure_current(saved, plan(TWO, catalog.recorded, more, policies=saved.policies)) is saved


def test_it_is_stale_after_another_deploy() -> None:
    """Rows 33 and 57, at the level of a plan: the base has changed, and what differs is told."""
    catalog = Catalog()
    catalog.deploy(ONE)
    saved = catalog.plan(TWO)
    catalog.deploy(TWO)
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(TWO))


def test_it_is_stale_for_other_code_other_policies_and_another_catalog() -> None:
    catalog = Catalog()
    catalog.deploy(ONE)
    saved = catalog.plan(TWO)
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(spec("1.2", *TWO.objects, table("ops.w", "x int"))))
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(TWO, break_views={"bob.v"}))
    other = spec("1.1", TWO.objects[0], view("ops.v", "SELECT x FROM ops.t WHERE x > 0"))
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(other))
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(replace(TWO, project="other")))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '"plan"'])
def test_a_file_that_holds_no_plan_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError):
        load_plan(path)
    with raises(PlanError):
        load_plan(tmp_path / "absent.json")


def test_a_plan_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = save_plan(Catalog().plan(TWO), tmp_path / "plan.json")
    document = json.loads(path.read_text())
    document["steps"][0]["how"] = "replace_empty"
    path.write_text(json.dumps(document))
    with raises(PlanError):
        load_plan(path)
