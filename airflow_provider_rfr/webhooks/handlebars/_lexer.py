"""Splits a template into texts and tags, and tags into tokens, by the rules of handlebars.js 4.7."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_rfr.webhooks.handlebars.values import WHITESPACE, TemplateProblem, shown

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
            found = _ESCAPED_END.search(source, start + 2)
            place = found.start() if found else len(source)
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
        found = _COMMENT_ENDS[kind].search(source, opening.end() - 2)
        if found is None:
            raise TemplateProblem("this comment is not closed", start)
        kind, end = "comment", found.end()
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
        found = _TOKEN.match(source, place)
        if found is None or found.lastgroup == "nested":
            if source[place] in "\"'":
                raise TemplateProblem("this string is not closed", place)
            if source[place] == "[" and source.find("]", place) < 0:
                raise TemplateProblem("this [ is not closed", place)
            if source.startswith("{{", place) or source.find("}}", place) < 0:
                break
            remedy = "names with such characters are written [in brackets]"
            raise TemplateProblem(f"unexpected character {shown(source[place])}; {remedy}", place)
        kind = str(found.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, found.group(), place))
        place = found.end()
        if kind.startswith("close"):
            return tokens, place
    raise TemplateProblem("this tag is not closed with }}", start)
