"""The platform's own tables, views and sinks: declared in code, migrated on deploy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    CatalogSpec,
    Column,
    Instance,
    Kind,
    Place,
    Removed,
    Was,
    stable_id,
)
from airflow_provider_rfr.lazy import lazy_exports
from airflow_provider_rfr.sinks.spec import SinkSpec

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.declaration.loader import load_objects
    from airflow_provider_rfr.builtins.execution.deploy import Applied, AppliedStep, apply
    from airflow_provider_rfr.builtins.execution.maintenance import Collected, gc
    from airflow_provider_rfr.builtins.execution.observe import observe
    from airflow_provider_rfr.builtins.execution.refresh import Refreshed, refresh
    from airflow_provider_rfr.builtins.planning.plan import (
        Plan,
        Policies,
        Step,
        ensure_current,
        exit_code,
        load_plan,
        save_plan,
    )
    from airflow_provider_rfr.builtins.planning.planner import plan
    from airflow_provider_rfr.builtins.state import ActualState, RegistryState

__all__ = [
    "BuiltinObject",
    "CatalogSpec",
    "Column",
    "Instance",
    "Kind",
    "Place",
    "Removed",
    "SinkSpec",
    "Applied",
    "AppliedStep",
    "Collected",
    "ActualState",
    "Plan",
    "Policies",
    "Refreshed",
    "RegistryState",
    "Step",
    "apply",
    "gc",
    "ensure_current",
    "exit_code",
    "load_objects",
    "load_plan",
    "observe",
    "plan",
    "refresh",
    "save_plan",
    "Was",
    "stable_id",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "declaration.loader": ("load_objects",),
        "execution.deploy": ("Applied", "AppliedStep", "apply"),
        "execution.maintenance": ("Collected", "gc"),
        "execution.observe": ("observe",),
        "execution.refresh": ("Refreshed", "refresh"),
        "planning.plan": ("Plan", "Policies", "Step", "ensure_current", "exit_code", "load_plan", "save_plan"),
        "planning.planner": ("plan",),
        "state": ("ActualState", "RegistryState"),
    },
)
