"""What has to hold of each object by itself, and the one way in which its types and transforms are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from airflow_provider_rfr.builtins.spec import (
    QUERIED,
    STORED,
    BuiltinObject,
    Column,
    Kind,
    Was,
    name_problem,
    nearest,
)
from airflow_provider_rfr.builtins.sql.parse import check_expression
from airflow_provider_rfr.exceptions import ConfigurationError, Problem, QueryError
from airflow_provider_rfr.lake.types import is_plain, parse_transform, parse_type
from airflow_provider_rfr.sinks.spec import findings as sink_findings

_RELATIONS: Final = STORED | QUERIED
_FIELDS: Final[Mapping[str, tuple[frozenset[Kind], frozenset[Kind]]]] = {
    "columns": (_RELATIONS, STORED - {Kind.SOURCE}),
    "properties": (_RELATIONS, frozenset()),
    "query": (QUERIED, QUERIED),
    "depends_on": (QUERIED, frozenset()),
    "source": (frozenset({Kind.SOURCE}), frozenset({Kind.SOURCE})),
    "refresh": (frozenset({Kind.SOURCE, Kind.MATERIALIZED_VIEW}), frozenset()),
    "sink": (frozenset({Kind.SINK}), frozenset({Kind.SINK})),
    "partitioning": (STORED, frozenset()),
    "keys": (STORED, frozenset()),
    "exportable": (STORED, frozenset()),
}
"""The kinds that may have a field, and those that must."""
_LONGEST_NAME: Final = 255
_INSTANTS: Final = {"timestamp", "timestamp_ntz"}
_TRANSFORMABLE: Final = {
    "years": {"date", *_INSTANTS},
    "months": {"date", *_INSTANTS},
    "days": {"date", *_INSTANTS},
    "hours": _INSTANTS,
    "bucket": {"int", "bigint", "decimal", "date", *_INSTANTS, "string", "binary"},
    "truncate": {"int", "bigint", "decimal", "string", "binary"},
    "": {"boolean", "int", "bigint", "float", "double", "decimal", "date", *_INSTANTS, "string", "binary"},
}
"""Types of columns that each transform takes; the empty name is partitioning by the column itself."""


def checked(obj: BuiltinObject) -> tuple[BuiltinObject, Sequence[Problem]]:
    """The object in its canonical form, with nothing in it that can be changed; and what is wrong with it, by field.

    What names no type or no transform is left as it is.
    """
    found = [*_shape(obj), *_keep(obj)]
    columns = tuple(_columns(obj.columns, found))
    partitioning = tuple(obj.partitioning)
    if columns and obj.kind in STORED:
        found += name_findings(obj.keys, (each.name for each in columns), "keys")
        partitioning = tuple(_partitioning(obj.partitioning, columns, found))
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
    for name, (may, must) in _FIELDS.items():
        if getattr(obj, name) and obj.kind not in may:
            yield Problem(name, f"a {kind} has no {name}")
        elif not getattr(obj, name) and obj.kind in must:
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
    """The columns with canonical types.

    :param found: takes what is wrong
    """
    names, before = dict[str, int](), dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        if problem := _column_name_problem(name):
            found.append(Problem(f"{path}.name", f"a column's name {problem}: {name[:40]!r}"))
        if names.setdefault(name.casefold(), number) != number:
            found.append(Problem(f"{path}.name", f"two columns are called {name}", "names are compared without case"))
        for at, was in enumerate(column.was):
            old = None if was.name is None else was.name.casefold()
            if old is not None and before.setdefault(old, number) != number:
                found.append(Problem(f"{path}.was.{at}", f"two columns were called {was.name}"))
        kind = _type(column.type, f"{path}.type", name, found)
        yield replace(column, type=kind, was=tuple(_was(column, path, found)))


def _column_name_problem(name: str) -> str | None:
    if not name or name != name.strip():
        return "is empty, or has spaces around it"
    if not name.isprintable() or set(name) & set(".`\\"):
        return "has a dot, a backtick, a backslash or something invisible in it"
    return f"is longer than {_LONGEST_NAME} characters" if len(name) > _LONGEST_NAME else None


def _was(column: Column, path: str, found: list[Problem]) -> Iterator[Was]:
    for at, was in enumerate(column.was):
        here = f"{path}.was.{at}"
        if was == Was():
            found.append(Problem(here, f"{column.name}: was says nothing", "give name, type or using"))
        if was.name is not None and was.name.casefold() == column.name.casefold() and not (was.type or was.using):
            found.append(Problem(here, f"{column.name} was always called so", "leave was out"))
        try:
            check_expression("1" if was.using is None else was.using)
        except QueryError as error:
            found.append(Problem(here, f"{column.name}: using: {error.problem}", error.remedy))
        yield was if was.type is None else replace(was, type=_type(was.type, here, column.name, found))


def _type(text: str, path: str, column: str, found: list[Problem]) -> str:
    try:
        return str(parse_type(text))
    except ConfigurationError as error:
        found.append(Problem(path, f"{column}: {error.problem}", error.remedy))
        return text


def name_findings(names: Sequence[str], valid: Iterable[str], path: str) -> Iterator[Problem]:
    """Unknown or duplicate names of columns."""
    known = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in known:
            yield Problem(f"{path}.{number}", f"there is no column {name}", nearest(name, known.values()))
        if name.casefold() in (each.casefold() for each in names[:number]):
            yield Problem(f"{path}.{number}", f"{name} is listed twice")


def _partitioning(texts: Sequence[str], columns: Sequence[Column], found: list[Problem]) -> Iterator[str]:
    seen = set[str]()
    for number, text in enumerate(texts):
        path, transform = f"partitioning.{number}", text
        try:
            transform = canonical_transform(text, columns)
        except ConfigurationError as error:
            found.append(Problem(path, error.problem, error.remedy))
        if transform.casefold() in seen:
            found.append(Problem(path, f"{transform} is listed twice"))
        seen.add(transform.casefold())
        yield transform


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
    if kind.name not in _TRANSFORMABLE[transform.name]:
        raise ConfigurationError("partitioning", f"{text!r}: {column.name} is {kind}", "another column or transform")
    return str(replace(transform, column=column.name))
