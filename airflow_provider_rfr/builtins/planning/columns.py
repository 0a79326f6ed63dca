"""How a table's columns become the declared ones: which column was which, what differs, and the updates that do it.

Names are compared without case, types as canonical texts. A column is the same one if its name is, or if the
declaration says what it was (:class:`~airflow_provider_rfr.builtins.spec.Was`).

A schema update of Iceberg can't rename a column to a name that another one still has, nor add a column under a name
that is being given up. So the way to a list of columns takes up to three updates, one after the other, in one
transaction:

1. columns are dropped, widened, made optional, and renamed; a name that is not free yet is taken in the second update;
2. columns take names that were given up;
3. columns move to their places, and their comments are written.

``tighten`` is what can be asked only of finished rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.spec import Column, Was
from airflow_provider_rfr.builtins.sql.parse import columns_read, compose, identifier
from airflow_provider_rfr.lake.types import TypeChange, classify


class Change(str, Enum):
    """What can happen to a column."""

    ADD = "add"
    ADD_REQUIRED = "add_required"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    RETYPE = "retype"
    REORDER = "reorder"
    RELAX = "relax"
    REQUIRE = "require"
    COMMENT = "comment"


_NEEDS: Final[Mapping[Change, Action]] = {
    Change.ADD: Action.EVOLVE,
    Change.ADD_REQUIRED: Action.REWRITE,
    Change.DROP: Action.EVOLVE,
    Change.RENAME: Action.EVOLVE,
    Change.WIDEN: Action.EVOLVE,
    Change.RETYPE: Action.REWRITE,
    Change.REORDER: Action.EVOLVE,
    Change.RELAX: Action.EVOLVE,
    Change.REQUIRE: Action.EVOLVE,
    Change.COMMENT: Action.METADATA,
}
"""The gentlest mechanism that can do each of them; a table in Iceberg's format 2."""
_BREAKS_READERS: Final = frozenset({Change.DROP, Change.RENAME, Change.WIDEN, Change.RETYPE})
"""What a view over the column notices: Spark keeps the type that it saw when the view was made."""
NEEDS_VALUES: Final = frozenset({Change.ADD_REQUIRED, Change.RETYPE})
"""After these, a column's values can't be had without an expression."""
_TRIES: Final = re.compile(r"\btry_\w+\s*\(", re.IGNORECASE)
"""A function that makes a NULL of what it can't read."""
_SIGNS: Final = {
    Change.ADD: "+ column {column} {after}",
    Change.ADD_REQUIRED: "+ column {column} {after}, required",
    Change.DROP: "- column {column} {before} (its values stay in older snapshots until those expire)",
    Change.RENAME: "> column {before} -> {column} (rename)",
    Change.WIDEN: "^ {column}: {before} -> {after} (widen)",
    Change.RETYPE: "! {column}: {before} -> {after} (incompatible)",
    Change.REORDER: "~ column order: {after}",
    Change.RELAX: "~ {column}: required -> optional",
    Change.REQUIRE: "~ {column}: optional -> required (if no value is NULL)",
    Change.COMMENT: "~ {column}: comment",
}


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One difference.

    :ivar column: its new name; the old one of a dropped column; empty for the order of all
    :ivar before: old type; of a rename, the old name
    """

    what: Change
    column: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return _SIGNS[self.what].format(column=self.column, before=self.before, after=self.after)


def folded(columns: Iterable[Column]) -> dict[str, Column]:
    """Columns by their compared names."""
    return {each.name.casefold(): each for each in columns}


def pending_renames(old: Sequence[Column], new: Sequence[Column], *, recorded: bool = True) -> dict[str, str]:
    """New compared name -> old one, of the renames that are declared and not done.

    A ``was`` stays in the declaration after it was done. It is done when the column said the same before; where it is
    not known what was said, when the new name is there.

    :param recorded: the old columns still say what they were
    """
    before, found, taken = folded(old), {}, set()
    for column in new:
        name = column.name.casefold()
        for source in (each.name.casefold() for each in column.was if each.name is not None):
            if source == name or source not in before or source in taken:
                continue
            known = before.get(name)
            if known is None or (recorded and source not in {(each.name or "").casefold() for each in known.was}):
                found[name] = source
                taken.add(source)
                break
    return found


def _origins(old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str]) -> dict[str, str]:
    """New compared name -> compared name of the column that it was; new columns have no entry."""
    before, moved = folded(old), set(renames.values())
    found = {}
    for column in new:
        name = column.name.casefold()
        source = renames.get(name) or (name if name in before and name not in moved else None)
        if source is not None:
            found[name] = source
    return found


def diff_columns(
    old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str] | None = None
) -> tuple[ColumnChange, ...]:
    """Every difference, in the order of the new columns, dropped ones last."""
    before, sources = folded(old), _origins(old, new, renames or {})
    found: list[ColumnChange] = []
    for column in new:
        name, source = column.name, sources.get(column.name.casefold())
        if source is None:
            what = Change.ADD_REQUIRED if column.required else Change.ADD
            found.append(ColumnChange(what, name, "", column.type))
            continue
        known = before[source]
        if known.name.casefold() != name.casefold():
            found.append(ColumnChange(Change.RENAME, name, known.name, name))
        if (kind := classify(known.type, column.type)) is not TypeChange.SAME:
            what = Change.WIDEN if kind is TypeChange.WIDEN else Change.RETYPE
            found.append(ColumnChange(what, name, known.type, column.type))
        if known.required != column.required:
            found.append(ColumnChange(Change.REQUIRE if column.required else Change.RELAX, name))
        if known.comment != column.comment:
            found.append(ColumnChange(Change.COMMENT, name, known.comment or "", column.comment or ""))
    kept = set(sources.values())
    dropped = [each for each in old if each.name.casefold() not in kept]
    if [name for name in before if name in kept] != list(sources.values()):
        found.append(ColumnChange(Change.REORDER, "", "", ", ".join(each.name for each in new)))
    return (*found, *(ColumnChange(Change.DROP, each.name, each.type, "") for each in dropped))


def gentlest(changes: Iterable[ColumnChange]) -> Action | None:
    """The gentlest mechanism that can do all of them; None for none of them."""
    order = (Action.METADATA, Action.EVOLVE, Action.REWRITE)
    return max((_NEEDS[each.what] for each in changes), key=order.index, default=None)


@dataclass(frozen=True, slots=True)
class Expressions:
    """How the values of a table's columns are made from those of the old columns.

    :ivar texts: SQL by new column, over the old columns; a column that is not here keeps its values
    :ivar used: the ``was`` that each of them comes from
    :ivar missing: changes that need values and have no ``was`` for them
    :ivar unreadable: by new column, what is wrong with its ``using``
    :ivar narrowed: new columns on whose way values may be lost, though every row stays
    """

    texts: Mapping[str, str]
    used: Mapping[str, Was]
    missing: tuple[ColumnChange, ...]
    unreadable: Mapping[str, str]
    narrowed: tuple[str, ...] = ()


def expressions_of(
    old: Sequence[Column], new: Sequence[Column], changes: Iterable[ColumnChange], renames: Mapping[str, str]
) -> Expressions:
    """What the declaration says about the values of columns that do not simply stay."""
    before, sources = folded(old), _origins(old, new, renames)
    retyped = {each.column.casefold() for each in changes if each.what is Change.RETYPE}
    # A `using` may call a column what it is called now, or was at any time.
    called = {name: identifier(before[source].name) for name, source in sources.items() if name not in before}
    called |= {
        was.name.casefold(): identifier(before[sources[column.name.casefold()]].name)
        for column in new
        for was in column.was
        if was.name is not None and column.name.casefold() in sources and was.name.casefold() not in before
    }
    texts, used, unreadable, narrowed = {}, {}, {}, []
    for column in new:
        name = column.name.casefold()
        source = before[sources[name]] if name in sources else None
        was = _meets(column, source)
        if was is None or was.using is None:
            continue
        if source is not None and name not in retyped and not _is_past(was, column):
            continue
        texts[column.name], used[column.name] = was.using, was
        try:
            texts[column.name] = text = compose(was.using, called)
            unknown = [each for each in columns_read(text) if each not in before]
        except ValueError as error:
            unreadable[column.name] = str(error)
            continue
        if unknown:
            unreadable[column.name] = f"it reads {', '.join(unknown)}, and the table has {', '.join(before)}"
        if source is not None and narrows(source.type, column.type, text):
            narrowed.append(column.name)
    missing = tuple(each for each in changes if each.what in NEEDS_VALUES and each.column not in texts)
    return Expressions(texts, used, missing, unreadable, tuple(narrowed))


def _meets(column: Column, source: Column | None) -> Was | None:
    """The newest ``was`` with a ``using`` for what the table has."""
    for was in column.was:
        if was.using is None:
            continue
        if source is None:
            if was.name is None and was.type is None:
                return was
        elif (was.name or column.name).casefold() == source.name.casefold() and was.type in (None, source.type):
            return was
    return None


def _is_past(was: Was, column: Column) -> bool:
    """Whether it is not met again once the column is as declared, so that values are not made twice."""
    renamed = was.name is not None and was.name.casefold() != column.name.casefold()
    return renamed or was.type not in (None, column.type)


def narrows(before: str, after: str, using: str) -> bool:
    """Whether values may be lost on the way from one type to another, though every row stays."""
    return _TRIES.search(using) is not None or classify(after, before) is TypeChange.WIDEN


_DEFAULTS: Final = {
    "string": "''",
    "boolean": "false",
    "date": "current_date()",
    "timestamp": "current_timestamp()",
    "timestamp_ntz": "localtimestamp()",
    "binary": "X''",
}
_NUMBERS: Final = ("int", "bigint", "smallint", "tinyint", "float", "double", "decimal")


def proposed(change: ColumnChange, changes: Iterable[ColumnChange]) -> Was:
    """A first proposal for the ``was`` of a column whose values are not simply there, to be checked by its reader."""
    if change.what is Change.RETYPE:
        called = {each.column: each.before for each in changes if each.what is Change.RENAME}
        name = called.get(change.column)
        return Was(name, change.before, f"CAST({identifier(name or change.column)} AS {change.after})")
    kind = change.after.casefold()
    if kind.startswith(_NUMBERS):
        return Was(using=f"CAST(0 AS {change.after})")
    return Was(using=_DEFAULTS.get(kind, f"CAST(NULL AS {change.after})"))


def possible_renames(changes: Iterable[ColumnChange]) -> list[tuple[str, str]]:
    """Pairs (old, new) of a dropped and an added column of the same type: perhaps one column under a new name."""
    changes = tuple(changes)
    dropped = [each for each in changes if each.what is Change.DROP]
    added = [each for each in changes if each.what in (Change.ADD, Change.ADD_REQUIRED)]
    return [(old.column, new.column) for new in added for old in dropped if new.after == old.before]


_Operation = dict[str, Any]


@dataclass
class _Draft:
    """Schema updates in the making.

    :ivar names: compared names of the columns as they are after ``first``; renamed ones begin with ``new:``
    """

    old: Mapping[str, Column]
    names: list[str]
    first: list[_Operation] = field(default_factory=list)
    second: list[_Operation] = field(default_factory=list)
    third: list[_Operation] = field(default_factory=list)

    def drop(self, name: str) -> None:
        self.first.append({"op": "drop", "column": self.old[name].name})
        self.names.remove(name)

    def rename(self, source: str, column: Column, number: int) -> None:
        name = self.old[source].name
        if column.name.casefold() in self.old:
            between = f"rfr_renamed_{number}"
            self.first.append({"op": "rename", "column": name, "to": between})
            self.second.append({"op": "rename", "column": between, "to": column.name})
        else:
            self.first.append({"op": "rename", "column": name, "to": column.name})
        self.names[self.names.index(source)] = f"new:{column.name.casefold()}"

    def add(self, column: Column) -> None:
        given_up = column.name.casefold() in self.old
        operation = {"op": "add", "column": column.name, "type": column.type}
        (self.second if given_up else self.first).append(operation)

    def move(self, new: Sequence[Column]) -> None:
        """Put the columns into their order, each behind the one before it."""
        current = [name.removeprefix("new:") for name in self.names]
        first = [each for each in self.first if each["op"] == "add"]
        current += [each["column"].casefold() for each in (*first, *self.second) if each["op"] == "add"]
        for place, column in enumerate(new):
            name = column.name.casefold()
            if current[place] != name:
                current.remove(name)
                current.insert(place, name)
                self.third.append(
                    {"op": "move", "column": column.name, "after": new[place - 1].name if place else None}
                )


def schema_updates(old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str]) -> dict[str, Any]:
    """From the old columns to the new ones, for a step's details; what there is none of is left out.

    A column of an incompatible new type is dropped and added again. Operations are ``drop``, ``rename``, ``widen``,
    ``relax``, ``add``, ``move``, ``comment`` and ``require``.

    :returns: ``updates``: schema updates of one transaction, in order, each a list of operations;
        ``tighten``: ``require`` operations, to be refused if there is a NULL
    """
    changes = diff_columns(old, new, renames)
    sources = _origins(old, new, renames)
    replaced = {each.column.casefold() for each in changes if each.what is Change.RETYPE}
    draft = _Draft(folded(old), list(folded(old)))
    # New compared name -> old column, of those columns that stay.
    kept = {name: draft.old[source] for name, source in sources.items() if name not in replaced}
    staying = {each.name.casefold() for each in kept.values()}
    for name in [name for name in draft.old if name not in staying]:
        draft.drop(name)
    for change in changes:
        name = change.column.casefold()
        if name in kept and change.what in (Change.WIDEN, Change.RELAX):
            operation = {"op": change.what.value, "column": kept[name].name}
            draft.first.append(operation if change.what is Change.RELAX else {**operation, "type": change.after})
    for number, column in enumerate(new):
        name = column.name.casefold()
        if name not in kept:
            draft.add(column)
        elif sources[name] != name:
            draft.rename(sources[name], column, number)
    draft.move(new)
    tighten = []
    for column in new:
        before = kept.get(column.name.casefold())
        if (before.comment if before is not None else None) != column.comment:
            draft.third.append({"op": "comment", "column": column.name, "comment": column.comment})
        if column.required and (before is None or not before.required):
            tighten.append({"op": "require", "column": column.name})
    updates = [batch for batch in (draft.first, draft.second, draft.third) if batch]
    found: dict[str, Any] = {"updates": updates} if updates else {}
    return {**found, "tighten": tighten} if tighten else found


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """Columns, or all of them, as they are compared."""

    columns: frozenset[str] = frozenset()
    all: bool = False

    def __bool__(self) -> bool:
        return self.all or bool(self.columns)

    def __or__(self, other: ColumnSet) -> ColumnSet:
        return ColumnSet(self.columns | other.columns, self.all or other.all)

    def intersection(self, used: Sequence[str] | None) -> list[str]:
        """Those among the used columns; ``["*"]`` if the used ones are unknown or all are touched."""
        if used is None or self.all:
            return ["*"] if self else []
        return sorted(self.columns.intersection(used))


NOTHING = ColumnSet()
EVERYTHING = ColumnSet(all=True)


@dataclass(frozen=True, slots=True)
class Effects:
    """What readers of an object notice.

    :ivar shape: columns of another type or name than before, or dropped; an added one has no reader
        yet
    :ivar contents: columns whose values may be others than before, or of which there may be other rows
    :ivar gone: old names that no longer exist, with the present name ("" for a dropped column)
    :ivar widened: those of ``shape`` that only take more values than before
    """

    shape: ColumnSet = NOTHING
    contents: ColumnSet = NOTHING
    gone: tuple[tuple[str, str], ...] = ()
    widened: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.shape) or bool(self.contents)

    def __or__(self, other: Effects) -> Effects:
        gone = dict((*self.gone, *other.gone))
        shape, contents = self.shape | other.shape, self.contents | other.contents
        return Effects(shape, contents, tuple(gone.items()), self.widened | other.widened)


NO_EFFECTS = Effects()


def shape_of(changes: Iterable[ColumnChange]) -> ColumnSet:
    """Columns that readers see changed, by their old and their new names."""
    found: set[str] = set()
    for each in changes:
        if each.what in _BREAKS_READERS:
            found.add(each.column.casefold())
            if each.what is Change.RENAME:
                found.add(each.before.casefold())
    return ColumnSet(frozenset(found))


def widened_of(changes: Iterable[ColumnChange]) -> frozenset[str]:
    """Columns that only take more values than before."""
    changes = tuple(changes)
    others = {each.column for each in changes if each.what in (Change.RENAME, Change.RETYPE, Change.DROP)}
    return frozenset(
        each.column.casefold() for each in changes if each.what is Change.WIDEN and each.column not in others
    )


def gone_of(
    old: Sequence[Column], new: Sequence[Column], changes: Iterable[ColumnChange]
) -> tuple[tuple[str, str], ...]:
    """Old names that are not there any more."""
    renamed = {each.before.casefold(): each.after for each in changes if each.what is Change.RENAME}
    now = folded(new)
    return tuple((name, renamed.get(name, "")) for name in folded(old) if name not in now)
