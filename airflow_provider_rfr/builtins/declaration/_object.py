"""What has to hold of each object by itself, and the one way in which its types and transforms are written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from airflow_provider_rfr.builtins.spec import QUERIED, STORED, BuiltinObject, Column, Kind, Was, name_problem, nearest
from airflow_provider_rfr.builtins.sql.parse import check_expression
from airflow_provider_rfr.exceptions import ConfigurationError, Problem
from airflow_provider_rfr.lake.types import is_plain, parse_transform, parse_type
from airflow_provider_rfr.sinks.spec import findings as sink_findings

_MAY: Final[Mapping[str, Set[Kind]]] = {
    **dict.fromkeys(("columns", "properties"), STORED | QUERIED),
    **dict.fromkeys(("partitioning", "keys", "exportable"), STORED),
    **dict.fromkeys(("query", "depends_on"), QUERIED),
    "source": {Kind.SOURCE},
    "refresh": {Kind.SOURCE, Kind.MATERIALIZED_VIEW},
    "sink": {Kind.SINK},
}
"""The kinds that may have a field."""
_MUST: Final = {"columns": STORED - {Kind.SOURCE}, "query": QUERIED, "source": {Kind.SOURCE}, "sink": {Kind.SINK}}
_LONGEST_NAME: Final = 255
T = TypeVar("T")


def checked(obj: BuiltinObject) -> tuple[BuiltinObject, Sequence[Problem]]:
    """The object in its canonical form, with nothing in it that can be changed; and what is wrong with it, by field.

    What names no type or no transform is left as it is.
    """
    found = [*_shape(obj), *_keep(obj)]
    columns = tuple(_columns(obj.columns, found))
    partitioning = tuple(obj.partitioning)
    if columns and obj.kind in STORED:
        found += name_findings(obj.keys, (each.name for each in columns), "keys")
        transform = partial(canonical_transform, columns=columns)
        numbered = enumerate(partitioning)
        partitioning = tuple(_canonical(each, transform, found, f"partitioning.{number}") for number, each in numbered)
        found += _listed_twice(partitioning, "partitioning")
    if obj.sink is not None and obj.kind is Kind.SINK:
        found += sink_findings(obj.sink)
    obj = replace(
        obj,
        columns=columns,
        partitioning=partitioning,
        keys=tuple(obj.keys),
        depends_on=tuple(obj.depends_on),
        # What a query says can always be computed again.
        keep=False if obj.kind is Kind.MATERIALIZED_VIEW and obj.keep is True else obj.keep,
        properties=_frozen(obj.properties),
        source=_frozen(obj.source),
        refresh=_frozen(obj.refresh),
        sink=None if obj.sink is None else replace(obj.sink, settings=_frozen(obj.sink.settings)),
    )
    return obj, found


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(each) for key, each in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _shape(obj: BuiltinObject) -> Iterator[Problem]:
    kind = obj.kind.value
    if problem := name_problem(obj.name):
        yield Problem("name", problem, "write namespace.name")
    for name, kinds in _MAY.items():
        if getattr(obj, name) and obj.kind not in kinds:
            yield Problem(name, f"a {kind} has no {name}")
        elif not getattr(obj, name) and obj.kind in _MUST.get(name, ()):
            yield Problem(name, f"a {kind} has {name}", "none is given")
    for name in obj.properties:
        if name.casefold().startswith("rfr."):
            yield Problem(f"properties.{name}", f"{name} is one of the marks that a deploy writes", "take another name")
    if obj.per_instance is not None and not is_plain(obj.per_instance):
        yield Problem("per_instance", f"{obj.per_instance!r} is not a name")


def _keep(obj: BuiltinObject) -> Iterator[Problem]:
    kind = obj.kind.value
    if isinstance(obj.keep, str) and not obj.keep.strip():
        yield Problem("keep", "keep says why no rows may be lost, and nothing is said", "give a reason, or true")
    if obj.kind not in STORED - QUERIED:
        if isinstance(obj.keep, str):
            yield Problem("keep", f"a {kind} has no rows of its own to keep", "leave it out, or write false")
        for column in obj.columns:
            if column.was:
                yield Problem("columns", f"{column.name}: a {kind} has no was", "its query says what it is")


def _columns(columns: Sequence[Column], found: list[Problem]) -> Iterator[Column]:
    """The columns with canonical types."""
    before = dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        if problem := _column_name_problem(name):
            found.append(Problem(f"{path}.name", f"a column's name {problem}: {name[:40]!r}"))
        for at, was in enumerate(column.was):
            if was.name is not None and before.setdefault(was.name.casefold(), number) != number:
                found.append(Problem(f"{path}.was.{at}", f"two columns were called {was.name}"))
        kind = _canonical(column.type, parse_type, found, f"{path}.type", f"{name}: ")
        yield replace(column, type=kind, was=tuple(_was(column, path, found)))
    for (number, column), _ in repeated(enumerate(columns), lambda each: each[1].name.casefold()):
        problem = f"two columns are called {column.name}"
        found.append(Problem(f"columns.{number}.name", problem, "names are compared without case"))


def _column_name_problem(name: str) -> str | None:
    if not name or name != name.strip():
        return "is empty, or has spaces around it"
    if not name.isprintable() or set(name) & set(".`\\"):
        return "has a dot, a backtick, a backslash or something invisible in it"
    return f"is longer than {_LONGEST_NAME} characters" if len(name) > _LONGEST_NAME else None


def _was(column: Column, path: str, found: list[Problem]) -> Iterator[Was]:
    """What the column was, with canonical types."""
    name = column.name
    for at, was in enumerate(column.was):
        here = f"{path}.was.{at}"
        if was == Was():
            found.append(Problem(here, f"{name}: was says nothing", "give name, type or using"))
        if was.name is not None and was.name.casefold() == name.casefold() and not (was.type or was.using):
            found.append(Problem(here, f"{name} was always called so", "leave was out"))
        if was.using is not None:
            _canonical(was.using, check_expression, found, here, f"{name}: using: ")
        kind = None if was.type is None else _canonical(was.type, parse_type, found, here, f"{name}: ")
        yield replace(was, type=kind)


def _canonical(text: str, parse: Callable[[str], object], found: list[Problem], path: str, what: str = "") -> str:
    """The canonical text; the text as it is, with a problem, if it can't be parsed.

    :param what: comes before the problem
    """
    try:
        return str(parse(text))
    except ConfigurationError as error:
        found.append(Problem(path, f"{what}{error.problem}", error.remedy))
        return text


def repeated(values: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[tuple[T, T]]:
    """Each value whose key one before it has, with that one."""
    known: dict[Hashable, T] = {}
    for each in values:
        if (first := known.setdefault(key(each), each)) is not each:
            yield each, first


def name_findings(names: Sequence[str], valid: Iterable[str], path: str) -> Iterator[Problem]:
    """Unknown or duplicate names of columns."""
    known = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in known:
            yield Problem(f"{path}.{number}", f"there is no column {name}", nearest(name, known.values()))
    yield from _listed_twice(names, path)


def _listed_twice(texts: Iterable[str], path: str) -> Iterator[Problem]:
    for (number, text), _ in repeated(enumerate(texts), lambda each: each[1].casefold()):
        yield Problem(f"{path}.{number}", f"{text} is listed twice")


def canonical_transform(text: str, columns: Sequence[Column]) -> str:
    """The canonical text of a partition transform.

    :raises ConfigurationError: it is not a transform, or no column has the name, or one of a type that can't be used
    """
    transform = parse_transform(text)
    column = next((each for each in columns if each.name.casefold() == transform.column.casefold()), None)
    if column is None:
        problem = f"{text!r}: there is no column {transform.column}"
        raise ConfigurationError("partitioning", problem, nearest(transform.column, (each.name for each in columns)))
    try:
        kind = parse_type(column.type)
    except ConfigurationError:
        return text  # the column's own finding says so
    if not transform.takes(kind):
        raise ConfigurationError("partitioning", f"{text!r}: {column.name} is {kind}", "another column or transform")
    return str(replace(transform, column=column.name))
