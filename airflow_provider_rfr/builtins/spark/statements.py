"""Statements about views, as Spark with Iceberg's extensions reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_rfr.builtins.spark import literals
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.lake.inventory import LiveColumn
from airflow_provider_rfr.lake.views import COMMENT, TEXT

_MARKS = ("--", "/*", ";")


@dataclass(frozen=True, slots=True)
class ViewText:
    """A view as it is to be.

    :ivar columns: by their places; empty for those of the query
    """

    name: str
    sql: str
    properties: Mapping[str, str]
    comment: str | None
    columns: tuple[Column, ...] = ()

    def named(self, before: Sequence[LiveColumn], found: Sequence[str]) -> ViewText:
        """With the names and comments that it had, as far as the query does not give them itself.

        :param found: names of the query's columns
        """
        said = any(each.comment for each in before) or [each.name for each in before] != list(found)
        if not said or len(before) != len(found):
            return self
        return replace(self, columns=tuple(Column(each.name, each.type, comment=each.comment) for each in before))


def create_view(view: ViewText, catalog: str, *, replace: bool) -> str:
    """Text, columns, comment and properties at once: a view without its marker is nobody's."""
    parts = ["CREATE OR REPLACE VIEW" if replace else "CREATE VIEW", literals.table_name(view.name, catalog)]
    if view.columns:
        parts.append(f"({', '.join(map(_column, view.columns))})")
    if view.comment is not None:
        parts.append(f"COMMENT {literals.text(view.comment)}")
    # Spark keeps the text from its first word to its last one.
    whole = {TEXT: view.sql} if any(mark in view.sql for mark in _MARKS) else {}
    if properties := {**view.properties, **whole}:
        parts.append(f"TBLPROPERTIES {literals.properties(properties)}")
    return f"{' '.join(parts)} AS {view.sql}"


def drop_view(name: str, catalog: str) -> str:
    """One that isn't there is no mistake."""
    return f"DROP VIEW IF EXISTS {literals.table_name(name, catalog)}"


def rename_view(old: str, new: str, catalog: str) -> str:
    """Text, comment and properties stay."""
    return f"ALTER VIEW {literals.table_name(old, catalog)} RENAME TO {literals.table_name(new, catalog)}"


def set_view_properties(
    name: str, properties: Mapping[str, str | None], comment: str | None, catalog: str
) -> Iterator[str]:
    """Set what has a value, take away what has none; the comment is a property, too."""
    values = {**properties, COMMENT: comment}
    given = {key: value for key, value in values.items() if value is not None}
    gone = sorted(key for key, value in values.items() if value is None)
    view = f"ALTER VIEW {literals.table_name(name, catalog)}"
    if given:
        yield f"{view} SET TBLPROPERTIES {literals.properties(given)}"
    if gone:
        yield f"{view} UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(literals.text, gone))})"


def _column(column: Column) -> str:
    name = literals.identifier(column.name)
    return name if column.comment is None else f"{name} COMMENT {literals.text(column.comment)}"
