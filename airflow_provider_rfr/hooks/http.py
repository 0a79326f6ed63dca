"""The connection of an HTTP endpoint (type ``rfr_http``): receivers of webhooks and HTTP sinks, Airflow's own API."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from airflow.sdk import BaseHook

from airflow_provider_rfr.connections.types import REQUEST_OPTIONS
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.common import connection_named, extras_of, web_address

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_rfr.webhooks.calls import ConnectionSettings

_TEST_SECONDS: Final = 20.0


class HttpHook(BaseHook):
    """A hook that reads a connection of type ``rfr_http``, or of Airflow's own type ``http``.

    ====================  ====================================================================================
    field                 in a request
    ====================  ====================================================================================
    Base URL (host)       the address; ``https`` where it names no scheme
    login and password    basic authentication; a password without a login is sent as a bearer token
    extra ``verify``      the path of trusted certificates in PEM, or false; default the usual certificates
    other extra fields    headers
    ====================  ====================================================================================

    :param http_conn_id: default ``rfr_http_default``
    """

    conn_name_attr = "http_conn_id"
    default_conn_name = "rfr_http_default"
    conn_type = "rfr_http"
    hook_name = "HTTP endpoint (RFR)"

    def __init__(self, http_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.http_conn_id = http_conn_id

    def get_conn(self) -> ConnectionSettings:
        """Return the address, credentials, headers and trusted certificates.

        :raises ConfigurationError: as :func:`http_settings`
        """
        return http_settings(self.http_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Send a GET to the address, with the credentials and headers.

        A receiver of webhooks need not answer a GET, so only 401, 403, 407 and errors of the server (5xx) fail;
        501 means that the server has no GET.
        """
        from airflow_provider_rfr.http.client import Answer, Client, Request, trusted_certificates
        from airflow_provider_rfr.http.sockets import Deadline

        try:
            settings = self.get_conn()
            verify = trusted_certificates(settings.verify)
        except ConfigurationError as error:
            return False, str(error)
        headers = {**settings.credential, **settings.headers}
        request = Request("GET", settings.base_url, headers, verify=verify)
        with closing(Client()) as client:
            answer = client.send(request, Deadline(_TEST_SECONDS))
        if not isinstance(answer, Answer):
            return False, answer.detail
        passes = (answer.status < 500 and answer.status not in (401, 403, 407)) or answer.status == 501
        return passes, f"The endpoint answered {answer.status} {answer.phrase}".rstrip()


def http_settings(conn_id: str) -> ConnectionSettings:
    """Return the address, credentials, headers and trusted certificates (``verify``) of the connection.

    :raises ConfigurationError: the connection does not exist, has another type, no address, or an invalid header
    """
    from airflow_provider_rfr.webhooks.calls import ConnectionSettings

    remedy = f"run: airflow connections add {conn_id} --conn-type rfr_http --conn-host https://hooks.example.com"
    connection = connection_named(conn_id, "connection", remedy)
    base = http_address(connection)
    extras = extras_of(connection)
    headers = {name: str(value) for name, value in extras.items() if name not in REQUEST_OPTIONS}
    login, password = connection.login or "", connection.password or ""
    # Two names, as Airflow's HTTP hook has them; a form's field gives text.
    verify = extras.get("verify", extras.get("verify_ssl", True))
    if isinstance(verify, str):
        verify = {"true": True, "false": False}.get(verify.lower(), verify)
    try:
        if not isinstance(verify, (bool, str)):
            raise ConfigurationError("verify", "is neither true, false nor text", "write the path of a bundle in PEM")
        return ConnectionSettings(base, login, password, headers, verify)
    except ConfigurationError as error:
        raise error.at(f"connection {conn_id}") from None


def http_address(connection: Connection) -> str:
    """Return the host field as an address, with the scheme and the port of their own fields where it has none.

    ``generic`` is what ``airflow connections add --conn-type http`` stores without Airflow's HTTP provider.

    :raises ConfigurationError: the type of the connection has no address, the host is empty, or as :func:`web_address`
    """
    kind = (connection.conn_type or "").replace("-", "_")
    # Of the others, Airflow's HTTP hook assumes http.
    schemes = {HttpHook.conn_type: "https", "http": "http", "https": "https", "generic": "http"}
    name = f"connection {connection.conn_id}"
    if kind not in schemes:
        raise ConfigurationError(name, f"is of type {kind!r}", f"make one of type {HttpHook.conn_type!r}")
    if not (connection.host or "").strip():
        raise ConfigurationError(f"{name}: host", "is empty", "write e.g. https://hooks.example.com")
    return web_address(connection, connection.schema or schemes[kind])
