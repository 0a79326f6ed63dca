"""How a table's columns become the declared ones: which column was which, what differs, and the updates that do it.

Names are compared without case, types as canonical texts. A column is the same one if its name is, or if the
declaration says what it was (:class:`~airflow_provider_rfr.builtins.spec.Was`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.spec import Column, Was
from airflow_provider_rfr.builtins.sql.parse import columns_read, compose, identifier
from airflow_provider_rfr.exceptions import QueryError
from airflow_provider_rfr.lake.types import TypeChange, classify


class Change(str, Enum):
    """What can happen to a column, the gentlest action that can do it (in Iceberg's format 2), and its words."""

    how: Action
    words: str

    def __new__(cls, code: str, how: Action, words: str) -> Change:
        found = str.__new__(cls, code)
        found._value_, found.how, found.words = code, how, words
        return found

    ADD = "add", Action.EVOLVE, "+ column {column} {after}"
    ADD_REQUIRED = "add_required", Action.REWRITE, "+ column {column} {after}, required"
    DROP = "drop", Action.EVOLVE, "- column {column} {before} (its values stay in older snapshots until those expire)"
    RENAME = "rename", Action.EVOLVE, "> column {before} -> {column} (rename)"
    WIDEN = "widen", Action.EVOLVE, "^ {column}: {before} -> {after} (widen)"
    RETYPE = "retype", Action.REWRITE, "! {column}: {before} -> {after} (incompatible)"
    REORDER = "reorder", Action.EVOLVE, "~ column order: {after}"
    RELAX = "relax", Action.EVOLVE, "~ {column}: required -> optional"
    REQUIRE = "require", Action.EVOLVE, "~ {column}: optional -> required (if no value is NULL)"
    COMMENT = "comment", Action.METADATA, "~ {column}: comment"


ADDS: Final = frozenset({Change.ADD, Change.ADD_REQUIRED})
NULLABILITY: Final = frozenset({Change.RELAX, Change.REQUIRE})
NEEDS_VALUES: Final = frozenset({Change.ADD_REQUIRED, Change.RETYPE})
"""After these, a column's values can't be had without an expression."""
_BREAKS_READERS: Final = frozenset({Change.DROP, Change.RENAME, Change.WIDEN, Change.RETYPE})
"""What a view over the column notices: Spark keeps the type that it saw when the view was made."""
_TRIES: Final = re.compile(r"\btry_\w+\s*\(", re.IGNORECASE)
"""A function that makes a NULL of what it can't read."""


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

    @property
    def key(self) -> str:
        """The column's name as it is compared."""
        return self.column.casefold()

    def __str__(self) -> str:
        return self.what.words.format(column=self.column, before=self.before, after=self.after)


def folded(columns: Iterable[Column]) -> dict[str, Column]:
    """Columns by their compared names."""
    return {each.name.casefold(): each for each in columns}


def pending_renames(
    old: Sequence[Column], new: Sequence[Column], *, recorded: bool = True, moved: Mapping[str, str] | None = None
) -> dict[str, str]:
    """New compared name -> old one, of the renames that are declared and not done.

    A ``was`` stays in the declaration after it was done. It is done when the column said the same before; where it is
    not known what was said, when the new name is there.

    A declaration that comes after a deploy which died may know of it or not. So a name that is recorded for one column
    and was given to another one means the recorded one, unless both names of the other are among those that the column
    had. A rename that is not declared any more is undone.

    :param recorded: the old columns still say what they were
    :param moved: old name -> recorded one, of the columns that an unfinished deploy renamed
    """
    moved = moved or {}
    before, found = folded(old), dict[str, str]()
    said = {name: _names(column) for name, column in folded(new).items()}
    done = {name for name, was in moved.items() if was in said.get(name, ())}
    now = {was: name for name, was in moved.items() if name not in done}
    for name in said:
        known = before.get(name)
        for each in said[name] if name not in done else ():
            is_other = each not in before or moved.get(each) not in said[name]
            source = now[each] if each in now and is_other else each
            if source == name or source not in before or source in done or source in found.values():
                continue
            if known is None or (recorded and each not in _names(known)):
                found[name] = source
                break
    for name in said:
        if name in now and name not in done and name not in found and now[name] not in found.values():
            found[name] = now[name]
    return found


def _names(column: Column) -> list[str]:
    """Those that it says it had, as they are compared."""
    return [each.name.casefold() for each in column.was if each.name is not None]


def _sources(old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str]) -> dict[str, Column]:
    """New compared name -> the column that it was; new columns have no entry."""
    before = folded(old)
    stay = {name: name for name in before if name not in renames.values()}
    return {name: before[was] for name in folded(new) if (was := renames.get(name, stay.get(name))) is not None}


def diff_columns(
    old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str] | None = None
) -> tuple[ColumnChange, ...]:
    """Every difference, in the order of the new columns, dropped ones last."""
    if old == new and not renames:
        return ()
    sources, found = _sources(old, new, renames or {}), list[ColumnChange]()
    for column in new:
        name, known = column.name, sources.get(column.name.casefold())
        if known is None:
            found.append(ColumnChange(Change.ADD_REQUIRED if column.required else Change.ADD, name, "", column.type))
            continue
        if known.name.casefold() != name.casefold():
            found.append(ColumnChange(Change.RENAME, name, known.name, name))
        if (kind := classify(known.type, column.type)) is not TypeChange.SAME:
            what = Change.WIDEN if kind is TypeChange.WIDEN else Change.RETYPE
            found.append(ColumnChange(what, name, known.type, column.type))
        if known.required != column.required:
            found.append(ColumnChange(Change.REQUIRE if column.required else Change.RELAX, name))
        if known.comment != column.comment:
            found.append(ColumnChange(Change.COMMENT, name, known.comment or "", column.comment or ""))
    kept = [each.name for each in sources.values()]
    if [each.name for each in old if each.name in kept] != kept:
        found.append(ColumnChange(Change.REORDER, "", "", ", ".join(each.name for each in new)))
    return (*found, *(ColumnChange(Change.DROP, each.name, each.type, "") for each in old if each.name not in kept))


def gentlest(changes: Iterable[ColumnChange]) -> Action | None:
    """The gentlest mechanism that can do all of them; None for none of them."""
    order = (Action.METADATA, Action.EVOLVE, Action.REWRITE)
    return max((each.what.how for each in changes), key=order.index, default=None)


@dataclass(frozen=True, slots=True)
class Expressions:
    """How the values of a table's columns are made from those of the old columns.

    :ivar texts: SQL by new column, over the old columns; a column that is not here keeps its values
    :ivar missing: changes that need values and have no ``was`` for them
    :ivar unreadable: what is wrong with a column's ``using``
    :ivar narrowed: columns on whose way values may be lost, though every row stays
    """

    texts: Mapping[str, str]
    missing: tuple[ColumnChange, ...]
    unreadable: Mapping[str, str]
    narrowed: tuple[str, ...] = ()


def expressions_of(
    old: Sequence[Column],
    new: Sequence[Column],
    changes: Iterable[ColumnChange],
    renames: Mapping[str, str],
    moved: Mapping[str, str] | None = None,
) -> Expressions:
    """What the declaration says about the values of columns that do not simply stay."""
    before, sources = folded(old), _sources(old, new, renames)
    retyped = {each.key for each in changes if each.what is Change.RETYPE}
    # A `using` may call a column what it is called now, or was at any time.
    called = {
        each: identifier(sources[name].name)
        for name, column in folded(new).items()
        if name in sources
        for each in (name, *_names(column))
        if each not in before
    }
    # A new column is made of those that are recorded, whatever an unfinished deploy called them.
    of_new = called | {was: identifier(before[name].name) for name, was in (moved or {}).items()}
    texts, unreadable, narrowed = {}, {}, []
    for name, column in folded(new).items():
        source = sources.get(name)
        was = _meets(column, source)
        if was is None or was.using is None or (source and name not in retyped and not _is_past(was, column)):
            continue
        texts[column.name] = was.using
        try:
            texts[column.name] = text = compose(was.using, called if source is not None else of_new)
            unknown = [each for each in columns_read(text) if each not in before]
        except QueryError as error:
            unreadable[column.name] = error.problem
            continue
        if unknown:
            unreadable[column.name] = f"it reads {', '.join(unknown)}, and the table has {', '.join(before)}"
        if source is not None and narrows(source.type, column.type, text):
            narrowed.append(column.name)
    missing = tuple(each for each in changes if each.what in NEEDS_VALUES and each.column not in texts)
    return Expressions(texts, missing, unreadable, tuple(narrowed))


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
    """A first ``was`` for a column whose values are not simply there, to be checked by its reader."""
    if change.what is Change.RETYPE:
        called = {each.column: each.before for each in changes if each.what is Change.RENAME}
        name = called.get(change.column)
        return Was(name, change.before, f"CAST({identifier(name or change.column)} AS {change.after})")
    kind = change.after.casefold()
    if kind.startswith(_NUMBERS):
        return Was(using=f"CAST(0 AS {change.after})")
    return Was(using=_DEFAULTS.get(kind, f"CAST(NULL AS {change.after})"))


def possible_renames(changes: Iterable[ColumnChange]) -> list[tuple[str, str]]:
    """Pairs (old, new) of columns of the same type: perhaps one column under a new name."""
    changes = tuple(changes)
    dropped = [each for each in changes if each.what is Change.DROP]
    added = [each for each in changes if each.what in ADDS]
    return [(old.column, new.column) for new in added for old in dropped if new.after == old.before]


def schema_updates(old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str]) -> dict[str, Any]:
    """From the old columns to the new ones, for a step's details; what there is none of is left out.

    A schema update of Iceberg can't rename a column to a name that another one still has, nor add a column under a name
    that is being given up. So the way takes up to three updates in one transaction: columns are dropped, widened, made
    optional, added and renamed; then columns take names that the first update gave up; then they move to their places
    and get their comments. A column of an incompatible new type is dropped and added again.

    :returns: ``updates`` of one transaction, in order, each a list of operations; ``tighten``: ``require`` operations,
        which can be asked only of finished rows, to be refused if there is a NULL
    """
    changes = diff_columns(old, new, renames)
    replaced = {each.key for each in changes if each.what is Change.RETYPE}
    kept = {name: was for name, was in _sources(old, new, renames).items() if name not in replaced}
    now = {was.name.casefold(): name for name, was in kept.items()}
    before, wanted = folded(old), folded(new)
    first = [{"op": "drop", "column": each.name} for name, each in before.items() if name not in now]
    second, tighten = list[dict[str, Any]](), list[dict[str, Any]]()
    for each in (each for each in changes if each.key in kept and each.what in (Change.WIDEN, Change.RELAX)):
        kind = {"type": each.after} if each.what is Change.WIDEN else {}
        first.append({"op": each.what.value, "column": kept[each.key].name, **kind})
    for number, (name, column) in enumerate(wanted.items()):
        if name not in kept:
            add = {"op": "add", "column": column.name, "type": column.type}
            (second if name in before else first).append(add)
        elif kept[name].name.casefold() != name:
            free = column.name if name not in before else f"rfr_renamed_{number}"
            first.append({"op": "rename", "column": kept[name].name, "to": free})
            if name in before:
                second.append({"op": "rename", "column": free, "to": column.name})
    # Where the columns are after the second update.
    current = [now[name] for name in before if name in now]
    current += sorted((name for name in wanted if name not in kept), key=lambda name: name in before)
    third = _moves(current, new)
    for name, column in wanted.items():
        was = kept.get(name)
        if (was.comment if was is not None else None) != column.comment:
            third.append({"op": "comment", "column": column.name, "comment": column.comment})
        if column.required and (was is None or not was.required):
            tighten.append({"op": "require", "column": column.name})
    updates = [batch for batch in (first, second, third) if batch]
    return {name: batches for name, batches in (("updates", updates), ("tighten", tighten)) if batches}


def _moves(current: list[str], new: Sequence[Column]) -> list[dict[str, Any]]:
    """What puts each column behind the one before it."""
    found, behind = list[dict[str, Any]](), None
    for place, column in enumerate(new):
        name = column.name.casefold()
        if current[place] != name:
            current.remove(name)
            current.insert(place, name)
            found.append({"op": "move", "column": column.name, "after": behind})
        behind = column.name
    return found


ALL: Final = "*"
"""In a set of columns: all of them."""
NOTHING: Final = frozenset[str]()
EVERYTHING: Final = frozenset({ALL})


def met(touched: frozenset[str], used: Sequence[str] | None) -> list[str]:
    """The touched ones among the used columns; ``["*"]`` if the used ones are unknown or all are touched."""
    if not touched:
        return []
    return [ALL] if used is None or ALL in touched else sorted(touched.intersection(used))


@dataclass(frozen=True, slots=True)
class Effects:
    """What readers of an object notice; columns as they are compared.

    :ivar shape: columns of another type or name than before, or dropped
    :ivar contents: columns of which there may be other values or rows than before
    :ivar gone: old names that no longer exist, with the present name ("" for a dropped column)
    :ivar widened: those of ``shape`` that only take more values than before
    """

    shape: frozenset[str] = NOTHING
    contents: frozenset[str] = NOTHING
    gone: tuple[tuple[str, str], ...] = ()
    widened: frozenset[str] = NOTHING

    @classmethod
    def of(
        cls,
        old: Sequence[Column],
        new: Sequence[Column],
        changes: Iterable[ColumnChange],
        contents: frozenset[str] = NOTHING,
    ) -> Effects:
        breaking = [each for each in changes if each.what in _BREAKS_READERS]
        renamed = {each.before.casefold(): each.after for each in breaking if each.what is Change.RENAME}
        others = {each.key for each in breaking if each.what is not Change.WIDEN}
        shape = {each.key for each in breaking}
        now = folded(new)
        gone = ((name, renamed.get(name, "")) for name in folded(old) if name not in now)
        return cls(frozenset(shape | renamed.keys()), contents, tuple(gone), frozenset(shape - others))

    def __or__(self, other: Effects) -> Effects:
        gone = dict((*self.gone, *other.gone))
        shape, contents = self.shape | other.shape, self.contents | other.contents
        return Effects(shape, contents, tuple(gone.items()), self.widened | other.widened)


NO_EFFECTS: Final = Effects()
