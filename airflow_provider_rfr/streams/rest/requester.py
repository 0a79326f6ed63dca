"""Sends the request of one page and brings back its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urljoin, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.rest.actions import Action, Verdict
from airflow_provider_rfr.streams.rest.answer import Answer, Failure, Outcome
from airflow_provider_rfr.streams.rest.authenticators import Authenticator
from airflow_provider_rfr.streams.rest.error_handler import ErrorHandler
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.interpolation import Template
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.retrying import repeat
from airflow_provider_rfr.streams.rest.transport import Draft, Limits, Transport

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})
_MOST_REDIRECTS: Final = 5


class Injector(Protocol):
    """What a paginator does to a request."""

    def inject(self, token: Any | None, draft: Draft) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestTemplates:
    """The declared request, compiled."""

    method: str
    base_url: str
    path: Template
    query: Template
    headers: Template
    json: Template
    form: Template

    def draft(self, variables: Mapping[str, Any]) -> Draft:
        """A request of its own: nothing in it is shared."""
        form = self.form(variables)
        return Draft(
            method=self.method,
            url=join_url(self.base_url, self.path(variables)),
            query=plain_values(self.query(variables)),
            headers={name: str(value) for name, value in plain_values(self.headers(variables)).items()},
            json=_copy(self.json(variables)),
            form=None if form is None else plain_values(form),
        )


@dataclass(frozen=True, slots=True)
class Requester:
    """Stateless apart from its connections; every HTTP request asks the limiter first."""

    templates: RequestTemplates
    authenticator: Authenticator
    handler: ErrorHandler
    transport: Transport
    limits: Limits
    hosts: HostPolicy
    redactor: Redactor
    variables: Mapping[str, Any] = field(repr=False)

    def fetch(
        self, stream_slice: Mapping[str, Any], token: Any | None, paginator: Injector, context: ReadContext
    ) -> Verdict:
        """SUCCESS, IGNORE or END; see ``repeat`` for what is raised."""
        variables = {**self.variables, "stream_slice": stream_slice, "token": token}
        renewed = False

        def attempt() -> Verdict:
            nonlocal renewed
            draft = self._draft(variables, token, paginator, context)
            verdict = self._decide(draft, token, variables, context)
            if verdict.status == 401 and verdict.action is Action.FAIL and not renewed:
                renewed = True
                if self.authenticator.renew(draft, context):
                    draft = self._draft(variables, token, paginator, context)
                    verdict = self._decide(draft, token, variables, context)
            return verdict

        return repeat(attempt, self.handler, context)

    def _draft(
        self, variables: Mapping[str, Any], token: Any | None, paginator: Injector, context: ReadContext
    ) -> Draft:
        draft = self.templates.draft(variables)
        paginator.inject(token, draft)
        self.authenticator.apply(draft, context)
        return draft

    def _decide(self, draft: Draft, token: Any | None, variables: Mapping[str, Any], context: ReadContext) -> Verdict:
        return self.handler.decide(self._send(draft, context), token, variables)

    def _send(self, draft: Draft, context: ReadContext) -> Outcome:
        for _ in range(_MOST_REDIRECTS + 1):
            context.limiter.acquire()
            outcome = self.transport.send(draft, self.limits)
            if not isinstance(outcome, Answer) or outcome.status not in _REDIRECTS:
                return outcome
            location = outcome.headers.get("Location")
            if not location:
                return outcome
            following = self._redirected(draft, outcome, location, context)
            if isinstance(following, Failure):
                return following
            draft = following
        return Failure(f"more than {_MOST_REDIRECTS} redirects", outcome.request, permanent=True)

    def _redirected(self, draft: Draft, answer: Answer, location: str, context: ReadContext) -> Draft | Failure:
        """The request that a redirect asks for: to another host only if it's listed, and without credentials."""
        base = self.hosts.base
        try:
            target = self.hosts.secured(urljoin(answer.url, location))
            parts = urlsplit(target)
            at_home, allowed = self.hosts.is_base(target), self.hosts.is_allowed(target)
        except ValueError:
            return Failure(f"{answer.status} redirects to what is no address", answer.request, permanent=True)
        if not (at_home or allowed):
            return Failure(
                f"{answer.status} redirects from {base} to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, "
                "which is not followed unless allowed_hosts lists it",
                answer.request,
                permanent=True,
            )
        if draft.method != "GET" and answer.status not in _KEEPS_METHOD:
            return Failure(f"{answer.status} redirects a {draft.method}", answer.request, permanent=True)
        if at_home:
            clean = self.redactor.without_credentials(target)
            again = Draft(draft.method, clean, {}, draft.headers, draft.json, draft.form)
            self.authenticator.apply(again, context)
            return again
        if draft.method != "GET":
            return Failure(f"{answer.status} redirects a {draft.method}", answer.request, permanent=True)
        return Draft("GET", target)


def join_url(base_url: str, path: str) -> str:
    """The path below the base URL; it can't lead to another host."""
    if not path:
        return base_url
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Query or form values as the wire has them: null is left out, booleans are true and false."""
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_plain(item) for item in value if item is not None]
    return value


def _copy(value: Any) -> Any:
    """Containers copied, so that a paginator can put its token into a constant body."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def check_base_url(url: Any, place: str, check_text: Callable[[str], str] = str) -> str:
    """The base URL, if it is one.

    :raises SourceDefinitionError: no http address, or one with a password or a query
    """
    problem = ""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        _ = parts.port
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            problem = f"{check_text(str(url))!r} is no http address"
        elif parts.username or parts.password:
            problem = "a user in the address would be sent in every message; use authenticator: {type: basic}"
        elif parts.query or parts.fragment:
            problem = "has a query; use request.query"
    except ValueError:
        problem = "is no address"
    if problem:
        raise SourceDefinitionError(place, problem, "e.g. https://api.example.com/v1")
    return str(url)
