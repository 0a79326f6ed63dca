"""Views where the catalog can't hold any: registered in a session, and gone with it.

In a notebook::

    from airflow_provider_rfr.builtins.spark import RegisteredView, register_views

    register_views(spark, "lake", [RegisteredView("ops.failing", "SELECT * FROM ops.runs WHERE state = 'failed'")])
    spark.sql("SELECT * FROM `ops.failing`")

A temporary view can't have a namespace, so the whole name stands in one pair of backticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_rfr.builtins.graph import CycleError, Graph
from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spark import literals
from airflow_provider_rfr.builtins.spark.errors import told
from airflow_provider_rfr.builtins.sql.names import NamedTable, replace_tables
from airflow_provider_rfr.builtins.sql.queries import dependencies
from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RegisteredView:
    """A view to register.

    :ivar name: ``namespace.name``
    :ivar columns: names of its columns; empty for those of the query
    """

    name: str
    query: str
    columns: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name as it is compared."""
        return self.name.casefold()


def register_views(session: SparkSession, catalog: str, views: Iterable[RegisteredView]) -> tuple[str, ...]:
    """Make each view a temporary one of the session, in an order in which each finds what it reads.

    Neither the session's current catalog nor its current namespace matters, and both stay what they are.

    :param catalog: name of the lake's catalog in the session
    :returns: what to write in a query for each view, in that order
    :raises ConfigurationError: a query is none, or the views read each other in a circle
    :raises SparkJobError: a view can't be made; those before it are there
    """
    by_key = {each.key: each for each in views}
    reads = {key: _reads(each, by_key) for key, each in by_key.items()}
    found = []
    for key in _ordered(reads):
        view = by_key[key]
        with told(f"view {view.name}"):
            session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {_statement(view, catalog, by_key)}")
        found.append(literals.identifier(view.name))
    return tuple(found)


def _ordered(reads: Mapping[str, set[str]]) -> tuple[str, ...]:
    try:
        return Graph(reads).order(lambda each: each)
    except CycleError as error:
        raise ConfigurationError("views", str(error), "no view can read itself, also not by way of others") from None


def _reads(view: RegisteredView, known: Mapping[str, RegisteredView]) -> set[str]:
    return {each.name for each in dependencies(view.query, namespace_of(view.name)) if each.name in known}


def _statement(view: RegisteredView, catalog: str, known: Mapping[str, RegisteredView]) -> str:
    columns = f" ({', '.join(map(literals.identifier, view.columns))})" if view.columns else ""
    query = resolved(view.query, namespace_of(view.name), catalog, known)
    return f"{literals.identifier(view.name)}{columns} AS {query}"


def resolved(query: str, namespace: str, catalog: str, known: Mapping[str, RegisteredView]) -> str:
    """The query with whole names: those of registered views, and of tables of the catalog."""

    def whole(table: NamedTable) -> str:
        view = known.get(table.name)
        if view is None:
            return _in_catalog(table, namespace, catalog)
        name = literals.identifier(view.name)
        return name if table.aliased else f"{name} AS {literals.identifier(table.parts[-1])}"

    return replace_tables(query, namespace, whole)


def _in_catalog(table: NamedTable, namespace: str, catalog: str) -> str:
    if len(table.parts) == 1:
        return f"{literals.table_name(namespace, catalog)}.{table.written}"
    named = len(table.parts) > 2 and table.parts[0] == catalog.casefold()
    return table.written if named else f"{literals.identifier(catalog)}.{table.written}"
