"""Whitespace around tags, as handlebars.js treats it: ``~``, and tags that have a line for themselves.

Every test looks at one run of whitespace at an end of one text, so all of it is linear. A block is trimmed when it is
complete, and its branches before it.
"""

from __future__ import annotations

from airflow_provider_rfr.webhooks.handlebars.nodes import Around, Block, Comment, Mustache, Program, Statement, Text
from airflow_provider_rfr.webhooks.handlebars.terms import WHITESPACE

_Body = list[Statement]


def trim_program(program: Program, *, root: bool = False) -> None:
    """Trim between the statements of one program; its blocks are trimmed already."""
    for index, statement in enumerate(program.body):
        if isinstance(statement, Block):
            _apply(program.body, index, statement.around, statement, root=root)
        elif isinstance(statement, Comment):
            around = Around(statement.strip.open, statement.strip.close, inline_alone=True)
            _apply(program.body, index, around, None, root=root)
        elif isinstance(statement, Mustache):
            _apply(program.body, index, Around(statement.strip.open, statement.strip.close), None, root=root)


def trim_block(block: Block) -> None:
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
