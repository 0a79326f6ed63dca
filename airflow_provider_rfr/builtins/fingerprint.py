"""What an object is, in four texts with a hash each, so that a change tells by itself what it asks for.

* ``contract``: number, name and type of the columns, and nothing else. Another one, and the storage is migrated.
* ``constraints``: required columns, keys, partitioning, format. Metadata of the storage, at most a checked rewrite.
* ``logic``: the query; the definition of a source or a sink.
* ``meta``: comments, owner, properties and promises. Applied in place, never a rebuild.

Texts are compared, not hashes: a text shows what differs. Where a thing is written, in which order its keys stand,
and what is the default, makes no difference.

Columns, keys and partitioning of a declaration: what is wrong with them, and the one way to write them.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column, SinkSpec, nearest, quoted
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER, canonical_sql
from airflow_provider_rfr.builtins.types import Decimal, canonical_type, folded_type, parse_type
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import is_secret

_SHOWN_DIGITS = 12
_FORMAT = "format-version"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A canonical text and its hash.

    :ivar digest: prefix of the component, a colon, 64 hex digits
    """

    text: str
    digest: str

    @classmethod
    def of(cls, prefix: str, text: str) -> Fingerprint:
        """The fingerprint of a text; ``prefix`` names the component and the format of its text."""
        digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(text, f"{prefix}:{digits}")

    @property
    def short(self) -> str:
        """The hash as people read and write it."""
        prefix, _, digits = self.digest.partition(":")
        return f"{prefix}:{digits[:_SHOWN_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The four of one object."""

    contract: Fingerprint
    constraints: Fingerprint
    logic: Fingerprint
    meta: Fingerprint


class _HasLogic(Protocol):
    """A recorded object, as far as its query goes."""

    @property
    def canonicalizer(self) -> str: ...

    @property
    def raw_sql(self) -> str | None: ...

    @property
    def fingerprints(self) -> Fingerprints: ...


def fingerprints(obj: BuiltinObject, spec: CatalogSpec) -> Fingerprints:
    """The fingerprints of a declared object; types are canonical texts.

    :param spec: where a sink's source is found
    """
    return Fingerprints(
        contract_of(obj.columns),
        Fingerprint.of("k1", "\n".join(_constraints(obj))),
        Fingerprint.of("l1", _logic(obj, spec)),
        Fingerprint.of("m1", "\n".join(_meta(obj))),
    )


def contract_of(columns: Sequence[Column]) -> Fingerprint:
    """The contract alone; of a view that names no columns it is empty."""
    lines = (
        f"{number} {quoted(each.name.casefold())} {folded_type(each.type)}" for number, each in enumerate(columns, 1)
    )
    return Fingerprint.of("c1", "\n".join(lines))


def same_logic(obj: BuiltinObject, recorded: _HasLogic) -> bool:
    """Whether an object's query is the recorded one, whoever wrote the recorded canonical text.

    What another canonicalizer wrote is never compared: the author's recorded text is made canonical anew.
    """
    if obj.query is None or recorded.raw_sql is None:
        return obj.query is recorded.raw_sql
    if obj.query == recorded.raw_sql:
        return True
    if recorded.canonicalizer == CANONICALIZER:
        return canonical_sql(obj.query) == recorded.fingerprints.logic.text
    return canonical_sql(obj.query) == canonical_sql(recorded.raw_sql)


def changed(before: Fingerprints, after: Fingerprints) -> tuple[str, ...]:
    """Names of the components whose texts differ."""
    names = ("contract", "constraints", "logic", "meta")
    return tuple(name for name in names if getattr(before, name).text != getattr(after, name).text)


def definition_of(source: Mapping[str, Any]) -> str:
    """The text of a source's ``logic``: what is read, without what may be a secret."""
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
    return "" if obj.sink is None else _json(_sink_logic(obj.sink, spec))


def _sink_logic(sink: SinkSpec, spec: CatalogSpec) -> dict[str, Any]:
    return {
        "source": _identity(sink.source, spec),
        "to": sink.to,
        "settings": _masked(sink.settings),
        "columns": [name.casefold() for name in sink.columns],
        "follow_schema": sink.follow_schema,
    }


def _identity(name: str, spec: CatalogSpec) -> str:
    """The id of the object of this name, which outlives a rename; the name, if it is none of ours."""
    key = name.casefold()
    at = bisect_left(spec.objects, key, key=lambda each: each.key)
    near = spec.objects[at : at + 1]
    found = near[0] if near and near[0].key == key else next((o for o in spec.objects if o.key == key), None)
    return str(found.id) if found is not None else key


def _meta(obj: BuiltinObject) -> Iterator[str]:
    for name in ("stability", "contents"):
        yield f"{name}: {getattr(obj, name).value}"
    for name in ("protect", "comment", "owner"):
        if getattr(obj, name) is not None:
            yield f"{name}: {_json(getattr(obj, name))}"
    if obj.exportable:
        yield "exportable: true"
    if obj.sink is not None:
        yield f"on_replace: {obj.sink.on_replace}"
    yield from _lines("column", ((each.name.casefold(), each.comment) for each in obj.columns if each.comment))
    yield from _lines("property", ((name, value) for name, value in obj.properties.items() if name != _FORMAT))


def _lines(what: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{what} {_json(name)}: {_json(value)}" for name, value in sorted(pairs))


def _masked(value: Any, name: str = "") -> Any:
    """The value without what may be a secret: texts are stored, and a new password is no other definition."""
    if isinstance(value, Mapping):
        return {str(key): _masked(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(each, name) for each in value]
    return "***" if isinstance(value, str) and is_secret(name) and "{{" not in value else value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


_LONGEST_NAME = 255
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
        if problem := _column_name_problem(name):
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


def _column_name_problem(name: str) -> str | None:
    """Why no column can be called so; None if one can."""
    shown = repr(name[:40])
    if not name or name != name.strip():
        return f"a column's name is empty, or has spaces around it: {shown}"
    if not name.isprintable() or set(name) & set(".`\\"):
        return f"a column's name has a dot, a backtick, a backslash or something invisible in it: {shown}"
    return f"a column's name is longer than {_LONGEST_NAME} characters: {shown}" if len(name) > _LONGEST_NAME else None


def key_findings(keys: Sequence[str], columns: Sequence[Column]) -> Iterator[Finding]:
    """What is wrong with the names of a key's columns."""
    yield from named(keys, [each.name for each in columns], "keys", "column")


def named(names: Sequence[str], valid: Iterable[str], path: str, what: str) -> Iterator[Finding]:
    """Unknown or duplicate names."""
    known = {name.casefold(): name for name in valid}
    for number, name in enumerate(names):
        if name.casefold() not in known:
            yield Finding(f"{path}.{number}", f"there is no {what} {name}", nearest(name, known.values()))
        if name.casefold() in (each.casefold() for each in names[:number]):
            yield Finding(f"{path}.{number}", f"{name} is listed twice")


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
            yield Finding(path, f"{found} is listed twice")
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
            "partitioning", f"{text!r} is not a transform", "a column, years, months, days, hours, bucket or truncate"
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
