"""The registry of presets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from airflow_provider_rfr.webhooks.configuration.mistakes import mistake, nearest
from airflow_provider_rfr.webhooks.configuration.preset_base import Preset, TokenStep
from airflow_provider_rfr.webhooks.configuration.presets_jobs import (
    AirflowDagRun,
    Dagster,
    Databricks,
    DbtCloud,
    Prefect,
)
from airflow_provider_rfr.webhooks.configuration.presets_notices import GitHub, PagerDuty, Slack

AnyPreset: TypeAlias = AirflowDagRun | DbtCloud | Slack | GitHub | PagerDuty | Databricks | Prefect | Dagster
PRESETS: Mapping[str, type[Preset]] = MappingProxyType(
    {
        preset.kind: preset
        for preset in (AirflowDagRun, DbtCloud, Slack, GitHub, PagerDuty, Databricks, Prefect, Dagster)
    }
)
_ALIASES = {"airflow": AirflowDagRun.kind, "dbt": DbtCloud.kind}


def preset_named(name: str) -> type[Preset]:
    """The preset of this name; raises a mistake that names the nearest one."""
    plain = name.strip().lower().replace("_", "-")
    found = PRESETS.get(_ALIASES.get(plain, plain))
    if found is None:
        raise mistake("is no preset", nearest(plain, PRESETS))
    return found


__all__ = ["PRESETS", "AnyPreset", "Preset", "TokenStep", "preset_named"]
