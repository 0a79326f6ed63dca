"""From YAML files to a plan, with everything real between them."""

from __future__ import annotations

import json
from pathlib import Path

import airflow_provider_rfr.builtins
from airflow_provider_rfr.builtins.declarations import load_objects
from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.plan import Plan, exit_code, render
from tests.unit.builtins.catalogs import Catalog, did, problems

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
    (line,) = blocked.paste
    assert line in render(found) and "c1:" not in render(found)
    wanted = load(tmp_path, changed.replace("- {name: rows, type: long}", line), "1.1")
    found = catalog.deploy(wanted)
    assert did(found) == ["rewrite ops.runs", "rebind ops.recent"]
    assert found.steps[0].details["expressions"] == {"rows": "CAST(`rows` AS bigint)"}
    catalog.check()
    assert catalog.plan(wanted).steps == ()


def test_a_column_carries_its_own_change_and_its_loss_is_accepted_by_a_document(tmp_path: Path) -> None:
    """A rename, another type and the way to the new values in one entry; nobody pastes a fingerprint."""
    before = RUNS.replace("name: rows,", "name: row_count,").replace("SELECT id, rows", "SELECT id, row_count AS rows")
    entry = '{name: rows, type: bigint, was: {name: row_count, type: string, using: "try_cast(row_count AS bigint)"}}'
    after = RUNS.replace("{name: rows, type: string}", entry)
    catalog = Catalog()
    catalog.deploy(load(tmp_path, before, "1.0"))
    found = catalog.plan(load(tmp_path, after, "1.1"))
    assert [problem.partition(":")[0] for problem in problems(found)] == [
        "values of rows that are no bigint would be lost"
    ]
    wanted = load(tmp_path, f"{after}---\nkind: removed\nname: ops.runs.rows\n", "1.1")
    found = catalog.deploy(wanted)
    assert did(found) == ["rewrite ops.runs", "replace ops.recent"]
    assert found.steps[0].details["expressions"] == {"rows": "try_cast(row_count AS bigint)"}
    assert found.steps[0].changes == (
        "> column row_count -> rows (rename)", "! rows: string -> bigint (incompatible)",
    )  # fmt: skip
    assert tuple(found.steps[0].losses) == ("ops.runs.rows",)
    catalog.check()
    again = catalog.plan(wanted)
    assert (again.steps, again.stale) == ((), ("ops.runs.rows",))


def test_what_the_plan_says_to_write_lets_an_object_go(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.deploy(load(tmp_path, RUNS, "1.0"))
    table, _, _ = RUNS.partition("---")
    (blocked,) = catalog.plan(load(tmp_path, table, "1.1")).blocked
    wanted = load(tmp_path, "\n---\n".join([table, *blocked.paste]), "1.1")
    assert did(catalog.deploy(wanted)) == ["remove ops.recent"]
    assert catalog.plan(wanted).stale == ("ops.recent",)


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
