"""Decides how to handle each response: by the first matching rule, else by its status.

Requests are repeated within two budgets: errors count against ``max_retries`` and ``max_time``. A rate limit, or
another error with ``Retry-After``, counts only against ``max_rate_limit_wait``: the API says when it will answer again.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any, Final

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    RateLimitedError,
    SourceDefinitionError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.http.client import retry_after
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._records import Selector
from airflow_provider_rfr.streams.rest._responses import (
    AnotherFormat,
    Answer,
    BadValues,
    Failure,
    UnreadableBody,
    excerpt,
)
from airflow_provider_rfr.streams.rest.expressions import (
    MISSING,
    PREDICATE_NAMES,
    Path,
    Template,
    compile_condition,
    lookup,
    lookup_each,
    parse_path,
)

_log = logging.getLogger(__name__)


class Action(str, Enum):
    """The action that a rule may name."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    FAIL = "FAIL"
    IGNORE = "IGNORE"
    RATE_LIMITED = "RATE_LIMITED"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    END = "END"
    RENEW = "RENEW"


_AUTHENTICATION_STATUS: Final = frozenset({401, 403})
# What a status means if no rule says otherwise; an unknown one may pass, so the request is repeated.
_FAILING: Final = (400, 401, 403, 404, 405, 410, 416, 422)
_BY_STATUS: Final = {429: Action.RATE_LIMITED, **dict.fromkeys(_FAILING, Action.FAIL)}
_BY_CLASS: Final = {2: Action.SUCCESS, 3: Action.FAIL}
# How an answer with status 2xx says that it is an error, besides ``error_keys``.
_FAILED: Final = {"success": (False, "false"), "ok": (False,), "status": ("error", "fail", "failure", "failed")}
_MESSAGES: Final = ("message", "msg", "detail", "reason")
# How a 403 says that it is a rate limit, as GitHub's, and not a refusal of the credentials.
_REMAINING: Final = ("X-RateLimit-Remaining", "RateLimit-Remaining")
_LIMIT: Final = re.compile("rate.?limit|too.?many|throttl|quota|exceeded", re.IGNORECASE)
# A smaller number (before September 2001) is no time since 1970.
_FIRST_RESET: Final = 1e9


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about one response.

    :ivar reason: for the log and the error, without credentials; empty for a success
    :ivar answer: None if there was none
    :ivar backoff: of the rule that matched; it comes before the handler's own
    """

    action: Action
    reason: str = ""
    answer: Answer | None = None
    request: str | None = None
    backoff: Sequence[model.Backoff] = field(default=(), repr=False)

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer is not None else None

    @property
    def refuses_credentials(self) -> bool:
        """Tell whether the request may succeed with newer credentials."""
        return self.action is Action.RENEW or (self.status == 401 and self.action is Action.FAIL)


@dataclass(frozen=True, slots=True)
class ErrorHandler:
    """A definition's rules and budgets, compiled.

    :ivar rules: in their order, each with its predicate
    :ivar expired_token_status: statuses that mean "token expired" where a page token was sent
    :ivar error_keys: where an answer with status 2xx may have an error
    :ivar json_required: a success whose body is not in its format (JSON, where there is no selector) is repeated
    :ivar selector: finds the records; None where the answer is not a page, e.g. a token
    """

    definition: model.ErrorHandler
    redactor: Redactor
    rules: tuple[tuple[model.Rule, Template | None], ...]
    expired_token_status: frozenset[int]
    error_keys: tuple[Path, ...]
    json_required: bool = True
    selector: Selector | None = None
    _logged: set[str] = field(default_factory=set, repr=False)

    def decide(self, outcome: Answer | Failure, token: Any | None, variables: Mapping[str, Any]) -> Verdict:
        """Return the verdict. SUCCESS only with a body in its format, or without a body where none belongs.

        :param token: of the page; None for the first one
        :param variables: the names that predicates may use besides the answer
        """
        if isinstance(outcome, Failure):
            action = Action.FAIL if outcome.permanent else Action.RETRY
            return Verdict(action, outcome.message, None, outcome.request)
        outcome.lenient = self.definition.on_bad_json == "replace"
        if self.selector is not None:
            outcome.read = self.selector.read
        rule = self._rule(outcome, token, variables) if self.rules else None
        if rule is not None:
            action = Action(rule.action)
        elif token is not None and outcome.status in self.expired_token_status:
            action = Action.TOKEN_EXPIRED
        else:
            action = _BY_STATUS.get(outcome.status) or _BY_CLASS.get(outcome.status // 100, Action.RETRY)
            if _asks_to_wait(outcome) and self._may_pass(outcome, action):
                action = Action.RATE_LIMITED
        if action is Action.SUCCESS:
            return self._checked_success(outcome, by_rule=rule is not None)
        reason = self._reason(outcome, rule)
        return Verdict(action, reason, outcome, outcome.request, rule.backoff if rule else ())

    def _reason(self, answer: Answer, rule: model.Rule | None) -> str:
        """Return the answer's status and text, with the message of its rule."""
        reason = answer.describe(self.redactor)
        if rule is not None:
            return f"{self.redactor.text(rule.message)} ({reason})" if rule.message else reason
        # Without a selector it is the answer to a login, for which no rules are declared.
        if self.selector is not None and answer.status == 403 and _asks_to_wait(answer) and not _is_limit(answer):
            reason += "; it has Retry-After: if it is a rate limit, write the rule {status: 403, action: RATE_LIMITED}"
        return reason

    def _rule(self, answer: Answer, token: Any | None, variables: Mapping[str, Any]) -> model.Rule | None:
        """Return the first rule all of whose conditions hold; a predicate that can't be evaluated does not hold."""
        for rule, predicate in self.rules:
            if rule.action == Action.TOKEN_EXPIRED and token is None:
                continue
            if rule.status is not None and not {answer.status, f"{answer.status // 100}xx"} & set(rule.status):
                continue
            if rule.text is not None and rule.text not in answer.text():
                continue
            if predicate is None or _holds(predicate, answer, variables):
                return rule
        return None

    def _checked_success(self, answer: Answer, *, by_rule: bool) -> Verdict:
        success = Verdict(Action.SUCCESS, "", answer, answer.request)
        if not self.json_required:
            return success
        problem: UnreadableBody
        action, hint = Action.RETRY, ""
        try:
            answer.content()
        except BadValues as error:
            action, problem = Action.FAIL, error
            if self.definition.on_bad_json == "skip":
                action = Action.IGNORE
            else:
                hint = "; error_handler.on_bad_json: replace or skip accepts that"
        except AnotherFormat as error:
            action, problem = Action.FAIL, error
        except UnreadableBody as error:
            problem = error
        else:
            # A rule that calls an answer a success has the last word.
            return success if by_rule else self._without_error(success, answer)
        return Verdict(action, f"{answer.status} {answer.reason}: {problem}{hint}", answer, answer.request)

    def _without_error(self, success: Verdict, answer: Answer) -> Verdict:
        """Return the verdict; RETRY for an error object without records, which would look like the last page."""
        # Without a path, the whole answer is the record, and its fields are the record's own.
        if self.selector is None or not self.selector.path or not answer.has_content:
            return success
        path, bodies = self.selector.path, answer.content() if self.selector.by_line else [answer.content()]
        keys = [key for key in self.error_keys if key != path[: len(key)]]
        found = {key: value for body in bodies for key in keys if _is_error(value := lookup(body, key))}
        flagged: dict[Path, Any] = {}
        if self.error_keys and not found:
            # The flag alone says nothing: the message is beside it.
            flagged = {(name,): body for body in bodies for name in _FAILED if _is_flagged(body, name, path)}
        if not found and not flagged:
            return success
        names = ", ".join(".".join(key) for key in found or flagged)
        if not self._has_records(answer):
            shown = excerpt(json.dumps(list((found or flagged).values()), ensure_ascii=False), self.redactor)
            reason = (
                f"the answer has no records and an error, in {names}: {shown}; if it is not an error, set error_keys"
            )
            return Verdict(Action.RETRY, reason, answer, answer.request)
        if found and names not in self._logged:
            self._logged.add(names)
            shown = excerpt(json.dumps(list(found.values()), ensure_ascii=False), self.redactor)
            _log.warning("%s: records are taken from an answer with an error, in %s: %s", answer.request, names, shown)
        return success

    def _may_pass(self, answer: Answer, action: Action) -> bool:
        """Return True if an answer with ``Retry-After`` may pass: maintenance, a report that isn't ready, a limit."""
        if answer.status == 202:
            return not self._is_ready(answer)
        if answer.status == 403:
            return _is_limit(answer)
        return action is Action.RETRY

    def _is_ready(self, answer: Answer) -> bool:
        """Return True if a 202 has records; without a path, an object may describe the report instead."""
        if self.selector is None or (not self.selector.path and _is_object(answer)):
            return False
        return self._has_records(answer)

    def _has_records(self, answer: Answer) -> bool:
        """Return True if the answer has records with fields; a missing path counts as none, so its error counts."""
        try:
            return self.selector is not None and any(self.selector.select(answer))
        except (SourceError, UnreadableBody):
            return False


def _asks_to_wait(answer: Answer) -> bool:
    """Return True if the answer tells when to send the request again."""
    return retry_after(answer.headers.get("Retry-After")) is not None


def _is_limit(answer: Answer) -> bool:
    """Return whether an answer says that too much was asked for."""
    remaining = [answer.headers.get(name, "").strip() for name in _REMAINING]
    return "0" in remaining or _LIMIT.search(answer.text()) is not None


def _is_flagged(body: Any, name: str, path: Path) -> bool:
    """Return whether a field says that the answer failed; a status beside an empty list may be an echoed filter."""
    if lookup(body, (name,)) not in _FAILED[name]:
        return False
    if name != "status" or any(_is_error(lookup(body, (key,))) for key in _MESSAGES):
        return True
    return any(value is None or value is MISSING for value in lookup_each(body, path))


def _is_object(answer: Answer) -> bool:
    """Return whether the body is a single JSON object."""
    try:
        return isinstance(answer.json(), Mapping)
    except UnreadableBody:
        return False


def _is_error(value: Any) -> bool:
    """Tell whether the value of an error key is an error.

    Null, false, 0, "" and containers of only such values are not.
    """
    if isinstance(value, Mapping):
        return any(map(_is_error, value.values()))
    if isinstance(value, list):
        return any(map(_is_error, value))
    return bool(value.strip() if isinstance(value, str) else value)


def _holds(predicate: Template, answer: Answer, variables: Mapping[str, Any]) -> bool:
    known = {**variables, "response": answer.for_conditions(), "headers": answer.headers, "status": answer.status}
    try:
        return bool(predicate(known))
    except SourceDefinitionError:
        return False
    except Exception:  # noqa: BLE001 - an undefined value refuses to be true or false
        return False


def build_error_handler(
    definition: model.ErrorHandler | None,
    redactor: Redactor,
    *,
    addressable: bool = False,
    place: str = "error_handler",
    config: Mapping[str, Any] | None = None,
    selector: Selector | None = None,
    json_required: bool = True,
) -> ErrorHandler:
    """Build the handler of a definition.

    :param selector: finds the records, where the answers are pages
    :param addressable: page numbers don't expire, so 410 doesn't mean that there
    :raises SourceDefinitionError: a predicate is not an expression
    """
    definition = definition or model.ErrorHandler()
    expired = definition.expired_token_status
    if expired is None:
        expired = [] if addressable else [410]
    predicates = [
        rule.predicate and compile_condition(rule.predicate, f"{place}.rules.{n}.predicate", PREDICATE_NAMES, config)
        for n, rule in enumerate(definition.rules)
    ]
    return ErrorHandler(
        definition,
        redactor,
        rules=tuple(zip(definition.rules, (predicate or None for predicate in predicates), strict=True)),
        expired_token_status=frozenset(expired),
        error_keys=tuple(map(parse_path, definition.error_keys)),
        json_required=json_required,
        selector=selector,
    )


class Retries:
    """The retries of the requests for one page, within a handler's budgets."""

    def __init__(self, handler: ErrorHandler, context: ReadContext) -> None:
        self._limits = handler.definition
        self._context = context
        self._began: float | None = None
        self._requests = 0
        self._errors = 0
        self._rate_limits_in_a_row = 0
        self._rate_limited_seconds = 0.0

    def wait_after(self, verdict: Verdict) -> bool:
        """Wait if the request has to be repeated; return True then.

        :raises SourceError: FAIL, TOKEN_EXPIRED, RENEW with new credentials, or a budget is used up
        :raises ReadInterrupted: the reader was stopped
        """
        if verdict.action in (Action.FAIL, Action.TOKEN_EXPIRED, Action.RENEW):
            raise _error(verdict, verdict.reason)
        is_limit = verdict.action is Action.RATE_LIMITED
        if not is_limit and verdict.action is not Action.RETRY:
            return False
        self._began = self._began or time.monotonic()
        self._requests += 1
        self._errors += not is_limit
        self._rate_limits_in_a_row = self._rate_limits_in_a_row + 1 if is_limit else 0
        failures = self._rate_limits_in_a_row if is_limit else self._errors
        headers = verdict.answer.headers if verdict.answer is not None else {}
        seconds = seconds_to_wait((*verdict.backoff, *self._limits.backoff), failures, headers)
        # Before the wait: one that can't be afforded isn't begun.
        self._check_budget(verdict, seconds, time.monotonic() - self._began)
        _log.warning("%s: %s; next try in %.1f s", verdict.request, verdict.reason, seconds)
        if is_limit:
            self._rate_limited_seconds += seconds
            self._context.limiter.penalize(seconds)
        self._context.sleep(seconds)
        return True

    def _check_budget(self, verdict: Verdict, seconds: float, spent: float) -> None:
        if verdict.action is Action.RATE_LIMITED:
            if self._rate_limited_seconds + seconds <= self._limits.max_rate_limit_wait:
                return
            raise RateLimitedError(
                f"{verdict.reason}; the API asks to wait {seconds:.0f} s more, after {spent:.0f} s, "
                f"and max_rate_limit_wait is {self._limits.max_rate_limit_wait:.0f} s",
                retry_after=seconds,
                status=verdict.status,
                request=verdict.request,
            )
        in_time = spent - self._rate_limited_seconds + seconds <= self._limits.max_time
        if self._errors > self._limits.max_retries or not in_time:
            times = "1 request" if self._requests == 1 else f"{self._requests} requests"
            raise _error(verdict, f"{verdict.reason}; gave up after {times} in {spent:.0f} s")


def _error(verdict: Verdict, message: str) -> SourceError:
    kind = SourceError
    if verdict.action is Action.TOKEN_EXPIRED:
        kind, message = TokenExpiredError, f"the page token is no longer accepted: {message}"
    elif verdict.status in _AUTHENTICATION_STATUS or verdict.action is Action.RENEW:
        kind, message = AuthenticationError, f"the API does not accept the credentials: {message}"
    return kind(message, status=verdict.status, request=verdict.request)


def seconds_to_wait(strategies: Sequence[model.Backoff], failures: int, headers: Mapping[str, str]) -> float:
    """Return the seconds by the first strategy that applies, else exponential; at least those of ``Retry-After``.

    :param failures: so far, from 1
    """
    asked = _not_at_once(retry_after(headers.get("Retry-After")), failures)
    for strategy in strategies:
        seconds = _wait_of(strategy, failures, headers)
        if seconds is not None:
            return max(seconds, asked or 0.0)
    return _growing(1.0, 2.0, 60.0, failures) * random.uniform(0.5, 1.0) if asked is None else asked


def _wait_of(strategy: model.Backoff, failures: int, headers: Mapping[str, str]) -> float | None:
    """Return seconds; None if the strategy's header is missing or unreadable."""
    if isinstance(strategy, model.Constant):
        return strategy.seconds
    if isinstance(strategy, model.Exponential):
        seconds = _growing(strategy.initial, strategy.multiplier, strategy.max, failures)
        # Jitter keeps many readers from coming back at the same moment.
        return seconds * random.uniform(0.5, 1.0) if strategy.jitter else seconds
    if isinstance(strategy, model.RetryAfter):
        return _not_at_once(retry_after(headers.get(strategy.header)), failures)
    return _not_at_once(_seconds_until(headers.get(strategy.header, ""), strategy.unit), failures)


def _seconds_until(text: str, unit: str) -> float | None:
    """Return the seconds until the time in a header; None without a time."""
    try:
        number = float(text) / (1000 if unit == "milliseconds" else 1)
    except ValueError:
        return retry_after(text)
    # Many APIs send the seconds that are left, in a header of the same name.
    return number - time.time() if number >= _FIRST_RESET else number


def _not_at_once(asked: float | None, failures: int) -> float | None:
    """Return a wait that grows with the failures for a server that says "at once", so that it isn't hammered."""
    if asked is None or not isfinite(asked):
        return None
    return asked if asked > 0 else _growing(0.05, 1.5, 60.0, failures)


def _growing(initial: float, multiplier: float, longest: float, failures: int) -> float:
    try:
        return min(longest, initial * multiplier ** (failures - 1))
    except OverflowError:
        return longest
