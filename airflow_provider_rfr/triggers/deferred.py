"""A refresh whose task has given its slot away: what the triggerer, and the task that goes on, know of it.

It is stored in Airflow's database and logged, so there is no place in it for a secret: connections go by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from airflow_provider_rfr.hooks.cluster_driver import DriverAddress, DriverReport, DriverState
from airflow_provider_rfr.refresh.progress import Mark


@dataclass(frozen=True, slots=True)
class DeferredRefresh:
    """One attempt whose driver runs in a cluster.

    :ivar tables: table by stream
    :ivar run_key: by which the ledger knows the attempt's run
    :ivar before: how far each table was when the attempt began; None while the ledger can't be read
    :ivar stalled: attempts in a row before this one that brought nothing
    :ivar source: name of the source, for lineage
    :ivar mode: of the publish, for lineage
    """

    tables: Mapping[str, str]
    run_key: str
    driver: DriverAddress
    lake_conn_id: str
    replace_where: str | None = None
    before: Mapping[str, Mark | None] | None = None
    stalled: int = 0
    source: str = ""
    mode: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the arguments of a trigger and as an event."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DeferredRefresh:
        """What :meth:`to_json` wrote."""
        before = content["before"]
        marks = None if before is None else {table: mark and Mark(**mark) for table, mark in before.items()}
        return cls(**{**content, "driver": DriverAddress(**content["driver"]), "before": marks})


class End(str, Enum):
    """Why the triggerer stopped to follow a refresh. What became of it is for the ledger to say."""

    PUBLISHED = "published"
    DRIVER_OVER = "driver over"
    OUT_OF_TIME = "out of time"
    LOST = "lost"
    """Neither driver nor ledger have been heard of for long."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An end, with what was known of the driver then."""

    end: End
    driver: DriverReport = field(default_factory=lambda: DriverReport(DriverState.UNKNOWN, "UNKNOWN"))

    def to_json(self) -> dict[str, Any]:
        """As an event; the cluster's own text for a failure may hold anything, so it stays out."""
        driver = self.driver
        return {
            "end": self.end.value,
            "driver": {"state": driver.state.value, "told": driver.told, "exit_code": driver.exit_code},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ending:
        """What :meth:`to_json` wrote."""
        driver = content["driver"]
        return cls(End(content["end"]), DriverReport(DriverState(driver["state"]), driver["told"], driver["exit_code"]))
