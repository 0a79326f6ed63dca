"""The plan of a statement: the connection as it would be, every problem, and who uses it.

Edits are applied to the stored definition; references to other connections are followed in both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.connections.statement import Action, Parameter, SecretReference, Value, name_of
from airflow_provider_rfr.connections.types import (
    EXTRA,
    TYPE,
    ConnectionType,
    ContentHash,
    Definition,
    Option,
    as_mapping,
    fitting,
    parts_of,
    type_named,
)
from airflow_provider_rfr.exceptions import AlterationProblem, ConfigurationError
from airflow_provider_rfr.secret_names import MASK, without_credentials
from airflow_provider_rfr.store.connections import IDLE, Use

_UNREAD: Final = "***"
"""Stands for a secret that was not read yet; it is never stored."""


@dataclass(slots=True)
class _Edits:
    """What the actions make of a definition.

    :ivar candidate: the definition with them; secrets that are kept elsewhere are not in it yet
    :ivar secrets: where those are kept, by option
    :ivar touched: options that actions name, and those that they take away with them
    :ivar unreadable: options whose new value is wrong, which need no second error
    """

    candidate: Definition
    secrets: dict[str, SecretReference] = field(default_factory=dict)
    problems: list[AlterationProblem] = field(default_factory=list)
    touched: dict[str, Action] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)

    def blame(self, action: Action, problem: str, remedy: str = "", option: str | None = None) -> None:
        """Note what is wrong, with its place."""
        name = action.option if option is None else option
        self.problems.append(AlterationProblem(name, problem, remedy, action.line, action.column))


def _edited(
    stored: Definition,
    known: ConnectionType,
    actions: Sequence[Action],
    kept: Mapping[str, SecretReference],
    parameters: Mapping[str, Value],
    *,
    in_use: bool,
) -> _Edits:
    """Apply the actions.

    :param kept: where the secrets that are stored came from
    :param parameters: values that are given beside the statement
    :param in_use: whether anything uses the connection
    """
    edits = _Edits(stored, secrets=dict(kept))
    renamed = [replace(action, option=known.full_name(action.option)) for action in actions]
    named = [(action.option, action) for action in renamed]
    _check_repetition(edits, named)
    _check_overlap(edits, named)
    _check_exclusive(edits, known, named)
    for name, action in named:
        option = _alterable(edits, known, name, action, in_use)
        if option is not None:
            _apply(edits, known, option, action, parameters)
    return edits


def _check_repetition(edits: _Edits, named: Sequence[tuple[str, Action]]) -> None:
    sets = Counter(name for name, action in named if not action.removes)
    removals = Counter(name for name, action in named if action.removes)
    told: set[str] = set()
    for name, action in named:
        if name in told:
            continue
        if sets[name] and removals[name]:
            edits.blame(action, "cannot both SET and DROP/RESET it", "write it once", name)
        elif sets[name] > 1 or removals[name] > 1:
            edits.blame(action, "is specified more than once", "write it once", name)
        else:
            continue
        told.add(name)


def _check_overlap(edits: _Edits, named: Sequence[tuple[str, Action]]) -> None:
    """An object and a field of it in one statement would mean something else in another order."""
    names = {name for name, _ in named}
    for name, action in named:
        dots = (place for place, sign in enumerate(name) if sign == ".")
        whole = next((name[:dot] for dot in dots if name[:dot] in names), None)
        if whole is not None:
            edits.blame(action, f"is part of {whole}, which the statement changes as well", "change one of them", name)


def _check_exclusive(edits: _Edits, known: ConnectionType, named: Sequence[tuple[str, Action]]) -> None:
    for group in known.exclusive:
        sets = {name: action for name, action in named if name in group and not action.removes}
        removals = {name: action for name, action in named if name in group and action.removes}
        if len(sets) > 1:
            action = list(sets.values())[1]
            edits.blame(
                action, f"only one of {', '.join(sorted(group))} can be set", "set one; it takes the others away"
            )
        elif sets and set(removals) - set(sets):
            action = next(each for name, each in removals.items() if name not in sets)
            options = ", ".join(sorted(group))
            edits.blame(
                action,
                f"cannot both SET and DROP/RESET mutually exclusive options ({options})",
                "setting one takes the others away",
            )


def _alterable(edits: _Edits, known: ConnectionType, name: str, action: Action, in_use: bool) -> Option | None:
    """What is known of the option, or None where that is the end of it."""
    if name in (TYPE, "type"):
        edits.blame(action, "the type of a connection never changes", "make a new connection")
        return None
    option = known.option(name)
    if option is None:
        names = ", ".join(sorted(known.options))
        remedy = f"one of {names}" + (", or extra.<name>" if known.is_open else "")
        edits.blame(action, f"connections of type {edits.candidate.conn_type!r} have no such option", remedy)
    elif option.inalterable and in_use:
        edits.blame(
            action, "can't be altered while the connection is used: progress is kept there", "make a new connection"
        )
    else:
        return option
    return None


def _apply(
    edits: _Edits, known: ConnectionType, option: Option, action: Action, parameters: Mapping[str, Value]
) -> None:
    edits.touched[option.name] = action
    scalar = _scalar_above(edits.candidate, option.name)
    if scalar is not None:
        edits.unreadable.add(option.name)
        problem = f"{scalar} is not an object, so nothing is below it"
        edits.blame(action, problem, f"change {scalar} itself", option.name)
        return
    for name in [each for each in edits.secrets if each.startswith(f"{option.name}.")]:
        # The object that the field was in goes as a whole.
        edits.secrets.pop(name)
    if action.removes:
        edits.secrets.pop(option.name, None)
        edits.candidate = edits.candidate.having(option.name, None)
        return
    value, is_given = action.value, False
    if isinstance(value, Parameter):
        if value.name not in parameters:
            edits.unreadable.add(option.name)
            edits.blame(action, f"the parameter {value} is not given", "give it beside the statement")
            return
        value, is_given = parameters[value.name], True
    for name in next((group for group in known.exclusive if option.name in group), frozenset()) - {option.name}:
        edits.candidate = edits.candidate.having(name, None)
        edits.secrets.pop(name, None)
    _set(edits, option, action, value, is_given)


def _scalar_above(candidate: Definition, name: str) -> str | None:
    """The field above this one that has a value of its own, which would be lost."""
    if not name.startswith(EXTRA):
        return None
    found: object = candidate.extra
    *above, _ = parts_of(name)
    for place, part in enumerate(above, 1):
        found = as_mapping(found).get(part)
        if found not in (None, "", {}) and not as_mapping(found):
            return EXTRA + name_of(above[:place])
    return None


def _set(edits: _Edits, option: Option, action: Action, value: Value | Mapping[str, object], is_given: bool) -> None:
    if isinstance(value, SecretReference):
        edits.secrets[option.name] = value
        edits.candidate = edits.candidate.having(option.name, _UNREAD)
        return
    edits.secrets.pop(option.name, None)
    if option.secret and not is_given:
        edits.unreadable.add(option.name)
        edits.blame(
            action,
            "is secret and stands here in plain text",
            "write SECRET 'backend:key', or :name and give the value beside the statement",
        )
        return
    try:
        made = fitting(option, value)
    except ValueError as error:
        edits.unreadable.add(option.name)
        edits.blame(action, str(error))
        return
    edits.candidate = edits.candidate.having(option.name, made)


_Find = Callable[[str], Definition | None]
"""The connection of that id, as its users see it; None if there is none."""


@dataclass(frozen=True, slots=True)
class _Reached:
    """A connection that something uses.

    :ivar path: ids on the way to it, itself included
    """

    name: str
    path: tuple[str, ...]
    definition: Definition | None


def references_of(definition: Definition) -> dict[str, str]:
    """Ids of other connections, by the option that names them."""
    known = type_named(definition.conn_type)
    found = {}
    for name, value in definition.options():
        option = known.option(name)
        if option is not None and option.is_reference and isinstance(value, str):
            found[name] = value
    return found


def closure(names: Iterable[str], find: _Find) -> dict[str, _Reached]:
    """Those connections and all that they need, by id; a circle is walked once."""
    reached: dict[str, _Reached] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    while todo:
        name, path = todo.pop(0)
        if name in reached:
            continue
        definition = _readable(find, name)
        reached[name] = _Reached(name, path, definition)
        if definition is not None:
            todo += [(other, (*path, other)) for other in references_of(definition).values()]
    return reached


def _readable(find: _Find, name: str) -> Definition | None:
    """One that can't be read is as if it were not there: what is wrong with it concerns who uses it, nobody else."""
    try:
        return find(name)
    except ConfigurationError:
        return None


def cycle(candidate: Definition, find: _Find) -> tuple[str, ...] | None:
    """The way from the candidate back to itself, None if there is none."""
    reached = closure(references_of(candidate).values(), find)
    for each in reached.values():
        if each.name == candidate.name:
            return (candidate.name, *each.path)
    return None


def _users_of(name: str, known: Iterable[str], find: _Find) -> Mapping[str, tuple[str, ...]]:
    """Those of the known connections that need the named one, by any number of steps, and the way to it."""
    found = {}
    for other in known:
        reached = closure([other], find).get(name)
        if reached is not None:
            found[other] = reached.path
    return found


class Verdict(str, Enum):
    """What a change means for a task."""

    UNAFFECTED = "unaffected"
    RESTART = "restart"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Dependent:
    """A task that uses the connection.

    :ivar via: ids on the way from the connection that it names to the one that is altered
    :ivar reason: why it is so
    """

    use: Use
    via: tuple[str, ...]
    verdict: Verdict
    reason: str

    def to_json(self, outcome: str = "") -> dict[str, Any]:
        """As audit and the task's result tell it."""
        task = self.use.task
        told: dict[str, Any] = {
            "kind": self.use.kind,
            "dag_id": task.dag_id,
            "task_id": task.task_id,
            "run_id": task.run_id,
            "map_index": task.map_index,
            "via": list(self.via),
            "verdict": self.verdict.value,
            "reason": self.reason,
        }
        return {**told, "outcome": outcome} if outcome else told


def judged(
    name: str, new_hash: str | None, options: Collection[str], uses: Sequence[Use], find: _Find
) -> tuple[Dependent, ...]:
    """Everything that uses the connection, and what the change means for it.

    :param new_hash: of the content as it would be; None where nothing is to change
    :param options: names of what changes
    :param find: connections as they are stored now
    """
    ways = reaching(name, uses, find)
    return tuple(
        Dependent(use, ways[use.task.consumer], *_verdict(name, new_hash, options, use))
        for use in uses
        if use.task.consumer in ways
    )


def reaching(name: str, uses: Sequence[Use], find: _Find) -> Mapping[str, tuple[str, ...]]:
    """The way to the connection, by consumer; as it was registered, else as the connections now refer to it."""
    known = {each.conn_id for use in uses for each in use.connections}
    ways = _users_of(name, sorted(known), find)
    found: dict[str, tuple[str, ...]] = {}
    for use in uses:
        own = use.of(name)
        if own is not None:
            found[use.task.consumer] = tuple(own.via.split(" > "))
            continue
        way = next((ways[each.conn_id] for each in use.connections if each.conn_id in ways), None)
        if way is not None:
            found[use.task.consumer] = way
    return found


def _verdict(name: str, new_hash: str | None, options: Collection[str], use: Use) -> tuple[Verdict, str]:
    own = use.of(name)
    if new_hash is None:
        return Verdict.UNAFFECTED, _STATES.get(use.state, use.state)
    fixed = sorted(set(options) & set(use.details.get("fixed", {}).get(name, ())))
    if fixed:
        return Verdict.INCOMPATIBLE, f"it can't adopt another {', '.join(fixed)}"
    if own is not None and own.running == new_hash and own.wanted in (None, new_hash):
        return Verdict.UNAFFECTED, "it has these settings already"
    if use.state == IDLE:
        return Verdict.UNAFFECTED, "it does not run; its next run takes the new settings"
    return Verdict.RESTART, _STATES.get(use.state, use.state)


_STATES = {
    "running": "it runs",
    "deferred": "it runs in a cluster",
    "stalled": "it failed",
    "idle": "it does not run",
}


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
    find: _Find,
    *,
    in_use: bool,
) -> Draft:
    """Edit the stored definition, and check it as if it were made anew. No secret is read for it.

    :param kept: where the secrets that are stored came from
    :param find: the other connections
    """
    known = type_named(stored.conn_type)
    edits = _edited(stored, known, actions, kept, parameters, in_use=in_use)
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
    find: _Find,
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


def _check_whole(edits: _Edits, known: ConnectionType) -> None:
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


def _check_references(edits: _Edits, find: _Find) -> None:
    candidate = edits.candidate
    for option, other in references_of(candidate).items():
        if other == candidate.name:
            _blame(edits, option, "refers to the connection itself", "name another connection")
        elif option in edits.touched and _readable(find, other) is None:
            _blame(edits, option, f"there is no connection {other!r} that can be read", "make it first")
    if candidate.name not in references_of(candidate).values():
        circle = cycle(candidate, find)
        if circle is not None:
            option = next(name for name, other in references_of(candidate).items() if other == circle[1])
            _blame(edits, option, f"makes a cycle: {' > '.join(circle)}", "name another connection")


def _blame(edits: _Edits, option: str, problem: str, remedy: str = "") -> None:
    action = edits.touched.get(option)
    line, column = (action.line, action.column) if action is not None else (0, 0)
    edits.problems.append(AlterationProblem(option, problem, remedy, line, column))


def _shown(is_hidden: bool, value: Any) -> str | None:
    if value is None:
        return None
    return MASK if is_hidden or value == _UNREAD else without_credentials(str(value))


def _or_unset(text: str | None) -> str:
    return "(not set)" if text is None else text
