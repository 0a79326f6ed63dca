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

from pydantic import TypeAdapter

from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.sinks.spec import SinkSpec

Columns = tuple[tuple[str, int], ...]
"""Name and field id of each column: in a table's schema, or in what is sent."""


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

    def find(self, columns: Columns) -> tuple[str, int] | None:
        """The column in a schema: by its ids, or else by its names."""
        known = {key: each for each in columns for key in (each[1], each[0].casefold())}
        keys = (*self.ids, self.called.casefold(), self.name.casefold())
        return next((known[key] for key in keys if key in known), None)

    def seen(self, now: Columns) -> Pin:
        """With id and spelling of the table's column; as it is, if there is none."""
        called, *ids = self.find(now) or (self.called,)
        return Pin(self.name, called, tuple(dict.fromkeys((*ids, *self.ids))))


@dataclass(frozen=True, slots=True)
class Pins:
    """All sent columns, in their order.

    :ivar named: the payload has the pins' names; else those of the source
    :ivar follow: whatever the source has is sent
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
        pins, table = (before.columns, before.table) if before is not None and not before.follow else ((), None)
        if pins and not spec.columns:
            called = columns if len(columns) == len(pins) else [each.called for each in pins]
            return cls(tuple(replace(pin, called=now) for pin, now in zip(pins, called, strict=True)), table=table)
        names = spec.columns or tuple(columns)
        called = columns or names
        was = {new.casefold(): old for old, new in renamed.items()}
        keys = [each.casefold() for each in called]
        # Where an old name is another sent column's now, done again this would take the one for the other.
        known = {} if renamed.keys() & set(keys) else {each.called.casefold(): each.ids for each in pins}
        ids = [known.get(was.get(key, key), known.get(key, ())) for key in keys]
        found = tuple(Pin(*each) for each in zip(names, called, ids, strict=True))
        return cls(found, bool(spec.columns), table=table)

    @classmethod
    def loads(cls, text: str) -> Pins:
        return TypeAdapter(cls).validate_json(text)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    def seen(self, now: Columns, table: str) -> Pins:
        """With the ids and the spelling of a table's columns; all of them, where none are known or all are sent.

        :param table: its uuid
        """
        if self.follow or not self.columns:
            return replace(self, columns=tuple(Pin(name, name, (number,)) for name, number in now), table=table)
        here = self.table in (None, table)
        pins = (pin if here else replace(pin, ids=()) for pin in self.columns)
        return replace(self, columns=tuple(pin.seen(now) for pin in pins), table=table)

    def resolve(self, then: Columns, now: Columns, sink: str) -> Columns:
        """Name in the payload and field id of each column in rows of a schema. One that came later has no value there.

        :param then: columns of the schema that the rows were written by; ``now``: of the table
        :raises SinkError: a sent column is in neither
        """
        sent = []
        for pin in self.columns:
            found = pin.find(then) or pin.find(now)
            if found is None:
                remedy = "declare sink.columns without it, or follow_schema: true"
                raise SinkError(sink, f"its source has no column {pin.called} any more", remedy)
            sent.append((pin.name if self.named else pin.called, found[1]))
        return tuple(sent)

    def payload_names(self) -> Mapping[str, str]:
        """Names in the payload, by all names by which a sent column is known, as they are compared."""
        names = {pin.name if self.named else pin.called: pin for pin in self.columns}
        known = {each.casefold(): name for name, pin in names.items() for each in (pin.name, pin.called)}
        return known | {name.casefold(): name for name in names}
