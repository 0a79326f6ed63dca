"""The platform's own tables, views and sinks: declared in code, migrated on deploy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.declaration.loader import load_objects
    from airflow_provider_rfr.builtins.execution.collection import gc
    from airflow_provider_rfr.builtins.execution.deploy import apply
    from airflow_provider_rfr.builtins.execution.observe import observe
    from airflow_provider_rfr.builtins.execution.values import Applied, AppliedStep, Collected
    from airflow_provider_rfr.builtins.planning.planner import plan
    from airflow_provider_rfr.builtins.planning.plans import Plan, Step, exit_code
    from airflow_provider_rfr.builtins.planning.policies import Policies
    from airflow_provider_rfr.builtins.planning.saved import ensure_current, load_plan, save_plan
    from airflow_provider_rfr.builtins.spec import (
        BuiltinObject,
        CatalogSpec,
        Column,
        Contents,
        How,
        Instance,
        Kind,
        Migration,
        Place,
        Removal,
        SinkSpec,
        Stability,
        stable_id,
    )
    from airflow_provider_rfr.builtins.state import Live, Recorded

__all__ = [
    "BuiltinObject",
    "CatalogSpec",
    "Column",
    "Contents",
    "How",
    "Instance",
    "Kind",
    "Migration",
    "Place",
    "Removal",
    "SinkSpec",
    "Stability",
    "Applied",
    "AppliedStep",
    "Collected",
    "Live",
    "Plan",
    "Policies",
    "Recorded",
    "Step",
    "apply",
    "gc",
    "ensure_current",
    "exit_code",
    "load_objects",
    "load_plan",
    "observe",
    "plan",
    "save_plan",
    "stable_id",
]

_ELSEWHERE = {
    "Applied": "execution.values",
    "AppliedStep": "execution.values",
    "Collected": "execution.values",
    "Live": "state",
    "Plan": "planning.plans",
    "Policies": "planning.policies",
    "Recorded": "state",
    "Step": "planning.plans",
    "apply": "execution.deploy",
    "gc": "execution.collection",
    "ensure_current": "planning.saved",
    "exit_code": "planning.plans",
    "load_objects": "declaration.loader",
    "load_plan": "planning.saved",
    "observe": "execution.observe",
    "plan": "planning.planner",
    "save_plan": "planning.saved",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: parsing a DAG needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'spec')}")
    return getattr(module, name)
