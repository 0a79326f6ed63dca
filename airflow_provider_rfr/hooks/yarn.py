"""A driver in YARN: an application of the resource manager's REST API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import requests

from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError
from airflow_provider_rfr.hooks.common import connection_named, extras_of
from airflow_provider_rfr.hooks.drivers import TIMEOUT, ClusterManagerError, DriverAddress, DriverReport, DriverState

_ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""The Spark provider's own name for it."""
_ACTIVE = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})
_EXIT_STATUS = re.compile(r"User application exited with status (\d+)")


class YarnDriver:
    """Asks ``/ws/v1/cluster/apps/{id}``."""

    def __init__(self, address: DriverAddress) -> None:
        self._url = f"{resource_manager(address.conn_id)}/ws/v1/cluster/apps/{quote(address.driver_id, safe='')}"
        self._auth = _kerberos() if address.kerberos else None

    def look(self) -> DriverReport:
        """How the application stands; unknown to the manager is gone."""
        answer = self._ask("GET", self._url)
        if answer.status_code == 404:
            return DriverReport(DriverState.GONE, "NOT FOUND")
        try:
            return _report_of(answer.json()["app"])
        except (ValueError, KeyError, TypeError):
            raise ClusterManagerError("the resource manager's answer can't be read") from None

    def stop(self) -> None:
        """Kill the application; one that is unknown or over needs nothing."""
        self._ask("PUT", f"{self._url}/state", json={"state": "KILLED"})

    def last_lines(self) -> Sequence[str]:
        """None: YARN keeps them at its nodes, each behind a login of its own."""
        return ()

    def tidy(self) -> None:
        """Nothing: YARN removes what it staged itself."""

    def _ask(self, method: str, url: str, **options: Any) -> requests.Response:
        try:
            answer = requests.request(
                method, url, auth=self._auth, timeout=TIMEOUT, headers={"Accept": "application/json"}, **options
            )
        except requests.RequestException as error:
            raise ClusterManagerError(f"the resource manager can't be reached ({type(error).__name__})") from None
        if answer.status_code >= 400 and answer.status_code != 404:
            raise ClusterManagerError(f"the resource manager answers {method} with HTTP {answer.status_code}")
        return answer


def _report_of(app: Mapping[str, Any]) -> DriverReport:
    """What the resource manager's JSON says."""
    state, final = str(app["state"]).upper(), str(app.get("finalStatus", "UNDEFINED")).upper()
    why = str(app.get("diagnostics") or "")
    exited = _EXIT_STATUS.search(why)
    url = str(app.get("trackingUrl") or "")
    pages = url if url.startswith(("http://", "https://")) else None
    if state in _ACTIVE:
        return DriverReport(DriverState.ACTIVE, state, url=pages, why=why)
    if state == "FINISHED" and final == "SUCCEEDED":
        return DriverReport(DriverState.SUCCEEDED, final, 0, pages, why)
    told = final if state == "FINISHED" else state
    return DriverReport(DriverState.FAILED, told, int(exited.group(1)) if exited else None, pages, why)


def resource_manager(conn_id: str) -> str:
    """Base URL of the resource manager's pages, from the Spark connection.

    :raises ConfigurationError: the connection does not name it
    """
    connection = connection_named(conn_id, "conn_id", "make one of type spark whose host is yarn")
    address = str(extras_of(connection).get(_ADDRESS_EXTRA) or "").strip()
    if not address:
        raise ConfigurationError(
            f"connection {conn_id}: extra {_ADDRESS_EXTRA}",
            "is not set, so nobody could be asked how the driver stands",
            "write the resource manager's address, e.g. http://rm.example.com:8088, or set deferrable=False",
        )
    return (address if "://" in address else f"http://{address}").rstrip("/")


def _kerberos() -> Any:
    try:
        from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise PreflightError(
            "the Spark connection has keytab and principal, so YARN's REST API is asked with Kerberos:"
            " pip install requests-kerberos, on the triggerer too"
        ) from None
    return HTTPKerberosAuth()
