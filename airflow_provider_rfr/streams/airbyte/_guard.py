"""Guards of the CDK's requests, waits, log lines and tokens while it works for a stream.

A thread says for which stream it works (:func:`working_for`); sessions and log lines of other users of the CDK in the
same process stay as they are. Authenticators get tokens from the owner of the credential, like other streams. A session
token without ``expiration_duration`` is obtained for each request, as the CDK documents. Authenticators of
``components.py`` obtain their tokens in each process.

Like ``_cdk``, this module uses private names of the CDK.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import threading
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers
from urllib3 import HTTPResponse

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ReadInterrupted,
    RfrError,
    SecretInTokenError,
    SourceError,
)
from airflow_provider_rfr.http import client as http
from airflow_provider_rfr.http.redaction import Redactor, bare_host, host_of, is_secret, texts_in, without_credentials
from airflow_provider_rfr.http.sockets import Deadline
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.paged import SECRET_IN_TOKEN
from airflow_provider_rfr.streams.repeats import kind_of_failure, kind_of_status
from airflow_provider_rfr.streams.tokens import AccessToken, Obtain, digest_of, key_of, shared_credential
from airflow_provider_rfr.text import cut

_SECONDS: Final = 300.0
_LIMITS: Final = {"connect": 10.0, "read": 60.0, "max_bytes": 256 * 1024 * 1024, "truncate": False}
_MOST_REDIRECTS: Final = 5
_PENALTY: Final = 1.0
_PORTS: Final = {"http": 80, "https": 443}
_HARMLESS_HEADERS: Final = frozenset({"accept", "accept-encoding", "user-agent"})
#: What the CDK writes before the content of an answer.
_BODY: Final = ", Response Content: "
_LOGGERS: Final = ("airbyte", "airbyte_cdk", "backoff", "MessageRepository")
_FIELDS: Final = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
_CREDENTIAL: Final = "_rfr_credential"
_LONGEST_SECONDS: Final = 365 * 86400.0
# In a template; "options" is the CDK's older name.
_PARAMETERS: Final = re.compile(r"\{[{%][^}]*\b(?:parameters|options)\b")
_REJECTED: Final = frozenset({400, 401, 403})
_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts to which the source's requests, and with them its credentials, may go.

    :ivar origins: scheme, host and port of every address that the manifest names
    :ivar allowed: ``host`` or ``host:port`` that the user lists
    """

    origins: frozenset[str]
    allowed: frozenset[str]

    @classmethod
    def of(cls, addresses: Iterable[str], allowed: Iterable[str]) -> Hosts:
        """Return the policy for these addresses.

        Texts that are no address are left out: a template that needs a slice names no host before there is one.
        """
        origins = {_origin(address) for address in addresses}
        return cls(frozenset(origins - {""}), frozenset(host.lower() for host in allowed))

    def host_in(self, address: str) -> str | None:
        """Return host and port of an address of the manifest; None for one that needs a slice."""
        return bare_host(address) if _origin(address) in self.origins else None

    def checked(self, url: str) -> str:
        """Check an address and return it, by https where the manifest's is.

        An API behind a proxy often links to itself by http.

        :raises SourceError: it leads to a host that neither the manifest nor ``allowed_hosts`` names
        """
        parts, origin = urlsplit(url), _origin(url)
        if origin in self.origins:
            return url
        secure = urlunsplit(("https", parts.netloc.removesuffix(":80"), *parts[2:]))
        if parts.scheme == "http" and _origin(secure) in self.origins:
            return secure
        may_be_plain = any(origin.startswith("http://") for origin in self.origins)
        host = (parts.hostname or "").lower()
        listed = host in self.allowed or f"{host}:{origin.rpartition(':')[2]}" in self.allowed
        if origin and listed and (parts.scheme == "https" or may_be_plain):
            return url
        raise SourceError(
            f"the request leads to {host_of(url)}, which the manifest does not name; "
            "nothing is sent there unless allowed_hosts lists it"
        )


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        host = (parts.hostname or "").lower()
    except ValueError:
        return ""
    is_host = bool(host) and not host.startswith(".") and not set(host) & set("{}' ")
    return f"{parts.scheme}://{host}:{port}" if is_host and parts.scheme in _PORTS else ""


@dataclass(slots=True)
class StreamWork:
    """The work of a thread for a stream, and the last request that it sent.

    :ivar hosts: hosts that may be called; None while the stream is being built, when nothing may be sent
    :ivar token: token of the page that is read; None for the first one
    :ivar request: method and address without credentials
    :ivar retry_after: seconds to wait, after an answer 429
    :ivar ignored: the last answer that the manifest's error handler ignored, e.g. ``HTTP 404``
    :ivar failure: kind of the error that the last request ended with, until it is counted as retried
    :ivar has_same_token: whether the login returned the token that the API had just refused
    """

    redactor: Redactor
    context: ReadContext
    hosts: Hosts | None
    token: Any = None
    request: str | None = None
    status: int | None = None
    retry_after: float = 0.0
    ignored: str | None = None
    failure: str | None = None
    has_same_token: bool = False


@contextmanager
def working_for(redactor: Redactor, context: ReadContext, hosts: Hosts | None) -> Iterator[StreamWork]:
    """Attribute to the stream all that the CDK sends and logs on this thread in the block."""
    before = current_work()
    _thread.work = work = StreamWork(redactor, context, hosts)
    try:
        yield work
    finally:
        _thread.work = before


def current_work() -> StreamWork | None:
    """Return the work of this thread; None if it does not work for a stream of ours."""
    return getattr(_thread, "work", None)


class GuardedAdapter(BaseAdapter):
    """An adapter that sends by the package's own client: with its deadlines and limits, to hosts that are allowed.

    Stateless apart from its connections. Cookies are not kept: a page that needed one could not be read by another
    process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._client = http.Client(max_idle=None)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request if its host is allowed.

        :raises SourceError: the host is refused, or the answer can never be read
        """
        work = current_work()
        if work is None or work.hosts is None:
            raise SourceError("a request outside of a read: nothing is sent before it is known where it may go")
        work.context.check()
        work.context.limiter.acquire()
        _learn_secrets(request.headers, work)
        work.request = f"{request.method} {work.redactor.address(request.url or '')}"
        work.status = work.failure = None
        request.url = work.hosts.checked(request.url or "")
        limits = http.Limits(**_LIMITS, decode=not stream)  # type: ignore[arg-type]  # a mapping of several types
        message = http.HttpMessage(request.method or "GET", request.url, request.headers, request.body)
        outcome = self._client.send_message(message, Deadline(_SECONDS), None, limits, verify=verify)
        if isinstance(outcome, http.NoAnswer):
            if outcome.permanent or outcome.reason == "tls":
                raise SourceError(outcome.detail, request=work.request)
            # Raised as the classes after which the manifest's error handler repeats a request.
            kind = requests.Timeout if outcome.reason == "timeout" else requests.ConnectionError
            work.failure = kind_of_failure(outcome.reason)
            raise kind(outcome.detail, request=request)
        work.status = outcome.status
        if outcome.status >= 400:
            work.failure = kind_of_status(outcome.status)
        if outcome.status == requests.codes.too_many_requests:
            work.retry_after = http.retry_after(outcome.headers.get("Retry-After")) or _PENALTY
            work.context.limiter.penalize(work.retry_after)
        return _as_response(outcome, request, stream)

    def close(self) -> None:
        self._client.close()


def _as_response(answer: http.Answer, request: requests.PreparedRequest, stream: bool) -> requests.Response:
    response = requests.Response()
    response.status_code, response.reason = answer.status, answer.phrase
    response.headers = CaseInsensitiveDict(answer.headers)
    response.encoding = get_encoding_from_headers(response.headers)
    response.url, response.request = request.url or "", request
    response.raw = io.BytesIO(answer.body)
    if stream:
        response.raw = HTTPResponse(
            response.raw, dict(answer.headers), answer.status, preload_content=False, decode_content=False
        )
    else:
        # Already decoded, whatever the header says. The CDK takes JSON after a byte order mark for an empty answer.
        response._content = answer.body.removeprefix(BOM_UTF8)
        response._content_consumed = True  # type: ignore[attr-defined]  # not in the type hints of requests
    return response


def _learn_secrets(headers: Mapping[str, str | bytes], work: StreamWork) -> None:
    """Add the credentials in a request's headers to the redactor, such as tokens that the CDK obtained itself.

    A page token is no secret, though a manifest may send it in a header with such a name, e.g. ``X-Next-Token``.
    """
    of_page = set(texts_in(work.token))
    for name, value in headers.items():
        if is_secret(name):
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for secret in {text, text.partition(" ")[2]} - {""}:
                if secret not in of_page and work.redactor.text(secret) == secret:
                    work.redactor.add(secret)


def guard(session: requests.Session) -> requests.Session:
    """Make the session send as this package does, without proxies and credentials of the environment."""
    session.trust_env = False
    # Only packings of which the client recognises a body that breaks off; requests offers all that it can unpack.
    session.headers["Accept-Encoding"] = "gzip, deflate"
    # With nothing to merge, requests spends a tenth less CPU on a page.
    session.params = session.proxies = None  # type: ignore[assignment]  # as requests' merge_setting allows
    session.verify = http.trusted_certificates(True)
    session.max_redirects = _MOST_REDIRECTS
    adapter = GuardedAdapter()
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    session.rebuild_auth = _without_credentials  # type: ignore[method-assign]  # requests offers no other way
    return session


def _without_credentials(prepared: requests.PreparedRequest, response: requests.Response) -> None:
    """Remove credentials from a redirect to another host.

    ``requests`` would remove ``Authorization`` alone, not the header of an API key.
    """
    if _origin(prepared.url or "") != _origin(response.request.url or ""):
        for name in [header for header in prepared.headers if header.lower() not in _HARMLESS_HEADERS]:
            del prepared.headers[name]


def without_secrets(token: Any, work: StreamWork) -> Any:
    """Return a page token without the credentials that the API repeated in an address's query: the CDK adds them again.

    :raises SecretInTokenError: a secret is elsewhere in it
    """
    if isinstance(token, str) and "?" in token:
        parts = urlsplit(token)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        kept = [(name, value) for name, value in pairs if not work.redactor.is_credential("", value)]
        token = token if len(kept) == len(pairs) else urlunsplit(parts._replace(query=urlencode(kept)))
    if work.redactor.finds_secret_in(token):
        raise SecretInTokenError(SECRET_IN_TOKEN, request=work.request, status=work.status)
    return token


class _RedactingHandler(logging.Handler):
    """A handler that redacts the CDK's log records in place, before the handlers of parent loggers see them.

    A filter would not do: a logger's filters don't see the records of its child loggers. Tracebacks and extra fields
    hold addresses, headers and bodies, and are taken out.
    """

    def emit(self, record: logging.LogRecord) -> None:
        work = current_work()
        if work is None:
            return
        try:
            text = record.getMessage().partition(_BODY)[0]
        except (TypeError, ValueError):
            text = "a line that can't be written"
        record.msg, record.args = redacted_message(text, work.redactor), None
        record.exc_info = record.exc_text = record.stack_info = None
        for name in vars(record).keys() - _FIELDS:
            delattr(record, name)


def redacted_message(text: str, redactor: Redactor) -> str:
    """Redact a text of the CDK or of an API, and cut it for messages, in this order: a cut secret is not recognised."""
    return cut(without_credentials(redactor.text(text)), 1000)


def _is_not_about_a_schema(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Could not find schema for stream ")


def redact_logs() -> None:
    """Have the CDK's lines redacted while it works for a stream of ours, and a misleading one left out."""
    # The CDK says that the schema is empty, and the columns are inferred here. It logs this by the root logger.
    logging.getLogger().addFilter(_is_not_about_a_schema)
    handler = _RedactingHandler()
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)


class RequestLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # generic only for type checkers
    """A log that writes errors at level DEBUG, because an exception with request and status follows.

    The CDK's own line repeats the answer. And a page that was read ahead, past the last one, is no error.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if level >= logging.ERROR:
            level, msg, args, kwargs = logging.DEBUG, "a request failed", (), {}
        super().log(level, msg, *args, **kwargs)


class LoggedMessages:
    """A message repository that keeps nothing: the CDK's own fills a queue that only the CDK's read loop empties.

    Messages with the configuration, which hold secrets, and those with requests and responses are dropped.
    """

    def emit_message(self, message: Any) -> None:
        log = getattr(message, "log", None)
        if log is not None and log.level.name not in ("DEBUG", "TRACE"):
            level = {"WARN": logging.WARNING, "ERROR": logging.ERROR, "FATAL": logging.ERROR}
            logging.getLogger("airbyte").log(level.get(log.level.name, logging.INFO), "%s", log.message)

    def log_message(self, level: Any, message_provider: Callable[[], Any]) -> None:
        """Drop the log message of a request or response."""

    def consume_queue(self) -> Iterable[Any]:
        return ()


class Time:
    """A stand-in for the module ``time``, for waits between requests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        work = current_work()
        if work is None:
            time.sleep(seconds)
            return
        if work.failure is not None:
            # The wait before the request is repeated.
            work.context.retried.note(work.failure)
            work.failure = None
        work.context.sleep(seconds)


@dataclass(frozen=True, slots=True)
class PlainPaths:
    """A stand-in for ``dpath`` in the extractor of records, with a faster ``get`` in threads that work for us.

    ``dpath`` compares the path with each place of the answer, which is half of the CPU of a page. The results are the
    same, but an answer with an empty name somewhere is read, which ``dpath`` refuses.
    """

    original: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def get(self, body: Any, path: list[Any], default: Any) -> Any:
        if current_work() is None or not path or not all(map(_is_plain, path)):
            return self.original.get(body, path, default=default)
        for name in path:
            if not isinstance(body, Mapping) or name not in body:
                return default
            body = body[name]
        return body


def _is_plain(name: Any) -> bool:
    """Return True for a plain field name, without a wildcard or a list index."""
    return isinstance(name, str) and not set(name) & set("*?[") and not any(map(str.isdigit, name))


def share_tokens() -> None:
    """Patch the CDK to take tokens from their owner, in threads that read a stream of this package."""
    from airbyte_cdk.sources.declarative.auth.token_provider import SessionTokenProvider
    from airbyte_cdk.sources.declarative.parsers.model_to_component_factory import ModelToComponentFactory
    from airbyte_cdk.sources.streams.http.requests_native_auth.abstract_oauth import AbstractOauth2Authenticator
    from airbyte_cdk.sources.streams.http.requests_native_auth.oauth import SingleUseRefreshTokenOauth2Authenticator

    for kind in (AbstractOauth2Authenticator, SingleUseRefreshTokenOauth2Authenticator):
        kind.refresh_access_token = _refresh_of_owner(kind.refresh_access_token)
    emit = SingleUseRefreshTokenOauth2Authenticator._emit_control_message

    @wraps(emit)
    def emit_for_others(self: Any) -> None:
        # It prints the configuration with its secrets.
        if current_work() is None:
            emit(self)

    SingleUseRefreshTokenOauth2Authenticator._emit_control_message = emit_for_others
    SessionTokenProvider._refresh = _login_of_owner(SessionTokenProvider._refresh)
    ModelToComponentFactory.create_oauth_authenticator = _registering(
        ModelToComponentFactory.create_oauth_authenticator, _register_oauth
    )
    ModelToComponentFactory.create_session_token_authenticator = _registering(
        ModelToComponentFactory.create_session_token_authenticator, _register_session
    )


def _registering(create: Callable[..., Any], register: Callable[[Any, str, StreamWork], None]) -> Callable[..., Any]:
    """Wrap ``create`` so that it registers each new authenticator before its first use."""

    @wraps(create)
    def created(self: Any, model: Any, config: Mapping[str, Any], **options: Any) -> Any:
        work = current_work()
        # Without hosts the manifest is only inspected, and no request is sent.
        if work is None or work.hosts is None:
            return create(self, model, config, **options)
        # A copy, because an authenticator of single-use tokens writes into the configuration.
        authenticator = create(self, model, copy.deepcopy(config), **options)
        # The key is made of the settings that determine the token: all streams with this authenticator have the same.
        definition = {name: value for name, value in model.dict().items() if name != "request_authentication"}
        plain = _without_parameters(definition)
        uses_parameters = _PARAMETERS.search(json.dumps(plain, default=str)) is not None
        register(authenticator, key_of("manifest", definition if uses_parameters else plain, config), work)
        return authenticator

    return created


def _without_parameters(value: Any) -> Any:
    """Remove the names, parameters and private entries that the CDK adds to the definition from the stream."""
    if isinstance(value, Mapping):
        own = (name for name in value if name not in ("name", "parameters") and not name.startswith("_"))
        return {name: _without_parameters(value[name]) for name in own}
    return [_without_parameters(item) for item in value] if isinstance(value, list) else value


def _register_oauth(authenticator: Any, key: str, work: StreamWork) -> None:
    fetch = type(authenticator).refresh_access_token.__wrapped__
    is_single_use = hasattr(authenticator, "set_refresh_token")
    configured = authenticator.get_refresh_token() if is_single_use else None

    def obtain(refresh_token: str | None) -> AccessToken:
        if not is_single_use:
            value, expiry = fetch(authenticator)
            return AccessToken.lasting(str(value), _seconds_to(expiry))
        sent = refresh_token or configured
        work.redactor.add(sent)
        authenticator.set_refresh_token(sent)
        value, expiry, replaced = fetch(authenticator)
        work.redactor.add(replaced)
        return AccessToken.lasting(str(value), _seconds_to(expiry), replaced if replaced and replaced != sent else None)

    grant = f"{authenticator.get_token_refresh_endpoint()} {configured}" if is_single_use else None
    setattr(authenticator, _CREDENTIAL, shared_credential(key, _working_as_owner(obtain, work), grant))


def _register_session(authenticator: Any, key: str, work: StreamWork) -> None:
    provider = authenticator.token_provider
    provider = getattr(provider, "session_token_provider", provider)
    if provider.expiration_duration is None:
        return
    login = type(provider)._refresh.__wrapped__

    def obtain(refresh_token: str | None) -> AccessToken:
        login(provider)
        return AccessToken.lasting(str(provider._token), _seconds_to(provider._next_expiration_time))

    setattr(provider, _CREDENTIAL, shared_credential(key, _working_as_owner(obtain, work)))


def _working_as_owner(obtain: Callable[[str | None], AccessToken], work: StreamWork) -> Obtain:
    """Wrap ``obtain`` for the owner's thread, with the allowed hosts of the stream and errors of this package.

    :param work: the work that created the authenticator; only the parts that are equal for all readers are kept
    """
    redactor, hosts = work.redactor, work.hosts

    def obtained(context: Any, refresh_token: str | None) -> AccessToken:
        with working_for(redactor, context, hosts) as own:
            try:
                token = obtain(refresh_token)
            except (RfrError, ReadInterrupted):
                raise
            except Exception as error:  # noqa: BLE001 - the CDK's, whose text is redacted
                words = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                problem = f"no token could be obtained: {redacted_message(str(words), redactor)}"
            else:
                redactor.add(token.value)
                return token
        kind = AuthenticationError if own.status in _REJECTED else SourceError
        raise kind(problem, status=own.status, request=own.request)

    return obtained


def _refresh_of_owner(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def refresh(self: Any) -> Any:
        work, credential = current_work(), getattr(self, _CREDENTIAL, None)
        if work is None or credential is None:
            return original(self)
        # Without a token, it counts as expired. One that has not expired was refused by the API.
        refused = None if self.token_has_expired() else digest_of(self.access_token)
        token = work.context.tokens.token(credential, refused, work.context)
        work.has_same_token = token.digest == refused
        work.redactor.add(token.value)
        refreshed = (token.value, _moment(token))
        # The refresh token stays with the owner; the CDK writes this one into a copy of the configuration.
        return (*refreshed, self.get_refresh_token()) if hasattr(self, "set_refresh_token") else refreshed

    return refresh


def _login_of_owner(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def login(self: Any) -> None:
        work, credential = current_work(), getattr(self, _CREDENTIAL, None)
        if work is None or credential is None:
            original(self)
            return
        # The CDK replaces a session's token only once it expired.
        token = work.context.tokens.token(credential, None, work.context)
        work.redactor.add(token.value)
        self._token, self._next_expiration_time = token.value, _moment(token)

    return login


def _seconds_to(moment: Any) -> float:
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_now

    return float((moment - ab_datetime_now()).total_seconds())


def _moment(token: AccessToken) -> Any:
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_now

    return ab_datetime_now() + timedelta(seconds=min(token.seconds_left, _LONGEST_SECONDS))
