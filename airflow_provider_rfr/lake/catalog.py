"""Opening a catalog from its settings, and the names of tables in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """Where the lake is.

    :ivar name: the catalog's name; Spark has to use the same one for the same catalog
    :ivar properties: PyIceberg's catalog properties (``type``, ``uri``, ``warehouse``, credentials);
        they may hold secrets, so they are left out of ``repr``
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)


def open_catalog(settings: LakeSettings, tries: int = 5) -> Catalog:
    """Open the catalog; raises :class:`ConfigurationError` where its settings can't work."""
    try:
        return load_catalog(settings.name, **dict(settings.properties))
    except (ValueError, ImportError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            "lake.properties",
            f"the catalog {settings.name!r} can't be opened: {_without_values(str(error), settings)}",
            "see PyIceberg's catalog properties: type, uri, warehouse",
        ) from None
    except Exception as error:
        if tries <= 1 or not _somebody_was_first(error):
            raise
    time.sleep(0.05)
    return open_catalog(settings, tries - 1)


def load_table(catalog: Catalog, identifier: str) -> Table | None:
    """The table as it is now, or None where there is none."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def tables_with_property(catalog: Catalog, key: str) -> list[str]:
    """Tables of all namespaces whose properties have the key; each one is loaded, so it takes its time."""
    found = []
    for namespace in _namespaces(catalog, ()):
        for identifier in catalog.list_tables(namespace):
            name = ".".join(identifier)
            table = load_table(catalog, name)
            if table is not None and key in table.properties:
                found.append(name)
    return sorted(found)


def _namespaces(catalog: Catalog, parent: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for namespace in catalog.list_namespaces(parent):
        if len(namespace) > len(parent):
            yield namespace
            yield from _namespaces(catalog, namespace)


def create_table(
    catalog: Catalog,
    identifier: str,
    schema: Schema,
    spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Create the table and its namespace, or load it where somebody else was first."""
    namespace = identifier.rpartition(".")[0]
    try:
        catalog.create_namespace(namespace)
    except NamespaceAlreadyExistsError:
        pass
    except Exception as error:
        if not _somebody_was_first(error):
            raise
    try:
        if spec is None:
            return catalog.create_table(identifier, schema, properties=dict(properties or {}))
        return catalog.create_table(identifier, schema, partition_spec=spec, properties=dict(properties or {}))
    except TableAlreadyExistsError:
        return catalog.load_table(identifier)


def _somebody_was_first(error: Exception) -> bool:
    """Whether a SQL catalog's database refused because another process made the same at the same time.

    PyIceberg looks, and then makes: the catalog's own tables at their first use, and namespaces.
    """
    of_database = type(error).__module__.startswith("sqlalchemy.")
    return of_database and (type(error).__name__ == "IntegrityError" or "already exists" in str(error))


def _without_values(message: str, settings: LakeSettings) -> str:
    """A library's message with every property value taken out: any of them may be a secret."""
    for value in sorted(map(str, settings.properties.values()), key=len, reverse=True):
        if len(value) > 3:
            message = message.replace(value, "***")
    return message
