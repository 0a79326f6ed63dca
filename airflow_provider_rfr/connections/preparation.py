"""From a statement to a plan that may be carried out: problems, rights, secrets, dependents, in this order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.connections.dependents import reaching
from airflow_provider_rfr.connections.planning import AlterationPlan, Draft, broken_rules, changes_between, draft, plan
from airflow_provider_rfr.connections.ports import World
from airflow_provider_rfr.connections.references import references_of
from airflow_provider_rfr.connections.registry import type_named
from airflow_provider_rfr.connections.ssh_keys import rotated
from airflow_provider_rfr.connections.statement import SecretReference, Statement, Value, Verb
from airflow_provider_rfr.connections.values import fitting
from airflow_provider_rfr.exceptions import (
    AlterationProblem,
    AlterationRefusedError,
    ConfigurationError,
    ConnectionRightsError,
)
from airflow_provider_rfr.store.connection_audit import secret_references
from airflow_provider_rfr.store.connections import Use, list_uses


@dataclass(frozen=True, slots=True)
class Prepared:
    """What may be carried out.

    :ivar secrets: where the new definition's secrets are kept, by option
    :ivar notice: what the caller is to know
    :ivar tried: whether the new settings were tried; None where nothing changes
    """

    plan: AlterationPlan
    secrets: Mapping[str, SecretReference] = field(default_factory=dict)
    notice: str = ""
    tried: bool | None = None


def prepare(world: World, statement: Statement, stored: Definition, parameters: Mapping[str, Value]) -> Prepared:
    """Plan the statement.

    :raises AlterationRefusedError: with every problem; no secret was read
    :raises ConnectionRightsError: the caller lacks a right; no secret was read
    """
    uses = all_uses(world)
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
    return Prepared(_planned(world, stored, candidate, uses, {*kept, *made.secrets}), made.secrets)


def all_uses(world: World) -> list[Use]:
    """Every task that uses any connection."""
    with world.store.read() as connection:
        return list_uses(connection)


def _rotation(world: World, stored: Definition, uses: Sequence[Use], dry_run: bool) -> Prepared:
    if not type_named(stored.conn_type).has_keys:
        problem = AlterationProblem("", f"is of type {stored.conn_type!r}, which has no keys", "ROTATE KEYS is for ssh")
        raise AlterationRefusedError(stored.name, [problem])
    _refuse_unlisted(world, stored.name, [stored.name])
    candidate, public = rotated(stored)
    made = _planned(world, stored, candidate, uses)
    kept = {name: each for name, each in _kept(world, stored.name).items() if name not in made.changed_options}
    # The key of a dry run is thrown away.
    notice = "" if dry_run else f"put this public key beside the present one before the next rotation: {public}"
    return Prepared(made, kept, notice)


def _planned(
    world: World, stored: Definition, candidate: Definition, uses: Sequence[Use], hidden: Collection[str] = ()
) -> AlterationPlan:
    made = plan(stored, candidate, world.hashes, uses, world.gateway.find, hidden)
    refused = [
        AlterationProblem("", f"{each.use.task} uses it: {each.reason}", "end it, or use another connection for it")
        for each in made.incompatible()
    ]
    if refused:
        raise AlterationRefusedError(stored.name, refused)
    return made


def _kept(world: World, name: str) -> dict[str, SecretReference]:
    with world.store.read() as connection:
        found = secret_references(connection, name)
    return {option: SecretReference(*reference.split(":", 1)) for option, reference in found.items()}


def _check_rights(world: World, made: Draft, ways: Mapping[str, tuple[str, ...]]) -> None:
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


def _check_routes(world: World, name: str, ways: Mapping[str, tuple[str, ...]]) -> None:
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


def _refuse_unlisted(world: World, name: str, names: Sequence[str], what: str = "you may not edit") -> None:
    denied = world.authority.may_not_edit(names)
    if denied:
        more = "" if what == "you may not edit" else ", which you may not edit"
        raise ConnectionRightsError(name, f"{what} {', '.join(denied)}{more}")


def _read(world: World, made: Draft) -> dict[str, str]:
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
