"""ALTER, DROP and COMMENT ON CONNECTION: changes are tried, made whole or not at all, and dependent tasks restart.

Nothing here imports Airflow: storage, rights and tasks are reached through
:class:`~airflow_provider_rfr.connections.dependents.Services`.
"""

from __future__ import annotations

from airflow_provider_rfr.connections.statement import (
    Action,
    ActionKind,
    Parameter,
    SecretReference,
    Statement,
    Verb,
    parse_statement,
)
from airflow_provider_rfr.exceptions import StatementError

__all__ = [
    "Action",
    "ActionKind",
    "Parameter",
    "SecretReference",
    "Statement",
    "StatementError",
    "Verb",
    "parse_statement",
]
