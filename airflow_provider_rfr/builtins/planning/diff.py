"""The difference between two lists of columns: what it asks of a table's storage, and what it means for readers.

Names are compared without case, types as canonical texts. A column is the same one if its name is, or if the
declaration says what it was called before.

A schema update of Iceberg can't rename a column to a name that another one still has, nor add a column under a name
that is being given up. So the way to a list of columns takes up to three updates, one after the other, in one
transaction:

1. columns are dropped, widened, made optional, and renamed; a name that is not free yet is taken in the second update;
2. columns take names that were given up;
3. columns move to their places, and their comments are written.

``tighten`` is what can be asked only of finished rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.builtins.spec import Column, Strategy
from airflow_provider_rfr.lake.types import TypeChange, classify, is_plain, quoted


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


_NEEDS: Final[Mapping[Change, Strategy]] = {
    Change.ADD: Strategy.EVOLVE,
    Change.ADD_REQUIRED: Strategy.REWRITE,
    Change.DROP: Strategy.EVOLVE,
    Change.RENAME: Strategy.EVOLVE,
    Change.WIDEN: Strategy.EVOLVE,
    Change.RETYPE: Strategy.REWRITE,
    Change.REORDER: Strategy.EVOLVE,
    Change.RELAX: Strategy.EVOLVE,
    Change.REQUIRE: Strategy.EVOLVE,
    Change.COMMENT: Strategy.METADATA,
}
"""The gentlest mechanism that can do each of them; a table in Iceberg's format 2."""
_BREAKS_READERS: Final = frozenset({Change.DROP, Change.RENAME, Change.WIDEN, Change.RETYPE})
"""What a view over the column notices: Spark keeps the type that it saw when the view was made."""
NEEDS_VALUES: Final = frozenset({Change.ADD_REQUIRED, Change.RETYPE})
"""After these, a column's values can't be had without an expression."""
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


def pending_renames(
    old: Sequence[Column], new: Sequence[Column], extra: Mapping[str, str] | None = None, *, recorded: bool = True
) -> dict[str, str]:
    """New compared name -> old one, of the renames that are declared and not done.

    A declared rename stays in the declaration after it was done. It is done when the column carried the same words
    before; where it is not known what they were, when the new name is there.

    :param extra: the same from instructions, for renames that took more than one version
    :param recorded: the old columns still say what they were called before
    """
    before, found, taken = folded(old), {}, set()
    for column in new:
        name = column.name.casefold()
        for source in (column.renamed_from and column.renamed_from.casefold(), (extra or {}).get(name)):
            if not source or source == name or source not in before or source in taken:
                continue
            known = before.get(name)
            if known is None or (recorded and (known.renamed_from or "").casefold() != source):
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


def gentlest(changes: Iterable[ColumnChange]) -> Strategy | None:
    """The gentlest mechanism that can do all of them; None for none of them."""
    order = (Strategy.METADATA, Strategy.EVOLVE, Strategy.REWRITE)
    return max((_NEEDS[each.what] for each in changes), key=order.index, default=None)


def possible_renames(changes: Iterable[ColumnChange]) -> list[tuple[str, str]]:
    """Pairs (old, new) of a dropped and an added column of the same type: perhaps one column under a new name."""
    changes = tuple(changes)
    dropped = [each for each in changes if each.what is Change.DROP]
    added = [each for each in changes if each.what in (Change.ADD, Change.ADD_REQUIRED)]
    return [(old.column, new.column) for new in added for old in dropped if new.after == old.before]


def rename_hints(changes: Iterable[ColumnChange]) -> list[str]:
    """A sentence for each of the possible renames."""
    return [
        f"if {new} is {old} under a new name, declare it with renamed_from: {old}"
        for old, new in possible_renames(changes)
    ]


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


_DIGITS: Final = 12
_DEFAULTS: Final = {
    "string": "''",
    "boolean": "false",
    "date": "current_date()",
    "timestamp": "current_timestamp()",
    "timestamp_ntz": "localtimestamp()",
    "binary": "X''",
}
_NUMBERS: Final = ("int", "bigint", "smallint", "tinyint", "float", "double", "decimal")


def short(digest: str, digits: int = _DIGITS) -> str:
    """A fingerprint for people, long enough for an instruction."""
    prefix, colon, rest = digest.rpartition(":")
    return f"{prefix}{colon}{rest[:digits]}"


def instruction(before: str, after: str, changes: Sequence[ColumnChange]) -> str:
    """An entry for ``migrations``, with an expression for each column whose values are not simply there."""
    called = {each.column: each.before for each in changes if each.what is Change.RENAME}
    needed = {each.column: _expression(each, called) for each in changes if each.what in NEEDS_VALUES}
    how = Strategy.REWRITE if needed else Strategy.EVOLVE
    if needed:
        # A deploy that skips a version learns only from the instructions what a column was called in between.
        needed = {**{name: quoted(before) for name, before in called.items()}, **needed}
    entry = f"from: {json.dumps(short(before))}, to: {json.dumps(short(after))}, how: {how.value}"
    if needed:
        # JSON is YAML: texts in double quotes, and names that need them.
        keys = {name: name if is_plain(name) else json.dumps(name, ensure_ascii=False) for name in needed}
        pairs = ", ".join(f"{keys[name]}: {json.dumps(text, ensure_ascii=False)}" for name, text in needed.items())
        entry += f", expressions: {{{pairs}}}"
    return f"- {{{entry}}}"


def _expression(change: ColumnChange, called: Mapping[str, str]) -> str:
    """A first proposal, to be checked by its reader."""
    if change.what is Change.RETYPE:
        return f"CAST({quoted(called.get(change.column, change.column))} AS {change.after})"
    kind = change.after.casefold()
    if kind.startswith(_NUMBERS):
        return f"CAST(0 AS {change.after})"
    return _DEFAULTS.get(kind, f"CAST(NULL AS {change.after})")


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
    """

    shape: ColumnSet = NOTHING
    contents: ColumnSet = NOTHING
    gone: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shape) or bool(self.contents)

    def __or__(self, other: Effects) -> Effects:
        gone = dict((*self.gone, *other.gone))
        return Effects(self.shape | other.shape, self.contents | other.contents, tuple(gone.items()))


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


def gone_of(
    old: Sequence[Column], new: Sequence[Column], changes: Iterable[ColumnChange]
) -> tuple[tuple[str, str], ...]:
    """Old names that are not there any more."""
    renamed = {each.before.casefold(): each.after for each in changes if each.what is Change.RENAME}
    now = folded(new)
    return tuple((name, renamed.get(name, "")) for name in folded(old) if name not in now)
