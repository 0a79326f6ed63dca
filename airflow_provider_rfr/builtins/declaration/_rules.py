"""Validation of declarations: each object by itself, its query, and all objects together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.declaration._document import Declared
from airflow_provider_rfr.builtins.desired import CycleError, in_order
from airflow_provider_rfr.builtins.fingerprint import (
    canonical_transform,
    column_findings,
    name_findings,
    partition_findings,
)
from airflow_provider_rfr.builtins.spec import (
    QUERIED,
    STORED,
    BuiltinObject,
    Dependency,
    Kind,
    Removed,
    name_problem,
    namespace_of,
    nearest,
    present_names,
)
from airflow_provider_rfr.builtins.sql.facts import (
    declared_columns,
    expand_stars,
    object_reads,
    output_columns,
    query_problems,
    unqualified,
)
from airflow_provider_rfr.builtins.sql.scopes import ColumnsOf
from airflow_provider_rfr.exceptions import ConfigurationError, Problem, QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import is_plain, parse_type
from airflow_provider_rfr.sinks.spec import findings as sink_findings

_QUERY = ("query", "depends_on")
_SOURCE = ("source", "refresh")
_STORAGE = ("partitioning", "keys", "exportable")
_STRANGE: dict[Kind, Sequence[str]] = {
    Kind.TABLE: (*_QUERY, *_SOURCE, "sink"),
    Kind.LOG: (*_QUERY, *_SOURCE, "sink"),
    Kind.SOURCE: (*_QUERY, "sink"),
    Kind.MATERIALIZED_VIEW: ("source", "sink"),
    Kind.VIEW: (*_STORAGE, *_SOURCE, "sink"),
    Kind.SINK: (*_QUERY, *_STORAGE, *_SOURCE, "columns", "properties"),
}
_NEEDED: dict[Kind, Sequence[str]] = {
    Kind.TABLE: ("columns",),
    Kind.LOG: ("columns",),
    Kind.SOURCE: ("source",),
    Kind.MATERIALIZED_VIEW: ("columns", "query"),
    Kind.VIEW: ("query",),
    Kind.SINK: ("sink",),
}
_KEPT = STORED - QUERIED
"""Kinds whose rows come from elsewhere than a query."""


def canonical(obj: BuiltinObject) -> BuiltinObject:
    """The object with its types and transforms written in the one way, and nothing in it that could be changed."""
    columns, partitioning = [], []
    # What names no type or no transform is left as it is, and is a finding.
    for column in obj.columns:
        was = tuple(replace(each, type=_canonical_type(each.type)) for each in column.was)
        columns.append(replace(column, type=_canonical_type(column.type), was=was))
    for text in obj.partitioning:
        try:
            partitioning.append(canonical_transform(text, columns))
        except ConfigurationError:
            partitioning.append(text)
    return replace(
        obj,
        columns=tuple(columns),
        partitioning=tuple(partitioning),
        keys=tuple(obj.keys),
        depends_on=tuple(obj.depends_on),
        # What a query says can always be computed again.
        keep=False if obj.kind is Kind.MATERIALIZED_VIEW and obj.keep is True else obj.keep,
        properties=MappingProxyType(dict(obj.properties)),
        source=_frozen(obj.source),
        refresh=_frozen(obj.refresh),
    )


def _canonical_type(text: Any) -> Any:
    try:
        return str(parse_type(text)) if isinstance(text, str) else text
    except ConfigurationError:
        return text


def _frozen(given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if given is None else MappingProxyType(dict(given))


def findings(obj: BuiltinObject) -> Iterator[Problem]:
    """What is wrong with one object."""
    if problem := name_problem(obj.name):
        yield Problem("name", problem, "write namespace.name")
    yield from _shape(obj)
    yield from column_findings(obj.columns)
    yield from _storage(obj) if obj.kind in STORED else ()
    yield from sink_findings(obj.sink) if obj.kind is Kind.SINK and obj.sink is not None else ()


def _shape(obj: BuiltinObject) -> Iterator[Problem]:
    for name in _STRANGE[obj.kind]:
        if getattr(obj, name):
            yield Problem(name, f"a {obj.kind.value} has no {name}")
    for name in _NEEDED[obj.kind]:
        if not getattr(obj, name):
            yield Problem(name, f"a {obj.kind.value} has {name}", "none is given")
    yield from _kept(obj)
    for name in obj.properties:
        if name.casefold().startswith("rfr."):
            yield Problem(f"properties.{name}", f"{name} is one of the marks that a deploy writes", "take another name")
    if obj.per_instance is not None and not is_plain(obj.per_instance):
        yield Problem("per_instance", f"{obj.per_instance!r} is not a name")


def _kept(obj: BuiltinObject) -> Iterator[Problem]:
    if isinstance(obj.keep, str) and not obj.keep.strip():
        yield Problem("keep", "keep says why no rows may be lost, and nothing is said", "give a reason, or true")
    if isinstance(obj.keep, str) and obj.kind not in _KEPT:
        yield Problem("keep", f"a {obj.kind.value} has no rows of its own to keep", "leave it out, or write false")
    for column in obj.columns if obj.kind not in _KEPT else ():
        if column.was:
            yield Problem("columns", f"{column.name}: a {obj.kind.value} has no was", "its query says what it is")


def _storage(obj: BuiltinObject) -> Iterator[Problem]:
    if obj.columns:
        yield from name_findings(obj.keys, (c.name for c in obj.columns), "keys")
        yield from partition_findings(obj.partitioning, obj.columns)


@dataclass(frozen=True)
class _Known:
    """Everything that is declared.

    :ivar all: by name, as it is compared
    :ivar whole: a name that is not there is not declared
    """

    all: Mapping[str, Declared]
    whole: bool

    @cached_property
    def namespaces(self) -> frozenset[str]:
        return frozenset(map(namespace_of, self.all))


def _read_problems(reader: Declared, reads: Sequence[Dependency], known: _Known) -> Iterator[Problem]:
    """What is wrong with the names that an object reads."""
    obj = reader.obj
    path = "query" if obj.sink is None else "sink.source"
    for name in unqualified(obj.query) if obj.query is not None else ():
        remedy = f"write {namespace_of(obj.name)}.{name}"
        yield reader.problem(path, f"{name} has no namespace, and Spark's own may be any", remedy)
    for each in reads:
        found = known.all.get(each.name)
        problem = _missing(reader, each.name, known) if found is None else _refused(obj, found.obj)
        if problem is not None:
            yield reader.problem(path, *problem)
    if obj.sink is not None and obj.sink.source.casefold() in known.all:
        columns = known.all[obj.sink.source.casefold()].obj.columns
        names = present_names(obj.sink.columns, columns)
        # A source's columns may come with its refreshes.
        for finding in name_findings(names, (c.name for c in columns), "sink.columns") if columns else ():
            yield reader.problem(finding.field, finding.problem, finding.remedy)


def _missing(reader: Declared, name: str, known: _Known) -> tuple[str, str] | None:
    if name in (each.casefold() for each in reader.obj.depends_on):
        return None
    _, _, inside = name.partition(".")
    if inside in known.all:
        return f"it reads {name} with a catalog's name before it", f"write {inside}: each lake has a catalog of its own"
    if not known.whole or not (namespace_of(name) in known.namespaces or reader.obj.sink is not None):
        return None
    siblings = [each.rpartition(".")[2] for each in known.all if namespace_of(each) == namespace_of(name)]
    close = nearest(name.rpartition(".")[2], siblings, show=0)
    hint = "declare it, or name it in depends_on if it is not a built-in object"
    if reader.obj.sink is not None:
        hint = "declare it, e.g. as a source"
    return f"it reads {name}, which is not declared", " ".join(part for part in (close, hint) if part)


def _refused(reader: BuiltinObject, found: BuiltinObject) -> tuple[str, str] | None:
    """Why the one may not read the other."""
    stranger = namespace_of(reader.key) != namespace_of(found.key)
    if found.kind is Kind.SINK:
        return f"it reads {found.name}, which is a sink", "read what that one reads"
    if found.per_instance is not None:
        return f"it reads {found.name}, which is one object for each {found.per_instance}", "read a single object"
    if reader.kind is not Kind.SINK:
        return None
    if found.kind not in STORED:
        return f"{found.name} is a {found.kind.value}, which has no history to send", "make it a materialized_view"
    if stranger and not found.exportable:
        remedy = "send a materialized_view over it, or have it declare exportable: true"
        return f"{found.name} is not exportable", remedy
    return None


def _query_problems(each: Declared, columns_of: ColumnsOf) -> Iterator[Problem]:
    """What is wrong with the query of an object; what it reads was looked at before."""
    obj = each.obj
    if not obj.query:
        return
    namespace = namespace_of(obj.name)
    try:
        for found in query_problems(obj.query, columns_of, namespace):
            yield each.problem("query", found.problem, found.remedy, (found.line, found.column))
        starred = expand_stars(obj.query, columns_of, namespace) != obj.query
        names = output_columns(obj.query, columns_of, namespace)
    except UnreadableQueryError:
        return
    except QueryError as error:
        yield each.problem("query", error.problem, error.remedy)
        return
    given = [name.casefold() for name in names]
    for name, count in Counter(given).items():
        if count > 1:
            yield each.problem("query", f"two of its columns are called {name}", "give one another name: ... AS name")
    columns = [column.name for column in each.obj.columns]
    declared, rest = [name.casefold() for name in columns], iter(given)
    if starred and all(name in rest for name in declared):
        return
    if columns and declared != given:
        problem = f"its columns are {', '.join(columns)}, and its query gives {', '.join(names)}"
        yield each.problem("columns", problem, "write them alike, in the same order")


_OURS = "rfr_system"
"""The namespace of this package's own objects."""
_MOST_CIRCLES = 20


def catalog_problems(declared: Sequence[Declared], *, flawed: frozenset[str], whole: bool) -> Iterator[Problem]:
    """All that is wrong among objects.

    :param flawed: names, as they are compared, of objects that are not what their author meant
    :param whole: whether every document became an object; otherwise a name that is missing may be in one that did not
    """
    yield from _name_problems(declared)
    alive = {each.obj.key: each for each in declared}
    known = _Known(alive, whole)
    reads: dict[str, Sequence[Dependency]] = {}
    for key, each in alive.items():
        try:
            reads[key] = object_reads(each.obj, known=alive.keys()) if _reads(each.obj) else ()
        except QueryError as error:
            remedy = error.remedy
            if isinstance(error, UnreadableQueryError):
                remedy = "correct it; if Spark understands it, list what it reads in depends_on"
            yield each.problem("query", error.problem, remedy)
            continue
        yield from _read_problems(each, reads[key], known) if _reads(each.obj) else ()
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
            yield from _query_problems(each, columns_of)


def removal_problems(removed: Sequence[Removed]) -> Iterator[Problem]:
    """What is wrong with the documents which say that something goes."""
    seen: dict[str, Removed] = {}
    for each in removed:
        if problem := name_problem(each.name):
            yield Problem(each.name, problem, "write namespace.name, or namespace.table.column", str(each.place))
        if (first := seen.setdefault(each.key, each)) is not each:
            yield Problem(each.name, f"it is removed already: {first.place}", "keep one of the two", str(each.place))


def _reads(obj: BuiltinObject) -> bool:
    """Whether it has what its kind reads by; what is missing or strange was problem before."""
    return obj.sink is not None if obj.kind is Kind.SINK else obj.kind in QUERIED and bool(obj.query)


def _name_problems(declared: Sequence[Declared]) -> Iterator[Problem]:
    """Names and ids that are taken, and names in a namespace that can't have any."""
    by_key = {each.obj.key: each for each in declared}
    closed = any(each.ours for each in declared)
    names: dict[str, Declared] = {}
    ids: dict[UUID, Declared] = {}
    for each in declared:
        first = names.setdefault(each.obj.key, each)
        if first is not each:
            yield each.problem("name", f"the name is taken by a {first.obj.kind.value}: {first.obj.place}")
        first = ids.setdefault(each.obj.id, each)
        if first is not each:
            problem = f"its id {each.obj.id} is that of {first.obj.name}: {first.obj.place}"
            yield each.problem("id", problem, "ids are made from first names; give the newer object an id of its own")
        parts = each.obj.key.split(".")
        inside = next((found for end in range(2, len(parts)) if (found := ".".join(parts[:end])) in by_key), None)
        if inside is not None:
            problem = f"its namespace {inside} is an object: {by_key[inside].obj.place}"
            yield each.problem("name", problem, "names below a table are those of its metadata")
        if closed and not each.ours and parts[0] == _OURS:
            yield each.problem("name", f"the namespace {_OURS} is this package's own", "take another namespace")


def _order(reads: Mapping[str, Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """What is read before its readers, and the circles that were left out."""
    left, circles = dict(reads), list[list[str]]()
    while True:
        try:
            return list(in_order(left, str)), circles
        except CycleError as error:
            circle = [*error.cycle, error.cycle[0]]
            circles.append(circle)
            left = {
                key: [name for name in found if name not in circle] for key, found in left.items() if key not in circle
            }
            if len(circles) == _MOST_CIRCLES:
                return [], circles
