"""The difference between a table's columns and the declared ones, and the schema updates that resolve it.

Names are compared without case, types as canonical texts. Columns are matched by name, or by a former name that is
declared (:class:`~airflow_provider_rfr.builtins.model.Was`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import product
from typing import Any, Final, NamedTuple

from airflow_provider_rfr.builtins.model import Column, Was
from airflow_provider_rfr.builtins.plan import StepAction
from airflow_provider_rfr.builtins.sql import cast, columns_read, compose, identifier, misplaced
from airflow_provider_rfr.exceptions import QueryError
from airflow_provider_rfr.lake.types import (
    ColumnType,
    TypeChange,
    classify,
    field_types,
    has_same_fields,
    lost_fields,
    may_overflow,
    parse_type,
    rename_fields,
    renamed_fields,
)


class ChangeKind(Enum):
    """A kind of change of a column, with its text and the least invasive action that makes it in Iceberg's format 2."""

    def __init__(self, how: StepAction, words: str) -> None:
        self.how, self.words = how, words

    ADD = StepAction.EVOLVE, "+ column {column} {after}"
    ADD_REQUIRED = StepAction.REWRITE, "+ column {column} {after}, required"
    DROP = StepAction.EVOLVE, "- column {column} {before} (its values stay in older snapshots until those expire)"
    RENAME = StepAction.EVOLVE, "> column {before} -> {column} (rename)"
    RENAME_FIELDS = StepAction.EVOLVE, "> {column}: {before} -> {after} (fields renamed)"
    WIDEN = StepAction.EVOLVE, "^ {column}: {before} -> {after} (widen)"
    NARROW = StepAction.EVOLVE, "- {column}: {before} -> {after} (fields go; older snapshots keep them)"
    RETYPE = StepAction.REWRITE, "! {column}: {before} -> {after} (incompatible)"
    REORDER = StepAction.EVOLVE, "~ column {column}: {after}"
    RELAX = StepAction.EVOLVE, "~ {column}: {before} -> {after}"
    REQUIRE = StepAction.EVOLVE, "~ {column}: {before} -> {after} (if no value is NULL)"
    COMMENT = StepAction.METADATA, "~ {column}: comment"


_IN_PLACE: Final = frozenset({ChangeKind.WIDEN, ChangeKind.NARROW, ChangeKind.RELAX})
_TRIES: Final = re.compile(r"\btry_\w+\s*\(", re.IGNORECASE)
"""A call of one of Spark's ``try_`` functions, which return NULL for a value that they can't convert."""
_FIRST_VALUES: Final = {"string": "''", **dict.fromkeys(("int", "bigint", "float", "double", "decimal"), "0")}


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One difference between old and new columns.

    :ivar column: the column's new name; the old name of a dropped column; ``order`` for the order of all columns
    :ivar before: the old type; for a rename the old name. ``after`` is the new one
    """

    what: ChangeKind
    column: str
    before: str = ""
    after: str = ""

    @property
    def key(self) -> str:
        """Return the column's case-folded name."""
        return self.column.casefold()

    def __str__(self) -> str:
        return self.what.words.format(column=self.column, before=self.before, after=self.after)


def folded(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the columns by their case-folded names."""
    return {column.name.casefold(): column for column in columns}


def _names(column: Column) -> list[str]:
    """Return the former names that the column declares, case-folded."""
    return [was.name.casefold() for was in column.was if was.name is not None]


def _field_names(was: Was) -> list[tuple[str, str]]:
    """Return present path and former name of each struct field that was renamed, case-folded."""
    return [(path.casefold(), name.casefold()) for path, name in was.fields.items()]


_OF_TYPES: Final = {
    TypeChange.WIDEN: ChangeKind.WIDEN,
    TypeChange.NARROW: ChangeKind.NARROW,
    TypeChange.INCOMPATIBLE: ChangeKind.RETYPE,
}


ALL: Final = "*"
"""An item in a set of columns that stands for all columns."""
EVERYTHING: Final = frozenset({ALL})


def affected(touched: frozenset[str], used: Sequence[str] | None) -> list[str]:
    """Return the columns that are both used and touched; ``["*"]`` if the used ones are unknown, or all are touched."""
    if not touched:
        return []
    return [ALL] if used is None or ALL in touched else sorted(touched.intersection(used))


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a change that readers of an object notice; names of columns are case-folded.

    :ivar shape: columns whose type or name changed, or that were dropped
    :ivar contents: columns whose values or rows may have changed
    :ivar gone: old names that no longer exist, with the present name ("" for a dropped column)
    :ivar widened: those of ``shape`` whose type only became wider
    """

    shape: frozenset[str] = frozenset()
    contents: frozenset[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)
    widened: frozenset[str] = frozenset()

    def __or__(self, other: Effects) -> Effects:
        shape, contents = self.shape | other.shape, self.contents | other.contents
        return Effects(shape, contents, {**self.gone, **other.gone}, self.widened | other.widened)


class _Kept(NamedTuple):
    """A column that stays.

    :ivar was: the old column; ``column``: the declared one
    :ivar old: the old type; ``new``: the declared one
    :ivar called: the old type with its struct fields under their new names; without them if ``is_taken``
    :ivar is_taken: a struct field is to get a name that another field of its struct still has
    """

    was: Column
    column: Column
    old: ColumnType
    called: ColumnType
    new: ColumnType
    is_taken: bool

    @property
    def change(self) -> TypeChange:
        return classify(str(self.called), self.column.type)


@dataclass(frozen=True)
class ColumnDiff:
    """The difference between old and new columns.

    :ivar recorded: the former states (``was``) of the old columns are known
    :ivar moved: present name -> recorded name of the old columns that an unfinished deploy renamed
    :ivar nulls: case-folded names of old columns that may hold a NULL
    """

    old: tuple[Column, ...] = ()
    new: tuple[Column, ...] = ()
    recorded: bool = True
    moved: Mapping[str, str] = field(default_factory=dict)
    nulls: frozenset[str] = frozenset()

    @cached_property
    def before(self) -> dict[str, Column]:
        return folded(self.old)

    @cached_property
    def wanted(self) -> dict[str, Column]:
        return folded(self.new)

    @cached_property
    def renames(self) -> dict[str, str]:
        """Return the renames that are declared and not yet done: old names by new ones, case-folded.

        A ``was`` stays in the declaration after its rename is done. If a column has the new name already, the rename is
        done if that column's recorded ``was`` names the same former name, or if its ``was`` is not known.

        After an unfinished deploy, a former name can be ambiguous: recorded for one column, and given to another one.
        It means the column that it is recorded for, unless the declaration has both names of the other column as former
        names. A rename by the unfinished deploy that is no longer declared is undone.
        """
        before, moved, renames = self.before, self.moved, dict[str, str]()
        former_names = {name: _names(column) for name, column in self.wanted.items()}
        done = {name for name, was in moved.items() if was in former_names.get(name, ())}
        now = {was: name for name, was in moved.items() if name not in done}
        for name in (name for name in former_names if name not in done):
            same_name = before.get(name)
            for former in former_names[name]:
                is_other = former not in before or moved.get(former) not in former_names[name]
                source = now[former] if former in now and is_other else former
                if source == name or source not in before or source in done or source in renames.values():
                    continue
                if same_name is None or (self.recorded and former not in _names(same_name)):
                    renames[name] = source
                    break
        for name in (name for name in former_names if name in now and name not in done | renames.keys()):
            if now[name] not in renames.values():
                renames[name] = now[name]
        return renames

    @cached_property
    def called(self) -> dict[str, str]:
        """Return the new names of the renamed columns by their case-folded old names."""
        return {was: self.wanted[name].name for name, was in self.renames.items()}

    @cached_property
    def kept(self) -> dict[str, _Kept]:
        """Return the columns that stay, by their case-folded new names."""
        origins = ((name, self.renames.get(name, name if name not in self.called else "")) for name in self.wanted)
        return {name: self._keep(self.before[was], self.wanted[name]) for name, was in origins if was in self.before}

    def _keep(self, source: Column, column: Column) -> _Kept:
        """Pair an old column with its declaration; field renames that the old column's ``was`` has are done already."""
        former = defaultdict[str, list[str]](list)
        done = {pair for was in source.was for pair in _field_names(was)} if self.recorded else ()
        for path, before in (pair for was in column.was for pair in _field_names(was)):
            if (path, before) not in done:
                former[path].append(before)
        old, new = parse_type(source.type), parse_type(column.type)
        called = rename_fields(old, new, former, only_missing=not self.recorded) if former else old
        return _Kept(source, column, old, old if called.has_twins() else called, new, called.has_twins())

    @property
    def fields_with_taken_names(self) -> dict[str, str]:
        """Return the columns with a field that is to get a name that another field of its struct still has."""
        return {name: kept.column.name for name, kept in self.kept.items() if kept.is_taken}

    @property
    def fields_with_new_names(self) -> Iterator[tuple[str, str]]:
        """Yield the path, which begins with the column's name, and the new name of each renamed struct field."""
        for kept in self.kept.values():
            for *path, now in renamed_fields(kept.old, kept.called):
                yield ".".join((kept.column.name, *path)), now

    @cached_property
    def changes(self) -> tuple[ColumnChange, ...]:
        """Return all differences, in the order of the new columns, dropped ones last."""
        if self.old == self.new and not self.renames:
            return ()
        changes = list[ColumnChange]()
        for name, column in self.wanted.items():
            if name not in self.kept:
                kind_of_add = ChangeKind.ADD_REQUIRED if column.required else ChangeKind.ADD
                changes.append(ColumnChange(kind_of_add, column.name, "", column.type))
                continue
            former, called, kind = self.kept[name].was, str(self.kept[name].called), self.kept[name].change
            if name in self.renames:
                changes.append(ColumnChange(ChangeKind.RENAME, column.name, former.name, column.name))
            if called != former.type:
                changes.append(ColumnChange(ChangeKind.RENAME_FIELDS, column.name, former.type, called))
            if kind is not TypeChange.SAME:
                changes.append(ColumnChange(_OF_TYPES[kind], column.name, called, column.type))
            if former.required != column.required:
                require = ColumnChange(ChangeKind.REQUIRE, column.name, "optional", "required")
                relax = ColumnChange(ChangeKind.RELAX, column.name, "required", "optional")
                changes.append(require if column.required else relax)
            if former.comment != column.comment:
                changes.append(
                    ColumnChange(ChangeKind.COMMENT, column.name, former.comment or "", column.comment or "")
                )
        names = [kept.was.name for kept in self.kept.values()]
        if [column.name for column in self.old if column.name in names] != names:
            order = (", ".join(column.name for column in columns) for columns in (self.old, self.new))
            changes.append(ColumnChange(ChangeKind.REORDER, "order", *order))
        dropped = (column for column in self.old if column.name not in names)
        return (*changes, *(ColumnChange(ChangeKind.DROP, column.name, column.type) for column in dropped))

    @property
    def how(self) -> StepAction | None:
        """Return the least invasive action that can make all changes; None if nothing differs."""
        order = (StepAction.METADATA, StepAction.EVOLVE, StepAction.REWRITE)
        return max((change.what.how for change in self.changes), key=order.index, default=None)

    def changed(self, *what: ChangeKind) -> set[str]:
        """Return the case-folded names of the columns with a change of these kinds."""
        return {change.key for change in self.changes if change.what in what}

    def effects(self, contents: frozenset[str] = frozenset()) -> Effects:
        """Return the effects that readers notice; ``contents`` are columns whose contents change, too."""
        others = self.changed(
            ChangeKind.DROP, ChangeKind.RENAME, ChangeKind.RETYPE, ChangeKind.NARROW, ChangeKind.RENAME_FIELDS
        )
        # If the fields of a struct change, no cast of a view's outputs is valid both before and after.
        wider = (change for change in self.changes if change.what is ChangeKind.WIDEN)
        others |= {
            change.key for change in wider if not has_same_fields(parse_type(change.before), parse_type(change.after))
        }
        # Spark stores a view's types when the view is created, so a view over the column notices that it is wider.
        shape = others | self.changed(ChangeKind.WIDEN)
        gone = {name: self.called.get(name, "") for name in self.before if name not in self.wanted}
        return Effects(frozenset(shape | self.called.keys()), contents, gone, frozenset(shape - others))

    @cached_property
    def texts(self) -> dict[str, str]:
        """Return the ``using`` expressions over old columns, by new column; others keep their values."""
        # A `using` may call a column by its present name, or by any former one.
        called = {
            former: identifier(kept.was.name)
            for name, kept in self.kept.items()
            for former in (name, *_names(kept.column))
            if former not in self.before
        }
        # The `using` of a new column has recorded names, also of columns that an unfinished deploy has renamed.
        of_new = called | {was: identifier(self.before[name].name) for name, was in self.moved.items()}
        texts = dict[str, str]()
        for name, column in self.wanted.items():
            if (using := self._using(name, column)) is not None:
                texts[column.name] = using
                with suppress(QueryError):
                    texts[column.name] = compose(using, called if name in self.kept else of_new)
        return texts

    @property
    def carried_fields(self) -> dict[str, str]:
        """Return SQL that carries fields over to their new names, by new column, for a rewrite of the table."""
        texts = dict[str, str]()
        for kept in map(self.kept.__getitem__, self.changed(ChangeKind.RENAME_FIELDS)):
            text = cast(identifier(kept.was.name), kept.old, kept.new, called=kept.called)
            if text is not None:
                texts[kept.column.name] = text
        return texts

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Return the problems with ``using``, by the column's name."""
        problems = dict[str, str]()
        types = {name: parse_type(column.type) for name, column in self.before.items()}
        for name, text in self.texts.items():
            try:
                if unknown := [column for column in columns_read(text) if column not in self.before]:
                    problems[name] = f"it reads {', '.join(unknown)}, and the table has {', '.join(self.before)}"
                elif problem := next(misplaced(text, types, parse_type(self.wanted[name.casefold()].type)), None):
                    problems[name] = f"{problem}: write the fields by name, with named_struct"
            except QueryError as error:
                problems[name] = error.problem
        return problems

    def _using(self, name: str, column: Column) -> str | None:
        """Return the newest ``using`` that applies to the table's present columns; None if none does."""
        kept = self.kept.get(name)
        for was in column.was:
            former_name = (was.name or name).casefold()
            if kept is None:
                meets = was.name is None and was.type is None
            else:
                source, is_retyped = kept.was, kept.change is TypeChange.INCOMPATIBLE
                # A `was` that also describes the column as declared applies only if values can't be kept.
                once = is_retyped or former_name != name or was.type not in (None, column.type)
                is_stricter = kept.change is TypeChange.NARROW or (column.required and not source.required)
                # If the old column declared it, too, it belongs to a change that was made before.
                once = once or (is_stricter and was not in source.was)
                meets = once and former_name == source.name.casefold() and was.type in (None, source.type)
            if meets and was.using is not None:
                return was.using
        return None

    @property
    def missing(self) -> list[ColumnChange]:
        """Return the changes that need values, and for which no ``using`` applies."""
        retyped = self.changed(ChangeKind.RETYPE)
        nulls = {name for name, kept in self.kept.items() if kept.was.name.casefold() in self.nulls}
        needing = {
            ChangeKind.ADD_REQUIRED: self.wanted.keys(),
            ChangeKind.RETYPE: self.wanted.keys(),
            ChangeKind.REQUIRE: nulls - retyped,
        }
        texts = self.texts
        return [
            change
            for change in self.changes
            if change.column not in texts and change.key in needing.get(change.what, ())
        ]

    @property
    def narrowed_columns(self) -> Iterator[Column]:
        """Yield the columns whose conversion may lose values, though every row stays."""
        for kept in self.kept.values():
            using = self.texts.get(kept.column.name)
            if using and (_TRIES.search(using) or may_overflow(kept.called, kept.new)):
                yield kept.column

    @property
    def lost_fields(self) -> Iterator[str]:
        """Yield the paths of dropped struct fields; each begins with the name of its column."""
        for kept in self.kept.values():
            yield from (f"{kept.column.name}.{path}" for path in lost_fields(kept.called, kept.new))

    @property
    def possible_field_renames(self) -> Iterator[tuple[str, str, str]]:
        """Yield fields that may have been renamed (dropped and added in one struct): column, old path and new path."""
        for kept in self.kept.values():
            before, after = field_types(kept.called), field_types(kept.new)
            for lost, came in product(lost_fields(kept.called, kept.new), lost_fields(kept.new, kept.called)):
                if lost.rpartition(".")[0] == came.rpartition(".")[0] and before[lost] == after[came]:
                    yield kept.column.name, lost, came

    def draft_was(self, change: ColumnChange) -> Was | None:
        """Return a draft of a ``was`` for a column that needs values, to be checked by a person.

        :returns: None if no draft can be derived
        """
        kept, kind = self.kept.get(change.key), self.wanted[change.key].type
        first = f"CAST({_FIRST_VALUES.get(kind.partition('(')[0], 'NULL')} AS {kind})"
        if kept is None:
            return Was(using=first)
        name = kept.was.name if kept.was.name.casefold() in self.called else None
        value = identifier(name or change.column)
        if change.what is ChangeKind.REQUIRE:
            return Was(name, None, f"coalesce({value}, {first})")
        using = cast(value, kept.old, kept.new, called=kept.called)
        fields = {path: before for was in reversed(kept.column.was) for path, before in was.fields.items()}
        return None if using is None else Was(name, kept.was.type, using, fields)

    def updates(self) -> dict[str, Any]:
        """Return the updates from the old columns to the new ones, for a step's details; empty parts are left out.

        A schema update of Iceberg can't rename a column to a name that another one still has, nor add a column under a
        name that the same update frees. So there are up to three updates in one transaction. The first one drops,
        widens, relaxes, adds and renames columns. In the second one, columns take names that the first one freed. The
        third one moves columns and sets comments. A column of an incompatible new type is dropped and added again.
        Fields of structs are renamed in an update before these.

        :returns: ``updates``: the updates in order, each a list of operations; ``tighten``: ``require`` operations,
            which are applied after the rows are written, and refused if there is a NULL
        """
        kept = {name: column for name, column in self.kept.items() if column.change is not TypeChange.INCOMPATIBLE}
        now = {column.was.name.casefold(): name for name, column in kept.items()}
        first = [{"op": "drop", "column": column.name} for name, column in self.before.items() if name not in now]
        second, tighten = list[dict[str, Any]](), list[dict[str, Any]]()
        for change in self.changes:
            if change.what in _IN_PLACE and change.key in kept:
                kind = {} if change.what is ChangeKind.RELAX else {"type": change.after}
                first.append({"op": change.what.name.lower(), "column": kept[change.key].was.name, **kind})
        for number, (name, column) in enumerate(self.wanted.items()):
            if name not in kept:
                add = {"op": "add", "column": column.name, "type": column.type}
                (second if name in self.before else first).append(add)
            elif name in self.renames:
                free = column.name if name not in self.before else f"rfr_renamed_{number}"
                first.append({"op": "rename", "column": kept[name].was.name, "to": free})
                if name in self.before:
                    second.append({"op": "rename", "column": free, "to": column.name})
        # The order of the columns after the second update.
        current = [now[name] for name in self.before if name in now]
        current += sorted((name for name in self.wanted if name not in kept), key=lambda name: name in self.before)
        places = zip(self.new, [None, *(column.name for column in self.new)], strict=False)
        moves = [{"op": "move", "column": place.name, "after": behind} for place, behind in places]
        third = moves if current != [*self.wanted] else []
        for name, column in self.wanted.items():
            was = kept[name].was if name in kept else None
            if (was.comment if was is not None else None) != column.comment:
                third.append({"op": "comment", "column": column.name, "comment": column.comment})
            if column.required and (was is None or not was.required):
                tighten.append({"op": "require", "column": column.name})
        updates = [batch for batch in (_field_renames(kept.values()), first, second, third) if batch]
        return {name: some for name, some in (("updates", updates), ("tighten", tighten)) if some}


def _field_renames(columns: Iterable[_Kept]) -> list[dict[str, Any]]:
    """Return the operations that give fields of these columns their new names."""
    return [
        {"op": "rename", "column": column.was.name, "field": path, "to": to}
        for column in columns
        for *path, to in renamed_fields(column.old, column.called)
    ]
