"""Statements about connections, and their parser: a tokenizer and a recursive descent.

Printing a statement masks the values of options whose names imply a secret. Its outline has no plain value, and no
error repeats a part of the text that may be a secret. The parts of an option's name are separated by dots; a part that
contains a dot is written in double quotes. The parser accepts any option: those of a connection's type are checked
later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from airflow_provider_rfr.exceptions import StatementError
from airflow_provider_rfr.http.redaction import MASK, is_secret_extra

_PART: Final = re.compile(r'(?:^|\.)(?:"((?:[^"]|"")*)"(?=\.|$)|([^.]*))')
_DURATION: Final = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parts_of(name: str) -> list[str]:
    """Return the parts of an option's name, without quotes."""
    return [match[2] if match[1] is None else match[1].replace('""', '"') for match in _PART.finditer(name)]


def name_of(parts: Iterable[str]) -> str:
    """Return the name that has these parts."""
    return ".".join(_quoted(part) if set(part) & {".", '"'} else part for part in parts)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


def duration(value: object) -> float | None:
    """Return seconds, from a number, a timedelta or text such as ``10m``; None for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if value >= 0 and math.isfinite(value) else None
    match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if match is None else int(match[1]) * _SECONDS[match[2]]


def boolean(value: object) -> bool | None:
    """Return a boolean, from itself or its name in text; None for anything else."""
    if isinstance(value, bool):
        return value
    return {"true": True, "on": True, "false": False, "off": False}.get(str(value).strip().lower())


DRAIN_SECONDS: Final = 600.0
BACKENDS: Final = ("env", "variable", "file")
"""The backends that ``SECRET 'backend:key'`` may name."""


class Verb(str, Enum):
    """The kind of a statement."""

    ALTER = "alter"
    ROTATE_KEYS = "rotate keys"
    RENAME = "rename"
    DROP = "drop"
    COMMENT = "comment"
    VALIDATE = "validate"


class ActionKind(str, Enum):
    """The kind of an action on one option. ``RESET`` and ``DROP`` mean the same: back to the default, or removed."""

    SET = "set"
    DROP = "drop"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class SecretReference:
    """A reference to a secret, e.g. ``env:PG_PASSWORD``."""

    backend: str
    key: str

    def __str__(self) -> str:
        return f"{self.backend}:{self.key}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named value that is given separately from the statement."""

    name: str

    def __str__(self) -> str:
        return f":{self.name}"


Value = str | int | float | bool | None | SecretReference | Parameter


@dataclass(frozen=True, slots=True)
class Action:
    """One option to change, e.g. ``host`` or ``extra.sslmode``.

    :ivar value: for ``SET``; never shown, since a plain text may be a misplaced secret
    :ivar line: line in the statement's text; ``line`` and ``column`` count from 1, and are 0 for an action from Python
    """

    kind: ActionKind
    option: str
    value: Value = field(default=None, repr=False)
    line: int = 0
    column: int = 0

    @property
    def removes(self) -> bool:
        """Tell whether the option goes back to its default."""
        return self.kind is not ActionKind.SET


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a statement's ``WITH`` clause.

    :ivar validate: whether the new settings are tried before they are stored
    :ivar restart: whether tasks that use the connection restart; else they keep their copy until their next run
    :ivar dry_run: only report the plan
    :ivar drain_timeout: seconds that a running refresh may take to reach its next checkpoint
    :ivar new_identity: accept another upstream, and read everything from its beginning
    """

    validate: bool = True
    restart: bool = True
    dry_run: bool = False
    drain_timeout: float = DRAIN_SECONDS
    new_identity: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about a connection.

    :ivar if_exists: a connection that is missing is not an error
    :ivar actions: the actions of ``ALTER``; for ``COMMENT``, the one that changes ``description``
    :ivar new_name: the new name of ``RENAME``
    :ivar cascade: for ``DROP``: also drop the connections that refer to it, and pause endpoints that are called with it
    """

    verb: Verb
    connection: str
    if_exists: bool = False
    actions: tuple[Action, ...] = ()
    settings: Settings = Settings()
    new_name: str | None = None
    cascade: bool = False

    @property
    def set(self) -> Mapping[str, Value]:
        """Return the values of ``SET`` by option; the last one for a duplicate option."""
        return {action.option: action.value for action in self.actions if action.kind is ActionKind.SET}

    def __str__(self) -> str:
        if self.verb is Verb.COMMENT:
            text = self.set.get("description")
            return f"{self.outline()} IS {'NULL' if text is None else _text(str(text))}"
        return self._text(_action)

    def outline(self) -> str:
        """Return the statement without any plain value.

        A refused statement may hold a secret in an option that is not secret.
        """

        def outlined(action: Action) -> str:
            if action.removes or isinstance(action.value, (SecretReference, Parameter)):
                return _action(action)
            return f"SET ({_option(action)})"

        return self._text(outlined)

    def _text(self, shown: Callable[[Action], str]) -> str:
        if self.verb is Verb.VALIDATE:
            return f"VALIDATE CONNECTION {_name(self.connection)}"
        if self.verb is Verb.COMMENT:
            return f"COMMENT ON CONNECTION {_name(self.connection)}"
        named = f"CONNECTION {'IF EXISTS ' if self.if_exists else ''}{_name(self.connection)}"
        if self.verb is Verb.DROP:
            return f"DROP {named}{' CASCADE' if self.cascade else ''}"
        start = f"ALTER {named}"
        if self.verb is Verb.ROTATE_KEYS:
            return f"{start} ROTATE KEYS"
        if self.verb is Verb.RENAME:
            return f"{start} RENAME TO {_name(self.new_name or '')}"
        changed = []
        for name in ("validate", "restart", "dry_run", "new_identity"):
            value = getattr(self.settings, name)
            if value != getattr(Settings(), name):
                changed.append(f"{name.upper()} = {str(value).lower()}")
        seconds = self.settings.drain_timeout
        if seconds != DRAIN_SECONDS:
            text = f"{seconds:.0f}s" if float(seconds).is_integer() else f"{seconds * 1000:.0f}ms"
            changed.append(f"DRAIN_TIMEOUT = '{text}'")
        end = f" WITH ({', '.join(changed)})" if changed else ""
        return f"{start} {', '.join(map(shown, self.actions))}{end}"


def _name(name: str) -> str:
    return name if name.replace("_", "a").isalnum() and name.lower() != "if" else _quoted(name)


def _option(action: Action) -> str:
    return ".".join(map(_name, parts_of(action.option)))


def _action(action: Action) -> str:
    if action.removes:
        return f"{action.kind.name} ({_option(action)})"
    value = action.value
    if isinstance(value, SecretReference):
        shown = f"SECRET {_text(str(value))}"
    elif isinstance(value, Parameter):
        shown = str(value)
    elif is_secret_extra(action.option):
        shown = _text(MASK)
    else:
        shown = _text(value) if isinstance(value, str) else json.dumps(value)
    return f"SET ({_option(action)} = {shown})"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


_T = TypeVar("_T")


class _TokenKind(str, Enum):
    """The kind of a token; the value is its name in errors."""

    WORD = "a name"
    QUOTED = "a quoted name"
    TEXT = "a text"
    NUMBER = "a number"
    PARAMETER = "a parameter"
    SIGN = "a sign"
    END = "the end"


_RESERVED_WORDS: Final = frozenset(
    {
        *("ALTER", "VALIDATE", "CONNECTION", "IF", "EXISTS", "SET", "DROP", "RESET", "WITH", "ROTATE", "KEYS"),
        *("RENAME", "TO", "OWNER", "SECRET", "TRUE", "FALSE", "COMMENT", "ON", "IS", "NULL", "CASCADE"),
    }
)


@dataclass(frozen=True, slots=True)
class _Token:
    """One token; ``text`` is unquoted, ``line`` and ``column`` (in characters) count from 1."""

    kind: _TokenKind
    text: str = field(repr=False)
    line: int
    column: int

    @property
    def label(self) -> str:
        """Return the token as errors show it: signs and reserved words verbatim; anything else may be a secret."""
        if self.kind is _TokenKind.SIGN or (self.kind is _TokenKind.WORD and self.text.upper() in _RESERVED_WORDS):
            return f"'{self.text}'"
        return str(self.kind.value)

    def number(self) -> int | float:
        """Return the value of a number.

        :raises StatementError: it is too large
        """
        try:
            value = float(self.text) if set(self.text) & set(".eE") else int(self.text)
        except ValueError:
            # Python refuses to convert text with thousands of digits.
            value = math.inf
        if math.isinf(value):
            raise self.error("this number is too large", "write it as text")
        return value

    def error(self, problem: str, remedy: str = "") -> StatementError:
        return StatementError(problem, self.line, self.column, remedy)


_UNSTORABLE: Final = re.compile("[\\x00\\ud800-\\udfff]")
_TOKEN: Final = re.compile(
    r"""
    (?P<BLANK>\s+ | --[^\n]* | /\*.*?\*/)
  | (?P<TEXT>'(?:[^']|'')*')
  | (?P<QUOTED>"(?:[^"]|"")+")
  | (?P<NUMBER>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|-(?!-)))
  | (?P<PARAMETER>:[A-Za-z_]\w*)
  | (?P<WORD>\w+(?:-(?!-)\w+)*)
  | (?P<SIGN>[(),=.;])
    """,
    re.VERBOSE | re.DOTALL,
)
_UNREADABLE: Final = {
    "'": ("a text begins here and does not end", "close it with '"),
    '"': ("a quoted name begins here and does not end, or is empty", 'close it with "'),
    "/": ("a comment begins here and does not end", "close it with */"),
}


def _tokens_of(text: str) -> list[_Token]:
    """Split a statement into tokens, the last of which is the end.

    :raises StatementError: something is not a token
    """
    unstorable = _UNSTORABLE.search(text)
    if unstorable is not None:
        before = text[: unstorable.start()]
        line, column = before.count("\n") + 1, unstorable.start() - before.rfind("\n")
        raise StatementError("this character can't be stored", line, column, "write text in UTF-8, without NUL")
    tokens: list[_Token] = []
    position, line, start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - start + 1
        if match is None:
            invalid = ("this is not part of a statement", "write texts in single quotes")
            problem, remedy = _UNREADABLE.get(text[position], invalid)
            raise StatementError(problem, line, column, remedy)
        kind, piece = str(match.lastgroup), match.group()
        if kind in ("TEXT", "QUOTED"):
            piece = piece[1:-1].replace(piece[0] * 2, piece[0])
        elif kind == "PARAMETER":
            piece = piece[1:]
        if kind != "BLANK":
            tokens.append(_Token(_TokenKind[kind], piece, line, column))
        breaks = match.group().count("\n")
        if breaks:
            line += breaks
            start = match.start() + match.group().rindex("\n") + 1
        position = match.end()
    return [*tokens, _Token(_TokenKind.END, "", line, position - start + 1)]


_VERBS: Final = {"alter": Verb.ALTER, "drop": Verb.DROP, "comment": Verb.COMMENT, "validate": Verb.VALIDATE}
_FORMS: Final = {
    Verb.ALTER: "write ALTER CONNECTION name SET (option = value)",
    Verb.DROP: "write DROP CONNECTION name, or DROP CONNECTION name CASCADE",
    Verb.COMMENT: "write COMMENT ON CONNECTION name IS 'text', or IS NULL",
    Verb.VALIDATE: "write VALIDATE CONNECTION name",
}
_WORDS: Final = {"true": True, "on": True, "false": False, "off": False, "null": None}


def parse_statement(text: str) -> Statement:
    """Parse one statement.

    :raises StatementError: the text is not a statement; the error says where, and never repeats a value
    """
    if not isinstance(text, str):
        raise StatementError(f"a statement must be text, not {type(text).__name__}", 1, 1, _FORMS[Verb.ALTER])
    return _StatementParser(_tokens_of(text)).statement()


class _StatementParser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._form = _FORMS[Verb.ALTER]

    def statement(self) -> Statement:
        verb = self._one_of(_VERBS, self._form)
        self._form = _FORMS[verb]
        if verb is Verb.COMMENT:
            self._word("on")
        self._word("connection")
        if_exists = verb in (Verb.ALTER, Verb.DROP) and self._word("if", optional=True) and self._word("exists")
        statement = Statement(verb, self._name("the connection's name"), if_exists)
        if verb is Verb.ALTER:
            statement = self._alter(statement)
        elif verb is Verb.COMMENT:
            self._word("is")
            start = self._next
            if start.kind is not _TokenKind.TEXT and not self._is("null"):
                raise self._expected("a text or NULL", self._form)
            text = self._value()
            kind = ActionKind.SET if text else ActionKind.RESET
            comment = Action(kind, "description", text or None, start.line, start.column)
            statement = replace(statement, actions=(comment,))
        elif verb is Verb.DROP:
            statement = replace(statement, cascade=self._word("cascade", optional=True))
        self._sign(";", optional=True)
        if self._next.kind is not _TokenKind.END:
            raise self._expected("the end of the statement", "write one statement at a time")
        return statement

    def _alter(self, statement: Statement) -> Statement:
        if self._word("rotate", optional=True):
            self._word("keys")
            if self._next.text in (",", "(") or self._is("with", "set", "rotate"):
                addition = "WITH" if self._is("with") else "other actions"
                remedy = "write ALTER CONNECTION name ROTATE KEYS, and nothing else"
                raise self._next.error(f"ROTATE KEYS can't be combined with {addition}", remedy)
            return replace(statement, verb=Verb.ROTATE_KEYS)
        if self._word("rename", optional=True):
            self._word("to")
            return replace(statement, verb=Verb.RENAME, new_name=self._name("the new name"))
        kinds = {kind.value: kind for kind in ActionKind}
        actions: list[Action] = []
        while not actions or self._sign(",", optional=True):
            if self._is("rotate", "rename"):
                word = "ROTATE KEYS" if self._is("rotate") else "RENAME"
                raise self._next.error(f"{word} can't be combined with other actions", "write it alone")
            kind = self._one_of(kinds, "write SET (option = value), DROP (option) or RESET (option)")
            self._sign("(")
            actions.append(self._action(kind))
            while self._sign(",", optional=True):
                actions.append(self._action(kind))
            self._sign(")")
        return replace(statement, actions=tuple(actions), settings=self._settings())

    def _action(self, kind: ActionKind) -> Action:
        start = self._next
        first, *more = self._parts("an option", "the rest of the option")
        value: Value = None
        if kind is ActionKind.SET:
            self._sign("=", optional=True)
            value = self._value()
        elif self._next.text == "=" and self._next.kind is _TokenKind.SIGN:
            raise self._expected("',' or ')'", f"{kind.name} takes names of options only")
        return Action(kind, name_of([first.lower(), *more]), value, start.line, start.column)

    def _value(self) -> Value:
        token = self._take()
        if token.kind is _TokenKind.TEXT:
            return token.text
        if token.kind is _TokenKind.NUMBER:
            return token.number()
        if token.kind is _TokenKind.PARAMETER:
            return Parameter(token.text)
        word = token.text.lower() if token.kind is _TokenKind.WORD else ""
        if word == "secret":
            reference = self._take()
            backend, colon, key = reference.text.partition(":")
            if reference.kind is not _TokenKind.TEXT or not (colon and backend.isidentifier() and key):
                raise reference.error("no reference follows SECRET", "write SECRET 'env:PG_PASSWORD'")
            if backend not in BACKENDS:
                # This may be the secret itself, so it is neither repeated nor kept.
                raise reference.error("unknown backend after SECRET", f"use one of {', '.join(BACKENDS)}")
            return SecretReference(backend, key)
        if word in _WORDS:
            return _WORDS[word]
        self._place -= token.kind is not _TokenKind.END
        raise self._expected("a value", "write a text in single quotes, a number, true, false or SECRET 'backend:key'")

    def _settings(self) -> Settings:
        values: dict[str, Any] = {}
        if not self._word("with", optional=True):
            return Settings()
        names = [field.name for field in fields(Settings)]
        self._sign("(")
        while not values or self._sign(",", optional=True):
            token = self._take()
            name = token.text.lower()
            if name in values:
                raise token.error(f"{name.upper()} is specified more than once")
            if name not in names:
                raise token.error("WITH has no such setting", f"use one of {', '.join(map(str.upper, names))}")
            values[name] = self._setting(name)
        self._sign(")")
        return Settings(**values)

    def _setting(self, name: str) -> bool | float:
        """Parse the value of a setting; a boolean without a value is true."""
        is_duration = name == "drain_timeout"
        has_sign = self._sign("=", optional=True)
        if not (has_sign or is_duration) and self._next.kind in (_TokenKind.SIGN, _TokenKind.END):
            return True
        token = self._take()
        content: object = token.number() if token.kind is _TokenKind.NUMBER else None
        if token.kind in (_TokenKind.TEXT, _TokenKind.WORD):
            content = token.text
        value = duration(content) if is_duration else boolean(content)
        if value is None:
            kind, example = ("a duration", "'10m'") if is_duration else ("true or false", "true")
            raise token.error(f"{name.upper()} must be {kind}", f"write e.g. {name.upper()} = {example}")
        return value

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += token.kind is not _TokenKind.END
        return token

    def _is(self, *words: str) -> bool:
        return self._next.kind is _TokenKind.WORD and self._next.text.lower() in words

    def _word(self, word: str, optional: bool = False) -> bool:
        if self._is(word):
            self._take()
            return True
        if optional:
            return False
        raise self._expected(word.upper(), self._form)

    def _sign(self, sign: str, optional: bool = False) -> bool:
        if self._next.kind is _TokenKind.SIGN and self._next.text == sign:
            self._take()
            return True
        if optional:
            return False
        raise self._expected(repr(sign))

    def _name(self, expected: str) -> str:
        return ".".join(self._parts(expected, "the rest of the name"))

    def _parts(self, expected: str, rest: str) -> list[str]:
        """Parse names separated by dots; a number is a name as well."""
        parts: list[str] = []
        while not parts or self._sign(".", optional=True):
            token = self._next
            is_digits = token.kind is _TokenKind.NUMBER and token.text.isdigit()
            if not is_digits and token.kind not in (_TokenKind.WORD, _TokenKind.QUOTED):
                raise self._expected(rest if parts else expected)
            parts.append(self._take().text)
        return parts

    def _one_of(self, choices: Mapping[str, _T], remedy: str) -> _T:
        for word, choice in choices.items():
            if self._word(word, optional=True):
                return choice
        raise self._expected(" or ".join(word.upper() for word in choices), remedy)

    def _expected(self, expected: str, remedy: str = "") -> StatementError:
        return self._next.error(f"expected {expected}, found {self._next.label}", remedy)
