"""The columns that a sink sends: those that were registered when it was made, whatever its source becomes.

A pin holds the column's name as the payload says it, and its field id once a table was seen: a column that the source
renames goes on under its first name, and one that a migration made anew under the same name is followed by the name.
Ids are one table's own: in a table that took its place the same id is another column, so there names count again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_rfr.builtins.spec import SinkSpec
from airflow_provider_rfr.exceptions.sinks import SinkError

_ELSEWHERE = -1
"""In the place of an id that was another table's."""
Columns = Mapping[str, tuple[str, int]]
"""Spelling and field id of columns, by their names as they are compared."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A sent column.

    :ivar name: in the payload; compared without case until a table was seen
    :ivar field_id: in the source's schema; None until a table was seen
    :ivar called: in the source's schema, when it was seen last
    """

    name: str
    field_id: int | None = None
    called: str | None = None


@dataclass(frozen=True, slots=True)
class Pins:
    """All sent columns, in their order.

    :ivar follow: whatever the source has is sent, and ``columns`` is empty
    :ivar table: uuid of the table that the ids are of; None until one was seen
    """

    columns: tuple[Pin, ...] = ()
    follow: bool = False
    table: str | None = None

    @classmethod
    def of(cls, spec: SinkSpec, registered: Sequence[str], before: Pins | None = None) -> Pins:
        """The pins of a declaration.

        :param registered: the source's columns, for a sink that names none
        :param before: of the same sink until now: known columns keep their ids, and a sink that names none its pins
        """
        if spec.follow_schema:
            return cls(follow=True)
        if not spec.columns and before is not None and before.columns:
            return before
        known = {each.name.casefold(): each for each in before.columns} if before is not None else {}
        names = spec.columns or tuple(registered)
        pins = tuple(known.get(name.casefold(), Pin(name)) for name in names)
        return cls(pins, table=before.table if before is not None else None)

    @classmethod
    def of_columns(cls, columns: Sequence[tuple[str, int]]) -> Pins:
        """The pins of columns whose names and ids are known."""
        return cls(tuple(Pin(*each) for each in columns))

    @classmethod
    def loads(cls, text: str) -> Pins:
        """The pins that :meth:`dumps` wrote."""
        found: Mapping[str, Any] = json.loads(text)
        return cls(tuple(Pin(*each) for each in found["columns"]), found["follow"], found.get("table"))

    def dumps(self) -> str:
        """As the store keeps them."""
        columns = [[each.name, each.field_id, each.called] for each in self.columns]
        return json.dumps({"columns": columns, "follow": self.follow, "table": self.table})

    def seen(self, now: Columns, table: str) -> Pins:
        """With the ids and the spelling of the table's columns; one that was made anew under its name has a new id.

        :param table: its uuid
        """
        if self.follow:
            return self
        if not self.columns:
            return Pins(tuple(Pin(name, number, name) for name, number in now.values()), table=table)
        before = self.columns
        if self.table not in (None, table):
            before = tuple(replace(each, field_id=_ELSEWHERE) for each in before)
        names = {number: name for name, number in now.values()}
        return Pins(tuple(_seen(each, names, now) for each in before), table=table)

    def resolve(self, then: Columns, now: Columns, sink: str) -> tuple[tuple[str, int], ...]:
        """Payload names and field ids of the sent columns.

        :param then: columns of the schema that the rows were written by; ``now``: of the table
        :raises SinkError: a sent column is in neither
        """
        if self.follow:
            return tuple(then.values())
        return tuple((each.name, _resolved(each, then, now, sink)) for each in self.columns)


def _seen(pin: Pin, names: Mapping[int, str], now: Columns) -> Pin:
    if pin.field_id is not None and pin.field_id in names:
        return replace(pin, called=names[pin.field_id])
    found = now.get((pin.called or pin.name).casefold()) or now.get(pin.name.casefold())
    if found is None:
        return pin
    return Pin(found[0] if pin.field_id is None else pin.name, found[1], found[0])


def _resolved(pin: Pin, then: Columns, now: Columns, sink: str) -> int:
    # In rows from before a column was made anew, its name stood for the one that it replaced. A column that only came
    # later has no value in them.
    for columns in (then, now):
        if pin.field_id is not None and pin.field_id in {number for _, number in columns.values()}:
            return pin.field_id
        if pin.name.casefold() in columns:
            return columns[pin.name.casefold()][1]
    remedy = "declare sink.columns without it, or follow_schema: true"
    raise SinkError(sink, f"its source has no column {pin.name} any more", remedy)
