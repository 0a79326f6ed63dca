"""What a query reads once views are followed down to tables. Apart, because DAGs are parsed without the lake's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Kind
from airflow_provider_rfr.builtins.sql.facts import object_reads


def tables_below(reads: Iterable[str], of_view: Callable[[str], Iterable[str] | None]) -> tuple[str, ...]:
    """The names that no view has, sorted; all names are as they are compared.

    :param of_view: what the view of a name reads; None: the name is no view's. Called once for each name
    """
    waiting, seen, found = list(reads), set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        inside = of_view(name)
        if inside is None:
            found.add(name)
        else:
            waiting += inside
    return tuple(sorted(found))


def declared_inputs(obj: BuiltinObject, spec: CatalogSpec) -> tuple[str, ...]:
    """The tables that a declared query reads. What is not declared is taken for a table with a name in lower case."""
    by_key = spec.by_key()

    def reads(each: BuiltinObject) -> list[str]:
        return [read.name for read in object_reads(each, known=by_key)]

    def of_view(name: str) -> list[str] | None:
        found = by_key.get(name)
        return reads(found) if found is not None and found.kind is Kind.VIEW else None

    return tuple(by_key[name].name if name in by_key else name for name in tables_below(reads(obj), of_view))
