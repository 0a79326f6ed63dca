"""From YAML files to a plan, with everything real between them."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.plan import exit_code, render
from tests.unit.builtins.catalogs import Catalog, did, problems
from tests.unit.builtins.declaring import load, write

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


def declared(folder: Path, text: str, version: str) -> CatalogSpec:
    return load(write(folder, objects=text), project="ops", version=version)


def test_a_change_is_blocked_with_an_entry_that_works_when_it_is_pasted_and_ends(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.deploy(declared(tmp_path, RUNS, "1.0"))
    changed = RUNS.replace("name: rows, type: string", "name: rows, type: long")
    plan = catalog.plan(declared(tmp_path, changed, "1.1"))
    (blocked,) = plan.blocked
    assert exit_code(plan) == 1 and blocked.place == f"{tmp_path / 'objects.yaml'}:1"
    (line,) = blocked.paste
    assert line in render(plan) and "c1:" not in render(plan)
    wanted = declared(tmp_path, changed.replace("- {name: rows, type: long}", line), "1.1")
    plan = catalog.deploy(wanted)
    assert did(plan) == ["rewrite ops.runs", "rebind ops.recent"]
    assert plan.steps[0].details["expressions"] == {"rows": "CAST(`rows` AS bigint)"}
    catalog.check()
    assert catalog.plan(wanted).steps == ()


def test_a_column_carries_its_own_change_and_its_loss_is_accepted_by_a_document(tmp_path: Path) -> None:
    """A rename, another type and the way to the new values in one entry; nobody pastes a fingerprint."""
    before = RUNS.replace("name: rows,", "name: row_count,").replace("SELECT id, rows", "SELECT id, row_count AS rows")
    entry = '{name: rows, type: bigint, was: {name: row_count, type: string, using: "try_cast(row_count AS bigint)"}}'
    after = RUNS.replace("{name: rows, type: string}", entry)
    catalog = Catalog()
    catalog.deploy(declared(tmp_path, before, "1.0"))
    plan = catalog.plan(declared(tmp_path, after, "1.1"))
    assert [problem.partition(":")[0] for problem in problems(plan)] == [
        "values of rows that are no bigint would be lost"
    ]
    wanted = declared(tmp_path, f"{after}---\nkind: removed\nname: ops.runs.rows\n", "1.1")
    plan = catalog.deploy(wanted)
    assert did(plan) == ["rewrite ops.runs", "replace ops.recent"]
    assert plan.steps[0].details["expressions"] == {"rows": "try_cast(row_count AS bigint)"}
    assert plan.steps[0].changes == (
        "> column row_count -> rows (rename)", "! rows: string -> bigint (incompatible)",
    )  # fmt: skip
    assert tuple(plan.steps[0].losses) == ("ops.runs.rows",)
    catalog.check()
    again = catalog.plan(wanted)
    assert (again.steps, again.stale) == ((), ("ops.runs.rows",))


def test_what_the_plan_says_to_write_lets_an_object_go(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.deploy(declared(tmp_path, RUNS, "1.0"))
    table, _, _ = RUNS.partition("---")
    (blocked,) = catalog.plan(declared(tmp_path, table, "1.1")).blocked
    wanted = declared(tmp_path, "\n---\n".join([table, *blocked.paste]), "1.1")
    assert did(catalog.deploy(wanted)) == ["remove ops.recent"]
    assert catalog.plan(wanted).stale == ("ops.recent",)
