"""A Spark driver that runs in a cluster: its address, its state, and the errors of its manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from airflow_provider_rfr.exceptions import RfrError

TIMEOUT = (5.0, 30.0)
"""Seconds to connect to a cluster manager, and to wait for its answer."""


class ClusterManager(str, Enum):
    """Who runs the driver and can be asked about it."""

    YARN = "yarn"
    KUBERNETES = "kubernetes"


class DriverState(str, Enum):
    """How a driver stands. Only the ledger tells whether it published."""

    ACTIVE = "active"
    UNKNOWN = "unknown"
    """The manager itself has lost sight of it, for the moment."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """The manager knows no such driver, or no longer."""


OVER = frozenset({DriverState.SUCCEEDED, DriverState.FAILED, DriverState.GONE})


class ClusterManagerError(RfrError):
    """The cluster manager could not be asked; the text names nothing but the kind of trouble."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """How a driver is found again, from any machine: nothing in it is secret.

    :ivar conn_id: the Spark connection, which says where the manager is
    :ivar driver_id: YARN's application id, or ``namespace:pod``
    :ivar kerberos: the manager's API asks for Kerberos
    """

    manager: str
    conn_id: str
    driver_id: str
    kerberos: bool = False


@dataclass(frozen=True, slots=True)
class DriverReport:
    """What the manager says of a driver.

    :ivar told: the state in its own words
    :ivar exit_code: of the driver's Python, where that can be known
    :ivar url: of Spark's pages, where they can be reached
    :ivar why: its reason for a failure; text of the cluster's own, for a worker's log alone
    """

    state: DriverState
    told: str
    exit_code: int | None = None
    url: str | None = None
    why: str = ""


class ClusterDriver(Protocol):
    """One driver. Every method asks the manager, and blocks.

    :raises ClusterManagerError: it can't be asked
    """

    def look(self) -> DriverReport:
        """How it stands."""

    def stop(self) -> None:
        """End it; what it has flushed stays for the next attempt."""

    def last_lines(self) -> Sequence[str]:
        """The end of what it printed, where that can be read."""

    def tidy(self) -> None:
        """Remove what a driver that ended well leaves behind."""
