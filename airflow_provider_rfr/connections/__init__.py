"""ALTER, DROP and COMMENT ON CONNECTION: a change is tried, stored as a whole, and dependent tasks restart.

Outside of the subpackage ``airflow``, no module imports Airflow. Stored connections, rights and tasks are reached
through :class:`~airflow_provider_rfr.connections.dependents.Services`.
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
