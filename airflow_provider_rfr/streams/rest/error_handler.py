"""Decides about each answer: the first rule that matches, else what its status usually means."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest.actions import Action, Verdict
from airflow_provider_rfr.streams.rest.answer import (
    AnotherFormat,
    Answer,
    NearlyJson,
    NotJson,
    Outcome,
    excerpt,
)
from airflow_provider_rfr.streams.rest.backoff import Backoff, build_backoff
from airflow_provider_rfr.streams.rest.definition_errors import ErrorHandler as Definition
from airflow_provider_rfr.streams.rest.definition_errors import Rule as RuleDefinition
from airflow_provider_rfr.streams.rest.interpolation import PREDICATE_NAMES, Template, compile_condition
from airflow_provider_rfr.streams.rest.paths import Path, lookup, parse_path
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.selector import Selector

log = logging.getLogger(__name__)

AUTHENTICATION_STATUS: Final = frozenset({401, 403})
_FAIL: Final = frozenset({400, 404, 405, 410}) | AUTHENTICATION_STATUS


@dataclass(frozen=True, slots=True)
class Rule:
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
    backoff: tuple[Backoff, ...] = ()

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
    :ivar json_required: a success whose body is no JSON is tried again
    :ivar on_bad_json: what is done about a body that is JSON but for some values: fail, replace or skip
    :ivar error_keys: where an answer with status 2xx may have an error
    :ivar selector: finds the records; None where the answer is no page, but e.g. a token
    """

    redactor: Redactor
    rules: tuple[Rule, ...] = ()
    expired_token_status: frozenset[int] = frozenset()
    max_retries: int = 5
    max_time: float = 600.0
    max_rate_limit_wait: float = 3600.0
    max_skipped_pages: int = 100
    backoff: tuple[Backoff, ...] = field(default=(), repr=False)
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
            action = rule.action if rule is not None else default_action(outcome.status)
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
            key for key in self.error_keys if key != path[: len(key)] and says_something(lookup(answer.json(), key))
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

    def _rule(self, answer: Answer, token: Any | None, variables: Mapping[str, Any]) -> Rule | None:
        for rule in self.rules:
            if rule.action is Action.TOKEN_EXPIRED and token is None:
                continue
            if rule.matches(answer, variables):
                return rule
        return None


def says_something(value: Any) -> bool:
    """Whether there is an error: null, false, 0, an empty text, and containers of only such values are none."""
    if isinstance(value, Mapping):
        return any(says_something(item) for item in value.values())
    if isinstance(value, list):
        return any(says_something(item) for item in value)
    return bool(value.strip() if isinstance(value, str) else value)


def default_action(status: int) -> Action:
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
        backoff=build_backoff(definition.backoff),
        on_bad_json=definition.on_bad_json,
        error_keys=tuple(parse_path(key) for key in definition.error_keys),
        selector=selector,
    )


def _build_rule(rule: RuleDefinition, place: str, config: Mapping[str, Any] | None) -> Rule:
    statuses: Sequence[int | str] = rule.status or ()
    predicate = None
    if rule.predicate is not None:
        predicate = compile_condition(rule.predicate, f"{place}.predicate", PREDICATE_NAMES, config)
    return Rule(
        action=Action(rule.action),
        statuses=None if rule.status is None else frozenset(s for s in statuses if isinstance(s, int)),
        classes=frozenset(int(s[0]) for s in statuses if isinstance(s, str)),
        text=rule.text,
        predicate=predicate,
        message=rule.message,
        backoff=build_backoff(rule.backoff),
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
