"""Tokenizer and recursive-descent parser of ALTER CONNECTION: one method per grammar rule.

Which options a connection may have is not checked here but by the planner.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from airflow_provider_rfr.connections.statement import (
    BACKENDS,
    Action,
    ActionKind,
    Parameter,
    SecretReference,
    Settings,
    Statement,
    Value,
    Verb,
    name_of,
)
from airflow_provider_rfr.exceptions import StatementError


class _TokenKind(str, Enum):
    """The kinds of pieces."""

    WORD = "a name"
    QUOTED = "a quoted name"
    TEXT = "a text"
    NUMBER = "a number"
    PARAMETER = "a parameter"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class _Token:
    """One piece.

    :ivar text: what it means: without quotes, and with doubled quotes as one; not shown, since it may be a secret
    :ivar line: from 1
    :ivar column: from 1, in characters
    """

    kind: _TokenKind
    text: str = field(repr=False)
    line: int
    column: int

    @property
    def shown(self) -> str:
        """What an error may say of it: signs and words of the language; anything else may be a secret."""
        if self.kind is _TokenKind.SIGN or (self.kind is _TokenKind.WORD and self.text.upper() in _RESERVED_WORDS):
            return f"'{self.text}'"
        return str(self.kind.value)


_RESERVED_WORDS: Final = frozenset(
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


def _tokens_of(text: str) -> list[_Token]:
    """The pieces, the last of which is the end.

    :raises StatementError: something that is no piece of a statement; the message does not repeat it
    """
    bad = _UNSTORABLE.search(text)
    if bad is not None:
        before = text[: bad.start()]
        line, column = before.count("\n") + 1, bad.start() - before.rfind("\n")
        raise StatementError("this character can't be stored", line, column, "write text in UTF-8, without NUL")
    found: list[_Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - start + 1
        if match is None:
            raise _unknown(text[position], line, column)
        kind = str(match.lastgroup)
        if kind != "blank":
            found.append(_Token(_KINDS[kind], _meaning(kind, match.group()), line, column))
        breaks = match.group().count("\n")
        if breaks:
            line += breaks
            start = match.start() + match.group().rindex("\n") + 1
        position = match.end()
    return [*found, _Token(_TokenKind.END, "", line, position - start + 1)]


_KINDS: Final = {
    "text": _TokenKind.TEXT,
    "quoted": _TokenKind.QUOTED,
    "number": _TokenKind.NUMBER,
    "parameter": _TokenKind.PARAMETER,
    "word": _TokenKind.WORD,
    "sign": _TokenKind.SIGN,
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


_NAMES: Final = tuple(each.name for each in fields(Settings))
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def _read_setting(settings: Settings, name: _Token, value: Callable[[], Value], at: _Token) -> Settings:
    """One more setting.

    :param value: reads it
    :param at: where it stands
    :raises StatementError: an unknown name, or a value that can't be
    """
    known = name.text.lower()
    if known not in _NAMES:
        allowed = ", ".join(each.upper() for each in _NAMES)
        raise StatementError("WITH has no such setting", name.line, name.column, f"one of {allowed}")
    given = value()
    if known == "drain_timeout":
        seconds = duration(given)
        if seconds is None:
            raise StatementError("DRAIN_TIMEOUT is not a duration", at.line, at.column, "write e.g. '10m'")
        return replace(settings, drain_timeout=seconds)
    switch = boolean(given)
    if switch is None:
        raise StatementError(f"{known.upper()} is neither true nor false", at.line, at.column, f"write {known} = true")
    changes: dict[str, Any] = {known: switch}
    return replace(settings, **changes)


def duration(value: object) -> float | None:
    """Seconds, from a number, a timedelta or text such as ``10m``; None for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if value >= 0 and math.isfinite(value) else None
    found = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def boolean(value: object) -> bool | None:
    """A switch, from a Boolean or its name in text; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "on": True, "false": False, "off": False}.get(str(value).strip().lower())


T = TypeVar("T")

_FORMS: Final = "write ALTER CONNECTION name SET (option = value), or VALIDATE CONNECTION name"
_ALONE: Final = "write ALTER CONNECTION name ROTATE KEYS, and nothing else"
_WORDS: Final = {"true": True, "on": True, "false": False, "off": False, "null": None}


def parse_statement(text: str) -> Statement:
    """Read one statement.

    :raises StatementError: it is none; the error says where and never repeats a value
    """
    if not isinstance(text, str):
        raise StatementError(f"a statement is text, not {type(text).__name__}", 1, 1, _FORMS)
    return _Parser(_tokens_of(text)).statement()


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def statement(self) -> Statement:
        verb = self._one_of({"alter": self._alter, "validate": self._validate}, _FORMS)
        made = verb()
        self._sign(";", optional=True)
        if self._next.kind is not _TokenKind.END:
            raise self._expected("the end of the statement", "write one statement at a time")
        return made

    def _validate(self) -> Statement:
        self._word("connection")
        return Statement(Verb.VALIDATE, self._name("the connection's name"))

    def _alter(self) -> Statement:
        self._word("connection")
        if_exists = self._word("if", optional=True)
        if if_exists:
            self._word("exists")
        made = Statement(Verb.ALTER, self._name("the connection's name"), if_exists)
        if self._word("rotate", optional=True):
            return self._rotate(made)
        if self._word("rename", optional=True):
            self._word("to")
            return replace(made, verb=Verb.RENAME, new_name=self._name("the new name"))
        return self._changes(made)

    def _rotate(self, made: Statement) -> Statement:
        self._word("keys")
        found = self._next
        if found.text in (",", "(") or self._is("with") or self._is("set") or self._is("rotate"):
            what = "WITH" if self._is("with") else "other actions"
            raise StatementError(f"ROTATE KEYS takes no {what}", found.line, found.column, _ALONE)
        return replace(made, verb=Verb.ROTATE_KEYS)

    def _changes(self, made: Statement) -> Statement:
        kinds = {kind.value: kind for kind in ActionKind}
        actions: list[Action] = []
        while True:
            if self._is("rotate") or self._is("rename"):
                found = self._next
                word = "ROTATE KEYS" if self._is("rotate") else "RENAME"
                raise StatementError(f"{word} stands beside other actions", found.line, found.column, "write it alone")
            kind = self._one_of(kinds, "write SET (option = value), DROP (option) or RESET (option)")
            actions += self._group(kind)
            if not self._sign(",", optional=True):
                break
        return replace(made, actions=tuple(actions), settings=self._settings())

    def _group(self, kind: ActionKind) -> list[Action]:
        self._sign("(")
        actions = [self._action(kind)]
        while self._sign(",", optional=True):
            actions.append(self._action(kind))
        self._sign(")")
        return actions

    def _action(self, kind: ActionKind) -> Action:
        start = self._next
        option = self._option()
        value: Value = None
        if kind is ActionKind.SET:
            self._sign("=", optional=True)
            value = self._value()
        elif self._next.text == "=" and self._next.kind is _TokenKind.SIGN:
            raise self._expected("',' or ')'", f"{kind.name} takes names of options only")
        return Action(kind, option, value, start.line, start.column)

    def _option(self) -> str:
        parts = [self._part("an option")]
        while self._sign(".", optional=True):
            parts.append(self._part("the rest of the option"))
        return name_of([parts[0].lower(), *parts[1:]])

    def _value(self) -> Value:
        token = self._take()
        if token.kind is _TokenKind.TEXT:
            return token.text
        if token.kind is _TokenKind.NUMBER:
            return _number(token)
        if token.kind is _TokenKind.PARAMETER:
            return Parameter(token.text)
        word = token.text.lower() if token.kind is _TokenKind.WORD else ""
        if word == "secret":
            return self._secret()
        if word in _WORDS:
            return _WORDS[word]
        self._place -= token.kind is not _TokenKind.END
        raise self._expected("a value", "write a text in single quotes, a number, true, false or SECRET 'backend:key'")

    def _secret(self) -> SecretReference:
        token = self._take()
        backend, colon, key = token.text.partition(":")
        if token.kind is not _TokenKind.TEXT or not (colon and backend.isidentifier() and key):
            raise StatementError(
                "no reference follows SECRET", token.line, token.column, "write SECRET 'env:PG_PASSWORD'"
            )
        if backend not in BACKENDS:
            # What stands there may be the secret itself, so it is neither repeated nor kept.
            remedy = f"one of {', '.join(BACKENDS)}"
            raise StatementError("SECRET names no backend that is known", token.line, token.column, remedy)
        return SecretReference(backend, key)

    def _settings(self) -> Settings:
        settings, seen = Settings(), set[str]()
        if not self._word("with", optional=True):
            return settings
        self._sign("(")
        while True:
            token = self._take()
            name = token.text.lower()
            if name in seen:
                raise StatementError(f"{name.upper()} is specified more than once", token.line, token.column)
            seen.add(name)
            self._sign("=", optional=True)
            value = self._next
            settings = _read_setting(settings, token, self._value, value)
            if not self._sign(",", optional=True):
                break
        self._sign(")")
        return settings

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += token.kind is not _TokenKind.END
        return token

    def _is(self, word: str) -> bool:
        return self._next.kind is _TokenKind.WORD and self._next.text.lower() == word

    def _word(self, word: str, optional: bool = False) -> bool:
        if self._is(word):
            self._take()
            return True
        if optional:
            return False
        raise self._expected(word.upper(), _FORMS)

    def _sign(self, sign: str, optional: bool = False) -> bool:
        if self._next.kind is _TokenKind.SIGN and self._next.text == sign:
            self._take()
            return True
        if optional:
            return False
        raise self._expected(repr(sign))

    def _name(self, what: str) -> str:
        parts = [self._part(what)]
        while self._sign(".", optional=True):
            parts.append(self._part("the rest of the name"))
        return ".".join(parts)

    def _part(self, what: str) -> str:
        if self._next.kind in (_TokenKind.WORD, _TokenKind.QUOTED):
            return self._take().text
        if self._next.kind is _TokenKind.NUMBER and self._next.text.isdigit():
            return self._take().text
        raise self._expected(what)

    def _one_of(self, choices: dict[str, T], remedy: str) -> T:
        for word, choice in choices.items():
            if self._word(word, optional=True):
                return choice
        raise self._expected(" or ".join(word.upper() for word in choices), remedy)

    def _expected(self, what: str, remedy: str = "") -> StatementError:
        found = self._next
        return StatementError(f"expected {what}, found {found.shown}", found.line, found.column, remedy)


def _number(token: _Token) -> int | float:
    try:
        made = float(token.text) if set(token.text) & set(".eE") else int(token.text)
    except ValueError:
        made = math.inf
    if math.isinf(made):
        raise StatementError("this number is too large", token.line, token.column, "write it as text")
    return made
