"""What a sink does next, decided from its row and its source alone.

Snapshots that bring rows are sent; those of migrations, compactions and deletions are passed. A snapshot that replaces
rows (a full refresh, an overwrite, a merge, a deletion of everything) has among its rows some that were sent before.
An export of changes, ``emit: diff``, sends what differs by the keys; any other does what ``on_replace`` says: it stops
(``hold``), goes on behind that snapshot (``resume_from_new``), or sends all that the table holds once more, declared as
a duplicate (``resend``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_rfr.builtins.sinks.pins import Pins
from airflow_provider_rfr.builtins.sinks.window import What, Window, first_added
from airflow_provider_rfr.builtins.spec import SinkSpec
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.increments import Brings, Increment, SourceTable
from airflow_provider_rfr.store.sinks import SinkRow

EMIT: Final = ("rows", "diff")
_SIZES: Final[Mapping[str, int]] = {"files": 100_000, "http": 500}
_HARMLESS: Final = frozenset({Brings.ROWS, Brings.NOTHING})


def _none() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Send:
    """Send a window. ``values`` are written with it."""

    window: Window
    values: Mapping[str, Any] = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class Move:
    """Send nothing, but write these values."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop until somebody decides.

    :ivar behind: where to go on without what came so far
    :ivar lasting: whether it stays stopped; else the next run looks again
    """

    reason: str
    behind: int | None = None
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Manner:
    """How a sink is declared to export.

    :ivar size: rows in a batch
    :ivar keys: of an export of changes; else empty
    """

    size: int
    keys: tuple[str, ...]
    on_replace: str

    @classmethod
    def of(cls, spec: SinkSpec, table: SourceTable) -> Manner:
        """The manner of a declaration.

        :raises ConfigurationError: it is wrong
        """
        size = spec.settings.get("batch_size", _SIZES.get(spec.to, 500))
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError("sink.settings.batch_size", f"{size!r} is no number of rows", "e.g. 500")
        emit = spec.settings.get("emit", "rows")
        if emit not in EMIT:
            raise ConfigurationError("sink.settings.emit", f"{emit!r} is unknown", f"one of {', '.join(EMIT)}")
        named = spec.settings.get("keys") or table.keys
        keys = (named,) if isinstance(named, str) else tuple(map(str, named))
        if emit == "diff" and not keys:
            remedy = "declare keys of the source, or settings.keys of the sink"
            raise ConfigurationError("sink.settings.emit", f"{table.name} has no keys to tell changes by", remedy)
        return cls(size, keys if emit == "diff" else (), spec.on_replace)


def next_move(row: SinkRow, table: SourceTable, manner: Manner, until: int | None = None) -> Send | Move | Hold | None:
    """What to do next; None when everything is sent.

    :param until: the last snapshot to look at; None: the current one
    :raises SnapshotsExpiredError: snapshots that were not sent are gone
    :raises SinkError: a sent column is gone
    """
    if row.window is not None:
        return Send(Window.loads(row.window))
    cut = _Cut(row, table, manner, until)
    last = table.head if until is None else until
    if row.cursor is None:
        return None if last is None else cut.everything(last, table.schema_id if until is None else None)
    line = table.increments(row.cursor, until, row.sequence)
    if not line:
        return None
    return cut.changes(line) if manner.keys else cut.rows(line)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Cuts windows."""

    row: SinkRow
    table: SourceTable
    manner: Manner
    until: int | None

    def rows(self, line: Sequence[Increment]) -> Send | Move | Hold:
        quiet = list(takewhile(lambda each: each.brings is not Brings.OTHERS, line))
        if quiet:
            return self._added(quiet)
        if self.manner.on_replace == "resume_from_new":
            return Move({"cursor": line[0].snapshot_id})
        if self.manner.on_replace == "resend":
            last = [each for each in line if each.brings is Brings.OTHERS][-1]
            return self.everything(last.snapshot_id, None, round=self.row.round + 1)
        at = line[0].snapshot_id
        return Hold(f"snapshot {at} replaced the rows of its source, and on_replace is {self.manner.on_replace}", at)

    def changes(self, line: Sequence[Increment]) -> Send | Move:
        quiet = list(takewhile(lambda each: each.brings in _HARMLESS, line))
        if quiet:
            return self._added(quiet)
        after = line[-1].snapshot_id
        schema_id = self.table.schema_id if self.until is None else self.table.schema_at(after)
        return self._send(What.CHANGED, self.row.cursor, after, schema_id)

    def everything(self, after: int, schema_id: int | None, **values: Any) -> Send:
        schema_id = self.table.schema_at(after) if schema_id is None else schema_id
        return self._send(What.ALL, None, after, schema_id, **values)

    def _added(self, quiet: Sequence[Increment]) -> Send | Move:
        passed = list(takewhile(lambda each: each.brings is not Brings.ROWS, quiet))
        if passed:
            return Move({"cursor": passed[-1].snapshot_id})
        taken = first_added(quiet, self.manner.size)
        schema_id = taken[0].schema_id
        schema_id = self.table.schema_id if schema_id is None else schema_id
        return self._send(What.ADDED, self.row.cursor, taken[-1].snapshot_id, schema_id)

    def _send(self, what: What, before: int | None, after: int, schema_id: int, **values: Any) -> Send:
        now = self.table.columns()
        pins = Pins.loads(self.row.pins).seen(now, self.table.uuid)
        columns = pins.resolve(self.table.columns(schema_id), now, self.row.name)
        spelled = {name.casefold(): name for name, _ in columns}
        missing = [key for key in self.manner.keys if key.casefold() not in spelled]
        if missing:
            problem = f"the key {', '.join(missing)} is not among the sent columns"
            raise ConfigurationError("sink.columns", problem, "send the keys, too: changes are told by them")
        keys = tuple(spelled[key.casefold()] for key in self.manner.keys)
        window = Window(what, before, after, schema_id, columns, keys, self.manner.size, self.row.sequence)
        return Send(window, {"physical": self.table.uuid, "pins": pins.dumps(), **values})
