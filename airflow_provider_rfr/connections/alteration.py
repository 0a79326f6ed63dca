"""ALTER CONNECTION from a parsed statement to the last restart.

Stages: read the stored connection, draft the new one, validate it (rights, secrets, dependents, a trial), store it by
compare-and-set, restart what uses it. Nothing is stopped before the new settings are stored. Afterwards the remaining
restarts can be found by anyone, because running tasks whose connection hash differs from the wanted one are the list.

``ROTATE KEYS`` keeps two SSH keys, so that the other side always knows one of them: rotating promotes the second key
and generates a new one, whose public part has to be installed before the next rotation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from sqlalchemy import Connection

from airflow_provider_rfr.connections.journal import Journal, settle
from airflow_provider_rfr.connections.plan import (
    AlterationPlan,
    Change,
    Dependent,
    Draft,
    Verdict,
    broken_rules,
    changes_between,
    cycle,
    draft,
    judged,
    plan,
    reaching,
    references_of,
)
from airflow_provider_rfr.connections.ports import Services, Stored
from airflow_provider_rfr.connections.restart import Restarter
from airflow_provider_rfr.connections.statement import SecretReference, Statement, Value, Verb
from airflow_provider_rfr.connections.types import REFERENCE_SUFFIX, Definition, fitting, type_named
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    AlterConnectionError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
    ConnectionValidationError,
)
from airflow_provider_rfr.secret_names import without_credentials
from airflow_provider_rfr.store import connection_audit as audit
from airflow_provider_rfr.store.connection_audit import identity_of, note_identity, secret_references
from airflow_provider_rfr.store.connections import Use, list_uses, want


def _check_upstream(world: Services, plan: AlterationPlan, new_identity: bool) -> str | None:
    """Ask where the new settings lead, and every task that runs with the old ones whether it can go on.

    :param new_identity: another upstream is wanted
    :returns: the upstream, as a hash; None where that can't be told
    :raises ConnectionValidationError: to another upstream, or a task could not go on
    """
    name = plan.candidate.name
    found = _identity_hash(world, plan.candidate)
    expected = _expected(world, plan.stored)
    if not new_identity and None not in (found, expected) and found != expected:
        raise ConnectionValidationError(
            name,
            "the new settings lead to another upstream, whose data is not what was read so far;"
            " if that is meant, say NEW_IDENTITY = true, and everything is read from its beginning",
        )
    for dependent in plan.dependents:
        if len(dependent.via) == 1:
            try:
                world.validator.check_use(plan.candidate, dependent.use)
            except ConnectionValidationError as error:
                raise ConnectionValidationError(
                    name, f"{dependent.use.task} could not go on: {error.message}"
                ) from None
    return found


def _identity_hash(world: Services, definition: Definition) -> str | None:
    """The upstream as it may be noted."""
    found = world.validator.identity(definition)
    return None if found is None else world.hashes.of_text(found)


def _note_upstream(world: Services, name: str, identity: str | None) -> None:
    """Remember the upstream, so that it can be told from another one when this one does not answer any more."""
    world.store.run(lambda connection: note_identity(connection, world.store.now(connection), name, identity))


def _expected(world: Services, stored: Definition) -> str | None:
    with world.store.read() as connection:
        known = identity_of(connection, stored.name)
    if known is not None:
        return known
    try:
        return _identity_hash(world, stored)
    except AlterConnectionError:
        # The old one is often altered because it does not answer.
        return None


_CURRENT, _NEXT, _PUBLIC = "extra.private_key", "extra.next_private_key", "extra.public_keys"
FILE = "extra.key_file"


def _rotated(stored: Definition) -> tuple[Definition, str]:
    """The connection with the next key in use and a new one behind it, and the new public key.

    A connection that has one key only keeps it and gets its second one.
    """
    private, public = _new_pair(stored.name)
    following = stored.get(_NEXT)
    known = str(stored.get(_PUBLIC) or "").splitlines()
    made = stored.having(_CURRENT, following).having(FILE, None) if following else stored
    if not (made.get(_CURRENT) or made.get(FILE)):
        return made.having(_CURRENT, private).having(_PUBLIC, public), public
    kept = known[-1:] if following else known
    return made.having(_NEXT, private).having(_PUBLIC, "\n".join([*kept, public])), public


def _new_pair(comment: str) -> tuple[str, str]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return private, f"{public} airflow-{comment}"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What may be carried out.

    :ivar secrets: where the new definition's secrets are kept, by option
    :ivar notice: what the caller is to know
    :ivar tried: whether the new settings were tried; None where nothing changes
    """

    plan: AlterationPlan
    secrets: Mapping[str, SecretReference] = field(default_factory=dict)
    notice: str = ""
    tried: bool | None = None


def _prepare(world: Services, statement: Statement, stored: Definition, parameters: Mapping[str, Value]) -> _Prepared:
    """Plan the statement.

    :raises AlterationRefusedError: with every problem; no secret was read
    :raises ConnectionRightsError: the caller lacks a right; no secret was read
    """
    uses = _all_uses(world)
    if statement.verb is Verb.ROTATE_KEYS:
        return _rotation(world, stored, uses, statement.dry_run)
    ways = reaching(stored.name, uses, world.gateway.find)
    kept = _kept(world, stored.name)
    made = draft(stored, statement.actions, kept, parameters, world.gateway.find, in_use=bool(ways))
    if made.problems:
        raise AlterationRefusedError(stored.name, made.problems)
    _check_rights(world, made, ways)
    candidate = made.complete(_read(world, made))
    problems = broken_rules(candidate)
    if problems:
        raise AlterationRefusedError(stored.name, problems)
    return _Prepared(_planned(world, stored, candidate, uses, {*kept, *made.secrets}), made.secrets)


def _all_uses(world: Services) -> list[Use]:
    """Every task that uses any connection."""
    with world.store.read() as connection:
        return list_uses(connection)


def _rotation(world: Services, stored: Definition, uses: Sequence[Use], dry_run: bool) -> _Prepared:
    if not type_named(stored.conn_type).has_keys:
        problem = AlterationProblem("", f"is of type {stored.conn_type!r}, which has no keys", "ROTATE KEYS is for ssh")
        raise AlterationRefusedError(stored.name, [problem])
    _refuse_unlisted(world, stored.name, [stored.name])
    candidate, public = _rotated(stored)
    made = _planned(world, stored, candidate, uses)
    kept = {name: each for name, each in _kept(world, stored.name).items() if name not in made.changed_options}
    # The key of a dry run is thrown away.
    notice = "" if dry_run else f"put this public key beside the present one before the next rotation: {public}"
    return _Prepared(made, kept, notice)


def _planned(
    world: Services, stored: Definition, candidate: Definition, uses: Sequence[Use], hidden: Collection[str] = ()
) -> AlterationPlan:
    made = plan(stored, candidate, world.hashes, uses, world.gateway.find, hidden)
    refused = [
        AlterationProblem("", f"{each.use.task} uses it: {each.reason}", "end it, or use another connection for it")
        for each in made.incompatible()
    ]
    if refused:
        raise AlterationRefusedError(stored.name, refused)
    return made


def _kept(world: Services, name: str) -> dict[str, SecretReference]:
    with world.store.read() as connection:
        found = secret_references(connection, name)
    return {option: SecretReference(*reference.split(":", 1)) for option, reference in found.items()}


def _check_rights(world: Services, made: Draft, ways: Mapping[str, tuple[str, ...]]) -> None:
    """Rights on the connection, on each secret that it would have, and on what would send its secrets another way."""
    name = made.stored.name
    _refuse_unlisted(world, name, [name])
    before = set(references_of(made.stored).values())
    added = [each for each in references_of(made.candidate).values() if each not in before]
    _refuse_unlisted(world, name, added, "the statement refers to")
    denied = world.authority.may_not_use(made.secrets.values())
    if denied:
        options = sorted(option for option, each in made.secrets.items() if each in denied)
        raise ConnectionRightsError(
            name, f"secrets of {', '.join(options)} may not be used: {', '.join(map(str, denied))}"
        )
    if any(change.option != "description" for change in changes_between(made.stored, made.candidate)):
        _check_routes(world, name, ways)


def _check_routes(world: Services, name: str, ways: Mapping[str, tuple[str, ...]]) -> None:
    """Who alters a tunnel decides where the secrets of those connections go that use it."""
    above = {each for way in ways.values() for each in way[:-1]}
    todo = [name, *above]
    while todo:
        new = [each for each in world.gateway.referring(todo.pop()) if each not in above and each != name]
        above |= set(new)
        todo += new
    denied = world.authority.may_not_edit(sorted(above))
    if denied:
        users = sorted(consumer for consumer, way in ways.items() if set(way) & set(denied))
        told = f", which {', '.join(users)} use" if users else ""
        raise ConnectionRightsError(
            name, f"it carries the secrets of {', '.join(denied)}{told}; you may not edit those connections"
        )


def _refuse_unlisted(world: Services, name: str, names: Sequence[str], what: str = "you may not edit") -> None:
    denied = world.authority.may_not_edit(names)
    if denied:
        more = "" if what == "you may not edit" else ", which you may not edit"
        raise ConnectionRightsError(name, f"{what} {', '.join(denied)}{more}")


def _read(world: Services, made: Draft) -> dict[str, str]:
    """The secrets that the statement names; a value that somebody gave a kept one since stays as it is stored."""
    known, found, problems = type_named(made.stored.conn_type), {}, []
    for option in sorted(made.asked & made.secrets.keys()):
        reference = made.secrets[option]
        try:
            found[option] = world.secrets.read(reference)
        except ConfigurationError as error:
            problems.append(AlterationProblem(option, f"SECRET '{reference}' {error.problem}", error.remedy))
            continue
        known_option = known.option(option)
        try:
            if known_option is not None:
                fitting(known_option, found[option])
        except ValueError as error:
            problems.append(AlterationProblem(option, f"SECRET '{reference}' {error}"))
    if problems:
        raise AlterationRefusedError(made.stored.name, problems)
    return found


_DONE = frozenset({"restarted", "started", "has the new settings", "next run"})
"""Ends of a dependent after which nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done.

    :ivar result: applied, unchanged, planned (a dry run), missing, renamed, valid or not tried
    :ivar dependents: what uses the connection
    :ivar outcomes: what became of each dependent, by its consumer
    :ivar validated: whether the settings were tried
    :ivar notice: what is to be known beside
    :ivar alteration: number of its audit row
    """

    connection: str
    result: str
    changes: tuple[Change, ...] = ()
    dependents: tuple[Dependent, ...] = ()
    outcomes: Mapping[str, str] | None = None
    validated: bool | None = None
    notice: str = ""
    alteration: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What the task returns."""
        outcomes = self.outcomes or {}
        told = [each.to_json(outcomes.get(each.use.task.consumer, "")) for each in self.dependents]
        return {
            "connection": self.connection,
            "result": self.result,
            "options": {change.option: {"before": change.before, "after": change.after} for change in self.changes},
            "validated": self.validated,
            "dependents": told,
            "restarted": sum(each.get("outcome") in ("restarted", "started") for each in told),
            "notice": self.notice,
            "alteration": self.alteration,
        }

    def lines(self) -> list[str]:
        """The same for a terminal."""
        said = [f"connection {self.connection}: {self.result}"]
        said += [f"  ~ {change}" for change in self.changes]
        outcomes = self.outcomes or {}
        for each in self.dependents:
            mark = {Verdict.RESTART: "restart", Verdict.INCOMPATIBLE: "incompatible"}.get(each.verdict, "unaffected")
            way = f" by {' > '.join(each.via)}" if len(each.via) > 1 else ""
            end = outcomes.get(each.use.task.consumer)
            said.append(f"  {mark} {each.use.kind} {each.use.task}{way}: {end or each.reason}")
        return said + ([f"  {self.notice}"] if self.notice else [])


_PLACE = ("conn_type", "host", "schema", "port", "login")
"""What a refresh's fingerprint has of a connection."""
_LONGEST = 50
_NAME = re.compile(r"[\w#!()\-.:/\\]{1,200}")
"""What Airflow takes for a connection's id."""
_UNTRIED = "nothing here knows how to try connections of this type"
_PENDING = "goes on with its old settings until its next run"


def execute(
    world: Services, statement: Statement, *, actor: str, parameters: Mapping[str, Value] | None = None
) -> Outcome:
    """Do what the statement says.

    :param actor: who wants it, for the audit
    :param parameters: values of the statement's ``:name``, which may be secret
    :raises AlterConnectionError: nothing was changed; a conflict may be tried again
    """
    if statement.verb is Verb.VALIDATE:
        return _validated(world, statement.connection)
    stored = world.gateway.read(statement.connection)
    if stored is None:
        notice = f"there is no connection {statement.connection!r}"
        if statement.if_exists:
            return Outcome(statement.connection, "missing", notice=f"{notice}; nothing was done")
        raise ConnectionNotFoundError(statement.connection, "is not there; make it, or write IF EXISTS")
    if statement.dry_run:
        if statement.verb is Verb.RENAME:
            _check_new_name(world, statement)
            return Outcome(statement.connection, "planned", notice=f"it would be {statement.new_name!r}")
        prepared = _prepare(world, statement, stored.definition, parameters or {})
        return Outcome(
            statement.connection, "planned", prepared.plan.changes, prepared.plan.dependents, notice=prepared.notice
        )
    settle(world.store, world.hashes, stored)
    with Journal(world.store, statement.connection, actor, statement.outline()) as journal:
        if statement.verb is Verb.RENAME:
            return _renamed(world, statement, journal)
        outcome, wanted = _stored(world, statement, journal, parameters or {})
    return _restarted(world, statement, journal, outcome, wanted)


def dependents_of(world: Services, name: str) -> Sequence[Dependent]:
    """What uses the connection, by any number of steps."""
    return judged(name, None, (), _all_uses(world), world.gateway.find)


def _validated(world: Services, name: str) -> Outcome:
    """Wherever it comes from: nothing of it is written."""
    definition = world.gateway.find(name)
    if definition is None:
        raise ConnectionNotFoundError(name, "is not there")
    denied = world.authority.may_not_edit([definition.name])
    if denied:
        raise ConnectionRightsError(definition.name, "you may not edit it, nor have it tried")
    tried = world.validator.test(definition)
    found = _identity_hash(world, definition)
    if found is not None:
        _note_upstream(world, definition.name, found)
    if tried or found is not None:
        return Outcome(definition.name, "valid", validated=True)
    return Outcome(definition.name, "not tried", notice=_UNTRIED)


def _stored(
    world: Services, statement: Statement, journal: Journal, parameters: Mapping[str, Value]
) -> tuple[Outcome, str]:
    """Everything up to the new definition in its place; inside the lock."""
    name = statement.connection
    stored = _read_again(world, name)
    prepared = _prepare(world, statement, stored.definition, parameters)
    plan = prepared.plan
    identity = None
    if plan.changes:
        identity = _check_upstream(world, plan, statement.settings.new_identity) if statement.validate else None
    journal.intend(plan)
    _refuse_circle(world, journal, plan)
    tried = (_commit(world, statement, plan) or identity is not None) if plan.changes else None
    notice = _UNTRIED if tried is False and statement.validate else ""
    prepared = replace(prepared, notice=". ".join(each for each in (prepared.notice, notice) if each), tried=tried)
    dependents = _conclude(world, statement, journal, prepared, identity)
    outcome = Outcome(name, "applied", plan.changes, dependents, notice=prepared.notice, alteration=journal.id)
    if not plan.changes:
        return replace(outcome, result="unchanged"), plan.new_hash
    return replace(outcome, validated=tried), plan.new_hash


def _refuse_circle(world: Services, journal: Journal, plan: AlterationPlan) -> None:
    """Of two who alter two connections at once each may add one half of a circle: only one is let through.

    Both have noted what they intend before they look, so at least one sees the other, or what it stored.
    """
    if not set(references_of(plan.candidate).values()) - set(references_of(plan.stored).values()):
        return
    name = plan.candidate.name
    with world.store.read() as connection:
        others = audit.open_beside(connection, world.store.now(connection), journal.id)
    for other in others:
        if any(option.endswith(REFERENCE_SUFFIX) for option in other.options):
            raise ConnectionConflictError(name, f"{other.conn_id} gets another reference just now; try again")
    circle = cycle(plan.candidate, world.gateway.find)
    if circle is not None:
        problem = AlterationProblem("", f"makes a cycle: {' > '.join(circle)}", "name another connection")
        raise AlterationRefusedError(name, [problem])


def _commit(world: Services, statement: Statement, plan: AlterationPlan) -> bool:
    """Store the candidate, tried if that is wanted, and say whether it was.

    Where it led before is noted first, for the new content alone.
    """
    name = statement.connection
    world.tell(f"connection {name}: {', '.join(map(str, plan.changes))}")
    world.store.run(
        lambda connection: audit.note_move(connection, name, plan.new_hash, _moved_from(connection, statement, plan))
    )
    if statement.validate and world.gateway.commit_tested(plan.old_hash, world.hashes, plan.candidate):
        return True
    tried = statement.validate and world.validator.test(plan.candidate)
    world.gateway.commit(plan.old_hash, world.hashes, plan.candidate)
    return tried


def _read_again(world: Services, name: str) -> Stored:
    """What is stored now that nobody else alters it."""
    stored = world.gateway.read(name)
    if stored is None:
        raise ConnectionNotFoundError(name, "was deleted meanwhile")
    return stored


def _conclude(
    world: Services, statement: Statement, journal: Journal, prepared: _Prepared, identity: str | None
) -> tuple[Dependent, ...]:
    """Note all that follows from the new definition, in one transaction; from here on restarts happen in any case.

    What uses the connection is looked for again: a task that began meanwhile may have read the old settings.
    """
    name, plan = statement.connection, prepared.plan
    dependents = judged(name, plan.new_hash, plan.changed_options, _all_uses(world), world.gateway.find)
    tasks = [each.use.task for each in dependents if each.verdict is Verdict.RESTART]

    def note(connection: Connection) -> None:
        now = world.store.now(connection)
        audit.note_secret_references(connection, name, {key: str(each) for key, each in prepared.secrets.items()})
        audit.keep_move(connection, name, plan.new_hash)
        if identity is not None or (statement.settings.new_identity and plan.changes):
            audit.note_identity(connection, now, name, identity)
        if statement.restart:
            want(connection, tasks, name, plan.new_hash)
        told = [each.to_json() for each in dependents]
        validated = None if prepared.tried is None else int(prepared.tried)
        audit.note_alteration(connection, now, journal.id, audit.STORED, dependents=told, validated=validated)

    world.store.run(note)
    return dependents


def _moved_from(connection: Connection, statement: Statement, plan: AlterationPlan) -> list[dict[str, Any]]:
    """The places that the connection led to before, the oldest first; none of another upstream, but its number."""
    if statement.settings.new_identity:
        return [{"upstream": plan.new_hash[:16]}]
    places = audit.moves_of(connection, statement.connection, plan.old_hash)
    present = {name: plan.stored.get(name) for name in _PLACE}
    if present == {name: plan.candidate.get(name) for name in _PLACE}:
        return places
    if "login" in audit.secret_references(connection, statement.connection):
        present["login"] = None
    if present["host"]:
        present["host"] = without_credentials(present["host"])
    return [*places, present][-_LONGEST:]


def _restarted(world: Services, statement: Statement, journal: Journal, outcome: Outcome, wanted: str) -> Outcome:
    if statement.restart:
        ends = Restarter(world).follow(statement.connection, wanted, outcome.dependents, statement.drain_timeout)
    else:
        ends = {
            each.use.task.consumer: _PENDING if each.verdict is Verdict.RESTART else "next run"
            for each in outcome.dependents
        }
    told: list[dict[str, Any]] = [each.to_json(ends[each.use.task.consumer]) for each in outcome.dependents]
    state = audit.UNCHANGED if outcome.result == "unchanged" else audit.APPLIED
    journal.note(state, dependents=told)
    return replace(outcome, outcomes=ends)


def _check_new_name(world: Services, statement: Statement) -> None:
    old, new = statement.connection, statement.new_name or ""
    if world.authority.may_not_edit([old]):
        raise ConnectionRightsError(old, "you may not edit it")
    problems = []
    if not _NAME.fullmatch(new):
        remedy = "write up to 200 letters, digits and _ - . : / \\ # ! ( )"
        problems.append(AlterationProblem("", "can't have this name", remedy))
    elif new == old:
        problems.append(AlterationProblem("", "has this name already", "write another one"))
    users = [str(each.use.task) for each in dependents_of(world, old)] + list(world.gateway.referring(old))
    if users:
        problems.append(AlterationProblem("", f"can't be renamed: {', '.join(users)} use it", "change those first"))
    if problems:
        raise AlterationRefusedError(old, problems)
    if world.gateway.find(new) is not None:
        raise ConnectionConflictError(old, f"there is a {new!r} already")


def _renamed(world: Services, statement: Statement, journal: Journal) -> Outcome:
    """A name stands in DAGs, too, so it is changed only while nothing is known to use it."""
    old, new = statement.connection, statement.new_name or ""
    definition = _read_again(world, old).definition
    _check_new_name(world, statement)
    world.gateway.rename(world.hashes.of(definition), world.hashes, definition, new)
    world.store.run(lambda connection: audit.rename_notes(connection, old, new))
    journal.note(audit.APPLIED, options={"name": {"before": old, "after": new}})
    return Outcome(old, "renamed", notice=f"it is {new!r} now", alteration=journal.id)
