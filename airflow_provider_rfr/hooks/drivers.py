"""Spark drivers that run in a cluster, in YARN or Kubernetes: address, state, log and end.

YARN is asked by the resource manager's REST API. The client for Kubernetes is the one of Airflow's Kubernetes provider,
without which the Spark provider's hook does not submit there; it reads the section ``[kubernetes_executor]`` and the
usual files. Importing it takes seconds, so that is done where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol
from urllib.parse import quote

import requests

from airflow_provider_rfr.connections.airflow.lookup import connection_named, extras_of
from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError, RfrError

_TIMEOUT = (5.0, 30.0)
"""Seconds to connect to a cluster manager, and to wait for its answer."""
_ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""The Spark provider's own name for it."""
_YARN_ACTIVE = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})
_EXIT_STATUS = re.compile(r"User application exited with status (\d+)")
_CONTAINER = "spark-kubernetes-driver"
"""Spark's name for the driver's container; others in the pod are sidecars, which may outlive it."""
_LOG_LINES = 200


class ClusterManager(str, Enum):
    """A cluster manager that runs the driver and can be asked about it."""

    YARN = "yarn"
    KUBERNETES = "kubernetes"


class DriverState(str, Enum):
    """The state of a driver. Only the ledger says whether it published."""

    ACTIVE = "active"
    UNKNOWN = "unknown"
    """The manager itself does not know, for the moment."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"
    """The manager knows no such driver, or no longer."""


_POD_PHASES = {
    "Pending": DriverState.ACTIVE,
    "Running": DriverState.ACTIVE,
    "Succeeded": DriverState.SUCCEEDED,
    "Failed": DriverState.FAILED,
    "Unknown": DriverState.UNKNOWN,
}


class ClusterManagerError(RfrError):
    """The cluster manager could not be asked; the message names the kind of failure and no address."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """The address of a driver, valid on any machine; holds no secret.

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
    """The manager's report of a driver.

    :ivar status: the state as the manager calls it
    :ivar exit_code: of the driver's Python, where it is known
    :ivar url: of Spark's UI, where it can be reached
    :ivar why: the manager's reason for a failure; unmasked, so only for a worker's log
    """

    state: DriverState
    status: str
    exit_code: int | None = None
    url: str | None = None
    why: str = ""


class ClusterDriver(Protocol):
    """One driver. Every method asks the manager, and blocks.

    :raises ClusterManagerError: it can't be asked
    """

    def look(self) -> DriverReport:
        """Return the driver's current state."""

    def stop(self) -> None:
        """End the driver; pages that it has flushed stay for the next attempt."""

    def last_lines(self) -> Sequence[str]:
        """Return the end of the driver's log; an empty list where it can't be read."""

    def tidy(self) -> None:
        """Remove the resources that a driver that ended well leaves behind."""


def open_driver(address: DriverAddress) -> ClusterDriver:
    """Return the driver at an address. It reads the Spark connection, so it blocks.

    :raises ConfigurationError: the connection does not say where the manager is
    :raises PreflightError: the manager's client is not installed here
    """
    return _YarnDriver(address) if address.manager == ClusterManager.YARN else _KubernetesDriver(address)


def resource_manager(conn_id: str) -> str:
    """Return the base URL of the resource manager, from the Spark connection.

    :raises ConfigurationError: the connection does not name it
    """
    connection = connection_named(conn_id, "conn_id", "make one of type spark whose host is yarn")
    address = str(extras_of(connection).get(_ADDRESS_EXTRA) or "").strip()
    if not address:
        raise ConfigurationError(
            f"connection {conn_id}: extra {_ADDRESS_EXTRA}",
            "is not set, so the driver's state could not be read",
            "write the resource manager's address, e.g. http://rm.example.com:8088, or set deferrable=False",
        )
    return (address if "://" in address else f"http://{address}").rstrip("/")


class _YarnDriver:
    """A driver on YARN, asked for by ``/ws/v1/cluster/apps/{id}``."""

    def __init__(self, address: DriverAddress) -> None:
        self._url = f"{resource_manager(address.conn_id)}/ws/v1/cluster/apps/{quote(address.driver_id, safe='')}"
        self._auth: Any = None
        if address.kerberos:
            try:
                from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found, unused-ignore]
            except ImportError:
                raise PreflightError(
                    "the Spark connection has keytab and principal, so YARN's REST API is asked with Kerberos:"
                    " pip install requests-kerberos, on the triggerer too"
                ) from None
            self._auth = HTTPKerberosAuth()

    def look(self) -> DriverReport:
        answer = self._ask("GET", self._url)
        if answer.status_code == 404:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        try:
            return _yarn_report(answer.json()["app"])
        except (ValueError, KeyError, TypeError):
            raise ClusterManagerError("the resource manager's answer can't be read") from None

    def stop(self) -> None:
        self._ask("PUT", f"{self._url}/state", json={"state": "KILLED"})

    def last_lines(self) -> Sequence[str]:
        """Return no lines: YARN keeps the log on its nodes, each with a login of its own."""
        return ()

    def tidy(self) -> None:
        """Do nothing: YARN removes the files that it staged itself."""

    def _ask(self, method: str, url: str, **options: Any) -> requests.Response:
        try:
            answer = requests.request(
                method, url, auth=self._auth, timeout=_TIMEOUT, headers={"Accept": "application/json"}, **options
            )
        except requests.RequestException as error:
            # Without the cause, because the text of requests quotes the address.
            raise ClusterManagerError(f"the resource manager can't be reached ({type(error).__name__})") from None
        # 404 is an answer: an application that is gone is one that stop() need not end.
        if answer.status_code >= 400 and answer.status_code != 404:
            raise ClusterManagerError(f"the resource manager answers {method} with HTTP {answer.status_code}")
        return answer


def _yarn_report(app: Mapping[str, Any]) -> DriverReport:
    """Return the state in an application's JSON."""
    state, final = str(app["state"]).upper(), str(app.get("finalStatus", "UNDEFINED")).upper()
    why = str(app.get("diagnostics") or "")
    exited = _EXIT_STATUS.search(why)
    url = str(app.get("trackingUrl") or "")
    pages = url if url.startswith(("http://", "https://")) else None
    if state in _YARN_ACTIVE:
        return DriverReport(DriverState.ACTIVE, state, url=pages, why=why)
    if state == "FINISHED" and final == "SUCCEEDED":
        return DriverReport(DriverState.SUCCEEDED, final, 0, pages, why)
    status = final if state == "FINISHED" else state
    return DriverReport(DriverState.FAILED, status, int(exited.group(1)) if exited else None, pages, why)


class _KubernetesDriver:
    """A driver on Kubernetes, asked for by ``namespace:pod``."""

    def __init__(self, address: DriverAddress) -> None:
        self._namespace, _, self._pod = address.driver_id.partition(":")
        try:
            from airflow.providers.cncf.kubernetes import kube_client  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise PreflightError(
                "Kubernetes can't be asked: pip install apache-airflow-providers-cncf-kubernetes, on the triggerer too"
            ) from None
        self._refusal: type[Exception] = kube_client.ApiException
        self._client = kube_client.get_kube_client()

    def look(self) -> DriverReport:
        pod = self._ask(self._client.read_namespaced_pod)
        if pod is None:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        phase = str(pod.status.phase or "Pending")
        containers = pod.status.container_statuses or ()
        drivers = [container for container in containers if container.name == _CONTAINER or len(containers) == 1]
        ended = drivers[0].state.terminated if drivers and drivers[0].state is not None else None
        if ended is None:
            return DriverReport(_POD_PHASES.get(phase, DriverState.UNKNOWN), phase, why=str(pod.status.message or ""))
        # The container's end counts, not the pod's: a sidecar may keep that running for ever.
        state = DriverState.FAILED if ended.exit_code else DriverState.SUCCEEDED
        why = str(ended.message or ended.reason or pod.status.message or "")
        return DriverReport(state, phase, int(ended.exit_code), why=why)

    def stop(self) -> None:
        """Delete the pod, which asks the driver to stop first."""
        self._ask(self._client.delete_namespaced_pod)

    def last_lines(self) -> Sequence[str]:
        # With preloading, the client returns str(bytes), i.e. "b'...'".
        answer = self._ask(
            self._client.read_namespaced_pod_log, container=_CONTAINER, tail_lines=_LOG_LINES, _preload_content=False
        )
        return [] if answer is None else bytes(answer.data).decode(errors="replace").splitlines()

    # Spark leaves the pod of a driver that ended, with its log, until somebody deletes it.
    tidy = stop

    def _ask(self, call: Callable[..., Any], **options: Any) -> Any:
        """Return the answer; None for a pod that does not exist."""
        try:
            return call(self._pod, self._namespace, _request_timeout=_TIMEOUT, **options)
        except self._refusal as error:
            status = getattr(error, "status", None)
            if status == 404:
                return None
            raise ClusterManagerError(f"Kubernetes answers with HTTP {status}") from None
        except Exception as error:  # noqa: BLE001 - urllib3's; their texts quote addresses
            raise ClusterManagerError(f"Kubernetes can't be reached ({type(error).__name__})") from None
