"""Fingerprints of an object: four canonical texts with their hashes, by which a change shows what it asks for.

* ``contract``: number, name and type of the columns. Another contract asks for a migration of the stored rows.
* ``constraints``: required columns, keys, partitioning, format. They change metadata, or need a checked rewrite.
* ``logic``: the query; the definition of a source or a sink.
* ``meta``: comments, owner, properties and promises. Applied in place, never by a rebuild.

Texts are compared, not hashes, so that a difference can be shown. Where something is declared, in which order keys are
written and whether a default is written out makes no difference.

Columns, keys and partitioning are validated and brought to their canonical form here, too.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column, Was, nearest
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER, canonical_sql, check_expression
from airflow_provider_rfr.exceptions import ConfigurationError, Problem, QueryError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.lake.types import parse_transform, parse_type, quoted

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.state import RecordedObject

_FORMAT = "format-version"
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


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A canonical text and its hash.

    :ivar digest: prefix of the component, a colon, 64 hex digits
    """

    text: str
    digest: str

    @classmethod
    def of(cls, prefix: str, text: str) -> Fingerprint:
        """The fingerprint of a text; ``prefix`` names the component and the version of its text's format."""
        digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(text, f"{prefix}:{digits}")


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The four fingerprints of one object."""

    contract: Fingerprint
    constraints: Fingerprint
    logic: Fingerprint
    meta: Fingerprint


def fingerprints(obj: BuiltinObject, spec: CatalogSpec) -> Fingerprints:
    """The fingerprints of a declared object; types are canonical texts."""
    return Fingerprints(
        contract_of(obj.columns),
        Fingerprint.of("k1", "\n".join(_constraints(obj))),
        Fingerprint.of("l1", _logic(obj, spec)),
        Fingerprint.of("m1", "\n".join(_meta(obj))),
    )


def contract_of(columns: Sequence[Column]) -> Fingerprint:
    """The contract of the columns; empty for a view that declares none."""
    lines = (
        f"{number} {quoted(each.name.casefold())} {parse_type(each.type).folded()}"
        for number, each in enumerate(columns, 1)
    )
    return Fingerprint.of("c1", "\n".join(lines))


def same_logic(obj: BuiltinObject, recorded: RecordedObject) -> bool:
    """Whether an object's query is the recorded one.

    A text of another canonicalizer is not comparable: the recorded query is then made canonical again.
    """
    if obj.query is None or recorded.raw_sql is None or obj.query == recorded.raw_sql:
        return obj.query == recorded.raw_sql
    if recorded.canonicalizer == CANONICALIZER:
        return canonical_sql(obj.query) == recorded.fingerprints.logic.text
    return canonical_sql(obj.query) == canonical_sql(recorded.raw_sql)


def definition_of(source: Mapping[str, Any]) -> str:
    """The text of a source's ``logic``: its definition without secrets."""
    return _json(_masked(source))


def _constraints(obj: BuiltinObject) -> Iterator[str]:
    required = sorted(quoted(each.name.casefold()) for each in obj.columns if each.required)
    if required:
        yield f"required: {', '.join(required)}"
    if obj.keys:
        yield f"key: {', '.join(quoted(name.casefold()) for name in obj.keys)}"
    if obj.partitioning:
        yield f"partitioning: {', '.join(each.casefold() for each in obj.partitioning)}"
    if _FORMAT in obj.properties:
        yield f"{_FORMAT}: {_json(obj.properties[_FORMAT])}"


def _logic(obj: BuiltinObject, spec: CatalogSpec) -> str:
    if obj.query is not None:
        return canonical_sql(obj.query)
    if obj.source is not None:
        return definition_of(obj.source)
    if obj.sink is None:
        return ""
    # The id of the source, which survives a rename; the name, if no object has it. Objects are sorted by key, unless
    # the spec was made by hand.
    key = obj.sink.source.casefold()
    at = bisect_left(spec.objects, key, key=lambda each: each.key)
    near = spec.objects[at : at + 1]
    found = near[0] if near and near[0].key == key else next((o for o in spec.objects if o.key == key), None)
    return _json(
        {
            "source": str(found.id) if found is not None else key,
            "to": obj.sink.to,
            "settings": _masked(obj.sink.settings),
            "columns": [name.casefold() for name in obj.sink.columns],
            "follow_schema": obj.sink.follow_schema,
        }
    )


def _meta(obj: BuiltinObject) -> Iterator[str]:
    yield f"keep: {_json(obj.keep)}"
    for name in ("comment", "owner"):
        if getattr(obj, name) is not None:
            yield f"{name}: {_json(getattr(obj, name))}"
    if obj.exportable:
        yield "exportable: true"
    if obj.sink is not None:
        yield f"on_replace: {obj.sink.on_replace}"
    comments = ((each.name.casefold(), each.comment) for each in obj.columns if each.comment)
    for name, comment in sorted(comments):
        yield f"column {_json(name)}: {_json(comment)}"
    for name, value in sorted(obj.properties.items()):
        if name != _FORMAT:
            yield f"property {_json(name)}: {_json(value)}"


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
