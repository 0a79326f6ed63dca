"""The columns that come out of queries and of what they read, as far as declarations tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.sql.parse import WRITTEN
from airflow_provider_rfr.builtins.sql.scopes import full_name, table_parts
from airflow_provider_rfr.builtins.sql.text import identifier
from airflow_provider_rfr.exceptions import QueryError

ColumnsOf = Callable[[str], tuple[str, ...] | None]
"""Columns of a table or view by its name as it is compared; None where they are not known."""
_NAME_THEM = "write them out, or name them in its alias: AS t(a, b)"


class UnknownColumnsError(QueryError):
    """The columns of something that the query reads are not known here."""


@dataclass(frozen=True, slots=True)
class Item:
    """A column that a star stands for.

    :ivar source: alias of what it comes from; None where both sides of a join have it
    """

    source: str | None
    name: str

    @property
    def key(self) -> str:
        return self.name.casefold()

    def __str__(self) -> str:
        name = identifier(self.name)
        return name if self.source is None else f"{identifier(self.source)}.{name}"


@dataclass(slots=True)
class _Row:
    """The columns of the sources that were joined so far.

    :ivar unknown: one for each source whose columns are not known
    """

    items: list[Item] = field(default_factory=list)
    unknown: list[UnknownColumnsError] = field(default_factory=list)

    def join(self, right: list[Item], join: exp.Join | None) -> None:
        """Take in the columns of one more source."""
        using = [written(each) for each in join.args.get("using") or ()] if join is not None else []
        if join is not None and join.method.upper() == "NATURAL":
            self._refuse_natural(right)
        if join is not None and join.kind.upper() in ("SEMI", "ANTI"):
            right = []
        if using and not self.unknown:
            self._merge(right, using)
        else:
            self.items += right

    def _merge(self, right: list[Item], using: list[str]) -> None:
        """As Spark has it: the columns that both sides are joined by come first, and once."""
        keys = [name.casefold() for name in using]
        first = [Item(None, each.name) for key in keys for each in self.items if each.key == key]
        if len(first) != len(keys):
            raise QueryError(f"USING ({', '.join(using)}) needs one column of each name on each side")
        self.items = [*first, *(each for each in (*self.items, *right) if each.key not in keys)]

    def _refuse_natural(self, right: list[Item]) -> None:
        theirs = {each.key for each in right}
        both = [identifier(each.name) for each in self.items if each.key in theirs]
        problem = "NATURAL JOIN joins by whatever columns both sides happen to have"
        self.items += right
        raise self.refusal(problem, f"write USING ({', '.join(both)})" if both else "write USING and the columns")

    def refusal(self, problem: str, remedy: str) -> QueryError:
        """Another error where nothing is known: then it is none of our business, perhaps."""
        return QueryError(problem, remedy) if self.items else UnknownColumnsError(problem, remedy)

    def list(self) -> str:
        """What is known, to be pasted."""
        return f"; known are {', '.join(map(str, self.items))}" if self.items else ""


class Outputs:
    """Columns of the scopes of one query; each is looked at once."""

    def __init__(self, columns_of: ColumnsOf, namespace: str) -> None:
        self._columns_of = columns_of
        self._namespace = namespace
        self._known: dict[int, tuple[str, ...]] = {}

    def of(self, scope: Scope) -> tuple[str, ...]:
        """Names of the columns of a scope's result.

        :raises QueryError: a column has no name, or a star can't be written out
        """
        if id(scope) not in self._known:
            holder = scope.expression.parent
            aliases = [written(each) for each in _alias_columns(holder)] if holder and scope.outer_columns else []
            self._known[id(scope)] = _renamed(tuple(self._names(scope)), aliases, "a subquery")
        return self._known[id(scope)]

    def _names(self, scope: Scope) -> Iterator[str]:
        while isinstance(scope.expression, exp.SetOperation):
            scope = scope.set_operation_scopes[0]
        query = scope.expression
        if isinstance(query, exp.Subquery):
            yield from self.of(_scope(scope, ""))
        elif isinstance(query, exp.Select):
            for number, each in enumerate(query.expressions, 1):
                yield from self._projected(scope, each, number)
        else:
            raise UnknownColumnsError("the columns of a function are not known here", _NAME_THEM)

    def _projected(self, scope: Scope, each: exp.Expr, number: int) -> Iterator[str]:
        if isinstance(each, exp.Star):
            yield from (item.name for item in self.star(scope, each))
        elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
            yield from self.qualified(scope, each)
        elif isinstance(each, exp.Aliases):
            yield from (written(alias) for alias in each.expressions)
        elif isinstance(each, exp.Alias):
            yield written(each.args["alias"])
        elif isinstance(each, exp.Column):
            yield written(each.this)
        elif isinstance(each, exp.Dot) and isinstance(each.expression, exp.Identifier):
            yield written(each.expression)
        else:
            raise QueryError(f"column {number} of a SELECT has no name", "give it one: ... AS name")

    def star(self, scope: Scope, star: exp.Star) -> list[Item]:
        """The columns that a star without a table's name stands for, in Spark's order.

        :raises QueryError: they can't be told
        """
        return _without_excepted(self.items(scope), star)

    def qualified(self, scope: Scope, column: exp.Column) -> list[str]:
        """The columns of a star behind the name of a table."""
        name = ".".join(written(each) for each in column.parts[:-1])
        nodes = [each for each in _nodes(scope) if _names_it(column, each)]
        if len(nodes) != 1:
            raise QueryError(f"{name}.* is no table of this SELECT", f"write the fields out: {name}.field, ...")
        items = [Item(None, each) for each in self.columns(scope, nodes[0])]
        return [item.name for item in _without_excepted(items, column.this)]

    def items(self, scope: Scope) -> list[Item]:
        """The columns of all sources.

        :raises UnknownColumnsError: not one of them is known
        :raises QueryError: not all of them are known, or they can't be told apart
        """
        nodes = _nodes(scope)
        if not isinstance(scope.expression, exp.Select) or not nodes:
            raise QueryError("a star stands where there is no FROM", "write its columns out")
        row = _Row()
        for node in nodes:
            join = node.parent if isinstance(node.parent, exp.Join) else None
            row.join(self._items_of(scope, node, row), join)
        if row.unknown:
            raise row.refusal(row.unknown[0].problem, row.unknown[0].remedy + row.list())
        keys = [each.key for each in row.items]
        if any(each.source is None and keys.count(each.key) > 1 for each in row.items):
            raise QueryError("a star stands for two columns of one name", f"write them out{row.list()}")
        return [Item(None, each.name) for each in row.items] if len(nodes) == 1 else row.items

    def _items_of(self, scope: Scope, node: exp.Expr, row: _Row) -> list[Item]:
        try:
            return [Item(written_alias(node) or None, name) for name in self.columns(scope, node)]
        except UnknownColumnsError as error:
            row.unknown.append(error)
            return []

    def columns(self, scope: Scope, node: exp.Expr) -> tuple[str, ...]:
        """The columns of one source.

        :raises UnknownColumnsError: they are not known
        """
        if node.args.get("pivots") or node.args.get("joins"):
            raise QueryError("a star stands for a pivot, or for joins in brackets", "write its columns out")
        names = self._columns(scope, node)
        aliases = [written(each) for each in _alias_columns(node)]
        return _renamed(names, aliases, node.alias_or_name) if names is not None else tuple(aliases)

    def _columns(self, scope: Scope, node: exp.Expr) -> tuple[str, ...] | None:
        """The columns of a source; None if its alias names them all."""
        source = _scope_or_table(scope, node)
        if isinstance(source, exp.Table):
            parts = table_parts(source)
            name = full_name(parts, self._namespace) if parts else ""
            columns = self._columns_of(name) if parts else None
            if columns is not None:
                return columns
            if _alias_columns(node):
                return None
            remedy = "write them out" if name else _NAME_THEM
            raise UnknownColumnsError(f"the columns of {name or 'a function'} are not known here", remedy)
        if isinstance(source.expression, exp.Lateral) and isinstance(source.expression.this, exp.Subquery):
            return self.of(_scope(source, ""))
        if isinstance(source.expression, exp.UDTF):
            if _alias_columns(node):
                return None
            raise UnknownColumnsError("the columns of a function are not known here", _NAME_THEM)
        return self.of(source)


def written(name: exp.Expr) -> str:
    """A name as its author wrote it."""
    return str(name.meta.get(WRITTEN, name.name))


def written_alias(node: exp.Expr) -> str:
    """The name by which the columns of a source are qualified, as its author wrote it."""
    alias = node.args.get("alias")
    given = alias.this if isinstance(alias, exp.TableAlias) else alias
    name = given or (node.this if isinstance(node, exp.Table) else None)
    return written(name) if isinstance(name, exp.Identifier) else ""


def _nodes(scope: Scope) -> list[exp.Expr]:
    query = scope.expression
    start = query.args.get("from_")
    joins = [each.this for each in query.args.get("joins") or ()]
    return [*([start.this] if start else []), *joins, *(query.args.get("laterals") or ())]


def _names_it(star: exp.Column, node: exp.Expr) -> bool:
    parts = tuple(each.name for each in star.parts[:-1])
    if len(parts) == 1:
        return parts[0] == node.alias_or_name
    return isinstance(node, exp.Table) and not node.alias and parts == table_parts(node)[-len(parts) :]


def _scope_or_table(scope: Scope, node: exp.Expr) -> exp.Table | Scope:
    name = node.alias_or_name
    same = [each for each, _ in scope.references if each == name]
    if name not in scope.sources or len(same) > 1:
        raise QueryError(f"it is not clear which table {name or 'a star'} stands for", "give each an alias of its own")
    return scope.sources[name]


def _scope(scope: Scope, name: str) -> Scope:
    found = scope.sources.get(name)
    if not isinstance(found, Scope):
        raise UnknownColumnsError("the columns of a subquery are not known here", "write them out")
    return found


def _alias_columns(node: exp.Expr) -> Sequence[exp.Expr]:
    alias = node.args.get("alias")
    return alias.columns if isinstance(alias, exp.TableAlias) else []


def _renamed(names: tuple[str, ...], aliases: Sequence[str], what: str) -> tuple[str, ...]:
    if aliases and len(aliases) != len(names):
        raise QueryError(f"{what} has {len(names)} columns, and {len(aliases)} names for them")
    return tuple(aliases) or names


def _without_excepted(items: list[Item], star: exp.Expr) -> list[Item]:
    if star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
        raise QueryError("a star has more behind it than EXCEPT", "write the columns out")
    left = items
    for each in star.args.get("except_") or ():
        name = each.name
        if (isinstance(each, exp.Column) and each.table) or name not in {item.key for item in left}:
            raise QueryError(f"EXCEPT names {name}, which is none of the star's columns")
        left = [item for item in left if item.key != name]
    if not left:
        raise QueryError("a star stands for no column at all")
    return left
