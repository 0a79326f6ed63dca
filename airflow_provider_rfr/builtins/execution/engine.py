"""What runs SQL for deploys and refreshes: views, the analysis of queries, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_provider_rfr.builtins.spec import Column

if TYPE_CHECKING:
    from airflow_provider_rfr.lake.data_files import FileTarget, StoredFile


Outputs = tuple[tuple[str, str], ...]
"""Names and types of a query's columns, the types in Spark's words."""


@dataclass(frozen=True, slots=True)
class AnalysedQuery:
    """A query that is analysed and not run.

    :ivar name: of the object that it is for; names without a namespace are looked for in its namespace
    :ivar columns: names that are declared: of a view by position, of a table in any order; empty: those of the query
    :ivar is_view: queries that come later read this one under its name
    :ivar optional: that it can't be run is a result, and no error
    """

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    is_view: bool = False
    optional: bool = False


class SqlEngine(Protocol):
    """SQL on the lake's own catalog. Names are ``namespace.name`` without the catalog.

    In a view's text and in a query, a name without a namespace is looked for in the namespace of the view or table
    that it is for. Every method may be called again after a crash with the same arguments, and leaves the same. What
    can't be run raises a :class:`SparkJobError`.
    """

    def create_view(
        self,
        name: str,
        sql: str,
        *,
        properties: Mapping[str, str],
        comment: str | None,
        columns: Sequence[Column],
        replace: bool,
    ) -> None:
        """Make the view with its properties and comment in one statement; with ``replace``, also over another text.

        :param columns: as declared, for their names and comments; empty where the query's own names are taken
        :raises SchemaError: the query gives the declared columns in another order
        """

    def analyse(
        self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]
    ) -> Sequence[Outputs | None]:
        """The outputs of each query over empty tables with these columns; nothing is read or changed.

        Other names that a query reads are those of the catalog.

        :returns: None for an optional query that can't be run
        :raises ConfigurationError: there are views, and the catalog can't hold any
        :raises SchemaError: a query does not give the columns that are declared
        """

    def drop_view(self, name: str) -> None:
        """Drop the view, if it exists."""

    def rename_view(self, old: str, new: str) -> None:
        """Rename the view; text, properties and comment stay."""

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        """Set properties, and take away those that are None; the comment is put in the place of the old one."""

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target's layout, by column name; commit nothing.

        :param table: whose rows they become
        :param target: the coming columns with their field ids, the partitioning, and the folder; names of files begin
            with ``target.family``, by which those of tries that died are found
        :param snapshot: of a rewrite: the snapshot of ``table`` that is read, each row of which gives one row. After a
            refused commit, what was computed may be returned again with the rows that were appended since
        :raises SchemaError: the query's columns or values don't fit the table
        """
