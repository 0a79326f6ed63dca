"""Facts of a table's metadata for display: its newest snapshot, its columns, how they changed. Reads no rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_provider_rfr.lake._emptied_columns import NO_VALUE
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.expiry import max_copies
from airflow_provider_rfr.lake.inventory import LiveColumn, entry_of
from airflow_provider_rfr.lake.schemas import type_text
from airflow_provider_rfr.lake.target import SCHEMA_CHANGES_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change of the columns.

    :ivar at: of the first snapshot with these columns; None where the table has none yet
    :ivar sentences: one for each column, and one for columns that a publish left without values
    """

    at: datetime | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table.

    :ivar snapshot_id: as text, because JavaScript rounds a number of its size; None before the first commit
    :ivar rows: by the newest snapshot's summary; ``files`` and ``bytes``, too
    :ivar snapshots: how many can be read
    :ivar max_copies: how many replaced copies of its files stay at most; None without a limit
    :ivar changes: of its columns, the newest first
    """

    snapshot_id: str | None
    committed_at: datetime | None
    rows: int | None
    files: int | None
    bytes: int | None
    snapshots: int
    max_copies: str | None
    columns: tuple[LiveColumn, ...]
    partitioning: tuple[str, ...]
    changes: tuple[SchemaChange, ...]


def table_facts(catalog: Catalog, name: str) -> TableFacts | None:
    """Return the facts of the table as it is now; None if it does not exist."""
    table = load_table(catalog, name)
    if table is None:
        return None
    entry, snapshot = entry_of(name, table), table.current_snapshot()
    files = summary_of(snapshot).get("total-data-files", "")
    return TableFacts(
        snapshot_id=None if entry.snapshot_id is None else str(entry.snapshot_id),
        committed_at=None if snapshot is None else _moment(snapshot.timestamp_ms),
        rows=entry.rows,
        files=int(files) if files.isdigit() else None,
        bytes=entry.bytes,
        snapshots=len(table.metadata.snapshots),
        max_copies=max_copies(table.properties),
        columns=entry.columns,
        partitioning=entry.partitioning,
        changes=tuple(_changes(table)),
    )


def _changes(table: Table) -> Iterator[SchemaChange]:
    """Yield the schema changes between snapshots and since the last one, the newest first.

    Schemas without a snapshot are steps of one change: a replaced column is renamed before it is dropped.
    """
    metadata = table.metadata
    schemas = {schema.schema_id: schema for schema in metadata.schemas}
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    states: list[tuple[Schema | None, int | None, str]] = [
        (schemas.get(snapshot.schema_id or 0), snapshot.timestamp_ms, summary_of(snapshot).get(SCHEMA_CHANGES_KEY, ""))
        for snapshot in snapshots
    ]
    states.append((metadata.schema(), None, ""))
    for (before, _, _), (after, at, published) in reversed(list(pairwise(states))):
        sentences = tuple(_differences(before, after)) if before is not None and after is not None else ()
        if NO_VALUE in (last := published.rpartition("; ")[2]):
            sentences += (last,)
        if sentences:
            yield SchemaChange(None if at is None else _moment(at), sentences)


def _differences(before: Schema, after: Schema) -> Iterator[str]:
    """Yield a sentence for each column that differs. Columns are compared by name: a replaced one has a new id."""
    old, new = ({column.name: column for column in schema.fields} for schema in (before, after))
    renamed = {column.field_id: column.name for column in after.fields if column.name not in old}
    for column in after.fields:
        was = old.get(column.name) or next((one for one in before.fields if one.field_id == column.field_id), None)
        kind = type_text(column.field_type)
        if was is None:
            yield f"{column.name} was added ({kind})"
            continue
        if was.name != column.name:
            yield f"{was.name} was renamed to {column.name}"
        if (former := type_text(was.field_type)) != kind:
            yield f"{column.name}: {former} -> {kind}"
        if was.required != column.required:
            yield f"{column.name} became {'required' if column.required else 'optional'}"
    yield from (
        f"{column.name} was dropped"
        for column in before.fields
        if column.name not in new and column.field_id not in renamed
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
