"""The draft of a connection: its definition after a statement's actions, and all problems in it. No secret is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from airflow_provider_rfr.connections.dependents import Find, cycle, find_readable, references_of
from airflow_provider_rfr.connections.statement import Action, Parameter, SecretReference, Value
from airflow_provider_rfr.connections.types import ConnectionType, Definition, Option, type_named
from airflow_provider_rfr.exceptions import AlterationRefusedError, Problem
from airflow_provider_rfr.http.redaction import MASK


def make_draft(
    stored: Definition,
    actions: Sequence[Action],
    kept: Mapping[str, SecretReference],
    parameters: Mapping[str, Value],
    find: Find,
    *,
    in_use: bool,
) -> ConnectionDraft:
    """Apply the actions to the stored definition, and check the result as if it were a new connection.

    :param kept: references of the stored secrets, by option
    :param parameters: values of ``:name``
    :param in_use: whether a task uses the connection
    :raises AlterationRefusedError: with every problem
    """
    draft = ConnectionDraft(stored, kept, parameters)
    renamed = [replace(action, option=draft.connection_type.full_name(action.option)) for action in actions]
    draft.check_combination(renamed)
    draft.check_exclusive(renamed)
    for action in renamed:
        draft.edit(action, in_use)
    if not actions:
        draft.problems.append(Problem("", "nothing is to be changed", "write SET, DROP or RESET"))
    draft.check_whole()
    draft.check_references(find)
    if draft.problems:
        raise AlterationRefusedError(stored.name, draft.problems)
    return draft


class ConnectionDraft:
    """A connection as a statement would change it: applies the actions one by one, and collects their problems.

    :ivar stored: the definition before the statement
    :ivar candidate: the new definition, with a mask in place of each secret that is not read yet
    :ivar secrets: references of its secrets, by option
    :ivar touched: actions by the option that they change
    :ivar unreadable: options whose new value was refused, so that no further problem is reported for them
    """

    def __init__(
        self, stored: Definition, kept: Mapping[str, SecretReference], parameters: Mapping[str, Value]
    ) -> None:
        self.connection_type: ConnectionType = type_named(stored.conn_type)
        self.stored = stored
        self.candidate = stored
        self.secrets = dict(kept)
        self.problems: list[Problem] = []
        self.touched: dict[str, Action] = {}
        self.unreadable: set[str] = set()
        self._parameters = parameters

    def _blame(self, option: str, problem: str, remedy: str = "", action: Action | None = None) -> None:
        action = action or self.touched.get(option)
        place = f"line {action.line}, column {action.column}" if action is not None and action.line else ""
        self.problems.append(Problem(option, problem, remedy, place))

    def check_combination(self, actions: Sequence[Action]) -> None:
        """Check that an option is named once, and not together with an object that it is a field of.

        If a statement changed an object and one of its fields, the result would depend on the order of the actions.
        """
        sets = Counter(action.option for action in actions if not action.removes)
        removals = Counter(action.option for action in actions if action.removes)
        first: dict[str, Action] = {}
        for action in actions:
            first.setdefault(action.option, action)
        for name, action in first.items():
            if sets[name] and removals[name]:
                self._blame(name, "cannot both SET and DROP/RESET it", "write it once", action)
            elif sets[name] > 1 or removals[name] > 1:
                self._blame(name, "is specified more than once", "write it once", action)
        for action in actions:
            # A dot inside quotes separates no parts. The text before it is never an option's name, so it does no harm.
            dots = (place for place, sign in enumerate(action.option) if sign == ".")
            whole = next((action.option[:dot] for dot in dots if action.option[:dot] in first), None)
            if whole is not None:
                problem = f"is part of {whole}, which the statement changes as well"
                self._blame(action.option, problem, "change one of them", action)

    def check_exclusive(self, actions: Sequence[Action]) -> None:
        """Check that at most one option of each exclusive group is set, and that no other one of it is removed."""
        for group in self.connection_type.exclusive:
            sets = {action.option: action for action in actions if action.option in group and not action.removes}
            removals = {action.option: action for action in actions if action.option in group and action.removes}
            options = ", ".join(sorted(group))
            if len(sets) > 1:
                second = list(sets.values())[1]
                remedy = "set one; it removes the others"
                self._blame(second.option, f"only one of {options} can be set", remedy, second)
            elif sets and set(removals) - set(sets):
                other = next(removal for name, removal in removals.items() if name not in sets)
                problem = f"cannot both SET and DROP/RESET mutually exclusive options ({options})"
                self._blame(other.option, problem, "setting one removes the others", other)

    def edit(self, action: Action, in_use: bool) -> None:
        name, option = action.option, self.connection_type.option(action.option)
        if name in ("conn_type", "type"):
            self._blame(name, "the type of a connection never changes", "make a new connection", action)
        elif option is None:
            remedy = f"one of {', '.join(sorted(self.connection_type.options))}, or extra.<name>"
            problem = f"connections of type {self.candidate.conn_type!r} have no such option"
            self._blame(name, problem, remedy, action)
        elif option.inalterable and in_use:
            problem = "can't be altered while the connection is used: progress is kept there"
            self._blame(name, problem, "make a new connection", action)
        elif scalar := self.candidate.scalar_above(name):
            self._refuse(action, f"{scalar} is not an object, so nothing is below it", f"change {scalar} itself")
        elif action.removes:
            self._remove(name)
            self.touched[name] = action
        else:
            self._set(option, action)

    def _refuse(self, action: Action, problem: str, remedy: str = "") -> None:
        self.touched[action.option] = action
        self.unreadable.add(action.option)
        self._blame(action.option, problem, remedy)

    def _remove(self, name: str) -> None:
        self.candidate = self.candidate.having(name, None)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Forget the secret references of the option and of the fields below it: an object is replaced as a whole."""
        for secret in list(self.secrets):
            if f"{secret}.".startswith(f"{name}."):
                del self.secrets[secret]

    def _set(self, option: Option, action: Action) -> None:
        name, value = option.name, action.value
        is_given = isinstance(value, Parameter)
        if isinstance(value, Parameter):
            if value.name not in self._parameters:
                self._refuse(action, f"the parameter {value} is not given", "give it with the statement's parameters")
                return
            value = self._parameters[value.name]
        self.touched[name] = action
        for group in self.connection_type.exclusive:
            for other in group - {name} if name in group else ():
                self._remove(other)
        self._forget(name)
        if isinstance(value, SecretReference):
            self.secrets[name] = value
            # The mask stands for a secret that is not read yet. It is never stored.
            self.candidate = self.candidate.having(name, MASK)
        elif option.secret and not is_given:
            remedy = "write SECRET 'backend:key', or :name and give the value as a parameter"
            self._refuse(action, "is secret and must not be plain text", remedy)
        else:
            try:
                self.candidate = self.candidate.having(name, option.fit(value))
            except ValueError as error:
                self._refuse(action, str(error))

    def check_whole(self) -> None:
        blamed = {problem.field for problem in self.problems} | self.unreadable
        for option in self.connection_type.options.values():
            if option.required and self._is_unset(option.name) and option.name not in blamed:
                self._blame(option.name, "must be set", "give it a value")
        for group in self.connection_type.one_of:
            if all(map(self._is_unset, group)) and not blamed & set(group):
                self._blame(group[0], f"one of {', '.join(group)} must be set", "set one of them")
        for problem in self.broken_rules(self.candidate):
            if problem.field not in blamed:
                self._blame(problem.field, problem.problem, problem.remedy)

    def broken_rules(self, candidate: Definition) -> list[Problem]:
        """Return the rules across fields that the candidate breaks; call it again once its secrets are read.

        A rule that the stored definition breaks already, in a field that the statement does not change, is left out. So
        an old mistake does not block other changes.
        """
        before = [problem for problem in _broken_rules(self.stored) if problem.field not in self.touched]
        return [problem for problem in _broken_rules(candidate) if problem not in before]

    def _is_unset(self, option: str) -> bool:
        return self.candidate.get(option) in (None, "")

    def check_references(self, find: Find) -> None:
        """Check that newly referenced connections exist, and that the references make no cycle."""
        references = references_of(self.candidate)
        for option, other in references.items():
            if other == self.candidate.name:
                self._blame(option, "refers to the connection itself", "name another connection")
            elif option in self.touched:
                definition = find_readable(find, other)
                if definition is None:
                    self._blame(option, f"there is no connection {other!r} that can be read", "make it first")
                elif option.endswith("ssh_conn_id") and type_named(definition.conn_type).name != "ssh":
                    problem = f"connection {other!r} is of type {definition.conn_type!r}"
                    self._blame(option, problem, "name one of type 'ssh'")
        path = None if self.candidate.name in references.values() else cycle(self.candidate, find)
        if path is not None:
            option = next(name for name, other in references.items() if other == path[1])
            self._blame(option, f"makes a cycle: {' > '.join(path)}", "name another connection")


def _broken_rules(definition: Definition) -> list[Problem]:
    return [problem for rule in type_named(definition.conn_type).rules if (problem := rule(definition)) is not None]


@dataclass(frozen=True, slots=True)
class OptionChange:
    """The values of one option before and after a change, masked for display; None where it is not set."""

    option: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        before, after = ("(not set)" if text is None else text for text in (self.before, self.after))
        return f"{self.option}: {before} -> {after}"


def changes_between(
    stored: Definition, candidate: Definition, hidden: Collection[str] = ()
) -> tuple[OptionChange, ...]:
    """Return the options whose values differ; values of secrets are masked.

    :param hidden: options whose values came from a secrets backend, even if the options are not secret
    """
    connection_type = type_named(candidate.conn_type)
    before, after = stored.contents(), candidate.contents()
    changes = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            is_hidden = any(f"{name}.".startswith(f"{option}.") for option in hidden)
            shown = [
                None if value is None else MASK if is_hidden else connection_type.displayed_value(name, value)
                for value in (old, new)
            ]
            changes.append(OptionChange(name, *shown))
    return tuple(changes)


_CURRENT, _NEXT, _FILE = "extra.private_key", "extra.next_private_key", "extra.key_file"
PUBLIC_KEYS: Final = "extra.public_keys"


def rotated(stored: Definition) -> tuple[Definition, str]:
    """Rotate the SSH keys of a connection; return its new definition and the new public key.

    A connection has two keys, so that the other side always knows one of them. The second key becomes the current one,
    and a new second key is generated, whose public part must be installed before the next rotation. A connection with
    one key keeps it and gets a second one; a connection without keys gets its first one.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    public = f"{public} airflow-{stored.name}"
    following = stored.get(_NEXT)
    public_keys = str(stored.get(PUBLIC_KEYS) or "").splitlines()
    rotation = stored.having(_CURRENT, following).having(_FILE, None) if following else stored
    if not (rotation.get(_CURRENT) or rotation.get(_FILE)):
        return rotation.having(_CURRENT, private).having(PUBLIC_KEYS, public), public
    kept = public_keys[-1:] if following else public_keys
    return rotation.having(_NEXT, private).having(PUBLIC_KEYS, "\n".join([*kept, public])), public
