"""Columns, keys and partitioning of a declaration: what is wrong with them, and the one way to write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_provider_rfr.builtins.names import nearest, quoted
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.builtins.type_values import Decimal
from airflow_provider_rfr.builtins.types import canonical_type, parse_type
from airflow_provider_rfr.exceptions import ConfigurationError

LONGEST_NAME = 255
_TRANSFORM = re.compile(r"\s*(\w+)\s*\(\s*([^,()]+?)\s*(?:,\s*([^,()]+?)\s*)?\)\s*")
_TIMES = {"year": "years", "month": "months", "day": "days", "hour": "hours", "date": "days"}
_SIZED = ("bucket", "truncate")
_INSTANTS = {"timestamp", "timestamp_ntz"}
_TAKES = {
    "years": {"date", *_INSTANTS},
    "months": {"date", *_INSTANTS},
    "days": {"date", *_INSTANTS},
    "hours": _INSTANTS,
    "bucket": {"int", "bigint", "decimal", "date", *_INSTANTS, "string", "binary"},
    "truncate": {"int", "bigint", "decimal", "string", "binary"},
    "": {"boolean", "int", "bigint", "float", "double", "decimal", "date", *_INSTANTS, "string", "binary"},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a path of a declaration."""

    path: str
    problem: str
    remedy: str = ""


def column_findings(columns: Sequence[Column]) -> Iterator[Finding]:
    """What is wrong with columns, each and all."""
    names, before = dict[str, int](), dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        if problem := column_name_problem(name):
            yield Finding(f"{path}.name", problem)
        if names.setdefault(name.casefold(), number) != number:
            yield Finding(f"{path}.name", f"two columns are called {name}", "names are compared without case")
        try:
            parse_type(column.type)
        except ConfigurationError as error:
            yield Finding(f"{path}.type", f"{name}: {error.problem}", error.remedy)
        if column.renamed_from is None:
            continue
        if column.renamed_from.casefold() == name.casefold():
            yield Finding(f"{path}.renamed_from", f"{name} was always called so", "leave renamed_from out")
        if before.setdefault(column.renamed_from.casefold(), number) != number:
            yield Finding(f"{path}.renamed_from", f"two columns were called {column.renamed_from}")


def column_name_problem(name: str) -> str | None:
    """Why no column can be called so; None if one can."""
    shown = repr(name[:40])
    if not name or name != name.strip():
        return f"a column's name is empty, or has spaces around it: {shown}"
    if not name.isprintable() or set(name) & set(".`\\"):
        return f"a column's name has a dot, a backtick, a backslash or something invisible in it: {shown}"
    return f"a column's name is longer than {LONGEST_NAME} characters: {shown}" if len(name) > LONGEST_NAME else None


def key_findings(keys: Sequence[str], columns: Sequence[Column]) -> Iterator[Finding]:
    """What is wrong with the names of a key's columns."""
    yield from named(keys, [each.name for each in columns], "keys", "column")


def named(names: Sequence[str], valid: Iterable[str], path: str, what: str) -> Iterator[Finding]:
    """Names that are not there, or stand twice."""
    known = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in known:
            yield Finding(f"{path}.{number}", f"there is no {what} {name}", nearest(name, known.values()))
        if name.casefold() in (each.casefold() for each in names[:number]):
            yield Finding(f"{path}.{number}", f"{name} stands twice")


def partition_findings(partitioning: Sequence[str], columns: Sequence[Column]) -> Iterator[Finding]:
    """What is wrong with partition transforms."""
    seen = set[str]()
    for number, text in enumerate(partitioning):
        path = f"partitioning.{number}"
        try:
            found = partition(text, columns)
        except ConfigurationError as error:
            yield Finding(path, error.problem, error.remedy)
            continue
        if found.casefold() in seen:
            yield Finding(path, f"{found} stands twice")
        seen.add(found.casefold())


def partition(text: str, columns: Sequence[Column]) -> str:
    """The one way to write a partition transform: ``region``, ``days(at)``, ``bucket(16, id)``, ``truncate(4, id)``.

    :raises ConfigurationError: it is none, its column is not there, or is of a type that it does not take
    """
    name, argument, size = _split(text)
    column = next((each for each in columns if each.name.casefold() == argument.casefold()), None)
    if column is None:
        raise ConfigurationError(
            "partitioning", f"{text!r}: there is no column {argument}", nearest(argument, (c.name for c in columns))
        )
    try:
        kind = parse_type(column.type)
    except ConfigurationError:
        return text
    word = "decimal" if isinstance(kind, Decimal) else str(kind)
    if word not in _TAKES[name]:
        raise ConfigurationError("partitioning", f"{text!r}: {column.name} is {kind}", "another column or transform")
    if not name:
        return quoted(column.name)
    return f"{name}({size}, {quoted(column.name)})" if size else f"{name}({quoted(column.name)})"


def _split(text: str) -> tuple[str, str, int]:
    """Transform, column, size; Spark has the size first, Iceberg last."""
    found = _TRANSFORM.fullmatch(text)
    if found is None:
        return "", _bare(text), 0
    name, first, second = found.groups()
    name = _TIMES.get(name.lower(), name.lower())
    sized = name in _SIZED
    if name not in _TAKES or sized != (second is not None):
        raise ConfigurationError(
            "partitioning", f"{text!r} is no transform", "a column, years, months, days, hours, bucket or truncate"
        )
    if not sized:
        return name, _bare(first), 0
    size, column = (first, second) if first.isascii() and first.isdigit() else (second, first)
    if not (size.isascii() and size.isdigit() and 0 < int(size[:10]) < 2**31):
        raise ConfigurationError("partitioning", f"{text!r} has no size", f"e.g. {name}(16, {_bare(column)})")
    return name, _bare(column), int(size)


def _bare(name: str) -> str:
    name = name.strip()
    return name[1:-1].replace("``", "`") if len(name) > 2 and name[0] == name[-1] == "`" else name


def canonical_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns with their types in canonical text; unreadable types stay as they are."""
    return tuple(_canonical(each) for each in columns)


def _canonical(column: Column) -> Column:
    try:
        kind = canonical_type(column.type)
    except ConfigurationError:
        return column
    return column if kind == column.type else replace(column, type=kind)


def canonical_partitioning(partitioning: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """The transforms as :func:`partition` writes them; unreadable ones stay as they are."""
    found = []
    for text in partitioning:
        try:
            found.append(partition(text, columns))
        except ConfigurationError:
            found.append(text)
    return tuple(found)
