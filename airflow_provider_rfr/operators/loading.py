"""Everything of one attempt that spark-submit takes along: configuration, package, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators import environment, shipment
from airflow_provider_rfr.operators.run_keys import supervisor

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.hooks.builtins import BuiltinsHook
    from airflow_provider_rfr.hooks.spark import RefreshSparkHook


def load_hook(folder: Path, document: Mapping[str, Any], hook: RefreshSparkHook) -> None:
    """Give the hook the attempt's files and settings.

    :param folder: private, and kept until spark-submit has ended
    :raises ConfigurationError: Spark would refuse the driver
    """
    _check_mode(hook)
    run = dict(document["run"])
    if not hook.in_cluster:
        run["supervisor"] = supervisor()
    path = shipment.write_config(folder, {**document, "run": run})
    hook.carry(path, None if hook.is_local else shipment.zip_package(folder))
    environment.prepare(hook, document["source"])


def load_migration(folder: Path, builtins: BuiltinsHook, plan: Plan, actor: str, hook: RefreshSparkHook) -> None:
    """Give the hook the files and settings of a deploy: what is declared travels with it, as a value.

    :param folder: private, and kept until spark-submit has ended
    :raises ConfigurationError: Spark would refuse the driver, or has no settings for such a catalog
    """
    from airflow_provider_rfr.builtins.codec import encode
    from airflow_provider_rfr.lake.catalog import LakeSettings
    from airflow_provider_rfr.lake.spark_sql import spark_sql_settings

    _check_mode(hook)
    lake = builtins.lake
    settings = spark_sql_settings(LakeSettings(lake.name, lake.properties))
    hook.default_packages(settings["spark.jars.packages"], settings["spark.sql.extensions"])
    document = {
        "lake": {"name": lake.name, "properties": lake.properties},
        "store": builtins.store_url,
        "spec": encode(builtins.spec),
        "plan": plan.to_json(),
        "actor": actor,
        "run": {} if hook.in_cluster else {"supervisor": supervisor()},
    }
    path = shipment.write_config(folder, document)
    hook.carry(path, None if hook.is_local else shipment.zip_package(folder, shipment.MIGRATION_PARTS))
    environment.prepare(hook, {})


def _check_mode(hook: RefreshSparkHook) -> None:
    if not hook.can_run_python:
        raise ConfigurationError(
            "deploy_mode",
            "a standalone cluster runs no Python driver",
            "use client, which leaves it to this worker",
        )
