"""What is done about each answer: the first rule that matches, else what its status usually means.

Requests are repeated within two budgets: errors count against ``max_retries`` and ``max_time``; a rate limit counts
only against ``max_rate_limit_wait``, because the API is well and asks for patience.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias

from tenacity import RetryCallState, Retrying

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    RateLimitedError,
    SourceDefinitionError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.definition import ErrorHandler as Definition
from airflow_provider_rfr.streams.rest.definition import Rule as RuleDefinition
from airflow_provider_rfr.streams.rest.expressions import (
    PREDICATE_NAMES,
    Path,
    Template,
    compile_condition,
    lookup,
    parse_path,
)
from airflow_provider_rfr.streams.rest.records import Selector
from airflow_provider_rfr.streams.rest.responses import AnotherFormat, Answer, NearlyJson, NotJson, Outcome, excerpt


class Action(str, Enum):
    """What a rule may say."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    FAIL = "FAIL"
    IGNORE = "IGNORE"
    RATE_LIMITED = "RATE_LIMITED"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    END = "END"


_REPEATING: Final = frozenset({Action.RETRY, Action.RATE_LIMITED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one request.

    :ivar reason: for the log and the error, without credentials; empty for a success
    :ivar answer: None if there was none
    :ivar backoff: of the rule that matched; empty for the handler's own
    """

    action: Action
    reason: str = ""
    answer: Answer | None = None
    request: str | None = None
    backoff: tuple[_Backoff, ...] = field(default=(), repr=False)

    @property
    def status(self) -> int | None:
        """HTTP status, None without an answer."""
        return self.answer.status if self.answer is not None else None


_Backoff: TypeAlias = Callable[[int, Mapping[str, str]], "float | None"]
"""Takes the number of failures so far (from 1) and the answer's headers; None if it can't tell."""


def constant(seconds: float) -> _Backoff:
    """Always the same."""
    return lambda failures, headers: seconds


def exponential(initial: float = 1.0, multiplier: float = 2.0, maximum: float = 60.0, jitter: bool = True) -> _Backoff:
    """Grows with each failure; jitter keeps many readers from coming back at the same moment."""
    wait = _growing(initial, multiplier, maximum, jitter=jitter)
    return lambda failures, headers: wait(failures)


def _growing(initial: float, multiplier: float, maximum: float, *, jitter: bool) -> Callable[[int], float]:
    def wait(failures: int) -> float:
        try:
            seconds = min(maximum, initial * multiplier ** (failures - 1))
        except OverflowError:
            seconds = maximum
        return seconds * random.uniform(0.5, 1.0) if jitter else seconds

    return wait


def retry_after(header: str = "Retry-After") -> _Backoff:
    """What the header says: seconds, or an HTTP date by this machine's clock."""

    def wait(failures: int, headers: Mapping[str, str]) -> float | None:
        text = headers.get(header, "").strip()
        if not text:
            return None
        try:
            seconds = float(text)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (TypeError, ValueError, OverflowError):
                return None
        return _at_least_a_little(seconds, failures)

    return wait


def reset_time(header: str, milliseconds: bool = False) -> _Backoff:
    """Until the moment that the header names."""

    def wait(failures: int, headers: Mapping[str, str]) -> float | None:
        try:
            moment = float(headers.get(header, ""))
        except ValueError:
            return None
        return _at_least_a_little((moment / 1000 if milliseconds else moment) - time.time(), failures)

    return wait


_a_little: Final = _growing(0.05, 1.5, 60.0, jitter=False)


def _at_least_a_little(seconds: float, failures: int) -> float | None:
    """A server that says "at once" again and again is believed less and less, so that it isn't hammered."""
    if not isfinite(seconds):
        return None
    return seconds if seconds > 0 else _a_little(failures)


_standard: Final = retry_after()
_otherwise: Final = _growing(1.0, 2.0, 60.0, jitter=True)


def _seconds_to_wait(strategies: Sequence[_Backoff], failures: int, headers: Mapping[str, str]) -> float:
    """By the first strategy that can tell, else exponential; never less than what Retry-After asks for."""
    asked = _standard(failures, headers)
    for strategy in strategies:
        seconds = strategy(failures, headers)
        if seconds is not None:
            return max(seconds, asked or 0.0)
    return asked if asked is not None else _otherwise(failures)


def _build_backoff(definitions: Sequence[model.Backoff]) -> tuple[_Backoff, ...]:
    """The strategies of a definition, in its order."""
    return tuple(_build(item) for item in definitions)


def _build(item: model.Backoff) -> _Backoff:
    if isinstance(item, model.Constant):
        return constant(item.seconds)
    if isinstance(item, model.Exponential):
        return exponential(item.initial, item.multiplier, item.max, item.jitter)
    if isinstance(item, model.RetryAfter):
        return retry_after(item.header)
    return reset_time(item.header, item.unit == "milliseconds")


log = logging.getLogger(__name__)

_AUTHENTICATION_STATUS: Final = frozenset({401, 403})
_FAIL: Final = frozenset({400, 404, 405, 410}) | _AUTHENTICATION_STATUS


@dataclass(frozen=True, slots=True)
class _Rule:
    """All conditions that are set must hold.

    :ivar statuses: exact statuses
    :ivar classes: hundreds, e.g. 5 for 5xx
    """

    action: Action
    statuses: frozenset[int] | None = None
    classes: frozenset[int] = frozenset()
    text: str | None = None
    predicate: Template | None = None
    message: str | None = None
    backoff: tuple[_Backoff, ...] = ()

    def matches(self, answer: Answer, variables: Mapping[str, Any]) -> bool:
        """Whether every condition holds; a predicate that can't be evaluated does not."""
        if self.statuses is not None and not (answer.status in self.statuses or answer.status // 100 in self.classes):
            return False
        if self.text is not None and self.text not in answer.text():
            return False
        return self.predicate is None or _holds(self.predicate, answer, variables)


@dataclass(frozen=True, slots=True)
class ErrorHandler:
    """Rules, budgets and backoff; seconds.

    :ivar expired_token_status: statuses that mean "token expired" where a page token was sent
    :ivar json_required: a success whose body is not JSON is tried again
    :ivar on_bad_json: what is done about a body that is JSON but for some values: fail, replace or skip
    :ivar error_keys: where an answer with status 2xx may have an error
    :ivar selector: finds the records; None where the answer is no page, but e.g. a token
    """

    redactor: Redactor
    rules: tuple[_Rule, ...] = ()
    expired_token_status: frozenset[int] = frozenset()
    max_retries: int = 5
    max_time: float = 600.0
    max_rate_limit_wait: float = 3600.0
    max_skipped_pages: int = 100
    backoff: tuple[_Backoff, ...] = field(default=(), repr=False)
    json_required: bool = True
    on_bad_json: str = "fail"
    error_keys: tuple[Path, ...] = ()
    selector: Selector | None = None
    _noted: set[str] = field(default_factory=set, repr=False)

    def decide(self, outcome: Outcome, token: Any | None, variables: Mapping[str, Any]) -> Verdict:
        """What to do.  SUCCESS only with a body that is JSON, or without a body where none belongs."""
        if not isinstance(outcome, Answer):
            action = Action.FAIL if outcome.permanent else Action.RETRY
            return Verdict(action, outcome.message, None, outcome.request)
        outcome.lenient = self.on_bad_json == "replace"
        rule = self._rule(outcome, token, variables) if self.rules else None
        if rule is None and token is not None and outcome.status in self.expired_token_status:
            action = Action.TOKEN_EXPIRED
        else:
            action = rule.action if rule is not None else _default_action(outcome.status)
        if action is Action.SUCCESS:
            verdict = self._with_json(outcome) if self.json_required else Verdict(action, "", outcome, outcome.request)
            return verdict if rule is not None else self._without_error(verdict, outcome)
        reason = outcome.describe(self.redactor)
        if rule is not None and rule.message:
            reason = f"{self.redactor.text(rule.message)} ({reason})"
        return Verdict(action, reason, outcome, outcome.request, rule.backoff if rule else ())

    def _with_json(self, answer: Answer) -> Verdict:
        action, reason = Action.SUCCESS, ""
        try:
            answer.json()
        except NearlyJson as error:
            action = Action.IGNORE if self.on_bad_json == "skip" else Action.FAIL
            hint = "" if self.on_bad_json == "skip" else "; error_handler.on_bad_json: replace or skip accepts that"
            reason = f"{answer.status} {answer.reason}: {error}{hint}"
        except NotJson as error:
            action = Action.FAIL if isinstance(error, AnotherFormat) else Action.RETRY
            reason = f"{answer.status} {answer.reason}: {error}"
        return Verdict(action, reason, answer, answer.request)

    def _without_error(self, verdict: Verdict, answer: Answer) -> Verdict:
        """The verdict; RETRY for an error object beside no records, which would look like the end."""
        if self.selector is None or verdict.action is not Action.SUCCESS or not answer.has_content:
            return verdict
        path = self.selector.path
        found = [
            key for key in self.error_keys if key != path[: len(key)] and _says_something(lookup(answer.json(), key))
        ]
        # Without a path, the whole answer is the record, and its fields are the record's own.
        if not path or not found:
            return verdict
        names = ", ".join(".".join(key) for key in found)
        said = excerpt(json.dumps([lookup(answer.json(), key) for key in found], ensure_ascii=False), self.redactor)
        if not self.selector.select(answer):
            reason = f"the answer has no records and an error, in {names}: {said}; if it is none, set error_keys"
            return Verdict(Action.RETRY, reason, answer, answer.request)
        if names not in self._noted:
            self._noted.add(names)
            log.warning("%s: records are taken from an answer with an error, in %s: %s", answer.request, names, said)
        return verdict

    def _rule(self, answer: Answer, token: Any | None, variables: Mapping[str, Any]) -> _Rule | None:
        for rule in self.rules:
            if rule.action is Action.TOKEN_EXPIRED and token is None:
                continue
            if rule.matches(answer, variables):
                return rule
        return None


def _says_something(value: Any) -> bool:
    """Whether there is an error: null, false, 0, an empty text, and containers of only such values are none."""
    if isinstance(value, Mapping):
        return any(_says_something(item) for item in value.values())
    if isinstance(value, list):
        return any(_says_something(item) for item in value)
    return bool(value.strip() if isinstance(value, str) else value)


def _default_action(status: int) -> Action:
    """What a status means if no rule says otherwise; an unknown one may pass, so it's tried again."""
    if 200 <= status < 300:
        return Action.SUCCESS
    if status == 429:
        return Action.RATE_LIMITED
    return Action.FAIL if status in _FAIL or 300 <= status < 400 else Action.RETRY


def build_error_handler(
    definition: Definition | None,
    redactor: Redactor,
    *,
    addressable: bool = False,
    place: str = "error_handler",
    config: Mapping[str, Any] | None = None,
    selector: Selector | None = None,
) -> ErrorHandler:
    """The handler of a definition.

    :param selector: finds the records, where the answers are pages
    :param addressable: page numbers don't expire, so 410 doesn't mean that there
    :raises SourceDefinitionError: a predicate is no expression
    """
    if definition is None:
        definition = Definition()
    expired = definition.expired_token_status
    if expired is None:
        expired = [] if addressable else [410]
    return ErrorHandler(
        redactor=redactor,
        rules=tuple(
            _build_rule(rule, f"{place}.rules.{number}", config) for number, rule in enumerate(definition.rules)
        ),
        expired_token_status=frozenset(expired),
        max_retries=definition.max_retries,
        max_time=definition.max_time,
        max_rate_limit_wait=definition.max_rate_limit_wait,
        max_skipped_pages=definition.max_skipped_pages,
        backoff=_build_backoff(definition.backoff),
        on_bad_json=definition.on_bad_json,
        error_keys=tuple(parse_path(key) for key in definition.error_keys),
        selector=selector,
    )


def _build_rule(rule: RuleDefinition, place: str, config: Mapping[str, Any] | None) -> _Rule:
    statuses: Sequence[int | str] = rule.status or ()
    predicate = None
    if rule.predicate is not None:
        predicate = compile_condition(rule.predicate, f"{place}.predicate", PREDICATE_NAMES, config)
    return _Rule(
        action=Action(rule.action),
        statuses=None if rule.status is None else frozenset(s for s in statuses if isinstance(s, int)),
        classes=frozenset(int(s[0]) for s in statuses if isinstance(s, str)),
        text=rule.text,
        predicate=predicate,
        message=rule.message,
        backoff=_build_backoff(rule.backoff),
    )


def _holds(predicate: Template, answer: Answer, variables: Mapping[str, Any]) -> bool:
    try:
        body = answer.json()
    except NotJson:
        body = None
    known = {**variables, "response": body, "headers": answer.headers, "status": answer.status}
    try:
        return bool(predicate(known))
    except SourceDefinitionError:
        return False
    except Exception:  # noqa: BLE001 - an undefined value refuses to be true or false
        return False


def repeat(attempt: Callable[[], Verdict], handler: ErrorHandler, context: ReadContext) -> Verdict:
    """The first verdict that needs no repetition: SUCCESS, IGNORE or END.

    :raises SourceError: FAIL, TOKEN_EXPIRED, or a budget is used up
    :raises ReadInterrupted: the reader was stopped
    """
    verdict = attempt()
    if verdict.action in _REPEATING:
        budget = _Budget(handler, context, verdict)
        verdict = Retrying(
            retry=budget.again,
            stop=budget.used_up,
            wait=budget.wait,
            before_sleep=budget.announce,
            sleep=context.sleep,
            retry_error_callback=budget.give_up,
        )(budget.first_then(attempt))
    if verdict.action in (Action.FAIL, Action.TOKEN_EXPIRED):
        raise _error(verdict, verdict.reason)
    return verdict


class _Budget:
    """What one page's requests have used so far; the policies that tenacity asks."""

    def __init__(self, handler: ErrorHandler, context: ReadContext, first: Verdict) -> None:
        self._handler = handler
        self._context = context
        self._first: Verdict | None = first
        self._began = time.monotonic()
        self._requests = 0
        self._errors = 0
        self._limits = 0
        self._limited = 0.0

    def first_then(self, attempt: Callable[[], Verdict]) -> Callable[[], Verdict]:
        """The verdict that is there already, then new ones."""

        def next_verdict() -> Verdict:
            verdict, self._first = self._first or attempt(), None
            self._requests += 1
            self._errors += verdict.action is Action.RETRY
            self._limits = self._limits + 1 if verdict.action is Action.RATE_LIMITED else 0
            return verdict

        return next_verdict

    def again(self, state: RetryCallState) -> bool:
        """Whether the verdict asks for a repetition; an exception is never repeated."""
        outcome = state.outcome
        return outcome is not None and not outcome.failed and outcome.result().action in _REPEATING

    def wait(self, state: RetryCallState) -> float:
        verdict = _verdict(state)
        failures = self._limits if verdict.action is Action.RATE_LIMITED else self._errors
        headers = verdict.answer.headers if verdict.answer is not None else {}
        return _seconds_to_wait((*verdict.backoff, *self._handler.backoff), failures, headers)

    def used_up(self, state: RetryCallState) -> bool:
        """Asked after ``wait``, so that a wait that can't be afforded isn't begun."""
        verdict = _verdict(state)
        if verdict.action is Action.RATE_LIMITED:
            return self._limited + state.upcoming_sleep > self._handler.max_rate_limit_wait
        spent = time.monotonic() - self._began - self._limited
        return self._errors > self._handler.max_retries or spent + state.upcoming_sleep > self._handler.max_time

    def announce(self, state: RetryCallState) -> None:
        verdict = _verdict(state)
        seconds = state.upcoming_sleep
        log.warning("%s: %s; next try in %.1f s", verdict.request, verdict.reason, seconds)
        if verdict.action is Action.RATE_LIMITED:
            self._limited += seconds
            self._context.limiter.penalize(seconds)

    def give_up(self, state: RetryCallState) -> Any:
        verdict = _verdict(state)
        spent = time.monotonic() - self._began
        if verdict.action is not Action.RATE_LIMITED:
            times = "1 request" if self._requests == 1 else f"{self._requests} requests"
            raise _error(verdict, f"{verdict.reason}; gave up after {times} in {spent:.0f} s")
        raise RateLimitedError(
            f"{verdict.reason}; the API asks to wait {state.upcoming_sleep:.0f} s more, after {spent:.0f} s, "
            f"and max_rate_limit_wait is {self._handler.max_rate_limit_wait:.0f} s",
            retry_after=state.upcoming_sleep,
            status=verdict.status,
            request=verdict.request,
        )


def _verdict(state: RetryCallState) -> Verdict:
    assert state.outcome is not None
    verdict: Verdict = state.outcome.result()
    return verdict


def _error(verdict: Verdict, message: str) -> SourceError:
    if verdict.action is Action.TOKEN_EXPIRED:
        kind: type[SourceError] = TokenExpiredError
        message = f"the page token is no longer accepted: {message}"
    elif verdict.status in _AUTHENTICATION_STATUS:
        kind = AuthenticationError
        message = f"the API does not accept the credentials: {message}"
    else:
        kind = SourceError
    return kind(message, status=verdict.status, request=verdict.request)
