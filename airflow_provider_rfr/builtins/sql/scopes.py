"""The scopes of a query: which tables its names mean, which columns come out, and replacing table names in its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from airflow_provider_rfr.builtins.sql.parse import WRITTEN, identifier, parse_query
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import quoted

Parts = tuple[str, ...]
"""The parts of a name, as they are compared."""
ColumnsOf = Callable[[str], tuple[str, ...] | None]
"""Columns of a table or view by its name as it is compared; None where they are not known."""


def scopes_of(query: str) -> list[Scope]:
    """The scopes of a query, inner ones first; the parsed query in them is shared.

    :raises QueryError: as :func:`parse_query`, or two sources have one name
    """
    try:
        return traverse_scope(parse_query(query))
    except SqlglotError as error:
        raise QueryError(str(error).lower(), "give each table and subquery an alias of its own") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None


def table_parts(node: exp.Expr) -> Parts:
    """The parts of a table's name; none, if it is a function or a query."""
    if not isinstance(node, exp.Table) or not isinstance(node.this, (exp.Identifier, exp.Dot)):
        return ()
    return tuple(each.name for each in node.parts)


def is_fixed(table: exp.Expr) -> bool:
    """Whether the query says at which snapshot it reads the table, which may have had other columns then."""
    return bool(table.args.get("version") or table.args.get("when"))


def full_name(parts: Parts, namespace: str) -> str:
    """The name as objects' names are compared."""
    whole = ".".join(map(quoted, parts))
    return f"{namespace.casefold()}.{whole}" if len(parts) == 1 and namespace else whole


def written(name: exp.Expr) -> str:
    """A name as its author wrote it."""
    return str(name.meta.get(WRITTEN, name.name))


def is_natural(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Join) and node.method.upper() == "NATURAL"


def reads_columns(node: exp.Expr) -> bool:
    """Whether it is a star that expands to columns: that of ``count(*)`` and of ``EXISTS (SELECT *)`` does not."""
    if not isinstance(node, exp.Star):
        return False
    if isinstance(node.parent, exp.Count):
        return node.args.get("except_") is not None
    return not (isinstance(node.parent, exp.Select) and isinstance(node.parent.parent, exp.Exists))


_NAME_THEM = "write them out, or name them in its alias: AS t(a, b)"


@dataclass(frozen=True, slots=True)
class Item:
    """A column that a star expands to.

    :ivar source: alias of what it comes from; None where both sides of a join have it
    """

    source: str | None
    name: str

    @property
    def key(self) -> str:
        return self.name.casefold()

    def __str__(self) -> str:
        return identifier(self.name) if self.source is None else f"{identifier(self.source)}.{identifier(self.name)}"


class Outputs:
    """Columns of the scopes of one query; each is looked at once. Names are as their author wrote them."""

    def __init__(self, columns_of: ColumnsOf, namespace: str) -> None:
        self._columns_of = columns_of
        self._namespace = namespace
        self._known: dict[int, tuple[str, ...]] = {}

    def of(self, scope: Scope) -> tuple[str, ...]:
        """Names of the columns of a scope's result.

        :raises QueryError: a column has no name, or a star can't be written out
        """
        if id(scope) not in self._known:
            # A recursive query reads itself by a scope that knows nothing of its names.
            holder = scope.expression.find_ancestor(exp.CTE) if scope.is_cte else scope.expression.parent
            aliases = _alias_columns(holder) if scope.is_cte or scope.outer_columns else ()
            self._known[id(scope)] = _renamed(tuple(self._names(scope)), aliases, "a subquery")
        return self._known[id(scope)]

    def _names(self, scope: Scope) -> Iterator[str]:
        while isinstance(scope.expression, exp.SetOperation):
            scope = scope.set_operation_scopes[0]
        query = scope.expression
        if isinstance(query, exp.Subquery) or isinstance(query.this, exp.Subquery):
            inner = scope.sources.get("")
            if not isinstance(inner, Scope):
                raise QueryError("the columns of a subquery are not known here", "write them out")
            yield from self.of(inner)
        elif not isinstance(query, exp.Select):
            raise QueryError("the columns of a function are not known here", _NAME_THEM)
        for number, each in enumerate(query.expressions if isinstance(query, exp.Select) else (), 1):
            if each.is_star:
                yield from (item.name for item in self.star(scope, each))
            elif found := names_of(each):
                yield from map(written, found)
            else:
                raise QueryError(f"column {number} of a SELECT has no name", "give it one: ... AS name")

    def star(self, scope: Scope, star: exp.Expr) -> list[Item]:
        """The columns that a star, alone or behind a table's name, expands to, in Spark's order.

        :raises QueryError: one is not known, or two have one name
        """
        if not isinstance(star, exp.Column):
            return _without_excepted(self.items(scope), star)
        parts, found = tuple(each.name for each in star.parts[:-1]), []
        for node in _nodes(scope):
            if parts == (node.alias_or_name,) or (not node.alias and parts == table_parts(node)[-len(parts) :]):
                found.append(node)
        if len(found) != 1:
            name = ".".join(written(each) for each in star.parts[:-1])
            raise QueryError(f"{name}.* is not a table of this SELECT", f"write the fields out: {name}.field, ...")
        columns = self.columns(scope, found[0], found[0].alias_or_name)
        return _without_excepted([Item(None, each) for each in columns], star.this)

    def items(self, scope: Scope) -> list[Item]:
        """The columns of all sources; raises as :meth:`star`."""
        nodes = _nodes(scope)
        if not isinstance(scope.expression, exp.Select) or not nodes:
            raise QueryError("a star stands where there is no FROM", "write its columns out")
        items: list[Item] = []
        unknown: list[QueryError] = []
        for node in nodes:
            alias, found = node.args.get("alias") or node, list[Item]()
            source = written(alias.this) if isinstance(alias.this, exp.Identifier) else None
            try:
                found = [Item(source, name) for name in self.columns(scope, node, node.alias_or_name)]
            except QueryError as error:
                unknown.append(error)
            items = _joined(items, found, node.parent, whole=not unknown)
        known = f"known are {', '.join(map(str, items))}" if items else ""
        if unknown:
            raise QueryError(unknown[0].problem, "; ".join(filter(None, [unknown[0].remedy, known])))
        keys = [each.key for each in items]
        if any(each.source is None and keys.count(each.key) > 1 for each in items):
            raise QueryError("a star expands to two columns of one name", f"write them out; {known}")
        return [Item(None, each.name) for each in items] if len(nodes) == 1 else items

    def columns(self, scope: Scope, node: exp.Expr, alias: str) -> tuple[str, ...]:
        """The columns of one source; raises as :meth:`star`."""
        if node.args.get("pivots") or node.args.get("joins"):
            raise QueryError("a star expands to a pivot, or to joins in brackets", "write its columns out")
        if alias not in scope.sources or [name for name, _ in scope.references].count(alias) > 1:
            problem = f"it is not clear which table {alias or 'a star'} stands for"
            raise QueryError(problem, "give each an alias of its own")
        source, given = scope.sources[alias], _alias_columns(node)
        if isinstance(source, Scope) and not (isinstance(source.expression, exp.UDTF) and given):
            return _renamed(self.of(source), given, alias)
        name = full_name(table_parts(node), self._namespace)
        names = self._columns_of(name) if name and not is_fixed(node) else None
        if names is None and not given:
            remedy = "write them out" if name else _NAME_THEM
            raise QueryError(f"the columns of {name or 'a function'} are not known here", remedy)
        return _renamed(names, given, alias) if names is not None else tuple(map(written, given))


def names_of(projection: exp.Expr) -> Sequence[exp.Expr]:
    """The identifiers that name an expression of a SELECT."""
    if isinstance(projection, exp.Aliases):
        return projection.expressions
    keys: dict[type[exp.Expr], str] = {exp.Alias: "alias", exp.Column: "this", exp.Dot: "expression"}
    name = projection.args.get(keys.get(type(projection), ""))
    return [name] if isinstance(name, exp.Identifier) else []


def _joined(left: list[Item], right: list[Item], join: exp.Expr | None, *, whole: bool) -> list[Item]:
    """The columns of both sides of a join.

    :param whole: all of them are known
    """
    theirs = {each.key for each in right}
    if is_natural(join):
        both = ", ".join(identifier(each.name) for each in left if each.key in theirs)
        remedy = f"write USING ({both})" if both else "write USING and the columns"
        raise QueryError("NATURAL JOIN joins by whatever columns both sides happen to have", remedy)
    if isinstance(join, exp.Join) and join.kind.upper() in ("SEMI", "ANTI"):
        right = []
    using = [written(each) for each in join.args.get("using") or ()] if isinstance(join, exp.Join) else []
    if not using or not whole:
        return [*left, *right]
    keys = [name.casefold() for name in using]
    first = [Item(None, each.name) for key in keys for each in left if each.key == key]
    if len(first) != len(keys) or not theirs.issuperset(keys):
        raise QueryError(f"USING ({', '.join(using)}) needs one column of each name on each side")
    return [*first, *(each for each in (*left, *right) if each.key not in keys)]


def _nodes(scope: Scope) -> list[exp.Expr]:
    """What is read in FROM, JOIN and LATERAL VIEW."""
    args = scope.expression.args
    start = [args["from_"].this] if args.get("from_") else []
    return [*start, *(each.this for each in args.get("joins") or ()), *(args.get("laterals") or ())]


def _alias_columns(node: exp.Expr | None) -> Sequence[exp.Expr]:
    """The names that an alias gives to columns: ``AS t(a, b)``."""
    alias = node.args.get("alias") if node is not None else None
    return alias.columns if isinstance(alias, exp.TableAlias) else ()


def _renamed(names: tuple[str, ...], aliases: Sequence[exp.Expr], what: str) -> tuple[str, ...]:
    if aliases and len(aliases) != len(names):
        raise QueryError(f"{what} has {len(names)} columns, and {len(aliases)} names for them")
    return tuple(map(written, aliases)) or names


def _without_excepted(items: list[Item], star: exp.Expr) -> list[Item]:
    if star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
        raise QueryError("a star has more behind it than EXCEPT", "write the columns out")
    for each in star.args.get("except_") or ():
        if (isinstance(each, exp.Column) and each.table) or each.name not in {item.key for item in items}:
            raise QueryError(f"EXCEPT names {each.name}, which is none of the star's columns")
        items = [item for item in items if item.key != each.name]
    if not items:
        raise QueryError("a star expands to no column")
    return items


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table where a query names it.

    :ivar name: as objects' names are compared
    :ivar written: as the author wrote it
    :ivar parts: of the name, as they are compared
    :ivar aliased: it has a name of its own in the query
    :ivar fixed: the query says at which snapshot or time it reads it
    """

    name: str
    written: str
    parts: Parts
    aliased: bool
    fixed: bool


def replace_tables(query: str, namespace: str, replace: Callable[[NamedTable], str | None]) -> str:
    """The query with some tables' names replaced; nothing else is touched.

    :param namespace: of names that have none
    :param replace: what stands for a table's name from now on; None: the name
    :raises QueryError: as :func:`scopes_of`
    """
    places: dict[tuple[int, int], NamedTable] = {}
    for table in (each for scope in scopes_of(query) for each in scope.sources.values()):
        if isinstance(table, exp.Table) and (parts := table_parts(table)):
            start, end = table.parts[0].meta.get("start"), table.parts[-1].meta.get("end")
            if start is not None and end is not None:
                text, name = query[start : end + 1], full_name(parts, namespace)
                places[start, end + 1] = NamedTable(name, text, parts, bool(table.alias), is_fixed(table))
    for (start, end), named in sorted(places.items(), key=lambda each: each[0], reverse=True):
        put = replace(named)
        query = query if put is None else query[:start] + put + query[end:]
    return query
