"""What a query reads and returns, its mistakes, and its text with the stars written out.

A ``SELECT *`` is written out so that a column that is added later changes no view by itself. Only the star is
replaced; the rest stays as its author wrote it, and that text is executed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.spec import QUERIED, BuiltinObject, Dependency, Kind, namespace_of, nearest
from airflow_provider_rfr.builtins.sql.parse import Flaw, canonical_sql, spliced, without_comments
from airflow_provider_rfr.builtins.sql.scopes import (
    ColumnsOf,
    Item,
    Parts,
    Scopes,
    Source,
    full_name,
    is_natural,
    names_of,
    reads_columns,
    table_parts,
)
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError


@dataclass(frozen=True, slots=True)
class _Facts:
    """What can be said of a query without knowing the columns of tables. It is cached: parsing takes milliseconds, and
    a tree is too large to be kept for thousands of queries.

    :ivar tables: each table where it is read: the parts of its name, and its columns that are used there; None: all
    :ivar plain: it reads tables alone, no subquery and no function
    :ivar starred: its columns depend on those of its tables, by a star or a NATURAL JOIN
    :ivar outputs: the names of its columns as written; None: they depend on those of its tables, or one has no name
    """

    tables: tuple[tuple[Parts, tuple[str, ...] | None], ...]
    plain: bool
    starred: bool
    outputs: tuple[str, ...] | None


@lru_cache(maxsize=65_536)
def _facts_of(query: str) -> _Facts:
    scopes, outputs = Scopes(query, lambda name: None, ""), None
    # Fills the cache of canonical texts while the tokens of this query are still cached.
    canonical_sql(query)
    reader = _Reader(scopes)
    with suppress(QueryError):
        outputs = tuple(each.written for each in scopes.outputs(scopes.all[-1]))
    # No table may be missed, also if no scope has it for a source.
    tree = scopes.all[-1].expression.root()
    own = {each.alias for each in tree.find_all(exp.CTE)}
    for node in tree.find_all(exp.Table, exp.Column):
        parts = table_parts(node) or _argument(node)
        if parts and not isinstance(node.parent, exp.JoinHint) and (len(parts) > 1 or parts[0] not in own):
            reader.used.setdefault(id(node), (parts, {"*"}))
    tables = ((parts, None if "*" in used else tuple(sorted(used))) for parts, used in reader.used.values())
    plain = all(each.parts for scope in scopes.all for each in scopes.sources(scope))
    return _Facts(tuple(tables), plain, reader.starred, outputs)


def _argument(node: exp.Expr) -> Parts:
    """The parts of the table's name in ``f(TABLE(name))``, which looks like a column; none for another one."""
    holder = node.parent
    if not isinstance(node, exp.Column) or not isinstance(holder, exp.Anonymous) or holder.name.upper() != "TABLE":
        return ()
    return tuple(each.name for each in node.parts)


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
    :ivar missing: by its place in the text: a column that nothing has, as written, and where it was looked for
    :ivar starred: there is a star, or a NATURAL JOIN
    """

    def __init__(self, scopes: Scopes) -> None:
        self.used: dict[int, tuple[Parts, set[str]]] = {}
        self.missing: dict[int, tuple[str, Sequence[Source]]] = {}
        self.starred = False
        self._sources = scopes.sources
        for scope in scopes.all:
            for each in scopes.sources(scope):
                # Columns that are not named matter, too, where they make the groups of a pivot.
                whole = each.node.args.get("pivots") or each.node.alias_column_names
                if each.parts:
                    self.used[id(each.node)] = each.parts, {"*"} if whole else set()
        for scope in scopes.all:
            self._read(scope)

    def _read(self, scope: Scope) -> None:
        levels = [scope]
        while levels[-1].can_be_correlated and (outer := levels[-1].parent) is not None:
            levels.append(outer)
        for node in scope.walk(prune=lambda each: isinstance(each, exp.Hint)):
            if isinstance(node, exp.Column) and not isinstance(node.parent, exp.Star) and not _argument(node):
                self._column(node.parts, levels)
            elif is_natural(node) or reads_columns(node):
                self.starred = True
                if not isinstance(node.parent, exp.Column):
                    self._use(self._sources(scope), "*")
            elif isinstance(node, exp.Join):
                for each in node.args.get("using") or ():
                    self._use(self._sources(scope), each.name)
                    self._expect([each], 0, self._sources(scope), levels)

    def _use(self, sources: Iterable[Source], column: str) -> None:
        for each in sources:
            if each.parts:
                self.used[id(each.node)][1].add(column)

    def _column(self, words: Sequence[exp.Expr], levels: Sequence[Scope]) -> None:
        parts = tuple(each.name for each in words)
        for sources in map(self._sources, levels):
            named = [(each, length) for each in sources if (length := each.prefix(parts))]
            for each, length in named:
                self._use([each], parts[length])
            if len(named) == 1:
                self._expect(words, named[0][1], [named[0][0]], levels)
            if named or any(parts[0] in each.columns for each in sources if not each.parts):
                return
            self._use(sources, parts[0])
        if isinstance(levels[0].expression, exp.Select):
            self._expect(words, 0, [each for level in levels for each in self._sources(level)], levels)

    def _expect(self, words: Sequence[exp.Expr], at: int, sources: Sequence[Source], levels: Sequence[Scope]) -> None:
        """Note that a column is missing, if that is sure.

        :param at: which of the words is the column
        :param sources: one of which has it
        """
        name, start = words[at].name, words[at].meta.get("start")
        if start is None or any(each.unknown or name in each.columns for each in sources):
            return
        # Spark and Iceberg add columns that begin with an underscore, and name others by their expressions.
        if isinstance(words[-1], exp.Star) or name.startswith("_") or "(" in name:
            return
        # What looks like an alias may be a struct.
        if at and any(words[0].name in each.columns for level in levels for each in self._sources(level)):
            return
        if at or not (name in _NO_COLUMNS or any(_gives(level, name) for level in levels)):
            self.missing[start] = words[at].this.written, sources


def _gives(scope: Scope, name: str) -> bool:
    """Whether what a scope selects may be called so; its other expressions can use that name."""
    selected = scope.expression.expressions if isinstance(scope.expression, exp.Select) else ()
    given = (each for each in selected if not isinstance(each, exp.Column))
    return any(isinstance(each, _MANY) or name in names_of(each) for each in given)


def query_flaws(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[Flaw]:
    """Columns that a query asks for, and that nothing it reads has.

    Where that is not sure, nothing is said: Spark looks at each query again before a deploy changes anything.
    """
    facts = _facts_of(query)
    tables = [(columns_of(full_name(parts, namespace)), used) for parts, used in facts.tables]
    has_all = (known is None or (used is not None and {*used} <= {*map(str.casefold, known)}) for known, used in tables)
    if facts.plain and all(has_all):
        # Saves parsing it again, which is what costs.
        return
    missing = _Reader(Scopes(query, columns_of, namespace)).missing
    # What comes out of a pipe is not known to the parser.
    for start, (word, sources) in sorted(missing.items()) if "|>" not in query else ():
        names = [full_name(each.parts, namespace) for each in sources if each.parts]
        whose = f"{names[0]} has" if len(names) == len(sources) == 1 else "there is"
        known = {name.written for each in sources for name in each.columns}
        line, column = query.count("\n", 0, start) + 1, start - query.rfind("\n", 0, start)
        yield Flaw(line, f"{whose} no column {word}", nearest(word, known), column)


def dependencies(query: str, namespace: str, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """What a query reads, sorted by name.

    :param namespace: of names that have none
    :param known: names of tables, as they are compared; of ``ops.runs.history``, ``ops.runs`` is read if it is known
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
    return tuple(
        Dependency(name, None, None if used is None else tuple(sorted(used))) for name, used in sorted(found.items())
    )


def object_reads(obj: BuiltinObject, *, known: Container[str] = ()) -> tuple[Dependency, ...]:
    """What an object reads: by its query, its ``depends_on``, or as a sink; a field of another kind counts for nothing.

    :raises QueryError: as :func:`dependencies`; but a query that can't be parsed reads what ``depends_on`` names
    """
    if obj.sink is not None and obj.kind is Kind.SINK:
        columns = tuple(sorted(name.casefold() for name in obj.sink.columns)) or None
        return (Dependency(obj.sink.source.casefold(), None, columns),)
    found = {name: Dependency(name) for name in map(str.casefold, obj.depends_on)}
    try:
        if obj.query and obj.kind in QUERIED:
            found |= {each.name: each for each in dependencies(obj.query, namespace_of(obj.name), known=known)}
    except UnreadableQueryError:
        if not found:
            raise
    return tuple(found[name] for name in sorted(found))


def unqualified(query: str) -> tuple[str, ...]:
    """Tables that a query names without a namespace; none, if it can't be parsed."""
    try:
        return tuple(sorted({full_name(parts, "") for parts, _ in _facts_of(query).tables if len(parts) == 1}))
    except UnreadableQueryError:
        return ()


def expand_stars(query: str, columns_of: ColumnsOf, namespace: str = "", *, order: Sequence[str] = ()) -> str:
    """The query with every star replaced by column names, except that of ``count(*)``.

    ``NATURAL JOIN`` is refused as well, since it depends on columns that are not named.

    :param namespace: of tables that are named without one
    :param order: names, as they are compared, of the query's columns; a star that gives some gives them in this order
    :raises QueryError: a star can't be written out; what to write instead is its remedy
    """
    if not _facts_of(query).starred:
        return query
    scopes, edits = Scopes(query, columns_of, namespace), []
    places = {name: place for place, name in enumerate(order)}
    for scope in scopes.all:
        # What is inside of the query may be used by position.
        is_outermost = scope.expression.find_ancestor(exp.Select, exp.CTE) is None
        for node in scope.walk():
            if is_natural(node):
                scopes.items(scope)
            elif isinstance(node, exp.Star) and reads_columns(node):
                items = scopes.star(scope, node)
                selected = node.parent if isinstance(node.parent, exp.Column) else node
                if is_outermost and selected.parent is scope.expression:
                    items.sort(key=lambda each: places.get(each.name, len(places)))
                edits.append(_edit(query, node, items))
    return spliced(query, edits)


def _edit(query: str, star: exp.Star, items: Sequence[Item]) -> tuple[int, int, str]:
    """The place of a star in the text, and what comes there."""
    start, excepted, holder, between = star.meta.get("start"), star.args.get("except_"), star.parent, ", "
    if not isinstance(start, int) or query[start : start + 1] != "*":
        raise QueryError("a query without a SELECT of its own hides a star", "write SELECT and the columns")
    last = next(excepted[-1].find_all(exp.Identifier)).meta["end"] if excepted else None
    end = without_comments(query).index(")", last) + 1 if last else start + 1
    if isinstance(holder, exp.Column):
        between = f", {query[holder.parts[0].meta['start'] : holder.parts[-2].meta['end'] + 1]}."
    return start, end, between.join(map(str, items))


def output_columns(query: str, columns_of: ColumnsOf, namespace: str = "") -> tuple[str, ...]:
    """The names of a query's columns, as their author wrote them.

    :raises QueryError: one has no name, or what a star stands for is not known
    """
    if (found := _facts_of(query).outputs) is not None:
        return found
    scopes = Scopes(query, columns_of, namespace)
    return tuple(each.written for each in scopes.outputs(scopes.all[-1]))


def is_star_last(query: str, columns_of: ColumnsOf, namespace: str = "") -> bool:
    """Whether a column that comes last in what its star expands to comes last in the query's result, too, and changes
    nothing else of it; False where that is not sure."""

    def longer(name: str) -> tuple[str, ...] | None:
        found = columns_of(name)
        return None if found is None else (*found, "rfr_one_more")

    try:
        now, then = Scopes(query, columns_of, namespace), Scopes(query, longer, namespace)
        [scope], [same] = now.all, then.all
        names = now.outputs(scope)
        return not scope.expression.args.get("distinct") and then.outputs(same)[: len(names)] == names
    except (QueryError, ValueError):
        return False


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


def tables_below(reads: Iterable[str], of_view: Callable[[str], Iterable[str] | None]) -> tuple[str, ...]:
    """The names that no view has, sorted; all names are as they are compared.

    :param of_view: what the view of a name reads; None: the name is no view's. Called once for each name
    """
    waiting, found = list(reads), dict[str, Iterable[str] | None]()
    # The list grows while it is read.
    for name in waiting:
        if name not in found:
            found[name] = of_view(name)
            waiting += found[name] or ()
    return tuple(sorted(name for name, inside in found.items() if inside is None))


def declared_inputs(obj: BuiltinObject, declared: Mapping[str, BuiltinObject]) -> tuple[str, ...]:
    """The tables that a declared query reads. What is not declared is taken for a table with a name in lower case.

    :param declared: all objects, by their keys
    """

    def reads(each: BuiltinObject) -> list[str]:
        return [read.name for read in object_reads(each, known=declared)]

    def of_view(name: str) -> list[str] | None:
        found = declared.get(name)
        return reads(found) if found is not None and found.kind is Kind.VIEW else None

    return tuple(declared[name].name if name in declared else name for name in tables_below(reads(obj), of_view))
