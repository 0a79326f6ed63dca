"""What a query reads and returns, its mistakes, and its text with the stars written out.

Facts that do not depend on the columns of tables are cached: parsing takes milliseconds, and a tree is too large to be
kept for thousands of queries.

A ``SELECT *`` is written out so that a column that is added later changes no view by itself. Only the star is
replaced; the rest stays as its author wrote it, and that text is executed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.spec import QUERIED, BuiltinObject, Dependency, namespace_of, nearest
from airflow_provider_rfr.builtins.sql.parse import canonical_sql, without_comments
from airflow_provider_rfr.builtins.sql.scopes import (
    ColumnsOf,
    Outputs,
    Parts,
    full_name,
    is_natural,
    names_of,
    reads_columns,
    scopes_of,
    table_parts,
    written,
)
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError


@dataclass(frozen=True, slots=True)
class _Facts:
    """What can be said of a query where the columns of tables are not known.

    :ivar tables: the parts of each table's name where it is read, and the columns of it that are used there, as they
        are compared; None: all, or it can't be known
    :ivar plain: it reads tables alone, no subquery and no function
    :ivar starred: its columns depend on those of its tables, by a star or a NATURAL JOIN
    :ivar outputs: the names of its columns as their author wrote them; None: they depend on those of its tables, or
        one has no name
    """

    tables: tuple[tuple[Parts, tuple[str, ...] | None], ...]
    plain: bool
    starred: bool
    outputs: tuple[str, ...] | None


@lru_cache(maxsize=65_536)
def _facts_of(query: str) -> _Facts:
    """The facts of a query.

    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    scopes, outputs = scopes_of(query), None
    # Fills the cache of canonical texts while the tokens of this query are still cached.
    canonical_sql(query)
    reader = _Reader(scopes, Outputs(lambda name: None, ""))
    if not reader.starred:
        with suppress(QueryError):
            outputs = reader.outputs.of(scopes[-1])
    # No table may be missed, also if no scope has it for a source.
    tree = scopes[-1].expression.root()
    own = {each.alias for each in tree.find_all(exp.CTE)}
    for node in tree.find_all(exp.Table, exp.Column):
        parts = table_parts(node) or _argument(node)
        if parts and not isinstance(node.parent, exp.JoinHint) and (len(parts) > 1 or parts[0] not in own):
            reader.used.setdefault(id(node), (parts, {"*"}))
    tables = ((parts, None if "*" in used else tuple(sorted(used))) for parts, used in reader.used.values())
    return _Facts(tuple(tables), reader.plain, reader.starred, outputs)


def _argument(node: exp.Expr) -> Parts:
    """The parts of the table's name in ``f(TABLE(name))``, which looks like a column; none for another one."""
    holder = node.parent
    if not isinstance(node, exp.Column) or not isinstance(holder, exp.Anonymous) or holder.name.upper() != "TABLE":
        return ()
    return tuple(each.name for each in node.parts)


@dataclass(frozen=True, slots=True)
class _Source:
    """Something that a scope reads.

    :ivar parts: of a table's name; none for a query or a function
    :ivar columns: as their author wrote them, by the names that are compared; None: they are not known
    """

    alias: str
    table: exp.Expr
    parts: Parts
    columns: Mapping[str, str] | None

    def prefix(self, parts: Parts) -> int:
        """How many of the parts name it, before the one that names its column."""
        if len(parts) > 1 and parts[0] == self.alias:
            return 1
        # A catalog's name may come before it, in the query as well as in the name.
        for length in range(2, len(parts) if len(self.parts) > 1 and not self.table.alias else 0):
            both = min(length, len(self.parts))
            if parts[length - both : length] == self.parts[-both:]:
                return length
        return 0


_NO_COLUMNS: Final = {
    *("current_date", "current_time", "current_timestamp", "localtimestamp", "current_user", "session_user", "user"),
    *("year", "quarter", "month", "week", "day", "dayofyear", "hour", "minute", "second", "millisecond"),
    *("microsecond", "grouping__id", "all"),
}
"""Words that may stand where a column does, and be something else to Spark."""
_MANY = (exp.Explode, exp.Inline, exp.Stack, exp.Anonymous)
"""What may give several columns, which Spark names."""


class _Reader:
    """Finds out whose the columns are that a query names.

    :ivar used: by a table's id: the parts of its name, and the columns of it that are used; ``*`` for all
    :ivar missing: by its place in the text: a column that nothing has, as it is written, and where it was looked for
    :ivar plain: only tables are read
    :ivar starred: there is a star, or a NATURAL JOIN
    """

    def __init__(self, scopes: Iterable[Scope], outputs: Outputs) -> None:
        self.outputs = outputs
        self.used: dict[int, tuple[Parts, set[str]]] = {}
        self.missing: dict[int, tuple[str, Sequence[_Source]]] = {}
        self.plain = True
        self.starred = False
        self._known: dict[int, tuple[_Source, ...]] = {}
        for scope in scopes:
            self._read(scope)

    def _read(self, scope: Scope) -> None:
        levels, own = [scope], self._sources(scope)
        while levels[-1].can_be_correlated and (outer := levels[-1].parent) is not None:
            levels.append(outer)
        for node in scope.walk(prune=lambda each: isinstance(each, exp.Hint)):
            if isinstance(node, exp.Column) and not isinstance(node.parent, exp.Star) and not _argument(node):
                self._column(node.parts, levels)
            elif is_natural(node) or reads_columns(node):
                self.starred = True
                if not isinstance(node.parent, exp.Column):
                    self._use(own, "*")
            elif isinstance(node, exp.Join):
                for each in node.args.get("using") or ():
                    self._use(own, each.name)
                    self._expect([each], 0, own, levels)

    def _sources(self, scope: Scope) -> tuple[_Source, ...]:
        """What a scope reads; nothing for a lateral view, for its query reads all that as well."""
        if id(scope) not in self._known:
            nodes = {} if isinstance(scope.expression, exp.UDTF) else dict(scope.references)
            found = (self._source(scope, alias, nodes.get(alias)) for alias in scope.sources if nodes)
            self._known[id(scope)] = tuple(each for each in found if each is not None)
        return self._known[id(scope)]

    def _source(self, scope: Scope, alias: str, node: exp.Expr | None) -> _Source | None:
        table, parts = scope.sources[alias], Parts()
        # A pivot over what WITH names looks like a table.
        if isinstance(table, exp.Table) and (table.db or table.name not in scope.cte_sources):
            node, parts = table, table_parts(table)
        if node is None:
            return None
        if parts:
            # Columns that are not named matter, too, where they make the groups of a pivot.
            whole = node.args.get("pivots") or node.alias_column_names
            self.used.setdefault(id(node), (parts, {"*"} if whole else set()))
        columns, self.plain = None, self.plain and bool(parts)
        with suppress(QueryError):
            columns = {each.casefold(): each for each in self.outputs.columns(scope, node, alias)}
        return _Source(node.alias_or_name if parts else alias, node, parts, columns)

    def _use(self, sources: Iterable[_Source], column: str) -> None:
        for each in sources:
            if each.parts:
                self.used[id(each.table)][1].add(column)

    def _column(self, words: Sequence[exp.Expr], levels: Sequence[Scope]) -> None:
        parts = tuple("*" if isinstance(each, exp.Star) else each.name for each in words)
        for level in levels:
            sources = self._sources(level)
            named = [(each, length) for each in sources if (length := each.prefix(parts))]
            for each, length in named:
                self._use([each], parts[length])
            if len(named) == 1:
                self._expect(words, named[0][1], [named[0][0]], levels)
            if named or any(parts[0] in (each.columns or ()) for each in sources if not each.parts):
                return
            self._use(sources, parts[0])
        if isinstance(levels[0].expression, exp.Select):
            self._expect(words, 0, [each for level in levels for each in self._sources(level)], levels)

    def _expect(self, words: Sequence[exp.Expr], at: int, sources: Sequence[_Source], levels: Sequence[Scope]) -> None:
        """Note that a column is missing, if that is sure.

        :param at: which of the words is the column
        :param sources: one of which has it
        """
        name, start = words[at].name, words[at].meta.get("start")
        if start is None or any(each.columns is None or name in each.columns for each in sources):
            return
        # Spark and Iceberg add columns that begin with an underscore, and name others by their expressions.
        if isinstance(words[at], exp.Star) or isinstance(words[-1], exp.Star) or name.startswith("_") or "(" in name:
            return
        around = [each for level in levels for each in self._sources(level)]
        # What looks like an alias may be a struct.
        if at and any(words[0].name in (each.columns or ()) for each in around):
            return
        if not at and (name in _NO_COLUMNS or any(_gives(level, name) for level in levels)):
            return
        self.missing[start] = written(words[at]), sources


def _gives(scope: Scope, name: str) -> bool:
    """Whether what a scope selects may be called so; its other expressions can use that name."""
    selected = scope.expression.expressions if isinstance(scope.expression, exp.Select) else ()
    given = (each for each in selected if not isinstance(each, exp.Column))
    return any(isinstance(each, _MANY) or name in [word.name for word in names_of(each)] for each in given)


@dataclass(frozen=True, slots=True)
class QueryProblem:
    """A mistake in a query.

    :ivar line: in its text, from 1, as is ``column``
    """

    line: int
    column: int
    problem: str
    remedy: str


def query_problems(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[QueryProblem]:
    """Columns that a query asks for, and that nothing it reads has.

    Where that is not sure, nothing is said: Spark looks at each query again before a deploy changes anything.

    :param columns_of: None for what is not known here
    :raises QueryError: as :func:`dependencies`
    """
    facts = _facts_of(query)
    tables = [(columns_of(full_name(parts, namespace)), used) for parts, used in facts.tables]
    if facts.plain and all(used is not None and _has(columns, used) for columns, used in tables):
        # Saves parsing it again, which is what costs.
        return
    missing = _Reader(scopes_of(query), Outputs(columns_of, namespace)).missing
    # What comes out of a pipe is not known to the parser.
    for start, (word, sources) in sorted(missing.items()) if "|>" not in query else ():
        names = [full_name(each.parts, namespace) for each in sources if each.parts]
        whose = f"{names[0]} has" if len(names) == len(sources) == 1 else "there is"
        known = {name for each in sources for name in (each.columns or {}).values()}
        line, column = query.count("\n", 0, start) + 1, start - query.rfind("\n", 0, start)
        yield QueryProblem(line, column, f"{whose} no column {word}", nearest(word, known))


def _has(columns: Sequence[str] | None, used: Sequence[str]) -> bool:
    return columns is None or {*used}.issubset(map(str.casefold, columns))


def dependencies(query: str, namespace: str, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """What a query reads, sorted by name.

    :param namespace: of names that have none
    :param known: names of tables, as they are compared. Of ``ops.runs.history`` it is ``ops.runs`` that is read, if
        that one is known
    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    found: dict[str, set[str] | None] = {}
    for parts, used in _facts_of(query).tables:
        name, table = full_name(parts, namespace), full_name(parts[:-1], namespace)
        if len(parts) > 2 and name not in known and table in known:
            name, used = table, None
        before = found.setdefault(name, set())
        found[name] = None if before is None or used is None else before | {*used}
    columns = {name: None if used is None else tuple(sorted(used)) for name, used in sorted(found.items())}
    return tuple(Dependency(name, None, used) for name, used in columns.items())


def object_reads(obj: BuiltinObject, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """What an object reads: by its query, its ``depends_on``, or as a sink.

    :raises QueryError: as :func:`dependencies`; a query that can't be parsed is taken to read what ``depends_on`` says
    """
    if obj.sink is not None:
        columns = tuple(sorted(name.casefold() for name in obj.sink.columns)) or None
        return (Dependency(obj.sink.source.casefold(), None, columns),)
    found = {name.casefold(): Dependency(name.casefold()) for name in obj.depends_on}
    try:
        reads = dependencies(obj.query, namespace_of(obj.name), known=known) if obj.query is not None else ()
    except UnreadableQueryError:
        if not found:
            raise
        reads = ()
    found.update({each.name: each for each in reads})
    return tuple(found[name] for name in sorted(found))


def unqualified(query: str) -> tuple[str, ...]:
    """Tables that a query names without a namespace; none, if it can't be parsed."""
    try:
        return tuple(sorted({full_name(parts, "") for parts, _ in _facts_of(query).tables if len(parts) == 1}))
    except UnreadableQueryError:
        return ()


def expand_stars(query: str, columns_of: ColumnsOf, namespace: str = "") -> str:
    """The query with every star replaced by column names, except that of ``count(*)``.

    ``NATURAL JOIN`` is refused as well, since it depends on columns that are not named.

    :param columns_of: the columns that are recorded, or declared, by name as it is compared
    :param namespace: of tables that are named without one
    :raises QueryError: a star can't be written out; what to write instead is its remedy
    """
    if not _facts_of(query).starred:
        return query
    outputs = Outputs(columns_of, namespace)
    edits = []
    for scope in scopes_of(query):
        for node in scope.walk():
            if is_natural(node):
                outputs.items(scope)
            elif isinstance(node, exp.Star) and reads_columns(node):
                edits.append(_edit(query, scope, node, outputs))
    # From the end, so that the places before an edit stay valid.
    for start, end, text in sorted(edits, reverse=True):
        query = query[:start] + text + query[end:]
    return query


def _edit(query: str, scope: Scope, star: exp.Star, outputs: Outputs) -> tuple[int, int, str]:
    """The place of a star in the text, and what comes there."""
    start, excepted, between = star.meta.get("start"), star.args.get("except_"), ", "
    if not isinstance(start, int) or query[start : start + 1] != "*":
        raise QueryError("a query without a SELECT of its own hides a star", "write SELECT and the columns")
    last = next(excepted[-1].find_all(exp.Identifier)).meta["end"] if excepted else None
    end = without_comments(query).index(")", last) + 1 if last else start + 1
    holder = star.parent
    if isinstance(holder, exp.Column):
        between = f", {query[holder.parts[0].meta['start'] : holder.parts[-2].meta['end'] + 1]}."
    items = outputs.star(scope, holder if isinstance(holder, exp.Column) else star)
    return start, end, between.join(map(str, items))


def output_columns(query: str, columns_of: ColumnsOf, namespace: str = "") -> tuple[str, ...]:
    """The names of a query's columns, as their author wrote them.

    :raises QueryError: one has no name, or what a star stands for is not known
    """
    found = _facts_of(query).outputs
    return Outputs(columns_of, namespace).of(scopes_of(query)[-1]) if found is None else found


def declared_columns(objects: Iterable[BuiltinObject]) -> ColumnsOf:
    """The columns of declared objects; those of a view that names none are those of its query.

    Ask for what is read before you ask for its readers, or a long chain of views ends in a ``RecursionError``.
    """
    by_key = {each.key: each for each in objects}
    known: dict[str, tuple[str, ...] | None] = {}

    def columns_of(name: str) -> tuple[str, ...] | None:
        key = name.casefold()
        if key not in known:
            # Views in a circle have no columns; the rules report the circle.
            known[key], obj = None, by_key.get(key)
            if obj is not None and obj.columns:
                known[key] = tuple(each.name for each in obj.columns)
            elif obj is not None and obj.kind in QUERIED and obj.query is not None:
                with suppress(QueryError):
                    known[key] = output_columns(obj.query, columns_of, namespace_of(obj.name))
        return known[key]

    return columns_of
