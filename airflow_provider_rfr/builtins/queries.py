"""Analysis of queries: the tables and columns that they read, their outputs and mistakes, and expanded stars.

A ``SELECT *`` is expanded so that a column that is added later changes no view by itself. Only the star is replaced;
the rest stays as its author wrote it, and that text is executed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins import sql
from airflow_provider_rfr.builtins.model import QUERIED, BuiltinObject, Dependency, Kind, namespace_of
from airflow_provider_rfr.builtins.sql import Name, Parts, full_name, identifier, scopes_of, table_parts
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError

ColumnsOf = Callable[[str], tuple[str, ...] | None]
"""A function that returns the columns of a table or view by its case-folded name; None if they are not known."""
_NAME_THEM: Final = "write them out, or name them in its alias: AS t(a, b)"


@dataclass(frozen=True, slots=True)
class _QuerySource:
    """A table, subquery or function that a SELECT reads.

    :ivar parts: parts of a table's name; empty for others
    :ivar unknown: the reason why the columns are not known
    """

    alias: str
    node: exp.Expr
    parts: Parts
    columns: tuple[Name, ...] = ()
    unknown: QueryError | None = None

    def prefix(self, parts: Parts) -> int:
        """Return how many leading parts of a column's name are the name of this source; 0 if it is another one's."""
        if len(parts) > 1 and parts[0] == self.alias:
            return 1
        # The catalog's name may be missing in the column's name or in the table's, so their common end is compared.
        for length in range(2, len(parts) if len(self.parts) > 1 and not self.node.alias else 0):
            both = min(length, len(self.parts))
            if parts[length - both : length] == self.parts[-both:]:
                return length
        return 0


class _Item(NamedTuple):
    """A column that a star expands to, with the alias of its source if it has to be qualified."""

    source: str | None
    name: Name

    def __str__(self) -> str:
        return ".".join(identifier(name) for name in (self.source, self.name.written) if name)


class _Scopes:
    """The SELECTs of one query, inner ones first, with their sources and outputs."""

    def __init__(self, query: str, columns_of: ColumnsOf, namespace: str) -> None:
        self.all = scopes_of(query)
        self.sources = cache(self._sources)
        self.outputs = cache(self._outputs)
        self._columns_of = columns_of
        self._namespace = namespace
        self._selects = {id(query.expression): query for query in self.all}

    def _sources(self, scope: Scope) -> tuple[_QuerySource, ...]:
        """Return the sources of a scope, in Spark's order; empty for a lateral view, whose SELECT has them as well."""
        references = [] if isinstance(scope.expression, exp.UDTF) else scope.references
        sources = []
        for alias, node in ((alias, node) for alias, node in references if alias in scope.sources):
            # A pivot over a WITH query looks like a table.
            is_named = node.text("db") or node.name not in scope.cte_sources
            parts = table_parts(node) if isinstance(scope.sources[alias], exp.Table) and is_named else ()
            try:
                sources.append(_QuerySource(alias, node, parts, self._columns(scope, alias, node, parts)))
            except QueryError as error:
                sources.append(_QuerySource(alias, node, parts, unknown=error))
        return tuple(sources)

    def _columns(self, scope: Scope, alias: str, node: exp.Expr, parts: Parts) -> tuple[Name, ...]:
        if node.args.get("pivots") or _place(node) is None:
            raise QueryError("a star expands to a pivot, or to joins in brackets", "write its columns out")
        if [name for name, _ in scope.references].count(alias) > 1:
            problem = f"it is not clear which table {alias or 'a star'} stands for"
            raise QueryError(problem, "give each an alias of its own")
        source, aliases = scope.sources[alias], _column_aliases(node)
        if isinstance(source, Scope) and not (isinstance(source.expression, exp.UDTF) and aliases):
            return _renamed(self.outputs(source), aliases, alias)
        name = full_name(parts, self._namespace)
        # With time travel, the table may have other columns.
        fixed = node.args.get("version") or node.args.get("when")
        names = self._columns_of(name) if name and not fixed else None
        if names is None and not aliases:
            raise QueryError(f"the columns of {name or 'a function'} are not known here", _NAME_THEM)
        return aliases if names is None else _renamed(tuple(map(Name, names)), aliases, alias)

    def _outputs(self, scope: Scope) -> tuple[Name, ...]:
        """Return the columns of a scope's result.

        :raises QueryError: a column has no name, or a star can't be expanded
        """
        # The scope by which a recursive WITH query reads itself lacks its aliases, so they come from the tree.
        holder = scope.expression.find_ancestor(exp.CTE) if scope.is_cte else scope.expression.parent
        aliases = _column_aliases(holder) if scope.is_cte or scope.outer_columns else ()
        query, outputs = scope.expression, list[Name]()
        while isinstance(query, (exp.SetOperation, exp.Subquery, exp.Lateral)):
            query = query.this
        if not isinstance(query, exp.Select):
            raise QueryError("the columns of a function are not known here", _NAME_THEM)
        for number, expression in enumerate(query.expressions, 1):
            names, star = _names_of(expression), expression.this if isinstance(expression, exp.Column) else expression
            if isinstance(star, exp.Star):
                names = [item.name for item in self.star(self._selects[id(query)], star)]
            elif not names:
                raise QueryError(f"column {number} of a SELECT has no name", "give it one: ... AS name")
            outputs += names
        return _renamed(tuple(outputs), aliases, "a subquery")

    def star(self, scope: Scope, star: exp.Star) -> list[_Item]:
        """Return the columns that a star, alone or behind a table's name, expands to, in Spark's order."""
        column, except_ = star.parent, star.args.get("except_") or ()
        if any(star.args.get(modifier) for modifier in ("replace", "rename", "ilike")):
            raise QueryError("a star has more behind it than EXCEPT", "write the columns out")
        if isinstance(column, exp.Column):
            parts = tuple(part.name for part in column.parts)
            matches = [source for source in self.sources(scope) if source.prefix(parts) == len(parts) - 1]
            if len(matches) != 1:
                table = ".".join(part.this.written for part in column.parts[:-1])
                raise QueryError(
                    f"{table}.* is not a table of this SELECT", f"write the fields out: {table}.field, ..."
                )
            if matches[0].unknown is not None:
                raise matches[0].unknown
            items = [_Item(None, output) for output in matches[0].columns]
        else:
            items = self.items(scope)
        names, left_out = [item.name for item in items], [column.name for column in except_]
        for left_column in except_:
            if (isinstance(left_column, exp.Column) and left_column.table) or left_column.name not in names:
                raise QueryError(f"EXCEPT names {left_column.name}, which is none of the star's columns")
        if not (left := [item for item in items if item.name not in left_out]):
            raise QueryError("a star expands to no column")
        return left

    def items(self, scope: Scope) -> list[_Item]:
        """Return the columns of all sources.

        :raises QueryError: there is a NATURAL JOIN, an unknown source, or two columns of one name
        """
        sources, items = self.sources(scope), list[_Item]()
        for source in sources:
            alias = source.alias.written if isinstance(source.alias, Name) and len(sources) > 1 else None
            items = _joined(items, [_Item(alias, name) for name in source.columns], _place(source.node))
        for source in sources:
            if source.unknown is not None:
                raise source.unknown
        names = [item.name for item in items]
        if len(sources) > 1 and any(item.source is None and names.count(item.name) > 1 for item in items):
            raise QueryError("a star expands to two columns of one name", "write them out")
        return items


def _place(node: exp.Expr) -> exp.Expr | None:
    """Return the JOIN, FROM or SELECT that reads a source; None for joins in parentheses, which may share one alias."""
    around = node if isinstance(node, exp.Table) else node.parent
    while isinstance(around, (exp.Table, exp.Subquery)):
        if around.args.get("joins"):
            return None
        around = around.parent
    return None if isinstance(around, exp.Join) and not isinstance(around.parent, exp.Select) else around


def _names_of(projection: exp.Expr) -> list[Name]:
    """Return the column names of an item of a SELECT; empty if Spark would generate one."""
    if isinstance(projection, exp.Aliases):
        return [expression.this for expression in projection.expressions]
    name = projection.output_name if isinstance(projection, (exp.Alias, exp.Column, exp.Dot)) else ""
    return [name] if isinstance(name, Name) else []


def _is_natural(node: exp.Expr | None) -> bool:
    return isinstance(node, exp.Join) and node.method.upper() == "NATURAL"


def _stands_for_columns(node: exp.Expr) -> bool:
    """Tell whether the node is a NATURAL JOIN, or a star that expands: not that of ``count(*)`` or ``EXISTS``."""
    if not isinstance(node, exp.Star):
        return _is_natural(node)
    if isinstance(node.parent, exp.Count):
        return node.args.get("except_") is not None
    return not (isinstance(node.parent, exp.Select) and isinstance(node.parent.parent, exp.Exists))


def _joined(left: list[_Item], right: list[_Item], join: exp.Expr | None) -> list[_Item]:
    """Return the columns of both sides of a join."""
    if _is_natural(join):
        theirs = {item.name for item in right}
        both = ", ".join(identifier(item.name.written) for item in left if item.name in theirs)
        problem = "NATURAL JOIN joins by whatever columns both sides happen to have"
        raise QueryError(problem, f"write USING ({both or 'the columns'})")
    if not isinstance(join, exp.Join):
        return [*left, *right]
    using = [column.this for column in join.args.get("using") or ()]
    first = [_Item(None, item.name) for name in using for item in left if item.name == name]
    rest = left if join.is_semi_or_anti_join else [*left, *right]
    return [*first, *(item for item in rest if item.name not in using)]


def _column_aliases(node: exp.Expr | None) -> tuple[Name, ...]:
    """Return the names that an alias gives to columns: ``AS t(a, b)``."""
    alias = node.args.get("alias") if node is not None else None
    return tuple(column.this for column in alias.columns) if isinstance(alias, exp.TableAlias) else ()


def _renamed(names: tuple[Name, ...], aliases: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    if aliases and len(aliases) != len(names):
        raise QueryError(f"{what} has {len(names)} columns, and {len(aliases)} names for them")
    return aliases or names


_NO_COLUMNS: Final = {
    *("current_date", "current_time", "current_timestamp", "localtimestamp", "current_user", "session_user", "user"),
    *("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond"),
    *("microsecond", "grouping__id", "all"),
}
"""Words that look like columns, and may be functions, units or keywords to Spark."""
_MANY: Final = (exp.Explode, exp.Inline, exp.Stack, exp.Anonymous)
"""Expressions that may return several columns, which Spark names."""


class _Reader:
    """The resolution of the column references of a query to their sources."""

    def __init__(self, scopes: _Scopes) -> None:
        # By the id() of a table's node: the parts of its name, and its columns that are used; * for all.
        self.used: dict[int, tuple[Parts, set[str]]] = {}
        # By position in the text: a column that no source has, as written, and the sources that could have it.
        self.missing: dict[int, tuple[str, Sequence[_QuerySource]]] = {}
        self._sources = scopes.sources
        for read in (source for scope in scopes.all for source in scopes.sources(scope) if source.parts):
            # A pivot groups by the columns that it does not name, and an alias t(a, b) needs all of them.
            whole = read.node.args.get("pivots") or read.node.alias_column_names
            self.used[id(read.node)] = read.parts, {"*"} if whole else set()
        for scope in scopes.all:
            self._read(scope)

    def _read(self, scope: Scope) -> None:
        levels, sources = [scope], self._sources(scope)
        while levels[-1].can_be_correlated and (outer := levels[-1].parent) is not None:
            levels.append(outer)
        for node in scope.walk(prune=lambda node: isinstance(node, exp.Hint)):
            if isinstance(node, exp.Column) and not isinstance(node.parent, exp.Star) and not _argument(node):
                self._column(node.parts, levels)
            elif _stands_for_columns(node) and not isinstance(node.parent, exp.Column):
                self._use(sources, "*")
            elif isinstance(node, exp.Join):
                for column in node.args.get("using") or ():
                    self._use(sources, column.name)
                    self._expect([column], 0, sources, levels)

    def _use(self, sources: Iterable[_QuerySource], column: str) -> None:
        for source in sources:
            if source.parts:
                self.used[id(source.node)][1].add(column)

    def _column(self, words: Sequence[exp.Expr], levels: Sequence[Scope]) -> None:
        parts = tuple(word.name for word in words)
        for sources in map(self._sources, levels):
            named = [(source, length) for source in sources if (length := source.prefix(parts))]
            for match, length in named:
                self._use([match], parts[length])
            if len(named) == 1:
                self._expect(words, named[0][1], [named[0][0]], levels)
            if named or any(parts[0] in source.columns for source in sources if not source.parts):
                return
            self._use(sources, parts[0])
        if isinstance(levels[0].expression, exp.Select):
            self._expect(words, 0, [source for level in levels for source in self._sources(level)], levels)

    def _expect(
        self, words: Sequence[exp.Expr], at: int, sources: Sequence[_QuerySource], levels: Sequence[Scope]
    ) -> None:
        """Record that the column ``words[at]`` is in none of the sources, if that is certain."""
        name, start = words[at].name, words[at].meta.get("start")
        if start is None or any(source.unknown or name in source.columns for source in sources):
            return
        # Spark and Iceberg add metadata columns that begin with an underscore. Spark names columns by expressions.
        if isinstance(words[-1], exp.Star) or name.startswith("_") or "(" in name:
            return
        if at:
            # The word that looks like a table's alias may be a column of a struct type.
            is_other = any(words[0].name in source.columns for level in levels for source in self._sources(level))
        else:
            is_other = name in _NO_COLUMNS or any(_may_have_name(level, name) for level in levels)
        if not is_other:
            self.missing[start] = words[at].this.written, sources


def _may_have_name(scope: Scope, name: str) -> bool:
    """Tell whether an item that a scope selects may have this name, by which other expressions there can use it."""
    selected = scope.expression.expressions if isinstance(scope.expression, exp.Select) else ()
    others = (projection for projection in selected if not isinstance(projection, exp.Column))
    return any(isinstance(projection, _MANY) or name in _names_of(projection) for projection in others)


def _argument(node: exp.Expr) -> Parts:
    """Return the parts of the table's name in ``f(TABLE(name))``, which looks like a column; empty for other nodes."""
    holder = node.parent
    if not isinstance(node, exp.Column) or not isinstance(holder, exp.Anonymous) or holder.name.upper() != "TABLE":
        return ()
    return tuple(part.name for part in node.parts)


class _Facts(NamedTuple):
    """The facts about a query that do not depend on the columns of tables.

    They are cached: parsing takes milliseconds, and a tree is too large to be kept for thousands of queries.
    """

    tables: tuple[tuple[Parts, Set[str]], ...]
    """The parts of each table's name, and its columns that are used there; ``*`` for all."""
    reads_tables_alone: bool
    has_stars: bool
    """True also for a NATURAL JOIN: the query's columns depend on those of its tables."""
    outputs: tuple[str, ...] | None
    """The query's columns as written; None: they depend on those of its tables, or one has no name."""


@lru_cache(maxsize=65_536)
def _facts_of(query: str) -> _Facts:
    scopes, outputs = _Scopes(query, lambda name: None, ""), None
    reader = _Reader(scopes)
    with suppress(QueryError):
        outputs = tuple(output.written for output in scopes.outputs(scopes.all[-1]))
    # Add tables that no scope has for a source: a missed table would be a missed dependency.
    tree = scopes.all[-1].expression.root()
    own = {node.alias for node in tree.find_all(exp.CTE)}
    for node in tree.find_all(exp.Table, exp.Column):
        parts = table_parts(node) or _argument(node)
        if parts and not isinstance(node.parent, exp.JoinHint) and (len(parts) > 1 or parts[0] not in own):
            reader.used.setdefault(id(node), (parts, {"*"}))
    tables_alone = all(source.parts for scope in scopes.all for source in scopes.sources(scope))
    has_stars = any(map(_stands_for_columns, tree.find_all(exp.Star, exp.Join)))
    return _Facts(tuple(reader.used.values()), tables_alone, has_stars, outputs)


def column_problems(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield line, column, problem and remedy for each column that a query names and that none of its sources has.

    An uncertain case yields nothing: Spark analyses each query again before a deploy changes anything.
    """
    facts = _facts_of(query)
    tables = ((columns_of(full_name(parts, namespace)), used) for parts, used in facts.tables)
    has_all = [valid is None or used <= {*map(str.casefold, valid)} for valid, used in tables]
    # The parser does not know the columns that a pipe returns. To resolve all columns again is slow.
    if (facts.reads_tables_alone and all(has_all)) or "|>" in query:
        return
    for start, (word, sources) in sorted(_Reader(_Scopes(query, columns_of, namespace)).missing.items()):
        names = [full_name(source.parts, namespace) for source in sources if source.parts]
        whose = f"{names[0]} has" if len(names) == len(sources) == 1 else "there is"
        valid = {name.written for source in sources for name in source.columns}
        line, column = query.count("\n", 0, start) + 1, start - query.rfind("\n", 0, start)
        yield line, column, f"{whose} no column {word}", suggestion(word, valid)


def dependencies(query: str, namespace: str, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """Return the tables and views that a query reads, sorted by name.

    A metadata table such as ``ops.runs.history`` counts as ``ops.runs`` if that is a ``known`` name.

    :raises QueryError: as :func:`parse_query`
    """
    columns_used = defaultdict[str, set[str]](set)
    for parts, used in _facts_of(query).tables:
        name, table = full_name(parts, namespace), full_name(parts[:-1], namespace)
        if len(parts) > 2 and name not in known and table in known:
            name, used = table, {"*"}
        columns_used[name] |= used
    return tuple(
        Dependency(name, None, None if "*" in used else tuple(sorted(used)))
        for name, used in sorted(columns_used.items())
    )


def object_reads(obj: BuiltinObject, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """Return the objects that an object reads: those in its query and its ``depends_on``, or the source of a sink.

    A field that belongs to another kind is ignored.

    :raises QueryError: as :func:`dependencies`; but a query that can't be parsed may have ``depends_on`` instead
    """
    if obj.sink is not None and obj.kind is Kind.SINK:
        columns = tuple(sorted(name.casefold() for name in obj.sink.columns)) or None
        return (Dependency(obj.sink.source.casefold(), None, columns),)
    reads = {name: Dependency(name) for name in map(str.casefold, obj.depends_on)}
    try:
        if obj.query and obj.kind in QUERIED:
            reads |= {
                dependency.name: dependency
                for dependency in dependencies(obj.query, namespace_of(obj.name), known=known)
            }
    except UnreadableQueryError:
        if not reads:
            raise
    return tuple(reads[name] for name in sorted(reads))


def unqualified(query: str) -> tuple[str, ...]:
    """Return the tables that a query names without a namespace; empty if it can't be parsed."""
    try:
        return tuple(sorted({full_name(parts, "") for parts, _ in _facts_of(query).tables if len(parts) == 1}))
    except UnreadableQueryError:
        return ()


def expand_stars(query: str, columns_of: ColumnsOf, namespace: str = "", *, order: Sequence[str] = ()) -> str:
    """Return the query with every star, except that of ``count(*)``, replaced by column names.

    ``NATURAL JOIN`` is refused, since it depends on columns that are not named.

    :param order: case-folded names, in whose order the columns of an outermost star are written
    :raises QueryError: a star can't be expanded; its remedy says how to write the query instead
    """
    if not _facts_of(query).has_stars:
        return query
    scopes, edits = _Scopes(query, columns_of, namespace), []
    places = {name: place for place, name in enumerate(order)}
    for scope in scopes.all:
        # The columns of inner queries may be used by position, so they are not reordered.
        is_outermost = scope.expression.find_ancestor(exp.Select, exp.CTE) is None
        for node in scope.walk():
            if _is_natural(node):
                scopes.items(scope)
            elif isinstance(node, exp.Star) and _stands_for_columns(node):
                items = scopes.star(scope, node)
                selected = node.parent if isinstance(node.parent, exp.Column) else node
                if is_outermost and selected.parent is scope.expression:
                    items.sort(key=lambda item: places.get(item.name, len(places)))
                edits.append(_edit(query, node, items))
    return sql.spliced(query, edits)


def _edit(query: str, star: exp.Star, items: Sequence[_Item]) -> tuple[int, int, str]:
    """Return the start and the end of a star in the text, and its replacement."""
    start, excepted, holder, between = star.meta.get("start"), star.args.get("except_"), star.parent, ", "
    if not isinstance(start, int) or query[start : start + 1] != "*":
        raise QueryError("a query without a SELECT of its own hides a star", "write SELECT and the columns")
    last = next(excepted[-1].find_all(exp.Identifier)).meta["end"] if excepted else None
    end = sql.without_comments(query).index(")", last) + 1 if last else start + 1
    if isinstance(holder, exp.Column):
        between = f", {query[holder.parts[0].meta['start'] : holder.parts[-2].meta['end'] + 1]}."
    return start, end, between.join(map(str, items))


def output_columns(query: str, columns_of: ColumnsOf, namespace: str = "") -> tuple[str, ...]:
    """Return the names of a query's columns, as their author wrote them.

    :raises QueryError: a column has no name, or a star stands for columns that are not known
    """
    if (outputs := _facts_of(query).outputs) is not None:
        return outputs
    scopes = _Scopes(query, columns_of, namespace)
    return tuple(output.written for output in scopes.outputs(scopes.all[-1]))


def is_star_last(query: str) -> bool:
    """Tell whether a new last column of the star's source becomes the last one of the result, and changes nothing else.

    The result is False where this is uncertain.
    """
    [*inner, scope] = scopes_of(query)
    select = scope.expression
    if inner or not isinstance(select, exp.Select) or select.args.get("distinct") or len(scope.references) != 1:
        return False
    [*before, last] = select.expressions
    return last.is_star and not any(projection.is_star for projection in before)


def declared_columns(objects: Iterable[BuiltinObject]) -> ColumnsOf:
    """Return a function that gives the columns of declared objects; a view that declares none has those of its query.

    Ask for inputs before you ask for their readers, or a long chain of views ends in a ``RecursionError``.
    """
    by_key = {obj.key: obj for obj in objects}

    @cache
    def columns_of(key: str) -> tuple[str, ...] | None:
        # Popped, so that views that read each other in a cycle find no columns; the rules report the cycle.
        obj = by_key.pop(key, None)
        if obj is None or obj.columns or obj.kind not in QUERIED or obj.query is None:
            return tuple(column.name for column in obj.columns) or None if obj is not None else None
        with suppress(QueryError):
            return output_columns(obj.query, columns_of, namespace_of(obj.name))
        return None

    return lambda name: columns_of(name.casefold())


def tables_below(reads: Iterable[str], of_view: Callable[[str], Iterable[str] | None]) -> tuple[str, ...]:
    """Return the sorted, case-folded names of the tables that are read directly or through views.

    :param of_view: is called once for each name; it returns the names that the view of that name reads, or None if the
        name is not a view's
    """
    waiting, reads_of = list(reads), dict[str, Iterable[str] | None]()
    # The loop appends to the list that it iterates.
    for name in waiting:
        if name not in reads_of:
            reads_of[name] = of_view(name)
            waiting += reads_of[name] or ()
    return tuple(sorted(name for name, inside in reads_of.items() if inside is None))


def declared_inputs(obj: BuiltinObject, declared: Mapping[str, BuiltinObject]) -> tuple[str, ...]:
    """Return the tables that a declared query reads, also through views; undeclared names in lower case."""

    def reads(reader: BuiltinObject) -> list[str]:
        return [read.name for read in object_reads(reader, known=declared)]

    views = {key: obj for key, obj in declared.items() if obj.kind is Kind.VIEW}
    names = tables_below(reads(obj), lambda name: reads(views[name]) if name in views else None)
    return tuple(declared[name].name if name in declared else name for name in names)
