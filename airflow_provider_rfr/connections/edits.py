"""The statement's actions applied to the stored definition, and everything that is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from airflow_provider_rfr.connections.definition import EXTRA, TYPE, Definition, as_mapping, parts_of
from airflow_provider_rfr.connections.names import name_of
from airflow_provider_rfr.connections.options import ConnectionType, Option
from airflow_provider_rfr.connections.statement import Action, Parameter, SecretReference, Value
from airflow_provider_rfr.connections.values import fitting
from airflow_provider_rfr.exceptions import AlterationProblem

UNREAD: Final = "***"
"""Stands for a secret that was not read yet; it is never stored."""


@dataclass(slots=True)
class Edits:
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


def edited(
    stored: Definition,
    known: ConnectionType,
    actions: Sequence[Action],
    kept: Mapping[str, SecretReference],
    parameters: Mapping[str, Value],
    *,
    in_use: bool,
) -> Edits:
    """Apply the actions.

    :param kept: where the secrets that are stored came from
    :param parameters: values that are given beside the statement
    :param in_use: whether anything uses the connection
    """
    edits = Edits(stored, secrets=dict(kept))
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


def _check_repetition(edits: Edits, named: Sequence[tuple[str, Action]]) -> None:
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


def _check_overlap(edits: Edits, named: Sequence[tuple[str, Action]]) -> None:
    """An object and a field of it in one statement would mean something else in another order."""
    names = {name for name, _ in named}
    for name, action in named:
        dots = (place for place, sign in enumerate(name) if sign == ".")
        whole = next((name[:dot] for dot in dots if name[:dot] in names), None)
        if whole is not None:
            edits.blame(action, f"is part of {whole}, which the statement changes as well", "change one of them", name)


def _check_exclusive(edits: Edits, known: ConnectionType, named: Sequence[tuple[str, Action]]) -> None:
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


def _alterable(edits: Edits, known: ConnectionType, name: str, action: Action, in_use: bool) -> Option | None:
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
    edits: Edits, known: ConnectionType, option: Option, action: Action, parameters: Mapping[str, Value]
) -> None:
    edits.touched[option.name] = action
    scalar = _scalar_above(edits.candidate, option.name)
    if scalar is not None:
        edits.unreadable.add(option.name)
        edits.blame(action, f"{scalar} is no object, so nothing is below it", f"change {scalar} itself", option.name)
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


def _set(edits: Edits, option: Option, action: Action, value: Value | Mapping[str, object], is_given: bool) -> None:
    if isinstance(value, SecretReference):
        edits.secrets[option.name] = value
        edits.candidate = edits.candidate.having(option.name, UNREAD)
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
