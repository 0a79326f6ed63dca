"""The state of an incremental sync, in the summary of the table's own snapshots.

The newest snapshot of ``main`` that carries a state says how far the table was synced. So rows and state are one
commit, and a rollback of the table takes the state back with the rows. A table property would stay behind.

A small state is in the summary itself, a large one in a side file (:mod:`.side_files`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError, SyncStateError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import (
    STATE_FILE_KEY,
    STATE_KEY,
    TableTransaction,
    ancestors,
    carries_state,
    commit_strictly,
    retry_conflicts,
    stage_append,
    summary_of,
)
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.side_files import SideFileError, SideFiles, read_side_file, side_files
from airflow_provider_rfr.numbers import dumps, holds_long_number, read_number

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_FORMAT: Final = 1
_LONGEST: Final = 8 * 1024
"""Size limit, in bytes, of a state that is kept in the summary."""
_CODEC: Final = "zstd"
_TRIES: Final = 12
STATE_SNAPSHOT: Final = "rfr.state-snapshot"
"""Table property: id of the last snapshot that was written with a state. It tells a lost state from no state."""
_KEPT: Final = "rfr.state-kept"
"""Table property that an expiry sets: ids of the snapshot that it kept for its state, and of the oldest one that it
left in the line of ``main``, separated by a colon."""
NO_STATE: Final[Mapping[str, str]] = {STATE_KEY: "none"}
"""Summary properties of a commit that ends the state, because it replaced the rows that the state belonged to."""


@dataclass(frozen=True, slots=True)
class SyncState:
    """The state of a table's incremental sync.

    :ivar rules: JSON values that have to be the same for the state to be continued: field and type of the cursor, the
        primary key
    :ivar values: the largest cursor value seen, as text, by the key of the partition (``{}`` for an undivided stream)
    :ivar unlisted: number of syncs in a row in which a partition was not listed, by its key
    :ivar of_source: the state in the source's own form, which only the source reads; None if ``values`` are the state
    """

    rules: Mapping[str, Any]
    values: Mapping[str, str]
    unlisted: Mapping[str, int] = field(default_factory=dict)
    of_source: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which :meth:`from_json` reads."""
        content = {"version": _FORMAT, "rules": dict(self.rules), "values": dict(self.values)}
        if self.unlisted:
            content["unlisted"] = dict(self.unlisted)
        if self.of_source is not None:
            content["of_source"] = dict(self.of_source)
        return content

    @classmethod
    def from_json(cls, value: Any) -> SyncState:
        """Read the JSON form.

        :raises SyncStateError: it is of another version, or no state
        """
        if not isinstance(value, Mapping):
            raise SyncStateError(f"a state must be a mapping, is {type(value).__name__}")
        if type(value.get("version")) is not int or value["version"] != _FORMAT:
            raise SyncStateError(f"the state has version {value.get('version')!r}, this release reads {_FORMAT}")
        unknown = sorted(value.keys() - {"version", *(column.name for column in fields(cls))})
        if unknown:
            raise SyncStateError(f"the state has an unknown field {unknown[0]!r}")
        rules, values, unlisted = value.get("rules"), value.get("values"), value.get("unlisted", {})
        of_source = value.get("of_source")
        if not isinstance(rules, Mapping):
            raise SyncStateError("rules of the state must be a mapping")
        if not isinstance(values, Mapping) or not all(isinstance(item, str) for item in values.values()):
            raise SyncStateError("values of the state must be a mapping of partitions to texts")
        if not isinstance(unlisted, Mapping) or not all(type(item) is int for item in unlisted.values()):
            raise SyncStateError("unlisted of the state must be a mapping of partitions to numbers")
        if of_source is not None and not isinstance(of_source, Mapping):
            raise SyncStateError("of_source of the state must be a mapping")
        return cls(dict(rules), dict(values), dict(unlisted), None if of_source is None else dict(of_source))

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the state's JSON."""
        return hashlib.sha256(_encoded(self)).hexdigest()


def _encoded(state: SyncState) -> bytes:
    content = state.to_json()
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return dumps(content, orjson.OPT_SORT_KEYS) if holds_long_number(content) else text
    except (UnicodeEncodeError, RecursionError, TypeError) as error:
        problem = f"the state can't be written as JSON: {error}"
    raise SyncStateError(f"{problem}; write what airflow rfr refresh state show prints")


def state_properties(state: SyncState, side: SideFiles) -> dict[str, str]:
    """Return the summary properties that hold the state; a large state is written to a side file first."""
    content = _encoded(state)
    if len(content) <= _LONGEST:
        return {STATE_KEY: content.decode()}
    return side.write(STATE_FILE_KEY, pa.Codec(_CODEC).compress(content, asbytes=True))


def snapshot_with_state(metadata: TableMetadata) -> Snapshot | None:
    """Return the newest snapshot of ``main`` that sets or ends the sync's state; None if there is none."""
    oldest = None
    for oldest in ancestors(metadata, metadata.current_snapshot_id):
        if carries_state(summary_of(oldest)):
            return oldest
    # If an expiry dropped older snapshots of the line, it noted the one that it kept for its state. The note counts
    # only while the line ends at the same snapshot as then. Otherwise the table may have been rolled back, or replaced
    # by another engine, and its rows may not belong to that state.
    kept, _, left = metadata.properties.get(_KEPT, "").partition(":")
    ends_there = oldest is not None and str(oldest.snapshot_id) == left
    return metadata.snapshot_by_id(int(kept)) if ends_there and kept.isdecimal() else None


def state_note(snapshot: Snapshot | None) -> dict[str, str]:
    """Return the table properties that a commit of the snapshot sets: its id, if it sets or ends the state."""
    return {STATE_SNAPSHOT: str(snapshot.snapshot_id)} if snapshot and carries_state(summary_of(snapshot)) else {}


def note_after_expiry(metadata: TableMetadata, with_state: Snapshot | None, expired: Collection[int]) -> dict[str, str]:
    """Return the table properties that an expiry sets, so that the state is found although it cuts the line.

    :param with_state: result of :func:`snapshot_with_state`
    :param expired: ids of the snapshots that the expiry drops
    """
    if with_state is None:
        # A rollback to before the first state took it back: it is not lost when the snapshot that carried it goes.
        newest = metadata.properties.get(STATE_SNAPSHOT, "")
        goes = newest.isdecimal() and int(newest) in expired and not has_lost_state(metadata)
        return {STATE_SNAPSHOT: ""} if goes else {}
    left = None
    for snapshot in ancestors(metadata, metadata.current_snapshot_id):
        if snapshot.snapshot_id in expired:
            break
        left = snapshot.snapshot_id
    return {_KEPT: f"{with_state.snapshot_id}:{left}"}


def has_lost_state(metadata: TableMetadata) -> bool:
    """Tell whether the table had a state, and an expiry by another engine dropped it.

    It is lost if its snapshot is gone, or is older than a line that was cut. A rollback to before the state is no loss:
    then the state's snapshot is newer than the line.
    """
    newest = metadata.properties.get(STATE_SNAPSHOT, "")
    if not newest.isdecimal() or snapshot_with_state(metadata) is not None:
        return False
    snapshot, line = metadata.snapshot_by_id(int(newest)), list(ancestors(metadata, metadata.current_snapshot_id))
    if snapshot is None or not line:
        return snapshot is None
    # Most catalogs leave the parent's id in the snapshot where an expiry cut the line.
    is_cut = line[-1].parent_snapshot_id is not None
    return is_cut and (snapshot.sequence_number or 0) < (line[-1].sequence_number or 0)


def has_state(metadata: TableMetadata) -> bool:
    """Tell whether the table has a state; it may be one that can't be read."""
    return bool(_summary_with_state(metadata))


def _summary_with_state(metadata: TableMetadata) -> Mapping[str, str]:
    """Return the summary that has the table's state; an empty mapping if the table has none."""
    summary = summary_of(snapshot_with_state(metadata))
    return summary if carries_state(summary) and summary.get(STATE_KEY) != NO_STATE[STATE_KEY] else {}


def state_digest(metadata: TableMetadata) -> str | None:
    """Return a digest of the state as the summary has it, without reading a file; None without a state."""
    content = _content_of(_summary_with_state(metadata))
    return None if content is None else hashlib.sha256(content.encode()).hexdigest()


def read_state(table: Table) -> SyncState | None:
    """Return the state of the table as it was loaded; None if it has none.

    :raises SyncStateError: it can't be read: its file is missing or damaged, or another release wrote it
    """
    summary = _summary_with_state(table.metadata)
    if not summary:
        return None
    content: str | bytes = summary.get(STATE_KEY, "")
    if STATE_FILE_KEY in summary:
        try:
            packed = read_side_file(FileStore.of(table.io), summary, STATE_FILE_KEY)
        except SideFileError as error:
            raise SyncStateError(str(error)) from None
        content = pa.CompressedInputStream(pa.BufferReader(packed), _CODEC).read()
    try:
        return SyncState.from_json(json.loads(content, parse_float=read_number))
    except (ValueError, RecursionError) as error:
        raise SyncStateError(f"the state is not JSON: {error}") from None


def state_changed_at(metadata: TableMetadata) -> datetime | None:
    """Return the time since which the table has its present state; None without a state.

    Several commits in a row may carry the same state. This is the time of the oldest of them that has not expired.
    """
    newest = snapshot_with_state(metadata)
    if newest is None or summary_of(newest).get(STATE_KEY) == NO_STATE[STATE_KEY]:
        return None
    changed = newest
    for snapshot in ancestors(metadata, newest.snapshot_id):
        summary = summary_of(snapshot)
        if carries_state(summary):
            if _content_of(summary) != _content_of(summary_of(newest)):
                break
            changed = snapshot
    return datetime.fromtimestamp(changed.timestamp_ms / 1000, timezone.utc)


def _content_of(summary: Mapping[str, str]) -> str | None:
    """Return the digest of the state's side file, or the state's JSON; None without a state."""
    return summary.get(f"{STATE_FILE_KEY}-sha256") or summary.get(STATE_KEY)


def write_state(catalog: Catalog, name: str, state: SyncState) -> int:
    """Set the state in an empty snapshot of its own; return the snapshot's id.

    If another commit comes first, this is retried on top of that commit.

    :raises ConfigurationError: there is no such table
    """

    def write() -> int:
        table = load_existing(catalog, name)
        with side_files(lambda: table) as side:
            transaction = TableTransaction(table)
            snapshot_id = stage_append(transaction, [], state_properties(state, side))
            transaction.set_properties(state_note(transaction.table_metadata.snapshot_by_id(snapshot_id)))
            commit_strictly(transaction)
        return snapshot_id

    return retry_conflicts(_TRIES)(write)


def load_existing(catalog: Catalog, name: str) -> Table:
    """Load a table.

    :raises ConfigurationError: there is no such table
    """
    table = load_table(catalog, name)
    if table is None:
        raise ConfigurationError("table", f"{name} does not exist", "see airflow rfr refresh list")
    return table
