"""Views that earlier deploys left, for catalogs that can't hold any."""

from __future__ import annotations

from airflow_provider_rfr.builtins.planning.planner import plan
from airflow_provider_rfr.builtins.spark._engine import RegisteredView
from airflow_provider_rfr.builtins.spark.application import registered_views
from airflow_provider_rfr.builtins.state import ActualState, RegistryState
from tests.unit.builtins.catalogs import spec, table, view


def test_every_recorded_view_is_registered_as_it_was_executed_and_nothing_else() -> None:
    declared = spec("1.0", table("ops.t", "id bigint"), view("ops.v", "SELECT * FROM ops.t", "id bigint"))
    records = plan(declared, RegistryState(), ActualState()).records
    assert len(records) == 2
    found = registered_views(RegistryState(1, "1.0", records))
    assert found == (RegisteredView("ops.v", "SELECT id FROM ops.t", ("id",)),)
