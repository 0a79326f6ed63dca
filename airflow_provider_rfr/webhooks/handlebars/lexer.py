"""Nodes of a template, and the lexer: text and tags, by the rules of handlebars.js 4.7."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_rfr.webhooks.handlebars.helpers import Helper
from airflow_provider_rfr.webhooks.handlebars.values import WHITESPACE, Problem, shown


@dataclass(frozen=True, eq=False)
class Literal:
    """A string, number, true, false, null or undefined."""

    value: object
    original: str
    at: int

    @property
    def label(self) -> str:
        return shown(self.original)


@dataclass(frozen=True, eq=False)
class Path:
    """A name, or names behind each other.

    :ivar original: as written, without brackets; two paths of one original close each other's blocks
    :ivar depth: how many ``../`` it begins with
    :ivar data: it begins with ``@``
    :ivar scoped: it is never a helper's name, since it begins with ``this`` or ``.`` (or looks so to handlebars.js)
    :ivar block_param: the first name is one of an ``as |...|`` around it
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
        """It may be a helper's name. As in handlebars.js, ``@`` does not hinder it."""
        return len(self.parts) == 1 and not self.scoped and not self.depth

    @property
    def label(self) -> str:
        return shown(self.original)


@dataclass(frozen=True, eq=False)
class Call:
    """What a tag or parentheses hold, before it is known what the name means."""

    name: Path
    params: tuple[Argument, ...]
    hash: tuple[tuple[str, Argument], ...]
    block_params: tuple[str, ...] = ()

    @property
    def at(self) -> int:
        return self.name.at

    @property
    def bare(self) -> bool:
        return not (self.params or self.hash)


@dataclass(frozen=True, eq=False)
class HelperCall:
    """A helper with what it is given."""

    helper: Helper
    params: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...]
    at: int

    @property
    def label(self) -> str:
        return f"({self.helper.name} ...)"


Argument = Literal | Path | Call
Expression = Literal | Path | HelperCall


@dataclass(frozen=True)
class Strip:
    """``~`` on the left and on the right of a tag."""

    open: bool = False
    close: bool = False


NO_STRIP = Strip()


@dataclass(eq=False)
class Text:
    """Text between tags.

    :ivar value: what whitespace control has left of it
    :ivar after: for a state of JSON before this text, the state behind it, as far as it was needed already
    """

    original: str
    at: int
    value: str = ""
    left_stripped: bool = False
    right_stripped: bool = False
    after: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.value = self.original


@dataclass(eq=False)
class Comment:
    strip: Strip
    at: int


@dataclass(eq=False)
class Mustache:
    expression: Expression
    strip: Strip
    at: int


@dataclass(eq=False)
class Program:
    """Statements, in order.

    :ivar chained: it is one block alone: that of an ``{{else if}}``
    """

    body: list[Statement] = field(default_factory=list)
    chained: bool = False


@dataclass(frozen=True)
class Around:
    """What a statement wants of the text before and after it: ``~``, and that a tag has a line for itself."""

    open: bool
    close: bool
    open_alone: bool = False
    close_alone: bool = False
    inline_alone: bool = False


_NOTHING_AROUND = Around(False, False)


@dataclass(eq=False)
class Block:
    """A block.

    :ivar kind: ``if``, ``unless``, ``each``, ``with`` or ``section`` (``{{#name}}``)
    :ivar subject: what the block is about
    :ivar names: of ``as |...|``; they hold in the first branch as it is written
    :ivar program: what is rendered for ``{{#...}}``; with ``{{^...}}``, the branch behind ``{{else}}``
    """

    kind: str
    subject: Expression
    named: tuple[tuple[str, Expression], ...]
    names: tuple[str, ...]
    at: int
    open_strip: Strip
    program: Program | None = None
    inverse: Program | None = None
    names_in_inverse: bool = False
    inverse_strip: Strip = NO_STRIP
    close_strip: Strip = NO_STRIP
    around: Around = _NOTHING_AROUND


Statement = Text | Comment | Mustache | Block

_WS = "[" + WHITESPACE + "]"
_LITERAL_END = r"(?=[~})" + WHITESPACE + "])"
_NAME_END = r"(?=[=~}/.)|" + WHITESPACE + "])"
_NAME = r"[^!\"#%-,./;->@\[-\^`{-~" + WHITESPACE + "]+" + _NAME_END

# In the order in which handlebars.js tries them. ASCII: its \b knows no other letters.
_OPENING = re.compile(
    rf"(?P<raw>\{{\{{\{{\{{)|(?P<partial>\{{\{{~?\#?>)|(?P<decorator>\{{\{{~?\#?\*)|(?P<block>\{{\{{~?\#)"
    rf"|(?P<end>\{{\{{~?/)|(?P<otherwise>\{{\{{~?(?:\^|{_WS}*else){_WS}*~?\}}\}})|(?P<inverse>\{{\{{~?\^)"
    rf"|(?P<chain>\{{\{{~?{_WS}*else\b)|(?P<unescaped>\{{\{{~?\{{)|(?P<long_comment>\{{\{{~?!--)"
    rf"|(?P<comment>\{{\{{~?!)|(?P<plain>\{{\{{~?&?)",
    re.ASCII,
)
_LONG_COMMENT_END = re.compile(r"--~?\}\}")
_TOKEN = re.compile(
    rf"(?P<open>\()|(?P<shut>\))|(?P<nested>\{{\{{)|(?P<close_raw>\}}\}}\}}\}})|(?P<equals>=)"
    rf"|(?P<id>\.\.|\.{_NAME_END})|(?P<sep>[/.])|(?P<space>{_WS}+)|(?P<close_unescaped>\}}~?\}}\}})|(?P<close>~?\}}\}})"
    r'|(?P<string>"(?:\\"|[^"])*"|' + r"'(?:\\'|[^'])*')|(?P<data>@)"
    rf"|(?P<word>(?:true|false|undefined|null){_LITERAL_END})|(?P<number>-?[0-9]+(?:\.[0-9]+)?{_LITERAL_END})"
    rf"|(?P<params>as{_WS}+\|)|(?P<bar>\|)|(?P<name>{_NAME})|(?P<segment>\[(?:\\\]|[^\]])*\])"
)
_ESCAPED_END = re.compile(r"\\{0,2}\{\{")

_REFUSED = {
    "raw": "raw blocks ({{{{name}}}}) are not supported; write \\{{ where braces shall stand as they are",
    "partial": "partials ({{> name}}) are not supported; write their text here",
    "decorator": "decorators and inline partials ({{* name}}) are not supported; write their text here",
}
_CLOSINGS = ("close", "close_unescaped", "close_raw")


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass
class Tag:
    """A tag: its kind, ``~`` flags and tokens; or, of kind ``text``, what stands between two tags."""

    kind: str
    at: int
    text: str = ""
    strip: Strip = NO_STRIP
    tokens: list[Token] = field(default_factory=list)


def tags(source: str) -> Iterator[Tag]:
    """Text and tags, in their order."""
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
            found = _ESCAPED_END.search(source, start + 2)
            place = found.start() if found else len(source)
            yield _text(source, start, place)
            continue
        tag, place = _tag(source, start)
        yield tag


def _text(source: str, start: int, end: int) -> Tag:
    text = source[start:end]
    if "\0" in text:
        raise Problem("a NUL character can't stand in a template", start + text.index("\0"))
    return Tag("text", start, text)


def _tag(source: str, start: int) -> tuple[Tag, int]:
    opening = _OPENING.match(source, start)
    assert opening is not None
    kind = str(opening.lastgroup)
    if kind in _REFUSED:
        raise Problem(_REFUSED[kind], start)
    if kind == "otherwise":
        return Tag(kind, start, strip=_flags(opening.group(), opening.group())), opening.end()
    if kind in ("comment", "long_comment"):
        return _comment(source, opening, kind)
    tokens, end = _tokens(source, opening.end(), start)
    closing = tokens.pop()
    if closing.kind != ("close_unescaped" if kind == "unescaped" else "close"):
        wanted = "}}}" if kind == "unescaped" else "}}"
        raise Problem(f"this tag must end in {wanted}; put a space between it and a brace that follows", closing.at)
    return Tag(kind, start, strip=_flags(opening.group(), closing.text), tokens=tokens), end


def _comment(source: str, opening: re.Match[str], kind: str) -> tuple[Tag, int]:
    start = opening.start()
    if kind == "long_comment":
        found = _LONG_COMMENT_END.search(source, opening.end() - 2)
        end = found.end() if found else -1
    else:
        found_at = source.find("}}", opening.end())
        end = found_at + 2 if found_at >= 0 else -1
    if end < 0:
        raise Problem("this comment is not closed", start)
    return Tag("comment", start, strip=_flags(opening.group(), source[start:end])), end


def _tokens(source: str, place: int, start: int) -> tuple[list[Token], int]:
    """Tokens up to the one that closes the tag."""
    tokens: list[Token] = []
    while place < len(source):
        found = _TOKEN.match(source, place)
        if found is None or found.lastgroup == "nested":
            raise _unreadable(source, place, start)
        kind = str(found.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, found.group(), place))
        place = found.end()
        if kind in _CLOSINGS:
            return tokens, place
    raise Problem("this tag is not closed with }}", start)


def _unreadable(source: str, place: int, start: int) -> Problem:
    if source[place] in "\"'":
        return Problem("this string is not closed", place)
    if source[place] == "[" and source.find("]", place) < 0:
        return Problem("this [ is not closed", place)
    if source.startswith("{{", place) or source.find("}}", place) < 0:
        return Problem("this tag is not closed with }}", start)
    return Problem(
        f"{shown(source[place])} can't stand here; names with such characters are written [in brackets]", place
    )


def _flags(opening: str, closing: str) -> Strip:
    return Strip(opening[2:3] == "~", closing[-3:-2] == "~")
