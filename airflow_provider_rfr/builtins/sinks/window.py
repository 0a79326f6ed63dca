"""A window: the snapshots that a sink is sending, and how they are cut into batches.

It is written down before its first batch is sent and holds all that the cut depends on, so that whoever goes on after a
crash makes the same batches with the same ids, whatever was declared or appended meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from uuid import UUID, uuid5

from airflow_provider_rfr.lake.increments import Brings, Increment


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
    :ivar keys: of changes; empty: rows are sent as they are, without saying what became of them
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
        """As the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Window:
        """The window that :meth:`dumps` wrote."""
        found = json.loads(text)
        columns = tuple((name, number) for name, number in found.pop("columns"))
        return cls(**{**found, "what": What(found["what"]), "columns": columns, "keys": tuple(found["keys"])})


def batch_id(sink: UUID, physical: str, window: Window, ordinal: int, again: int) -> str:
    """The id of the window's next batch: the same for the same rows, and later batches sort behind earlier ones.

    :param ordinal: how many batches of the sink were acknowledged before
    :param again: how often everything was sent anew: a declared duplicate is no repetition
    """
    said = f"{physical}/{window.before}/{window.after}/{window.part}/{again}"
    return f"{ordinal:010d}-{uuid5(sink, said).hex}"


def first_added(line: Iterable[Increment], size: int) -> tuple[Increment, ...]:
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
