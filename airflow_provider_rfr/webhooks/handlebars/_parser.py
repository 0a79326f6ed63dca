"""Splits a template into texts and tags, and parses the expression inside a tag, as handlebars.js 4.7 does.

No other module imports pybars3, which pastes parts of a template into Python source and executes it, gets else-if,
block parameters and whitespace wrong, and drops what it can't read. So only its grammar of expressions is used, and it
never sees a template's text: each name and literal is replaced by ``x``, so ``{{lookup (lookup a 'b') c.d y=1}}``
becomes ``{{x (x x x) x xx=x}}``. Names that the grammar refuses (``null_count``, ``2nd``, ``[a'b]``) and decimal
literals therefore work. Its result counts only if it consumed the whole input.

Which names are helpers and which are variables is decided here, so unknown helpers and wrong numbers of arguments are
errors of compilation; handlebars.js finds them only when it renders the tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_provider_rfr.documents import nearest
from airflow_provider_rfr.webhooks.handlebars.values import (
    HELPERS,
    UNDEFINED,
    WHITESPACE,
    Helper,
    TemplateProblem,
    quoted_name,
)

_WS = "[" + WHITESPACE + "]"
_LITERAL_END = r"(?=[~})" + WHITESPACE + "])"
_NAME_END = r"(?=[=~}/.)|" + WHITESPACE + "])"
_NAME = r"[^!\"#%-,./;->@\[-\^`{-~" + WHITESPACE + "]+" + _NAME_END

# In the order in which handlebars.js tries them. ASCII, because its \b knows no other letters.
_OPENING = re.compile(
    rf"(?P<raw>\{{\{{\{{\{{)|(?P<partial>\{{\{{~?\#?>)|(?P<decorator>\{{\{{~?\#?\*)|(?P<block>\{{\{{~?\#)"
    rf"|(?P<end>\{{\{{~?/)|(?P<otherwise>\{{\{{~?(?:\^|{_WS}*else){_WS}*~?\}}\}})|(?P<inverse>\{{\{{~?\^)"
    rf"|(?P<chain>\{{\{{~?{_WS}*else\b)|(?P<unescaped>\{{\{{~?\{{)|(?P<long_comment>\{{\{{~?!--)"
    rf"|(?P<comment>\{{\{{~?!)|(?P<plain>\{{\{{~?&?)",
    re.ASCII,
)
_COMMENT_ENDS = {"comment": re.compile(r"\}\}"), "long_comment": re.compile(r"--~?\}\}")}
_TOKEN = re.compile(
    rf"(?P<open>\()|(?P<shut>\))|(?P<nested>\{{\{{)|(?P<close_raw>\}}\}}\}}\}})|(?P<equals>=)"
    rf"|(?P<id>\.\.|\.{_NAME_END})|(?P<sep>[/.])|(?P<space>{_WS}+)|(?P<close_unescaped>\}}~?\}}\}})|(?P<close>~?\}}\}})"
    r'|(?P<string>"(?:\\"|[^"])*"|' + r"'(?:\\'|[^'])*')|(?P<data>@)"
    rf"|(?P<word>(?:true|false|undefined|null){_LITERAL_END})|(?P<number>-?[0-9]+(?:\.[0-9]+)?{_LITERAL_END})"
    rf"|(?P<params>as{_WS}+\|)|(?P<bar>\|)|(?P<name>{_NAME})|(?P<segment>\[(?:\\\]|[^\]])*\])"
)
_ESCAPED_END = re.compile(r"\\{0,2}\{\{")

_UNSUPPORTED = {
    "raw": "raw blocks ({{{{name}}}}) are not supported; write \\{{ for literal braces",
    "partial": "partials ({{> name}}) are not supported; write their text here",
    "decorator": "decorators and inline partials ({{* name}}) are not supported; write their text here",
}


class Strip(NamedTuple):
    """The whitespace control of a tag: ``~`` on its left and on its right."""

    open: bool = False
    close: bool = False


NO_STRIP = Strip()


class Token(NamedTuple):
    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Tag:
    """A tag, or the text between two tags.

    :ivar kind: ``text``, ``comment``, ``plain``, ``unescaped``, ``block``, ``inverse``, ``otherwise`` (``{{else}}``),
        ``chain`` (``{{else if}}``) or ``end``
    :ivar text: of kind ``text`` only
    """

    kind: str
    at: int
    text: str = ""
    strip: Strip = NO_STRIP
    tokens: tuple[Token, ...] = ()


def tags(source: str) -> Iterator[Tag]:
    """Yield texts and tags in order.

    :raises TemplateProblem: a tag can't be read or is not supported
    """
    place = 0
    while place < len(source):
        start = source.find("{{", place)
        if start < 0:
            yield _text(source, place, len(source))
            return
        text = source[place:start]
        escaped = text.endswith("\\") and not text.endswith("\\\\")
        end = start - 1 if text.endswith("\\") else start
        if end > place:
            yield _text(source, place, end)
        if escaped:
            # handlebars.js ends this text at the next tag, and whitespace control sees two texts.
            next_tag = _ESCAPED_END.search(source, start + 2)
            place = next_tag.start() if next_tag else len(source)
            yield _text(source, start, place)
            continue
        tag, place = _tag(source, start)
        yield tag


def _text(source: str, start: int, end: int) -> Tag:
    text = source[start:end]
    if "\0" in text:
        raise TemplateProblem("a template must not contain NUL characters", start + text.index("\0"))
    return Tag("text", start, text)


def _tag(source: str, start: int) -> tuple[Tag, int]:
    """Return the tag that begins here, and the offset behind it."""
    opening = _OPENING.match(source, start)
    assert opening is not None
    kind = str(opening.lastgroup)
    if kind in _UNSUPPORTED:
        raise TemplateProblem(_UNSUPPORTED[kind], start)
    tokens: list[Token] = []
    if kind == "otherwise":
        end = opening.end()
    elif kind in _COMMENT_ENDS:
        end_mark = _COMMENT_ENDS[kind].search(source, opening.end() - 2)
        if end_mark is None:
            raise TemplateProblem("this comment is not closed", start)
        kind, end = "comment", end_mark.end()
    else:
        tokens, end = _tokens(source, opening.end(), start)
        closing = tokens.pop()
        if closing.kind != ("close_unescaped" if kind == "unescaped" else "close"):
            wanted = "}}}" if kind == "unescaped" else "}}"
            raise TemplateProblem(
                f"this tag must end in {wanted}; put a space between it and a brace that follows", closing.at
            )
    strip = Strip(opening.group()[2:3] == "~", source[end - 3 : end - 2] == "~")
    return Tag(kind, start, strip=strip, tokens=tuple(tokens)), end


def _tokens(source: str, place: int, start: int) -> tuple[list[Token], int]:
    """Return the tokens up to and with the one that closes the tag, and the offset behind it."""
    tokens: list[Token] = []
    while place < len(source):
        match = _TOKEN.match(source, place)
        if match is None or match.lastgroup == "nested":
            if source[place] in "\"'":
                raise TemplateProblem("this string is not closed", place)
            if source[place] == "[" and source.find("]", place) < 0:
                raise TemplateProblem("this [ is not closed", place)
            if source.startswith("{{", place) or source.find("}}", place) < 0:
                break
            remedy = "names with such characters are written [in brackets]"
            raise TemplateProblem(f"unexpected character {quoted_name(source[place])}; {remedy}", place)
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, match.group(), place))
        place = match.end()
        if kind.startswith("close"):
            return tokens, place
    raise TemplateProblem("this tag is not closed with }}", start)


MAX_DEPTH = 32
_MAX_STRUCTURES = 2048
_MAX_TOKENS = 2048
_MAX_BLOCK_PARAMS = 16
_LONGEST_NUMBER = 300
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "undefined": UNDEFINED}
_NAMES = ("id", "name", "segment")
_VALUES = (*_NAMES, "data", "string", "word", "number")
_SCOPED = re.compile(r"^\.|this\b", re.ASCII)

_ENDS_EARLY = "the tag ends where a name or a value was expected"

_BLOCKS = ("if", "unless", "each", "with")
# Names that handlebars.js itself defines never mean a variable, not even alone or behind ``this.``.
_RESERVED = frozenset((*_BLOCKS, "lookup", "log"))


@dataclass(frozen=True, eq=False)
class Literal:
    """A string, number, true, false, null or undefined."""

    value: object
    original: str
    at: int

    @property
    def label(self) -> str:
        return quoted_name(self.original)


@dataclass(frozen=True, eq=False)
class Path:
    """A variable: ``a.b``, ``../a``, ``@index``, ``this``.

    :ivar original: as written, without brackets; a block is closed by the original that opened it
    :ivar depth: number of leading ``../``
    :ivar data: it begins with ``@``
    :ivar scoped: it is never a helper's name, as it begins with ``this`` or ``.`` (or looks so to handlebars.js)
    :ivar block_param: the first part is a name of an ``as |...|`` around it
    """

    parts: tuple[str, ...]
    original: str
    at: int
    depth: int = 0
    data: bool = False
    scoped: bool = False
    block_param: bool = False

    @property
    def simple(self) -> bool:
        """Tell whether the path may be a helper's name. As in handlebars.js, a leading ``@`` does not count."""
        return len(self.parts) == 1 and not self.scoped and not self.depth

    @property
    def label(self) -> str:
        return quoted_name(self.original)


@dataclass(frozen=True, eq=False)
class HelperCall:
    """A helper with its arguments."""

    helper: Helper
    params: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...]
    at: int

    @property
    def label(self) -> str:
        return f"({self.helper.name} ...)"


Expression = Literal | Path | HelperCall


@dataclass(frozen=True)
class Subject:
    """The opening tag of a block: ``if``, ``unless``, ``each``, ``with`` or ``section`` (``{{#name}}``)."""

    kind: str
    expression: Expression
    named: tuple[tuple[str, Expression], ...]
    params: tuple[str, ...]


@dataclass(frozen=True)
class _Call:
    """A name and its arguments, before it is known whether the name is a helper's."""

    name: Path
    params: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...]


@lru_cache(maxsize=4096)
def _ask(question: str) -> tuple[Any, ...] | int:
    """Parse an expression of placeholders with the grammar.

    :returns: its structure ``("escapedexpand", ("path", ["x"]), [argument, ...])``, which must not be changed; or the
        offset in the question that the grammar can't read beyond
    """
    # Importing pybars3 takes half a second. Most templates need no grammar, and DAG files are parsed often.
    from pybars._compiler import Compiler  # type: ignore[import-untyped]
    from pymeta.runtime import ParseError  # type: ignore[import-untyped]

    # A private attribute: the library is no longer developed, its version is pinned, and a test checks the answers.
    # Only the compiler is unsafe on threads: a parser keeps its state in the instance made here.
    parser = Compiler._handlebars("{{" + question + "}}")
    try:
        answer, _ = parser.apply("escapedexpression")
    except ParseError as error:
        return int(error.position) - 2
    read = parser.input.position
    return tuple(answer) if read == len(parser.input.data) else int(read) - 2


class ExpressionParser:
    """A parser of the tokens of one tag.

    :param params: names of the ``as |...|`` around the tag
    :param structures: expressions that the grammar has parsed for this template; it takes 0.1 ms a character, so their
        total length is limited
    """

    def __init__(self, tag: Tag, params: frozenset[str], structures: set[str]) -> None:
        self._tokens = tag.tokens
        self._at = tag.at
        self._params = params
        self._structures = structures
        self._next = 0

    def mustache(self) -> Expression:
        """Return the expression that ``{{...}}`` prints."""
        call = self._call()
        self._end()
        return call.name if self._is_variable(call, may_stand_alone=True) else _helper_call(call)

    def subject(self) -> Subject:
        """Return the subject that ``{{#...}}`` names."""
        call = self._call()
        params: list[str] = []
        if self._kind() == "params":
            opening = self._take()
            while self._kind() in ("id", "name"):
                params.append(self._take().text)
            if not params or self._kind() != "bar":
                raise TemplateProblem("block parameters are written: as |name name|", opening.at)
            if len(params) > _MAX_BLOCK_PARAMS:
                raise TemplateProblem(f"more than {_MAX_BLOCK_PARAMS} block parameters", opening.at)
            self._take()
        self._end()
        if self._is_variable(call, may_stand_alone=True):
            return Subject("section", call.name, (), tuple(params))
        name = call.name.parts[0] if call.name.parts else ""
        if name not in _BLOCKS:
            helper = _helper_call(call).helper.name
            raise TemplateProblem(
                f"{helper} is not a block, it returns a value; write {{{{#if ({helper} ...)}}}}", call.name.at
            )
        if len(call.params) != 1:
            raise TemplateProblem(f"{{{{#{name}}}}} takes exactly one argument", call.name.at)
        return Subject(name, call.params[0], call.named, tuple(params))

    def closing_name(self) -> Path | Literal:
        """Return the name in ``{{/name}}``."""
        name = self.value()
        self._end()
        return name

    def _end(self) -> None:
        if self._next < len(self._tokens):
            raise _unexpected(self._tokens[self._next])

    def _kind(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place].kind if place < len(self._tokens) else ""

    def _take(self) -> Token:
        if self._next >= len(self._tokens):
            raise TemplateProblem(_ENDS_EARLY, self._tokens[-1].at if self._tokens else self._at)
        self._next += 1
        return self._tokens[self._next - 1]

    def _call(self) -> _Call:
        """Parse the tag up to its end or its block parameters."""
        if len(self._tokens) > _MAX_TOKENS:
            raise TemplateProblem(f"more than {_MAX_TOKENS:,} tokens in one tag", self._at)
        words: list[str] = []
        leaves: list[Literal | Path | Token] = []
        tokens: list[Token] = []
        depth = 0
        while (kind := self._kind()) not in ("", "params"):
            token = self._tokens[self._next]
            tokens.append(token)
            if kind in _NAMES and self._kind(1) == "equals":
                self._next += 2
                words.append("xx=")
                leaves.append(token)
            elif kind in _VALUES:
                words.append("x")
                leaves.append(self.value())
            else:
                self._next += 1
                words.append(token.text if kind in ("open", "shut") else "?")
                depth += {"open": 1, "shut": -1}.get(kind, 0)
                if depth > MAX_DEPTH:
                    raise TemplateProblem(f"more than {MAX_DEPTH} nested parentheses", token.at)
        return self._build(self._structure(words, tokens), iter(leaves))

    def _structure(self, words: list[str], tokens: list[Token]) -> Any:
        """Return the structure that the grammar finds in the tag.

        :raises TemplateProblem: the grammar refuses the tag
        """
        if words and set(words) == {"x"}:
            return None, None, [("path",)] * (len(words) - 1)
        question, offsets = "", []
        for word in words:
            question += "" if not question or question.endswith(("(", "=")) or word == ")" else " "
            offsets.append(len(question))
            question += word
        if question not in self._structures:
            self._structures.add(question)
            if sum(map(len, self._structures)) > _MAX_STRUCTURES:
                raise TemplateProblem("the template has too many expressions of different structure", self._at)
        answer = _ask(question)
        if not isinstance(answer, int):
            return answer
        rest = next((index for index, offset in enumerate(offsets) if offset >= answer), None)
        if rest is None:
            raise TemplateProblem(_ENDS_EARLY, tokens[-1].at if tokens else self._at)
        if words[rest] == "(" and any(word.startswith("x") for word in words[rest:]):
            raise TemplateProblem("this ( is not closed, or contains no call", tokens[rest].at)
        raise _unexpected(tokens[rest])

    def _build(self, structure: Any, leaves: Iterator[Literal | Path | Token]) -> _Call:
        """Build the call from its structure and the tag's names and literals, which both have the tag's order."""
        name = next(leaves)
        if isinstance(name, Literal):  # a literal that is called is the name that it spells
            name = self._variable((name.original,), name.original, name.at)
        assert isinstance(name, Path)
        params: list[Expression] = []
        named: dict[str, Expression] = {}
        for argument in structure[2]:
            if argument[0] == "kwparam":
                key = next(leaves)
                assert isinstance(key, Token)
                # Of two arguments of one name, handlebars.js takes the first.
                named.setdefault(_without_brackets(key), self._argument(argument[2], leaves))
            elif named:
                raise TemplateProblem("arguments without a name must come before those with one", next(leaves).at)
            else:
                params.append(self._argument(argument, leaves))
        return _Call(name, tuple(params), tuple(named.items()))

    def _argument(self, structure: Any, leaves: Iterator[Literal | Path | Token]) -> Expression:
        if structure[0] == "subexpr":
            call = self._build(structure, leaves)
            return call.name if self._is_variable(call, may_stand_alone=False) else _helper_call(call)
        leaf = next(leaves)
        assert not isinstance(leaf, Token)
        return leaf

    def _is_variable(self, call: _Call, *, may_stand_alone: bool) -> bool:
        path = call.name
        if path.simple and path.parts[0] in self._params:
            return True
        alone = may_stand_alone and not call.params and not call.named
        return alone and not (path.simple and path.parts[0] in _RESERVED)

    def value(self) -> Path | Literal:
        """Return the name or literal that comes next."""
        token = self._take()
        if token.kind == "string":
            text = token.text[1:-1].replace("\\" + token.text[0], token.text[0])
            return Literal(text, text, token.at)
        if token.kind == "word":
            return Literal(_WORDS[token.text], token.text, token.at)
        if token.kind == "number":
            if len(token.text) > _LONGEST_NUMBER:
                raise TemplateProblem("this number is too long", token.at)
            return Literal(float(token.text) if "." in token.text else int(token.text), token.text, token.at)
        data = token.kind == "data"
        steps = [("", self._take() if data else token)]
        while self._kind() == "sep":
            steps.append((self._take().text, self._take()))
        parts: list[str] = []
        depth = 0
        original = "@" if data else ""
        for separator, step in steps:
            if step.kind not in _NAMES:
                hint = f"; write [{step.text}]" if step.kind in ("number", "word") else ""
                raise _unexpected(step, hint)
            part = _without_brackets(step)
            original += separator + part
            if part == step.text and part in ("..", ".", "this"):
                if parts:
                    raise TemplateProblem(
                        f"{quoted_name(separator + part)} is only allowed at the beginning of a path", step.at
                    )
                depth += part == ".."
            else:
                parts.append(part)
        return self._variable(tuple(parts), original, token.at, depth, data)

    def _variable(self, parts: tuple[str, ...], original: str, at: int, depth: int = 0, data: bool = False) -> Path:
        scoped = _SCOPED.search(original) is not None
        block_param = bool(parts) and not depth and not scoped and parts[0] in self._params
        return Path(parts, original, at, depth, data, scoped, block_param)


def _unexpected(token: Token, hint: str = "") -> TemplateProblem:
    return TemplateProblem(f"{quoted_name(token.text)} was not expected here{hint}", token.at)


def _without_brackets(token: Token) -> str:
    return re.sub(r"\\([\\\]])", r"\1", token.text[1:-1]) if token.kind == "segment" else token.text


def _helper_call(call: _Call) -> HelperCall:
    """Return the call of a helper.

    :raises TemplateProblem: there is no such helper, or it does not take these arguments
    """
    path, count = call.name, len(call.params)
    name = path.parts[0] if path.parts else ""
    if name in _BLOCKS:
        raise TemplateProblem(f"{name} is a block; write {{{{#{name} ...}}}}...{{{{/{name}}}}}", path.at)
    if name not in HELPERS or not (path.simple or name in _RESERVED):
        near = nearest(path.original, [*HELPERS, *_BLOCKS])
        hint = f"did you mean {near}?" if near else f"there are {', '.join([*_BLOCKS, *HELPERS])}"
        hint = "write {{else if ...}}" if path.original.startswith("else") else hint
        raise TemplateProblem(f"there is no helper {path.label}; {hint}", path.at)
    helper = HELPERS[name]
    if count < helper.least or (helper.most is not None and count > helper.most):
        raise TemplateProblem(f"{name} was given {count} arguments; write {helper.usage}", path.at)
    unknown = [] if helper.ignores_named else [key for key, _ in call.named if key not in helper.named]
    if unknown:
        raise TemplateProblem(f"{name} takes no argument {quoted_name(unknown[0])}; write {helper.usage}", path.at)
    return HelperCall(helper, call.params, call.named, path.at)
