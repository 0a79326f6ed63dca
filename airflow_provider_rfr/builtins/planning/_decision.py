"""The decision about one object: how it differs from its record, what is done to it, and what its readers see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject
from airflow_provider_rfr.builtins.fingerprint import same_logic
from airflow_provider_rfr.builtins.planning.columns import (
    EVERYTHING,
    NO_EFFECTS,
    ColumnSet,
    Effects,
    diff_columns,
    gone_of,
    pending_renames,
    shape_of,
    widened_of,
)
from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import RecordedObject


class Difference(Enum):
    """How an object can differ from its record."""

    KIND = "kind"
    NAME = "name"
    CONTRACT = "contract"
    CONSTRAINTS = "constraints"
    LOGIC = "logic"
    DEFINITION = "definition"
    STAR = "star"
    METADATA = "metadata"


@dataclass(frozen=True)
class Accepted:
    """Losses that somebody accepted: names of objects, or of columns behind them, as they are compared.

    :ivar removed: by reviewed documents
    :ivar once: for this deploy alone
    """

    removed: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        return name.casefold() in self.removed or name.casefold() in self.once


@dataclass(slots=True)
class Decision:
    """One object's part of a plan, while it is made.

    :ivar how: None: nothing is done to it
    :ivar differences: from its record, each with its sentence; those are among ``reasons``, too
    :ivar words: changes field by field, for display
    :ivar leaves: its table or view is dropped before it is created as another kind
    :ivar was_used: columns of which a ``was`` met what is live
    :ivar loses: names that have to be accepted; ``losses`` says what they stand for
    :ivar input_reasons: reasons that come from what it reads, by the id of that
    :ivar done: a deploy that did not finish has done it
    """

    desired: DesiredObject
    how: Action | None = None
    differences: Mapping[Difference, Reason] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    loses: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    problems: list[Reason] = field(default_factory=list)
    paste: list[str] = field(default_factory=list)
    effects: Effects = NO_EFFECTS
    leaves: bool = False
    renamed: bool = False
    was_used: Set[str] = frozenset()
    drift: tuple[Reason, ...] = ()
    input_reasons: dict[UUID, Reason] = field(default_factory=dict)
    done: bool = False

    def note_differences(self) -> None:
        """Compare the object with its record."""
        desired, known = self.desired, self.desired.recorded
        if known is None:
            return
        found: dict[Difference, Reason] = {}
        ours, theirs = desired.fingerprints, known.fingerprints
        if desired.kind is not known.kind:
            found[Difference.KIND] = because(Why.KIND_CHANGED, known.kind.value, desired.kind.value)
        if desired.key != known.key:
            found[Difference.NAME] = because(Why.RENAMED, known.name)
        # Full texts are compared, not hashes. Those of two canonicalizers differ for equal queries.
        if ours.contract.text != theirs.contract.text:
            found[Difference.CONTRACT] = because(Why.COLUMNS_CHANGED)
        if ours.constraints.text != theirs.constraints.text:
            found[Difference.CONSTRAINTS] = because(Why.CONSTRAINTS_CHANGED)
        has_query, both = desired.obj.query is not None, None not in (desired.sql, known.sql)
        same = same_logic(desired.obj, known) if has_query else ours.logic.text == theirs.logic.text
        if not same and has_query:
            found[Difference.LOGIC] = because(Why.QUERY_CHANGED)
        elif not same:
            found[Difference.DEFINITION] = because(Why.DEFINITION_CHANGED)
        elif both and desired.sql != known.sql and desired.obj.query == known.raw_sql:
            found[Difference.STAR] = because(Why.STAR_CHANGED)
        if ours.meta.text != theirs.meta.text:
            found[Difference.METADATA] = because(Why.METADATA_CHANGED)
        self.differences = found
        self.reasons += found.values()

    def note_metadata(self) -> None:
        """Note what a step has to write, and to take away, where the metadata changed."""
        known = self.desired.recorded
        if known is not None and Difference.METADATA in self.differences:
            self.words += metadata_words(self.desired, known)
            if gone := sorted(set(known.properties) - set(self.desired.obj.properties)):
                self.details["unset"] = gone

    def lose(self, losses: Mapping[str, str], accepted: Accepted) -> None:
        """Note what would be lost, and what stops that.

        :param losses: names to accept, and what they stand for
        """
        reason = self.desired.keep_reason
        for name, what in losses.items():
            if reason is not None:
                self.problems.append(because(Why.KEPT, what, reason))
            elif name not in accepted:
                self.problems.append(because(Why.WOULD_LOSE, what, name, name))
        self.loses = (*self.loses, *losses)
        self.losses = (*self.losses, *losses.values())

    def nothing_left(self) -> None:
        """Everything that was decided has been done already; its effects on readers stay."""
        self.how, self.details, self.words, self.loses, self.losses, self.input_reasons = None, {}, [], (), (), {}
        self.done = True

    @property
    def touched(self) -> bool:
        return self.how is not None or self.renamed or self.leaves


Decisions = Mapping[UUID, Decision]


@dataclass(slots=True)
class Inputs:
    """What an object notices of the changes of what it reads.

    :ivar shape: id -> reason, of inputs of which it reads a column that has another type or name
    :ivar contents: likewise, of which it reads rows that may be others
    :ivar gone: what it reads and won't find
    """

    shape: dict[UUID, Reason] = field(default_factory=dict)
    contents: dict[UUID, Reason] = field(default_factory=dict)
    gone: list[Reason] = field(default_factory=list)


def inputs_of(desired: DesiredObject, decisions: Decisions) -> Inputs:
    """What the object notices; everything that it reads is decided already."""
    found = Inputs()
    before = {each.name: each.uuid for each in desired.recorded.deps} if desired.recorded is not None else {}
    for each in desired.reads:
        read = decisions.get(each.uuid) if each.uuid is not None else None
        if read is None or each.uuid is None:
            continue
        name = read.desired.obj.name
        if before.get(each.name) not in (None, each.uuid):
            found.shape[each.uuid] = found.contents[each.uuid] = because(Why.READS_ANOTHER, name)
            continue
        if read.effects is NO_EFFECTS:
            continue
        if columns := read.effects.shape.intersection(each.columns):
            found.shape[each.uuid] = reads(name, columns)
        if columns := read.effects.contents.intersection(each.columns):
            found.contents[each.uuid] = reads(name, columns)
        # A sink knows columns by their ids: a new name stops nothing.
        is_sink = desired.kind is Kind.SINK
        gone = ((old, now) for old, now in read.effects.gone if old in (each.columns or ()) and not (now and is_sink))
        found.gone += [lost_column(name, old, now) for old, now in gone]
    return found


def reads(name: str, columns: list[str]) -> Reason:
    """Which columns are read."""
    return because(Why.READS, name if columns == ["*"] else ", ".join(f"{name}.{each}" for each in columns))


def lost_column(name: str, column: str, now: str) -> Reason:
    """A column is read that is not there any more.

    :param now: what it is called; empty for a dropped one
    """
    if now:
        return because(Why.READS_RENAMED, f"{name}.{column}", now)
    return because(Why.READS_REMOVED, f"{name}.{column}")


def becomes(desired: DesiredObject, known: RecordedObject, contents: ColumnSet = EVERYTHING) -> Effects:
    """Effects of an object that is created again under its name: all contents, and those columns that changed."""
    if not known.columns or not desired.obj.columns:
        return Effects(EVERYTHING, contents)
    renames = pending_renames(known.columns, desired.obj.columns)
    changes = diff_columns(known.columns, desired.obj.columns, renames)
    gone = gone_of(known.columns, desired.obj.columns, changes)
    return Effects(shape_of(changes), contents, gone, widened_of(changes))


def metadata_words(desired: DesiredObject, known: RecordedObject) -> Iterator[str]:
    """What is said about the object and changed, but its columns' comments."""
    for name in ("comment", "owner"):
        before, after = getattr(known, name), getattr(desired.obj, name)
        if before != after:
            yield f"~ {name}: {_text(before)} -> {_text(after)}"
    for name in sorted({*known.properties, *desired.obj.properties}):
        before, after = known.properties.get(name), desired.obj.properties.get(name)
        if before != after:
            yield f"~ property {name}: {_text(before)} -> {_text(after)}"


def _text(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
