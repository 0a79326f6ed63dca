"""Calls of endpoints, attempts at a delivery, and the waits between them.

Address, headers, credentials and signature of a call are resolved at delivery and never stored. Access tokens that a
receiver issues for a password are fetched when needed, cached, and fetched again once after a 401.

Signatures follow Standard Webhooks (standardwebhooks.com): ``webhook-id`` is the delivery's id, the same for every
attempt, ``webhook-timestamp`` the attempt's time in seconds, ``webhook-signature`` one signature for each secret, so
that a secret can be replaced while both are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from urllib3 import HTTPHeaderDict

from airflow_provider_rfr.exceptions import ConfigurationError, TemplateError
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, retry_after, trusted_certificates
from airflow_provider_rfr.http.redaction import Masker, host_of, secrets_of_url
from airflow_provider_rfr.http.sockets import AddressGuard, Deadline, DeadlineExceeded
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim, Result
from airflow_provider_rfr.store.deliveries import EndpointKey
from airflow_provider_rfr.store.engine import Clock
from airflow_provider_rfr.text import quantity
from airflow_provider_rfr.webhooks._fields import header_faults
from airflow_provider_rfr.webhooks._model import printable_key
from airflow_provider_rfr.webhooks.block import Endpoint, OnFailure
from airflow_provider_rfr.webhooks.payloads import content_type, render_body, template_variables
from airflow_provider_rfr.webhooks.presets import TokenStep

log = logging.getLogger(__name__)

_PUBLIC_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of an Airflow connection of type ``rfr_http``.

    :ivar headers: headers of every request
    :ivar verify: False: the server's certificate is not checked; a text: path of a bundle or folder of certificates to
        trust
    :raises ConfigurationError: a header, or a password that is sent in one, breaks the rules for headers of a block
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
"""A function that returns the settings of a connection by its id; it is called at delivery."""


def no_connections(name: str) -> ConnectionSettings:
    """Raise an error for the name of a connection, for callers without Airflow connections."""
    raise ConfigurationError("connection", f"{name!r} can't be looked up here", "write a url, or deliver in Airflow")


@dataclass(frozen=True)
class Call:
    """A call of one endpoint: its address, headers, credentials and signing keys.

    :ivar headers: headers of every attempt, without a token that has to be fetched
    :ivar exposed: header values that templates may print
    :ivar guard: decides which private addresses may be called
    :ivar tokens: fetches and caches the receiver's access token; None if none has to be fetched
    :ivar verify: certificates that TLS trusts: True for the default ones, False to check none, or the path of others
    :ivar secrets: texts that are masked in answers and errors
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
    def may_send_secrets(self) -> bool:
        """Tell whether the body may hold a secret: a header that templates may print, or one of the preset."""
        preset = self.endpoint.parameters
        return bool(self.exposed) or (preset is not None and bool(preset.receiver.body_secrets))

    @property
    def address_digest(self) -> str:
        """Return a digest that changes with the address and does not reveal it."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]


def resolve(endpoint: Endpoint, connections: Connections, allowed_hosts: Iterable[str] = ()) -> Call:
    """Resolve the address, headers, credentials and signing keys with which the endpoint is called.

    :param allowed_hosts: private hosts that the installation allows
    :raises ConfigurationError: the endpoint is still sealed, there is no address, or no such bundle of certificates
    """
    if endpoint.is_sealed:
        raise ConfigurationError("url", "is still sealed", "open the triggers block before it is delivered")
    connection = ConnectionSettings("") if endpoint.connection is None else connections(endpoint.connection)
    preset = endpoint.parameters
    if endpoint.url is not None:
        base = endpoint.url.get_secret_value()
    else:
        base = connection.base_url or ("" if preset is None else preset.receiver.base)
        if urlsplit(base).scheme not in ("http", "https"):
            raise ConfigurationError("connection", "has no http address", "write the host with https:// before it")
    url, step = base, None
    headers = HTTPHeaderDict(connection.headers)
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


def _secrets(
    endpoint: Endpoint, connection: ConnectionSettings, step: TokenStep | None, base: str, headers: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the texts that are masked in answers and errors."""
    # Of the base address alone: the path that a preset adds has only names, which should stay readable in answers.
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
    """A cache of one endpoint's access token, for all threads that call the endpoint."""

    def __init__(self, step: TokenStep, guard: AddressGuard, verify: bool | str) -> None:
        self.step = step
        self._guard = guard
        self._verify = verify
        self._lock = threading.Lock()
        self._token: str | None = None

    def token(self, client: Client, deadline: Deadline, refused: str | None) -> str | NoAnswer:
        """Return the cached token; fetch one, within the attempt's timeout, if there is none or it was refused.

        :param refused: token that was answered with 401; another thread may have replaced it already
        :returns: the token, or the reason why there is none
        :raises DeadlineExceeded: the attempt's timeout is over
        """
        # An attempt waits for another one's token no longer than its own time.
        if not self._lock.acquire(timeout=deadline.left()):
            return NoAnswer("token", f"{host_of(self.step.url)} gave no token in time")
        try:
            if self._token is not None and self._token != refused:
                return self._token
            self._token = None
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
                self._token = str(token)
                return self._token
            permanent = 300 <= answer.status < 500 and answer.status not in (408, 429)
            return NoAnswer("token", f"{host_of(self.step.url)} gave no token: HTTP {answer.status}", permanent)
        finally:
            self._lock.release()


def webhook_headers(keys: Sequence[bytes], delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt by Standard Webhooks; without keys, all but the signature."""
    headers = {"webhook-id": delivery_id, "webhook-timestamp": str(timestamp)}
    content = f"{delivery_id}.{timestamp}.".encode() + body
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys]
    if digests:
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers


_MINUTE, _HOUR = 60.0, 3600.0
_SCHEDULES: Final[Mapping[str, tuple[float, ...]]] = {
    "quick": (1.0, 2.0, 4.0, 8.0, 16.0, 30.0),
    # The waits of Standard Webhooks.
    "standard": (5.0, 5 * _MINUTE, 30 * _MINUTE, *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24))),
}
_LONGEST_WAIT: Final = 24 * _HOUR
_LONGEST_ASKED: Final = {"quick": _HOUR, "standard": _LONGEST_WAIT}
"""The longest wait, in seconds, that a server may ask for, by schedule."""
_JITTER = 0.2


def scheduled_wait(schedule: str, failures: int) -> float:
    """Return the seconds to wait after so many failures (from 1); the last wait of a schedule is repeated."""
    waits = _SCHEDULES[schedule]
    return waits[min(max(1, failures), len(waits)) - 1]


def wait_before(
    schedule: str, failures: int, asked: float | None = None, *, chance: Callable[[], float] = random.random
) -> float:
    """Return the seconds until the next attempt, at most a day.

    The scheduled wait varies at random by up to a tenth. It is not shorter than the server asked for, up to the
    schedule's limit.

    :param asked: seconds that the server asked to wait; None if it did not
    :param chance: returns a random number from 0 to 1
    """
    wait = scheduled_wait(schedule, failures) * (1 + _JITTER * (chance() - 0.5))
    if asked is not None:
        # Up to 5 % later than asked: otherwise all deliveries that got the same answer come at once.
        wait = max(wait, min(asked, _LONGEST_ASKED[schedule]) * (1 + 0.05 * chance()))
    return min(wait, _LONGEST_WAIT)


def attempt(call: Call, claim: Claim, key: EndpointKey, client: Client, clock: Clock) -> Result:
    """Make the attempt that was claimed; never raise, and keep secrets out of the result and the log."""
    try:
        event = CommitEvent.from_json(claim.event)
    except (ValueError, TypeError, OverflowError):
        at, problem = int(clock.now() * 1000), "the event in the control store can't be read"
        result = Result(claim, AttemptOutcome.DEAD, "event", problem, at=at)
    else:
        result = call_endpoint(call, event, claim, client, clock, trigger_name=key.trigger)
    return with_next_attempt(result, key, call.endpoint, clock, host=call.host)


def call_endpoint(
    call: Call, event: CommitEvent, claim: Claim, client: Client, clock: Clock, *, trigger_name: str
) -> Result:
    """Render, sign and send an event once; never raise. A token is fetched within the same timeout."""
    began, at = time.monotonic(), clock.now()
    body: bytes | None = None
    answer: Answer | NoAnswer | None = None
    try:
        variables = template_variables(
            event, delivery_id=claim.delivery_id, attempt=claim.attempt, trigger_name=trigger_name, headers=call.exposed
        )
        body = render_body(call.endpoint, variables)
        answer = _exchange(call, claim.delivery_id, body, client, int(at))
        result = _judge(call, claim, answer, at)
    except TemplateError as error:
        result = Result(claim, AttemptOutcome.DEAD, "template", str(error))
    except Exception as error:  # noqa: BLE001 - it must not stop other deliveries; its text may be secret
        result = Result(claim, AttemptOutcome.RETRY, "internal", f"it could not be sent: {type(error).__name__}")
    return replace(
        result,
        detail=None if result.detail is None else call.masker.one_line(result.detail),
        answer=call.masker.kept(answer.body) if isinstance(answer, Answer) else None,
        # The rest of the body is known, so a secret in it could be guessed by the digest.
        body_sha256=None if body is None or call.may_send_secrets else hashlib.sha256(body).hexdigest(),
        at=int(at * 1000),
        milliseconds=int((time.monotonic() - began) * 1000),
    )


def _exchange(call: Call, delivery_id: str, body: bytes, client: Client, timestamp: int) -> Answer | NoAnswer:
    """Send the body with all its headers; a token that is refused is fetched again, once."""
    deadline = Deadline(float(call.endpoint.timeout))
    headers = {"Content-Type": content_type(call.endpoint), **call.headers}
    signing = call.endpoint.signing
    headers |= webhook_headers(signing.keys if signing is not None else (), delivery_id, timestamp, body)
    token: str | None = None
    refused: str | None = None
    while True:
        if call.tokens is not None:
            try:
                answer_or_token = call.tokens.token(client, deadline, refused)
            except DeadlineExceeded:
                return NoAnswer("timeout", f"{call.host} gave no complete answer within {deadline.seconds:g} s")
            if isinstance(answer_or_token, NoAnswer):
                return answer_or_token
            token = answer_or_token
            headers["Authorization"] = f"Bearer {token}"
        request = Request(call.endpoint.method, call.url, headers, body, call.verify)
        answer = client.send(request, deadline, call.guard)
        is_refused = isinstance(answer, Answer) and answer.status == 401
        if call.tokens is None or refused is not None or not is_refused:
            return answer
        refused = token


def _judge(call: Call, claim: Claim, answer: Answer | NoAnswer, now: float) -> Result:
    """Return the result of an attempt: delivered, to be retried, or dead.

    Failures that may pass are retried: no answer, 408, 429, from 500 on, a 403 that is a rate limit (GitHub's), and a
    2xx that the endpoint's rule does not accept. Redirects are neither followed nor retried.

    :param now: seconds since 1970, for dates in ``Retry-After``
    """
    if isinstance(answer, NoAnswer):
        return Result(
            claim, AttemptOutcome.DEAD if answer.permanent else AttemptOutcome.RETRY, answer.reason, answer.detail
        )
    status = answer.status
    is_redirect = 300 <= status < 400
    if not is_redirect and call.endpoint.accepts(status, answer.body):
        return Result(claim, AttemptOutcome.DELIVERED, status=status)
    if status == 410:
        return Result(claim, AttemptOutcome.DEAD, "gone", f"HTTP {status}: {call.host} wants no more calls", status)
    # By Retry-After, or by a rate limit that is used up.
    asked_wait = retry_after(answer.headers.get("Retry-After"), now)
    if not asked_wait and answer.headers.get("x-ratelimit-remaining", "").strip() == "0":
        reset = answer.headers.get("x-ratelimit-reset", "").strip()
        # The header holds seconds since 1970. A number of more than ten digits is no plausible time.
        asked_wait = max(0.0, int(reset) - now) if reset.isascii() and reset.isdigit() and len(reset) <= 10 else 0.0
    asked = int(min(asked_wait or 0.0, _LONGEST_ASKED[call.endpoint.retry.schedule.value]) * 1000)
    if is_redirect:
        try:
            target = host_of(urljoin(call.url, answer.headers.get("Location", "")))
        except ValueError:
            target = "elsewhere"
        problem = f"HTTP {status} leads to {target}; redirects are not followed"
        return Result(claim, AttemptOutcome.DEAD, "redirect", problem, status)
    is_limit = status in (408, 429) or (status == 403 and asked_wait is not None)
    if 400 <= status < 500 and not is_limit:
        return Result(claim, AttemptOutcome.DEAD, "http", f"HTTP {status}", status)
    if 200 <= status < 300:
        problem = f"HTTP {status}, but the answer is not what counts as success"
        return Result(claim, AttemptOutcome.RETRY, "answer", problem, status)
    return Result(claim, AttemptOutcome.RETRY, "http", f"HTTP {status}", status, asked=asked)


def with_next_attempt(result: Result, key: EndpointKey, endpoint: Endpoint, clock: Clock, *, host: str) -> Result:
    """Return a failed result with the wait before its next attempt, or as dead if it has no attempts or time left.

    A delivered result is returned unchanged.

    :param host: host of the endpoint, for the log
    """
    if result.ending is AttemptOutcome.DELIVERED:
        return result
    claim = result.claim
    log.warning("%s: attempt %s at %s failed: %s", key, claim.attempt, host, result.detail)
    if result.ending is AttemptOutcome.RETRY:
        failures, limit = claim.failures + 1, endpoint.retry.max_elapsed
        wait = wait_before(endpoint.retry.schedule.value, failures, result.asked / 1000)
        is_late = limit is not None and clock.now() + wait - claim.started_at / 1000 > limit
        if failures < endpoint.attempts and not is_late:
            return replace(result, wait=int(wait * 1000))
        result = replace(
            result,
            ending=AttemptOutcome.DEAD,
            detail=f"{result.detail}; given up after {quantity(failures, 'attempt')}",
        )
    is_ignored = endpoint.on_failure is OnFailure.IGNORE
    return replace(result, on_failure=endpoint.on_failure.value, notified=is_ignored)
