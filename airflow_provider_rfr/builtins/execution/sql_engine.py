"""What a deploy asks of whoever runs SQL on the lake: views, and the rows of a query as data files.

A deploy without views, rewrites and materialized views needs no engine. The engine never commits to a table: files are
written beside it, and the one commit that shows them, with the new columns and the markers, is made by
:mod:`airflow_provider_rfr.lake.migrations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spec import Column
    from airflow_provider_rfr.lake.data_files import StoredFile
    from airflow_provider_rfr.lake.file_target import FileTarget


def _none() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ComputedFiles:
    """What a computation left, in no commit yet.

    :ivar files: of the target's layout; with a run that was killed before they are those of both
    :ivar rows: in all files
    :ivar read: snapshots that were read, by the table's name as it is compared
    """

    files: tuple[StoredFile, ...]
    rows: int
    read: Mapping[str, int] = field(default_factory=_none)


class SqlEngine(Protocol):
    """SQL on the lake's own catalog. Names are ``namespace.name`` without the catalog.

    In a view's text and in a query, a name without a namespace is looked for in the namespace of the view or table
    that it is for. Every method may be called again after a crash with the same arguments, and leaves the same.
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
        """
        ...

    def drop_view(self, name: str) -> None:
        """Drop it; one that isn't there is no mistake."""
        ...

    def rename_view(self, old: str, new: str) -> None:
        """Give it another name; text, properties and comment stay."""
        ...

    def set_view_properties(self, name: str, properties: Mapping[str, str | None], comment: str | None) -> None:
        """Set properties, and take away those that are None; the comment is put in the place of the old one."""
        ...

    def compute(
        self,
        *,
        query: str,
        table: str,
        target: FileTarget,
        work_id: str,
        read: Mapping[str, int] = MappingProxyType({}),
        row_wise: str | None = None,
    ) -> ComputedFiles:
        """Run the query, and write its rows as data files of the target's layout, by column name; commit nothing.

        :param table: whose rows they become
        :param target: the coming columns with their field ids, the partitioning, and the folder; names of files begin
            with ``target.family``, which is made of ``work_id``
        :param read: snapshots to read tables at, by name as it is compared; other tables are read as they are
        :param work_id: the same for the same piece of work after a crash. Files that it finished are taken again where
            ``row_wise`` says that a row of the result comes from one row of an input; otherwise it starts anew
        :param row_wise: the table, one of ``read``, of which each row gives one row. It may be read at a later
            snapshot the next time, with the same ``work_id``; only data files that came since are computed then
        """
        ...
