"""Resumable full refresh, commit webhooks, built-in migration and connection changes for Airflow and Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def lazy_exports(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` (PEP 562) that imports each public name when it is first used.

    Airflow parses DAG files every few seconds. Without lazy imports, a DAG that only delivers webhooks would import
    Spark's hook, too.

    :param package: the package's ``__name__``
    :param names: public names by the module that defines them, relative to the package
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
