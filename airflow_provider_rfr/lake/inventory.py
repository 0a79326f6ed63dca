"""Tables and views of a catalog as plain values, read without Spark.

PyIceberg's SQL catalog has no views, but Iceberg's JDBC catalog in Java, which Spark SQL uses on the same database,
keeps them there. REST catalogs are asked through PyIceberg.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError
from pyiceberg.schema import Schema

from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.types import partition_texts, type_text

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


KEYS: Final = "rfr.keys"
"""Property: names of the key's columns, as JSON. Iceberg keeps a key only of required columns, and in no order."""
_PARALLEL: Final = 8


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """A column of a table. :ivar type: canonical text"""

    name: str
    type: str
    required: bool = False
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table.

    :ivar uuid: of the physical table; empty where its metadata can't be read
    :ivar rows: as the newest snapshot says
    """

    name: str
    uuid: str = ""
    columns: tuple[LiveColumn, ...] = ()
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    snapshot_id: int | None = None
    rows: int | None = None
    bytes: int | None = None


def list_tables(catalog: Catalog) -> tuple[TableEntry, ...]:
    """Every table of every namespace, sorted by name. Each one's metadata is read, so it takes its time.

    A table whose metadata can't be read is there, and shows nothing: it is nobody's, and in the way of its name.
    """
    names = sorted({".".join(each) for namespace in namespaces(catalog) for each in catalog.list_tables(namespace)})
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="rfr-inventory") as pool:
        found = pool.map(lambda name: _entry_or_trace(catalog, name), names)
        return tuple(each for each in found if each is not None)


def namespaces(catalog: Catalog, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All of them, those inside others too."""
    for namespace in catalog.list_namespaces(parent):
        if len(namespace) > len(parent):
            yield namespace
            yield from namespaces(catalog, namespace)


def entry_of(name: str, table: Table) -> TableEntry:
    """A loaded table as a value."""
    schema, metadata = table.schema(), table.metadata
    summary = summary_of(table.current_snapshot())
    return TableEntry(
        name,
        str(metadata.table_uuid),
        tuple(LiveColumn(each.name, type_text(each.field_type), each.required, each.doc) for each in schema.fields),
        partition_texts(table.spec(), schema),
        _keys_of(schema, metadata.properties),
        # The format is a part of the metadata, and no property of it.
        MappingProxyType({**metadata.properties, "format-version": str(metadata.format_version)}),
        metadata.current_snapshot_id,
        _number(summary, "total-records"),
        _number(summary, "total-files-size"),
    )


def _keys_of(schema: Schema, properties: Mapping[str, str]) -> tuple[str, ...]:
    """The key's columns, in the order of the property where that agrees with the schema."""
    identifiers = schema.identifier_field_names()
    try:
        written = tuple(map(str, json.loads(properties.get(KEYS, "[]"))))
    except ValueError:
        written = ()
    return written if not identifiers or set(written) == identifiers else tuple(sorted(identifiers))


def _entry_or_trace(catalog: Catalog, name: str) -> TableEntry | None:
    try:
        return entry_of(name, catalog.load_table(name))
    except NoSuchTableError:
        return None
    except (OSError, ValueError, KeyError):
        return TableEntry(name)


def _number(summary: Mapping[str, str], key: str) -> int | None:
    value = summary.get(key, "")
    return int(value) if value.isdigit() else None


COMMENT: Final = "comment"
"""Property in which Spark keeps a view's comment."""
TEXT: Final = "rfr.text"
"""Property of a view of ours whose text begins or ends with a comment, which Spark does not keep: the whole text."""
_DIALECT = "spark"
_OF_ENGINES = frozenset({"create_engine_version", "engine_version", "spark.query-column-names", TEXT})
_TRIES = 3
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """A view.

    :ivar query: the text in Spark's dialect, or in the first one where there is none; empty where its metadata can't
        be read
    :ivar properties: without those that say again what is told here
    :ivar namespace: of names in the text that have none
    :ivar catalog: of names in the text that have none; empty: the view's own
    """

    name: str
    query: str = ""
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    columns: tuple[LiveColumn, ...] = ()
    namespace: str = ""
    catalog: str = ""

    @property
    def comment(self) -> str | None:
        """What it is said to be."""
        return self.properties.get(COMMENT)


def holds_views(catalog: Catalog) -> bool:
    """Whether views persist in this catalog. In others they live as long as a session of Spark."""
    if isinstance(catalog, SqlCatalog):
        return True
    return isinstance(catalog, RestCatalog) and Capability.V1_LIST_VIEWS in catalog._supported_endpoints


def list_views(catalog: Catalog) -> tuple[ViewEntry, ...]:
    """Every view of the catalog, sorted by name; none, where it can't hold any.

    A view whose metadata can't be read is there, and shows nothing: it is nobody's, and in the way of its name.
    """
    if not holds_views(catalog):
        return ()
    found = _sql_views(catalog) if isinstance(catalog, SqlCatalog) else _rest_views(catalog)
    return tuple(sorted(found, key=lambda each: each.name))


def _sql_views(catalog: SqlCatalog) -> list[ViewEntry]:
    store = FileStore(dict(catalog.properties))
    for _ in range(_TRIES):
        rows = _view_rows(catalog)
        try:
            return [_read(store, name, location) for name, location in rows]
        except FileNotFoundError:
            # Somebody replaced or dropped it after the rows were read: then they are others now.
            if rows == _view_rows(catalog):
                break
    return [_read_or_trace(store, name, location) for name, location in _view_rows(catalog)]


def _view_rows(catalog: SqlCatalog) -> list[tuple[str, str]]:
    table = sa.table(
        "iceberg_tables",
        *(sa.column(name) for name in ("table_namespace", "table_name", "metadata_location", "iceberg_type")),
        sa.column("catalog_name"),
    )
    with catalog.engine.connect() as connection:
        known = {each["name"] for each in sa.inspect(connection).get_columns(table.name)}
        if "iceberg_type" not in known:
            # The catalog's own tables are of the version before views.
            return []
        query = sa.select(table.c.table_namespace, table.c.table_name, table.c.metadata_location).where(
            table.c.catalog_name == catalog.name, table.c.iceberg_type == "VIEW"
        )
        return [(f"{row[0]}.{row[1]}", row[2] or "") for row in connection.execute(query)]


def _read_or_trace(store: FileStore, name: str, location: str) -> ViewEntry:
    try:
        return _read(store, name, location)
    except FileNotFoundError:
        return ViewEntry(name)


def _read(store: FileStore, name: str, location: str) -> ViewEntry:
    data = store.read(location)
    try:
        return _entry(name, json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data))
    except (OSError, EOFError, ValueError, KeyError, StopIteration, TypeError):
        return ViewEntry(name)


def _rest_views(catalog: Catalog) -> Iterator[ViewEntry]:
    for namespace in namespaces(catalog):
        for identifier in catalog.list_views(namespace):
            try:
                view = catalog.load_view(identifier)
            except NoSuchViewError:
                continue
            yield _entry(".".join(identifier), json.loads(view.metadata.model_dump_json()))


def _entry(name: str, metadata: Mapping[str, Any]) -> ViewEntry:
    """:raises KeyError, ValueError, StopIteration: it is no metadata of a view"""
    version = next(each for each in metadata["versions"] if each["version-id"] == metadata["current-version-id"])
    texts = [each for each in version["representations"] if each["type"] == "sql"]
    chosen = next((each for each in texts if each["dialect"].lower() == _DIALECT), texts[0] if texts else {"sql": ""})
    stored = next(each for each in metadata["schemas"] if each["schema-id"] == version["schema-id"])
    schema = Schema.model_validate(stored)
    text = str(metadata["properties"].get(TEXT, ""))
    return ViewEntry(
        name,
        # Somebody may have given it another text since.
        text if chosen["sql"] in text else chosen["sql"],
        MappingProxyType({key: str(value) for key, value in metadata["properties"].items() if key not in _OF_ENGINES}),
        tuple(LiveColumn(each.name, type_text(each.field_type), each.required, each.doc) for each in schema.fields),
        ".".join(version["default-namespace"]),
        version.get("default-catalog") or "",
    )


def view_names(catalog: Catalog) -> frozenset[str]:
    """Names of all views, as they are compared; quicker than :func:`list_views`."""
    if isinstance(catalog, SqlCatalog):
        return frozenset(name.casefold() for name, _ in _view_rows(catalog))
    if not holds_views(catalog):
        return frozenset()
    found = (identifier for namespace in namespaces(catalog) for identifier in catalog.list_views(namespace))
    return frozenset(".".join(each).casefold() for each in found)


def find_view(catalog: Catalog, name: str) -> ViewEntry | None:
    """The view of this name, as names are compared; None if there is none."""
    if not isinstance(catalog, SqlCatalog):
        return next((each for each in list_views(catalog) if each.name.casefold() == name.casefold()), None)
    store = FileStore(dict(catalog.properties))
    for _ in range(_TRIES):
        row = next((each for each in _view_rows(catalog) if each[0].casefold() == name.casefold()), None)
        if row is None:
            return None
        try:
            return _read(store, *row)
        except FileNotFoundError:
            continue
    return ViewEntry(name)
