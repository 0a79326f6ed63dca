"""Built-in objects: the platform's own tables, views, sources and sinks, declared in code and migrated by deploys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr import lazy_exports
from airflow_provider_rfr.builtins.model import BuiltinObject, Column, Kind, Removed, Was, stable_id
from airflow_provider_rfr.sinks import SinkSpec

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.declarations import load_objects
    from airflow_provider_rfr.builtins.plan import Policies

__all__ = ["BuiltinObject", "Column", "Kind", "Policies", "Removed", "SinkSpec", "Was", "load_objects", "stable_id"]

__getattr__ = lazy_exports(__name__, {"declarations": ("load_objects",), "plan": ("Policies",)})
