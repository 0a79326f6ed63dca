"""The types of a query's columns, where they are sure.

sqlglot follows the columns through the query. What type an expression has in Spark, it does not always know, so that is
said here, for a few of them: a wrong type is worse than none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.helper import ensure_list, subclasses
from sqlglot.optimizer.annotate_types import TypeAnnotator
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.schema import MappingSchema

from airflow_provider_rfr.builtins.sql.facts import expand_stars, output_columns
from airflow_provider_rfr.builtins.sql.parse import DIALECT, parse_query
from airflow_provider_rfr.builtins.sql.scopes import full_name, is_fixed, table_parts
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.types import parse_type

Typed = tuple[tuple[str, str | None], ...]
"""Names of columns and their canonical types; None for a type that is not known."""
TypesOf = Callable[[str], Typed | None]
"""Columns of a table or view by its name as it is compared; None where they are not known."""


def output_types(query: str, types_of: TypesOf, namespace: str = "") -> Typed:
    """The names of a query's columns as their author wrote them, and their types.

    :raises QueryError: as :func:`expand_stars` and :func:`output_columns`
    """

    def columns_of(name: str) -> tuple[str, ...] | None:
        found = types_of(name)
        return None if found is None else tuple(each for each, _ in found)

    query = expand_stars(query, columns_of, namespace)
    names = output_columns(query, columns_of, namespace)
    types = list(_types(parse_query(query).copy(), types_of, namespace))
    return tuple(zip(names, types if len(types) == len(names) else [None] * len(names), strict=True))


def _types(tree: exp.Query, types_of: TypesOf, namespace: str) -> Iterator[str | None]:
    """Types by the places of the columns; none at all where one column may be taken for another."""
    if tree.find(exp.Pivot, exp.Values, exp.QueryTransform) or any(each.recursive for each in tree.find_all(exp.With)):
        return
    schema = _schema(tree, types_of, namespace)
    try:
        tree = qualify(
            tree,
            dialect=DIALECT,
            schema=schema,
            expand_stars=False,
            allow_partial_qualification=True,
            validate_qualify_columns=False,
            quote_identifiers=False,
        )
        for each in tree.find_all(exp.Lateral):
            # The column of a lateral view would have the type of the array.
            each.set("this", each.this if isinstance(each.this, exp.Subquery) else exp.Anonymous(this="unknown"))
        TypeAnnotator(schema, expression_metadata=_SURE).annotate(tree)
    except (SqlglotError, RecursionError):
        return
    sides = ((_selected(each.this), _selected(each.expression)) for each in tree.find_all(exp.SetOperation))
    if all([each.type for each in left] == [each.type for each in right] for left, right in sides):
        yield from (_canonical(each.type) for each in _selected(tree))


def _selected(query: exp.Expr) -> Sequence[exp.Expr]:
    while isinstance(query := query.unnest(), exp.SetOperation):
        query = query.this
    return query.expressions


def _schema(tree: exp.Query, types_of: TypesOf, namespace: str) -> MappingSchema:
    """The types of the tables' columns. Each table gets a name of one part in the tree: sqlglot wants them alike."""
    known: dict[str, object] = {}
    sources = {id(each): each for scope in traverse_scope(tree) for each in scope.sources.values()}
    for number, table in enumerate(each for each in sources.values() if isinstance(each, exp.Table)):
        if parts := table_parts(table):
            columns = None if is_fixed(table) else types_of(full_name(parts, namespace))
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(parts[-1]))
            for key, value in {"this": exp.to_identifier(f"*{number}"), "db": None, "catalog": None}.items():
                table.set(key, value)
            table.set("alias", alias)
            known[f"*{number}"] = {each.casefold(): _type(kind or "unknown") for each, kind in columns or ()}
    return MappingSchema(known, dialect=DIALECT, normalize=False)


def _type(text: str) -> exp.DataType:
    return exp.DataType.build(text, dialect=DIALECT)


def _canonical(kind: exp.DataType | None) -> str | None:
    try:
        return None if kind is None else str(parse_type(kind.sql(DIALECT)))
    except ConfigurationError:
        return None


_Rule = Callable[[Any], exp.DataType | None]
_STRING, _INT, _BIGINT, _DOUBLE = map(_type, ("string", "int", "bigint", "double"))
_NUMBERS = (_INT, _BIGINT, _DOUBLE)


def _alike(*keys: str) -> _Rule:
    """The one type that all of these have; NULL has any, and a number that is written out that of a wider one."""

    def rule(node: exp.Expr) -> exp.DataType | None:
        values = [each for key in keys for each in ensure_list(node.args.get(key)) if isinstance(each, exp.Expr)]
        values = [each for each in values if not each.is_type(exp.DType.NULL)]
        kinds = {each.type for each in values if not each.is_number} or {each.type for each in values}
        kind = kinds.pop() if len(kinds) == 1 else None
        return kind if all(kind in (each.type, _wider(each.type, kind)) for each in values) else None

    return rule


def _wider(one: exp.DataType | None, other: exp.DataType | None) -> exp.DataType | None:
    """The wider one of two numbers; of decimals, the digits would matter."""
    return max(one, other, key=_NUMBERS.index) if one in _NUMBERS and other in _NUMBERS else None


def _literal(node: exp.Literal) -> exp.DataType | None:
    bits = int(node.name).bit_length() if node.is_int else 64
    return _STRING if node.is_string else _INT if bits < 32 else _BIGINT if bits < 64 else None


def _arithmetic(node: exp.Binary) -> exp.DataType | None:
    kind = _wider(node.this.type, node.expression.type)
    return _DOUBLE if kind is not None and isinstance(node, exp.Div) else kind


def _sum(node: exp.Sum) -> exp.DataType | None:
    kind = _canonical(node.this.type) or ""
    if kind.startswith("decimal"):
        digits, scale = parse_type(kind).numbers
        return _type(f"decimal({min(digits + 10, 38)},{scale})")
    return {"int": _BIGINT, "bigint": _BIGINT, "double": _DOUBLE}.get(kind)


def _cast(node: exp.Cast) -> exp.DataType | None:
    # The names of fields are not as they were written.
    text = None if node.to.find(exp.ColumnDef) else _canonical(node.to)
    return None if text is None else _type(text)


def _by(rule: _Rule, *nodes: type[exp.Expr]) -> dict[type[exp.Expr], dict[str, Any]]:
    entry = {"annotator": lambda annotator, node: annotator._set_type(node, rule(node))}
    return dict.fromkeys(nodes, entry)


def _always(text: str, *nodes: type[exp.Expr]) -> dict[type[exp.Expr], dict[str, Any]]:
    entry = {"returns": _type(text)}
    return dict.fromkeys(nodes, entry)


_SURE: dict[type[exp.Expr], dict[str, Any]] = {
    **_by(lambda node: node.this.type, exp.Alias, exp.Paren, exp.Nullif, exp.Min, exp.Max, exp.AnyValue, exp.Filter),
    **_by(lambda node: node.this.type, exp.Window, exp.Lag, exp.Lead, exp.First, exp.Last, exp.FirstValue),
    **_by(lambda node: node.this.type, exp.LastValue, exp.IgnoreNulls, exp.RespectNulls),
    **_always("boolean", *subclasses(exp.__name__, (exp.Predicate, exp.Connector)), exp.Not, exp.Boolean),
    **_always("boolean", exp.LogicalAnd, exp.LogicalOr),
    **_always("bigint", exp.Count, exp.CountIf, exp.ApproxDistinct, exp.IntDiv),
    **_always("int", exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Length, exp.Year, exp.Month, exp.Day),
    **_always("string", exp.Upper, exp.Lower, exp.RegexpReplace),
    **_always("date", exp.CurrentDate, exp.TsOrDsToDate),
    **_always("timestamp", exp.CurrentTimestamp, exp.TimestampTrunc),
    **_by(_alike("this", "expressions"), exp.Coalesce, exp.Greatest, exp.Least),
    **_by(_alike("true", "false"), exp.If),
    **_by(_alike("ifs", "default"), exp.Case),
    **_by(lambda node: _STRING if _alike("expressions")(node) == _STRING else None, exp.Concat),
    **_by(_arithmetic, exp.Add, exp.Sub, exp.Mul, exp.Div),
    **_by(_cast, exp.Cast, exp.TryCast),
    **_by(_literal, exp.Literal),
    **_by(_sum, exp.Sum),
    exp.Null: {"returns": exp.DType.NULL},
    exp.Subquery: {"annotator": lambda annotator, node: annotator._annotate_subquery(node)},
    exp.Dot: {"annotator": lambda annotator, node: annotator._annotate_dot(node)},
    exp.Bracket: {"annotator": lambda annotator, node: annotator._annotate_bracket(node)},
}
"""What Spark, in ANSI mode, makes of them."""
