"""Address, headers, credentials and signatures of a call to an endpoint. Made at delivery and never stored.

Tokens that a receiver issues for a password are fetched when needed, kept, and fetched again once after a 401.
Signatures follow Standard Webhooks (standardwebhooks.com): ``webhook-id`` is the delivery's id, the same on every copy,
``webhook-timestamp`` the attempt's time in seconds, ``webhook-signature`` one signature for each secret, so that a
secret can be replaced while both are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from requests.structures import CaseInsensitiveDict

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.client import Client, NoAnswer, Request, trusted_certificates
from airflow_provider_rfr.http.redaction import Masker, host_of, secrets_of_url
from airflow_provider_rfr.http.sockets import AddressGuard, Deadline
from airflow_provider_rfr.webhooks._fields import header_faults, holds_sealed_text
from airflow_provider_rfr.webhooks._model import printable_key
from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.presets import TokenStep

_PUBLIC_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of an Airflow connection of type ``rfr_http``.

    :ivar headers: of every request
    :ivar verify: whether the server's certificate is checked, or the path of a bundle or folder of those to trust
    :raises ConfigurationError: a header, or a password that is sent as one, is not one that a triggers block may have
    """

    base_url: str = field(repr=False)
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True

    def __post_init__(self) -> None:
        faults = [(f"header {printable_key(name)}", fault) for name, fault in header_faults(self.headers)]
        faults += [("password", fault) for _, fault in header_faults(self.credential)]
        if faults:
            place, fault = faults[0]
            context = fault.context or {}
            raise ConfigurationError(place, context["problem"], context["remedy"])

    @property
    def credential(self) -> dict[str, str]:
        """Return the header that authenticates: basic for a login, a bearer token for a password alone."""
        if self.login:
            pair = base64.b64encode(f"{self.login}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {"Authorization": f"Bearer {self.password}"} if self.password else {}


Connections = Callable[[str], ConnectionSettings]
"""From a connection's id to its settings; asked at delivery."""


@dataclass(frozen=True)
class Call:
    """A call of one endpoint: its address, headers, credentials and signing keys.

    :ivar headers: without a token that has to be fetched
    :ivar exposed: header values that templates may print
    :ivar tokens: of a receiver whose token has to be fetched
    :ivar verify: the certificates that TLS trusts: True for the usual ones, False for anybody's, or the path of others
    """

    endpoint: Endpoint
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    exposed: Mapping[str, str] = field(repr=False)
    guard: AddressGuard
    tokens: TokenKeeper | None
    verify: bool | str
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def host(self) -> str:
        """Return the host, for messages."""
        return host_of(self.url)

    @cached_property
    def masker(self) -> Masker:
        """Return a masker that removes this endpoint's secrets from texts."""
        return Masker(self.secrets)

    @property
    def address_digest(self) -> str:
        """Return a digest that changes with the address and does not reveal it."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]


def resolve(endpoint: Endpoint, connections: Connections, allowed_hosts: Iterable[str] = ()) -> Call:
    """Resolve the address, headers, credentials and signing keys with which the endpoint is called.

    :param allowed_hosts: private hosts that the installation allows
    :raises ConfigurationError: the endpoint is still sealed, there is no address, or no such bundle of certificates
    """
    if holds_sealed_text(endpoint.dump()):
        raise ConfigurationError("url", "is still sealed", "open the triggers block before it is delivered")
    connection = ConnectionSettings("") if endpoint.connection is None else connections(endpoint.connection)
    preset = endpoint.parameters
    url = base = _base(endpoint, connection)
    step = None
    headers: CaseInsensitiveDict[str] = CaseInsensitiveDict(connection.headers)
    if preset is None:
        headers.update(connection.credential)
    else:
        step = preset.token_step(base, connection.login, connection.password)
        headers.update(preset.receiver.headers)
        headers.update(preset.credential(connection.password) if step is None else {})
        if preset.path():
            parts = urlsplit(base)
            url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + preset.path()))
    headers.update({name: value.get_secret_value() for name, value in endpoint.headers.items()})
    guard, verify = AddressGuard.of(allowed_hosts, endpoint.allowed_hosts), trusted_certificates(connection.verify)
    return Call(
        endpoint=endpoint,
        url=url,
        headers=dict(headers),
        exposed=endpoint.exposed_headers(connection.headers),
        guard=guard,
        tokens=None if step is None else TokenKeeper(step, guard, verify),
        verify=verify,
        secrets=_secrets(endpoint, connection, step, base, headers),
    )


def _base(endpoint: Endpoint, connection: ConnectionSettings) -> str:
    if endpoint.url is not None:
        return endpoint.url.get_secret_value()
    preset = endpoint.parameters
    base = connection.base_url or ("" if preset is None else preset.receiver.base)
    if urlsplit(base).scheme not in ("http", "https"):
        raise ConfigurationError("connection", "has no http address", "write the host with https:// before it")
    return base


def _secrets(
    endpoint: Endpoint, connection: ConnectionSettings, step: TokenStep | None, base: str, headers: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the texts that are masked in answers and errors."""
    # Of the base alone: what a preset adds are names, which the answer of a receiver has to show.
    secrets = [*secrets_of_url(base)]
    preset = endpoint.parameters
    public = {} if preset is None else preset.receiver.headers
    for name, value in headers.items():
        if public.get(name) != value and name.lower() not in _PUBLIC_HEADERS:
            secrets.append(value)
    if connection.password:
        secrets.append(connection.password)
    if preset is not None:
        secrets += preset.secret_texts()
    if endpoint.signing is not None:
        secrets += endpoint.signing.secret_texts()
    if step is not None:
        secrets += [value for value in step.body.values() if value != connection.login]
    return tuple(dict.fromkeys(secrets))


class TokenKeeper:
    """A keeper of one endpoint's token, for all threads that call it."""

    def __init__(self, step: TokenStep, guard: AddressGuard, verify: bool | str) -> None:
        self.step = step
        self._guard = guard
        self._verify = verify
        self._lock = threading.Lock()
        self._token: str | None = None

    def token(self, client: Client, deadline: Deadline, refused: str | None) -> str | NoAnswer:
        """Return a token, fetched within the attempt's time if none is known.

        :param refused: the token that was answered with 401; another thread may have replaced it already
        :raises DeadlineExceeded: the attempt's time is over
        """
        # An attempt waits for another one's token no longer than its own time.
        if not self._lock.acquire(timeout=deadline.left()):
            return NoAnswer("token", f"{host_of(self.step.url)} gave no token in time")
        try:
            if self._token is None or self._token == refused:
                self._token = None
                fetched = self._fetch(client, deadline)
                if isinstance(fetched, NoAnswer):
                    return fetched
                self._token = fetched
            return self._token
        finally:
            self._lock.release()

    def _fetch(self, client: Client, deadline: Deadline) -> str | NoAnswer:
        body = json.dumps(dict(self.step.body)).encode()
        request = Request("POST", self.step.url, {"Accept": "application/json"}, body, self._verify)
        answer = client.send(request, deadline, self._guard)
        if isinstance(answer, NoAnswer):
            return NoAnswer("token", f"no token: {answer.detail}", answer.permanent)
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        token = document.get("access_token") if isinstance(document, dict) else None
        # A header can't carry other characters, and the error about them would show the token.
        usable = isinstance(token, str) and token.isascii() and token.isprintable() and token.strip() == token
        if token and usable and 200 <= answer.status < 300:
            return str(token)
        permanent = 300 <= answer.status < 500 and answer.status not in (408, 429)
        return NoAnswer("token", f"{host_of(self.step.url)} gave no token: HTTP {answer.status}", permanent)


def webhook_headers(keys: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt by Standard Webhooks; without keys, all but the signature."""
    headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
    content = f"{delivery_id}.{timestamp}.".encode() + body
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys]
    if digests:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
