"""What a change of one object means for those who read it, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_rfr.builtins.planning.diff import BREAKS_READERS, Change, ColumnChange, folded
from airflow_provider_rfr.builtins.spec import Column


@dataclass(frozen=True, slots=True)
class Touched:
    """Columns, or all of them, as they are compared."""

    columns: frozenset[str] = frozenset()
    all: bool = False

    def __bool__(self) -> bool:
        return self.all or bool(self.columns)

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.columns | other.columns, self.all or other.all)

    def met(self, used: Sequence[str] | None) -> list[str]:
        """Those among the used ones; what they are called when that can't be told: ``*``."""
        if used is None or self.all:
            return ["*"] if self else []
        return sorted(self.columns.intersection(used))


NOTHING = Touched()
EVERYTHING = Touched(all=True)


@dataclass(frozen=True, slots=True)
class Effects:
    """What readers of an object notice.

    :ivar shape: columns of another type or name than before, or gone. A column that came is none of them: nobody reads
        it yet
    :ivar contents: columns whose values may be others than before, or of which there may be other rows
    :ivar gone: old names that are not there any more, with what a column is called now ("" if it is no more)
    """

    shape: Touched = NOTHING
    contents: Touched = NOTHING
    gone: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shape) or bool(self.contents)

    def __or__(self, other: Effects) -> Effects:
        gone = dict((*self.gone, *other.gone))
        return Effects(self.shape | other.shape, self.contents | other.contents, tuple(gone.items()))


NO_EFFECTS = Effects()


def shape_of(changes: Iterable[ColumnChange]) -> Touched:
    """Columns that readers see changed, by their old and their new names."""
    found: set[str] = set()
    for each in changes:
        if each.what in BREAKS_READERS:
            found.add(each.column.casefold())
            if each.what is Change.RENAME:
                found.add(each.before.casefold())
    return Touched(frozenset(found))


def gone_of(
    old: Sequence[Column], new: Sequence[Column], changes: Iterable[ColumnChange]
) -> tuple[tuple[str, str], ...]:
    """Old names that are not there any more."""
    renamed = {each.before.casefold(): each.after for each in changes if each.what is Change.RENAME}
    now = folded(new)
    return tuple((name, renamed.get(name, "")) for name in folded(old) if name not in now)
