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

    :ivar columns: names that are declared: of a view by position, of a table in any order; empty: those of the query
    :ivar is_view: later queries read this one under its name
    :ivar optional: that it can't be run is a result, and no error
    """

    name: str
    sql: str
    columns: tuple[str, ...] = ()
    is_view: bool = False
    optional: bool = False


class SqlEngine(Protocol):
    """SQL on the lake's own catalog. Names are ``namespace.name`` without the catalog; in a text, a name without a
    namespace is looked for in that of the view or table that the text is for. Every method may be called again after a
    crash with the same arguments, and leaves the same. What can't be run raises a :class:`SparkJobError`.
    """

    def create_view(self, name: str, sql: str, properties: Mapping[str, str], columns: Sequence[Column] = ()) -> None:
        """Create or replace the view with its properties, the comment among them, in one statement.

        :param columns: as declared, for their names and comments; empty where the query's own names are taken
        :raises SchemaError: the query gives the declared columns in another order
        """

    def analyse(self, tables: Mapping[str, Sequence[Column]], queries: Sequence[AnalysedQuery]) -> list[Outputs | None]:
        """The outputs of each query over empty tables with these columns, and what else is in the catalog; None for an
        optional query that can't be run. Nothing is read or changed.

        :raises ConfigurationError: there are views, and the catalog can't hold any
        :raises SchemaError: a query does not give the columns that are declared
        """

    def drop_view(self, name: str) -> None:
        """Drop the view, if it exists."""

    def rename_view(self, old: str, new: str) -> None:
        """Rename the view; text and properties stay."""

    def set_view_properties(self, name: str, properties: Mapping[str, str | None]) -> None:
        """Set properties, and take away those that are None; others stay."""

    def compute(
        self, *, query: str, table: str, target: FileTarget, snapshot: int | None = None
    ) -> tuple[StoredFile, ...]:
        """Run the query, and write its rows as data files of the target, by column name; commit nothing.

        :param table: whose rows they become
        :param snapshot: of a rewrite: the snapshot of ``table`` that is read, each row of which gives one row. After a
            refused commit, what was computed may be returned again with the rows that were appended since
        :raises SchemaError: the query's columns or values don't fit the table
        """
