"""Hooks for connections to web servers: API sources (``rfr_api``), endpoints of webhooks and sinks (``rfr_http``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook

from airflow_provider_rfr.compat import with_connection_form
from airflow_provider_rfr.connections.airflow.lookup import (
    base_url,
    connection_named,
    extras_of,
    http_address,
    mapping_extra,
    require_type,
)
from airflow_provider_rfr.connections.types import REQUEST_OPTIONS
from airflow_provider_rfr.exceptions import ConfigurationError, ReadInterrupted, SourceError
from airflow_provider_rfr.http.redaction import is_secret_extra, without_credentials

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from requests import Response

    from airflow_provider_rfr.streams.core import Page
    from airflow_provider_rfr.streams.paged import PagedStream
    from airflow_provider_rfr.webhooks.calls import ConnectionSettings


_TEST_TIMEOUT = (5.0, 20.0)
_PAGE_SECONDS = 30.0
_OWN_EXTRAS = frozenset({"secrets", "test_path", "identity_path", "ssh_conn_id"})


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of a source from a connection: ``config`` may be shown, ``secrets`` never."""

    config: dict[str, Any]
    secrets: dict[str, Any] = field(repr=False)

    def completed(self, source: Mapping[str, Any]) -> dict[str, Any]:
        """Return the source with these settings; its own ``config`` takes precedence."""
        config = {**self.config, **(source.get("config") or {})}
        return {**source, "config": config, "secrets": self.secrets}


@with_connection_form
class ApiHook(BaseHook):
    """A hook that reads an ``rfr_api`` connection.

    ======================  =======================================================================
    field                   in the source
    ======================  =======================================================================
    Base URL (host)         ``config.base_url``
    login                   ``config.login``, ``config.username`` and ``config.client_id``
    password                ``config.password``, ``config.token`` and ``config.api_key``, all secret
    extra                   ``config.<name>``; secret if its name says so (token, secret, key ...)
    extra ``secrets``       a JSON object whose every value is secret
    ======================  =======================================================================

    :param api_conn_id: connection of type ``rfr_api``; default ``rfr_api_default``
    """

    conn_name_attr = "api_conn_id"
    default_conn_name = "rfr_api_default"
    conn_type = "rfr_api"
    hook_name = "API source (RFR)"

    def __init__(self, api_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.api_conn_id = api_conn_id

    def get_source_config(self) -> SourceSettings:
        """Return the source settings that the connection holds.

        :raises ConfigurationError: it is of another type, or an extra field can't be read
        """
        return source_settings(self._connection())

    get_conn = get_source_config

    def test_connection(self) -> tuple[bool, str]:
        """Send a GET to ``test_path`` below the base URL; any status below 400 passes. Redirects are not followed.

        Without a ``test_path`` the GET is for the base URL itself, which need not exist: 404 and 405 pass, too.
        """
        try:
            connection = self._connection()
            path = str(extras_of(connection).get("test_path", ""))
            answer = ask(connection, path)
        except (ConfigurationError, SourceError) as error:
            return False, str(error)
        passes = answer.status_code < 400 or (not path and answer.status_code in (404, 405))
        return passes, f"The API answered {answer.status_code} {answer.reason}"

    def _connection(self) -> Connection:
        remedy = (
            f"run: airflow connections add {self.api_conn_id} --conn-type rfr_api --conn-host https://api.example.com"
        )
        return connection_named(self.api_conn_id, "api_conn_id", remedy)


def ask(connection: Connection, path: str = "") -> Response:
    """Send a GET to a path below the base URL, with the connection's credentials; redirects are not followed.

    :raises ConfigurationError: the connection is of another type, or has no base URL
    :raises SourceError: the API did not answer; the message has the URL without credentials
    """
    import requests

    url = str(source_settings(connection).config.get("base_url", ""))
    if not url:
        raise ConfigurationError(f"connection {connection.conn_id}: host", "is empty", "write the API's base URL")
    url = f"{url.rstrip('/')}/{path.lstrip('/')}" if path else url
    headers = {}
    if connection.password and not connection.login:
        # A key without a login is sent in both ways that APIs commonly expect.
        headers = {"Authorization": f"Bearer {connection.password}", "X-Api-Key": connection.password}
    with requests.Session() as session:
        # Use neither proxies nor credentials (.netrc) of this machine's environment.
        session.trust_env = False
        auth = (connection.login, connection.password or "") if connection.login else None
        try:
            return session.get(url, headers=headers, auth=auth, timeout=_TEST_TIMEOUT, allow_redirects=False)
        except requests.RequestException as error:
            # The error's own text may repeat the credentials; that of the operating system's error does not.
            reason: BaseException | None = error
            while reason is not None and getattr(reason, "strerror", None) is None:
                reason = reason.__cause__ or reason.__context__
            detail = type(error).__name__ if reason is None else getattr(reason, "strerror", "")
            problem = f"the API did not answer at {without_credentials(url)} ({detail})"
            raise SourceError(problem) from None


def read_first_page(source: Mapping[str, Any], name: str) -> tuple[PagedStream, Page | None]:
    """Read the first page of the stream's first partition.

    :param source: the source with its settings and secrets
    :param name: name of the stream
    :return: the stream, and the page; None for the page if there is no partition
    :raises ConfigurationError: the source is wrong, or has no such stream
    :raises SourceError: the API answers with an error, or the page does not come in time
    """
    from airflow_provider_rfr.streams.core import ReadContext
    from airflow_provider_rfr.streams.loader import load_stream
    from airflow_provider_rfr.streams.paged import as_paged
    from airflow_provider_rfr.streams.repeats import in_words

    keep_rotated_tokens()
    stop = threading.Event()
    timer = threading.Timer(_PAGE_SECONDS, stop.set)
    timer.daemon = True
    timer.start()
    context = ReadContext(stop=stop)
    try:
        stream = as_paged(load_stream(source, name))
        stream.bind(context)
        first = next(iter(stream.stream_slices()), None)
        return stream, None if first is None else stream.read_page(first, None)
    except ReadInterrupted:
        retried = in_words(context.retried.counts())
        errors = f"; errors after which its requests were sent again: {retried}" if retried else ""
        raise SourceError(f"the first page did not come within {_PAGE_SECONDS:g} s{errors}") from None
    finally:
        timer.cancel()


def settings_of(api_conn_id: str | None) -> SourceSettings:
    """Return the source settings that a connection holds; empty ones for a source without a connection.

    :raises ConfigurationError: it does not exist, is of another type, or an extra field can't be read
    """
    return ApiHook(api_conn_id).get_source_config() if api_conn_id else SourceSettings({}, {})


def keep_rotated_tokens() -> None:
    """Keep rotated refresh tokens of this process in the control store, where the next refresh finds the newest one."""
    from airflow_provider_rfr.hooks.control_store import ControlStoreHook
    from airflow_provider_rfr.store.leases import RefreshTokens
    from airflow_provider_rfr.streams.tokens import keep_refresh_tokens

    keep_refresh_tokens(lambda: RefreshTokens(ControlStoreHook().url_for_driver))


def source_settings(connection: Connection) -> SourceSettings:
    """Return the settings of a source that an ``rfr_api`` connection holds.

    :raises ConfigurationError: it is of another type, or an extra field can't be read
    """
    require_type(connection, ApiHook.conn_type)
    config: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    if connection.host:
        config["base_url"] = base_url(connection)
    if connection.login:
        config |= dict.fromkeys(("login", "username", "client_id"), connection.login)
    if connection.password:
        secrets |= dict.fromkeys(("password", "token", "api_key"), connection.password)
    extras = extras_of(connection)
    for name, value in extras.items():
        if name not in _OWN_EXTRAS:
            (secrets if is_secret_extra(name) else config)[name] = value
    if "secrets" in extras:
        secrets |= mapping_extra(connection, "secrets", extras["secrets"])
    return SourceSettings({name: value for name, value in config.items() if name not in secrets}, secrets)


_TEST_SECONDS: Final = 20.0


@with_connection_form
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
    # Airflow's HTTP hook accepts both names. A form stores text.
    verify = extras.get("verify", extras.get("verify_ssl", True))
    if isinstance(verify, str):
        verify = {"true": True, "false": False}.get(verify.lower(), verify)
    try:
        if not isinstance(verify, (bool, str)):
            raise ConfigurationError("verify", "is neither true, false nor text", "write the path of a bundle in PEM")
        return ConnectionSettings(base, login, password, headers, verify)
    except ConfigurationError as error:
        raise error.at(f"connection {conn_id}") from None
