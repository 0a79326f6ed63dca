"""The plugin that Airflow loads in every component. It imports nothing of Spark, Iceberg or the engine.

The API server alone asks for the application, and only then are the pages imported.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin


class RfrPlugin(AirflowPlugin):
    """The plugin with the pages of this package: in the menu *Browse*, and as tabs of DAGs and task instances."""

    name = "rfr"

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """Return the application that the API server mounts.

        This imports FastAPI and Airflow's own application, which only the API server has loaded already.
        """
        from airflow_provider_rfr.web import make_app

        return [{"app": make_app(), "url_prefix": "/rfr", "name": "Resumable full refresh"}]

    @cached_property
    def external_views(self) -> list[Any]:  # type: ignore[override]
        from airflow_provider_rfr.links import PAGE_OF_TASK

        base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
        task = "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
        icons = {"icon": f"{base}/rfr/static/menu.svg", "icon_dark_mode": f"{base}/rfr/static/menu-dark.svg"}
        return [
            _view("Refreshes", "nav", "rfr", f"{base}/rfr/") | {"category": "browse"} | icons,
            _view("Refreshes", "dag", "rfr_of_dag", f"{base}/rfr/?dag_id={{DAG_ID}}") | icons,
            _view("Refresh", "task_instance", PAGE_OF_TASK, f"{base}/rfr/?{task}") | icons,
        ]


def _view(name: str, destination: str, route: str, href: str) -> dict[str, Any]:
    return {"name": name, "destination": destination, "url_route": route, "href": href}
