"""Types of columns as values; their text is the one way to write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_rfr.builtins.names import quoted


@dataclass(frozen=True, slots=True)
class Primitive:
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
class Array:
    """Values of one type."""

    element: Type

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named values, in order; all optional."""

    fields: tuple[tuple[str, Type], ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{quoted(name)}:{kind}' for name, kind in self.fields)}>"


Type = Primitive | Decimal | Array | Map | Struct


def parts(kind: Type) -> Iterator[Type]:
    """The type and every type inside it."""
    yield kind
    if isinstance(kind, Struct):
        for _, inner in kind.fields:
            yield from parts(inner)
    elif isinstance(kind, Array):
        yield from parts(kind.element)
    elif isinstance(kind, Map):
        yield from parts(kind.key)
        yield from parts(kind.value)
