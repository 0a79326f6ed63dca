"""The platform's own tables, views and sinks: declared in code, migrated on deploy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.loader import load_objects
    from airflow_provider_rfr.builtins.planner import plan
    from airflow_provider_rfr.builtins.plans import Plan, Step, exit_code
    from airflow_provider_rfr.builtins.policies import Policies
    from airflow_provider_rfr.builtins.saved import ensure_current, load_plan, save_plan
    from airflow_provider_rfr.builtins.spec import (
        BuiltinObject,
        CatalogSpec,
        Column,
        Contents,
        How,
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
    "Kind",
    "Migration",
    "Place",
    "Removal",
    "SinkSpec",
    "Stability",
    "Live",
    "Plan",
    "Policies",
    "Recorded",
    "Step",
    "ensure_current",
    "exit_code",
    "load_objects",
    "load_plan",
    "plan",
    "save_plan",
    "stable_id",
]

_ELSEWHERE = {
    "Live": "state",
    "Plan": "plans",
    "Policies": "policies",
    "Recorded": "state",
    "Step": "plans",
    "ensure_current": "saved",
    "exit_code": "plans",
    "load_objects": "loader",
    "load_plan": "saved",
    "plan": "planner",
    "save_plan": "saved",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: parsing a DAG needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'spec')}")
    return getattr(module, name)
