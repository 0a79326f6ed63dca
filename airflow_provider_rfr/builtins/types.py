"""Types of columns by their names: one text for each, and what lies between two of them.

Types of columns as values; their text is the one way to write them.

Reads the names of Spark SQL types.

Only types that Iceberg stores and Spark SQL names. Types that Iceberg does not tell apart have one name: ``smallint``
is ``int``, ``varchar(20)`` is ``string``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from airflow_provider_rfr.builtins.spec import nearest, quoted
from airflow_provider_rfr.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class _Primitive:
    """A type without parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number of so many digits, so many of them behind the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class _Array:
    """Values of one type."""

    element: _Type

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class _Map:
    """Values by key."""

    key: _Type
    value: _Type

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class _Struct:
    """Named values, in order; all optional."""

    fields: tuple[tuple[str, _Type], ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{quoted(name)}:{kind}' for name, kind in self.fields)}>"


_Type = _Primitive | Decimal | _Array | _Map | _Struct


def _parts(kind: _Type) -> Iterator[_Type]:
    """The type and every type inside it."""
    yield kind
    if isinstance(kind, _Struct):
        for _, inner in kind.fields:
            yield from _parts(inner)
    elif isinstance(kind, _Array):
        yield from _parts(kind.element)
    elif isinstance(kind, _Map):
        yield from _parts(kind.key)
        yield from _parts(kind.value)


_DEEPEST = 32
"""Types inside types; what is deeper is a mistake, or meant to exhaust a parser."""
_ALIASES = {
    **dict.fromkeys(("int", "integer", "tinyint", "byte", "smallint", "short"), "int"),
    **dict.fromkeys(("bigint", "long"), "bigint"),
    **dict.fromkeys(("float", "real"), "float"),
    **dict.fromkeys(("string", "varchar", "char", "character"), "string"),
    **dict.fromkeys(("timestamp", "timestamp_ltz", "timestamptz"), "timestamp"),
    **dict.fromkeys(("decimal", "dec", "numeric"), "decimal"),
    **{name: name for name in ("boolean", "double", "date", "timestamp_ntz", "binary", "array", "map", "struct")},
}
_ELSEWHERE = {
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
    "void": "a column has a type",
    "null": "a column has a type",
}
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> _Type:
    """The type that a text names.

    :raises ConfigurationError: it names none
    """
    parser = _Parser(text)
    kind = parser.type()
    if parser.next:
        raise parser.wrong(f"{parser.next!r} is too much")
    return kind


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._depth = 0
        self.next = ""
        self.quoted = False
        self._step()

    def wrong(self, problem: str, remedy: str = "") -> ConfigurationError:
        shown = self._text if len(self._text) <= 80 else self._text[:80] + "..."
        return ConfigurationError("type", f"{shown!r}: {problem}", remedy)

    def type(self) -> _Type:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.wrong(f"types lie more than {_DEEPEST} deep in each other")
        written = self.next
        name = _ALIASES.get(written.lower()) if not self.quoted else None
        if name is None:
            raise self._unknown(written)
        self._step()
        kind = _PARTS[name](self) if name in _PARTS else _Primitive(name)
        if name == "string" and self._at("("):
            self._numbers(1)
        self._depth -= 1
        return kind

    def decimal(self) -> Decimal:
        numbers = self._numbers(2) if self._at("(") else ()
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise self.wrong(f"decimal({precision},{scale}) is out of range", "1 to 38 digits, none to all behind")
        return Decimal(precision, scale)

    def array(self) -> _Array:
        self._take("<")
        element = self.type()
        self._take(">")
        return _Array(element)

    def map(self) -> _Map:
        self._take("<")
        key = self.type()
        if any(isinstance(each, _Map) for each in _parts(key)):
            raise self.wrong("the key of a map holds no map")
        self._take(",")
        value = self.type()
        self._take(">")
        return _Map(key, value)

    def struct(self) -> _Struct:
        self._take("<")
        fields = [self._field()]
        while self._at(","):
            self._step()
            fields.append(self._field())
        self._take(">")
        names = [name.casefold() for name, _ in fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.wrong(f"a struct has two fields {twice!r}", "names are compared without case")
        return _Struct(tuple(fields))

    def _field(self) -> tuple[str, _Type]:
        name = self.next
        if not self.quoted and not re.fullmatch(r"\w+", name):
            raise self._expected("the name of a field")
        self._step()
        if self._at(":"):
            self._step()
        kind = self.type()
        if not self.quoted and self.next.lower() in ("not", "comment", "default"):
            raise self.wrong(
                f"the field {name!r} is more than a name and a type", "fields are optional and without comments"
            )
        return name, kind

    def _numbers(self, most: int) -> tuple[int, ...]:
        self._take("(")
        found = [self._number()]
        while self._at(",") and len(found) < most:
            self._step()
            found.append(self._number())
        self._take(")")
        return tuple(found)

    def _number(self) -> int:
        if not re.fullmatch(r"[0-9]{1,5}", self.next):
            raise self._expected("a number")
        number = int(self.next)
        self._step()
        return number

    def _at(self, symbol: str) -> bool:
        return self.next == symbol and not self.quoted

    def _take(self, wanted: str) -> None:
        if not self._at(wanted):
            raise self._expected(repr(wanted))
        self._step()

    def _step(self) -> None:
        self.next, self.quoted = next(self._tokens, ("", False))

    def _split(self) -> Iterator[tuple[str, bool]]:
        at, end = 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self.wrong(f"{self._text[at:].lstrip()[:1]!r} stands in no type")
            at = found.end()
            name = found.group(1)
            yield (name.replace("``", "`"), True) if name is not None else (found.group(2) or found.group(3), False)

    def _expected(self, what: str) -> ConfigurationError:
        return self.wrong(f"expected {what}, found {repr(self.next) if self.next else 'the end'}")

    def _unknown(self, written: str) -> ConfigurationError:
        if written.lower() in _ELSEWHERE:
            return self.wrong(f"{written} is no type here", _ELSEWHERE[written.lower()])
        return self.wrong(f"{written!r} is not a type" if written else "a type is missing", nearest(written, _ALIASES))


_PARTS: dict[str, Callable[[_Parser], _Type]] = {
    "decimal": _Parser.decimal,
    "array": _Parser.array,
    "map": _Parser.map,
    "struct": _Parser.struct,
}


class _TypeChange(str, Enum):
    """What lies between two types."""

    SAME = "same"
    WIDEN = "widen"
    """Iceberg takes the new type in place, and no value is lost or changed."""
    INCOMPATIBLE = "incompatible"


_GENTLEST = tuple(_TypeChange)
_PROMOTIONS = {("int", "bigint"), ("float", "double")}


def canonical_type(text: str) -> str:
    """The one way to write this type.

    :raises ConfigurationError: the text names none
    """
    return str(parse_type(text))


@lru_cache(maxsize=4096)
def folded_type(text: str) -> str:
    """The canonical text, with the names of fields as they are compared.

    :raises ConfigurationError: the text names none
    """
    return str(_folded(parse_type(text)))


def _folded(kind: _Type) -> _Type:
    if isinstance(kind, _Struct):
        return _Struct(tuple((name.casefold(), _folded(inner)) for name, inner in kind.fields))
    if isinstance(kind, _Array):
        return _Array(_folded(kind.element))
    return _Map(_folded(kind.key), _folded(kind.value)) if isinstance(kind, _Map) else kind


def classify(old: str, new: str) -> _TypeChange:
    """What a table that has ``old`` and shall have ``new`` needs.

    The rules are those of Iceberg's format 2, narrower than what PyIceberg lets pass: the scale of a decimal never
    changes. Fields may come and move inside a struct; one that goes would take its values with it.

    :raises ConfigurationError: a text names no type
    """
    return _classify(_folded(parse_type(old)), _folded(parse_type(new)))


def _classify(old: _Type, new: _Type) -> _TypeChange:
    if old == new:
        return _TypeChange.SAME
    if isinstance(old, _Struct) and isinstance(new, _Struct):
        return _classify_struct(old, new)
    if isinstance(old, _Array) and isinstance(new, _Array):
        return _classify(old.element, new.element)
    if isinstance(old, _Map) and isinstance(new, _Map) and old.key == new.key:
        return _classify(old.value, new.value)
    widens = _wider_decimal(old, new) or (str(old), str(new)) in _PROMOTIONS
    return _TypeChange.WIDEN if widens else _TypeChange.INCOMPATIBLE


def _wider_decimal(old: _Type, new: _Type) -> bool:
    if not (isinstance(old, Decimal) and isinstance(new, Decimal)):
        return False
    return old.scale == new.scale and old.precision < new.precision


def _classify_struct(old: _Struct, new: _Struct) -> _TypeChange:
    before, after = dict(old.fields), dict(new.fields)
    if not before.keys() <= after.keys():
        return _TypeChange.INCOMPATIBLE
    found = [_classify(kind, after[name]) for name, kind in before.items()]
    return max(found if list(before) == list(after) else [*found, _TypeChange.WIDEN], key=_GENTLEST.index)
