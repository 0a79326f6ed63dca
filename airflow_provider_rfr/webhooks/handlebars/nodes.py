"""What a template is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_rfr.webhooks.handlebars.helpers import Helper
from airflow_provider_rfr.webhooks.handlebars.terms import shown


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


NOTHING_AROUND = Around(False, False)


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
    around: Around = NOTHING_AROUND


Statement = Text | Comment | Mustache | Block
