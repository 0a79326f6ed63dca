"""Tokens of manifests: the CDK's authenticators get them from the owner of the credential, like other streams.

Like ``_cdk``, this module uses private names of the CDK. A session token without ``expiration_duration`` is obtained
for each request, as the CDK documents. Authenticators of ``components.py`` obtain their tokens in each process.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, Final

from airflow_provider_rfr.exceptions import AuthenticationError, ReadInterrupted, RfrError, SourceError
from airflow_provider_rfr.streams.airbyte._guard import StreamWork, current_work, redacted_message, working_for
from airflow_provider_rfr.streams.tokens import AccessToken, Obtain, digest_of, key_of, shared_credential

_CREDENTIAL: Final = "_rfr_credential"
_LONGEST_SECONDS: Final = 365 * 86400.0
# In a template; "options" is the CDK's older name.
_PARAMETERS: Final = re.compile(r"\{[{%][^}]*\b(?:parameters|options)\b")
_REJECTED: Final = frozenset({400, 401, 403})


def share_tokens() -> None:
    """Patch the CDK to take tokens from their owner, in threads that read a stream of this package."""
    from airbyte_cdk.sources.declarative.auth.token_provider import SessionTokenProvider
    from airbyte_cdk.sources.declarative.parsers.model_to_component_factory import ModelToComponentFactory
    from airbyte_cdk.sources.streams.http.requests_native_auth.abstract_oauth import AbstractOauth2Authenticator
    from airbyte_cdk.sources.streams.http.requests_native_auth.oauth import SingleUseRefreshTokenOauth2Authenticator

    for kind in (AbstractOauth2Authenticator, SingleUseRefreshTokenOauth2Authenticator):
        kind.refresh_access_token = _refresh_of_owner(kind.refresh_access_token)
    emit = SingleUseRefreshTokenOauth2Authenticator._emit_control_message
    SingleUseRefreshTokenOauth2Authenticator._emit_control_message = _unless_working(emit)
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
        register(authenticator, _key(model, config), work)
        return authenticator

    return created


def _key(model: Any, config: Mapping[str, Any]) -> str:
    """Return a key for the settings that determine the token; equal for all streams with this authenticator."""
    definition = {name: value for name, value in model.dict().items() if name != "request_authentication"}
    plain = _without_parameters(definition)
    uses_parameters = _PARAMETERS.search(json.dumps(plain, default=str)) is not None
    return key_of("manifest", definition if uses_parameters else plain, config)


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

    :param work: of the authenticator's creation; only the parts that are equal for all readers are kept
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
        try:
            refused = self.access_token
        except ValueError:
            # No token was obtained yet.
            refused = None
        token = work.context.tokens.token(credential, digest_of(refused) if refused else None, work.context)
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
        token = work.context.tokens.token(credential, digest_of(self._token) if self._token else None, work.context)
        work.redactor.add(token.value)
        self._token, self._next_expiration_time = token.value, _moment(token)

    return login


def _unless_working(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap the function that prints the configuration with its secrets: do nothing in threads that read a stream."""

    @wraps(original)
    def emit(self: Any) -> None:
        if current_work() is None:
            original(self)

    return emit


def _seconds_to(moment: Any) -> float:
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_now

    return float((moment - ab_datetime_now()).total_seconds())


def _moment(token: AccessToken) -> Any:
    from airbyte_cdk.utils.datetime_helpers import ab_datetime_now

    return ab_datetime_now() + timedelta(seconds=min(token.seconds_left, _LONGEST_SECONDS))
