"""The platform's own tables, views and sinks: declared in code, migrated on deploy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr.lazy import lazy_exports

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
    from airflow_provider_rfr.builtins.state import ActualState, RegistryState
    from airflow_provider_rfr.sinks.spec import SinkSpec

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
        "Applied": "execution.deploy",
        "AppliedStep": "execution.deploy",
        "BuiltinObject": "spec",
        "CatalogSpec": "spec",
        "Collected": "execution.maintenance",
        "Column": "spec",
        "Instance": "spec",
        "Kind": "spec",
        "ActualState": "state",
        "Place": "spec",
        "Plan": "planning.plan",
        "Policies": "planning.plan",
        "Refreshed": "execution.refresh",
        "RegistryState": "state",
        "Removed": "spec",
        "SinkSpec": "spec",
        "Step": "planning.plan",
        "apply": "execution.deploy",
        "ensure_current": "planning.plan",
        "exit_code": "planning.plan",
        "gc": "execution.maintenance",
        "load_objects": "declaration.loader",
        "load_plan": "planning.plan",
        "observe": "execution.observe",
        "plan": "planning.planner",
        "refresh": "execution.refresh",
        "save_plan": "planning.plan",
        "Was": "spec",
        "stable_id": "spec",
    },
)
