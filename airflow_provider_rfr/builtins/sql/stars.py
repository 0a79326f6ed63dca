"""``SELECT *`` written out: a column that comes later changes no view by itself.

Only the star is touched. The rest of the text stays as its author wrote it, and it is that text which is executed.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spec import QUERIED, BuiltinObject
from airflow_provider_rfr.builtins.sql.outputs import ColumnsOf
from airflow_provider_rfr.builtins.sql.star_spans import result_columns, star_edits
from airflow_provider_rfr.exceptions import QueryError

__all__ = ["ColumnsOf", "declared_columns", "expand_stars", "output_columns"]


def expand_stars(query: str, columns_of: ColumnsOf, namespace: str = "", *, keep_unknown: bool = False) -> str:
    """The query with every star that stands for columns replaced by their names.

    That of ``count(*)`` stands for none. ``NATURAL JOIN`` is refused as well, since it depends on columns that nobody
    names.

    :param columns_of: the columns that are recorded, or declared, by name as it is compared
    :param namespace: of tables that are named without one
    :param keep_unknown: leave stars alone under which there is nothing but tables of others
    :raises QueryError: a star can't be written out; what to write instead is its remedy
    """
    for edit in reversed(star_edits(query, columns_of, namespace, keep_unknown=keep_unknown)):
        query = query[: edit.start] + edit.text + query[edit.end :]
    return query


def output_columns(query: str, columns_of: ColumnsOf, namespace: str = "") -> tuple[str, ...]:
    """The names of a query's columns, as their author wrote them.

    :raises QueryError: one has no name, or what a star stands for is not known
    """
    return result_columns(query, columns_of, namespace)


def declared_columns(objects: Iterable[BuiltinObject]) -> ColumnsOf:
    """The columns of declared objects; those of a view that names none are those of its query.

    Ask for what is read before you ask for its readers, or a long chain of views ends in a ``RecursionError``.
    """
    by_key = {each.key: each for each in objects}
    known: dict[str, tuple[str, ...] | None] = {}

    def columns_of(name: str) -> tuple[str, ...] | None:
        key = name.casefold()
        if key not in known:
            # Views in a circle have no columns; the circle itself is told by whoever orders them.
            known[key] = None
            known[key] = _columns(by_key.get(key), columns_of)
        return known[key]

    return columns_of


def _columns(obj: BuiltinObject | None, columns_of: ColumnsOf) -> tuple[str, ...] | None:
    if obj is None:
        return None
    if obj.columns or obj.kind not in QUERIED or obj.query is None:
        return tuple(each.name for each in obj.columns) or None
    try:
        return output_columns(obj.query, columns_of, namespace=namespace_of(obj.name))
    except QueryError:
        return None
