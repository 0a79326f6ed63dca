"""Trying new settings before they are stored: do they work, do they lead to the same upstream, can the tasks go on."""

from __future__ import annotations

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.connections.planning import AlterationPlan
from airflow_provider_rfr.connections.ports import World
from airflow_provider_rfr.exceptions import AlterConnectionError, ConnectionValidationError
from airflow_provider_rfr.store.connection_audit import identity_of, note_identity


def check_upstream(world: World, plan: AlterationPlan, new_identity: bool) -> str | None:
    """Ask where the new settings lead, and every task that runs with the old ones whether it can go on.

    :param new_identity: another upstream is wanted
    :returns: the upstream, as a hash; None where that can't be told
    :raises ConnectionValidationError: to another upstream, or a task could not go on
    """
    name = plan.candidate.name
    found = identity_hash(world, plan.candidate)
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


def identity_hash(world: World, definition: Definition) -> str | None:
    """The upstream as it may be noted."""
    found = world.validator.identity(definition)
    return None if found is None else world.hashes.of_text(found)


def note_upstream(world: World, name: str, identity: str | None) -> None:
    """Remember the upstream, so that it can be told from another one when this one does not answer any more."""
    world.store.run(lambda connection: note_identity(connection, world.store.now(connection), name, identity))


def _expected(world: World, stored: Definition) -> str | None:
    with world.store.read() as connection:
        known = identity_of(connection, stored.name)
    if known is not None:
        return known
    try:
        return identity_hash(world, stored)
    except AlterConnectionError:
        # The old one is often altered because it does not answer.
        return None
