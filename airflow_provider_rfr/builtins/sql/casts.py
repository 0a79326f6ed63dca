"""Casts of nested types by the names of fields.

Spark's own CAST goes by position: it would move values between the fields of a struct, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_rfr.builtins.sql.parse import Parts, casts_in, identifier
from airflow_provider_rfr.lake.spark import string_literal
from airflow_provider_rfr.lake.types import ColumnType, has_same_fields, parse_type


def cast(
    value: str, old: ColumnType, new: ColumnType, depth: int = 0, *, called: ColumnType | None = None
) -> str | None:
    """Return SQL that makes a value of type ``new`` from one of type ``old``, field by field; None if none is obvious.

    A struct that is NULL stays NULL.

    :param value: a column, or a field of one
    :param depth: of functions around it, whose parameters have other names
    :param called: ``old`` with its fields under their new names, if those differ
    """
    called = called or old
    if old == new == called:
        return value
    if has_same_fields(old, new) and has_same_fields(old, called):
        return f"CAST({value} AS {new})"
    if old.name != new.name:
        return f"to_json({value})" if new.name == "string" else None
    if old.name == "struct":
        return _cast_struct(value, old, new, called, depth)
    one, both = f"x{depth}", f"(k{depth}, x{depth})"
    functions = ["transform"] if old.name == "array" else ["transform_keys", "transform_values"]
    for function, before, after, named in zip(functions, old.inner, new.inner, called.inner, strict=True):
        if not before == after == named:
            argument = f"k{depth}" if function == "transform_keys" else one
            inner = cast(argument, before, after, depth + 1, called=named)
            if inner is None:
                return None
            value = f"{function}({value}, {one if old.name == 'array' else both} -> {inner})"
    return value


def _cast_struct(value: str, old: ColumnType, new: ColumnType, called: ColumnType, depth: int) -> str | None:
    fields = zip(old.fields, old.inner, called.inner, strict=True)
    before = dict(zip(called.folded().fields, fields, strict=True))
    parts = list[str]()
    for name, kind in zip(new.fields, new.inner, strict=True):
        field: str | None = f"CAST(NULL AS {kind})"
        if name.casefold() in before:
            old_name, old_kind, named = before[name.casefold()]
            field = cast(f"{value}.{identifier(old_name)}", old_kind, kind, depth, called=named)
        if field is None:
            return None
        parts += [string_literal(name), field]
    return f"if({value} IS NULL, NULL, named_struct({', '.join(parts)}))"


def misplaced(expression: str, columns: Mapping[str, ColumnType], wanted: ColumnType) -> Iterator[str]:
    """Yield the casts by position in an expression that would move values between fields.

    The structs of both types have other fields, or the same ones in another order.

    :param columns: the types of the columns that the expression reads, by their compared names
    :param wanted: the type to which the result is cast
    """
    for path, text in casts_in(expression):
        kind, after = _type_at(path, columns), wanted if text is None else parse_type(text)
        if kind is not None and kind.name == after.name and not has_same_fields(kind, after):
            yield f"a cast of {'.'.join(path)} from {kind} to {after} goes by position, not by name"


def _type_at(path: Parts, columns: Mapping[str, ColumnType]) -> ColumnType | None:
    """Return the type of a column, or of a field of one; None where it can't be known."""
    kind = columns.get(path[0].casefold())
    for name in path[1:]:
        fields = {} if kind is None else dict(zip(kind.folded().fields, kind.inner, strict=False))
        kind = fields.get(name.casefold())
    return kind
