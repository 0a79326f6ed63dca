"""What is compared of a declaration besides its fields: its columns' contract, its query, and its definition.

The contract is number, name and type of the columns: its digest is written into a table in the same commit as they are.
Where something is declared, how names and queries are laid out, and in which order keys are written, makes no
difference.

Columns, keys and partitioning are validated and brought to their canonical form here, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_rfr.builtins.spec import BuiltinObject, Column, Was, nearest
from airflow_provider_rfr.builtins.sql.parse import canonical_sql, check_expression
from airflow_provider_rfr.exceptions import ConfigurationError, Problem, QueryError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.lake.types import parse_transform, parse_type, quoted

_LONGEST_NAME = 255
_INSTANTS = {"timestamp", "timestamp_ntz"}
_TRANSFORMABLE = {
    "years": {"date", *_INSTANTS},
    "months": {"date", *_INSTANTS},
    "days": {"date", *_INSTANTS},
    "hours": _INSTANTS,
    "bucket": {"int", "bigint", "decimal", "date", *_INSTANTS, "string", "binary"},
    "truncate": {"int", "bigint", "decimal", "string", "binary"},
    "": {"boolean", "int", "bigint", "float", "double", "decimal", "date", *_INSTANTS, "string", "binary"},
}
"""Types of columns that each transform takes; the empty name is partitioning by the column itself."""


def contract_text(columns: Sequence[Column]) -> str:
    """Number, name and type of the columns; empty for a view that declares none."""
    return "\n".join(
        f"{number} {quoted(each.name.casefold())} {parse_type(each.type).folded()}"
        for number, each in enumerate(columns, 1)
    )


def contract_of(columns: Sequence[Column]) -> str:
    """The digest of the columns' contract; its prefix names the format of the text."""
    return f"c1:{hashlib.sha256(contract_text(columns).encode('utf-8', 'surrogatepass')).hexdigest()}"


def same_query(one: str | None, other: str | None) -> bool:
    """Whether two queries differ in white space, comments and case at most."""
    if one is None or other is None or one == other:
        return one == other
    return canonical_sql(one) == canonical_sql(other)


def definition_of(obj: BuiltinObject) -> str | None:
    """What a source reads or a sink sends, without secrets; None for another kind. A sink's source is not part of it:
    what it reads holds the id, which survives a rename."""
    if obj.source is not None:
        return _json(_masked(obj.source))
    if obj.sink is None:
        return None
    sink = obj.sink
    columns = [name.casefold() for name in sink.columns]
    rest = {"columns": columns, "follow_schema": sink.follow_schema, "on_replace": sink.on_replace}
    return _json({"to": sink.to, "settings": _masked(sink.settings), **rest})


def _masked(value: Any, name: str = "") -> Any:
    """The value without secrets: texts are stored, and a new password is not another definition."""
    if isinstance(value, Mapping):
        return {str(key): _masked(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, name) for each in value]
    return "***" if isinstance(value, str) and is_secret(name) and "{{" not in value else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def column_findings(columns: Sequence[Column]) -> Iterator[Problem]:
    """Problems of columns: names, types, duplicates."""
    names, before = dict[str, int](), dict[str, int]()
    for number, column in enumerate(columns):
        path, name = f"columns.{number}", column.name
        shown = repr(name[:40])
        if not name or name != name.strip():
            yield Problem(f"{path}.name", f"a column's name is empty, or has spaces around it: {shown}")
        elif not name.isprintable() or set(name) & set(".`\\"):
            problem = "a column's name has a dot, a backtick, a backslash or something invisible in it"
            yield Problem(f"{path}.name", f"{problem}: {shown}")
        elif len(name) > _LONGEST_NAME:
            yield Problem(f"{path}.name", f"a column's name is longer than {_LONGEST_NAME} characters: {shown}")
        if names.setdefault(name.casefold(), number) != number:
            yield Problem(f"{path}.name", f"two columns are called {name}", "names are compared without case")
        try:
            parse_type(column.type)
        except ConfigurationError as error:
            yield Problem(f"{path}.type", f"{name}: {error.problem}", error.remedy)
        yield from _was_findings(path, column, before)


def _was_findings(path: str, column: Column, before: dict[str, int]) -> Iterator[Problem]:
    """Problems of what a column was.

    :param before: old names that were given to columns so far, with the columns' numbers
    """
    number = int(path.rpartition(".")[2])
    for at, was in enumerate(column.was):
        here = f"{path}.was.{at}"
        if was == Was():
            yield Problem(here, f"{column.name}: was says nothing", "give name, type or using")
        if was.name is not None and was.name.casefold() == column.name.casefold() and not (was.type or was.using):
            yield Problem(here, f"{column.name} was always called so", "leave was out")
        if was.name is not None and before.setdefault(was.name.casefold(), number) != number:
            yield Problem(here, f"two columns were called {was.name}")
        try:
            if was.type is not None:
                parse_type(was.type)
            if was.using is not None:
                check_expression(was.using)
        except QueryError as error:
            yield Problem(here, f"{column.name}: using: {error.problem}", error.remedy)
        except ConfigurationError as error:
            yield Problem(here, f"{column.name}: {error.problem}", error.remedy)


def name_findings(names: Sequence[str], valid: Iterable[str], path: str) -> Iterator[Problem]:
    """Unknown or duplicate names of columns."""
    known = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in known:
            yield Problem(f"{path}.{number}", f"there is no column {name}", nearest(name, known.values()))
        if name.casefold() in (each.casefold() for each in names[:number]):
            yield Problem(f"{path}.{number}", f"{name} is listed twice")


def partition_findings(partitioning: Sequence[str], columns: Sequence[Column]) -> Iterator[Problem]:
    """Problems of partition transforms."""
    seen = set[str]()
    for number, text in enumerate(partitioning):
        path = f"partitioning.{number}"
        try:
            found = canonical_transform(text, columns)
        except ConfigurationError as error:
            yield Problem(path, error.problem, error.remedy)
            continue
        if found.casefold() in seen:
            yield Problem(path, f"{found} is listed twice")
        seen.add(found.casefold())


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
