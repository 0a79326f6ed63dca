"""The header: state of the refresh as a whole, in the snapshot summary of every ledger commit.

The newest snapshot's header is the state; page rows only hold what is per partition. Each commit writes all of it, so
trimming old snapshots loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from airflow_provider_rfr.exceptions import LedgerError

PREFIX = "rfr."
_FORMAT = 1
GENERATION_KEY = PREFIX + "generation"
_KEPT_PAST = 20
_LONGEST_PAST_ERROR = 200
_LARGEST = 2**63 - 1
_FIRST_YEAR, _LAST_YEAR = 1970, 9000


class RefreshState(str, Enum):
    """The state of a generation."""

    OPEN = "open"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGeneration:
    """A summary of an earlier generation.

    :ivar outcome: ``published``, ``refused`` (at its publish) or ``abandoned``
    :ivar ended_at: when it was published, or last worked on
    :ivar rows: in the target; None if it was not published
    """

    generation: int
    outcome: str
    opened_at: datetime
    ended_at: datetime
    attempts: int = 1
    pages: int = 0
    records: int = 0
    rows: int | None = None
    error: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended_at - self.opened_at).total_seconds())

    def to_json(self) -> dict[str, Any]:
        """Return the fields without those that are None."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return values | {name: values[name].isoformat() for name in ("opened_at", "ended_at")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PastGeneration:
        """Read an earlier generation from JSON values.

        :raises ValueError: a value is not of its field's type, or is too large to be told
        """
        times = {name: _moment(content[name]) for name in ("opened_at", "ended_at")}
        found = cls(**{**content, **times})
        for field in fields(cls):
            value, kind = getattr(found, field.name), str(field.type)
            if not (value is None and kind.endswith("| None")):
                _check(value, kind.removesuffix(" | None"))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """The state of the newest generation of one target.

    :ivar epoch: the attempt that may commit
    :ivar read_fingerprint: of what decides which requests are made
    :ivar publish_fingerprint: of what decides how rows are typed
    :ivar progressed_at: when pages were last added; a take-over alone does not count
    :ivar refused_under: fingerprint of the rules under which the publish was refused; under the same rules it would be
        refused again. None if it was not refused
    :ivar began_at: when the attempt opened or took over the generation
    :ivar found_pages: pages that it found then, adopted ones included; ``found_records`` and ``found_partitions``
        (complete ones) likewise
    :ivar silence: seconds for which a live attempt commits nothing at the most
    :ivar ended_at: when the attempt ended, None while it works, and if it was killed
    :ivar outcome: how it ended, as its error's class names it; None while ``ended_at`` is
    :ivar error: what the last attempt that said so ended with, without secrets; it stays while the next one
        of the same DAG works
    :ivar run_key: the run that holds the generation
    :ivar replace_where: the part of the target, as its last attempt wrote it; None for the whole
    :ivar dag_id: the task of the run that holds it; None outside of Airflow. ``dag_run_id``, ``task_id`` and
        ``map_index`` (-1 where the task is not mapped) likewise
    :ivar records: records on live chains
    :ivar bytes: of the generation's files in the ledger
    :ivar pages: page rows committed, superseded chains included
    :ivar previous_rows: rows of the last published generation, None before the first
    :ivar published_rows: rows of this generation in the target, once published
    :ivar snapshot_id: the target's commit, once published
    :ivar past: earlier generations, the newest first; as many as are worth showing
    """

    generation: int
    epoch: int
    state: RefreshState
    read_fingerprint: str
    publish_fingerprint: str
    opened_at: datetime
    committed_at: datetime
    began_at: datetime
    progressed_at: datetime | None = None
    refused_under: str | None = None
    silence: float = 90.0
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str | None = None
    run_key: str | None = None
    replace_where: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    attempts: int = 1
    rounds: int = 0
    pages: int = 0
    records: int = 0
    bytes: int = 0
    partitions: int = 0
    partitions_done: int = 0
    found_pages: int = 0
    found_records: int = 0
    found_partitions: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    previous_rows: int | None = None
    published_rows: int | None = None
    snapshot_id: int | None = None
    past: tuple[PastGeneration, ...] = ()

    @property
    def is_read(self) -> bool:
        """Tell whether every partition is read; True where there are no partitions."""
        return self.partitions_done == self.partitions

    @property
    def last_published_rows(self) -> int | None:
        """Return the rows of the last published generation, which may be this one; None before the first."""
        return self.published_rows if self.state is RefreshState.PUBLISHED else self.previous_rows

    @property
    def as_past(self) -> PastGeneration:
        """Return the summary of this generation that a newer one keeps."""
        if self.state is RefreshState.PUBLISHED:
            outcome, ended = "published", self.committed_at
        else:
            outcome = "abandoned" if self.refused_under is None else "refused"
            ended = self.ended_at or self.committed_at
        counts, task = ("attempts", "pages", "records"), ("dag_id", "dag_run_id", "task_id", "map_index")
        return PastGeneration(
            **{name: getattr(self, name) for name in ("generation", "opened_at", *counts, *task)},
            outcome=outcome,
            ended_at=ended,
            rows=self.published_rows,
            error=None if outcome == "published" else self.error and self.error[:_LONGEST_PAST_ERROR],
        )

    @property
    def with_past(self) -> tuple[PastGeneration, ...]:
        """Return this generation and those before it, as the next one keeps them."""
        return (self.as_past, *self.past)[:_KEPT_PAST]

    def to_summary(self) -> dict[str, str]:
        summary = {PREFIX + "format": str(_FORMAT)}
        for name in _FIELDS:
            value = getattr(self, name)
            if name == "past":
                value = json.dumps([generation.to_json() for generation in value]) if value else None
            elif isinstance(value, Enum):
                value = value.value
            if value is not None:
                summary[_key(name)] = value.isoformat() if isinstance(value, datetime) else str(value)
        return summary

    def advanced(self, **changes: Any) -> LedgerHeader:
        """Return the header of the next commit. The attempt works, unless ``changes`` say how it ended."""
        now = datetime.now(timezone.utc)
        progress = now if changes.get("pages", self.pages) > self.pages else self.progressed_at
        working = {"ended_at": None, "outcome": None}
        return replace(self, committed_at=now, progressed_at=progress, **{**working, **changes})

    def taken_over(self, **changes: Any) -> LedgerHeader:
        """Return the header of an attempt's first commit, which opens the generation or takes it over."""
        header = self.advanced(**changes)
        # Whoever may see this attempt's DAG need not be allowed to see the DAG of the one before it.
        error = self.error if header.dag_id == self.dag_id else None
        return replace(
            header,
            error=error,
            began_at=header.committed_at,
            found_pages=header.pages,
            found_records=header.records,
            found_partitions=header.partitions_done,
        )


def read_header(summary: Mapping[str, str] | None) -> LedgerHeader | None:
    """Read the header in a summary; return None if it has none.

    :raises LedgerError: it has another format, or can't be parsed
    """
    if summary is None or GENERATION_KEY not in summary:
        return None
    if summary.get(PREFIX + "format") != str(_FORMAT):
        raise LedgerError(
            f"the ledger was written in format {summary.get(PREFIX + 'format')!r}, this version reads {_FORMAT}"
        )
    try:
        values = {name: parse(summary[key]) for name, (key, parse) in _FIELDS.items() if key in summary}
        return LedgerHeader(**values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerError(f"the ledger's header can't be read: {error}") from error


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"{text!r} is not a time with a zone")
    return moment


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > _LARGEST:
        raise ValueError(f"a number has {len(text)} digits")
    return number


def _check(value: Any, kind: str) -> None:
    if type(value).__name__ != kind or (isinstance(value, int) and abs(value) > _LARGEST):
        raise ValueError(f"a value is not of type {kind}")
    if isinstance(value, str):
        # JSON may hold halves of characters, which no answer can.
        value.encode()


# By the type of the field, as its annotation is written.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": float,
    "datetime": _moment,
    "RefreshState": RefreshState,
    "tuple[PastGeneration, ...]": lambda text: tuple(map(PastGeneration.from_json, json.loads(text))),
}
_FIELDS = {
    field.name: (_key(field.name), _PARSERS[str(field.type).removesuffix(" | None")]) for field in fields(LedgerHeader)
}
