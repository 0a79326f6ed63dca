"""What has to hold among objects: names and ids of their own, and reads that lead somewhere and not in a circle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from airflow_provider_rfr.builtins.declaration.loader_object import Declared
from airflow_provider_rfr.builtins.declaration.loader_queries import query_problems
from airflow_provider_rfr.builtins.declaration.loader_reads import Known, read_problems
from airflow_provider_rfr.builtins.spec import QUERIED, BuiltinObject, Kind
from airflow_provider_rfr.builtins.sql.queries import Reads, object_reads
from airflow_provider_rfr.builtins.sql.stars import declared_columns
from airflow_provider_rfr.builtins.wanted import is_gone
from airflow_provider_rfr.exceptions import DeclarationProblem, QueryError, UnreadableQueryError

OURS = "rfr_system"
"""The namespace of this package's own objects."""
MOST_CIRCLES = 20


def catalog_problems(
    declared: Sequence[Declared], version: str, *, flawed: frozenset[str], whole: bool
) -> Iterator[DeclarationProblem]:
    """All that is wrong among objects.

    :param flawed: names, as they are compared, of objects that are not what their author meant
    :param whole: whether every document became an object; otherwise a name that is missing may be in one that did not
    """
    yield from _same(declared, "name", lambda each: each.obj.key)
    yield from _same(declared, "id", lambda each: str(each.obj.id))
    yield from _namespaces(declared)
    alive = {each.obj.key: each for each in declared if not is_gone(each.obj, version)}
    known = Known(alive, {each.obj.key: each for each in declared}, whole)
    reads: dict[str, Sequence[Reads]] = {}
    for key, each in alive.items():
        try:
            reads[key] = object_reads(each.obj, known=alive.keys()) if _reads(each.obj) else ()
        except QueryError as error:
            yield each.problem("query", error.problem, _remedy(error))
            continue
        yield from read_problems(each, reads[key], known) if _reads(each.obj) else ()
    order, circles = _order({key: [read.name for read in found if read.name in alive] for key, found in reads.items()})
    for circle in circles:
        yield alive[circle[0]].problem(
            "query", f"it reads itself: {' -> '.join(alive[key].obj.name for key in circle)}"
        )
    columns_of = declared_columns(each.obj for each in alive.values())
    hidden = flawed | {key for circle in circles for key in circle} | (alive.keys() - reads.keys())
    for key in order:
        each = alive[key]
        if each.obj.kind in QUERIED and key not in hidden and not any(read.name in hidden for read in reads[key]):
            yield from query_problems(each, columns_of)


def _reads(obj: BuiltinObject) -> bool:
    """Whether it has what its kind reads by; what is missing or strange was told before."""
    return obj.sink is not None if obj.kind is Kind.SINK else obj.kind in QUERIED and bool(obj.query)


def _remedy(error: QueryError) -> str:
    if isinstance(error, UnreadableQueryError):
        return "correct it; if Spark understands it, list what it reads in depends_on"
    return error.remedy


def _same(declared: Sequence[Declared], what: str, of: Callable[[Declared], str]) -> Iterator[DeclarationProblem]:
    groups = defaultdict[str, list[Declared]](list)
    for each in declared:
        groups[of(each)].append(each)
    for first, *others in groups.values():
        for each in others:
            if what == "name":
                yield each.problem("name", f"the name is taken by a {first.obj.kind.value}: {first.obj.place}")
            else:
                told = f"its id {each.obj.id} is that of {first.obj.name}: {first.obj.place}"
                yield each.problem("id", told, "ids are made from first names; give the newer object an id of its own")


def _namespaces(declared: Sequence[Declared]) -> Iterator[DeclarationProblem]:
    by_key = {each.obj.key: each for each in declared}
    closed = any(each.ours for each in declared)
    for each in declared:
        parts = each.obj.key.split(".")
        inside = next((found for end in range(2, len(parts)) if (found := ".".join(parts[:end])) in by_key), None)
        if inside is not None:
            told = f"its namespace {inside} is an object: {by_key[inside].obj.place}"
            yield each.problem("name", told, "names below a table are those of its metadata")
        if closed and not each.ours and parts[0] == OURS:
            yield each.problem("name", f"the namespace {OURS} is this package's own", "take another namespace")


def _order(reads: Mapping[str, Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """What is read before its readers, and the circles that were left out."""
    left, circles = dict(reads), list[list[str]]()
    while True:
        try:
            return list(TopologicalSorter(left).static_order()), circles
        except CycleError as error:
            circle = error.args[1][::-1]
            start = min(range(len(circle) - 1), key=circle.__getitem__)
            circles.append([*circle[start:-1], *circle[:start], circle[start]])
            left = {
                key: [name for name in found if name not in circle] for key, found in left.items() if key not in circle
            }
            if len(circles) == MOST_CIRCLES:
                return [], circles
