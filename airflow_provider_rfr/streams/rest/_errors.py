"""The error handler, which decides about each response by the first matching rule, else by its status.

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
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, PrivateAttr, field_validator, model_validator

from airflow_provider_rfr.exceptions import AuthenticationError, RateLimitedError, SourceError, TokenExpiredError
from airflow_provider_rfr.http.client import retry_after
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.repeats import kind_of_status
from airflow_provider_rfr.streams.rest._records import Records
from airflow_provider_rfr.streams.rest._responses import (
    LONGEST_EXCERPT,
    AnotherFormat,
    BadValues,
    RequestFailure,
    Response,
    UnreadableBody,
)
from airflow_provider_rfr.streams.rest.templates import (
    MISSING,
    PREDICATE_NAMES,
    Part,
    Path,
    Scope,
    SourceTemplate,
    Templated,
    compile_condition,
    lookup,
    lookup_each,
    parse_path,
)
from airflow_provider_rfr.text import one_line

_log = logging.getLogger(__name__)


ResponseAction: TypeAlias = Literal[
    "SUCCESS", "RETRY", "FAIL", "IGNORE", "RATE_LIMITED", "TOKEN_EXPIRED", "END", "RENEW"
]
"""The action that a rule may name."""

_AUTHENTICATION_STATUS: Final = frozenset({401, 403})
_FAILING: Final = frozenset({400, 401, 403, 404, 405, 410, 416, 422})
# How an answer with status 2xx says that it is an error, besides ``error_keys``.
_FAILED: Final = {"success": (False, "false"), "ok": (False,), "status": ("error", "fail", "failure", "failed")}
_MESSAGES: Final = ("message", "msg", "detail", "reason")
# How a 403 says that it is a rate limit, as GitHub's, and not a refusal of the credentials.
_REMAINING: Final = ("X-RateLimit-Remaining", "RateLimit-Remaining")
_LIMIT: Final = re.compile("rate.?limit|too.?many|throttl|quota|exceeded", re.IGNORECASE)
# A smaller number (before September 2001) is no time since 1970.
_FIRST_RESET: Final = 1e9


@dataclass(frozen=True, slots=True)
class ResponseVerdict:
    """The decision about one response.

    :ivar reason: for the log and the error, without credentials; empty for a success
    :ivar answer: None if there was none
    :ivar backoff: backoff of the rule that matched; it comes before the handler's own
    :ivar failure: kind of the error where there is no answer
    """

    action: ResponseAction
    reason: str = ""
    answer: Response | None = None
    request: str | None = None
    backoff: Sequence[Backoff] = field(default=(), repr=False)
    failure: str = "other"

    @property
    def kind(self) -> str:
        """Return the kind of the error in the counts of retried errors."""
        return self.failure if self.answer is None else kind_of_status(self.answer.status)

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer is not None else None

    @property
    def refuses_credentials(self) -> bool:
        """Tell whether the request may succeed with newer credentials."""
        return self.action == "RENEW" or (self.status == 401 and self.action == "FAIL")


class ConstantBackoff(Part):
    """A backoff that always waits the same time.

    :ivar seconds: seconds to wait
    """

    type: Literal["constant"]
    seconds: float = Field(gt=0)

    def wait(self, failures: int, headers: Mapping[str, str]) -> float:
        return self.seconds


class ExponentialBackoff(Part):
    """A backoff that grows with each failure, with jitter: between half of the wait and all of it.

    :ivar initial: seconds to wait after the first failure
    :ivar multiplier: factor by which each failure extends the wait
    :ivar max: longest wait in seconds
    :ivar jitter: wait a random time between half of the wait and all of it
    """

    type: Literal["exponential"]
    initial: float = Field(default=1, gt=0)
    multiplier: float = Field(default=2, ge=1)
    max: float = Field(default=60, gt=0)
    jitter: bool = True

    def wait(self, failures: int, headers: Mapping[str, str]) -> float:
        seconds = _growing(self.initial, self.multiplier, self.max, failures)
        # Jitter keeps many readers from coming back at the same moment.
        return seconds * random.uniform(0.5, 1.0) if self.jitter else seconds


class RetryAfterBackoff(Part):
    """A wait that a header tells: seconds, an HTTP date or a time in ISO 8601.

    :ivar header: name of the header
    """

    type: Literal["retry_after"]
    header: str = "Retry-After"

    def wait(self, failures: int, headers: Mapping[str, str]) -> float | None:
        """Return the header's seconds; None if it is missing or unreadable."""
        return _not_at_once(retry_after(headers.get(self.header)), failures)


class ResetTimeBackoff(Part):
    """A wait until the time in a header: seconds or milliseconds since 1970, an HTTP date or a time in ISO 8601.

    :ivar header: name of the header
    :ivar unit: unit of a number in it. A number below 1,000,000,000 is the seconds that are left
    """

    type: Literal["reset_time"]
    header: str
    unit: Literal["seconds", "milliseconds"] = "seconds"

    def wait(self, failures: int, headers: Mapping[str, str]) -> float | None:
        """Return the seconds until that time; None if the header is missing or unreadable."""
        text = headers.get(self.header, "")
        try:
            seconds: float | None = float(text) / (1000 if self.unit == "milliseconds" else 1)
        except ValueError:
            seconds = retry_after(text)
        else:
            # Many APIs send the seconds that are left, in a header of the same name.
            if seconds is not None and seconds >= _FIRST_RESET:
                seconds -= time.time()
        return _not_at_once(seconds, failures)


Backoff = Annotated[
    ConstantBackoff | ExponentialBackoff | RetryAfterBackoff | ResetTimeBackoff, Field(discriminator="type")
]


class ErrorRule(Part):
    """A rule: its action applies if all conditions that it names hold.

    :ivar action: what to do: take the body as a page (``SUCCESS``), request it again (``RETRY``), again without
        counting a retry (``RATE_LIMITED``), fail the partition (``FAIL``), leave the page out (``IGNORE``), start the
        partition again (``TOKEN_EXPIRED``), end it (``END``), or obtain another token (``RENEW``)
    :ivar status: HTTP status: numbers, and classes such as ``5xx``
    :ivar text: text that the body contains
    :ivar predicate: expression over the answer that is true; one that can't be evaluated does not match
    :ivar message: text for the error and the log, before the answer's status
    :ivar backoff: waits of this rule; they come before the handler's own
    """

    action: ResponseAction
    status: list[int | str] | None = None
    text: str | None = None
    predicate: Annotated[str | None, Templated(PREDICATE_NAMES, compile_condition)] = None
    message: str | None = None
    backoff: list[Backoff] = Field(default_factory=list)

    _predicate: SourceTemplate | None = PrivateAttr(default=None)

    @field_validator("status", mode="before", json_schema_input_type=int | str | list[int | str] | None)
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, (int, str)) and not isinstance(value, bool) else value

    @field_validator("status", mode="after")
    @classmethod
    def _are_statuses(cls, value: list[int | str] | None) -> list[int | str] | None:
        for item in value or ():
            is_status = item in ("1xx", "2xx", "3xx", "4xx", "5xx") if isinstance(item, str) else 100 <= item <= 599
            if not is_status:
                raise ValueError(f"{item!r} is not a status; write a number such as 404, or a class such as 5xx")
        return value

    @model_validator(mode="after")
    def _has_a_condition(self) -> ErrorRule:
        if self.status is None and self.text is None and self.predicate is None:
            raise ValueError("a rule has a condition: status, text or predicate")
        return self

    def bind(self, scope: Scope) -> ErrorRule:
        """Return the rule with its predicate compiled."""
        bound = self.model_copy()
        if self.predicate:
            bound._predicate = scope.compile(self.predicate, "predicate", PREDICATE_NAMES, compile_condition)
        return bound

    def matches(self, response: Response, token: Any | None, variables: Mapping[str, Any]) -> bool:
        """Tell whether all conditions hold; a predicate that can't be evaluated does not hold."""
        if self.action == "TOKEN_EXPIRED" and token is None:
            return False
        if self.status is not None and not {response.status, f"{response.status // 100}xx"} & set(self.status):
            return False
        if self.text is not None and self.text not in response.text():
            return False
        if self._predicate is None:
            return True
        content = response.for_conditions()
        names = {**variables, "response": content, "headers": response.headers, "status": response.status}
        try:
            return bool(self._predicate(names))
        except Exception:  # noqa: BLE001 - an undefined value refuses to be true or false
            return False


class ErrorHandler(Part):
    """The handling of responses: rules, limits and backoff; times in seconds.

    :ivar rules: rules for answers. The first one whose conditions all hold decides; without one, the status does
    :ivar expired_token_status: statuses that mean an expired page token; the partition then starts again. Default: 410,
        where page tokens can't be computed
    :ivar max_retries: how often one request is repeated
    :ivar max_time: seconds for one page with all its retries, without waits for rate limits
    :ivar max_rate_limit_wait: seconds that one page may wait for rate limits
    :ivar max_skipped_pages: pages in a row that may be left out by ``IGNORE``
    :ivar on_bad_json: what to do about a body that is JSON except for some values: ``fail``, ``replace`` the values by
        null or U+FFFD, or ``skip`` the page
    :ivar error_keys: paths of the body where an answer with status 2xx may have an error; an empty list turns that
        check off
    :ivar backoff: waits before a retry. The first one that applies is used, then ``Retry-After``, then ``exponential``
    """

    rules: list[ErrorRule] = Field(default_factory=list)
    expired_token_status: list[int] | None = None
    max_retries: int = Field(default=5, ge=0)
    max_time: float = Field(default=600, gt=0)
    max_rate_limit_wait: float = Field(default=3600, ge=0)
    max_skipped_pages: int = Field(default=100, ge=1)
    on_bad_json: Literal["fail", "replace", "skip"] = "fail"
    error_keys: list[str] = Field(default_factory=lambda: ["error", "errors"])
    backoff: list[Backoff] = Field(default_factory=list)

    _redactor: Redactor = PrivateAttr()
    _error_paths: tuple[Path, ...] = PrivateAttr(default=())
    # Statuses that mean "token expired" where a page token was sent.
    _expired: frozenset[int] = PrivateAttr(default=frozenset())
    # Finds the records; None where the response is not a page, e.g. a token.
    _records: Records | None = PrivateAttr(default=None)
    _json_required: bool = PrivateAttr(default=True)
    _logged: set[str] = PrivateAttr(default_factory=set)

    def bind(
        self,
        scope: Scope,
        redactor: Redactor,
        *,
        addressable: bool = False,
        records: Records | None = None,
        json_required: bool = True,
    ) -> ErrorHandler:
        """Return the handler with its rules compiled.

        :param records: where the responses are pages
        :param addressable: page numbers don't expire, so 410 doesn't mean that there
        :param json_required: repeat a success whose body is not in its format (JSON, where there are no records)
        """
        rules = [rule.bind(scope.at(f"rules.{number}")) for number, rule in enumerate(self.rules)]
        bound = self.model_copy(update={"rules": rules})
        expired = self.expired_token_status
        if expired is None:
            expired = [] if addressable else [410]
        bound._redactor = redactor
        bound._error_paths = tuple(map(parse_path, self.error_keys))
        bound._expired = frozenset(expired)
        bound._records = records
        bound._json_required = json_required
        bound._logged = set()
        return bound

    def refuse_renewal(self, scope: Scope) -> None:
        """Refuse rules that renew credentials.

        :raises SourceDefinitionError: a rule renews credentials, and the authenticator has none that it could renew
        """
        for number, rule in enumerate(self.rules):
            if rule.action == "RENEW":
                raise scope.error(
                    f"rules.{number}.action",
                    "RENEW needs credentials that can be obtained again, and the stream's authenticator has none",
                    "use an authenticator of type oauth2 or session_token, or the action FAIL",
                )

    def decide(
        self, outcome: Response | RequestFailure, token: Any | None, variables: Mapping[str, Any]
    ) -> ResponseVerdict:
        """Return the verdict on an outcome. A success has a body in its format, or none where none belongs.

        :param token: token of the page; None for the first one
        :param variables: the names that predicates may use besides the answer
        """
        action: ResponseAction
        if isinstance(outcome, RequestFailure):
            action = "FAIL" if outcome.permanent else "RETRY"
            return ResponseVerdict(action, outcome.message, None, outcome.request, failure=outcome.kind)
        outcome.lenient = self.on_bad_json == "replace"
        if self._records is not None:
            outcome.read = self._records.reader
        rule = next((rule for rule in self.rules if rule.matches(outcome, token, variables)), None)
        if rule is not None:
            action = rule.action
        elif token is not None and outcome.status in self._expired:
            action = "TOKEN_EXPIRED"
        else:
            action = _action_of(outcome.status)
            # An API that says when to come back will answer then, so this does not count as a retry.
            if _asks_to_wait(outcome) and self._may_pass(outcome, action):
                action = "RATE_LIMITED"
        if action == "SUCCESS":
            return self._checked_success(outcome, by_rule=rule is not None)
        reason = self._reason(outcome, rule)
        return ResponseVerdict(action, reason, outcome, outcome.request, rule.backoff if rule else ())

    def _reason(self, answer: Response, rule: ErrorRule | None) -> str:
        """Return the answer's status and text, with the message of its rule."""
        reason = answer.describe(self._redactor)
        if rule is not None:
            return f"{self._redactor.text(rule.message)} ({reason})" if rule.message else reason
        # A handler without records is that of a login, for which no rules are declared.
        if self._records is not None and answer.status == 403 and _asks_to_wait(answer) and not _is_limit(answer):
            reason += "; it has Retry-After: if it is a rate limit, write the rule {status: 403, action: RATE_LIMITED}"
        return reason

    def _checked_success(self, answer: Response, *, by_rule: bool) -> ResponseVerdict:
        success = ResponseVerdict("SUCCESS", "", answer, answer.request)
        if not self._json_required:
            return success
        problem: UnreadableBody
        action: ResponseAction = "RETRY"
        hint = ""
        try:
            answer.content()
        except BadValues as error:
            action, problem = "FAIL", error
            if self.on_bad_json == "skip":
                action = "IGNORE"
            else:
                hint = "; error_handler.on_bad_json: replace or skip accepts that"
        except AnotherFormat as error:
            action, problem = "FAIL", error
        except UnreadableBody as error:
            problem = error
        else:
            # A rule that calls an answer a success has the last word.
            return success if by_rule else self._without_error(success, answer)
        return ResponseVerdict(action, f"{answer.status} {answer.reason}: {problem}{hint}", answer, answer.request)

    def _without_error(self, success: ResponseVerdict, answer: Response) -> ResponseVerdict:
        """Return the verdict; RETRY for an error object without records, which would look like the last page."""
        # Without a path, the whole answer is the record, and its fields are the record's own.
        if self._records is None or not self._records.path or not answer.has_content:
            return success
        path, bodies = self._records.place, answer.content() if self._records.by_line else [answer.content()]
        keys = [key for key in self._error_paths if key != path[: len(key)]]
        errors = {key: value for body in bodies for key in keys if _is_error(value := lookup(body, key))}
        flagged: dict[Path, Any] = {}
        if self._error_paths and not errors:
            # The whole body is shown, because the flag alone says nothing: the message is beside it.
            flagged = {(name,): body for body in bodies for name in _FAILED if _is_flagged(body, name, path)}
        if not errors and not flagged:
            return success
        names = ", ".join(".".join(key) for key in errors or flagged)
        text = json.dumps(list((errors or flagged).values()), ensure_ascii=False)
        shown = one_line(self._redactor.text(text), LONGEST_EXCERPT)
        if not self._has_records(answer):
            reason = (
                f"the answer has no records and an error, in {names}: {shown}; if it is not an error, set error_keys"
            )
            return ResponseVerdict("RETRY", reason, answer, answer.request)
        if errors and names not in self._logged:
            self._logged.add(names)
            _log.warning("%s: records are taken from an answer with an error, in %s: %s", answer.request, names, shown)
        return success

    def _may_pass(self, answer: Response, action: ResponseAction) -> bool:
        """Return True if an answer with ``Retry-After`` may pass: maintenance, a report that isn't ready, a limit."""
        if answer.status == 403:
            return _is_limit(answer)
        if answer.status != 202:
            return action == "RETRY"
        # Without a path, an object may describe the report instead of being a record.
        if self._records is not None and not self._records.path:
            with suppress(UnreadableBody):
                if isinstance(answer.json(), Mapping):
                    return True
        return not self._has_records(answer)

    def _has_records(self, answer: Response) -> bool:
        """Return True if the answer has records with fields; a missing path counts as none, so its error counts."""
        try:
            return self._records is not None and any(self._records.select(answer))
        except (SourceError, UnreadableBody):
            return False


def _action_of(status: int) -> ResponseAction:
    """Return the action for a status if no rule says otherwise; an unknown one may pass, so the request is repeated."""
    if status == 429:
        return "RATE_LIMITED"
    if status in _FAILING or status // 100 == 3:
        return "FAIL"
    return "SUCCESS" if status // 100 == 2 else "RETRY"


def _asks_to_wait(answer: Response) -> bool:
    """Return True if the answer tells when to send the request again."""
    return retry_after(answer.headers.get("Retry-After")) is not None


def _is_limit(answer: Response) -> bool:
    """Tell whether an answer says that a rate limit was exceeded."""
    remaining = [answer.headers.get(name, "").strip() for name in _REMAINING]
    return "0" in remaining or _LIMIT.search(answer.text()) is not None


def _is_flagged(body: Any, name: str, path: Path) -> bool:
    """Tell whether a field says that the answer is an error; a status beside an empty list may be an echoed filter."""
    if lookup(body, (name,)) not in _FAILED[name]:
        return False
    if name != "status" or any(_is_error(lookup(body, (key,))) for key in _MESSAGES):
        return True
    return any(value is None or value is MISSING for value in lookup_each(body, path))


def _is_error(value: Any) -> bool:
    """Tell whether the value of an error key is an error.

    Null, false, 0, "" and containers of only such values are not.
    """
    if isinstance(value, Mapping):
        return any(map(_is_error, value.values()))
    if isinstance(value, list):
        return any(map(_is_error, value))
    return bool(value.strip() if isinstance(value, str) else value)


class Retries:
    """The retries of the requests for one page, within a handler's budgets."""

    def __init__(self, handler: ErrorHandler, context: ReadContext) -> None:
        self._limits = handler
        self._context = context
        self._began: float | None = None
        self._requests = 0
        self._errors = 0
        self._rate_limits_in_a_row = 0
        self._rate_limited_seconds = 0.0

    def wait_after(self, verdict: ResponseVerdict) -> bool:
        """Wait if the request has to be repeated; return True then.

        :raises SourceError: the verdict is FAIL, TOKEN_EXPIRED, or RENEW of new credentials, or a budget is used up
        :raises ReadInterrupted: the reader was stopped
        """
        if verdict.action in ("FAIL", "TOKEN_EXPIRED", "RENEW"):
            raise _error(verdict, verdict.reason)
        is_limit = verdict.action == "RATE_LIMITED"
        if not is_limit and verdict.action != "RETRY":
            return False
        # Counted from the first failure on: a page that takes long to answer has its own time limit.
        self._began = self._began or time.monotonic()
        self._requests += 1
        self._errors += not is_limit
        self._rate_limits_in_a_row = self._rate_limits_in_a_row + 1 if is_limit else 0
        failures = self._rate_limits_in_a_row if is_limit else self._errors
        headers = verdict.answer.headers if verdict.answer is not None else {}
        seconds = seconds_to_wait((*verdict.backoff, *self._limits.backoff), failures, headers)
        # Checked before the wait: one that exceeds the budget isn't begun.
        self._check_budget(verdict, seconds, time.monotonic() - self._began)
        _log.warning("%s: %s; next try in %.1f s", verdict.request, verdict.reason, seconds)
        if is_limit:
            self._rate_limited_seconds += seconds
            self._context.limiter.penalize(seconds)
        self._context.retried.note(verdict.kind)
        self._context.sleep(seconds)
        return True

    def _check_budget(self, verdict: ResponseVerdict, seconds: float, spent: float) -> None:
        if verdict.action == "RATE_LIMITED":
            if self._rate_limited_seconds + seconds <= self._limits.max_rate_limit_wait:
                return
            raise RateLimitedError(
                f"{verdict.reason}; the API asks to wait {seconds:.0f} s more, after {spent:.0f} s, "
                f"and max_rate_limit_wait is {self._limits.max_rate_limit_wait:.0f} s",
                retry_after=seconds,
                status=verdict.status,
                request=verdict.request,
            )
        # Waits for a rate limit have a budget of their own.
        in_time = spent - self._rate_limited_seconds + seconds <= self._limits.max_time
        if self._errors > self._limits.max_retries or not in_time:
            times = "1 request" if self._requests == 1 else f"{self._requests} requests"
            raise _error(verdict, f"{verdict.reason}; gave up after {times} in {spent:.0f} s")


def _error(verdict: ResponseVerdict, message: str) -> SourceError:
    kind = SourceError
    if verdict.action == "TOKEN_EXPIRED":
        kind, message = TokenExpiredError, f"the page token is no longer accepted: {message}"
    elif verdict.status in _AUTHENTICATION_STATUS or verdict.action == "RENEW":
        kind, message = AuthenticationError, f"the API does not accept the credentials: {message}"
    return kind(message, status=verdict.status, request=verdict.request)


def seconds_to_wait(strategies: Sequence[Backoff], failures: int, headers: Mapping[str, str]) -> float:
    """Return the wait of the first strategy that applies, at least that of ``Retry-After``.

    Without a strategy it is that of ``Retry-After``, else an exponential one.

    :param failures: number of failures so far, from 1
    """
    asked = _not_at_once(retry_after(headers.get("Retry-After")), failures)
    for strategy in strategies:
        seconds = strategy.wait(failures, headers)
        if seconds is not None:
            return max(seconds, asked or 0.0)
    return _growing(1.0, 2.0, 60.0, failures) * random.uniform(0.5, 1.0) if asked is None else asked


def _not_at_once(asked: float | None, failures: int) -> float | None:
    """Return the wait that a server asks for; if that is 0, one that grows with the failures, to spare the server."""
    if asked is None or not isfinite(asked):
        return None
    return asked if asked > 0 else _growing(0.05, 1.5, 60.0, failures)


def _growing(initial: float, multiplier: float, longest: float, failures: int) -> float:
    try:
        return min(longest, initial * multiplier ** (failures - 1))
    except OverflowError:
        return longest
