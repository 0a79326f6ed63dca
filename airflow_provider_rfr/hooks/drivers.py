"""Which class asks about a driver."""

from __future__ import annotations

from airflow_provider_rfr.hooks.cluster_driver import ClusterDriver, ClusterManager, DriverAddress


def open_driver(address: DriverAddress) -> ClusterDriver:
    """The driver at an address; reads the Spark connection, so it blocks.

    :raises ConfigurationError: the connection does not say where the manager is
    :raises PreflightError: the manager's client is not installed here
    """
    if address.manager == ClusterManager.YARN:
        from airflow_provider_rfr.hooks.yarn import YarnDriver

        return YarnDriver(address)
    from airflow_provider_rfr.hooks.kubernetes import KubernetesDriver

    return KubernetesDriver(address)
