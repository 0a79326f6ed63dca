"""Objects that are generated, one for each instance: their ids come from the instance's id, their names are made once.

A generated name takes a number until it is unique among everything that exists, is written to the registry before the
object is made, and is kept from then on, also when the instance gets another name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from uuid import UUID, uuid5

from airflow_provider_rfr.builtins.names import LONGEST_PART, available_name
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Instance
from airflow_provider_rfr.builtins.state import Live, Recorded

_NUMBER = 8
"""Characters that a number and the sign between may take."""


def instance_id(template: UUID, instance: str) -> UUID:
    """The same whatever the instance is called."""
    return uuid5(template, instance)


class _Taken(Container[str]):
    """Names, compared without case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.casefold() for name in names}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.casefold() in self._names

    def add(self, *names: str) -> None:
        self._names.update(name.casefold() for name in names)


class Generator:
    """Makes the objects of one plan.

    :param declared: those that are not gone
    """

    def __init__(self, spec: CatalogSpec, declared: Iterable[BuiltinObject], recorded: Recorded, live: Live) -> None:
        self._instances = spec.instances
        self._recorded = recorded
        self._made = {each.marker: each.name for each in live.objects.values() if each.marker and not each.aside}
        self._taken = _Taken(live.objects)
        self._taken.add(*(each.name for each in declared), *(each.name for each in recorded.objects))
        self._taken.add(*(each.name for each in live.user_views))

    def objects(self, template: BuiltinObject) -> Iterator[tuple[BuiltinObject, str]]:
        """The objects of a template, with the ids of their instances."""
        for instance in sorted(self._instances.get(template.per_instance or "", ()), key=lambda each: each.id):
            identity = instance_id(template.id, instance.id)
            yield replace(template, id=identity, name=self._name(template, instance, identity)), instance.id

    def _name(self, template: BuiltinObject, instance: Instance, identity: UUID) -> str:
        known = self._recorded.by_uuid.get(identity)
        if known is not None:
            return known.name
        if identity in self._made:
            return self._made[identity]
        room = LONGEST_PART - _NUMBER - len(template.name.rpartition(".")[2])
        ending = re.sub(r"\W+", "_", instance.name, flags=re.ASCII)[: max(room, 1)].strip("_") or "_"
        name = available_name(f"{template.name}_{ending}", self._taken)
        self._taken.add(name)
        return name

    def kept(self, unlisted: Iterable[BuiltinObject]) -> frozenset[UUID]:
        """Recorded objects of templates of whose instances there is no list: unknown is not gone."""
        unknown = [each.id for each in unlisted]
        return frozenset(
            each.uuid
            for each in self._recorded.objects
            if each.instance is not None
            and any(instance_id(template, each.instance) == each.uuid for template in unknown)
        )
