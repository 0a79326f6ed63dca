"""Types of columns by their names: one text for each, and what lies between two of them."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from airflow_provider_rfr.builtins.type_parser import parse_type
from airflow_provider_rfr.builtins.type_values import Array, Decimal, Map, Primitive, Struct, Type

__all__ = [
    "Array",
    "Decimal",
    "Map",
    "Primitive",
    "Struct",
    "Type",
    "TypeChange",
    "canonical_type",
    "classify",
    "folded_type",
    "parse_type",
]


class TypeChange(str, Enum):
    """What lies between two types."""

    SAME = "same"
    WIDEN = "widen"
    """Iceberg takes the new type in place, and no value is lost or changed."""
    INCOMPATIBLE = "incompatible"


_GENTLEST = tuple(TypeChange)
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


def _folded(kind: Type) -> Type:
    if isinstance(kind, Struct):
        return Struct(tuple((name.casefold(), _folded(inner)) for name, inner in kind.fields))
    if isinstance(kind, Array):
        return Array(_folded(kind.element))
    return Map(_folded(kind.key), _folded(kind.value)) if isinstance(kind, Map) else kind


def classify(old: str, new: str) -> TypeChange:
    """What a table that has ``old`` and shall have ``new`` needs.

    The rules are those of Iceberg's format 2, narrower than what PyIceberg lets pass: the scale of a decimal never
    changes. Fields may come and move inside a struct; one that goes would take its values with it.

    :raises ConfigurationError: a text names no type
    """
    return _classify(_folded(parse_type(old)), _folded(parse_type(new)))


def _classify(old: Type, new: Type) -> TypeChange:
    if old == new:
        return TypeChange.SAME
    if isinstance(old, Struct) and isinstance(new, Struct):
        return _classify_struct(old, new)
    if isinstance(old, Array) and isinstance(new, Array):
        return _classify(old.element, new.element)
    if isinstance(old, Map) and isinstance(new, Map) and old.key == new.key:
        return _classify(old.value, new.value)
    widens = _wider_decimal(old, new) or (str(old), str(new)) in _PROMOTIONS
    return TypeChange.WIDEN if widens else TypeChange.INCOMPATIBLE


def _wider_decimal(old: Type, new: Type) -> bool:
    if not (isinstance(old, Decimal) and isinstance(new, Decimal)):
        return False
    return old.scale == new.scale and old.precision < new.precision


def _classify_struct(old: Struct, new: Struct) -> TypeChange:
    before, after = dict(old.fields), dict(new.fields)
    if not before.keys() <= after.keys():
        return TypeChange.INCOMPATIBLE
    found = [_classify(kind, after[name]) for name, kind in before.items()]
    return max(found if list(before) == list(after) else [*found, TypeChange.WIDEN], key=_GENTLEST.index)
