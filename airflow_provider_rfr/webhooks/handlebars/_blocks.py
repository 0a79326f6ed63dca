"""Builds the tree of a template: which block each tag belongs to, and whitespace control as in handlebars.js.

``~`` and tags that are alone on their line each look at one run of whitespace at one end of one text, so whitespace
control takes linear time. A block is trimmed when it is complete, after its branches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_rfr.webhooks.handlebars._parser import (
    MAX_DEPTH,
    NO_STRIP,
    Expression,
    ExpressionParser,
    Strip,
    Subject,
    Tag,
    tags,
)
from airflow_provider_rfr.webhooks.handlebars.values import WHITESPACE, TemplateProblem, size_of

_MAX_TEMPLATE = 64 * 1024
_CACHED_TEMPLATES = 128


@dataclass(eq=False)
class Text:
    """Text between tags; ``value``: the part of it that whitespace control left."""

    original: str
    at: int
    value: str
    left_stripped: bool = False
    right_stripped: bool = False


@dataclass(frozen=True, eq=False)
class _Comment:
    strip: Strip
    at: int


@dataclass(frozen=True, eq=False)
class Mustache:
    """A tag that prints an expression: ``{{expression}}``."""

    expression: Expression
    strip: Strip
    at: int


@dataclass(eq=False)
class Program:
    """A template, or a branch of a block.

    :ivar chained: the block of an ``{{else if}}``, if the branch consists of it
    :ivar names: block parameters (``as |...|``) that are valid in it
    """

    body: list[Text | _Comment | Mustache | Block] = field(default_factory=list)
    chained: Block | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Block:
    """A block.

    :ivar program: rendered if the subject is true; of ``{{^...}}`` the branch after ``{{else}}``
    :ivar inverse: rendered if the subject is false
    :ivar strip: the effect of ``~`` in its first and last tag on the text around it
    :ivar open_alone: its opening tag ends its line; the line counts as the tag's own if only blanks precede it
    :ivar close_alone: its closing tag begins its line
    """

    subject: Subject
    at: int
    program: Program | None
    inverse: Program | None
    strip: Strip
    open_alone: bool
    close_alone: bool


_Body = list[Text | _Comment | Mustache | Block]


@lru_cache(maxsize=_CACHED_TEMPLATES)
def parse(source: str) -> Program:
    """Parse a template into its tree, which is shared and must not be changed.

    :raises TemplateProblem: it can't be read, or is too large
    """
    if size_of(source) > _MAX_TEMPLATE:
        raise TemplateProblem(f"the template is larger than {_MAX_TEMPLATE:,} bytes", 0)
    return _BlockParser(source).template()


class _Branch(NamedTuple):
    """A branch of a block; ``subject``: that of ``{{#x}}``, ``{{^x}}`` or ``{{else x}}``; None for ``{{else}}``."""

    tag: Tag
    subject: Subject | None
    program: Program


class _BlockParser:
    """A recursive-descent parser of the tags of one template."""

    def __init__(self, source: str) -> None:
        self._tags = tags(source)
        self._structures: set[str] = set()

    def template(self) -> Program:
        program, end = self._program(frozenset(), (), 0)
        if end is None:
            return program
        if end.kind == "end":
            name = self._expression(end).closing_name()
            raise TemplateProblem(f"{{{{/{name.original}}}}} without an open block", end.at)
        raise TemplateProblem("{{else}} outside of any block", end.at)

    def _expression(self, tag: Tag, params: frozenset[str] = frozenset()) -> ExpressionParser:
        return ExpressionParser(tag, params, self._structures)

    def _program(self, params: frozenset[str], names: tuple[str, ...], depth: int) -> tuple[Program, Tag | None]:
        """Return the statements up to the tag that ends the branch, and that tag."""
        program, end = Program(names=names), None
        for tag in self._tags:
            if tag.kind == "text":
                program.body.append(Text(tag.text, tag.at, tag.text))
            elif tag.kind == "comment":
                program.body.append(_Comment(tag.strip, tag.at))
            elif tag.kind in ("plain", "unescaped"):
                program.body.append(Mustache(self._expression(tag, params).mustache(), tag.strip, tag.at))
            elif tag.kind in ("block", "inverse"):
                if depth >= MAX_DEPTH:
                    raise TemplateProblem(f"more than {MAX_DEPTH} nested blocks", tag.at)
                program.body.append(self._block(tag, params, depth + 1))
            else:
                end = tag
                break
        # After all of its statements: a tag's line depends on the text behind it as well.
        _trim_program(program, root=depth == 0)
        return program, end

    def _block(self, opening: Tag, params: frozenset[str], depth: int) -> Block:
        name = self._expression(opening, params).value()
        remedy = f"write {{{{/{name.original[:60]}}}}}"
        branches: list[_Branch] = []
        tag = opening
        subject: Subject | None = self._expression(opening, params).subject()
        while True:
            names = subject.params if subject is not None else ()
            program, end = self._program(params.union(names), names, depth)
            branches.append(_Branch(tag, subject, program))
            if end is None:
                raise TemplateProblem(f"the block {name.label} that begins here is not closed; {remedy}", opening.at)
            if end.kind == "end":
                break
            if subject is None:
                raise TemplateProblem(f"only one {{{{else}}}}, as the last branch, in the block {name.label}", end.at)
            if end.kind == "chain" and opening.kind == "inverse":
                raise TemplateProblem("a block that begins with ^ takes {{else}} without a condition", end.at)
            tag = end
            # With the names around the block: those of a branch do not hold in the condition of the next.
            subject = self._expression(tag, params).subject() if tag.kind == "chain" else None
        closing = self._expression(end).closing_name()
        if closing.original != name.original:
            raise TemplateProblem(
                f"the block {name.label} that begins here is closed as {closing.label}; {remedy}", opening.at
            )
        inverse: Program | None = None
        middle = NO_STRIP
        block: Block | None = None
        # From the last one: each {{else x}} is a block inside the inverse of the branch before.
        for index, branch in reversed(list(enumerate(branches))):
            if branch.subject is None:
                inverse = branch.program
            else:
                # From the second {{else x}} on, handlebars.js takes the flags of that tag for those of the closing one.
                block = _trimmed_block(branch, inverse, middle, end.strip if index < 2 else branch.tag.strip)
                inverse = Program([block], chained=block)
            middle = branch.tag.strip
        assert block is not None
        return block


def _trimmed_block(branch: _Branch, other: Program | None, middle: Strip, closing: Strip) -> Block:
    """Return the block of a branch, with the whitespace between its tags and its branches trimmed.

    :param other: the branch after ``{{else}}``, or the chain of those after ``{{else x}}``
    :param middle: whitespace control of the tag between the branches
    :param closing: whitespace control of the closing tag
    """
    assert branch.subject is not None
    opening = branch.tag.strip
    inverted = branch.tag.kind == "inverse"
    # As in handlebars.js, the two branches of an inverted block are trimmed as if they were in the other order, and of
    # a chain only the first branch is looked at.
    program, inverse = (other, branch.program) if inverted else (branch.program, other)
    first, second = (program, inverse) if program is not None else (branch.program, None)
    if second is not None and second.chained is not None:
        second = second.chained.program
    last = first if second is None else second
    open_alone, close_alone = _blank_after(first.body, -1), _blank_before(last.body, len(last.body))
    if opening.close:
        _strip_right(first.body, 0, every=True)
    if second is not None and middle.open:
        _strip_left(first.body, len(first.body) - 1, every=True)
    if second is not None and middle.close:
        _strip_right(second.body, 0, every=True)
    if closing.open:
        _strip_left(last.body, len(last.body) - 1, every=True)
    if second is not None and _blank_before(first.body, len(first.body)) and _blank_after(second.body, -1):
        _strip_left(first.body, len(first.body) - 1)
        _strip_right(second.body, 0)
    strip = Strip(opening.open, closing.close)
    return Block(branch.subject, branch.tag.at, program, inverse, strip, open_alone, close_alone)


def _trim_program(program: Program, *, root: bool = False) -> None:
    """Trim the texts between the statements of a program whose blocks are trimmed already."""
    body = program.body
    for index, statement in enumerate(body):
        if isinstance(statement, Text):
            continue
        # These look at original texts, so what was trimmed before does not matter.
        before, after = _blank_before(body, index, root=root), _blank_after(body, index, root=root)
        if statement.strip.close:
            _strip_right(body, index + 1, every=True)
        if statement.strip.open:
            _strip_left(body, index - 1, every=True)
        if isinstance(statement, _Comment) and before and after:
            _strip_right(body, index + 1)
            _strip_left(body, index - 1)
        if not isinstance(statement, Block):
            continue
        first = statement.program if statement.program is not None else statement.inverse
        assert first is not None
        if statement.open_alone and before:
            _strip_right(first.body, 0)
            _strip_left(body, index - 1)
        if statement.close_alone and after:
            last = (statement.inverse or first).body
            _strip_right(body, index + 1)
            _strip_left(last, len(last) - 1)


def _blank_before(body: _Body, index: int, *, root: bool = False) -> bool:
    """Tell whether only blanks are between a line break, or the template's beginning, and this statement."""
    if index == 0:
        return root
    text = body[index - 1]
    if not isinstance(text, Text):
        return False
    rest = text.original.rstrip(WHITESPACE)
    return "\n" in text.original[len(rest) :] or (root and index == 1 and not rest)


def _blank_after(body: _Body, index: int, *, root: bool = False) -> bool:
    """Tell whether only blanks are between this statement and a line break or the template's end."""
    if index + 1 >= len(body):
        return root
    text = body[index + 1]
    if not isinstance(text, Text):
        return False
    rest = text.original.lstrip(WHITESPACE)
    run = text.original[: len(text.original) - len(rest)]
    return "\n" in run or (root and index + 2 >= len(body) and not rest)


def _strip_right(body: _Body, index: int, *, every: bool = False) -> None:
    """Strip the beginning of a text: blanks and one line break, or ``every`` whitespace."""
    text = body[index] if 0 <= index < len(body) else None
    if not isinstance(text, Text) or (text.right_stripped and not every):
        return
    before = text.value
    if every:
        text.value = before.lstrip(WHITESPACE)
    else:
        text.value = before.lstrip(" \t").removeprefix("\r").removeprefix("\n")
    text.right_stripped = text.value != before


def _strip_left(body: _Body, index: int, *, every: bool = False) -> None:
    """Strip the end of a text: blanks, or ``every`` whitespace."""
    text = body[index] if 0 <= index < len(body) else None
    if not isinstance(text, Text) or (text.left_stripped and not every):
        return
    before = text.value
    text.value = before.rstrip(WHITESPACE if every else " \t")
    text.left_stripped = text.value != before
