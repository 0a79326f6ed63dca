"""Puts tags together: which block a tag stands in, and where blocks end."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_rfr.webhooks.handlebars.expressions import MAX_DEPTH, ExpressionReader, Forms
from airflow_provider_rfr.webhooks.handlebars.meaning import Meaning, Subject
from airflow_provider_rfr.webhooks.handlebars.nodes import (
    NO_STRIP,
    Block,
    Comment,
    Literal,
    Mustache,
    Path,
    Program,
    Statement,
    Strip,
    Text,
)
from airflow_provider_rfr.webhooks.handlebars.tags import Tag, tags
from airflow_provider_rfr.webhooks.handlebars.terms import Problem
from airflow_provider_rfr.webhooks.handlebars.whitespace import trim_block, trim_program

MAX_TEMPLATE = 64 * 1024


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
        trim_program(self.root, root=True)
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
        trim_program(opened.branches[-1].program)
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
        trim_program(opened.branches[-1].program)
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
        trim_block(block)
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
    if len(source.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE:
        raise Problem(f"the template is larger than {MAX_TEMPLATE:,} bytes", 0)
    builder = _Builder()
    for tag in tags(source):
        builder.add(tag)
    return builder.finish()
