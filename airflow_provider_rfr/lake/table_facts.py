"""What the metadata of a table says to people: its newest snapshot, its columns, how they changed. Reads no rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.inventory import LiveColumn, entry_of
from airflow_provider_rfr.lake.schemas import type_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change of the columns.

    :ivar at: of the first snapshot that is left of those with these columns; None where none is left
    :ivar said: a sentence for each column
    """

    at: datetime | None
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table.

    :ivar snapshot_id: as text, because JavaScript rounds a number of its size; None before the first commit
    :ivar rows: by the newest snapshot's summary; ``files`` and ``bytes``, too
    :ivar changes: of its columns, the newest first
    """

    snapshot_id: str | None
    committed_at: datetime | None
    rows: int | None
    files: int | None
    bytes: int | None
    columns: tuple[LiveColumn, ...]
    partitioning: tuple[str, ...]
    changes: tuple[SchemaChange, ...]


def table_facts(catalog: Catalog, name: str) -> TableFacts | None:
    """The table as it is now; None where there is none."""
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
        columns=entry.columns,
        partitioning=entry.partitioning,
        changes=tuple(_changes(table)),
    )


def _changes(table: Table) -> Iterator[SchemaChange]:
    schemas = {each.schema_id: each for each in table.metadata.schemas}
    for (before, _), (after, at) in reversed(list(pairwise(_schemas_in_order(table)))):
        said = tuple(_differences(schemas[before], schemas[after]))
        if said:
            yield SchemaChange(None if at is None else _moment(at), said)


def _schemas_in_order(table: Table) -> list[tuple[int, int | None]]:
    """The ids of the schemas as they followed each other, with the time of the first snapshot that has it.

    One may come again: dropping the column that was added last leads back to the schema before it. Those without a
    snapshot are told by their numbers, which grow.
    """
    metadata = table.metadata
    snapshots = sorted(metadata.snapshots, key=lambda each: each.timestamp_ms)
    seen: list[tuple[int, int | None]] = [
        (each.schema_id, each.timestamp_ms) for each in snapshots if each.schema_id is not None
    ]
    seen.append((metadata.current_schema_id, None))
    without = sorted({each.schema_id for each in metadata.schemas} - {number for number, _ in seen})
    found: list[tuple[int, int | None]] = []
    for number, at in seen:
        last = found[-1][0] if found else -1
        if number != last:
            found += [(each, None) for each in without if last < each < number]
            found.append((number, at))
    return found


def _differences(before: Schema, after: Schema) -> Iterator[str]:
    old, new = ({each.field_id: each for each in schema.fields} for schema in (before, after))
    for number, column in new.items():
        was, kind = old.get(number), type_text(column.field_type)
        if was is None:
            yield f"{column.name} was added ({kind})"
            continue
        if was.name != column.name:
            yield f"{was.name} was renamed to {column.name}"
        if was.field_type != column.field_type:
            yield f"{column.name} became {kind}, it was {type_text(was.field_type)}"
        if was.required != column.required:
            yield f"{column.name} became {'required' if column.required else 'optional'}"
    yield from (f"{old[number].name} was dropped" for number in old.keys() - new.keys())


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
