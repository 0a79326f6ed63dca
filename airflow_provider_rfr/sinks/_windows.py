"""What a sink does next, decided from its row and its source alone.

Snapshots that bring rows are sent; those of migrations, compactions and deletions are skipped. A snapshot that
replaces rows (a full refresh, an overwrite, a merge, a deletion of everything) may contain rows that were sent
before. An export of changes, ``emit: diff``, sends what differs by the keys; any other does what ``on_replace`` says:
it stops (``hold``), continues behind that snapshot (``resume_from_new``), or sends all rows again, declared as
duplicates (``resend``).

A *window* is the snapshots that a sink is sending. It is stored before its first batch is sent and holds all that its
division into batches depends on, so that the next run makes the same batches with the same ids after a crash,
whatever was declared or appended meanwhile."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Final
from uuid import UUID, uuid5

from pydantic import TypeAdapter

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.increments import Brings, Increment, SourceTable
from airflow_provider_rfr.sinks._columns import Columns, Pins
from airflow_provider_rfr.sinks.spec import SinkSpec
from airflow_provider_rfr.store.sinks import SinkRow


@dataclass(frozen=True, slots=True)
class Window:
    """What is being sent.

    :ivar before: None: all rows that the table shows at ``after``; else what came later than this snapshot
    :ivar columns: name in the payload and field id
    :ivar earlier: likewise, in the rows at ``before``, to send what differs by the keys; None: to send what was added
    :ivar keys: names in the payload, of changes; empty: rows are sent without their kind of change
    :ivar size: rows in a batch
    :ivar part: number of the next batch, from 0
    """

    before: int | None
    after: int
    columns: Columns
    earlier: Columns | None
    keys: tuple[str, ...]
    size: int
    part: int = 0

    @property
    def needs(self) -> int:
        """The oldest snapshot that is read."""
        return self.after if self.before is None else self.before

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Window:
        return TypeAdapter(cls).validate_json(text)


def batch_id(sink: UUID, physical: str, window: Window, ordinal: int, again: int) -> str:
    """The id of the window's next batch: the same for the same rows, and later batches sort behind earlier ones.

    :param ordinal: how many batches of the sink were acknowledged before
    :param again: how often everything was sent again: a declared duplicate is a batch of its own
    """
    said = f"{physical}/{window.before}/{window.after}/{window.part}/{again}"
    return f"{ordinal:010d}-{uuid5(sink, said).hex}"


_SIZES: Final[Mapping[str, int]] = {"files": 100_000, "http": 500}
_SKIPPED: Final = frozenset({Brings.NOTHING, Brings.LESS, Brings.MIGRATION})
Values = dict[str, Any]
"""Columns of the sink's row that are to be written."""


def next_values(row: SinkRow, table: SourceTable, spec: SinkSpec) -> Values | None:
    """What to write next, for a sink without a window; None when everything is sent.

    A ``window`` among the values is to be sent then; a ``held_reason`` stops the sink.

    :raises SnapshotsExpiredError: snapshots that were not sent are expired
    :raises ConfigurationError: an export of changes has no keys
    :raises SinkError: a sent column no longer exists
    """
    if row.since is not None:
        return _from_now_on(row, table, row.since)
    is_diff = bool(_keys(spec, table))
    if row.cursor is None:
        return None if table.head is None else _window(row, table, spec, None, table.head)
    line = table.increments(row.cursor, None, row.sequence)
    if not line:
        return None
    skipped = frozenset({Brings.NOTHING}) if is_diff else _SKIPPED
    if passed := list(takewhile(lambda each: each.brings in skipped, line)):
        return cursor_at(passed[-1].snapshot_id, table)
    first, last = line[0], line[-1].snapshot_id
    if first.brings is Brings.ROWS:
        return _window(row, table, spec, row.cursor, _last_added(line, skipped, _size(spec)))
    if is_diff:
        return _window(row, table, spec, row.cursor, last, is_difference=True)
    if spec.on_replace == "resume_from_new":
        return cursor_at(first.snapshot_id, table)
    if spec.on_replace == "resend":
        last = [each for each in line if each.brings is Brings.OTHERS][-1].snapshot_id
        return {**_window(row, table, spec, None, last), "round": row.round + 1}
    reason = f"snapshot {first.snapshot_id} replaced the rows of its source, and on_replace is {spec.on_replace}"
    return held(reason, first.snapshot_id)


def cursor_at(snapshot_id: int | None, table: SourceTable) -> Values:
    """The end of a window: everything up to this snapshot was sent, or is not to be sent."""
    return {"window": None, "cursor": snapshot_id, "sequence": table.sequence(snapshot_id)}


def held(reason: str, behind: int | None) -> Values:
    """What stops a sink.

    :param behind: snapshot behind which it continues where what came so far is not to be sent
    """
    return {"held_reason": reason, "behind": behind, "deploy_id": None, "window": None}


def _from_now_on(row: SinkRow, table: SourceTable, since: int) -> Values:
    """A cursor behind what was there when it was decided that this is not to be sent.

    What was sent after that, by a run that came before the decision, is left where it is.
    """
    is_made_anew = row.deploy_id is not None and row.physical not in (None, table.uuid)
    cursor = None if is_made_anew else table.last_of(row.deploy_id) or table.last_before(since)
    at = row.cursor if row.window is None else Window.loads(row.window).needs
    is_behind = row.physical == table.uuid and at is not None and table.has_passed(cursor, at)
    moved = {} if is_behind else cursor_at(cursor, table)
    return {**moved, "since": None, "deploy_id": None, "physical": table.uuid}


def _last_added(line: Sequence[Increment], skipped: Collection[Brings], size: int) -> int:
    """The last of the snapshots that make a batch, of a line whose first one brings rows; one schema wrote them all.

    No window reaches over a migration: what is decided about the rows before it says nothing of those behind it.
    """
    last, rows = line[0], 0
    for each in line:
        if each.brings is Brings.ROWS:
            if rows >= size or each.schema_id != last.schema_id:
                break
            last, rows = each, rows + each.rows
        elif each.brings is Brings.MIGRATION or each.brings not in skipped:
            break
    return last.snapshot_id


def _size(spec: SinkSpec) -> int:
    return int(spec.settings.get("batch_size", _SIZES[spec.to]))


def _keys(spec: SinkSpec, table: SourceTable) -> tuple[str, ...]:
    """Of an export of changes; else none."""
    if spec.settings.get("emit") != "diff":
        return ()
    keys = tuple(spec.settings.get("keys", ())) or table.keys
    if not keys:
        remedy = "declare keys of the source, or settings.keys of the sink"
        problem = f"{table.name} has no keys to determine changes by"
        raise ConfigurationError("sink.settings.emit", problem, remedy)
    return keys


def _window(
    row: SinkRow, table: SourceTable, spec: SinkSpec, before: int | None, after: int, *, is_difference: bool = False
) -> Values:
    now, then, keys = table.columns(), table.columns(after), _keys(spec, table)
    pins = Pins.loads(row.pins)
    pins = pins.seen(then if pins.follow else now, table.uuid)
    columns, names = pins.resolve(then, now, row.name), pins.payload_names()
    if missing := [key for key in keys if key.casefold() not in names]:
        problem = f"the key {', '.join(missing)} is not among the sent columns"
        raise ConfigurationError("sink.columns", problem, "send the keys, too: changes are determined by them")
    earlier = pins.resolve(table.columns(before), now, row.name) if is_difference else None
    sent_keys = tuple(names[key.casefold()] for key in keys)
    window = Window(before, after, columns, earlier, sent_keys, _size(spec))
    return {"window": window.dumps(), "physical": table.uuid, "pins": pins.dumps()}
