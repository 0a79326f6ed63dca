"""A statement in pieces, each with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from airflow_provider_rfr.exceptions import StatementError


class TokenKind(str, Enum):
    """The kinds of pieces."""

    WORD = "a name"
    QUOTED = "a quoted name"
    TEXT = "a text"
    NUMBER = "a number"
    PARAMETER = "a parameter"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """One piece.

    :ivar text: what it means: without quotes, and with doubled quotes as one; not shown, since it may be a secret
    :ivar line: from 1
    :ivar column: from 1, in characters
    """

    kind: TokenKind
    text: str = field(repr=False)
    line: int
    column: int

    @property
    def shown(self) -> str:
        """What an error may say of it: signs and words of the language; anything else may be a secret."""
        if self.kind is TokenKind.SIGN or (self.kind is TokenKind.WORD and self.text.upper() in _WORDS):
            return f"'{self.text}'"
        return str(self.kind.value)


_WORDS: Final = frozenset(
    {
        *("ALTER", "VALIDATE", "CONNECTION", "IF", "EXISTS", "SET", "DROP", "RESET", "WITH", "ROTATE", "KEYS"),
        *("RENAME", "TO", "OWNER", "SECRET", "TRUE", "FALSE"),
    }
)
_UNSTORABLE: Final = re.compile("[\\x00\\ud800-\\udfff]")
_TOKEN: Final = re.compile(
    r"""
    (?P<blank>\s+ | --[^\n]* | /\*.*?\*/)
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+")
  | (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|-(?!-)))
  | (?P<parameter>:[A-Za-z_]\w*)
  | (?P<word>\w+(?:-(?!-)\w+)*)
  | (?P<sign>[(),=.;])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens_of(text: str) -> list[Token]:
    """The pieces, the last of which is the end.

    :raises StatementError: something that is no piece of a statement; the message does not repeat it
    """
    bad = _UNSTORABLE.search(text)
    if bad is not None:
        before = text[: bad.start()]
        line, column = before.count("\n") + 1, bad.start() - before.rfind("\n")
        raise StatementError("this character can't be stored", line, column, "write text in UTF-8, without NUL")
    found: list[Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - start + 1
        if match is None:
            raise _unknown(text[position], line, column)
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(Token(_KINDS[kind], _meaning(kind, match.group()), line, column))
        breaks = match.group().count("\n")
        if breaks:
            line += breaks
            start = match.start() + match.group().rindex("\n") + 1
        position = match.end()
    return [*found, Token(TokenKind.END, "", line, position - start + 1)]


_KINDS: Final = {
    "text": TokenKind.TEXT,
    "quoted": TokenKind.QUOTED,
    "number": TokenKind.NUMBER,
    "parameter": TokenKind.PARAMETER,
    "word": TokenKind.WORD,
    "sign": TokenKind.SIGN,
}


def _meaning(kind: str, text: str) -> str:
    if kind == "text":
        return text[1:-1].replace("''", "'")
    if kind == "quoted":
        return text[1:-1].replace('""', '"')
    return text[1:] if kind == "parameter" else text


def _unknown(character: str, line: int, column: int) -> StatementError:
    if character == "'":
        return StatementError("a text begins here and does not end", line, column, "close it with '")
    if character == '"':
        return StatementError(
            "a quoted name begins here and does not end, or is empty", line, column, 'close it with "'
        )
    if character == "/":
        return StatementError("a comment begins here and does not end", line, column, "close it with */")
    return StatementError("this is no part of a statement", line, column, "write texts in single quotes")
