"""Which columns a sink sends, and under which names.

A sink that declares ``columns`` sends those, under the names it declares. Any other sends the columns that its source
had when it was registered, under the names that the source has for them; with ``follow_schema``, whatever there is.

A column is known by its Iceberg field id from the first run on, so the source may rename it. A rewrite that gives it
another type gives it another id, too: then it is found by its name, and the ids that it had tell it in older rows. Ids
belong to one table: in a table that took its place only names count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.sinks.spec import SinkSpec

Columns = Mapping[str, tuple[str, int]]
"""Spelling and field id of a table's columns, by their names as they are compared."""
Sent = tuple[tuple[str, int], ...]
"""Name in the payload and field id of the sent columns."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A sent column.

    :ivar name: as it is declared, or was when the sink was registered
    :ivar called: in the source, as far as is known
    :ivar ids: its field ids, the newest first; none until a table was seen
    """

    name: str
    called: str
    ids: tuple[int, ...] = ()

    def seen(self, now: Columns) -> Pin:
        """With id and spelling of the table's column; as it is, if there is none."""
        names = {number: name for name, number in now.values()}
        if self.ids and self.ids[0] in names:
            return replace(self, called=names[self.ids[0]])
        found = now.get(self.called.casefold()) or now.get(self.name.casefold())
        return self if found is None else Pin(self.name, found[0], (found[1], *self.ids))

    def resolve(self, *schemas: Columns) -> int | None:
        """Its field id in the first schema that has it, by its ids or else by its names; None if none has it."""
        for columns in schemas:
            there = {number for _, number in columns.values()}
            known = [number for number in self.ids if number in there]
            named = [columns[key][1] for key in (self.called.casefold(), self.name.casefold()) if key in columns]
            if known or named:
                return (known or named)[0]
        return None


@dataclass(frozen=True, slots=True)
class Pins:
    """All sent columns, in their order.

    :ivar named: the payload has the pins' names; else those of the source
    :ivar follow: whatever the source has is sent, and ``columns`` is empty
    :ivar table: uuid of the table that the ids are of; None until one was seen
    """

    columns: tuple[Pin, ...] = ()
    named: bool = False
    follow: bool = False
    table: str | None = None

    @classmethod
    def of(
        cls,
        spec: SinkSpec,
        columns: Sequence[str],
        before: Pins | None = None,
        renamed: Mapping[str, str] = MappingProxyType({}),
    ) -> Pins:
        """The pins of a declaration.

        :param columns: the sent columns as the source calls them now, in order; empty if that is not known
        :param before: of the same sink and source until now: columns keep their ids, and a sink that names none keeps
            its columns
        :param renamed: columns of the source that have another name since then: old names, as they are compared, to new
        """
        if spec.follow_schema:
            return cls(follow=True)
        pins, table = (before.columns, before.table) if before is not None else ((), None)
        if pins and not spec.columns:
            called = columns if len(columns) == len(pins) else [each.called for each in pins]
            return cls(tuple(replace(pin, called=now) for pin, now in zip(pins, called, strict=True)), table=table)
        names = spec.columns or tuple(columns)
        keys = [each.casefold() for each in columns or names]
        was = {new.casefold(): old for old, new in renamed.items()}
        # Where an old name is another sent column's now, done again this would take the one for the other.
        known = {} if renamed.keys() & set(keys) else {each.called.casefold(): each for each in pins}
        found = (known.get(was.get(key, key)) or known.get(key) for key in keys)
        pins = tuple(
            Pin(name, now, () if pin is None else pin.ids)
            for name, now, pin in zip(names, columns or names, found, strict=True)
        )
        return cls(pins, bool(spec.columns), table=table)

    @classmethod
    def loads(cls, text: str) -> Pins:
        found = json.loads(text)
        pins = (Pin(each["name"], each["called"], tuple(each["ids"])) for each in found.pop("columns"))
        return cls(tuple(pins), **found)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    def seen(self, now: Columns, table: str) -> Pins:
        """With the ids and the spelling of a table's columns.

        :param table: its uuid
        """
        if self.follow:
            return self
        if not self.columns:
            return Pins(tuple(Pin(name, name, (number,)) for name, number in now.values()), table=table)
        here = self.table in (None, table)
        pins = (pin if here else replace(pin, ids=()) for pin in self.columns)
        return replace(self, columns=tuple(pin.seen(now) for pin in pins), table=table)

    def resolve(self, then: Columns, now: Columns, sink: str) -> Sent:
        """The sent columns in rows of a schema. One that came later has no value in them.

        :param then: columns of the schema that the rows were written by; ``now``: of the table
        :raises SinkError: a sent column is in neither
        """
        if self.follow:
            return tuple(then.values())
        found = []
        for pin in self.columns:
            number = pin.resolve(then, now)
            if number is None:
                remedy = "declare sink.columns without it, or follow_schema: true"
                raise SinkError(sink, f"its source has no column {pin.called} any more", remedy)
            found.append((pin.name if self.named else pin.called, number))
        return tuple(found)

    def payload_names(self, sent: Sent) -> Mapping[str, str]:
        """Names in the payload, by all names by which a sent column is known, as they are compared."""
        names = {name.casefold(): name for name, _ in sent}
        for pin, (name, _) in zip(self.columns, sent, strict=False):
            names.setdefault(pin.called.casefold(), name)
            names.setdefault(pin.name.casefold(), name)
        return names
