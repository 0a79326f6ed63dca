"""Which connections a connection needs: those that its options name, and theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_rfr.connections.definition import Definition
from airflow_provider_rfr.connections.registry import type_named
from airflow_provider_rfr.exceptions import ConfigurationError

Find = Callable[[str], Definition | None]
"""The connection of that id, as its users see it; None if there is none."""


@dataclass(frozen=True, slots=True)
class Reached:
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


def closure(names: Iterable[str], find: Find) -> dict[str, Reached]:
    """Those connections and all that they need, by id; a circle is walked once."""
    reached: dict[str, Reached] = {}
    todo: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    while todo:
        name, path = todo.pop(0)
        if name in reached:
            continue
        definition = readable(find, name)
        reached[name] = Reached(name, path, definition)
        if definition is not None:
            todo += [(other, (*path, other)) for other in references_of(definition).values()]
    return reached


def readable(find: Find, name: str) -> Definition | None:
    """One that can't be read is as if it were not there: what is wrong with it concerns who uses it, nobody else."""
    try:
        return find(name)
    except ConfigurationError:
        return None


def cycle(candidate: Definition, find: Find) -> tuple[str, ...] | None:
    """The way from the candidate back to itself, None if there is none."""
    reached = closure(references_of(candidate).values(), find)
    for each in reached.values():
        if each.name == candidate.name:
            return (candidate.name, *each.path)
    return None


def users_of(name: str, known: Iterable[str], find: Find) -> Mapping[str, tuple[str, ...]]:
    """Those of the known connections that need the named one, by any number of steps, and the way to it."""
    found = {}
    for other in known:
        reached = closure([other], find).get(name)
        if reached is not None:
            found[other] = reached.path
    return found
