"""What a sink does next, decided from its row and its source alone.

Snapshots that bring rows are sent; those of migrations, compactions and deletions are skipped. A snapshot that
replaces rows (a full refresh, an overwrite, a merge, a deletion of everything) may contain rows that were sent
before. An export of changes, ``emit: diff``, sends what differs by the keys; any other does what ``on_replace`` says:
it stops (``hold``), continues behind that snapshot (``resume_from_new``), or sends all rows again, declared as
duplicates (``resend``).

A *window* is the snapshots that a sink is sending. It is stored before its first batch is sent and holds all that its
division into batches depends on, so that the next run makes the same batches with the same ids after a crash,
whatever was declared or appended meanwhile.

A *pin* is a sent column: its name in the payload and, once a table was seen, its field id. A column that the source
renames keeps its first name; one that a migration dropped and added again is found by its name. Ids belong to one
table, so in a table that took its place only names count."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid5

from airflow_provider_rfr.builtins.spec import SinkSpec
from airflow_provider_rfr.exceptions import ConfigurationError, SinkError
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.lake.increments import Brings, Increment, SourceTable
from airflow_provider_rfr.store.sinks import SinkRow

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class What(str, Enum):
    """Which rows a window sends."""

    ALL = "all"
    """Those that the table shows at ``after``."""
    ADDED = "added"
    """Those that snapshots after ``before`` up to ``after`` added."""
    CHANGED = "changed"
    """Those that differ, by their keys, between ``before`` and ``after``."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is being sent.

    :ivar columns: name in the payload and field id
    :ivar keys: of changes; empty: rows are sent without their kind of change
    :ivar sequence: of ``before``, if known
    :ivar size: rows in a batch
    :ivar part: number of the next batch, from 0
    """

    what: What
    before: int | None
    after: int
    schema_id: int
    columns: tuple[tuple[str, int], ...]
    keys: tuple[str, ...]
    size: int
    sequence: int | None = None
    part: int = 0

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Window:
        found = json.loads(text)
        columns = tuple((name, number) for name, number in found.pop("columns"))
        return cls(**{**found, "what": What(found["what"]), "columns": columns, "keys": tuple(found["keys"])})


def batch_id(sink: UUID, physical: str, window: Window, ordinal: int, again: int) -> str:
    """The id of the window's next batch: the same for the same rows, and later batches sort behind earlier ones.

    :param ordinal: how many batches of the sink were acknowledged before
    :param again: how often everything was sent again: a declared duplicate is a batch of its own
    """
    said = f"{physical}/{window.before}/{window.after}/{window.part}/{again}"
    return f"{ordinal:010d}-{uuid5(sink, said).hex}"


def _first_added(line: Iterable[Increment], size: int) -> tuple[Increment, ...]:
    """The first snapshots that bring rows: as many as make a batch, as long as they were written by one schema.

    No window reaches over a migration: what is decided about the rows before it says nothing of those behind it.
    """
    taken: list[Increment] = []
    rows = 0
    for each in line:
        if each.brings is Brings.MIGRATION:
            break
        if each.brings is not Brings.ROWS:
            continue
        if taken and (rows >= size or each.schema_id != taken[0].schema_id):
            break
        taken.append(each)
        rows += each.rows
    return tuple(taken)


_ELSEWHERE = -1
"""In the place of an id that was another table's."""
_Columns = Mapping[str, tuple[str, int]]
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

    def seen(self, names: Mapping[int, str], now: _Columns) -> Pin:
        """With the id and the spelling of the table's column."""
        if self.field_id is not None and self.field_id in names:
            return replace(self, called=names[self.field_id])
        found = now.get((self.called or self.name).casefold()) or now.get(self.name.casefold())
        if found is None:
            return self
        return Pin(found[0] if self.field_id is None else self.name, found[1], found[0])

    def resolve(self, then: _Columns, now: _Columns, sink: str) -> int:
        """The field id of the column; see :meth:`Pins.resolve`."""
        # In rows from before a column was dropped and added again, its name means the earlier one. A column that only
        # came later has no value in them.
        for columns in (then, now):
            if self.field_id is not None and self.field_id in {number for _, number in columns.values()}:
                return self.field_id
            if self.name.casefold() in columns:
                return columns[self.name.casefold()][1]
        remedy = "declare sink.columns without it, or follow_schema: true"
        raise SinkError(sink, f"its source has no column {self.name} any more", remedy)


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
    def loads(cls, text: str) -> Pins:
        found: Mapping[str, Any] = json.loads(text)
        return cls(tuple(Pin(*each) for each in found["columns"]), found["follow"], found.get("table"))

    def dumps(self) -> str:
        columns = [[each.name, each.field_id, each.called] for each in self.columns]
        return json.dumps({"columns": columns, "follow": self.follow, "table": self.table})

    def seen(self, now: _Columns, table: str) -> Pins:
        """With the ids and the spelling of the table's columns; one that was dropped and added again has a new id.

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
        return Pins(tuple(each.seen(names, now) for each in before), table=table)

    def resolve(self, then: _Columns, now: _Columns, sink: str) -> tuple[tuple[str, int], ...]:
        """Payload names and field ids of the sent columns.

        :param then: columns of the schema that the rows were written by; ``now``: of the table
        :raises SinkError: a sent column is in neither
        """
        if self.follow:
            return tuple(then.values())
        return tuple((each.name, each.resolve(then, now, sink)) for each in self.columns)


_EMIT: Final = ("rows", "diff")
_SIZES: Final[Mapping[str, int]] = {"files": 100_000, "http": 500}
_HARMLESS: Final = frozenset({Brings.ROWS, Brings.NOTHING})


@dataclass(frozen=True, slots=True)
class Send:
    """Send a window. ``values`` are written with it."""

    window: Window
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """Send nothing, but write these values."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop until the sink is released.

    :ivar behind: where to continue without what came so far
    :ivar lasting: whether it stays stopped; else the next run looks again
    """

    reason: str
    behind: int | None = None
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How a sink is declared to export.

    :ivar size: rows in a batch
    :ivar keys: of an export of changes; else empty
    """

    size: int
    keys: tuple[str, ...]
    on_replace: str

    @classmethod
    def of(cls, spec: SinkSpec, table: SourceTable) -> SinkOptions:
        """The options of a declaration.

        :raises ConfigurationError: it is wrong
        """
        size = spec.settings.get("batch_size", _SIZES.get(spec.to, 500))
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError("sink.settings.batch_size", f"{size!r} is not a number of rows", "e.g. 500")
        emit = spec.settings.get("emit", "rows")
        if emit not in _EMIT:
            raise ConfigurationError("sink.settings.emit", f"{emit!r} is unknown", f"one of {', '.join(_EMIT)}")
        named = spec.settings.get("keys") or table.keys
        keys = (named,) if isinstance(named, str) else tuple(map(str, named))
        if emit == "diff" and not keys:
            remedy = "declare keys of the source, or settings.keys of the sink"
            raise ConfigurationError("sink.settings.emit", f"{table.name} has no keys to determine changes by", remedy)
        return cls(size, keys if emit == "diff" else (), spec.on_replace)


def next_move(row: SinkRow, table: SourceTable, options: SinkOptions) -> Send | Move | Hold | None:
    """What to do next; None when everything is sent.

    :raises SnapshotsExpiredError: snapshots that were not sent are expired
    :raises SinkError: a sent column no longer exists
    """
    if row.window is not None:
        return Send(Window.loads(row.window))
    cut = _Cut(row, table, options)
    if row.cursor is None:
        return None if table.head is None else cut.everything(table.head, table.schema_id)
    line = table.increments(row.cursor, None, row.sequence)
    if not line:
        return None
    return cut.changes(line) if options.keys else cut.rows(line)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cuts windows."""

    row: SinkRow
    table: SourceTable
    options: SinkOptions

    def rows(self, line: Sequence[Increment]) -> Send | Move | Hold:
        quiet = list(takewhile(lambda each: each.brings is not Brings.OTHERS, line))
        if quiet:
            return self._added(quiet)
        if self.options.on_replace == "resume_from_new":
            return Move({"cursor": line[0].snapshot_id})
        if self.options.on_replace == "resend":
            last = [each for each in line if each.brings is Brings.OTHERS][-1]
            return self.everything(last.snapshot_id, None, round=self.row.round + 1)
        at = line[0].snapshot_id
        return Hold(f"snapshot {at} replaced the rows of its source, and on_replace is {self.options.on_replace}", at)

    def changes(self, line: Sequence[Increment]) -> Send | Move:
        quiet = list(takewhile(lambda each: each.brings in _HARMLESS, line))
        if quiet:
            return self._added(quiet)
        after = line[-1].snapshot_id
        return self._send(What.CHANGED, self.row.cursor, after, self.table.schema_id)

    def everything(self, after: int, schema_id: int | None, **values: Any) -> Send:
        schema_id = self.table.schema_at(after) if schema_id is None else schema_id
        return self._send(What.ALL, None, after, schema_id, **values)

    def _added(self, quiet: Sequence[Increment]) -> Send | Move:
        passed = list(takewhile(lambda each: each.brings is not Brings.ROWS, quiet))
        if passed:
            return Move({"cursor": passed[-1].snapshot_id})
        taken = _first_added(quiet, self.options.size)
        schema_id = taken[0].schema_id
        schema_id = self.table.schema_id if schema_id is None else schema_id
        return self._send(What.ADDED, self.row.cursor, taken[-1].snapshot_id, schema_id)

    def _send(self, what: What, before: int | None, after: int, schema_id: int, **values: Any) -> Send:
        now = self.table.columns()
        pins = Pins.loads(self.row.pins).seen(now, self.table.uuid)
        columns = pins.resolve(self.table.columns(schema_id), now, self.row.name)
        spelled = {name.casefold(): name for name, _ in columns}
        missing = [key for key in self.options.keys if key.casefold() not in spelled]
        if missing:
            problem = f"the key {', '.join(missing)} is not among the sent columns"
            raise ConfigurationError("sink.columns", problem, "send the keys, too: changes are determined by them")
        keys = tuple(spelled[key.casefold()] for key in self.options.keys)
        window = Window(what, before, after, schema_id, columns, keys, self.options.size, self.row.sequence)
        return Send(window, {"physical": self.table.uuid, "pins": pins.dumps(), **values})


log = logging.getLogger(__name__)


def hold_snapshots(catalog: Catalog, name: str, row: SinkRow) -> None:
    """Write from which sequence number on the sink needs the table of this name; nothing for no table."""
    table = SourceTable.load(catalog, name)
    if table is None:
        return
    needed = 0
    if row.start != "new" and row.physical in (None, table.uuid):
        at = table.head if row.cursor is None else row.cursor
        if row.window is not None:
            window = Window.loads(row.window)
            at = window.after if window.before is None else window.before
        needed = table.sequence(at) or 0
    mine = hold_property(_holder(row.uuid, row.name))
    others = dict.fromkeys(_holds(table, row.uuid) - {mine})
    write_table_properties(catalog, name, {**others, mine: str(needed)})


def release_snapshots(catalog: Catalog, name: str, identity: UUID) -> None:
    """The sink needs no snapshot of the table any more."""
    table = SourceTable.load(catalog, name)
    if table is not None and (mine := _holds(table, identity)):
        write_table_properties(catalog, name, dict.fromkeys(mine))


def _holder(identity: UUID, name: str) -> str:
    return f"sink.{name}.{identity.hex[:8]}"


def _holds(table: SourceTable, identity: UUID) -> set[str]:
    """The sink's properties, also under a name that it had."""
    begin, end = _holder(identity, "*").split("*")
    begin = hold_property(begin)
    return {key for key in table.properties if key.startswith(begin) and key.endswith(end)}
