"""The optional packages of sealing, imported when the first document is sealed or opened."""

from __future__ import annotations

import importlib
from types import ModuleType

from airflow_provider_rfr.exceptions import SealError


def extra(module: str) -> ModuleType:
    """A module of pyrage or cryptography.

    :raises SealError: it is not installed
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        pass  # raised below, so that no context hangs on the error
    package = module.partition(".")[0]
    raise SealError(f"sealed documents need {package}, which is not installed: pip install airflow-provider-rfr[sops]")
