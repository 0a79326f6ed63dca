"""Airflow's own REST API, as a task that changes connections needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.fields import read_connection

if TYPE_CHECKING:
    from requests import Response

DEFAULT_CONN_ID = "airflow_api"
TIMEOUT = (5.0, 60.0)
_REMEDY = "make a connection airflow_api of type http: Airflow's address as host, login and password of its user"


class AirflowApi(BaseHook):
    """Calls Airflow as the user of a connection; where Airflow asks for no password, no connection is needed.

    :param airflow_api_conn_id: of type http; a password without a login is taken as a token
    """

    conn_name_attr = "airflow_api_conn_id"
    default_conn_name = DEFAULT_CONN_ID

    def __init__(self, airflow_api_conn_id: str | None = None) -> None:
        super().__init__()
        self.airflow_api_conn_id = airflow_api_conn_id or DEFAULT_CONN_ID
        self._token = ""
        self._base = ""
        self._login: str | None = None
        self._password: str | None = None

    def is_there(self) -> bool:
        """Whether there is an API that takes us."""
        try:
            self._sign_in()
        except ConfigurationError:
            return False
        return True

    def call(
        self,
        method: str,
        path: Sequence[str],
        body: Mapping[str, Any] | None = None,
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One request below ``/api/v2``; what the answer means is the caller's to say.

        :param path: its parts, which are quoted here
        :raises ConfigurationError: Airflow does not answer, or does not take the user
        """
        if not self._token:
            self._sign_in()
        url = f"{self._base}/api/v2/{'/'.join(quote(part, safe='') for part in path)}"
        answer = self._request(method, url, json=body, params=list(query), headers=self._headers(headers))
        if answer.status_code == 401:
            # The token is old: an alteration may wait for long.
            self._sign_in()
            answer = self._request(method, url, json=body, params=list(query), headers=self._headers(headers))
        return answer

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", **(more or {})}

    def _sign_in(self) -> None:
        self._find()
        if self._password and not self._login:
            self._token = self._password
            return
        url = f"{self._base}/auth/token"
        if self._login:
            body = {"username": self._login, "password": self._password or ""}
            answer = self._request("POST", url, json=body)
        else:
            answer = self._request("GET", url)
        if answer.status_code >= 400:
            raise ConfigurationError(
                "airflow_api_conn_id", f"Airflow answered {answer.status_code} at /auth/token", _REMEDY
            )
        try:
            self._token = str(answer.json()["access_token"])
        except (ValueError, TypeError, KeyError):
            raise ConfigurationError("airflow_api_conn_id", "what answers there is not Airflow", _REMEDY) from None

    def _find(self) -> None:
        try:
            connection = read_connection(self.airflow_api_conn_id)
        except AirflowNotFoundException:
            if self.airflow_api_conn_id != DEFAULT_CONN_ID:
                raise ConfigurationError(
                    "airflow_api_conn_id", f"there is no connection {self.airflow_api_conn_id!r}", _REMEDY
                ) from None
            self._base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
            if not self._base:
                raise ConfigurationError("airflow_api_conn_id", "there is no connection airflow_api", _REMEDY) from None
            return
        host = str(connection.host or "")
        base = host if "://" in host else f"{connection.schema or 'http'}://{host}"
        if connection.port and not urlsplit(base).port:
            base = f"{base.rstrip('/')}:{connection.port}"
        self._base, self._login, self._password = base.rstrip("/"), connection.login, connection.password

    def _request(self, method: str, url: str, **arguments: Any) -> Response:
        import requests

        try:
            with requests.Session() as session:
                session.trust_env = False
                # What is sent holds secrets: it goes nowhere else.
                answer = session.request(method, url, timeout=TIMEOUT, allow_redirects=False, **arguments)
        except requests.RequestException as error:
            raise ConfigurationError(
                "airflow_api_conn_id", f"Airflow did not answer ({type(error).__name__})", _REMEDY
            ) from None
        if answer.is_redirect:
            raise ConfigurationError("airflow_api_conn_id", "Airflow's address leads to another one", "name that one")
        return answer
