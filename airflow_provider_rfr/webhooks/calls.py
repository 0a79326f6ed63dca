"""What is needed to call an endpoint: address, headers, credentials, signatures. Made late and never written.

Tokens that a receiver hands out for a password are fetched when needed, kept, and fetched again once after a 401.
Signatures follow Standard Webhooks (standardwebhooks.com): ``webhook-id`` is the delivery's id, the same on every copy,
``webhook-timestamp`` the attempt's time in seconds, ``webhook-signature`` one signature for each secret, so that a
secret can be replaced while both are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr
from requests.structures import CaseInsensitiveDict

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.addresses import AddressGuard, Deadline
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, host_of
from airflow_provider_rfr.http.redaction import Masker, secrets_of_url
from airflow_provider_rfr.webhooks.config_errors import shown
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.fields import check_headers, holds_sealed_text
from airflow_provider_rfr.webhooks.presets import Preset, TokenStep

_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Where an installation says which certificates it trusts, in the order of requests and curl."""

_PUBLIC_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What an Airflow connection of type HTTP gives.

    :ivar headers: of every request
    :ivar verify: whether the server's certificate is checked, or the path of a bundle or folder of those to trust
    :raises ConfigurationError: a header, or a password that is sent as one, is none that a triggers block may have
    """

    base_url: str = field(repr=False)
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True

    def __post_init__(self) -> None:
        for name, headers in (("header", self.headers), ("password", self.credential)):
            for found in check_headers(headers):
                field = f"{name} {shown(found['loc'][0])}" if headers is self.headers else name
                context = getattr(found["type"], "context", None) or {}
                raise ConfigurationError(field, context["problem"], context["remedy"])

    @property
    def credential(self) -> dict[str, str]:
        """The header that says who calls: basic authentication for a login, a bearer token for a password alone."""
        if self.login:
            pair = base64.b64encode(f"{self.login}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {"Authorization": f"Bearer {self.password}"} if self.password else {}


_NO_CONNECTION = ConnectionSettings("")

Connections = Callable[[str], ConnectionSettings]
"""From a connection's id to its settings; asked at delivery."""


@dataclass(frozen=True)
class Call:
    """How one endpoint is called.

    :ivar headers: without the token of a token step
    :ivar exposed: header values that templates may print
    :ivar token_step: how a token is got, where one is needed
    :ivar verify: what TLS trusts: True for the usual certificates, False for anybody's, or the path of others
    """

    endpoint: Endpoint
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    exposed: Mapping[str, str] = field(repr=False)
    guard: AddressGuard
    token_step: TokenStep | None
    verify: bool | str
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def host(self) -> str:
        """For people."""
        return host_of(self.url)

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        """That sign."""
        return self.endpoint.signing.keys if self.endpoint.signing is not None else ()

    @cached_property
    def masker(self) -> Masker:
        """Takes this endpoint's secrets out of texts."""
        return Masker(self.secrets)

    @property
    def address_digest(self) -> str:
        """Tells whether the address is another one, without telling which."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]


def resolve(endpoint: Endpoint, connections: Connections, allowed_hosts: Iterable[str] = ()) -> Call:
    """How to call the endpoint.

    :param allowed_hosts: private hosts that the installation allows
    :raises ConfigurationError: the endpoint is still sealed, there is no address, or no such bundle of certificates
    """
    if holds_sealed_text(endpoint.dump()):
        raise ConfigurationError("url", "is still sealed", "open the triggers block before it is delivered")
    connection = connections(endpoint.connection) if endpoint.connection is not None else _NO_CONNECTION
    preset = endpoint.parameters
    base = _base(endpoint, connection, preset)
    step = preset.token_step(base, connection.login, connection.password) if preset is not None else None
    given = dict(connection.headers)
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict(given)
    headers.update(preset.headers() if preset is not None else {})
    if step is None:
        headers.update(_credential(preset, connection))
    headers.update({name: value.get_secret_value() for name, value in endpoint.headers.items()})
    url = _with_path(base, preset.path()) if preset is not None else base
    return Call(
        endpoint=endpoint,
        url=url,
        headers=dict(headers),
        exposed=endpoint.exposed_headers(given),
        guard=AddressGuard.of(allowed_hosts, endpoint.allowed_hosts),
        token_step=step,
        verify=_trusted(connection.verify),
        secrets=tuple(dict.fromkeys(_secrets(endpoint, preset, step, base, dict(headers), connection))),
    )


def _trusted(verify: bool | str) -> bool | str:
    """What the connection says, and where it says nothing the environment, as for curl and requests."""
    source = "connection: verify"
    if verify is True:
        source = next((name for name in _BUNDLES if os.environ.get(name)), "")
        verify = os.environ[source] if source else True
    if isinstance(verify, str) and not os.path.exists(verify):
        raise ConfigurationError(source, f"there is no {verify!r}", "name a file or folder of certificates in PEM")
    return verify


def _base(endpoint: Endpoint, connection: ConnectionSettings, preset: Preset | None) -> str:
    if endpoint.url is not None:
        return endpoint.url.get_secret_value()
    base = connection.base_url or (preset.base if preset is not None else "")
    if urlsplit(base).scheme not in ("http", "https"):
        raise ConfigurationError("connection", "has no http address", "write the host with https:// before it")
    return base


def _with_path(base: str, path: str) -> str:
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)) if path else base


def _credential(preset: Preset | None, connection: ConnectionSettings) -> dict[str, str]:
    """The header that says who calls, by the preset's way or by that of HTTP."""
    if preset is None:
        return connection.credential
    token = getattr(preset, "token", None)
    secret = token.get_secret_value() if isinstance(token, SecretStr) else connection.password
    if preset.credential is None or not secret:
        return {}
    header, form = preset.credential
    return {header: form.replace("{}", secret)}


def _secrets(
    endpoint: Endpoint,
    preset: Preset | None,
    step: TokenStep | None,
    base: str,
    headers: dict[str, str],
    connection: ConnectionSettings,
) -> Iterator[str]:
    # What a preset adds to the address are names, the very words that an answer has to tell.
    yield from secrets_of_url(base)
    public = preset.headers() if preset is not None else {}
    for name, value in headers.items():
        if public.get(name) != value and name.lower() not in _PUBLIC_HEADERS:
            yield value
    yield from ([connection.password] if connection.password else [])
    if preset is not None:
        values = [getattr(preset, name) for name in type(preset).model_fields]
        yield from (value.get_secret_value() for value in values if isinstance(value, SecretStr))
    if endpoint.signing is not None:
        yield from (secret.get_secret_value() for secret in endpoint.signing.secrets)
    if step is not None:
        yield from (value for value in step.body.values() if value != connection.login)


class TokenKeeper:
    """One endpoint's token, for all threads that call it. It has no repr that would show it."""

    def __init__(self, step: TokenStep, guard: AddressGuard, verify: bool | str = True) -> None:
        self._step = step
        self._guard = guard
        self._verify = verify
        self._lock = threading.Lock()
        self._token: str | None = None

    def __repr__(self) -> str:
        return "TokenKeeper()"

    def token(self, client: Client, deadline: Deadline, refused: str | None = None) -> str | NoAnswer:
        """A token, fetched within the attempt's time where none is known.

        :param refused: the token that was answered with 401; another thread may have replaced it already
        """
        # Who waits here waits no longer than its own attempt may take.
        if not self._lock.acquire(timeout=deadline.left()):
            return NoAnswer("token", f"{host_of(self._step.url)} gave no token in time")
        try:
            if self._token is None or self._token == refused:
                found = self._fetch(client, deadline)
                if isinstance(found, NoAnswer):
                    self._token = None
                    return found
                self._token = found
            return self._token
        finally:
            self._lock.release()

    def header(self, token: str) -> dict[str, str]:
        """The header that carries it."""
        return {self._step.header: self._step.value.replace("{}", token)}

    def _fetch(self, client: Client, deadline: Deadline) -> str | NoAnswer:
        body = json.dumps(dict(self._step.body)).encode()
        host = host_of(self._step.url)
        request = Request("POST", self._step.url, {"Accept": "application/json"}, body, self._verify)
        answer = client.send(request, deadline, self._guard)
        if isinstance(answer, NoAnswer):
            return NoAnswer("token", f"no token: {answer.detail}", answer.permanent)
        token = _at(answer, self._step.pointer)
        if token is not None and 200 <= answer.status < 300:
            return token
        permanent = 400 <= answer.status < 500 and answer.status not in (408, 429)
        return NoAnswer("token", f"{host} gave no token: HTTP {answer.status}", permanent)


def _at(answer: Answer, pointer: str) -> str | None:
    try:
        value: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    for part in pointer.split("/")[1:]:
        value = value.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
    # What a header can't carry is not a token, and would be told by an error that shows it.
    usable = isinstance(value, str) and value.isascii() and value.isprintable() and value.strip() == value
    return value if usable and value else None


_ID_HEADER, _TIME_HEADER, _SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"


def _signature(key: bytes, delivery_id: str, timestamp: int, body: bytes) -> str:
    """One signature, version 1: HMAC with SHA-256 over id, time and body."""
    content = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode("ascii")


def webhook_headers(keys: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt.

    :param keys: secrets, the newest first; without any there is no signature, and the other headers all the same
    """
    headers = {_ID_HEADER: delivery_id, _TIME_HEADER: str(timestamp)}
    if keys:
        headers[_SIGNATURE_HEADER] = " ".join(_signature(key, delivery_id, timestamp, body) for key in keys)
    return headers
