"""The rules for declarations: for each object by itself, and for all objects together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from airflow_provider_rfr.builtins import model, queries
from airflow_provider_rfr.builtins.desired import CycleError, in_order
from airflow_provider_rfr.builtins.model import (
    QUERIED,
    STORED,
    BuiltinObject,
    Column,
    Declared,
    Dependency,
    Instances,
    Kind,
    Removed,
    Was,
)
from airflow_provider_rfr.builtins.sql import columns_read
from airflow_provider_rfr.documents import nearest, suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, Problem, QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import field_types, is_plain, parse_transform, parse_type
from airflow_provider_rfr.sinks.spec import SinkSpec, findings

_MAY: Final[Mapping[str, Set[Kind]]] = {
    **dict.fromkeys(("columns", "properties"), STORED | QUERIED),
    **dict.fromkeys(("partitioning", "keys", "exportable"), STORED),
    **dict.fromkeys(("keep", "columns.was"), STORED - QUERIED),
    **dict.fromkeys(("query", "depends_on"), QUERIED),
    "source": {Kind.SOURCE},
    "refresh": {Kind.SOURCE, Kind.MATERIALIZED_VIEW},
    "sink": {Kind.SINK},
}
"""The kinds that may have a field."""
_MUST: Final = {"columns": STORED - {Kind.SOURCE}, "query": QUERIED, "source": {Kind.SOURCE}, "sink": {Kind.SINK}}
_GOOD_NAME: Final = "1 to 255 characters without outer spaces, dots, backticks, backslashes, control signs; not *"
T = TypeVar("T")


def checked(declared: Declared) -> tuple[Declared, Sequence[Problem]]:
    """Return the object in its canonical form, with immutable values, and the problems with it.

    A text that is not a type or a transform is left unchanged.
    """
    obj = declared.obj
    problems = [*_field_problems(obj)]
    columns, partitioning = tuple(_columns(obj.columns, problems)), tuple(obj.partitioning)
    if columns and obj.kind in STORED:
        problems += _name_findings(obj.keys, (column.name for column in columns), "keys")
        transform = partial(canonical_transform, columns=columns)
        numbered = enumerate(partitioning)
        partitioning = tuple(
            _canonical(text, transform, problems, f"partitioning.{number}") for number, text in numbered
        )
        problems += _name_findings(partitioning, partitioning, "partitioning")
    if obj.sink is not None and obj.kind is Kind.SINK:
        problems += findings(obj.sink)
    mutable = ("keys", "depends_on", "properties", "source", "refresh", "sink")
    frozen = {name: _frozen(getattr(obj, name)) for name in mutable}
    # What a query says can always be computed again.
    keep = False if obj.kind is Kind.MATERIALIZED_VIEW and obj.keep is True else obj.keep
    obj = replace(obj, columns=columns, partitioning=partitioning, keep=keep, **frozen)
    return replace(declared, obj=obj), [declared.problem(one.field, one.problem, one.remedy) for one in problems]


def _frozen(value: Any) -> Any:
    if isinstance(value, SinkSpec):
        return replace(value, settings=_frozen(value.settings))
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _field_problems(obj: BuiltinObject) -> Iterator[Problem]:
    kind = obj.kind.value
    if problem := model.name_problem(obj.name):
        yield Problem("name", problem, "write namespace.name")
    # Any object may write what is true of it anyhow.
    is_set = {"keep": isinstance(obj.keep, str), "columns.was": any(column.was for column in obj.columns)}
    for name, kinds in _MAY.items():
        is_given = is_set[name] if name in is_set else bool(getattr(obj, name))
        if is_given and obj.kind not in kinds:
            yield Problem(name, f"a {kind} has no {name}", "leave it out")
        elif not is_given and obj.kind in _MUST.get(name, ()):
            yield Problem(name, f"a {kind} has {name}", "none is given")
    if isinstance(obj.keep, str) and not obj.keep.strip():
        yield Problem("keep", "keep says why no rows may be lost, and nothing is said", "give a reason, or true")
    for name in obj.properties:
        if name.casefold().startswith("rfr."):
            yield Problem(f"properties.{name}", f"{name} is one of the marks that a deploy writes", "take another name")
    if obj.per_instance is not None and not is_plain(obj.per_instance):
        yield Problem("per_instance", f"{obj.per_instance!r} is not a name")


def _columns(columns: Sequence[Column], found: list[Problem]) -> Iterator[Column]:
    """Yield the columns with canonical types, and add problems with them to ``found``."""
    before = dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        is_good = name.strip() == name and name.isprintable() and 0 < len(name) <= 255 and name != "*"
        if not is_good or set(name) & set(".`\\"):
            found.append(Problem(f"{path}.name", f"{name[:40]!r} can't be a column's name", _GOOD_NAME))
        was = []
        for at, former in enumerate(column.was):
            inside, prefix = f"{path}.was.{at}", f"{name}: was: "
            if former == Was():
                found.append(Problem(inside, f"{prefix}it says nothing", "give name, type, using or fields"))
            if former.name is not None and before.setdefault(former.name.casefold(), number) != number:
                found.append(Problem(inside, f"two columns were called {former.name}"))
            if former.using is not None:
                _canonical(former.using, columns_read, found, inside, prefix)
            kind = None if former.type is None else _canonical(former.type, parse_type, found, inside, prefix)
            was.append(replace(former, type=kind, fields=_frozen(former.fields)))
            found += (Problem(inside, f"{prefix}{text}", remedy) for text, remedy in _former_problems(column, former))
        kind = _canonical(column.type, parse_type, found, f"{path}.type", f"{name}: ")
        yield replace(column, type=kind, was=tuple(was))
    names = [column.name for column in columns]
    found += _name_findings(names, names, "columns")


def _former_problems(column: Column, was: Was) -> Iterator[tuple[str, str]]:
    """Yield the problems, each with a remedy, with the former names of the fields of a column."""
    try:
        paths = list(field_types(parse_type(column.type))) if was.fields else []
    except ConfigurationError:
        return
    for path, former in was.fields.items():
        if path.casefold() not in map(str.casefold, paths):
            yield f"fields: {column.name} has no field {path}", suggestion(path, paths)
        if not former or set(former) & set(".`"):
            yield f"fields.{path}: {former!r} is not the name of a field", "give the name alone, without its path"


def _canonical(text: str, parse: Callable[[str], object], found: list[Problem], path: str, what: str = "") -> str:
    """Return the canonical text; if it can't be parsed, note a problem and return the text itself.

    :param what: start of the problem's text
    """
    try:
        return str(parse(text))
    except ConfigurationError as error:
        found.append(Problem(path, f"{what}{error.problem}", error.remedy))
        return text


def canonical_transform(text: str, columns: Sequence[Column]) -> str:
    """Return the canonical text of a partition transform.

    :raises ConfigurationError: it is not a transform, or no column has the name, or one of a type that can't be used
    """
    transform = parse_transform(text)
    column = next((column for column in columns if column.name.casefold() == transform.column.casefold()), None)
    if column is None:
        problem, close = f"{text!r}: there is no column {transform.column}", (column.name for column in columns)
        raise ConfigurationError("partitioning", problem, suggestion(transform.column, close))
    kind = parse_type(column.type)
    if not transform.takes(kind):
        raise ConfigurationError("partitioning", f"{text!r}: {column.name} is {kind}", "another column or transform")
    return str(replace(transform, column=column.name))


def _repeated(values: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[tuple[T, T]]:
    """Yield each value that has the key of an earlier value, with that earlier value."""
    known: dict[Hashable, T] = {}
    for value in values:
        if (first := known.setdefault(key(value), value)) is not value:
            yield value, first


def _name_findings(names: Sequence[str], valid: Iterable[str], path: str) -> Iterator[Problem]:
    """Yield a problem for each unknown or duplicate name of a column."""
    first_of = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in first_of:
            yield Problem(f"{path}.{number}", f"there is no column {name}", suggestion(name, first_of.values()))
    for (number, name), _ in _repeated(enumerate(names), lambda item: item[1].casefold()):
        yield Problem(f"{path}.{number}", f"{name} is listed twice")


def catalog_problems(checks: Sequence[tuple[Declared, Sequence[Problem]]], *, is_whole: bool) -> Iterator[Problem]:
    """Yield the problems among the objects; each object comes with the problems that it has by itself."""
    declared = [check for check, _ in checks]
    for entry, first in _repeated(declared, lambda entry: entry.obj.key):
        yield entry.problem("name", f"the name is taken by a {first.obj.kind.value}: {first.obj.place}")
    entries, reads = {entry.obj.key: entry for entry in declared}, dict[str, Sequence[Dependency]]()
    for entry, first in _repeated(entries.values(), lambda entry: entry.obj.id):
        problem = f"its id {entry.obj.id} is that of {first.obj.name}: {first.obj.place}"
        yield entry.problem("id", problem, "ids are made from first names; give the newer object an id of its own")
    # Otherwise, what is missing may be in a document that became no object.
    names = defaultdict[str, list[str]](list)
    for key in entries if is_whole else ():
        names[model.namespace_of(key)].append(key.rpartition(".")[2])
    for key, entry in entries.items():
        try:
            reads[key] = queries.object_reads(entry.obj, known=entries)
            yield from _read_problems(entry, reads[key], entries, names)
        except QueryError as error:
            ask_spark = "correct it; if Spark understands it, list what it reads in depends_on"
            is_unreadable = isinstance(error, UnreadableQueryError)
            yield entry.problem("query", error.problem, ask_spark if is_unreadable else error.remedy)
    order, circles = _order({key: [read.name for read in found] for key, found in reads.items()})
    for circle in circles:
        path = " -> ".join(entries[key].obj.name for key in (*circle, circle[0]))
        yield entries[circle[0]].problem("query", f"it reads itself: {path}")
    # What a broken object promises is not held against its readers.
    hidden = {check.obj.key for check, wrong in checks if wrong}.union(entries.keys() - reads.keys(), *circles)
    columns_of = queries.declared_columns(entry.obj for entry in entries.values())
    for key in order:
        if entries[key].obj.kind in QUERIED and hidden.isdisjoint([key, *(read.name for read in reads[key])]):
            yield from _query_problems(entries[key], columns_of)


def _order(reads: Mapping[str, Sequence[str]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the objects in dependency order, inputs before their readers, and the cycles that were left out."""
    circles: list[tuple[str, ...]] = []
    while True:
        try:
            return in_order(reads, str), circles
        except CycleError as error:
            circles.append(error.cycle)
            # The graph leaves out edges to names that have no entry.
            reads = {key: found for key, found in reads.items() if key not in error.cycle}


def _read_problems(
    reader: Declared, reads: Sequence[Dependency], known: Mapping[str, Declared], names: Mapping[str, Sequence[str]]
) -> Iterator[Problem]:
    """Yield the problems with the names that an object reads.

    :param names: last parts of the declared names by namespace; empty if some declarations could not be read
    """
    obj, path = reader.obj, "query" if reader.obj.sink is None else "sink.source"
    for name in queries.unqualified(obj.query) if obj.query and reads else ():
        remedy = f"write {model.namespace_of(obj.name)}.{name}"
        yield reader.problem(path, f"{name} has no namespace, and Spark's own may be any", remedy)
    for read in reads:
        declared = known.get(read.name)
        problem = _missing(obj, read.name, known, names) if declared is None else _refused(obj, declared.obj)
        if problem is not None:
            yield reader.problem(path, *problem)
        # A source's columns may come with its refreshes.
        if obj.sink is not None and declared is not None and (columns := declared.obj.columns):
            sent = model.present_names(obj.sink.columns, columns)
            for finding in _name_findings(sent, (column.name for column in columns), "sink.columns"):
                yield reader.problem(finding.field, finding.problem, finding.remedy)


def _missing(
    reader: BuiltinObject, name: str, known: Mapping[str, Declared], names: Mapping[str, Sequence[str]]
) -> tuple[str, str] | None:
    """Return the problem with a name that is not declared, and a remedy; None if somebody else may own it."""
    namespace, _, last = name.rpartition(".")
    if name in map(str.casefold, reader.depends_on):
        return None
    if (inside := name.partition(".")[2]) in known:
        return f"it reads {name} with a catalog's name before it", f"write {inside}: each lake has a catalog of its own"
    if not names or (namespace not in names and reader.sink is None):
        return None
    close = nearest(last, names.get(namespace, ()))
    remedy = "declare it, e.g. as a source; a view may have it in depends_on instead"
    return f"it reads {name}, which is not declared", f"did you mean {close}? {remedy}" if close else remedy


def _refused(reader: BuiltinObject, found: BuiltinObject) -> tuple[str, str] | None:
    """Return the reason why ``reader`` may not read ``found``, and a remedy; None if it may."""
    if found.kind is Kind.SINK:
        return f"it reads {found.name}, which is a sink", "read what that one reads"
    if found.per_instance is not None:
        return f"it reads {found.name}, which is one object for each {found.per_instance}", "read a single object"
    if reader.kind is Kind.SINK and found.kind not in STORED:
        return f"{found.name} is a {found.kind.value}, which has no history to send", "make it a materialized_view"
    near = model.namespace_of(reader.key) == model.namespace_of(found.key)
    if reader.kind is not Kind.SINK or near or found.exportable:
        return None
    return f"{found.name} is not exportable", "send a materialized_view over it, or have it declare exportable: true"


def _query_problems(reader: Declared, columns_of: queries.ColumnsOf) -> Iterator[Problem]:
    """Yield the problems with the query of an object; the names that it reads were checked before."""
    query, namespace = reader.obj.query or "", model.namespace_of(reader.obj.name)
    try:
        yield from (reader.query_problem(*found) for found in queries.column_problems(query, columns_of, namespace))
        starred = queries.expand_stars(query, columns_of, namespace) != query
        names = queries.output_columns(query, columns_of, namespace)
    except UnreadableQueryError:
        return
    except QueryError as error:
        yield reader.problem("query", error.problem, error.remedy)
        return
    outputs = [name.casefold() for name in names]
    for (_, name), _ in _repeated(enumerate(outputs), lambda one: one[1]):
        yield reader.problem("query", f"two of its columns are called {name}", "give one another name: ... AS name")
    columns, rest = [column.name for column in reader.obj.columns], iter(outputs)
    wanted = [name.casefold() for name in columns]
    # A star stands for those of its columns that are declared.
    fits = all(name in rest for name in wanted) if starred else wanted == outputs
    if columns and not fits:
        problem = f"its columns are {', '.join(columns)}, and its query gives {', '.join(names)}"
        yield reader.problem("columns", problem, "write them alike, in the same order")


def other_problems(removed: Sequence[Removed], listed: Sequence[Instances]) -> Iterator[Problem]:
    """Yield the problems with documents that declare a removal, and with lists of instances."""
    for entry in removed:
        # What comes behind is a column, or a field of one, under whatever name.
        if problem := model.name_problem(".".join(entry.name.split(".")[:2])):
            yield Problem(entry.name, problem, "write namespace.name, or namespace.table.column", str(entry.place))
    for one in listed:
        if not is_plain(one.name):
            problem = f"{one.name!r} is not a name"
            yield Problem(one.name, problem, "write what per_instance says, e.g. lake", str(one.place))
        if not all(text.strip() for pair in one.instances.items() for text in pair):
            yield Problem(one.name, "an instance has an empty id or name", "write ID: NAME", str(one.place))
    both: list[Removed | Instances] = [*removed, *listed]
    for other, first in _repeated(both, lambda reader: (type(reader), reader.name.casefold())):
        yield Problem(other.name, f"a document says so already: {first.place}", "keep one of the two", str(other.place))
