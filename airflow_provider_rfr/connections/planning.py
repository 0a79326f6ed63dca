"""What a statement would do: the definition as it would be, everything that is wrong with it, and whom it touches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.connections.dependents import Dependent, Verdict, judged
from airflow_provider_rfr.connections.edits import UNREAD, Edits, edited
from airflow_provider_rfr.connections.hashing import ContentHash
from airflow_provider_rfr.connections.options import ConnectionType
from airflow_provider_rfr.connections.references import Find, cycle, readable, references_of
from airflow_provider_rfr.connections.registry import type_named
from airflow_provider_rfr.connections.statement import Action, SecretReference, Value
from airflow_provider_rfr.exceptions import AlterationProblem
from airflow_provider_rfr.secret_names import MASK, without_credentials
from airflow_provider_rfr.store.connections import Use


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate that is sound as far as that can be told without its secrets.

    :ivar secrets: where its secrets are kept, by option
    :ivar asked: options that the statement names; only their secrets are read, what it does not name stays as stored
    """

    stored: Definition
    candidate: Definition
    secrets: Mapping[str, SecretReference]
    problems: tuple[AlterationProblem, ...]
    asked: frozenset[str] = frozenset()

    def complete(self, read: Mapping[str, str]) -> Definition:
        """The candidate with the secrets that were read, by option."""
        made = self.candidate
        for option, value in read.items():
            made = made.having(option, value)
        return made


@dataclass(frozen=True, slots=True)
class Change:
    """One option before and after, as it may be shown."""

    option: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.option}: {_or_unset(self.before)} -> {_or_unset(self.after)}"


@dataclass(frozen=True, slots=True)
class AlterationPlan:
    """What will be done.

    :ivar changes: options whose values differ, masked
    :ivar dependents: what uses the connection, by any number of steps
    """

    stored: Definition = field(repr=False)
    candidate: Definition = field(repr=False)
    old_hash: str = field(repr=False)
    new_hash: str = field(repr=False)
    changes: tuple[Change, ...] = ()
    dependents: tuple[Dependent, ...] = ()

    @property
    def changed_options(self) -> frozenset[str]:
        """Names of what differs."""
        return frozenset(change.option for change in self.changes)

    def incompatible(self) -> list[Dependent]:
        """What can't adopt the change."""
        return [each for each in self.dependents if each.verdict is Verdict.INCOMPATIBLE]


def draft(
    stored: Definition,
    actions: Sequence[Action],
    kept: Mapping[str, SecretReference],
    parameters: Mapping[str, Value],
    find: Find,
    *,
    in_use: bool,
) -> Draft:
    """Edit the stored definition, and check it as if it were made anew. No secret is read for it.

    :param kept: where the secrets that are stored came from
    :param find: the other connections
    """
    known = type_named(stored.conn_type)
    edits = edited(stored, known, actions, kept, parameters, in_use=in_use)
    if not actions:
        edits.problems.append(AlterationProblem("", "nothing is to be changed", "write SET, DROP or RESET"))
    _check_whole(edits, known)
    _check_references(edits, find)
    asked = frozenset(known.full_name(action.option) for action in actions)
    return Draft(stored, edits.candidate, edits.secrets, tuple(edits.problems), asked)


def plan(
    stored: Definition,
    candidate: Definition,
    hashes: ContentHash,
    uses: Sequence[Use],
    find: Find,
    hidden: Collection[str] = (),
) -> AlterationPlan:
    """Compare what is stored with the complete candidate, and judge what uses it.

    :param uses: every task that uses any connection
    :param hidden: options whose values came from where secrets are kept, whatever the options themselves are
    """
    changes = changes_between(stored, candidate, hidden)
    new = hashes.of(candidate)
    options = frozenset(change.option for change in changes)
    found = judged(stored.name, new, options, uses, find)
    return AlterationPlan(stored, candidate, hashes.of(stored), new, changes, found)


def changes_between(stored: Definition, candidate: Definition, hidden: Collection[str] = ()) -> tuple[Change, ...]:
    """Options whose values differ; values of secrets are masked."""
    known = type_named(candidate.conn_type)
    before, after = dict(stored.options()), dict(candidate.options())
    found = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if str(old) != str(new):
            is_hidden = known.is_secret(name) or any(f"{name}.".startswith(f"{each}.") for each in hidden)
            found.append(Change(name, _shown(is_hidden, old), _shown(is_hidden, new)))
    return tuple(found)


def broken_rules(candidate: Definition) -> list[AlterationProblem]:
    """What is wrong across the candidate's fields; looked for again when its secrets are in it."""
    found = [rule(candidate) for rule in type_named(candidate.conn_type).rules]
    told = [(each[0], *each[1].partition("; ")) for each in found if each is not None]
    return [AlterationProblem(option, problem, remedy) for option, problem, _, remedy in told]


def _check_whole(edits: Edits, known: ConnectionType) -> None:
    """What a connection that is made anew would be refused for."""
    blamed = {problem.option for problem in edits.problems} | edits.unreadable
    candidate = edits.candidate
    for option in known.options.values():
        if option.required and candidate.get(option.name) in (None, "") and option.name not in blamed:
            _blame(edits, option.name, "must be set", "give it a value")
    for group in known.one_of:
        if not any(candidate.get(name) not in (None, "") for name in group) and not blamed & set(group):
            _blame(edits, group[0], f"one of {', '.join(group)} must be set", "set one of them")
    for problem in broken_rules(candidate):
        if problem.option not in blamed:
            _blame(edits, problem.option, problem.problem, problem.remedy)


def _check_references(edits: Edits, find: Find) -> None:
    candidate = edits.candidate
    for option, other in references_of(candidate).items():
        if other == candidate.name:
            _blame(edits, option, "refers to the connection itself", "name another connection")
        elif option in edits.touched and readable(find, other) is None:
            _blame(edits, option, f"there is no connection {other!r} that can be read", "make it first")
    if candidate.name not in references_of(candidate).values():
        circle = cycle(candidate, find)
        if circle is not None:
            option = next(name for name, other in references_of(candidate).items() if other == circle[1])
            _blame(edits, option, f"makes a cycle: {' > '.join(circle)}", "name another connection")


def _blame(edits: Edits, option: str, problem: str, remedy: str = "") -> None:
    action = edits.touched.get(option)
    line, column = (action.line, action.column) if action is not None else (0, 0)
    edits.problems.append(AlterationProblem(option, problem, remedy, line, column))


def _shown(is_hidden: bool, value: Any) -> str | None:
    if value is None:
        return None
    return MASK if is_hidden or value == UNREAD else without_credentials(str(value))


def _or_unset(text: str | None) -> str:
    return "(not set)" if text is None else text
