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
    current = table.metadata.current_schema_id
    schemas = sorted((each for each in table.metadata.schemas if each.schema_id <= current), key=lambda s: s.schema_id)
    for before, after in reversed(list(pairwise(schemas))):
        times = [each.timestamp_ms for each in table.metadata.snapshots if each.schema_id == after.schema_id]
        said = tuple(_differences(before, after))
        if said:
            yield SchemaChange(_moment(min(times)) if times else None, said)


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
