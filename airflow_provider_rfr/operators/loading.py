"""Everything of one attempt that spark-submit takes along: configuration, package, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators import environment, shipment
from airflow_provider_rfr.operators.run_keys import supervisor

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.spark import RefreshSparkHook


def load_hook(folder: Path, document: Mapping[str, Any], hook: RefreshSparkHook) -> None:
    """Give the hook the attempt's files and settings.

    :param folder: private, and kept until spark-submit has ended
    :raises ConfigurationError: Spark would refuse the driver
    """
    if not hook.can_run_python:
        raise ConfigurationError(
            "deploy_mode",
            "a standalone cluster runs no Python driver",
            "use client, which leaves it to this worker",
        )
    run = dict(document["run"])
    if not hook.in_cluster:
        run["supervisor"] = supervisor()
    path = shipment.write_config(folder, {**document, "run": run})
    hook.carry(path, None if hook.is_local else shipment.zip_package(folder))
    environment.prepare(hook, document["source"])
