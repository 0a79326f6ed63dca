"""Summaries of earlier generations, and of earlier attempts of one, as the header of a ledger keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeVar

from airflow_provider_rfr.text import quantity

_Past = TypeVar("_Past", bound="_Summary")

LARGEST: Final = 2**63 - 1
_FIRST_YEAR, _LAST_YEAR = 1970, 9000


def read_moment(text: str) -> datetime:
    """Parse an ISO 8601 time with a UTC offset.

    :raises ValueError: it is something else, or before 1970 or after the year 9000
    """
    read = datetime.fromisoformat(text)
    if read.tzinfo is None or not _FIRST_YEAR <= read.year <= _LAST_YEAR:
        raise ValueError(f"{text!r} is not a time with a zone")
    return read


def check_counts(value: Any) -> dict[str, int]:
    """Check a mapping of names to counts, and return a copy.

    :raises ValueError: it is something else
    """
    is_fine = isinstance(value, dict) and all(
        name.isidentifier() and type(count) is int and 0 <= count <= LARGEST for name, count in value.items()
    )
    if not is_fine:
        raise ValueError("a value is not a mapping of names to counts")
    return dict(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """A base of summaries that can be written as JSON and read back."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not None, with times as ISO 8601."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }

    @classmethod
    def from_json(cls: type[_Past], content: Mapping[str, Any]) -> _Past:
        """Read the summary from JSON values.

        :raises ValueError: a value is not of its field's type, a number beyond 64 bits, or a text that can't be encoded
        """
        times = {field.name for field in fields(cls) if field.type == "datetime"}
        summary = cls(**{name: read_moment(value) if name in times else value for name, value in content.items()})
        for field in fields(cls):
            value, kind = getattr(summary, field.name), str(field.type)
            if value is None and kind.endswith("| None"):
                continue
            kind = kind.removesuffix(" | None")
            if kind == "dict[str, int]":
                check_counts(value)
            elif type(value).__name__ != kind or (isinstance(value, int) and abs(value) > LARGEST):
                raise ValueError(f"a value is not of type {kind}")
            elif isinstance(value, str):
                # JSON may hold half a surrogate pair, which no page or answer can show. The error is a ValueError, too.
                value.encode()
        return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGeneration(_Summary):
    """A summary of an earlier generation.

    :ivar outcome: ``published``, ``refused`` (at its publish) or ``abandoned``
    :ivar ended_at: when it was published, or last worked on
    :ivar rows: number of rows in the target; None if it was not published
    :ivar sync: as of :attr:`LedgerHeader.sync`
    :ivar changes: as of :class:`LedgerHeader`
    """

    generation: int
    outcome: str
    opened_at: datetime
    ended_at: datetime
    attempts: int = 1
    pages: int = 0
    records: int = 0
    rows: int | None = None
    sync: str = "full refresh"
    changes: dict[str, int] | None = None
    error: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended_at - self.opened_at).total_seconds())

    @property
    def result(self) -> str:
        """Return the outcome of the publish in words: changes, or rows; an empty text if it was not published."""
        if self.changes is not None:
            return changes_in_words(self.changes)
        return "" if self.rows is None else quantity(self.rows, "row")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt(_Summary):
    """A summary of an attempt on a generation.

    :ivar ended_at: when it recorded its end, else the time of its last commit
    :ivar outcome: how it ended: ``failed``, ``stopped``, ``refused`` (its publish), or ``interrupted`` without a report
    :ivar pages: pages that it added, including those in files that the next attempt adopted
    :ivar error: the error that it ended with, without secrets
    :ivar retried: errors after which it sent a request again, by kind; None without any
    :ivar try_number: of the task that ran it
    """

    epoch: int
    began_at: datetime
    ended_at: datetime
    outcome: str
    pages: int = 0
    error: str | None = None
    retried: dict[str, int] | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended_at - self.began_at).total_seconds())


def changes_rows(counts: Mapping[str, int]) -> bool:
    """Tell whether an incremental sync with these counts changed a row of the table."""
    return any(counts.get(name) for name in ("inserted", "updated", "deleted"))


def changes_in_words(counts: Mapping[str, int]) -> str:
    """Return the records of an incremental sync by their outcome, without zeros.

    >>> changes_in_words({"inserted": 2, "updated": 0, "unchanged": 7})
    '2 inserted, 7 unchanged'
    >>> changes_in_words({"inserted": 0, "updated": 0, "unchanged": 7})
    'no changes (7 unchanged)'
    """
    present = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    if changes_rows(counts):
        return present
    return f"no changes ({present})" if present else "no changes"
