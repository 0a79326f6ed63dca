"""What has to hold among declarations: names and ids, what reads what, and queries over the columns that they read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from airflow_provider_rfr.builtins.declaration._document import Declared, Instances
from airflow_provider_rfr.builtins.declaration._object import name_findings, repeated
from airflow_provider_rfr.builtins.desired import CycleError, in_order
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
from airflow_provider_rfr.builtins.sql import facts
from airflow_provider_rfr.exceptions import Problem, QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import is_plain

_OURS: Final = "rfr_system"
"""The namespace of this package's own objects."""
_MOST_CIRCLES: Final = 20


class Catalog:
    """All declared objects.

    :param flawed: names, as they are compared, of objects that are not what their author meant
    :param whole: whether every document became an object; otherwise a name that is missing may be in one that did not
    """

    def __init__(self, declared: Sequence[Declared], *, flawed: Collection[str], whole: bool) -> None:
        self._declared = declared
        self._known = {each.obj.key: each for each in declared}
        self._names = defaultdict[str, list[str]](list)
        for key in self._known:
            self._names[namespace_of(key)].append(key.rpartition(".")[2])
        self._columns_of = facts.declared_columns(each.obj for each in self._known.values())
        self._flawed = flawed
        self._whole = whole

    def problems(self) -> Iterator[Problem]:
        """What is wrong among the objects."""
        yield from self._name_problems()
        reads: dict[str, Sequence[Dependency]] = {}
        for key, each in self._known.items():
            try:
                reads[key] = facts.object_reads(each.obj, known=self._known) if _reads(each.obj) else ()
                yield from self._read_problems(each, reads[key])
            except QueryError as error:
                remedy = error.remedy
                if isinstance(error, UnreadableQueryError):
                    remedy = "correct it; if Spark understands it, list what it reads in depends_on"
                yield each.problem("query", error.problem, remedy)
        order, circles = _order({key: [read.name for read in found] for key, found in reads.items()})
        for circle in circles:
            names = " -> ".join(self._known[key].obj.name for key in [*circle, circle[0]])
            yield self._known[circle[0]].problem("query", f"it reads itself: {names}")
        # What a broken object promises is not held against its readers.
        hidden = {*self._flawed, *(self._known.keys() - reads.keys()), *(key for circle in circles for key in circle)}
        for key in order:
            each = self._known[key]
            if each.obj.kind in QUERIED and key not in hidden and hidden.isdisjoint(read.name for read in reads[key]):
                yield from self._query_problems(each)

    def _name_problems(self) -> Iterator[Problem]:
        """Names and ids that are taken, and names in a namespace that can't have any."""
        closed = any(each.ours for each in self._declared)
        for each, first in repeated(self._declared, lambda each: each.obj.key):
            yield each.problem("name", f"the name is taken by a {first.obj.kind.value}: {first.obj.place}")
        for each, first in repeated(self._declared, lambda each: each.obj.id):
            problem = f"its id {each.obj.id} is that of {first.obj.name}: {first.obj.place}"
            yield each.problem("id", problem, "ids are made from first names; give the newer object an id of its own")
        for each in self._declared:
            parts = each.obj.key.split(".")
            for inside in (".".join(parts[:end]) for end in range(2, len(parts))):
                if inside in self._known:
                    problem = f"its namespace {inside} is an object: {self._known[inside].obj.place}"
                    yield each.problem("name", problem, "names below a table are those of its metadata")
            if closed and not each.ours and parts[0] == _OURS:
                yield each.problem("name", f"the namespace {_OURS} is this package's own", "take another namespace")

    def _read_problems(self, reader: Declared, reads: Sequence[Dependency]) -> Iterator[Problem]:
        """What is wrong with the names that an object reads."""
        obj, path = reader.obj, "query" if reader.obj.sink is None else "sink.source"
        for name in facts.unqualified(obj.query) if obj.query and reads else ():
            remedy = f"write {namespace_of(obj.name)}.{name}"
            yield reader.problem(path, f"{name} has no namespace, and Spark's own may be any", remedy)
        for each in reads:
            found = self._known.get(each.name)
            problem = self._missing(obj, each.name) if found is None else _refused(obj, found.obj)
            if problem is not None:
                yield reader.problem(path, *problem)
            # A source's columns may come with its refreshes.
            if obj.sink is not None and found is not None and (columns := found.obj.columns):
                sent = present_names(obj.sink.columns, columns)
                for finding in name_findings(sent, (column.name for column in columns), "sink.columns"):
                    yield reader.problem(finding.field, finding.problem, finding.remedy)

    def _missing(self, reader: BuiltinObject, name: str) -> tuple[str, str] | None:
        """The problem with a name that is not declared; None, if somebody else may own it."""
        if name in map(str.casefold, reader.depends_on):
            return None
        inside = name.partition(".")[2]
        if inside in self._known:
            problem = f"it reads {name} with a catalog's name before it"
            return problem, f"write {inside}: each lake has a catalog of its own"
        namespace, _, last = name.rpartition(".")
        if not self._whole or (namespace not in self._names and reader.sink is None):
            return None
        close = nearest(last, self._names.get(namespace, ()), show=0)
        hint = "declare it, or name it in depends_on if it is not a built-in object"
        if reader.sink is not None:
            hint = "declare it, e.g. as a source"
        return f"it reads {name}, which is not declared", f"{close} {hint}".strip()

    def _query_problems(self, each: Declared) -> Iterator[Problem]:
        """What is wrong with the query of an object; the names that it reads were checked before."""
        query, namespace, columns_of = each.obj.query or "", namespace_of(each.obj.name), self._columns_of
        try:
            for found in facts.query_problems(query, columns_of, namespace):
                yield each.problem("query", found.problem, found.remedy, (found.line, found.column))
            starred = facts.expand_stars(query, columns_of, namespace) != query
            names = facts.output_columns(query, columns_of, namespace)
        except UnreadableQueryError:
            return
        except QueryError as error:
            yield each.problem("query", error.problem, error.remedy)
            return
        given = [name.casefold() for name in names]
        for name, count in Counter(given).items():
            if count > 1:
                remedy = "give one another name: ... AS name"
                yield each.problem("query", f"two of its columns are called {name}", remedy)
        columns, rest = [column.name for column in each.obj.columns], iter(given)
        wanted = [name.casefold() for name in columns]
        # A star stands for those of its columns that are declared.
        fits = all(name in rest for name in wanted) if starred else wanted == given
        if columns and not fits:
            problem = f"its columns are {', '.join(columns)}, and its query gives {', '.join(names)}"
            yield each.problem("columns", problem, "write them alike, in the same order")


def _reads(obj: BuiltinObject) -> bool:
    """Whether it has the field by which its kind reads; a field of another kind is a problem of its own."""
    return obj.sink is not None if obj.kind is Kind.SINK else obj.kind in QUERIED and bool(obj.query)


def _refused(reader: BuiltinObject, found: BuiltinObject) -> tuple[str, str] | None:
    """Why the one may not read the other."""
    if found.kind is Kind.SINK:
        return f"it reads {found.name}, which is a sink", "read what that one reads"
    if found.per_instance is not None:
        return f"it reads {found.name}, which is one object for each {found.per_instance}", "read a single object"
    if reader.kind is not Kind.SINK:
        return None
    if found.kind not in STORED:
        return f"{found.name} is a {found.kind.value}, which has no history to send", "make it a materialized_view"
    if namespace_of(reader.key) != namespace_of(found.key) and not found.exportable:
        remedy = "send a materialized_view over it, or have it declare exportable: true"
        return f"{found.name} is not exportable", remedy
    return None


def _order(reads: Mapping[str, Sequence[str]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """What is read before its readers, and the circles that were left out."""
    circles: list[tuple[str, ...]] = []
    while len(circles) < _MOST_CIRCLES:
        try:
            return in_order(reads, str), circles
        except CycleError as error:
            circles.append(error.cycle)
            # The graph leaves out edges to names that have no entry.
            reads = {key: found for key, found in reads.items() if key not in error.cycle}
    return (), circles


def removal_problems(removed: Sequence[Removed]) -> Iterator[Problem]:
    """What is wrong with the documents which say that something goes."""
    for each in removed:
        if problem := name_problem(each.name):
            yield Problem(each.name, problem, "write namespace.name, or namespace.table.column", str(each.place))
    for each, first in repeated(removed, lambda each: each.key):
        yield Problem(each.name, f"it is removed already: {first.place}", "keep one of the two", str(each.place))


def instances_problems(listed: Sequence[Instances]) -> Iterator[Problem]:
    """What is wrong with lists of instances; those of Python may have other types than texts."""
    for each in listed:
        name, place = each.name, str(each.place)
        if not is_plain(name):
            yield Problem(name, f"{name!r} is not a name", "write what per_instance says, e.g. lake", place)
        for key, called in each.instances.items():
            if not _is_text(key):
                yield Problem(name, f"the id {key!r} of an instance is not text", "write ID: NAME", place)
            elif not _is_text(called):
                yield Problem(name, f"the name {called!r} of {key} is not text", "write ID: NAME", place)
    for each, first in repeated(listed, lambda each: each.name):
        problem = f"there is a list of each {each.name} already: {first.place}"
        yield Problem(each.name, problem, "keep one of the two", str(each.place))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
