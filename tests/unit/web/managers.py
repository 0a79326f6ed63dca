"""An auth manager with a right that SimpleAuthManager has only with teams: to see one DAG and not another."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class PickyManager(SimpleAuthManager):
    """SimpleAuthManager, but viewers do not see the DAG ``hidden_dag``, and so not all DAGs."""

    def is_authorized_dag(self, *, user: Any, details: Any = None, access_entity: Any = None, **more: Any) -> bool:
        # As FAB does: of runs without a DAG it asks for the right to runs alone.
        is_any = details is None and access_entity is None
        is_hidden = (is_any or (details and details.id == "hidden_dag")) and user.role.upper() == "VIEWER"
        return not is_hidden and super().is_authorized_dag(
            user=user, details=details, access_entity=access_entity, **more
        )
