"""Parses what is inside a tag, with pybars3's grammar. No other module imports pybars3.

The grammar is asked about an expression of placeholders, so nothing that an author wrote reaches it; its answer counts
only where it read the whole expression. ``Compiler.compile``, which executes what it makes of a template, is never
called. Unknown helpers and wrong numbers of arguments are found here, when a template is compiled; handlebars.js finds
them only when it gets there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from airflow_provider_rfr.webhooks.handlebars.helpers import HELPERS, Helper
from airflow_provider_rfr.webhooks.handlebars.lexer import (
    Argument,
    Call,
    Expression,
    HelperCall,
    Literal,
    Path,
    Tag,
    Token,
)
from airflow_provider_rfr.webhooks.handlebars.values import UNDEFINED, Problem, number_name, shown

_LOCK = threading.Lock()
_BEFORE, _BEHIND = "{{", "}}"


@dataclass(frozen=True)
class _Refusal:
    """The grammar does not know such an expression.

    :ivar place: where in the question it could not go on
    """

    place: int


_PLACEHOLDER = ("path", ["x"])
# What is asked in nearly every template. Importing pybars3 takes half a second, each time a DAG's file is parsed.
KNOWN: Mapping[str, tuple[Any, ...]] = {
    " ".join(["x"] * (count + 1)): ("escapedexpand", _PLACEHOLDER, [_PLACEHOLDER] * count) for count in range(3)
}


@cache
def _grammar() -> Any:
    from pybars._compiler import Compiler  # type: ignore[import-untyped]
    from pymeta.runtime import ParseError  # type: ignore[import-untyped]

    # A private name of a library that is no longer changed; the version is pinned, and a test looks at its tuples.
    return Compiler._handlebars, ParseError


def _structure(question: str) -> tuple[Any, ...] | _Refusal:
    """``("escapedexpand", ("path", [...]), [argument, ...])``, and the same inside for each argument.

    The answers are shared and must not be changed.
    """
    return KNOWN.get(question) or _asked(question)


@lru_cache(maxsize=4096)
def _asked(question: str) -> tuple[Any, ...] | _Refusal:
    """The grammar's own answer. One thread at a time: the grammar keeps state where all can reach."""
    with _LOCK:
        grammar, parse_error = _grammar()
        parser = grammar(_BEFORE + question + _BEHIND)
        try:
            answer, _ = parser.apply("escapedexpression")
        except parse_error as error:
            return _Refusal(int(error.position) - len(_BEFORE))
        read = parser.input.position
        if read != len(parser.input.data):
            return _Refusal(read - len(_BEFORE))
        return tuple(answer)


MAX_DEPTH = 32
_MAX_FORMS = 2048
_MAX_TOKENS = 2048
_MAX_BLOCK_PARAMS = 16
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

    def ask(self, question: str, at: int) -> tuple[Any, ...] | _Refusal:
        if question not in self._seen:
            self._seen.add(question)
            self._size += len(question)
            if self._size > _MAX_FORMS:
                raise Problem("the template has too many expressions of different form", at)
        return _structure(question)


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
        if len(self._tokens) > _MAX_TOKENS:
            raise Problem(f"more than {_MAX_TOKENS:,} words and signs in one tag", self._at)
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
        if isinstance(answer, _Refusal):
            raise self._refused(answer, pieces, places)
        leaves = (piece for piece in pieces if piece.leaf is not None)
        call = _call(answer, leaves)
        assert next(leaves, None) is None, "the grammar's answer has fewer names than its question"
        return call

    def _refused(self, refusal: _Refusal, pieces: list[_Piece], places: list[int]) -> Problem:
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
        if len(names) > _MAX_BLOCK_PARAMS:
            raise Problem(f"more than {_MAX_BLOCK_PARAMS} block parameters", opening.at)
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


_BLOCKS = ("if", "unless", "each", "with")
# Of handlebars.js itself: these names never mean a variable, not even alone or behind ``this.``.
_KNOWN = frozenset((*_BLOCKS, "lookup", "log", "helperMissing", "blockHelperMissing"))


@dataclass(frozen=True)
class Subject:
    """What a block is, and is about."""

    kind: str
    expression: Expression
    named: tuple[tuple[str, Expression], ...] = ()


class Meaning:
    """Reads names where these block parameters are known."""

    def __init__(self, block_params: frozenset[str] = frozenset()) -> None:
        self._params = block_params

    def within(self, names: Sequence[str]) -> Meaning:
        """Reads names in a block that has these parameters, inside of where this one reads."""
        return Meaning(self._params.union(names)) if names else self

    def mustache(self, call: Call) -> Expression:
        """What ``{{...}}`` prints."""
        if self._is_variable(call, alone=call.bare):
            return self._path(call.name)
        return self._helper(call)

    def block(self, call: Call) -> Subject:
        """What ``{{#...}}`` is about."""
        if self._is_variable(call, alone=call.bare):
            return Subject("section", self._path(call.name))
        name = call.name.parts[0] if call.name.parts else ""
        if name not in _BLOCKS:
            helper = self._helper(call).helper
            raise Problem(
                f"{helper.name} gives a value and is not a block; write {{{{#if ({helper.name} ...)}}}}", call.at
            )
        if len(call.params) != 1:
            raise Problem(f"{{{{#{name}}}}} takes exactly one argument", call.at)
        named = tuple((key, self.argument(value)) for key, value in call.hash)
        return Subject(name, self.argument(call.params[0]), named)

    def argument(self, argument: Argument) -> Expression:
        """What a helper or block is given."""
        if isinstance(argument, Literal):
            return argument
        if isinstance(argument, Path):
            return self._path(argument)
        if self._is_variable(argument, alone=False):
            return self._path(argument.name)
        return self._helper(argument)

    def _is_variable(self, call: Call, *, alone: bool) -> bool:
        """``alone``: nothing is given, so that only a helper of handlebars.js itself is one."""
        path = call.name
        if path.simple and path.parts[0] in self._params:
            return True
        return alone and not (path.simple and path.parts[0] in _KNOWN)

    def _path(self, path: Path) -> Path:
        known = bool(path.parts) and not path.depth and not path.scoped and path.parts[0] in self._params
        return replace(path, block_param=True) if known else path

    def _helper(self, call: Call) -> HelperCall:
        path = call.name
        name = path.parts[0] if path.parts else ""
        if name in _BLOCKS:
            raise Problem(f"{name} is a block; write {{{{#{name} ...}}}}...{{{{/{name}}}}}", call.at)
        if name in HELPERS and (path.simple or name in _KNOWN):
            helper = HELPERS[name]
            _check(helper, call)
            params = tuple(map(self.argument, call.params))
            return HelperCall(helper, params, tuple((key, self.argument(value)) for key, value in call.hash), call.at)
        raise Problem(f"there is no helper {path.label}{_suggestion(path.original)}", call.at)


def _suggestion(name: str) -> str:
    if name.startswith("else"):
        return "; write {{else if ...}}"
    near = get_close_matches(name[:40], [*HELPERS, *_BLOCKS], n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join([*_BLOCKS, *HELPERS])}"


def _check(helper: Helper, call: Call) -> None:
    count = len(call.params)
    if count < helper.least or (helper.most is not None and count > helper.most):
        raise Problem(f"{helper.name} was given {count} arguments; write {helper.usage}", call.at)
    unknown = [] if helper.free_names else [name for name, _ in call.hash if name not in helper.named]
    if unknown:
        raise Problem(f"{helper.name} takes no argument {shown(unknown[0])}; write {helper.usage}", call.at)
