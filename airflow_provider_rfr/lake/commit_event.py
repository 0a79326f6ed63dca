"""The event of a commit, as webhooks report it: one key of the snapshot's summary, so both are one atomic write.

The key holds compact JSON and never a secret. Sequence number, snapshot id and time of the commit are the snapshot's
own, so they are not repeated in it. The module does not import PyIceberg, because the parsing of a DAG loads it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

log = logging.getLogger(__name__)

EVENT_KEY = "rfr.event"
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True, slots=True)
class Binding:
    """The documents of one collection that were published to one table.

    :ivar table: name of the table
    :ivar collection: name of the stream
    :ivar documents: rows that the commit added
    :ivar bytes: size of the data files that the commit added
    """

    table: str
    collection: str
    documents: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEvent:
    """One published commit, or several consecutive ones merged.

    :ivar commit_id: id of the commit, the same at every endpoint and for every attempt to publish the same generation
    :ivar target: name of the table
    :ivar lake: name of the catalog
    :ivar target_name: a name for people; the table's, unless the refresh has another
    :ivar run_id: a UUID, the same for every attempt to publish this commit; of merged commits the first one's
    :ivar sequence: the snapshot's sequence number; orders the commits of a table
    :ivar snapshot_id: the table's snapshot. JavaScript rounds numbers of this size, so put it into a longer text for
        such receivers
    :ivar committed_at: when the snapshot was committed
    :ivar generation: number of the refresh
    :ivar collection_names: streams that brought documents; of merged commits all of them, sorted
    :ivar producer: program and version that made the commit
    :ivar fetched_at_min: when the earliest page of the commit was fetched; None for no documents
    :ivar fetched_at_max: when the latest page of the commit was fetched; None for no documents
    :ivar bindings: rows by table and stream
    :ivar dag_id: DAG of the task that published; empty outside Airflow
    :ivar dag_run_id: run of that DAG
    :ivar task_id: the task
    :ivar map_index: -1 where the task is not mapped; None outside Airflow
    :ivar logical_date: of the run, as RFC 3339; empty where there is none
    :ivar merged_commits: commits that the event covers; more than one only for an endpoint with an ``interval``
    :ivar changes: records of an incremental sync by what became of them (``inserted``, ``updated``, ``unchanged``,
        ``stale``, ``deleted``, ``unknown_deletions``, ``older_versions``); None for a commit of a full refresh, also if
        it is one of several merged commits
    """

    commit_id: str
    target: str
    lake: str
    target_name: str
    run_id: str
    sequence: int = 0
    snapshot_id: int = 0
    committed_at: datetime = _EPOCH
    generation: int = 0
    collection_names: tuple[str, ...] = ()
    producer: str = ""
    fetched_at_min: datetime | None = None
    fetched_at_max: datetime | None = None
    bindings: tuple[Binding, ...] = ()
    dag_id: str = ""
    dag_run_id: str = ""
    task_id: str = ""
    map_index: int | None = None
    logical_date: str = ""
    merged_commits: int = 1
    changes: Mapping[str, int] | None = field(default=None, hash=False)

    @property
    def documents(self) -> int:
        return sum(binding.documents for binding in self.bindings)

    @property
    def deleted(self) -> int:
        """Return the number of rows that an incremental sync deleted; it has one collection."""
        return self.changes.get("deleted", 0) if self.changes else 0

    @property
    def bytes(self) -> int:
        return sum(binding.bytes for binding in self.bindings)

    def to_summary(self) -> dict[str, str]:
        """Return the event as properties of a snapshot's summary."""
        document = {name: value for name, value in self._document().items() if name not in _OF_THE_SNAPSHOT}
        return {EVENT_KEY: _compact(document)}

    @classmethod
    def from_summary(
        cls,
        table: str,
        snapshot_id: int,
        sequence: int,
        timestamp_ms: int,
        summary: Mapping[str, str],
        *,
        lake: str | None = None,
    ) -> CommitEvent | None:
        """Return the event of a snapshot; None for commits without one, such as those of a maintenance job.

        :param lake: name of the catalog the table was read from; None for the one it was written through
        """
        if EVENT_KEY not in summary:
            return None
        try:
            event = cls.from_json(summary[EVENT_KEY], target=table)
        except (ValueError, TypeError) as error:
            log.warning("%s: snapshot %s has an event that can't be read: %s", table, snapshot_id, error)
            return None
        return replace(
            event,
            lake=event.lake if lake is None else lake,
            snapshot_id=snapshot_id,
            sequence=sequence,
            committed_at=_EPOCH + timedelta(milliseconds=timestamp_ms),
        )

    def to_json(self) -> str:
        return _compact(self._document())

    @classmethod
    def from_json(cls, text: str, **more: Any) -> CommitEvent:
        """Return the event that :meth:`to_json` wrote. Fields of later versions are ignored.

        :param more: further fields, which win over those of the text
        :raises ValueError: the text is not an event
        """
        try:
            document = json.loads(text)
        except RecursionError:
            raise ValueError("the event is nested too deep") from None
        if not isinstance(document, Mapping):
            raise ValueError("the event is not a mapping")
        values = {name: _read(name, document[name]) for name in _FIELDS if name in document}
        missing = [name for name in _REQUIRED if name not in values and name not in more]
        if missing:
            raise ValueError(f"the event lacks {', '.join(missing)}")
        return cls(**{**values, **more})

    def _document(self) -> dict[str, Any]:
        """Return the fields as JSON values, without empty ones."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["bindings"] = [
            [binding.table, binding.collection, binding.documents, binding.bytes] for binding in self.bindings
        ]
        plain = {name: rfc3339(value) if isinstance(value, datetime) else value for name, value in values.items()}
        plain["collection_names"] = list(self.collection_names)
        return {name: value for name, value in plain.items() if value not in ("", None, [])}


def merge(first: CommitEvent, last: CommitEvent) -> CommitEvent:
    """Merge two events: the last one, with the first one's run id, target name and producer, and with summed counts."""
    begin, end = published_span((event.fetched_at_min, event.fetched_at_max) for event in (first, last))
    bindings: dict[tuple[str, str], Binding] = {}
    for binding in (*first.bindings, *last.bindings):
        key = (binding.table, binding.collection)
        total = bindings.get(key, Binding(*key, 0, 0))
        bindings[key] = replace(total, documents=total.documents + binding.documents, bytes=total.bytes + binding.bytes)
    return replace(
        last,
        target_name=first.target_name,
        producer=first.producer,
        run_id=first.run_id,
        collection_names=tuple(sorted({*first.collection_names, *last.collection_names})),
        fetched_at_min=begin,
        fetched_at_max=end,
        bindings=tuple(bindings.values()),
        merged_commits=first.merged_commits + last.merged_commits,
        changes=_summed(first.changes, last.changes),
    )


def _summed(first: Mapping[str, int] | None, last: Mapping[str, int] | None) -> dict[str, int] | None:
    """Return the sums of two syncs' counts; None if one commit was a full refresh, which replaced all rows."""
    if first is None or last is None:
        return None
    return {name: first.get(name, 0) + last.get(name, 0) for name in (*first, *(last.keys() - first.keys()))}


def collections_of(bindings: Iterable[Binding]) -> tuple[str, ...]:
    """Return the distinct collections with documents, in the order of the bindings."""
    return tuple(dict.fromkeys(binding.collection for binding in bindings if binding.documents > 0))


def published_span(spans: Iterable[tuple[datetime | None, datetime | None]]) -> tuple[datetime | None, datetime | None]:
    """Return the earliest and latest instant of several spans; ignore missing times, and those of a clock at zero."""
    pairs = list(spans)
    begins = [begin for begin, _ in pairs if begin is not None and begin > _EPOCH]
    ends = [end for _, end in pairs if end is not None and end > _EPOCH]
    return min(begins, default=None), max(ends, default=None)


def rfc3339(moment: datetime | None) -> str:
    """Format the instant in UTC with ``Z``; return an empty text for None."""
    if moment is None:
        return ""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _read_collection(name: str, value: Any) -> Any:
    if name == "bindings":
        return tuple(Binding(str(table), str(name), int(count), int(size)) for table, name, count, size in value)
    if name == "changes":
        if not isinstance(value, Mapping) or not all(type(count) is int for count in value.values()):
            raise ValueError("the event's changes must be numbers by name")
        return dict(value)
    if isinstance(value, str):
        raise ValueError("the event's collection_names must be a list")
    return tuple(map(str, value))


def _read(name: str, value: Any) -> Any:
    if name in _COLLECTIONS:
        return _read_collection(name, value)
    if name in _TIMES:
        if not isinstance(value, str):
            raise ValueError("a time of the event must be a text")
        # Python 3.10 reads no Z.
        moment = datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)
        if moment.tzinfo is None:
            raise ValueError("a time of the event has no offset")
        try:
            return moment.astimezone(timezone.utc)
        except OverflowError:
            raise ValueError("a time of the event is out of range") from None
    wanted = int if name in _NUMBERS else str
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"the event's {name} must be a {'number' if wanted is int else 'text'}")
    return value


_FIELDS = tuple(field.name for field in fields(CommitEvent))
_OF_THE_SNAPSHOT = frozenset({"target", "sequence", "snapshot_id", "committed_at"})
_REQUIRED = ("commit_id", "target", "lake", "target_name", "run_id")
_COLLECTIONS = frozenset({"bindings", "changes", "collection_names"})
_TIMES = frozenset({"committed_at", "fetched_at_min", "fetched_at_max"})
_NUMBERS = frozenset({"sequence", "snapshot_id", "generation", "map_index", "merged_commits"})
