"""The platform's own tables, views and sinks: declared in code, migrated on deploy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.loader import load_objects
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
    "load_objects",
    "stable_id",
]

_ELSEWHERE = {"load_objects": "loader"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: parsing a DAG needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'spec')}"), name)
