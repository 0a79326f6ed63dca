"""How two lists of columns differ, and what the differences ask of a table's storage.

Names are compared without case, types as canonical texts. A column is the same one if its name is, or if the
declaration says what it was called before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from airflow_provider_rfr.builtins.spec import Column, How
from airflow_provider_rfr.builtins.types import classify


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


NEEDS: Final[Mapping[Change, How]] = {
    Change.ADD: How.EVOLVE,
    Change.ADD_REQUIRED: How.REWRITE,
    Change.DROP: How.EVOLVE,
    Change.RENAME: How.EVOLVE,
    Change.WIDEN: How.EVOLVE,
    Change.RETYPE: How.REWRITE,
    Change.REORDER: How.EVOLVE,
    Change.RELAX: How.EVOLVE,
    Change.REQUIRE: How.EVOLVE,
    Change.COMMENT: How.METADATA,
}
"""The gentlest mechanism that can do each of them; a table in Iceberg's format 2."""
BREAKS_READERS: Final = frozenset({Change.DROP, Change.RENAME, Change.WIDEN, Change.RETYPE})
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


def origins(old: Sequence[Column], new: Sequence[Column], renames: Mapping[str, str]) -> dict[str, str]:
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
    before, sources = folded(old), origins(old, new, renames or {})
    found: list[ColumnChange] = []
    for column in new:
        source = sources.get(column.name.casefold())
        if source is None:
            what = Change.ADD_REQUIRED if column.required else Change.ADD
            found.append(ColumnChange(what, column.name, "", column.type))
        else:
            found += _changes(before[source], column)
    kept = set(sources.values())
    dropped = [each for each in old if each.name.casefold() not in kept]
    if [name for name in before if name in kept] != list(sources.values()):
        found.append(ColumnChange(Change.REORDER, "", "", ", ".join(each.name for each in new)))
    return (*found, *(ColumnChange(Change.DROP, each.name, each.type, "") for each in dropped))


def _changes(old: Column, new: Column) -> Iterable[ColumnChange]:
    if old.name.casefold() != new.name.casefold():
        yield ColumnChange(Change.RENAME, new.name, old.name, new.name)
    kind = str(getattr(answer := classify(old.type, new.type), "value", answer))
    if kind != "same":
        yield ColumnChange(Change.WIDEN if kind == "widen" else Change.RETYPE, new.name, old.type, new.type)
    if old.required != new.required:
        yield ColumnChange(Change.REQUIRE if new.required else Change.RELAX, new.name)
    if old.comment != new.comment:
        yield ColumnChange(Change.COMMENT, new.name, old.comment or "", new.comment or "")


def gentlest(changes: Iterable[ColumnChange]) -> How | None:
    """The gentlest mechanism that can do all of them; None for none of them."""
    order = (How.METADATA, How.EVOLVE, How.REWRITE)
    return max((NEEDS[each.what] for each in changes), key=order.index, default=None)


def rename_hints(changes: Sequence[ColumnChange]) -> list[str]:
    """For columns that go while others of the same type come."""
    dropped = [each for each in changes if each.what is Change.DROP]
    added = [each for each in changes if each.what in (Change.ADD, Change.ADD_REQUIRED)]
    return [
        f"if {new.column} is {old.column} under a new name, declare it with renamed_from: {old.column}"
        for new in added
        for old in dropped
        if new.after == old.before
    ]
