"""The statement's grammar, by recursive descent: one method for each rule.

What a connection's options may be is not known here; the planner says what is wrong with them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, TypeVar

from airflow_provider_rfr.connections.names import name_of
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
)
from airflow_provider_rfr.connections.tokens import Token, TokenKind, tokens_of
from airflow_provider_rfr.connections.with_part import read_setting
from airflow_provider_rfr.exceptions import StatementError

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
    return _Parser(tokens_of(text)).statement()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0

    def statement(self) -> Statement:
        verb = self._one_of({"alter": self._alter, "validate": self._validate}, _FORMS)
        made = verb()
        self._sign(";", optional=True)
        if self._next.kind is not TokenKind.END:
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
        elif self._next.text == "=" and self._next.kind is TokenKind.SIGN:
            raise self._expected("',' or ')'", f"{kind.name} takes names of options only")
        return Action(kind, option, value, start.line, start.column)

    def _option(self) -> str:
        parts = [self._part("an option")]
        while self._sign(".", optional=True):
            parts.append(self._part("the rest of the option"))
        return name_of([parts[0].lower(), *parts[1:]])

    def _value(self) -> Value:
        token = self._take()
        if token.kind is TokenKind.TEXT:
            return token.text
        if token.kind is TokenKind.NUMBER:
            return _number(token)
        if token.kind is TokenKind.PARAMETER:
            return Parameter(token.text)
        word = token.text.lower() if token.kind is TokenKind.WORD else ""
        if word == "secret":
            return self._secret()
        if word in _WORDS:
            return _WORDS[word]
        self._place -= token.kind is not TokenKind.END
        raise self._expected("a value", "write a text in single quotes, a number, true, false or SECRET 'backend:key'")

    def _secret(self) -> SecretReference:
        token = self._take()
        backend, colon, key = token.text.partition(":")
        if token.kind is not TokenKind.TEXT or not (colon and backend.isidentifier() and key):
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
            settings = read_setting(settings, token, self._value, value)
            if not self._sign(",", optional=True):
                break
        self._sign(")")
        return settings

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _take(self) -> Token:
        token = self._next
        self._place += token.kind is not TokenKind.END
        return token

    def _is(self, word: str) -> bool:
        return self._next.kind is TokenKind.WORD and self._next.text.lower() == word

    def _word(self, word: str, optional: bool = False) -> bool:
        if self._is(word):
            self._take()
            return True
        if optional:
            return False
        raise self._expected(word.upper(), _FORMS)

    def _sign(self, sign: str, optional: bool = False) -> bool:
        if self._next.kind is TokenKind.SIGN and self._next.text == sign:
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
        if self._next.kind in (TokenKind.WORD, TokenKind.QUOTED):
            return self._take().text
        if self._next.kind is TokenKind.NUMBER and self._next.text.isdigit():
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


def _number(token: Token) -> int | float:
    try:
        made = float(token.text) if set(token.text) & set(".eE") else int(token.text)
    except ValueError:
        made = math.inf
    if math.isinf(made):
        raise StatementError("this number is too large", token.line, token.column, "write it as text")
    return made
