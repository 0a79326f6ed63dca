"""What the SELECTs of a query read and give, and its text with other names of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from airflow_provider_rfr.builtins.sql.parse import Name, identifier, parse_query, spliced
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.types import quoted

Parts = tuple[str, ...]
"""The parts of a name, as they are compared."""
ColumnsOf = Callable[[str], tuple[str, ...] | None]
"""Columns of a table or view by its name as it is compared; None where they are not known."""


def scopes_of(query: str) -> list[Scope]:
    """The scopes of a query, inner ones first; the parsed query in them is shared."""
    try:
        return traverse_scope(parse_query(query))
    except SqlglotError as error:
        raise QueryError(str(error).lower(), "give each table and subquery an alias of its own") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None


def table_parts(node: exp.Expr) -> Parts:
    """The parts of a table's name; none of a function or a query."""
    if not isinstance(node, exp.Table) or not isinstance(node.this, (exp.Identifier, exp.Dot)):
        return ()
    return tuple(each.name for each in node.parts)


def full_name(parts: Parts, namespace: str) -> str:
    """The name as objects' names are compared."""
    whole = ".".join(map(quoted, parts))
    return f"{namespace.casefold()}.{whole}" if len(parts) == 1 and namespace else whole


def is_natural(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Join) and node.method.upper() == "NATURAL"


def reads_columns(node: exp.Expr) -> bool:
    """Whether it is a star that expands to columns: that of ``count(*)`` and of ``EXISTS (SELECT *)`` does not."""
    if not isinstance(node, exp.Star):
        return False
    if isinstance(node.parent, exp.Count):
        return node.args.get("except_") is not None
    return not (isinstance(node.parent, exp.Select) and isinstance(node.parent.parent, exp.Exists))


@dataclass(frozen=True, slots=True)
class Source:
    """A table, query or function that a SELECT reads.

    :ivar node: where it stands in the query
    :ivar parts: of a table's name; none for a query or a function
    :ivar columns: none, if they are not known
    :ivar unknown: why they are not known
    """

    alias: str
    node: exp.Expr
    parts: Parts
    columns: tuple[Name, ...]
    unknown: QueryError | None

    def prefix(self, parts: Parts) -> int:
        """How many parts of a column's name are the name of this source."""
        if len(parts) > 1 and parts[0] == self.alias:
            return 1
        # A catalog's name may come before it, in the query as well as in the name.
        for length in range(2, len(parts) if len(self.parts) > 1 and not self.node.alias else 0):
            both = min(length, len(self.parts))
            if parts[length - both : length] == self.parts[-both:]:
                return length
        return 0


@dataclass(frozen=True, slots=True)
class Item:
    """A column that a star expands to.

    :ivar source: alias of what it comes from; None where that need not be written
    """

    source: str | None
    name: Name

    def __str__(self) -> str:
        return ".".join(identifier(each) for each in (self.source, self.name.written) if each)


_NAME_THEM = "write them out, or name them in its alias: AS t(a, b)"


class Scopes:
    """The SELECTs of one query, what they read and what they give; each is looked at once.

    :ivar all: inner ones first
    """

    def __init__(self, query: str, columns_of: ColumnsOf, namespace: str) -> None:
        self.all = scopes_of(query)
        self._columns_of = columns_of
        self._namespace = namespace
        self._selects = {id(each.expression): each for each in self.all}
        self._sources: dict[int, tuple[Source, ...]] = {}
        self._outputs: dict[int, tuple[Name, ...]] = {}

    def sources(self, scope: Scope) -> tuple[Source, ...]:
        """What a scope reads, in Spark's order; nothing for a lateral view, whose SELECT reads all that as well."""
        if id(scope) not in self._sources:
            found = [] if isinstance(scope.expression, exp.UDTF) else scope.references
            self._sources[id(scope)] = tuple(self._source(scope, *each) for each in found if each[0] in scope.sources)
        return self._sources[id(scope)]

    def _source(self, scope: Scope, alias: str, node: exp.Expr) -> Source:
        # A pivot over what WITH names looks like a table.
        table = isinstance(scope.sources[alias], exp.Table) and (node.text("db") or node.name not in scope.cte_sources)
        parts = table_parts(node) if table else ()
        try:
            return Source(alias, node, parts, self._columns(scope, alias, node, parts), None)
        except QueryError as error:
            return Source(alias, node, parts, (), error)

    def _columns(self, scope: Scope, alias: str, node: exp.Expr, parts: Parts) -> tuple[Name, ...]:
        if node.args.get("pivots") or _place(node) is None:
            raise QueryError("a star expands to a pivot, or to joins in brackets", "write its columns out")
        if [name for name, _ in scope.references].count(alias) > 1:
            problem = f"it is not clear which table {alias or 'a star'} stands for"
            raise QueryError(problem, "give each an alias of its own")
        source, given = scope.sources[alias], _given(node)
        if isinstance(source, Scope) and not (isinstance(source.expression, exp.UDTF) and given):
            return _renamed(self.outputs(source), given, alias)
        name = full_name(parts, self._namespace)
        # At another snapshot it may have had other columns.
        fixed = node.args.get("version") or node.args.get("when")
        names = self._columns_of(name) if name and not fixed else None
        if names is None and not given:
            remedy = "write them out" if name else _NAME_THEM
            raise QueryError(f"the columns of {name or 'a function'} are not known here", remedy)
        return given if names is None else _renamed(tuple(map(Name, names)), given, alias)

    def outputs(self, scope: Scope) -> tuple[Name, ...]:
        """The columns of a scope's result; refuses one without a name, and a star that can't be written out."""
        if id(scope) not in self._outputs:
            # A recursive query reads itself by a scope that knows nothing of its names.
            holder = scope.expression.find_ancestor(exp.CTE) if scope.is_cte else scope.expression.parent
            given = _given(holder) if scope.is_cte or scope.outer_columns else ()
            self._outputs[id(scope)] = _renamed(tuple(self._names(scope.expression)), given, "a subquery")
        return self._outputs[id(scope)]

    def _names(self, query: exp.Expr) -> Iterator[Name]:
        while isinstance(query, (exp.SetOperation, exp.Subquery, exp.Lateral)):
            query = query.this
        if not isinstance(query, exp.Select):
            raise QueryError("the columns of a function are not known here", _NAME_THEM)
        for number, each in enumerate(query.expressions, 1):
            found, star = names_of(each), each.this if isinstance(each, exp.Column) else each
            if isinstance(star, exp.Star):
                found = [item.name for item in self.star(self._selects[id(query)], star)]
            elif not found:
                raise QueryError(f"column {number} of a SELECT has no name", "give it one: ... AS name")
            yield from found

    def star(self, scope: Scope, star: exp.Star) -> list[Item]:
        """The columns that a star, alone or behind a table's name, expands to, in Spark's order."""
        column, except_ = star.parent, star.args.get("except_") or ()
        if star.args.get("replace") or star.args.get("rename") or star.args.get("ilike"):
            raise QueryError("a star has more behind it than EXCEPT", "write the columns out")
        items = self._of_table(scope, column) if isinstance(column, exp.Column) else self.items(scope)
        names = [each.name for each in items]
        for each in except_:
            if (isinstance(each, exp.Column) and each.table) or each.name not in names:
                raise QueryError(f"EXCEPT names {each.name}, which is none of the star's columns")
        if not (left := [item for item in items if item.name not in [each.name for each in except_]]):
            raise QueryError("a star expands to no column")
        return left

    def _of_table(self, scope: Scope, column: exp.Column) -> list[Item]:
        parts = tuple(each.name for each in column.parts)
        found = [each for each in self.sources(scope) if each.prefix(parts) == len(parts) - 1]
        if len(found) != 1:
            name = ".".join(each.this.written for each in column.parts[:-1])
            raise QueryError(f"{name}.* is not a table of this SELECT", f"write the fields out: {name}.field, ...")
        if found[0].unknown is not None:
            raise found[0].unknown
        return [Item(None, each) for each in found[0].columns]

    def items(self, scope: Scope) -> list[Item]:
        """The columns of all sources; refuses an unknown one, and two of one name."""
        sources, items = self.sources(scope), list[Item]()
        if not sources:
            raise QueryError("a star stands where there is no FROM", "write its columns out")
        for each in sources:
            alias = each.alias.written if isinstance(each.alias, Name) and len(sources) > 1 else None
            items = _joined(items, [Item(alias, name) for name in each.columns], _place(each.node))
        known = f"known are {', '.join(map(str, items))}" if items else ""
        if unknown := [each.unknown for each in sources if each.unknown is not None]:
            raise QueryError(unknown[0].problem, "; ".join(filter(None, [unknown[0].remedy, known])))
        names = [each.name for each in items]
        if len(sources) > 1 and any(each.source is None and names.count(each.name) > 1 for each in items):
            raise QueryError("a star expands to two columns of one name", f"write them out; {known}")
        return items


def _place(node: exp.Expr) -> exp.Expr | None:
    """The JOIN, FROM or SELECT that reads a source; None for joins in brackets, which may have an alias together."""
    around = node if isinstance(node, exp.Table) else node.parent
    while isinstance(around, (exp.Table, exp.Subquery)):
        if around.args.get("joins"):
            return None
        around = around.parent
    return None if isinstance(around, exp.Join) and not isinstance(around.parent, exp.Select) else around


def names_of(projection: exp.Expr) -> list[Name]:
    """The names of an expression of a SELECT; none, if Spark would make one."""
    if isinstance(projection, exp.Aliases):
        return [each.this for each in projection.expressions]
    name = projection.output_name if isinstance(projection, (exp.Alias, exp.Column, exp.Dot)) else ""
    return [name] if isinstance(name, Name) else []


def _joined(left: list[Item], right: list[Item], join: exp.Expr | None) -> list[Item]:
    """The columns of both sides of a join."""
    if is_natural(join):
        theirs = {each.name for each in right}
        both = ", ".join(identifier(each.name.written) for each in left if each.name in theirs)
        remedy = f"write USING ({both})" if both else "write USING and the columns"
        raise QueryError("NATURAL JOIN joins by whatever columns both sides happen to have", remedy)
    if not isinstance(join, exp.Join):
        return [*left, *right]
    using = [each.this for each in join.args.get("using") or ()]
    first = [Item(None, each.name) for name in using for each in left if each.name == name]
    rest = left if join.is_semi_or_anti_join else [*left, *right]
    return [*first, *(each for each in rest if each.name not in using)]


def _given(node: exp.Expr | None) -> tuple[Name, ...]:
    """The names that an alias gives to columns: ``AS t(a, b)``."""
    alias = node.args.get("alias") if node is not None else None
    return tuple(each.this for each in alias.columns) if isinstance(alias, exp.TableAlias) else ()


def _renamed(names: tuple[Name, ...], given: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    if given and len(given) != len(names):
        raise QueryError(f"{what} has {len(names)} columns, and {len(given)} names for them")
    return given or names


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table where a query names it.

    :ivar name: as objects' names are compared, as are its ``parts``
    :ivar written: as the author wrote it
    :ivar aliased: it has a name of its own in the query
    """

    name: str
    written: str
    parts: Parts
    aliased: bool


def replace_tables(query: str, namespace: str, replace: Callable[[NamedTable], str | None]) -> str:
    """The query with some tables' names replaced; nothing else is touched.

    :param replace: what stands for a table's name from now on; None: the name
    :raises QueryError: it can't be parsed
    """
    places: dict[tuple[int, int], NamedTable] = {}
    for table in (each for scope in scopes_of(query) for each in scope.sources.values()):
        if isinstance(table, exp.Table) and (parts := table_parts(table)):
            start, end = table.parts[0].meta.get("start"), table.parts[-1].meta.get("end")
            if start is not None and end is not None:
                text, name = query[start : end + 1], full_name(parts, namespace)
                places[start, end + 1] = NamedTable(name, text, parts, bool(table.alias))
    edits = ((*place, replace(table)) for place, table in places.items())
    return spliced(query, ((start, end, put) for start, end, put in edits if put is not None))
