"""One statement from its text to its last restart.

Order: read where it really comes from, check everything that needs no secret, check rights, read secrets, judge what
uses it, try the new settings, store them by compare-and-set, restart. Until they are stored nothing was stopped; once
they are, the rest is found again by anybody who compares wanted and running hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from airflow_provider_rfr.connections.dependents import Dependent, Verdict, judged
from airflow_provider_rfr.connections.journal import Journal, settle
from airflow_provider_rfr.connections.options import REFERENCE_SUFFIX
from airflow_provider_rfr.connections.outcome import Outcome
from airflow_provider_rfr.connections.planning import AlterationPlan
from airflow_provider_rfr.connections.ports import Stored, World
from airflow_provider_rfr.connections.preparation import Prepared, all_uses, prepare
from airflow_provider_rfr.connections.references import cycle, references_of
from airflow_provider_rfr.connections.restarting import Restarter
from airflow_provider_rfr.connections.statement import Statement, Value, Verb
from airflow_provider_rfr.connections.trial import check_upstream, identity_hash, note_upstream
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    ConnectionConflictError,
    ConnectionNotFoundError,
    ConnectionRightsError,
)
from airflow_provider_rfr.secret_names import without_credentials
from airflow_provider_rfr.store import connection_audit as audit
from airflow_provider_rfr.store.connections import want

PLACE = ("conn_type", "host", "schema", "port", "login")
"""What a refresh's fingerprint has of a connection."""
LONGEST = 50
_NAME = re.compile(r"[\w#!()\-.:/\\]{1,200}")
"""What Airflow takes for a connection's id."""
UNTRIED = "nothing here knows how to try connections of this type"
PENDING = "goes on with its old settings until its next run"


def execute(
    world: World, statement: Statement, *, actor: str, parameters: Mapping[str, Value] | None = None
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
        prepared = prepare(world, statement, stored.definition, parameters or {})
        return Outcome(
            statement.connection, "planned", prepared.plan.changes, prepared.plan.dependents, notice=prepared.notice
        )
    settle(world.store, world.hashes, stored)
    with Journal(world.store, statement.connection, actor, statement.outline()) as journal:
        if statement.verb is Verb.RENAME:
            return _renamed(world, statement, journal)
        outcome, wanted = _stored(world, statement, journal, parameters or {})
    return _restarted(world, statement, journal, outcome, wanted)


def dependents_of(world: World, name: str) -> Sequence[Dependent]:
    """What uses the connection, by any number of steps."""
    return judged(name, None, (), all_uses(world), world.gateway.find)


def _validated(world: World, name: str) -> Outcome:
    """Wherever it comes from: nothing of it is written."""
    definition = world.gateway.find(name)
    if definition is None:
        raise ConnectionNotFoundError(name, "is not there")
    denied = world.authority.may_not_edit([definition.name])
    if denied:
        raise ConnectionRightsError(definition.name, "you may not edit it, nor have it tried")
    tried = world.validator.test(definition)
    found = identity_hash(world, definition)
    if found is not None:
        note_upstream(world, definition.name, found)
    if tried or found is not None:
        return Outcome(definition.name, "valid", validated=True)
    return Outcome(definition.name, "not tried", notice=UNTRIED)


def _stored(
    world: World, statement: Statement, journal: Journal, parameters: Mapping[str, Value]
) -> tuple[Outcome, str]:
    """Everything up to the new definition in its place; inside the lock."""
    name = statement.connection
    stored = _read_again(world, name)
    prepared = prepare(world, statement, stored.definition, parameters)
    plan = prepared.plan
    identity = None
    if plan.changes:
        identity = check_upstream(world, plan, statement.settings.new_identity) if statement.validate else None
    journal.intend(plan)
    _refuse_circle(world, journal, plan)
    tried = (_commit(world, statement, plan) or identity is not None) if plan.changes else None
    notice = UNTRIED if tried is False and statement.validate else ""
    prepared = replace(prepared, notice=". ".join(each for each in (prepared.notice, notice) if each), tried=tried)
    dependents = _conclude(world, statement, journal, prepared, identity)
    outcome = Outcome(name, "applied", plan.changes, dependents, notice=prepared.notice, alteration=journal.id)
    if not plan.changes:
        return replace(outcome, result="unchanged"), plan.new_hash
    return replace(outcome, validated=tried), plan.new_hash


def _refuse_circle(world: World, journal: Journal, plan: AlterationPlan) -> None:
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


def _commit(world: World, statement: Statement, plan: AlterationPlan) -> bool:
    """Store the candidate, tried if that is wanted, and say whether it was.

    Where it led before is noted first, for the new content alone.
    """
    name = statement.connection
    world.tell(f"connection {name}: {', '.join(map(str, plan.changes))}")
    world.store.run(
        lambda connection: audit.note_move(connection, name, plan.new_hash, moved_from(connection, statement, plan))
    )
    if statement.validate and world.gateway.commit_tested(plan.old_hash, world.hashes, plan.candidate):
        return True
    tried = statement.validate and world.validator.test(plan.candidate)
    world.gateway.commit(plan.old_hash, world.hashes, plan.candidate)
    return tried


def _read_again(world: World, name: str) -> Stored:
    """What is stored now that nobody else alters it."""
    stored = world.gateway.read(name)
    if stored is None:
        raise ConnectionNotFoundError(name, "was deleted meanwhile")
    return stored


def _conclude(
    world: World, statement: Statement, journal: Journal, prepared: Prepared, identity: str | None
) -> tuple[Dependent, ...]:
    """Note all that follows from the new definition, in one transaction; from here on restarts happen in any case.

    What uses the connection is looked for again: a task that began meanwhile may have read the old settings.
    """
    name, plan = statement.connection, prepared.plan
    dependents = judged(name, plan.new_hash, plan.changed_options, all_uses(world), world.gateway.find)
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


def moved_from(connection: Connection, statement: Statement, plan: AlterationPlan) -> list[dict[str, Any]]:
    """The places that the connection led to before, the oldest first; none of another upstream, but its number."""
    if statement.settings.new_identity:
        return [{"upstream": plan.new_hash[:16]}]
    places = audit.moves_of(connection, statement.connection, plan.old_hash)
    present = {name: plan.stored.get(name) for name in PLACE}
    if present == {name: plan.candidate.get(name) for name in PLACE}:
        return places
    if "login" in audit.secret_references(connection, statement.connection):
        present["login"] = None
    if present["host"]:
        present["host"] = without_credentials(present["host"])
    return [*places, present][-LONGEST:]


def _restarted(world: World, statement: Statement, journal: Journal, outcome: Outcome, wanted: str) -> Outcome:
    if statement.restart:
        ends = Restarter(world).follow(statement.connection, wanted, outcome.dependents, statement.drain_timeout)
    else:
        ends = {
            each.use.task.consumer: PENDING if each.verdict is Verdict.RESTART else "next run"
            for each in outcome.dependents
        }
    told: list[dict[str, Any]] = [each.to_json(ends[each.use.task.consumer]) for each in outcome.dependents]
    state = audit.UNCHANGED if outcome.result == "unchanged" else audit.APPLIED
    journal.note(state, dependents=told)
    return replace(outcome, outcomes=ends)


def _check_new_name(world: World, statement: Statement) -> None:
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


def _renamed(world: World, statement: Statement, journal: Journal) -> Outcome:
    """A name stands in DAGs, too, so it is changed only while nothing is known to use it."""
    old, new = statement.connection, statement.new_name or ""
    definition = _read_again(world, old).definition
    _check_new_name(world, statement)
    world.gateway.rename(world.hashes.of(definition), world.hashes, definition, new)
    world.store.run(lambda connection: audit.rename_notes(connection, old, new))
    journal.note(audit.APPLIED, options={"name": {"before": old, "after": new}})
    return Outcome(old, "renamed", notice=f"it is {new!r} now", alteration=journal.id)
