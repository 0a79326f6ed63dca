"""What is in a catalog: every table as a plain value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.partition_texts import partition_texts
from airflow_provider_rfr.lake.type_texts import type_text

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
        keys_of(schema, metadata.properties),
        # The format is a part of the metadata, and no property of it.
        MappingProxyType({**metadata.properties, "format-version": str(metadata.format_version)}),
        metadata.current_snapshot_id,
        _number(summary, "total-records"),
        _number(summary, "total-files-size"),
    )


def keys_of(schema: Schema, properties: Mapping[str, str]) -> tuple[str, ...]:
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
