"""The document of the Spark application: what to refresh, and what the refresh tells of the task that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.lake.commit_event import rfc3339
from airflow_provider_rfr.operators.arguments import check_streams, options_mapping
from airflow_provider_rfr.operators.run_keys import run_key
from airflow_provider_rfr.refresh.config import parse_config, parse_options

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.hooks.api import SourceSettings
    from airflow_provider_rfr.hooks.lake import LakeDocument


def refresh_document(
    source: Mapping[str, Any],
    settings: SourceSettings,
    streams: Sequence[str],
    target: str,
    options: Mapping[str, Any] | str | None,
    lake: LakeDocument,
    context: Context,
    moved: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The configuration of the Spark application; it holds the secrets of both connections.

    :param source: as it is shipped; what it says goes before the connection's settings
    :param moved: where the API was before, and is, if its connection was altered
    :raises ConfigurationError: field, problem and remedy
    """
    check_streams(list(streams), None)
    config = {**settings.config, **(source.get("config") or {})}
    document: dict[str, Any] = {
        "source": {**source, "config": config, "secrets": settings.secrets},
        "streams": list(streams),
        "target": target,
        "lake": {"name": lake.name, "properties": lake.properties},
        "options": parse_options(options_mapping(options)).model_dump(mode="json"),
        "run": {"key": run_key(context), "airflow": airflow_run(context)},
    }
    if moved:
        document["run"]["moved"] = list(moved)
    parse_config(document)
    return document


def airflow_run(context: Context) -> dict[str, Any]:
    """The part ``run.airflow`` of the refresh's document, which its commit's webhooks name."""
    ti = context["ti"]
    logical_date = context.get("logical_date")
    return {
        "dag_id": ti.dag_id,
        "dag_run_id": ti.run_id,
        "task_id": ti.task_id,
        "map_index": -1 if ti.map_index is None else ti.map_index,
        "logical_date": rfc3339(logical_date) if isinstance(logical_date, datetime) else None,
    }
