"""Tables and views of a catalog as plain values, and facts of one table for display, without rows and without Spark.

PyIceberg's SQL catalog has no views, but Iceberg's JDBC catalog in Java, which Spark SQL uses on the same database,
stores them there, so they are read from the database. REST catalogs are asked through PyIceberg.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from pyiceberg.schema import Schema

from airflow_provider_rfr.lake.catalog import UNREADABLE, load_table, namespaces
from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.expiry import MAX_COPIES
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.schemas import partition_texts, type_text
from airflow_provider_rfr.lake.target import NO_VALUE, SCHEMA_CHANGES_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

KEYS: Final = "rfr.keys"
"""Table property: names of the key's columns, as JSON. Iceberg's own identifier fields must be required, and have no
order."""
COMMENT: Final = "comment"
"""Property in which Spark keeps a view's comment."""
OWNER: Final = "owner"
TEXT: Final = "rfr.text"
"""Property with the whole text of a built-in view that begins or ends with a comment, because Spark drops that."""
_HIDDEN_PROPERTIES: Final = frozenset({"create_engine_version", "engine_version", "spark.query-column-names", TEXT})
_PARALLEL_READS: Final = 8
_TRIES: Final = 3
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """A column of a table.

    :ivar type: the type's canonical text
    """

    name: str
    type: str
    required: bool = False
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table of the catalog, as its metadata describes it.

    :ivar uuid: UUID of the physical table; empty if its metadata can't be read
    :ivar rows: number of rows, from the newest snapshot's summary; None if that lacks it
    :ivar bytes: size of the files, likewise
    """

    name: str
    uuid: str = ""
    columns: tuple[LiveColumn, ...] = ()
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int | None = None
    rows: int | None = None
    bytes: int | None = None


def list_tables(catalog: Catalog) -> tuple[TableEntry, ...]:
    """List every table of every namespace, sorted by name. This is slow, because the metadata of each one is read.

    A table whose metadata can't be read is listed with its name only, because the name is taken.
    """
    names = sorted({".".join(table) for namespace in namespaces(catalog) for table in catalog.list_tables(namespace)})

    def read(name: str) -> TableEntry | None:
        try:
            return entry_of(name, catalog.load_table(name))
        except NoSuchTableError:
            return None
        except UNREADABLE:
            return TableEntry(name)

    # Loading a table reads a file of an object store, which is mostly waiting.
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="rfr-inventory") as pool:
        return tuple(entry for entry in pool.map(read, names) if entry is not None)


def entry_of(name: str, table: Table) -> TableEntry:
    schema, metadata = table.schema(), table.metadata
    summary = summary_of(table.current_snapshot())
    identifiers = schema.identifier_field_names()
    try:
        keys = tuple(map(str, json.loads(metadata.properties.get(KEYS, "[]"))))
    except ValueError:
        keys = ()
    if identifiers and {*map(str.casefold, keys)} != {*map(str.casefold, identifiers)}:
        # Another program changed the key since the property was written.
        keys = tuple(sorted(identifiers))
    return TableEntry(
        name,
        str(metadata.table_uuid),
        _live_columns(schema),
        partition_texts(table.spec(), schema),
        keys,
        # The format version is a part of the metadata and not one of its properties.
        {**metadata.properties, "format-version": str(metadata.format_version)},
        metadata.current_snapshot_id,
        _number(summary, "total-records"),
        _number(summary, "total-files-size"),
    )


def _live_columns(schema: Schema) -> tuple[LiveColumn, ...]:
    return tuple(
        LiveColumn(field.name, type_text(field.field_type), field.required, field.doc) for field in schema.fields
    )


def _number(summary: Mapping[str, str], key: str) -> int | None:
    value = summary.get(key, "")
    return int(value) if value.isdigit() else None


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """A view of the catalog.

    :ivar query: SQL in Spark's dialect, or in the first dialect if that is missing; empty if the metadata can't be read
    :ivar properties: the view's properties, without those that repeat other fields
    :ivar namespace: default namespace for names in the query
    :ivar catalog: default catalog for names in the query; empty for the view's own
    """

    name: str
    query: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[LiveColumn, ...] = ()
    namespace: str = ""
    catalog: str = ""

    @property
    def comment(self) -> str | None:
        return self.properties.get(COMMENT)


def holds_views(catalog: Catalog) -> bool:
    """Tell whether views persist in this catalog. In other catalogs they last as long as a Spark session."""
    if isinstance(catalog, SqlCatalog):
        return True
    # Imported here: it takes a fifth of a second, and other catalogs do not need it.
    from pyiceberg.catalog.rest import Capability, RestCatalog

    return isinstance(catalog, RestCatalog) and Capability.V1_LIST_VIEWS in catalog._supported_endpoints


def list_views(catalog: Catalog) -> tuple[ViewEntry, ...]:
    """List every view of the catalog, sorted by name; return an empty list if the catalog can't hold any.

    A view whose metadata can't be read is listed with its name only, because the name is taken.
    """
    if not holds_views(catalog):
        return ()
    if isinstance(catalog, SqlCatalog):
        return tuple(sorted(_sql_views(catalog), key=lambda view: view.name))
    views = []
    for namespace in namespaces(catalog):
        for identifier in catalog.list_views(namespace):
            try:
                view = catalog.load_view(identifier)
            except NoSuchViewError:
                continue
            views.append(_view_entry(".".join(identifier), json.loads(view.metadata.model_dump_json())))
    return tuple(sorted(views, key=lambda view: view.name))


def view_names(catalog: Catalog) -> frozenset[str]:
    """Return the case-folded names of all views; quicker than :func:`list_views`."""
    if isinstance(catalog, SqlCatalog):
        return frozenset(name.casefold() for name, _ in _view_rows(catalog))
    if not holds_views(catalog):
        return frozenset()
    identifiers = (identifier for namespace in namespaces(catalog) for identifier in catalog.list_views(namespace))
    return frozenset(".".join(identifier).casefold() for identifier in identifiers)


def find_view(catalog: Catalog, name: str) -> ViewEntry | None:
    """Return the view of this name, compared without case; None if there is none."""
    views = _sql_views(catalog, name) if isinstance(catalog, SqlCatalog) else list_views(catalog)
    return next((view for view in views if view.name.casefold() == name.casefold()), None)


def _sql_views(catalog: SqlCatalog, name: str | None = None) -> list[ViewEntry]:
    """Return every view of the catalog, or those of one name, compared without case."""
    store = FileStore(dict(catalog.properties))
    rows = _view_rows(catalog, name)
    for _ in range(_TRIES):
        try:
            return [_read_view(store, *row) for row in rows]
        except FileNotFoundError:
            # If a view was replaced or dropped after the rows were read, the rows have changed, so try again. If they
            # have not, the view's file is lost.
            before, rows = rows, _view_rows(catalog, name)
            if rows == before:
                break
    views = []
    for row in rows:
        try:
            views.append(_read_view(store, *row))
        except FileNotFoundError:
            views.append(ViewEntry(row[0]))
    return views


def _view_rows(catalog: SqlCatalog, name: str | None = None) -> list[tuple[str, str]]:
    """Return the names of the views and the locations of their metadata.

    :param name: only views of this name, compared without case; None for all views
    """
    table = sa.table(
        "iceberg_tables",
        *(sa.column(name) for name in ("table_namespace", "table_name", "metadata_location", "iceberg_type")),
        sa.column("catalog_name"),
    )
    with catalog.engine.connect() as connection:
        inspector = sa.inspect(connection)
        columns = inspector.get_columns(table.name) if inspector.has_table(table.name) else []
        if "iceberg_type" not in {column["name"] for column in columns}:
            return []  # the catalog's own tables do not exist yet, or are of the schema version before views
        query = sa.select(table.c.table_namespace, table.c.table_name, table.c.metadata_location).where(
            table.c.catalog_name == catalog.name, table.c.iceberg_type == "VIEW"
        )
        rows = [(f"{row[0]}.{row[1]}", row[2] or "") for row in connection.execute(query)]
    return [row for row in rows if name is None or row[0].casefold() == name.casefold()]


def _read_view(store: FileStore, name: str, location: str) -> ViewEntry:
    """Read the view's metadata file.

    :raises FileNotFoundError: there is no metadata at this location, or not any more
    """
    data = store.read(location)
    try:
        return _view_entry(name, json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data))
    except (OSError, EOFError, ValueError, KeyError, StopIteration, TypeError):
        return ViewEntry(name)


def _view_entry(name: str, metadata: Mapping[str, Any]) -> ViewEntry:
    """Return the view that the metadata describes.

    :raises KeyError, ValueError, StopIteration: it is not the metadata of a view
    """
    version = next(
        version for version in metadata["versions"] if version["version-id"] == metadata["current-version-id"]
    )
    texts = [representation for representation in version["representations"] if representation["type"] == "sql"]
    chosen = next((text for text in texts if text["dialect"].lower() == "spark"), texts[0] if texts else {"sql": ""})
    schema = next(schema for schema in metadata["schemas"] if schema["schema-id"] == version["schema-id"])
    whole = str(metadata["properties"].get(TEXT, ""))
    return ViewEntry(
        name,
        # The view may have been given another text since the property was written.
        whole if chosen["sql"] in whole else chosen["sql"],
        {key: str(value) for key, value in metadata["properties"].items() if key not in _HIDDEN_PROPERTIES},
        _live_columns(Schema.model_validate(schema)),
        ".".join(version["default-namespace"]),
        version.get("default-catalog") or "",
    )


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change of a table's columns.

    :ivar at: time of the first snapshot with these columns; None if there is no such snapshot yet
    :ivar sentences: one for each column, and one for columns that a publish left without values
    """

    at: datetime | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The facts of a table that are displayed.

    :ivar snapshot_id: as text, because JavaScript rounds a number of its size; None before the first commit
    :ivar rows: number of rows, from the newest snapshot's summary, as are ``files`` and ``bytes``
    :ivar snapshots: number of snapshots that can be read
    :ivar max_copies: number of replaced copies of its files that an expiry keeps; None without a limit
    :ivar changes: changes of its columns, the newest first
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
    return None if table is None else facts_of(name, table)


def facts_of(name: str, table: Table) -> TableFacts:
    """Return the facts of the table as it was loaded."""
    entry, snapshot = entry_of(name, table), table.current_snapshot()
    return TableFacts(
        snapshot_id=None if entry.snapshot_id is None else str(entry.snapshot_id),
        committed_at=None if snapshot is None else _moment(snapshot.timestamp_ms),
        rows=entry.rows,
        files=_number(summary_of(snapshot), "total-data-files"),
        bytes=entry.bytes,
        snapshots=len(table.metadata.snapshots),
        max_copies=table.properties.get(MAX_COPIES),
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
        was = old.get(column.name) or next(
            (former for former in before.fields if former.field_id == column.field_id), None
        )
        kind = type_text(column.field_type)
        if was is None:
            yield f"{column.name} was added ({kind})"
            continue
        if was.name != column.name:
            yield f"{was.name} was renamed to {column.name}"
        if (old_kind := type_text(was.field_type)) != kind:
            yield f"{column.name}: {old_kind} -> {kind}"
        if was.required != column.required:
            yield f"{column.name} became {'required' if column.required else 'optional'}"
    yield from (
        f"{column.name} was dropped"
        for column in before.fields
        if column.name not in new and column.field_id not in renamed
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
