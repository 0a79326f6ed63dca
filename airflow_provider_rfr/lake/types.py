"""Texts that users write: types of columns, transforms of a partitioning, names of tables.

Column types are those that Iceberg stores and Spark SQL names. Each has one canonical text, also where Spark has
several names and Iceberg one type: ``smallint`` is ``int``, ``varchar(20)`` is ``string``. DAG files are parsed with
this module, so it imports neither PyArrow nor PyIceberg; :mod:`.schemas` translates to their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Final

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.text import cut

_MAX_DEPTH: Final = 32
"""Types nested deeper are refused: a mistake, or an attempt to exhaust the parser."""

_ALIASES: Final = {
    **dict.fromkeys(("int", "integer", "tinyint", "byte", "smallint", "short"), "int"),
    **dict.fromkeys(("bigint", "long"), "bigint"),
    **dict.fromkeys(("float", "real"), "float"),
    **dict.fromkeys(("string", "varchar", "char", "character"), "string"),
    **dict.fromkeys(("timestamp", "timestamp_ltz", "timestamptz"), "timestamp"),
    **dict.fromkeys(("decimal", "dec", "numeric"), "decimal"),
    **{name: name for name in ("boolean", "double", "date", "timestamp_ntz", "binary", "array", "map", "struct")},
}
_UNSUPPORTED: Final = {
    "text": "write string",
    "bool": "write boolean",
    "datetime": "write timestamp",
    "json": "write string",
    "list": "write array<...>",
    "variant": "not every engine that reads these tables knows it",
    "interval": "Iceberg can't store it",
    "time": "Spark SQL has no name for it that Iceberg stores; write string or bigint",
    "uuid": "Spark SQL has no name for it; write string",
    "fixed": "Spark SQL has no name for it; write binary",
    "void": "a column needs a type",
    "null": "a column needs a type",
}
_TOKEN: Final = re.compile(r"\s*(?P<token>`(?P<quoted>(?:[^`]|``)+)`|\w+|[<>(),:]|(?P<other>\S)|\Z)")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PROMOTIONS: Final = {("int", "bigint"), ("float", "double")}


def is_plain(name: str) -> bool:
    """Tell whether the name needs no quotes in any engine, apart from reserved words."""
    return _PLAIN_NAME.fullmatch(name) is not None


def quoted(name: str) -> str:
    """Put the name in backticks, if it needs them."""
    return name if is_plain(name) else "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type; its text is the canonical one.

    :ivar name: such as ``bigint``, ``decimal``, ``array``, ``map`` or ``struct``
    :ivar numbers: precision and scale of a decimal
    :ivar inner: the element of an array, key and value of a map, or the types of a struct's fields
    :ivar fields: names of a struct's fields, which are all optional
    """

    name: str
    numbers: tuple[int, ...] = ()
    inner: tuple[ColumnType, ...] = ()
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name == "struct":
            pairs = zip(self.fields, self.inner, strict=True)
            return f"struct<{','.join(f'{quoted(name)}:{kind}' for name, kind in pairs)}>"
        if self.inner:
            return f"{self.name}<{','.join(map(str, self.inner))}>"
        return f"{self.name}({','.join(map(str, self.numbers))})" if self.numbers else self.name

    def folded(self) -> ColumnType:
        """Return the type with the case of its fields' names folded for comparison."""
        inner = tuple(inner.folded() for inner in self.inner)
        return ColumnType(self.name, self.numbers, inner, tuple(name.casefold() for name in self.fields))

    def has_twins(self) -> bool:
        """Tell whether a struct inside this type has two fields of the same name."""
        names = self.folded().fields
        return len(set(names)) < len(names) or any(inner.has_twins() for inner in self.inner)

    def contains(self, name: str) -> bool:
        """Tell whether this type, or one inside it, has that name."""
        return self.name == name or any(inner.contains(name) for inner in self.inner)


class TypeChange(str, Enum):
    """The kind of change that a column of one type needs to become one of another."""

    SAME = "same"
    WIDEN = "widen"
    """Iceberg changes the type in place, and no value is lost or changed."""
    NARROW = "narrow"
    """Iceberg changes the type in place, and fields of structs are lost."""
    INCOMPATIBLE = "incompatible"


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ColumnType:
    """Parse the type that a text names.

    :raises ConfigurationError: the text is not a type; the error names the character at which it goes wrong
    """
    return _TypeParser(text).parse()


def classify(old: str, new: str) -> TypeChange:
    """Classify the change that a column of type ``old`` needs to become ``new``.

    The rules are those of Iceberg's format 2, stricter than PyIceberg's: the scale of a decimal never changes. A
    struct's fields may be added, moved and dropped, as long as one of them stays.

    :raises ConfigurationError: a text names no type
    """
    return _classify(parse_type(old).folded(), parse_type(new).folded())


def _classify(old: ColumnType, new: ColumnType) -> TypeChange:
    if old == new:
        return TypeChange.SAME
    if old.name != new.name:
        return TypeChange.WIDEN if (old.name, new.name) in _PROMOTIONS else TypeChange.INCOMPATIBLE
    if old.name == "struct":
        if not (kept := _common_fields(old, new)):
            return TypeChange.INCOMPATIBLE
        changes = [_classify(*pair) for pair in kept.values()]
        if old.fields != new.fields:
            changes.append(TypeChange.WIDEN if len(kept) == len(old.fields) else TypeChange.NARROW)
        return max(changes, key=list(TypeChange).index)
    if old.name == "decimal":
        wider = old.numbers[1] == new.numbers[1] and old.numbers[0] < new.numbers[0]
        return TypeChange.WIDEN if wider else TypeChange.INCOMPATIBLE
    # An array or a map: the key of a map never changes.
    return _classify(old.inner[-1], new.inner[-1]) if old.inner[:-1] == new.inner[:-1] else TypeChange.INCOMPATIBLE


def _common_fields(old: ColumnType, new: ColumnType) -> dict[str, tuple[ColumnType, ColumnType]]:
    """Return the old and the new type of each field that two structs have in common, by its case-folded name."""
    before, after = (dict(zip(kind.folded().fields, kind.inner, strict=True)) for kind in (old, new))
    return {name: (kind, after[name]) for name, kind in before.items() if name in after}


def has_same_fields(old: ColumnType, new: ColumnType) -> bool:
    """Tell whether all structs inside two types have the same fields in the same order.

    Spark casts structs by position, so only then does it cast each field to itself.
    """
    if old.name != new.name or not old.inner:
        return not (old.inner or new.inner)
    same = old.folded().fields == new.folded().fields
    return same and all(has_same_fields(*pair) for pair in zip(old.inner, new.inner, strict=True))


def lost_fields(old: ColumnType, new: ColumnType) -> list[str]:
    """Return the paths of the fields that ``old`` has and ``new`` has not, e.g. ``a.b``.

    A path leaves out the elements of arrays and maps, as Spark's paths to the fields of an array do.
    """
    if old.name != new.name:
        return []
    if old.name != "struct":
        return [path for pair in zip(old.inner, new.inner, strict=True) for path in lost_fields(*pair)]
    common, paths = _common_fields(old, new), list[str]()
    for name in old.fields:
        pair = common.get(name.casefold())
        paths += [name] if pair is None else [f"{name}.{path}" for path in lost_fields(*pair)]
    return paths


def field_types(kind: ColumnType) -> dict[str, ColumnType]:
    """Return the types of all fields of the structs in a type, by their paths as :func:`lost_fields` writes them."""
    if kind.name != "struct":
        return {path: inner for inner_type in kind.inner for path, inner in field_types(inner_type).items()}
    types = dict[str, ColumnType]()
    for name, inner in zip(kind.fields, kind.inner, strict=True):
        types |= {name: inner, **{f"{name}.{path}": below for path, below in field_types(inner).items()}}
    return types


def rename_fields(
    old: ColumnType, new: ColumnType, former: Mapping[str, Sequence[str]], *, only_missing: bool, parent: str = ""
) -> ColumnType:
    """Return ``old`` with the fields of structs under the names that they have in ``new``.

    If two fields of a struct in the result have the same name, that name is still taken.

    :param former: names that a field had before, by its path in ``new``; names and paths are case-folded
    :param only_missing: do not give a field a name that another field of ``old`` has
    """
    if old.name != new.name or not old.inner:
        return old
    if old.name != "struct":
        # The key of a map never changes.
        inner = rename_fields(old.inner[-1], new.inner[-1], former, only_missing=only_missing, parent=parent)
        return replace(old, inner=(*old.inner[:-1], inner))
    present, renamed = old.folded().fields, dict[str, str]()
    for name in new.fields:
        options = [] if only_missing and name.casefold() in present else former.get(f"{parent}{name}".casefold(), ())
        before = next(
            (option for option in options if option in present and option not in (*renamed, name.casefold())), None
        )
        if before is not None:
            renamed[before] = name
    names = tuple(renamed.get(name.casefold(), name) for name in old.fields)
    wanted, kinds = dict(zip(new.folded().fields, new.inner, strict=True)), list[ColumnType]()
    for name, kind in zip(names, old.inner, strict=True):
        after = wanted.get(name.casefold(), kind)
        kinds.append(rename_fields(kind, after, former, only_missing=only_missing, parent=f"{parent}{name}."))
    return replace(old, fields=names, inner=tuple(kinds))


def renamed_fields(old: ColumnType, new: ColumnType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the fields that have another name after :func:`rename_fields`.

    Each is a tuple: the path as Iceberg writes it, with ``element`` and ``value``, and then the new name.
    """
    names = old.fields or {"array": ("element",), "map": ("key", "value")}.get(old.name, ())
    after = new.fields or names
    for name, new_name, before, now in zip(names, after, old.inner, new.inner, strict=True):
        if new_name != name:
            yield (*path, name, new_name)
        yield from renamed_fields(before, now, (*path, name))


def may_overflow(old: ColumnType, new: ColumnType) -> bool:
    """Tell whether a value inside ``old`` may be too large, or too precise, for its place in ``new``."""
    if old.name == new.name == "struct":
        return any(may_overflow(*pair) for pair in _common_fields(old, new).values())
    if old.inner and old.name == new.name:
        return any(may_overflow(*pair) for pair in zip(old.inner, new.inner, strict=True))
    return _classify(new, old) is TypeChange.WIDEN


class _TypeParser:
    """A recursive-descent parser of the tokens of a text.

    ``_token`` is the next token, empty at the end; ``_quoted`` says whether it was a name in backticks, ``_position``
    where it starts. Tokens are read as needed: the first error is the one furthest to the left.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._end = 0
        self._advance()

    def parse(self) -> ColumnType:
        kind = self._type()
        if self._token:
            raise self._error(f"unexpected {self._token!r}")
        return kind

    def _type(self) -> ColumnType:
        if self._depth == _MAX_DEPTH:
            raise self._error(f"types are nested more than {_MAX_DEPTH} deep")
        self._depth += 1
        name = self._type_name()
        if name == "decimal":
            precision, scale = 10, 0
            if self._at("("):
                precision, *rest = self._numbers(2)
                scale = rest[0] if rest else 0
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                remedy = "precision from 1 to 38, scale from 0 to the precision"
                raise self._error(f"decimal({precision},{scale}) is out of range", remedy)
            kind = ColumnType(name, (precision, scale))
        elif name == "struct":
            kind = self._struct()
        elif name == "array":
            kind = ColumnType(name, inner=self._inner(1))
        elif name == "map":
            kind = ColumnType(name, inner=self._inner(2))
            if kind.inner[0].contains("map"):
                raise self._error("the key of a map must not contain a map")
        else:
            kind = ColumnType(name)
            if name == "string" and self._at("("):
                self._numbers(1)  # the length of a varchar, which Iceberg does not keep
        self._depth -= 1
        return kind

    def _type_name(self) -> str:
        word = self._token.lower()
        if self._quoted or word not in _ALIASES:
            if word in _UNSUPPORTED:
                raise self._error(f"the type {word} is not supported", _UNSUPPORTED[word])
            # Imported here: reading DAGs needs this module, and no YAML.
            from airflow_provider_rfr.documents import nearest

            near = nearest(word, sorted(_ALIASES))
            remedy = f"did you mean {near}?" if near else f"write one of {', '.join(sorted(set(_ALIASES.values())))}"
            raise self._error(f"{self._token!r} is not a type" if word else "a type is missing", remedy)
        self._advance()
        return _ALIASES[word]

    def _inner(self, number: int) -> tuple[ColumnType, ...]:
        self._expect("<")
        kinds = [self._type()]
        while len(kinds) < number:
            self._expect(",")
            kinds.append(self._type())
        self._expect(">")
        return tuple(kinds)

    def _struct(self) -> ColumnType:
        fields: dict[str, tuple[str, ColumnType]] = {}
        separator = "<"
        while separator != ">":
            self._expect(separator)
            name = self._token
            if not self._quoted and not re.fullmatch(r"\w+", name):
                raise self._expected("the name of a field")
            if name.casefold() in fields:
                raise self._error(f"duplicate field {name!r}", "names are compared without case")
            self._advance()
            if self._at(":"):
                self._advance()
            fields[name.casefold()] = name, self._type()
            if not self._quoted and self._token.lower() in ("not", "comment", "default"):
                raise self._error(f"the field {name!r} must be a name and a type only")
            separator = "," if self._at(",") else ">"
        self._expect(">")
        names, kinds = zip(*fields.values(), strict=True)
        return ColumnType("struct", inner=kinds, fields=names)

    def _numbers(self, most: int) -> tuple[int, ...]:
        numbers: list[int] = []
        separator = "("
        while separator != ")":
            self._expect(separator)
            if not re.fullmatch(r"[0-9]{1,5}", self._token):
                raise self._expected("a number")
            numbers.append(int(self._token))
            self._advance()
            separator = "," if self._at(",") and len(numbers) < most else ")"
        self._expect(")")
        return tuple(numbers)

    def _at(self, sign: str) -> bool:
        return self._token == sign and not self._quoted

    def _expect(self, sign: str) -> None:
        if not self._at(sign):
            raise self._expected(repr(sign))
        self._advance()

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._end)
        assert match is not None  # the pattern also matches the end and any other character
        self._position, self._end = match.span("token")
        self._quoted = match["quoted"] is not None
        self._token = match["quoted"].replace("``", "`") if self._quoted else match["token"]
        if match["other"]:
            raise self._error(f"unexpected {self._token!r}")

    def _expected(self, what: str) -> ConfigurationError:
        return self._error(f"expected {what}, found {repr(self._token) if self._token else 'the end'}")

    def _error(self, problem: str, remedy: str = "") -> ConfigurationError:
        return ConfigurationError(
            "type", f"{cut(self._text, 80)!r}: {problem} (character {self._position + 1})", remedy
        )


_ARGUMENT: Final = r"(`(?:[^`]|``)+`|[^,()]+?)"
_TRANSFORM: Final = re.compile(rf"\s*(\w+)\s*\(\s*{_ARGUMENT}\s*(?:,\s*{_ARGUMENT}\s*)?\)\s*")
_TIME_TRANSFORMS: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours", "date": "days"}
_INSTANTS: Final = {"timestamp", "timestamp_ntz"}
_TRANSFORMABLE: Final = {
    **{name: {"date", *_INSTANTS} for name in ("years", "months", "days")},
    "hours": _INSTANTS,
    "bucket": {"int", "bigint", "decimal", "date", *_INSTANTS, "string", "binary"},
    "truncate": {"int", "bigint", "decimal", "string", "binary"},
    "": {"boolean", "int", "bigint", "float", "double", "decimal", "date", *_INSTANTS, "string", "binary"},
}
"""Types of columns that each transform takes."""


@dataclass(frozen=True, slots=True)
class PartitionTransform:
    """One field of a table's partitioning; its text is the canonical one.

    :ivar name: ``years``, ``months``, ``days``, ``hours``, ``bucket`` or ``truncate``; empty for the column itself
    :ivar size: of ``bucket`` and ``truncate``
    """

    column: str
    name: str = ""
    size: int = 0

    def __str__(self) -> str:
        column = quoted(self.column)
        if not self.name:
            return column
        return f"{self.name}({self.size}, {column})" if self.size else f"{self.name}({column})"

    def takes(self, kind: ColumnType) -> bool:
        """Tell whether the transform accepts a column of that type."""
        return kind.name in _TRANSFORMABLE[self.name]


def parse_transform(text: str) -> PartitionTransform:
    """Parse the transform that a text names: ``region``, ``days(at)``, ``bucket(16, id)``, ``truncate(4, id)``.

    Spark writes the size first, Iceberg last; both are read.

    :raises ConfigurationError: it is not a transform, or its size is not a number
    """
    match = _TRANSFORM.fullmatch(text)
    if match is None:
        return PartitionTransform(_unquoted(text.strip()))
    name, first, second = match.groups()
    name = _TIME_TRANSFORMS.get(name.lower(), name.lower())
    has_size = name in ("bucket", "truncate")
    if has_size != (second is not None) or not (has_size or name in _TIME_TRANSFORMS.values()):
        raise ConfigurationError(
            "partitioning", f"{text!r} is not a transform", "a column, years, months, days, hours, bucket or truncate"
        )
    if second is None:
        return PartitionTransform(_unquoted(first), name)
    size, column = (first, second) if first.isascii() and first.isdigit() else (second, first)
    if not (size.isascii() and size.isdigit() and 0 < int(size[:10]) < 2**31):
        raise ConfigurationError("partitioning", f"{text!r} has no valid size", f"e.g. {name}(16, {column})")
    return PartitionTransform(_unquoted(column), name, int(size))


def _unquoted(name: str) -> str:
    in_quotes = len(name) > 2 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if in_quotes else name


STREAM_PLACE: Final = "{stream}"
"""The placeholder for a stream's name in a target."""
_TABLE_NAME = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+$")


def check_identifier(identifier: str, field_name: str = "target") -> str:
    """Return ``identifier`` if it reads ``namespace.table``; else raise :class:`ConfigurationError`."""
    if not _TABLE_NAME.match(identifier):
        raise ConfigurationError(
            field_name, f"{identifier!r} is not a table name", "write namespace.table, e.g. raw.orders"
        )
    return identifier


def table_of(stream: str, target: str) -> str:
    """Return the table of a stream: ``target`` with the stream's name in place of ``{stream}``.

    A name that is no valid table name is mapped to one: ``Sales Orders (EU)`` to ``sales_orders_eu``.

    :raises ConfigurationError: the stream's name has no character that a table's name may have
    """
    table = target.replace(STREAM_PLACE, stream)
    if _TABLE_NAME.fullmatch(table):
        return table
    name = re.sub(r"\W+", "_", stream, flags=re.ASCII).strip("_").lower()
    if not name:
        raise ConfigurationError("streams", f"{stream!r} has no letters that a table's name may have")
    return target.replace(STREAM_PLACE, f"_{name}" if name[0].isdigit() else name)


def tables_of(streams: Sequence[str], target: str) -> dict[str, str]:
    """Return the table of each stream.

    :raises ConfigurationError: ``target`` names no table, or one table for several streams
    """
    check_identifier(target.replace(STREAM_PLACE, "stream"))
    if len(streams) > 1 and STREAM_PLACE not in target:
        raise ConfigurationError("target", f"{target!r} is one table for several streams", "write e.g. raw.{stream}")
    tables: dict[str, str] = {}
    for stream in streams:
        table = table_of(stream, target)
        for other in (name for name, other_table in tables.items() if other_table == table):
            problem = f"{other!r} and {stream!r} would both go to {table}"
            raise ConfigurationError("streams", problem, "refresh one of them on its own, to another target")
        tables[stream] = table
    return tables
