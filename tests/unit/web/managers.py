"""An auth manager with a right that SimpleAuthManager has only with teams: to see one DAG and not another."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class PickyManager(SimpleAuthManager):
    """SimpleAuthManager, but viewers do not see the DAG ``hidden_dag``, and so not all DAGs."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, **more: Any) -> bool:
        is_hidden = (details is None or details.id == "hidden_dag") and user.role.upper() == "VIEWER"
        return not is_hidden and super().is_authorized_dag(user=user, details=details, **more)
