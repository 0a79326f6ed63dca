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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final
from uuid import UUID, uuid5

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.increments import Brings, Increment, SourceTable
from airflow_provider_rfr.sinks._columns import Pins, Sent
from airflow_provider_rfr.sinks.spec import SinkSpec
from airflow_provider_rfr.store.sinks import SinkRow


@dataclass(frozen=True, slots=True)
class Window:
    """What is being sent.

    :ivar before: None: all rows that the table shows at ``after``; else what came later than this snapshot
    :ivar columns: name in the payload and field id
    :ivar earlier: likewise, in the rows at ``before``, to send what differs by the keys; None: to send what was added
    :ivar keys: names in the payload, of changes; empty: rows are sent without their kind of change
    :ivar sequence: of ``before``, if known
    :ivar size: rows in a batch
    :ivar part: number of the next batch, from 0
    """

    before: int | None
    after: int
    schema_id: int
    columns: Sent
    earlier: Sent | None
    keys: tuple[str, ...]
    size: int
    sequence: int | None = None
    part: int = 0

    @property
    def needs(self) -> int:
        """The oldest snapshot that is read."""
        return self.after if self.before is None else self.before

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Window:
        found = json.loads(text)
        for name in ("columns", "earlier"):
            found[name] = None if found[name] is None else tuple(map(tuple, found[name]))
        return cls(**{**found, "keys": tuple(found["keys"])})


def batch_id(sink: UUID, physical: str, window: Window, ordinal: int, again: int) -> str:
    """The id of the window's next batch: the same for the same rows, and later batches sort behind earlier ones.

    :param ordinal: how many batches of the sink were acknowledged before
    :param again: how often everything was sent again: a declared duplicate is a batch of its own
    """
    said = f"{physical}/{window.before}/{window.after}/{window.part}/{again}"
    return f"{ordinal:010d}-{uuid5(sink, said).hex}"


_SIZES: Final[Mapping[str, int]] = {"files": 100_000, "http": 500}
_HARMLESS: Final = frozenset({Brings.ROWS, Brings.NOTHING})
_PASSED: Final = frozenset(Brings) - {Brings.OTHERS}
Values = dict[str, Any]
"""Columns of the sink's row that are to be written."""


def next_values(row: SinkRow, table: SourceTable, spec: SinkSpec) -> Values | None:
    """What to write next, for a sink without a window; None when everything is sent.

    A ``window`` among the values is to be sent then; a ``held_reason`` stops the sink.

    :raises SnapshotsExpiredError: snapshots that were not sent are expired
    :raises ConfigurationError: an export of changes has no keys
    :raises SinkError: a sent column no longer exists
    """
    if row.start == "new":
        return _from_now_on(row, table)
    keys = _keys(spec, table)
    cut = partial(_window, row, table, spec, keys)
    if row.cursor is None:
        return None if table.head is None else cut(None, table.head, table.schema_id)
    line = table.increments(row.cursor, None, row.sequence)
    if not line:
        return None
    quiet = list(takewhile(lambda each: each.brings in (_HARMLESS if keys else _PASSED), line))
    passed = list(takewhile(lambda each: each.brings is not Brings.ROWS, quiet))
    if passed:
        return cursor_at(passed[-1].snapshot_id, table)
    if quiet:
        taken = _first_added(quiet, _size(spec))
        return cut(row.cursor, taken[-1].snapshot_id, taken[0].schema_id)
    if keys:
        return cut(row.cursor, line[-1].snapshot_id, table.schema_id, is_difference=True)
    first = line[0].snapshot_id
    if spec.on_replace == "resume_from_new":
        return cursor_at(first, table)
    if spec.on_replace == "resend":
        last = [each for each in line if each.brings is Brings.OTHERS][-1].snapshot_id
        return {**cut(None, last, table.schema_at(last)), "round": row.round + 1}
    return held(f"snapshot {first} replaced the rows of its source, and on_replace is {spec.on_replace}", first)


def cursor_at(snapshot_id: int | None, table: SourceTable) -> Values:
    """The end of a window: everything up to this snapshot was sent, or is not to be sent."""
    return {"window": None, "cursor": snapshot_id, "sequence": table.sequence(snapshot_id)}


def held(reason: str, behind: int | None) -> Values:
    """What stops a sink.

    :param behind: snapshot behind which it continues where what came so far is not to be sent
    """
    return {"held_reason": reason, "behind": behind, "deploy_id": None, "window": None}


def _from_now_on(row: SinkRow, table: SourceTable) -> Values:
    """A cursor behind what was there when it was decided that this is not to be sent.

    What was sent after that, by a run that came before the decision, is left where it is.
    """
    decided = {"start": None, "since": None, "deploy_id": None, "physical": table.uuid}
    if row.deploy_id is not None and row.physical not in (None, table.uuid):
        return {**cursor_at(None, table), **decided}
    cursor = table.last_of(row.deploy_id) if row.deploy_id is not None else None
    if cursor is None:
        cursor = table.last_before(row.since or 0)
    if row.physical == table.uuid:
        at = row.cursor if row.window is None else Window.loads(row.window).needs
        if at is not None and table.has_passed(cursor, at):
            return decided
    return {**cursor_at(cursor, table), **decided}


def _first_added(line: Iterable[Increment], size: int) -> tuple[Increment, ...]:
    """The first snapshots that bring rows: as many as make a batch, as long as they were written by one schema.

    No window reaches over a migration: what is decided about the rows before it says nothing of those behind it.
    """
    taken: list[Increment] = []
    rows = 0
    for each in takewhile(lambda each: each.brings is not Brings.MIGRATION, line):
        if each.brings is Brings.ROWS:
            if taken and (rows >= size or each.schema_id != taken[0].schema_id):
                break
            taken.append(each)
            rows += each.rows
    return tuple(taken)


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
    row: SinkRow,
    table: SourceTable,
    spec: SinkSpec,
    keys: Sequence[str],
    before: int | None,
    after: int,
    schema_id: int | None,
    *,
    is_difference: bool = False,
) -> Values:
    """A window, to be written.

    :param schema_id: that its rows were written by; None: the table's
    """
    now, schema_id = table.columns(), table.schema_id if schema_id is None else schema_id
    pins = Pins.loads(row.pins).seen(now, table.uuid)
    columns, earlier = pins.resolve(table.columns(schema_id), now, row.name), None
    names = pins.payload_names(columns)
    if missing := [key for key in keys if key.casefold() not in names]:
        problem = f"the key {', '.join(missing)} is not among the sent columns"
        raise ConfigurationError("sink.columns", problem, "send the keys, too: changes are determined by them")
    if is_difference and before is not None:
        earlier = pins.resolve(table.columns(table.schema_at(before)), now, row.name)
    sent_keys = tuple(names[key.casefold()] for key in keys)
    window = Window(before, after, schema_id, columns, earlier, sent_keys, _size(spec), row.sequence)
    return {"window": window.dumps(), "physical": table.uuid, "pins": pins.dumps()}
