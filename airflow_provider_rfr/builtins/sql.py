"""SQL texts: parsing, canonical texts for comparisons, edits that keep the rest of a text, and casts.

The canonical text comes from sqlglot's tokenizer for Spark, not from its generator: nothing can be lost on the way,
and the result hardly depends on sqlglot's version.

Casts of nested types match fields by name. Spark's own CAST matches them by position: it would silently move values
between the fields of a struct.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Final, NamedTuple

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError
from airflow_provider_rfr.lake.spark import string_literal
from airflow_provider_rfr.lake.types import ColumnType, has_same_fields, is_plain, parse_type, quoted

_SPARK: Final = Dialect.get_or_raise("spark")
_KEYWORDS: Final = frozenset(word for keyword in _SPARK.tokenizer_class.KEYWORDS for word in keyword.upper().split())
"""Every word that is a keyword, or a part of one, as in ``GROUP BY``."""
_RULES: Final = 1
"""Version of the rules of :func:`canonical_sql`, to be increased when it returns another text for any query."""
CANONICALIZER: Final = f"sqlglot/{version('sqlglot')} rules/{_RULES}"
"""Version of the parser and of the canonical texts. Texts of two versions are never compared."""
_AS_WRITTEN: Final = {token_type for token_type in TokenType if token_type.name.endswith("STRING")} | {
    TokenType.IDENTIFIER
}
_BEGINNINGS: Final = {TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.FROM}
_WRITES: Final = (exp.DML, exp.DDL, exp.Command, exp.Into)
_CONTINUED: Final = re.compile(r"--[^\n]*\\\s*\n")
_SELECT: Final = "SELECT "
_ONE_SELECT: Final = "a view is one SELECT, which creates and changes nothing"

Parts = tuple[str, ...]
"""The case-folded parts of a name."""


class Name(str):
    """A case-folded name, as Spark compares it; ``written`` is its author's spelling."""

    __slots__ = ("written",)
    written: str

    def __new__(cls, written: str) -> Name:
        name = super().__new__(cls, written.casefold())
        name.written = written
        return name


def identifier(name: str) -> str:
    """Return the name as SQL: in backticks, unless it is a plain name and not a keyword."""
    if is_plain(name) and name.upper() not in _KEYWORDS:
        return name
    return "`" + name.replace("`", "``") + "`"


def full_name(parts: Parts, namespace: str) -> str:
    """Return the case-folded name of a table, with the namespace if it has none."""
    whole = ".".join(map(quoted, parts))
    return f"{namespace.casefold()}.{whole}" if len(parts) == 1 and namespace else whole


def spliced(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text after all edits; an edit is the start and the end of a part, and the part's new text."""
    # The last edit first, so that the positions before it stay valid.
    for start, end, put in sorted(edits, reverse=True):
        text = text[:start] + put + text[end:]
    return text


@lru_cache(maxsize=8)
def _tokens(query: str) -> Sequence[Token]:
    """Return the query's tokens, without comments, with their positions. The result is shared: do not change it."""
    return tuple(_SPARK.tokenize(without_comments(query)))


@lru_cache(maxsize=8)
def without_comments(query: str) -> str:
    """Return the query with its comments replaced by blanks, so that every position stays the same.

    sqlglot reads ``GROUP BY`` as one token, and would not recognize it with a comment inside.
    """
    if "--" not in query and "/*" not in query:
        return query
    kept = list(re.sub(r"\S", " ", query))
    for token in _SPARK.tokenize(query):
        kept[token.start : token.end + 1] = query[token.start : token.end + 1]
    return "".join(kept)


@lru_cache(maxsize=65_536)
def canonical_sql(query: str) -> str:
    """Return the canonical text of a query. It is for comparing, never for executing.

    Queries that differ only in whitespace, comments, or the case of keywords and unquoted names have the same text. A
    query that can't be tokenized keeps its text, except for its whitespace.
    """
    try:
        tokens, text = _tokens(query), without_comments(query)
    except SqlglotError:
        return " ".join(["?", *query.split()])
    words, before = list[str](), -1
    for token in tokens:
        # sqlglot makes several tokens at one position of a number with a suffix, such as 1L.
        if token.start > before:
            word, before = text[token.start : token.end + 1], token.end
            # The >> that ends two nested types has to equal > >, and the layout of a hint does not matter.
            is_cut = set(word) == {">"} or token.token_type is TokenType.HINT
            parts = re.findall(r"\w+|[^\w\s]", word.lower()) if is_cut else word.lower().split()
            words += [word] if token.token_type in _AS_WRITTEN else parts
    return " ".join(words)


@lru_cache(maxsize=128)
def parse_query(query: str) -> exp.Query:
    """Parse a single query; its identifiers become :class:`Name`. The result is shared: do not change it.

    :raises QueryError: the text is not a query, is more than one statement, or has parameters
    :raises UnreadableQueryError: sqlglot can't parse it, though Spark may be able to
    """
    try:
        words = list(_tokens(query))
        _check_words(query, words)
        statements = _SPARK.parser().parse(words, without_comments(query))
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        where = f"line {first['line']}, column {first.get('col')}: " if first.get("line") else ""
        description = str(first.get("description") or "")
        problem = description if description and "<" not in description else "something is missing here"
        raise UnreadableQueryError(f"{where}{problem}") from None
    except SqlglotError:
        raise UnreadableQueryError("a string, a quoted name or a comment has no end") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, exp.Query):
        raise QueryError("it is not a SELECT", _ONE_SELECT)
    for node in tree.walk():
        _check_node(node)
        if isinstance(node, exp.Identifier):
            node.set("this", Name(node.name))
    return tree


def _check_words(query: str, words: list[Token]) -> None:
    if not words:
        raise QueryError("it is empty")
    if _CONTINUED.search(query):
        raise QueryError("a comment ends in a backslash", "Spark would take the next line for a part of the comment")
    kinds = [word.token_type for word in words]
    if TokenType.SEMICOLON in kinds:
        raise QueryError("it is more than one statement, or ends in a semicolon", "write one query, and leave that out")
    if kinds[0] not in _BEGINNINGS:
        raise QueryError(f"it begins with {words[0].text.upper()!r}", _ONE_SELECT)
    if TokenType.L_BRACE in kinds:
        raise QueryError("it has braces", "a query is not a template; write it out")


def _check_node(node: exp.Expr) -> None:
    if isinstance(node, _WRITES) and not isinstance(node, exp.Query):
        raise QueryError(f"it has {node.key.upper()} in it", _ONE_SELECT)
    if isinstance(node, (exp.Parameter, exp.Placeholder)):
        raise QueryError("it has a parameter", "a view is complete; write the value")
    if isinstance(node, exp.Anonymous) and node.name.upper() in ("IDENTIFIER", "STREAM"):
        raise QueryError(f"it uses {node.name.upper()}()", "write the name of the table")
    if isinstance(node, exp.Select) and not node.expressions:
        raise QueryError("a SELECT names no columns", "name them")


def scopes_of(query: str) -> list[Scope]:
    """Return sqlglot's scopes of a query, inner ones first; the parsed query in them is shared."""
    try:
        return traverse_scope(parse_query(query))
    except SqlglotError as error:
        raise QueryError(str(error).lower(), "give each table and subquery an alias of its own") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None


def table_parts(node: exp.Expr) -> Parts:
    """Return the parts of a table's name; empty for a function or a query."""
    if not isinstance(node, exp.Table) or not isinstance(node.this, (exp.Identifier, exp.Dot)):
        return ()
    return tuple(part.name for part in node.parts)


class NamedTable(NamedTuple):
    """A reference to a table in a query.

    :ivar name: case-folded and with a namespace
    :ivar written: as its author wrote it
    :ivar aliased: whether the query gives it an alias
    """

    name: str
    written: str
    parts: Parts
    aliased: bool


def replace_tables(query: str, namespace: str, replace: Callable[[NamedTable], str | None]) -> str:
    """Replace tables in the query by the texts that ``replace`` returns; a table for which it returns None stays.

    :raises QueryError: the query can't be parsed
    """
    edits = dict[tuple[int, int], str | None]()
    for table in (source for scope in scopes_of(query) for source in scope.sources.values()):
        if isinstance(table, exp.Table) and (parts := table_parts(table)):
            start, end = table.parts[0].meta.get("start"), table.parts[-1].meta.get("end")
            if start is not None and end is not None:
                text, name = query[start : end + 1], full_name(parts, namespace)
                edits[start, end + 1] = replace(NamedTable(name, text, parts, bool(table.alias)))
    return spliced(query, ((*place, put) for place, put in edits.items() if put is not None))


@lru_cache(maxsize=4096)
def _columns_in(expression: str) -> Sequence[tuple[int, int, str]]:
    """Return start, end and case-folded name of each column reference in an expression.

    For ``a.b`` the column is ``a``: expressions are over one table's columns, so the rest is a field of a struct.
    """
    if not expression.strip():
        raise QueryError("it is empty")
    tree, before = parse_query(f"{_SELECT}{expression}\nAS x"), len(_SELECT)
    words = [node.parts[0] for node in tree.find_all(exp.Column)]
    one = isinstance(tree, exp.Select) and len(tree.expressions) == 1 and not tree.args.get("from_")
    one = one and tree.find(exp.Star) is None and all("start" in word.meta for word in words)
    if not one or len(list(tree.find_all(exp.Query))) > 1:
        raise QueryError("it must be a single expression over columns")
    return sorted({(word.meta["start"] - before, word.meta["end"] + 1 - before, word.name) for word in words})


def columns_read(expression: str) -> tuple[str, ...]:
    """Return the case-folded names of the columns that an expression reads.

    :raises QueryError: it is not a single expression over columns
    """
    return tuple(dict.fromkeys(name for *_, name in _columns_in(expression)))


def compose(expression: str, names: Mapping[str, str]) -> str:
    """Replace columns in the expression.

    :param names: SQL of the replacement by the name of the column
    """
    texts = {name.casefold(): text for name, text in names.items()}
    places = _columns_in(expression)
    return spliced(expression, ((start, end, texts[name]) for start, end, name in places if name in texts))


def casts_in(expression: str) -> list[tuple[Parts, str | None]]:
    """Return the path and the target type of each cast of a column or field in an expression.

    If the whole expression is one column or field, its path is added, with None for the type.
    """
    tree = parse_query(f"{_SELECT}{expression}\nAS x")
    whole = tree.expressions[0].unalias().unnest()
    casts = [(cast.this.unnest(), cast.to.sql("spark")) for cast in tree.find_all(exp.Cast)]
    both = [*casts, (whole, None)]
    return [(tuple(name.name for name in node.parts), kind) for node, kind in both if isinstance(node, exp.Column)]


def cast(
    value: str, old: ColumnType, new: ColumnType, depth: int = 0, *, called: ColumnType | None = None
) -> str | None:
    """Return SQL that converts a value from type ``old`` to type ``new``, field by field; None if none is obvious.

    A struct that is NULL stays NULL.

    :param value: SQL of a column, or of a field of one
    :param depth: number of lambda functions around the value; it makes the names of their parameters unique
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
    """Yield a problem for each cast in an expression that would move values between fields of structs.

    Spark casts structs by position. So this happens if they have other fields, or the same ones in another order.

    :param columns: the types of the columns that the expression reads, by case-folded name
    :param wanted: the type to which the result is cast
    """
    for path, text in casts_in(expression):
        kind, after = columns.get(path[0].casefold()), wanted if text is None else parse_type(text)
        for name in path[1:]:
            fields = {} if kind is None else dict(zip(kind.folded().fields, kind.inner, strict=False))
            kind = fields.get(name.casefold())
        if kind is not None and kind.name == after.name and not has_same_fields(kind, after):
            yield f"a cast of {'.'.join(path)} from {kind} to {after} goes by position, not by name"
