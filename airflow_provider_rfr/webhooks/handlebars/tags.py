"""Cuts a template into text and tags, and a tag into tokens, by the lexer rules of handlebars.js 4.7."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_rfr.webhooks.handlebars.nodes import NO_STRIP, Strip
from airflow_provider_rfr.webhooks.handlebars.terms import WHITESPACE, Problem, shown

WS = "[" + WHITESPACE + "]"
_LITERAL_END = r"(?=[~})" + WHITESPACE + "])"
_NAME_END = r"(?=[=~}/.)|" + WHITESPACE + "])"
_NAME = r"[^!\"#%-,./;->@\[-\^`{-~" + WHITESPACE + "]+" + _NAME_END

# In the order in which handlebars.js tries them. ASCII: its \b knows no other letters.
_OPENING = re.compile(
    rf"(?P<raw>\{{\{{\{{\{{)|(?P<partial>\{{\{{~?\#?>)|(?P<decorator>\{{\{{~?\#?\*)|(?P<block>\{{\{{~?\#)"
    rf"|(?P<end>\{{\{{~?/)|(?P<otherwise>\{{\{{~?(?:\^|{WS}*else){WS}*~?\}}\}})|(?P<inverse>\{{\{{~?\^)"
    rf"|(?P<chain>\{{\{{~?{WS}*else\b)|(?P<unescaped>\{{\{{~?\{{)|(?P<long_comment>\{{\{{~?!--)"
    rf"|(?P<comment>\{{\{{~?!)|(?P<plain>\{{\{{~?&?)",
    re.ASCII,
)
_LONG_COMMENT_END = re.compile(r"--~?\}\}")
_TOKEN = re.compile(
    rf"(?P<open>\()|(?P<shut>\))|(?P<nested>\{{\{{)|(?P<close_raw>\}}\}}\}}\}})|(?P<equals>=)"
    rf"|(?P<id>\.\.|\.{_NAME_END})|(?P<sep>[/.])|(?P<space>{WS}+)|(?P<close_unescaped>\}}~?\}}\}})|(?P<close>~?\}}\}})"
    r'|(?P<string>"(?:\\"|[^"])*"|' + r"'(?:\\'|[^'])*')|(?P<data>@)"
    rf"|(?P<word>(?:true|false|undefined|null){_LITERAL_END})|(?P<number>-?[0-9]+(?:\.[0-9]+)?{_LITERAL_END})"
    rf"|(?P<params>as{WS}+\|)|(?P<bar>\|)|(?P<name>{_NAME})|(?P<segment>\[(?:\\\]|[^\]])*\])"
)
_ESCAPED_END = re.compile(r"\\{0,2}\{\{")

REFUSED = {
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
    if kind in REFUSED:
        raise Problem(REFUSED[kind], start)
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
