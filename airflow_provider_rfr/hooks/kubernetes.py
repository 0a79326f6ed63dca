"""A driver in Kubernetes: a pod.

The client is the one of Airflow's Kubernetes provider, without which the Spark provider's hook does not submit there.
It reads the section ``[kubernetes_executor]`` and the usual files. Importing it takes seconds, so it is done where it
is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_rfr.exceptions import PreflightError
from airflow_provider_rfr.hooks.drivers import TIMEOUT, ClusterManagerError, DriverAddress, DriverReport, DriverState

_CONTAINER = "spark-kubernetes-driver"
"""Spark's name for the driver's container; others in the pod are sidecars, which may outlive it."""
_LINES = 200
_PHASES = {
    "Pending": DriverState.ACTIVE,
    "Running": DriverState.ACTIVE,
    "Succeeded": DriverState.SUCCEEDED,
    "Failed": DriverState.FAILED,
    "Unknown": DriverState.UNKNOWN,
}


class KubernetesDriver:
    """Asks for ``namespace:pod``."""

    def __init__(self, address: DriverAddress) -> None:
        self._namespace, _, self._pod = address.driver_id.partition(":")
        try:
            from airflow.providers.cncf.kubernetes import (  # type: ignore[import-not-found, unused-ignore]
                kube_client,
            )
        except ImportError:
            raise PreflightError(
                "Kubernetes can't be asked: pip install apache-airflow-providers-cncf-kubernetes, on the triggerer too"
            ) from None
        self._refusal: type[Exception] = kube_client.ApiException
        self._client = kube_client.get_kube_client()

    def look(self) -> DriverReport:
        """How the pod stands; one that was deleted is gone."""
        pod = self._ask(self._client.read_namespaced_pod)
        if pod is None:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        phase = str(pod.status.phase or "Pending")
        ended = _ended(pod)
        if ended is None:
            return DriverReport(_PHASES.get(phase, DriverState.UNKNOWN), phase, why=str(pod.status.message or ""))
        # A sidecar may keep the pod running for ever.
        state = DriverState.FAILED if ended.exit_code else DriverState.SUCCEEDED
        why = str(ended.message or ended.reason or pod.status.message or "")
        return DriverReport(state, phase, int(ended.exit_code), why=why)

    def stop(self) -> None:
        """Delete the pod, which asks the driver to stop first."""
        self._ask(self._client.delete_namespaced_pod)

    def last_lines(self) -> Sequence[str]:
        """The end of the driver's log."""
        # Left to itself, the client gives the text of Python's notation of bytes.
        answer = self._ask(
            self._client.read_namespaced_pod_log, container=_CONTAINER, tail_lines=_LINES, _preload_content=False
        )
        return [] if answer is None else bytes(answer.data).decode(errors="replace").splitlines()

    def tidy(self) -> None:
        """Delete the pod, as the Spark provider does."""
        self._ask(self._client.delete_namespaced_pod)

    def _ask(self, call: Callable[..., Any], **options: Any) -> Any:
        """The answer, None for a pod that is not there."""
        try:
            return call(self._pod, self._namespace, _request_timeout=TIMEOUT, **options)
        except self._refusal as error:
            status = getattr(error, "status", None)
            if status == 404:
                return None
            raise ClusterManagerError(f"Kubernetes answers with HTTP {status}") from None
        except Exception as error:  # noqa: BLE001 - urllib3's; their texts quote addresses
            raise ClusterManagerError(f"Kubernetes can't be reached ({type(error).__name__})") from None


def _ended(pod: Any) -> Any:
    """How the driver's container ended; None while it runs, or where nobody can tell."""
    containers = pod.status.container_statuses or ()
    ours = [one for one in containers if one.name == _CONTAINER] or [one for one in containers if len(containers) == 1]
    return ours[0].state.terminated if ours and ours[0].state is not None else None
