"""Refreshes of one stream that the driver reads and publishes alone, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_provider_rfr.lake.catalog import Catalog, LakeSettings, open_catalog
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.budget import DriverBudget
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshConfig, parse_config
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


@contextmanager
def killed_before_the_mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the driver inside between its publish and the mark in the ledger."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Refresh, "_mark_published", kill)
        yield


TABLE: Final = "raw.orders"


class SyncedTable:
    """A table in a lake of its own, which the driver syncs."""

    def __init__(self, folder: Path) -> None:
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalog = open_catalog(LakeSettings("rfr", self.properties))

    def run(self, source: Mapping[str, Any], stream: str = "orders", **more: Any) -> RefreshFigures:
        """Sync the table.

        :param more: parts of the application's document
        """
        lake = {"name": "rfr", "properties": self.properties}
        document = {"source": source, "streams": [stream], "target": TABLE, "lake": lake, "sync": "incremental", **more}
        return refresh_of(parse_config(document), self.catalog).run()

    @property
    def table(self) -> Any:
        return self.catalog.load_table(TABLE)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return id and value of each row, in their order."""
        rows = self.table.scan(selected_fields=("id", "value")).to_arrow().to_pylist()
        return sorted((row["id"], row["value"]) for row in rows)
