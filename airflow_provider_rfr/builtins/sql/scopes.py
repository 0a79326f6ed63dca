"""The scopes of a query: what its names refer to, which columns come out, and replacing table names in its text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from airflow_provider_rfr.builtins.sql.parse import WRITTEN, identifier, parse_query
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import quoted

STAR = "*"


@dataclass(frozen=True, slots=True)
class Mention:
    """A name in an expression, from left to right; a star is its last part.

    :ivar inner: aliases of queries inside, around the name
    """

    parts: tuple[str, ...]
    inner: frozenset[str] = frozenset()


def scopes_of(query: str) -> tuple[Scope, ...]:
    """The scopes of a query, inner ones first. They are shared, as the parsed query is.

    :raises QueryError: as :func:`parse_query`, or two sources have one name
    """
    return _scopes(query, threading.get_ident())


@lru_cache(maxsize=128)
def _scopes(query: str, _thread: int) -> tuple[Scope, ...]:
    # Of one thread each: a scope collects what is in it when it is first asked, without a lock.
    try:
        return tuple(traverse_scope(parse_query(query)))
    except SqlglotError as error:
        raise QueryError(str(error).lower(), "give each table and subquery an alias of its own") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None


def table_parts(table: exp.Table) -> tuple[str, ...]:
    """The parts of a table's name; none, if it is a function."""
    parts = table.parts if isinstance(table.this, (exp.Identifier, exp.Dot)) else []
    return tuple(each.name for each in parts)


def full_name(parts: tuple[str, ...], namespace: str) -> str:
    """The name as objects' names are compared."""
    whole = ".".join(map(quoted, parts))
    return f"{namespace.casefold()}.{whole}" if len(parts) == 1 and namespace else whole


def tables_of(scope: Scope) -> Iterator[tuple[str, exp.Table]]:
    """Alias and table, for each real table among the sources of a scope."""
    for alias, source in scope.sources.items():
        if isinstance(source, exp.Table) and table_parts(source):
            yield alias, source


def sources_of(scope: Scope) -> dict[str, exp.Table | Scope]:
    """The sources in FROM and JOIN, by alias; for a LATERAL, those before it."""
    if isinstance(scope.expression, exp.Lateral):
        return dict(scope.sources)
    return {name: scope.sources[name] for name, _ in scope.references if name in scope.sources}


def mentions(scope: Scope) -> Iterator[Mention]:
    """Every column that a scope names, and what queries inside of it name, for that may be its own too."""
    yield from _own(scope, frozenset())
    for child in (*scope.subquery_scopes, *scope.udtf_scopes):
        yield from _inside(child, frozenset())


def _inside(scope: Scope, outer: frozenset[str]) -> Iterator[Mention]:
    inner = outer | sources_of(scope).keys()
    yield from (each for each in _own(scope, inner) if each.parts != (STAR,))
    children = (scope.subquery_scopes, scope.udtf_scopes, scope.derived_table_scopes, scope.set_operation_scopes)
    for child in (child for each in (*children, scope.cte_scopes) for child in each):
        yield from _inside(child, inner)


def _own(scope: Scope, inner: frozenset[str]) -> Iterator[Mention]:
    for node in scope.walk():
        if isinstance(node, exp.Column):
            parts = tuple(STAR if isinstance(each, exp.Star) else each.name for each in node.parts)
            yield Mention(parts, inner)
        elif isinstance(node, exp.Star) and not isinstance(node.parent, exp.Column) and reads_columns(node):
            yield Mention((STAR,), inner)
        elif isinstance(node, exp.Join):
            yield from (Mention((each.name,), inner) for each in node.args.get("using") or ())


def reads_columns(star: exp.Star) -> bool:
    """Whether a star expands to columns: that of ``count(*)`` and of ``EXISTS (SELECT *)`` does not."""
    holder = star.parent
    if isinstance(holder, exp.Count):
        return star.args.get("except_") is not None
    return not (isinstance(holder, exp.Select) and isinstance(holder.parent, exp.Exists))


def column_of(mention: Mention, alias: str, table: exp.Table, scope: Scope) -> str | None:
    """The column of this table that a mention may mean, None if it can't mean any."""
    parts = mention.parts
    if len(parts) > 1 and parts[0] in mention.inner:
        return None
    length = _prefix(parts, alias, table)
    if length:
        return parts[length]
    aliases = (each.args.get("alias") for each in scope.expression.args.get("laterals") or ())
    if any(parts[0] == name.name for each in aliases if isinstance(each, exp.TableAlias) for name in each.columns):
        # A lateral view makes it; no table next to the view has a column of the same name.
        return None
    others = (each for each in sources_of(scope).items() if each[0] != alias)
    return None if any(_prefix(parts, name, source) for name, source in others) else parts[0]


def _prefix(parts: tuple[str, ...], alias: str, source: exp.Table | Scope) -> int:
    """How many of the parts name the source, before the one that names its column."""
    if len(parts) > 1 and parts[0] == alias:
        return 1
    if isinstance(source, exp.Table) and not source.alias:
        name = table_parts(source)
        for length in range(2, min(len(name), len(parts) - 1) + 1):
            if parts[:length] == name[-length:]:
                return length
    return 0


ColumnsOf = Callable[[str], tuple[str, ...] | None]
"""Columns of a table or view by its name as it is compared; None where they are not known."""
_NAME_THEM = "write them out, or name them in its alias: AS t(a, b)"


class UnknownColumnsError(QueryError):
    """The columns of something that the query reads are not known here."""


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
            theirs = {each.key for each in right}
            both = [identifier(each.name) for each in self.items if each.key in theirs]
            problem = "NATURAL JOIN joins by whatever columns both sides happen to have"
            self.items += right
            raise self.refusal(problem, f"write USING ({', '.join(both)})" if both else "write USING and the columns")
        if join is not None and join.kind.upper() in ("SEMI", "ANTI"):
            right = []
        if using and not self.unknown:
            keys = [name.casefold() for name in using]
            first = [Item(None, each.name) for key in keys for each in self.items if each.key == key]
            if len(first) != len(keys):
                raise QueryError(f"USING ({', '.join(using)}) needs one column of each name on each side")
            self.items = [*first, *(each for each in (*self.items, *right) if each.key not in keys)]
        else:
            self.items += right

    def refusal(self, problem: str, remedy: str) -> QueryError:
        """The error, as a :class:`UnknownColumnsError` where no column is known: the tables may all be others'."""
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
        """The columns that a star without a table's name expands to, in Spark's order.

        :raises QueryError: they are not known
        """
        return _without_excepted(self.items(scope), star)

    def qualified(self, scope: Scope, column: exp.Column) -> list[str]:
        """The columns of a star behind the name of a table."""
        name = ".".join(written(each) for each in column.parts[:-1])
        nodes = [each for each in _nodes(scope) if _names_it(column, each)]
        if len(nodes) != 1:
            raise QueryError(f"{name}.* is not a table of this SELECT", f"write the fields out: {name}.field, ...")
        items = [Item(None, each) for each in self.columns(scope, nodes[0])]
        return [item.name for item in _without_excepted(items, column.this)]

    def items(self, scope: Scope) -> list[Item]:
        """The columns of all sources.

        :raises UnknownColumnsError: not one of them is known
        :raises QueryError: not all of them are known, or two have one name
        """
        nodes = _nodes(scope)
        if not isinstance(scope.expression, exp.Select) or not nodes:
            raise QueryError("a star stands where there is no FROM", "write its columns out")
        row = _Row()
        for node in nodes:
            join = node.parent if isinstance(node.parent, exp.Join) else None
            try:
                found = [Item(_written_alias(node) or None, name) for name in self.columns(scope, node)]
            except UnknownColumnsError as error:
                row.unknown.append(error)
                found = []
            row.join(found, join)
        if row.unknown:
            raise row.refusal(row.unknown[0].problem, row.unknown[0].remedy + row.list())
        keys = [each.key for each in row.items]
        if any(each.source is None and keys.count(each.key) > 1 for each in row.items):
            raise QueryError("a star expands to two columns of one name", f"write them out{row.list()}")
        return [Item(None, each.name) for each in row.items] if len(nodes) == 1 else row.items

    def columns(self, scope: Scope, node: exp.Expr) -> tuple[str, ...]:
        """The columns of one source.

        :raises UnknownColumnsError: they are not known
        """
        if node.args.get("pivots") or node.args.get("joins"):
            raise QueryError("a star expands to a pivot, or to joins in brackets", "write its columns out")
        names = self._columns(scope, node)
        aliases = [written(each) for each in _alias_columns(node)]
        return _renamed(names, aliases, node.alias_or_name) if names is not None else tuple(aliases)

    def _columns(self, scope: Scope, node: exp.Expr) -> tuple[str, ...] | None:
        """The columns of a source; None if its alias names them all."""
        alias = node.alias_or_name
        if alias not in scope.sources or [name for name, _ in scope.references].count(alias) > 1:
            problem = f"it is not clear which table {alias or 'a star'} stands for"
            raise QueryError(problem, "give each an alias of its own")
        source = scope.sources[alias]
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


def _written_alias(node: exp.Expr) -> str:
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
        raise QueryError("a star expands to no column")
    return left


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
    parts: tuple[str, ...]
    aliased: bool
    fixed: bool


def replace_tables(query: str, namespace: str, replace: Callable[[NamedTable], str | None]) -> str:
    """The query with some tables' names replaced; nothing else is touched.

    :param namespace: of names that have none
    :param replace: what stands for a table's name from now on; None: the name
    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    places: dict[tuple[int, int], NamedTable] = {}
    for scope in scopes_of(query):
        for _, table in tables_of(scope):
            first, last = table.parts[0].meta, table.parts[-1].meta
            if "start" in first and "end" in last:
                span = (int(first["start"]), int(last["end"]) + 1)
                written = query[slice(*span)]
                parts = table_parts(table)
                fixed = bool(table.args.get("version") or table.args.get("when"))
                places[span] = NamedTable(full_name(parts, namespace), written, parts, bool(table.alias), fixed)
    for (start, end), named in sorted(places.items(), key=lambda each: each[0], reverse=True):
        put = replace(named)
        if put is not None:
            query = query[:start] + put + query[end:]
    return query


def at_snapshots(query: str, namespace: str, snapshots: Mapping[str, int]) -> str:
    """The query, which reads these tables at these snapshots, unless it says itself which one it reads.

    :param snapshots: by the table's name as it is compared
    """

    def pinned(table: NamedTable) -> str | None:
        snapshot = snapshots.get(table.name)
        return None if snapshot is None or table.fixed else f"{table.written} VERSION AS OF {snapshot}"

    return replace_tables(query, namespace, pinned)
