"""Refreshes of one stream that the driver reads and publishes alone, without Spark."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.refresh.budget import DriverBudget
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshConfig
from airflow_provider_rfr.refresh.engine import Refresh
from airflow_provider_rfr.refresh.rounds import Rounds
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import as_paged


class DriverOnly(Cluster):
    """A cluster that never starts Spark, however long the driver reads."""

    def start(self) -> None: ...

    @property
    def context(self) -> Any:
        raise AssertionError("the driver did not read all of it")


def refresh_of(config: RefreshConfig, catalog: Catalog, stopping: threading.Event | None = None) -> Refresh:
    """Return the refresh of the document's first stream."""
    options = config.options
    budget = DriverBudget(options.requests_per_second)
    rounds = Rounds(DriverOnly("test"), budget, options.concurrency, stopping or threading.Event())
    stream = as_paged(load_stream(config.source.as_source(), config.streams[0]))
    return Refresh(config, stream, catalog, rounds, origin=config.source.as_source(), report=lambda report: None)
