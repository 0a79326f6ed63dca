"""Reads what stands inside a tag: names, literals, calls, arguments by name, block parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_rfr.webhooks.handlebars.grammar import Refusal, structure
from airflow_provider_rfr.webhooks.handlebars.nodes import Argument, Call, Literal, Path
from airflow_provider_rfr.webhooks.handlebars.tags import Tag, Token
from airflow_provider_rfr.webhooks.handlebars.terms import UNDEFINED, Problem, shown
from airflow_provider_rfr.webhooks.handlebars.values import number_name

MAX_DEPTH = 32
MAX_FORMS = 2048
MAX_TOKENS = 2048
MAX_BLOCK_PARAMS = 16
_LONGEST_NUMBER = 300
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "undefined": UNDEFINED}
_NAMES = ("id", "name", "segment")
_VALUES = (*_NAMES, "data", "string", "word", "number")
_SCOPED = re.compile(r"^\.|this\b", re.ASCII)
_BRACKETS = re.compile(r"\[[^\n\r\u2028\u2029]*\]\Z")


@dataclass(frozen=True)
class _Piece:
    """One or more tokens, and what stands for them in the question to the grammar."""

    placeholder: str
    leaf: Literal | Path | str | None
    token: Token


class Forms:
    """The structures of one template's expressions; asking the grammar costs 0.1 ms a character."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._size = 0

    def ask(self, question: str, at: int) -> tuple[Any, ...] | Refusal:
        if question not in self._seen:
            self._seen.add(question)
            self._size += len(question)
            if self._size > MAX_FORMS:
                raise Problem("the template has too many expressions of different form", at)
        return structure(question)


class ExpressionReader:
    """Reads the tokens of one tag."""

    def __init__(self, tag: Tag, forms: Forms) -> None:
        self._tokens = tag.tokens
        self._at = tag.at
        self._forms = forms
        self._next = 0

    def call(self, *, block_params: bool = False) -> Call:
        """All of the tag: a name and what it is given."""
        pieces = list(self._pieces())
        names = self._block_params() if block_params and self._kind() == "params" else ()
        self._end()
        return replace(self._understood(pieces), block_params=names)

    def name(self) -> Path | Literal:
        """All of the tag: a name alone, as in ``{{/name}}``."""
        name = self._value()
        self._end()
        return name

    def first(self) -> Path | Literal:
        """The name that the tag begins with, whatever follows."""
        return self._value()

    def _end(self) -> None:
        if self._next < len(self._tokens):
            raise _unexpected(self._tokens[self._next])

    def _kind(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place].kind if place < len(self._tokens) else ""

    def _take(self) -> Token:
        if self._next >= len(self._tokens):
            at = self._tokens[-1].at if self._tokens else self._at
            raise Problem("the tag ends where a name or a value was expected", at)
        self._next += 1
        return self._tokens[self._next - 1]

    def _pieces(self) -> Iterator[_Piece]:
        if len(self._tokens) > MAX_TOKENS:
            raise Problem(f"more than {MAX_TOKENS:,} words and signs in one tag", self._at)
        depth = 0
        while (kind := self._kind()) not in ("", "params"):
            token = self._tokens[self._next]
            if kind in _NAMES and self._kind(1) == "equals":
                self._next += 2
                yield _Piece("xx=", _segment(token), token)
            elif kind in _VALUES:
                leaf = self._value()
                yield _Piece(_placeholder(leaf), leaf, token)
            else:
                self._next += 1
                depth += {"open": 1, "shut": -1}.get(kind, 0)
                if depth > MAX_DEPTH:
                    raise Problem(f"more than {MAX_DEPTH} parentheses inside each other", token.at)
                yield _Piece(token.text if kind in ("open", "shut") else "?", None, token)

    def _understood(self, pieces: list[_Piece]) -> Call:
        question, places = _question(pieces)
        answer = self._forms.ask(question, self._at)
        if isinstance(answer, Refusal):
            raise self._refused(answer, pieces, places)
        leaves = (piece for piece in pieces if piece.leaf is not None)
        call = _call(answer, leaves)
        assert next(leaves, None) is None, "the grammar's answer has fewer names than its question"
        return call

    def _refused(self, refusal: Refusal, pieces: list[_Piece], places: list[int]) -> Problem:
        reached = [piece for piece, place in zip(pieces, places, strict=True) if place >= refusal.place]
        if not reached:
            at = pieces[-1].token.at if pieces else self._at
            return Problem("the tag ends where a name or a value was expected", at)
        token = reached[0].token
        if token.kind == "open" and any(piece.leaf is not None for piece in reached):
            return Problem("this ( is not closed, or holds no call", token.at)
        return _unexpected(token)

    def _value(self) -> Path | Literal:
        token = self._take()
        if token.kind == "string":
            quote = token.text[0]
            text = token.text[1:-1].replace("\\" + quote, quote)
            return Literal(text, text, token.at)
        if token.kind == "word":
            return Literal(_WORDS[token.text], token.text, token.at)
        if token.kind == "number":
            return _number(token)
        if token.kind == "data":
            return self._path(self._take(), token.at, data=True)
        return self._path(token, token.at, data=False)

    def _path(self, first: Token, at: int, *, data: bool) -> Path:
        steps = [("", first)]
        while self._kind() == "sep":
            steps.append((self._take().text, self._take()))
        parts: list[str] = []
        depth = 0
        original = "@" if data else ""
        for separator, token in steps:
            if token.kind not in _NAMES:
                hint = f"; write [{token.text}]" if token.kind in ("number", "word") else ""
                raise Problem(f"{shown(token.text)} was not expected here{hint}", token.at)
            part = _segment(token)
            original += separator + part
            if part == token.text and part in ("..", ".", "this"):
                if parts:
                    raise Problem(f"{shown(separator + part)} can only stand at the beginning of a path", token.at)
                depth += part == ".."
            else:
                parts.append(part)
        return Path(tuple(parts), original, at, depth, data, scoped=_SCOPED.search(original) is not None)

    def _block_params(self) -> tuple[str, ...]:
        opening = self._take()
        names: list[str] = []
        while self._kind() in _NAMES:
            names.append(_unescaped(self._take()))
        if not names or self._kind() != "bar" or _BRACKETS.match(",".join(names)):
            raise Problem("block parameters are written: as |name name|", opening.at)
        if len(names) > MAX_BLOCK_PARAMS:
            raise Problem(f"more than {MAX_BLOCK_PARAMS} block parameters", opening.at)
        self._take()
        return tuple(names)


def _unexpected(token: Token) -> Problem:
    return Problem(f"{shown(token.text)} was not expected here", token.at)


def _question(pieces: list[_Piece]) -> tuple[str, list[int]]:
    """The pieces as one text, and where in it each of them begins."""
    question = ""
    places: list[int] = []
    for piece in pieces:
        if question and not question.endswith(("(", "=")) and piece.placeholder != ")":
            question += " "
        places.append(len(question))
        # A call begins with a name; where it is a literal, it is taken for the name that it spells.
        heads = not question or question.endswith("(")
        question += "x" if heads and piece.placeholder in ('""', "0", *_WORDS) else piece.placeholder
    return question, places


def _placeholder(leaf: Path | Literal) -> str:
    if isinstance(leaf, Path):
        return "x"
    if isinstance(leaf.value, str):
        return '""'
    return leaf.original if leaf.original in _WORDS else "0"


def _call(answer: tuple[Any, ...], leaves: Iterator[_Piece]) -> Call:
    """The answer with the names and literals of this tag, which stand in it in the order of the tag."""
    params: list[Argument] = []
    named: dict[str, Argument] = {}
    name = _head(_following(leaves))
    for argument in answer[2]:
        if argument[0] == "kwparam":
            key = _following(leaves).leaf
            assert isinstance(key, str)
            # Of two arguments of one name, handlebars.js takes the first.
            value = _argument(argument[2], leaves)
            named.setdefault(key, value)
        elif named:
            late = _following(leaves)
            raise Problem("arguments without a name stand before those with one", late.token.at)
        else:
            params.append(_argument(argument, leaves))
    return Call(name, tuple(params), tuple(named.items()))


def _argument(answer: tuple[Any, ...], leaves: Iterator[_Piece]) -> Argument:
    if answer[0] == "subexpr":
        return _call(answer, leaves)
    leaf = _following(leaves).leaf
    assert isinstance(leaf, (Path, Literal))
    return leaf


def _following(leaves: Iterator[_Piece]) -> _Piece:
    piece = next(leaves, None)
    assert piece is not None, "the grammar's answer has more names than its question"
    return piece


def _head(piece: _Piece) -> Path:
    leaf = piece.leaf
    if isinstance(leaf, Literal):
        return Path((leaf.original,), leaf.original, leaf.at, scoped=_SCOPED.search(leaf.original) is not None)
    assert isinstance(leaf, Path)
    return leaf


def _unescaped(token: Token) -> str:
    return re.sub(r"\\([\\\]])", r"\1", token.text) if token.kind == "segment" else token.text


def _segment(token: Token) -> str:
    """A name without its brackets; handlebars.js leaves them on where a line ends between them."""
    text = _unescaped(token)
    return text[1:-1] if token.kind == "segment" and _BRACKETS.match(text) else text


def _number(token: Token) -> Literal:
    if len(token.text) > _LONGEST_NUMBER:
        raise Problem("this number is too long", token.at)
    value = float(token.text) if "." in token.text else int(token.text)
    return Literal(value, number_name(value), token.at)
