"""What is to become of one object, and what that means for its readers.

How an object differs from what is recorded of it: which of its fingerprints, in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.planning.diff import (
    EVERYTHING,
    NO_EFFECTS,
    Effects,
    Touched,
    diff_columns,
    gone_of,
    pending_renames,
    shape_of,
)
from airflow_provider_rfr.builtins.planning.plan import Verb
from airflow_provider_rfr.builtins.state import RecordedObject
from airflow_provider_rfr.builtins.wanted import Tools, Want


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


CONTRACT = "contract changed"
CONSTRAINTS = "constraints changed"
LOGIC = "query changed"
METADATA = "metadata changed"
STAR = "star written out anew"
DEFINITION = "definition changed"


def own_reasons(want: Want, known: RecordedObject, tools: Tools) -> Iterator[str]:
    """The differences. Full texts are compared, not hashes; texts of two canonicalizers never are."""
    ours, theirs = want.fingerprints, known.fingerprints
    if want.kind is not known.kind:
        yield f"kind: {known.kind.value} -> {want.kind.value}"
    if want.key != known.key:
        yield f"renamed from {known.name}"
    if ours.contract.text != theirs.contract.text:
        yield CONTRACT
    if ours.constraints.text != theirs.constraints.text:
        yield CONSTRAINTS
    if not _same_logic(want, known, tools):
        yield LOGIC if want.obj.query is not None else DEFINITION
    elif want.sql is not None and known.sql is not None and want.sql != known.sql and want.obj.query == known.raw_sql:
        yield STAR
    if ours.meta.text != theirs.meta.text:
        yield METADATA


def _same_logic(want: Want, known: RecordedObject, tools: Tools) -> bool:
    """Whether the query, or the definition of a source or a sink, is the recorded one."""
    if want.fingerprints.logic.text == known.fingerprints.logic.text:
        return True
    if known.canonicalizer == tools.canonicalizer or want.obj.query is None:
        return False
    return want.obj.query == known.raw_sql or tools.same_logic(want.obj, known)


def metadata_words(want: Want, known: RecordedObject) -> Iterator[str]:
    """What is said about the object and changed, but its columns' comments."""
    for name in ("comment", "owner"):
        before, after = getattr(known, name), getattr(want.obj, name)
        if before != after:
            yield f"~ {name}: {_text(before)} -> {_text(after)}"
    for name in sorted({*known.properties, *want.obj.properties}):
        before, after = known.properties.get(name), want.obj.properties.get(name)
        if before != after:
            yield f"~ property {name}: {_text(before)} -> {_text(after)}"


def metadata_details(want: Want, known: RecordedObject | None) -> dict[str, Any]:
    """What a step has to write and to take away."""
    gone = sorted(set(known.properties) - set(want.obj.properties)) if known is not None else []
    return {"unset": gone} if gone else {}


def _text(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
