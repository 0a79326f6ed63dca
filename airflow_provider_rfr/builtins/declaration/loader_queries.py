"""What a query has to be so that it can be kept up to date: its columns named, its stars written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from airflow_provider_rfr.builtins.declaration.loader_object import Declared
from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.sql.stars import ColumnsOf, expand_stars, output_columns
from airflow_provider_rfr.builtins.sql.unknown import unknown_columns
from airflow_provider_rfr.exceptions import DeclarationProblem, QueryError, UnreadableQueryError


def query_problems(each: Declared, columns_of: ColumnsOf) -> Iterator[DeclarationProblem]:
    """What is wrong with the query of an object; what it reads was looked at before."""
    obj = each.obj
    if not obj.query:
        return
    namespace = namespace_of(obj.name)
    try:
        for problem, remedy in unknown_columns(obj.query, columns_of, namespace):
            yield each.problem("query", problem, remedy)
        starred = expand_stars(obj.query, columns_of, namespace) != obj.query
        names = output_columns(obj.query, columns_of, namespace)
    except UnreadableQueryError:
        return
    except QueryError as error:
        yield each.problem("query", error.problem, error.remedy)
        return
    yield from _result_problems(each, names, starred and not obj.follow_star)


def _result_problems(each: Declared, names: Sequence[str], kept: bool) -> Iterator[DeclarationProblem]:
    """What is wrong with the columns of the result.

    :param kept: its stars may have been written out when what it reads had fewer columns: that is for the plan to see
    """
    found = [name.casefold() for name in names]
    for name, count in Counter(found).items():
        if count > 1:
            yield each.problem("query", f"two of its columns are called {name}", "give one another name: ... AS name")
    columns = [column.name for column in each.obj.columns]
    declared, rest = [name.casefold() for name in columns], iter(found)
    if kept and all(name in rest for name in declared):
        return
    if columns and declared != found:
        told = f"its columns are {', '.join(columns)}, and its query gives {', '.join(names)}"
        yield each.problem("columns", told, "write them alike, in the same order")
