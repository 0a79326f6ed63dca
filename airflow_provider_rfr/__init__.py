"""Resumable full refresh, commit webhooks, built-in migration and connection changes for Airflow and Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def lazy_exports(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose public names are imported when they are first used (PEP 562).

    A DAG is parsed every few seconds: a package that imported all that it exports would load Spark's hook to deliver a
    webhook.

    :param package: its ``__name__``
    :param names: public names by the module that defines them, relative to the package
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
