"""From YAML files to a plan, with everything real between them."""

from __future__ import annotations

import json
from pathlib import Path

import airflow_provider_rfr.builtins
from airflow_provider_rfr.builtins.declaration.loader import load_objects
from airflow_provider_rfr.builtins.planning.plan import Action, Plan, exit_code
from airflow_provider_rfr.builtins.planning.render import render
from airflow_provider_rfr.builtins.spec import CatalogSpec
from tests.unit.builtins.catalogs import Catalog

RUNS = """
kind: table
name: ops.runs
columns:
  - {name: id, type: long, required: true}
  - {name: rows, type: string}
keys: [id]
---
kind: view
name: ops.recent
query: SELECT id, rows FROM ops.runs
"""


def load(folder: Path, text: str, version: str) -> CatalogSpec:
    (folder / "objects.yaml").write_text(text, encoding="utf-8")
    return load_objects(folder, project="ops", version=version, entry_points=False)


def test_a_change_is_blocked_with_an_entry_that_works_when_it_is_pasted_and_ends(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.deploy(load(tmp_path, RUNS, "1.0"))
    changed = RUNS.replace("name: rows, type: string", "name: rows, type: long")
    found = catalog.plan(load(tmp_path, changed, "1.1"))
    (blocked,) = found.blocked
    assert exit_code(found) == 1 and blocked.place == f"{tmp_path / 'objects.yaml'}:2"
    assert blocked.instruction is not None and blocked.instruction in render(found)
    pasted = changed.replace("keys: [id]", f"keys: [id]\nmigrations:\n  {blocked.instruction}")
    wanted = load(tmp_path, pasted, "1.1")
    found = catalog.deploy(wanted)
    assert [(each.how, each.name) for each in found.steps] == [
        (Action.REWRITE, "ops.runs"),
        (Action.REBIND, "ops.recent"),
    ]
    assert found.steps[0].details["expressions"] == {"rows": "CAST(rows AS bigint)"}
    catalog.check()
    assert catalog.plan(wanted).steps == ()


def test_the_packages_own_objects_are_planned_and_then_as_declared() -> None:
    own = Path(next(iter(airflow_provider_rfr.builtins.__path__))) / "own"
    wanted = load_objects(*sorted(own.glob("*.yaml")), project="rfr", version="1.0", entry_points=False)
    catalog = Catalog()
    found = catalog.plan(wanted)
    assert len(found.steps) == len(wanted.objects) > 5 and found.applicable and found.warnings == ()
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found
    catalog.apply(found)
    catalog.check()
    assert catalog.plan(wanted).steps == ()
