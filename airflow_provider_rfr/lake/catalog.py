"""Opening a catalog from its settings, and the names of tables in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError
from airflow_provider_rfr.lake.catalog_errors import catalog_error, check_settings, is_of_settings, without_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_METHODS: Final = frozenset(
    {
        *("load_table", "table_exists", "list_tables", "create_table", "create_table_transaction", "commit_table"),
        *("register_table", "rename_table", "drop_table", "purge_table"),
        *("create_namespace", "namespace_exists", "list_namespaces", "drop_namespace"),
        *("load_namespace_properties", "update_namespace_properties"),
        *("list_views", "view_exists", "load_view", "create_view", "replace_view", "drop_view"),
    }
)
"""What this package asks a catalog."""


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
    """Open the catalog. Whatever it answers later on, too, is told in one sentence that names it.

    :raises ConfigurationError: its settings can't work, whoever tries them
    :raises CatalogError: it does not answer, or refuses; also raised by the catalog's own methods from then on
    """
    check_settings(settings.name, settings.properties)
    try:
        return _telling(load_catalog(settings.name, **dict(settings.properties)), settings)
    except Exception as error:
        if is_of_settings(error):
            raise ConfigurationError(
                "lake.properties",
                f"the catalog {settings.name!r} can't be opened: {without_secrets(str(error), settings.properties)}",
                "see PyIceberg's catalog properties: type, uri, warehouse",
            ) from None
        if tries <= 1 or not _somebody_was_first(error):
            told = catalog_error(error, settings.name, settings.properties)
            raise (error if told is None else told) from error
    time.sleep(0.05)
    return open_catalog(settings, tries - 1)


def _telling(catalog: Catalog, settings: LakeSettings) -> Catalog:
    """The catalog, whose methods raise :class:`CatalogError` in the place of its client's own errors."""

    def telling(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if (told := catalog_error(error, settings.name, settings.properties)) is None:
                    raise
                raise told from error

        return call

    for name in _METHODS & set(dir(catalog)):
        setattr(catalog, name, telling(getattr(catalog, name)))
    return catalog


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
    error = error.__cause__ if isinstance(error, CatalogError) and isinstance(error.__cause__, Exception) else error
    of_database = type(error).__module__.startswith("sqlalchemy.")
    return of_database and (type(error).__name__ == "IntegrityError" or "already exists" in str(error))
