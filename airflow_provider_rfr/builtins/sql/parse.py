"""One query, parsed; whatever is not one query is refused."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import dropwhile
from typing import Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError

from airflow_provider_rfr.builtins.sql.text import DIALECT, tokens, without_comments
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError

WRITTEN: Final = "written"
"""Key in an identifier's ``meta``: the name as its author wrote it; the identifier itself is as Spark compares it."""
_BEGINNINGS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.FROM})
_WRITES = (exp.DML, exp.DDL, exp.Command, exp.Into)
_CONTINUED = re.compile(r"--[^\n]*\\\s*\n")
_ONE_SELECT = "a view is one SELECT, which creates and changes nothing"
_NO_SELECT = {TokenType.VALUES: "VALUES", TokenType.TABLE: "TABLE"}


@lru_cache(maxsize=128)
def parse_query(query: str) -> exp.Query:
    """The query, with identifiers as Spark compares them. It is shared: look at it, don't touch it.

    :raises QueryError: it is something else, or more than one, or not complete without somebody's values
    :raises UnreadableQueryError: it can't be parsed here, though Spark may be able to
    """
    try:
        words = list(tokens(query))
        _check_words(query, words)
        found = Dialect.get_or_raise(DIALECT).parser().parse(words, without_comments(query))
    except ParseError as error:
        raise UnreadableQueryError(_told(error)) from None
    except SqlglotError:
        raise UnreadableQueryError("a string, a quoted name or a comment has no end") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None
    tree = found[0] if len(found) == 1 else None
    if not isinstance(tree, exp.Query):
        raise QueryError("it is no SELECT", _ONE_SELECT)
    _check_tree(tree)
    for each in tree.find_all(exp.Identifier):
        each.meta[WRITTEN] = each.name
        each.set("this", each.name.casefold())
    return tree


def check_expression(expression: str) -> None:
    """Refuse what is no expression over the columns of one table.

    :raises QueryError: what is wrong with it
    """
    if not expression.strip():
        raise QueryError("it is empty")
    tree = parse_query(f"SELECT {expression}\nAS x")
    one = isinstance(tree, exp.Select) and len(tree.expressions) == 1 and not tree.args.get("from_")
    if not one or tree.find(exp.Star) is not None or len(list(tree.find_all(exp.Query))) > 1:
        raise QueryError("it is no single expression over columns")


def _check_words(query: str, words: list[Token]) -> None:
    if not words:
        raise QueryError("it is empty")
    if _CONTINUED.search(query):
        raise QueryError("a comment ends in a backslash", "Spark would take the next line for a part of the comment")
    after = list(dropwhile(lambda each: each.token_type is not TokenType.SEMICOLON, words))
    if any(each.token_type is not TokenType.SEMICOLON for each in after):
        raise QueryError("it is more than one statement", "write one document for each")
    if after:
        raise QueryError("it ends in a semicolon", "leave it out: the query becomes a part of other statements")
    first = words[0]
    if first.token_type in _NO_SELECT or first.text.upper() in _NO_SELECT.values():
        raise QueryError(f"it begins with {first.text.upper()}", "write SELECT and the columns")
    if first.token_type not in _BEGINNINGS:
        raise QueryError(f"it begins with {first.text.upper()!r}", _ONE_SELECT)
    if any(each.token_type is TokenType.L_BRACE for each in words):
        raise QueryError("it has braces", "a query is no template; write it out")


def _check_tree(tree: exp.Query) -> None:
    for node in tree.walk():
        if isinstance(node, _WRITES) and not isinstance(node, exp.Query):
            raise QueryError(f"it has {node.key.upper()} in it", _ONE_SELECT)
        if isinstance(node, (exp.Parameter, exp.Placeholder)):
            raise QueryError("it has a parameter", "a view is complete; write the value")
        if isinstance(node, exp.Anonymous) and node.name.upper() in ("IDENTIFIER", "STREAM"):
            raise QueryError(f"it uses {node.name.upper()}()", "write the name of the table")
        if isinstance(node, exp.Select) and not node.expressions:
            raise QueryError("a SELECT names no columns", "name them")


def _told(error: ParseError) -> str:
    first = error.errors[0] if error.errors else {}
    line, column = first.get("line"), first.get("col")
    where = f"line {line}, column {column}: " if line else ""
    said = str(first.get("description") or "")
    return f"{where}{said if said and '<' not in said else 'something is missing here'}"
