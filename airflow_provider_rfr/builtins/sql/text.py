"""A query as a row of words: what is left of it when only its meaning counts.

Words come from sqlglot's tokenizer for Spark, not from its generator: nothing can be lost on the way, and the result
hardly depends on sqlglot's version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Final

from sqlglot import Token, TokenType
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from airflow_provider_rfr.builtins.names import is_plain

DIALECT: Final = "spark"
RULES: Final = 1
"""Goes up when :func:`canonical_sql` writes anything differently."""
CANONICALIZER: Final = f"sqlglot/{version('sqlglot')} rules/{RULES}"
"""Who wrote a canonical text; texts of two writers are never compared."""
_AS_WRITTEN = frozenset(
    {
        TokenType.STRING,
        TokenType.IDENTIFIER,
        TokenType.RAW_STRING,
        TokenType.NATIONAL_STRING,
        TokenType.UNICODE_STRING,
        TokenType.HEREDOC_STRING,
        TokenType.BYTE_STRING,
        TokenType.BIT_STRING,
        TokenType.HEX_STRING,
    }
)


@lru_cache(maxsize=8)
def tokens(query: str) -> Sequence[Token]:
    """The query's words, without comments, with their places in the text. They are shared: don't touch them.

    :raises SqlglotError: a string, a name or a comment has no end
    """
    return tuple(Dialect.get_or_raise(DIALECT).tokenize(without_comments(query)))


def without_comments(query: str) -> str:
    """The query with blanks where its comments were, so that every place stays what it was.

    sqlglot takes ``GROUP BY`` for one word, and would not know it with a comment inside.

    :raises SqlglotError: as :func:`tokens`
    """
    if "--" not in query and "/*" not in query:
        return query
    kept: list[str] = []
    at = 0
    for token in Dialect.get_or_raise(DIALECT).tokenize(query):
        if token.start >= at:
            kept += [_blank(query[at : token.start]), query[token.start : token.end + 1]]
            at = token.end + 1
    return "".join([*kept, _blank(query[at:])])


def _blank(text: str) -> str:
    return "".join(each if each.isspace() else " " for each in text)


@lru_cache(maxsize=65_536)
def canonical_sql(query: str) -> str:
    """The same text for queries that differ in whitespace, comments and the case of keywords and bare names alone.

    It is for comparing, never for executing. A query that can't even be taken apart is compared as it is.
    """
    try:
        return " ".join(_words(without_comments(query), tokens(query)))
    except SqlglotError:
        return " ".join(["?", *query.split()])


def _words(query: str, found: Sequence[Token]) -> Iterator[str]:
    before = -1
    for token in found:
        # A number with a suffix is several tokens in one place.
        if token.start <= before:
            continue
        before = token.end
        text = query[token.start : token.end + 1]
        if token.token_type in _AS_WRITTEN:
            yield text
        elif token.token_type is TokenType.HINT:
            inside = text[3:-2]
            yield from ("/*+", *_words(inside, Dialect.get_or_raise(DIALECT).tokenize(inside)), "*/")
        elif set(text) == {">"}:
            # Two types that end together are no shift.
            yield from text
        else:
            yield from text.lower().split()


@cache
def _keywords() -> frozenset[str]:
    """Every word that is a keyword, or a part of one, as in ``GROUP BY``."""
    keywords = Dialect.get_or_raise(DIALECT).tokenizer_class.KEYWORDS
    return frozenset(word for each in keywords for word in each.upper().split())


def identifier(name: str) -> str:
    """The name as it is written in a query: in backticks, unless nobody could take it for a keyword."""
    if is_plain(name) and name.upper() not in _keywords():
        return name
    return "`" + name.replace("`", "``") + "`"
