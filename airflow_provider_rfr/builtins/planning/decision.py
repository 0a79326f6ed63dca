"""What is to become of one object, and what that means for its readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.planning.diff import diff_columns, pending_renames
from airflow_provider_rfr.builtins.planning.effects import EVERYTHING, NO_EFFECTS, Effects, Touched, gone_of, shape_of
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.state import RecordedObject
from airflow_provider_rfr.builtins.wanted import Want


@dataclass(slots=True)
class Decision:
    """One object's part of a plan, while it is made.

    :ivar how: None: nothing is done to it
    :ivar leaves: what holds it now is dropped before it comes back as something else
    :ivar instructed: an instruction leads from what is recorded to what is wanted
    :ivar input_reasons: because of what it reads, by id of that
    :ivar done: a deploy that did not finish has done it
    """

    want: Want
    how: Verb | None = None
    reasons: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    loses: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)
    paste: str | None = None
    effects: Effects = NO_EFFECTS
    leaves: bool = False
    renamed: bool = False
    instructed: bool = False
    drift: tuple[str, ...] = ()
    input_reasons: dict[UUID, str] = field(default_factory=dict)
    done: bool = False

    def nothing_left(self) -> None:
        """What was decided has been done already; what it means for readers stays."""
        self.how, self.details, self.words, self.loses, self.input_reasons = None, {}, [], (), {}
        self.done = True

    @property
    def touched(self) -> bool:
        """Whether anything is done to it."""
        return self.how is not None or self.renamed or self.leaves


Decisions = Mapping[UUID, Decision]


@dataclass(slots=True)
class Inputs:
    """What an object notices of the changes of what it reads.

    :ivar shape: id -> words, of inputs of which it reads a column that has another type or name
    :ivar contents: likewise, of which it reads rows that may be others
    :ivar gone: what it reads and won't find, in words
    """

    shape: dict[UUID, str] = field(default_factory=dict)
    contents: dict[UUID, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def inputs_of(want: Want, decisions: Decisions) -> Inputs:
    """What the object notices; everything that it reads is decided already."""
    found = Inputs()
    before = {each.name: each.uuid for each in want.recorded.deps} if want.recorded is not None else {}
    for each in want.reads:
        read = decisions.get(each.uuid) if each.uuid is not None else None
        if read is None or each.uuid is None:
            continue
        name = read.want.obj.name
        if before.get(each.name) not in (None, each.uuid):
            found.shape[each.uuid] = found.contents[each.uuid] = f"reads {name}, which is another object now"
            continue
        if read.effects is NO_EFFECTS:
            continue
        if columns := read.effects.shape.met(each.columns):
            found.shape[each.uuid] = reads(name, columns)
        if columns := read.effects.contents.met(each.columns):
            found.contents[each.uuid] = reads(name, columns)
        for old, now in read.effects.gone:
            if old in (each.columns or ()):
                found.gone.append(f"reads {name}.{old}, which is {f'called {now}' if now else 'gone'} now")
    return found


def reads(name: str, columns: list[str]) -> str:
    """In words."""
    return f"reads {name}" if columns == ["*"] else f"reads {', '.join(f'{name}.{each}' for each in columns)}"


def becomes(want: Want, known: RecordedObject, contents: Touched = EVERYTHING) -> Effects:
    """For readers of something that is made anew under its name: only what its columns say has changed."""
    if not known.columns or not want.obj.columns:
        return Effects(EVERYTHING, contents)
    renames = pending_renames(known.columns, want.obj.columns)
    changes = diff_columns(known.columns, want.obj.columns, renames)
    return Effects(shape_of(changes), contents, gone_of(known.columns, want.obj.columns, changes))
