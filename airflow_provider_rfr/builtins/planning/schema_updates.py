"""The updates of a table's schema that lead from one list of columns to another, all in one transaction.

A schema update can't rename a column to a name that another one still has, nor add a column under a name that is being
given up, so a list of columns takes up to three updates, one after the other, in the same transaction:

1. columns go, get wider or optional, and take new names; a name that is not free yet is taken in the second update;
2. columns take names that were given up;
3. columns move to their places, and their comments are written.

``tighten`` is what can be asked only of finished rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.builtins.planning.diff import Change, ColumnChange, diff_columns, folded, origins
from airflow_provider_rfr.builtins.spec import Column

Operation = dict[str, Any]


@dataclass(frozen=True)
class SchemaUpdates:
    """Operations: ``drop``, ``rename``, ``widen``, ``relax``, ``add``, ``move``, ``comment``, ``require``.

    :ivar batches: schema updates of one transaction, in order; each is a list of operations
    :ivar tighten: ``require`` operations, to be refused if there is a NULL
    """

    batches: tuple[tuple[Operation, ...], ...] = ()
    tighten: tuple[Operation, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For a step's details."""
        found: dict[str, Any] = {"updates": [list(batch) for batch in self.batches]} if self.batches else {}
        return {**found, "tighten": list(self.tighten)} if self.tighten else found


@dataclass
class _Draft:
    old: Mapping[str, Column]
    names: list[str]
    first: list[Operation] = field(default_factory=list)
    second: list[Operation] = field(default_factory=list)
    third: list[Operation] = field(default_factory=list)

    def drop(self, name: str) -> None:
        self.first.append({"op": "drop", "column": self.old[name].name})
        self.names.remove(name)

    def rename(self, source: str, column: Column, number: int) -> None:
        name = self.old[source].name
        if column.name.casefold() in self.old:
            between = f"rfr_renamed_{number}"
            self.first.append({"op": "rename", "column": name, "to": between})
            self.second.append({"op": "rename", "column": between, "to": column.name})
        else:
            self.first.append({"op": "rename", "column": name, "to": column.name})
        self.names[self.names.index(source)] = f"new:{column.name.casefold()}"

    def add(self, column: Column) -> None:
        given_up = column.name.casefold() in self.old
        operation = {"op": "add", "column": column.name, "type": column.type}
        (self.second if given_up else self.first).append(operation)

    def move(self, new: Sequence[Column]) -> None:
        """Put the columns into their order, each behind the one before it."""
        current = [name.removeprefix("new:") for name in self.names]
        first = [each for each in self.first if each["op"] == "add"]
        current += [each["column"].casefold() for each in (*first, *self.second) if each["op"] == "add"]
        for place, column in enumerate(new):
            name = column.name.casefold()
            if current[place] != name:
                current.remove(name)
                current.insert(place, name)
                self.third.append(
                    {"op": "move", "column": column.name, "after": new[place - 1].name if place else None}
                )


def schema_updates(
    old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str] | None = None
) -> SchemaUpdates:
    """From the old columns to the new ones. A column of an incompatible new type is dropped and added again."""
    renames = renames or {}
    changes = diff_columns(old, new, renames)
    sources = origins(old, new, renames)
    replaced = {each.column.casefold() for each in changes if each.what is Change.RETYPE}
    draft = _Draft(folded(old), list(folded(old)))
    kept = {source for name, source in sources.items() if name not in replaced}
    for name in folded(old):
        if name not in kept:
            draft.drop(name)
    _in_place(draft, changes, sources, replaced)
    for number, column in enumerate(new):
        name = column.name.casefold()
        if name not in sources or name in replaced:
            draft.add(column)
        elif sources[name] != name:
            draft.rename(sources[name], column, number)
    draft.move(new)
    draft.third += _comments(old, new, sources, replaced)
    batches = (tuple(batch) for batch in (draft.first, draft.second, draft.third) if batch)
    return SchemaUpdates(tuple(batches), _tighten(folded(old), new, sources, replaced))


def _in_place(draft: _Draft, changes: Sequence[ColumnChange], sources: Mapping[str, str], replaced: set[str]) -> None:
    for change in changes:
        name = change.column.casefold()
        if name in replaced or change.what not in (Change.WIDEN, Change.RELAX):
            continue
        operation = {"op": change.what.value, "column": draft.old[sources[name]].name}
        draft.first.append(operation if change.what is Change.RELAX else {**operation, "type": change.after})


def _comments(
    old: Sequence[Column], new: Sequence[Column], sources: Mapping[str, str], replaced: set[str]
) -> list[Operation]:
    before = folded(old)
    found = []
    for column in new:
        name = column.name.casefold()
        source = None if name in replaced else sources.get(name)
        if (before[source].comment if source is not None else None) != column.comment:
            found.append({"op": "comment", "column": column.name, "comment": column.comment})
    return found


def _tighten(
    old: Mapping[str, Column], new: Sequence[Column], sources: Mapping[str, str], replaced: set[str]
) -> tuple[Operation, ...]:
    return tuple(
        {"op": "require", "column": column.name}
        for column in new
        if column.required
        and not ((name := column.name.casefold()) in sources and name not in replaced and old[sources[name]].required)
    )
