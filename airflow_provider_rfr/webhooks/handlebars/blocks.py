"""Builds the tree of a template: which block a tag belongs to, and whitespace as handlebars.js treats it.

Whitespace control (``~``) and standalone tags look at one run of whitespace at an end of one text, so all of it is
linear. A block is trimmed when it is complete, and its branches before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_rfr.webhooks.handlebars.lexer import (
    NO_STRIP,
    Around,
    Block,
    Comment,
    Literal,
    Mustache,
    Path,
    Program,
    Statement,
    Strip,
    Tag,
    Text,
    tags,
)
from airflow_provider_rfr.webhooks.handlebars.parser import MAX_DEPTH, ExpressionReader, Forms, Meaning, Subject
from airflow_provider_rfr.webhooks.handlebars.values import WHITESPACE, Problem

_Body = list[Statement]


def _trim_program(program: Program, *, root: bool = False) -> None:
    """Trim between the statements of one program; its blocks are trimmed already."""
    for index, statement in enumerate(program.body):
        if isinstance(statement, Block):
            _apply(program.body, index, statement.around, statement, root=root)
        elif isinstance(statement, Comment):
            around = Around(statement.strip.open, statement.strip.close, inline_alone=True)
            _apply(program.body, index, around, None, root=root)
        elif isinstance(statement, Mustache):
            _apply(program.body, index, Around(statement.strip.open, statement.strip.close), None, root=root)


def _trim_block(block: Block) -> None:
    """Trim between the branches of one block, and note what it wants of the text around it."""
    program = _first(block)
    inverse = block.inverse if block.program is not None else None
    other = _first_of(inverse)
    block.around = Around(
        block.open_strip.open,
        block.close_strip.close,
        open_alone=_blank_after(program.body, -1),
        close_alone=_blank_before((other or program).body, None),
    )
    if block.open_strip.close:
        _omit_right(program.body, 0, every=True)
    if other is None:
        if block.close_strip.open:
            _omit_left(program.body, None, every=True)
        return
    if block.inverse_strip.open:
        _omit_left(program.body, None, every=True)
    if block.inverse_strip.close:
        _omit_right(other.body, 0, every=True)
    if block.close_strip.open:
        _omit_left(other.body, None, every=True)
    if _blank_before(program.body, None) and _blank_after(other.body, -1):
        _omit_left(program.body, None)
        _omit_right(other.body, 0)


def _apply(body: _Body, index: int, around: Around, block: Block | None, *, root: bool) -> None:
    before = _blank_before(body, index, root=root)
    after = _blank_after(body, index, root=root)
    if around.close:
        _omit_right(body, index + 1, every=True)
    if around.open:
        _omit_left(body, index - 1, every=True)
    if around.inline_alone and before and after:
        _omit_right(body, index + 1)
        _omit_left(body, index - 1)
    if block is not None and around.open_alone and before:
        _omit_right(_first(block).body, 0)
        _omit_left(body, index - 1)
    if block is not None and around.close_alone and after:
        _omit_right(body, index + 1)
        _omit_left((block.inverse or _first(block)).body, None)


def _first(block: Block) -> Program:
    program = block.program if block.program is not None else block.inverse
    assert program is not None
    return program


def _first_of(inverse: Program | None) -> Program | None:
    """The branch behind the first ``{{else}}``; handlebars.js looks at no later one."""
    if inverse is None or not inverse.chained:
        return inverse
    chained = inverse.body[0]
    assert isinstance(chained, Block)
    return chained.program


def _blank_before(body: _Body, index: int | None, *, root: bool = False) -> bool:
    if index is None:
        index = len(body)
    if index == 0:
        return root
    text = body[index - 1]
    if not isinstance(text, Text):
        return False
    rest = text.original.rstrip(WHITESPACE)
    return "\n" in text.original[len(rest) :] or (root and index == 1 and not rest)


def _blank_after(body: _Body, index: int, *, root: bool = False) -> bool:
    if index + 1 >= len(body):
        return root
    text = body[index + 1]
    if not isinstance(text, Text):
        return False
    rest = text.original.lstrip(WHITESPACE)
    run = text.original[: len(text.original) - len(rest)]
    return "\n" in run or (root and index + 2 >= len(body) and not rest)


def _omit_right(body: _Body, index: int, *, every: bool = False) -> None:
    text = body[index] if 0 <= index < len(body) else None
    if not isinstance(text, Text) or (text.right_stripped and not every):
        return
    before = text.value
    if every:
        text.value = before.lstrip(WHITESPACE)
    else:
        text.value = before.lstrip(" \t").removeprefix("\r").removeprefix("\n")
    text.right_stripped = text.value != before


def _omit_left(body: _Body, index: int | None, *, every: bool = False) -> None:
    if index is None:
        index = len(body) - 1
    text = body[index] if 0 <= index < len(body) else None
    if not isinstance(text, Text) or (text.left_stripped and not every):
        return
    before = text.value
    text.value = before.rstrip(WHITESPACE if every else " \t")
    text.left_stripped = text.value != before


_MAX_TEMPLATE = 64 * 1024


@dataclass
class _Branch:
    """``{{#x}}``, ``{{^x}}``, ``{{else x}}``, or ``{{else}}``, which is about nothing.

    :ivar meaning: what names mean in the branch
    """

    tag: Tag
    meaning: Meaning
    subject: Subject | None = None
    names: tuple[str, ...] = ()
    program: Program = field(default_factory=Program)


@dataclass
class _Open:
    """A block that is not closed yet, with its branches."""

    name: Path | Literal
    around: Meaning
    branches: list[_Branch]

    @property
    def at(self) -> int:
        return self.branches[0].tag.at

    @property
    def inverted(self) -> bool:
        return self.branches[0].tag.kind == "inverse"


class _Builder:
    def __init__(self) -> None:
        self.root = Program()
        self._open: list[_Open] = []
        self._forms = Forms()
        self._outermost = Meaning()

    def add(self, tag: Tag) -> None:
        if tag.kind == "text":
            self._append(Text(tag.text, tag.at))
        elif tag.kind == "comment":
            self._append(Comment(tag.strip, tag.at))
        elif tag.kind in ("plain", "unescaped"):
            call = ExpressionReader(tag, self._forms).call()
            self._append(Mustache(self._meaning().mustache(call), tag.strip, tag.at))
        elif tag.kind in ("block", "inverse"):
            self._begin(tag)
        elif tag.kind in ("otherwise", "chain"):
            self._branch(tag)
        else:
            self._close(tag)

    def finish(self) -> Program:
        if self._open:
            opened = self._open[-1]
            name = opened.name.original
            raise Problem(f"the block {opened.name.label} that begins here is not closed; {_closing(name)}", opened.at)
        _trim_program(self.root, root=True)
        return self.root

    def _meaning(self) -> Meaning:
        return self._open[-1].branches[-1].meaning if self._open else self._outermost

    def _append(self, statement: Statement) -> None:
        program = self._open[-1].branches[-1].program if self._open else self.root
        program.body.append(statement)

    def _begin(self, tag: Tag) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise Problem(f"more than {MAX_DEPTH} blocks inside each other", tag.at)
        name = ExpressionReader(tag, self._forms).first()
        around = self._meaning()
        self._open.append(_Open(name, around, [self._about(tag, around)]))

    def _about(self, tag: Tag, around: Meaning) -> _Branch:
        call = ExpressionReader(tag, self._forms).call(block_params=True)
        return _Branch(tag, around.within(call.block_params), around.block(call), call.block_params)

    def _branch(self, tag: Tag) -> None:
        if not self._open:
            raise Problem("{{else}} stands outside of any block", tag.at)
        opened = self._open[-1]
        if opened.branches[-1].subject is None:
            raise Problem(f"only one {{{{else}}}}, as the last branch, in the block {opened.name.label}", tag.at)
        if tag.kind == "chain" and opened.inverted:
            raise Problem("a block that begins with ^ takes {{else}} without a condition", tag.at)
        _trim_program(opened.branches[-1].program)
        # The names of a branch hold in it alone, and not in the condition of the next.
        around = opened.around
        opened.branches.append(self._about(tag, around) if tag.kind == "chain" else _Branch(tag, around))

    def _close(self, tag: Tag) -> None:
        name = ExpressionReader(tag, self._forms).name()
        if not self._open:
            raise Problem(f"{{{{/{name.original}}}}} closes nothing", tag.at)
        opened = self._open.pop()
        if _identity(name) != _identity(opened.name):
            raise Problem(
                f"the block {opened.name.label} that begins here is closed as {name.label};"
                f" {_closing(opened.name.original)}",
                opened.at,
            )
        _trim_program(opened.branches[-1].program)
        self._append(_assembled(opened, tag.strip))


def _assembled(opened: _Open, close: Strip) -> Block:
    """The block with its branches: each ``{{else x}}`` is a block inside the inverse of the one before."""
    inverse: Program | None = None
    inverse_strip = NO_STRIP
    block: Block | None = None
    for index in reversed(range(len(opened.branches))):
        branch = opened.branches[index]
        program, strip, subject = branch.program, branch.tag.strip, branch.subject
        if subject is None:
            inverse, inverse_strip = program, strip
            continue
        block = Block(subject.kind, subject.expression, subject.named, branch.names, branch.tag.at, strip)
        block.program, block.inverse, block.inverse_strip = program, inverse, inverse_strip
        # From the second {{else x}} on, handlebars.js takes the flags of that tag for those of the closing one.
        block.close_strip = close if index < 2 else strip
        if opened.inverted:
            block.program, block.inverse, block.names_in_inverse = block.inverse, block.program, True
        _trim_block(block)
        inverse, inverse_strip = Program([block], chained=True), strip
    assert block is not None
    return block


def _identity(name: Path | Literal) -> tuple[type, object]:
    """What the names in opening and closing tag must have in common."""
    if isinstance(name, Path) or isinstance(name.value, str):
        return str, name.original
    number = isinstance(name.value, (int, float)) and not isinstance(name.value, bool)
    return (float, name.value) if number else (type(name.value), name.original)


def _closing(name: str) -> str:
    return f"write {{{{/{name[:60]}}}}}"


def parse(source: str) -> Program:
    """The template as a tree.

    :raises Problem: it can't be read, or is too large
    """
    if len(source.encode("utf-8", "surrogatepass")) > _MAX_TEMPLATE:
        raise Problem(f"the template is larger than {_MAX_TEMPLATE:,} bytes", 0)
    builder = _Builder()
    for tag in tags(source):
        builder.add(tag)
    return builder.finish()
