"""What the package itself declares."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from airflow_provider_rfr.builtins import BuiltinObject, Kind, load_objects
from airflow_provider_rfr.builtins.model import (
    ActualState,
    CatalogSpec,
    DeclarationPlace,
    RegistryState,
    decode,
    encode,
)
from airflow_provider_rfr.builtins.plan import Plan
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.builtins.queries import declared_columns, object_reads
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.refresh.state import LedgerHeader
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES
from tests.unit.builtins.catalogs import Catalog

TABLES = {"refresh_history", "commit_history", "delivery_history", "builtin_objects", "migration_history"}
VIEWS = {"refresh_status", "failing_partitions", "endpoints_in_trouble"}
RELEASED = Path(__file__).parents[2] / "golden" / "own_objects.json"
"""What the last release declares; ``RFR_GOLDEN=release`` writes it."""


@pytest.fixture(scope="module")
def own() -> CatalogSpec:
    return load_objects()


def by_name(spec: CatalogSpec) -> dict[str, BuiltinObject]:
    return {obj.name.removeprefix("rfr_system."): obj for obj in spec.objects if obj.name.startswith("rfr_system.")}


def test_the_histories_are_logs_and_the_rest_are_views_over_them(own: CatalogSpec) -> None:
    found = by_name(own)
    assert {name for name, item in found.items() if item.kind is Kind.LOG} == TABLES
    assert {name for name, item in found.items() if item.kind is Kind.VIEW} == VIEWS


def test_all_of_it_is_kept_and_said_and_the_histories_may_be_exported(own: CatalogSpec) -> None:
    """But for the list of objects, which each deploy can make again."""
    for name, item in by_name(own).items():
        assert item.keep is (name != "builtin_objects")
        assert item.comment
        assert item.exportable is (name in TABLES)
        assert item.keys or name in VIEWS


def test_tables_that_grow_are_filed_by_day_and_keep_few_snapshots_and_manifests(own: CatalogSpec) -> None:
    for name in TABLES - {"builtin_objects"}:
        log = by_name(own)[name]
        assert [text.partition("(")[0] for text in log.partitioning] == ["days"]
        assert {column.name for column in log.columns if column.required} >= {log.partitioning[0][5:-1]}
        assert log.properties == {
            "history.expire.max-snapshot-age-ms": "86400000",
            "commit.manifest.min-count-to-merge": "10",
        }


def test_what_identifies_a_row_is_required(own: CatalogSpec) -> None:
    for item in by_name(own).values():
        required = {column.name for column in item.columns if column.required}
        assert set(item.keys) <= required


def test_the_views_read_the_packages_own_tables_and_name_their_columns(own: CatalogSpec) -> None:
    columns_of = declared_columns(own.objects)
    for name in VIEWS:
        view = by_name(own)[name]
        reads = object_reads(view)
        assert reads
        assert {read.name.removeprefix("rfr_system.") for read in reads} <= TABLES | VIEWS
        assert all(read.columns is not None for read in reads)
        for read in reads:
            known = {column.casefold() for column in columns_of(read.name) or ()}
            made = {"place", "is_new", "attempts"}
            assert set(read.columns or ()) - made <= known


def names(spec: CatalogSpec, table: str) -> set[str]:
    return {column.name for column in by_name(spec)[table].columns}


def test_the_history_of_refreshes_holds_what_a_ledger_tells(own: CatalogSpec) -> None:
    renamed = {"replace_where": "part"}
    told = {renamed.get(field.name, field.name) for field in fields(LedgerHeader)}
    inner = {"state", "read_fingerprint", "publish_fingerprint", "committed_at", "refused_under", "run_key"}
    # What tells of an attempt that works, and what the table itself is.
    inner |= {"base_state", "began_at", "silence", "found_pages", "found_records", "found_partitions", "bytes", "past"}
    # What describes the source; earlier attempts have rows of their own.
    inner |= {"host", "paging", "primary_key", "earlier", "try_number", "retried", "restarted_by"}
    assert told - inner - {"overlap_checks"} <= names(own, "refresh_history")


def test_the_history_of_commits_holds_what_a_commit_tells(own: CatalogSpec) -> None:
    assert {field.name for field in fields(CommitEvent)} - {"merged_commits"} <= names(own, "commit_history")


def test_the_history_of_deliveries_holds_what_the_control_store_knows(own: CatalogSpec) -> None:
    renamed = {"id": "delivery_id", "number": "attempt", "at": "attempted_at", "due_at": "next_at"}
    inner = {"endpoint_id", "event", "attempts", "failures", "started_at", "ended_at", "lease_owner", "lease_until"}
    inner |= {"token", "on_failure", "notified_at", "dag_ids"}
    known = {renamed.get(column.name, column.name) for table in (DELIVERIES, ATTEMPTS) for column in table.columns}
    assert known - inner <= names(own, "delivery_history")


def test_the_packages_own_objects_are_planned_and_then_as_declared(own: CatalogSpec) -> None:
    catalog = Catalog()
    plan = catalog.plan(own)
    assert len(plan.steps) == len(own.objects) > 5 and plan.applicable and plan.warnings == ()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    catalog.apply(plan)
    catalog.check()
    assert catalog.plan(own).steps == ()


def test_what_the_last_release_declares_becomes_what_is_declared_now(own: CatalogSpec) -> None:
    """Row 67. A column that a patch release added, and that is not declared here, would stop the plan."""
    if os.environ.get("RFR_GOLDEN") == "release":
        objects = tuple(replace(obj, place=DeclarationPlace()) for obj in own.objects)
        RELEASED.write_text(json.dumps(encode(replace(own, objects=objects)), indent=1, sort_keys=True) + "\n")
    catalog = Catalog()
    catalog.deploy(decode(CatalogSpec, json.loads(RELEASED.read_text())))
    plan = catalog.plan(own)
    assert plan.blocked == plan.drift == ()
    catalog.apply(plan)
    catalog.check()
    again = catalog.plan(own)
    assert (again.steps, again.drift, again.blocked) == ((), (), ())


def test_where_the_catalog_has_no_views_the_tables_are_made_and_the_plan_names_what_is_not(own: CatalogSpec) -> None:
    planned = plan(own, RegistryState(), ActualState(holds_views=False))
    made = {step.name.removeprefix("rfr_system.") for step in planned.steps}
    assert made & (TABLES | VIEWS) == TABLES
    assert [warning for warning in planned.warnings if all(f"rfr_system.{name}" in warning for name in VIEWS)]
