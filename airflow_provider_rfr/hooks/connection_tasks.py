"""Tasks as Airflow's API tells and starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.airflow_api import AirflowApi
    from airflow_provider_rfr.store.connections import TaskRef


class ApiTasks:
    """Looks at task instances, and clears them."""

    def __init__(self, api: AirflowApi) -> None:
        self._api = api

    def state(self, task: TaskRef) -> str | None:
        """As Airflow names it; ``gone`` if it is not there, None if the API does not tell."""
        path = ["dags", task.dag_id, "dagRuns", task.run_id, "taskInstances", task.task_id]
        path += [str(task.map_index)] if task.map_index >= 0 else []
        try:
            answer = self._api.call("GET", path)
        except ConfigurationError:
            return None
        if answer.status_code == 404:
            return "gone"
        return str(answer.json()["state"] or "scheduled") if answer.status_code < 400 else None

    def start(self, task: TaskRef) -> None:
        """Clear it, and what failed only because it did.

        :raises ConfigurationError: Airflow does not let this user
        """
        one: Any = task.task_id if task.map_index < 0 else [task.task_id, task.map_index]
        body = {"dag_run_id": task.run_id, "task_ids": [one], "dry_run": False, "only_failed": False}
        self._clear(task, body)
        self._clear(task, {**body, "only_failed": True, "include_downstream": True})

    def _clear(self, task: TaskRef, body: dict[str, Any]) -> None:
        answer = self._api.call("POST", ["dags", task.dag_id, "clearTaskInstances"], body)
        if answer.status_code >= 400:
            raise ConfigurationError(
                str(task), f"Airflow answered {answer.status_code} to its restart", "clear the task"
            )
