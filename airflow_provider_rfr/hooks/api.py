"""The API that a source reads, as an Airflow connection of type ``rfr_api``."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import requests

from airflow.providers.common.compat.sdk import BaseHook
from airflow_provider_rfr.exceptions import ConfigurationError

SECRET_FIELDS = ("client_secret", "refresh_token")
TEST_SECONDS = 10


class ApiHook(BaseHook):
    """Gives a source its configuration.

    :param api_conn_id: connection of type ``rfr_api``
    """

    conn_name_attr = "api_conn_id"
    default_conn_name = "rfr_api_default"
    conn_type = "rfr_api"
    hook_name = "API source (RFR)"

    def __init__(self, api_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.api_conn_id = api_conn_id

    def get_source_config(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the source's templates see as ``config``, in two parts: what may be shown, and secrets.

        The connection's host is ``base_url``, its login ``login``; its password is known as ``password``, ``api_key``
        and ``token``. Fields of the extra keep their names; ``client_secret``, ``refresh_token`` and all below
        ``secrets`` are secret.

        :raises ConfigurationError: the connection has no usable base URL
        """
        connection = self.get_connection(self.api_conn_id)
        extra = dict(connection.extra_dejson)
        secrets = {name: extra.pop(name) for name in SECRET_FIELDS if extra.get(name)}
        secrets.update(extra.pop("secrets", None) or {})
        if connection.password:
            secrets.update(dict.fromkeys(("password", "api_key", "token"), connection.password))
        config = {**extra, "base_url": self._base_url(connection)}
        if connection.login:
            config["login"] = connection.login
        return config, secrets

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the base URL, or for ``test_path`` below it; credentials are the source's matter and are not sent."""
        try:
            config, _ = self.get_source_config()
            path = str(config.get("test_path") or "")
            url = config["base_url"].rstrip("/") + ("/" + path.lstrip("/") if path else "")
            answer = requests.get(url, timeout=TEST_SECONDS, allow_redirects=False)
        except ConfigurationError as error:
            return False, str(error)
        except requests.RequestException as error:
            return False, f"no answer: {type(error).__name__}"
        return answer.status_code < 400, f"the API answered with {answer.status_code}"

    def _base_url(self, connection: Any) -> str:
        host = (connection.host or "").strip()
        if "://" not in host and host:
            host = f"{connection.schema or 'https'}://{host}"
        parts = urlsplit(host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"connection {self.api_conn_id}: host",
                "is no base URL",
                "write the API's address, e.g. https://api.example.com/v1",
            )
        if parts.username or parts.password:
            raise ConfigurationError(
                f"connection {self.api_conn_id}: host", "holds credentials", "put them in login and password"
            )
        return host if connection.port is None or parts.port else _with_port(host, connection.port)


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.hostname}:{port}").geturl()
