"""Which mechanism a table's change takes: the gentlest one that loses nothing, by an instruction where it needs one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning.diff import (
    NEEDS_VALUES,
    Change,
    ColumnChange,
    diff_columns,
    folded,
    gentlest,
    instruction,
    pending_renames,
    rename_hints,
    schema_updates,
    short,
)
from airflow_provider_rfr.builtins.planning.drift import Origin, same_names
from airflow_provider_rfr.builtins.planning.plan import Policies
from airflow_provider_rfr.builtins.spec import Column, Contents, How, Kind
from airflow_provider_rfr.builtins.sql.parse import bare_column, columns_read, compose
from airflow_provider_rfr.builtins.state import SHADOW, dumps
from airflow_provider_rfr.builtins.wanted import Want

_ORDER = tuple(How)


@dataclass(frozen=True)
class Choice:
    """How a table changes.

    :ivar how: None: not at all
    :ivar changes: of its columns
    :ivar words: of everything, for people
    :ivar before: the columns that it starts from
    :ivar rewritten: compared names of columns whose values change
    :ivar problems: with any of them, nothing may be done
    :ivar instructed: an instruction leads there
    :ivar paste: an instruction for the declaration, if one is missing
    """

    how: How | None
    changes: tuple[ColumnChange, ...] = ()
    words: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    loses: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    paste: str | None = None
    rewritten: frozenset[str] = frozenset()
    before: tuple[Column, ...] = ()
    instructed: bool = False


def derivable(want: Want) -> bool:
    """Whether the contents can be had again from what they were made of."""
    return want.obj.contents is Contents.DERIVABLE or want.kind is Kind.MATERIALIZED_VIEW


def choose(want: Want, origin: Origin, policies: Policies) -> Choice:
    """The way from what there is to what is wanted."""
    return _Chooser(want, origin, policies).choose()


class _Chooser:
    def __init__(self, want: Want, origin: Origin, policies: Policies) -> None:
        self._want = want
        self._origin = origin
        self._policies = policies
        self._target = (*want.obj.columns, *origin.left)
        self._after = want.fingerprints.contract.digest
        self._by_hand = origin.contract == self._after
        self._problems: list[str] = []
        self._paste = False
        self._chained = self._chain()
        self._renames = pending_renames(
            origin.columns, self._target, self._renames_of_chain(), recorded=origin.remembered
        )
        self._changes = diff_columns(origin.columns, self._target, self._renames)

    def choose(self) -> Choice:
        needed = gentlest(self._changes)
        constraints = tuple(self._constraints())
        if constraints:
            needed = max(needed or How.METADATA, How.EVOLVE, key=_ORDER.index)
        how = needed if self._chained is None else self._instructed(self._chained, needed)
        if self._chained is None and needed is not None:
            how = self._uninstructed(needed)
        how = self._forced(how)
        expressions = self._expressions() if how in (How.REWRITE, How.SHADOW) else {}
        loses = tuple(self._loses(how))
        self._permitted(how, loses)
        if self._paste:
            self._problems += rename_hints(self._changes)
        return Choice(
            how,
            self._changes,
            (*map(str, self._changes), *constraints),
            self._details(how, expressions),
            loses,
            tuple(self._problems),
            instruction(self._origin.contract, self._after, self._changes) if self._paste else None,
            frozenset(name.casefold() for name in expressions),
            self._origin.columns,
            self._chained is not None,
        )

    def _chain(self) -> instructions.Chained | None:
        if self._origin.contract == self._after or not self._origin.contract:
            return None
        found = instructions.path(self._want.obj.migrations, self._origin.contract, self._after)
        if found is None:
            return None
        try:
            return instructions.merge(found, compose)
        except ValueError as error:
            self._problems.append(f"an instruction's {error}")
            return None

    def _renames_of_chain(self) -> dict[str, str]:
        """An instruction that evolves may name a column's old name as its expression."""
        if self._chained is None:
            return {}
        found = {name.casefold(): _column(text) for name, text in self._chained.expressions.items()}
        return {name: source for name, source in found.items() if source is not None}

    def _constraints(self) -> Iterator[str]:
        for name, old, new in (
            ("partitioned by", self._origin.partitioning, self._want.obj.partitioning),
            ("keys", self._origin.keys, self._want.obj.keys),
        ):
            if not same_names(old, new):
                yield f"~ {name}: {', '.join(old) or 'nothing'} -> {', '.join(new) or 'nothing'}"

    def _uninstructed(self, needed: How) -> How:
        """Without an instruction nothing is done that could lose a value, or that nobody said how to do."""
        if derivable(self._want):
            if needed is How.REWRITE and self._want.obj.query is not None:
                return How.RECOMPUTE
            if needed is not How.REWRITE:
                return needed
        if self._by_hand:
            if needed is How.REWRITE:
                self._problems.append("changed by hand in a way that can't be undone without inventing values")
        elif needed is How.REWRITE or self._dropped():
            self._paste = True
            self._problems.append(f"contract changed, no migration from {short(self._origin.contract)}")
        return needed

    def _instructed(self, chained: instructions.Chained, needed: How | None) -> How:
        if chained.how in (How.REPLACE_EMPTY, How.SHADOW):
            return chained.how
        if chained.how is How.RECOMPUTE:
            if self._want.obj.query is None:
                self._problems.append("the instruction says recompute, but there is no query to compute it from")
            return How.RECOMPUTE
        if chained.how is How.REWRITE and (needed is How.REWRITE or self._computes(chained)):
            return How.REWRITE
        if needed is How.REWRITE:
            hard = "; ".join(str(each) for each in self._changes if each.what in NEEDS_VALUES)
            self._problems.append(f"the instruction says {chained.how.value}, which can't do: {hard}")
            self._paste = True
        self._skipped(chained)
        return How.EVOLVE

    def _computes(self, chained: instructions.Chained) -> bool:
        """Whether any value becomes another one; an expression that is a column's old name only renames it."""
        target = folded(self._target)
        return any(
            name.casefold() in target and not self._passes(name.casefold(), text)
            for name, text in chained.expressions.items()
        )

    def _skipped(self, chained: instructions.Chained) -> None:
        """Over several versions nobody may have said that a column went: each time it may have got another name."""
        old = {None, *folded(self._origin.columns)}
        said = {name.casefold() for name, text in chained.expressions.items() if _column(text) in old}
        added = [each for each in self._changes if each.what is Change.ADD and each.column.casefold() not in said]
        if chained.length > 1 and (hints := rename_hints([*added, *self._dropped()])) and not derivable(self._want):
            contract = short(self._origin.contract)
            self._problems.append(f"versions are skipped, and the instructions from {contract} on say no old names")
            for hint in hints:
                guess, _, before = hint.partition(", declare it with renamed_from: ")
                entry = f"how: rewrite, expressions: {{{guess.split()[1]}: {before}}}"
                self._problems.append(f"{guess}, say so: {entry}")

    def _dropped(self) -> list[ColumnChange]:
        return [each for each in self._changes if each.what is Change.DROP]

    def _forced(self, how: How | None) -> How | None:
        if self._policies.force is None or self._want.protect is not None:
            return how
        return max(how or How.METADATA, How(self._policies.force), key=_ORDER.index)

    def _expressions(self) -> dict[str, str]:
        """By new column, over the columns that there are."""
        given = dict(self._chained.expressions) if self._chained is not None else {}
        target, found = folded(self._target), {}
        for name, text in given.items():
            column = name.casefold()
            if column in target and not self._passes(column, text):
                found[target[column].name] = self._over_old_columns(target[column].name, text)
        missing = [each for each in self._changes if each.what in NEEDS_VALUES and each.column not in found]
        if missing and self._chained is not None:
            self._paste = True
            self._problems += [f"the instruction has no expression for {each.column}" for each in missing]
        return found

    def _passes(self, column: str, text: str) -> bool:
        return _column(text) == self._renames.get(column, column)

    def _over_old_columns(self, column: str, text: str) -> str:
        old = folded(self._origin.columns)
        renamed = {new: old[source].name for new, source in self._renames.items() if new not in old}
        try:
            text = compose(text, renamed)
            unknown = [name for name in columns_read(text) if name not in old]
        except ValueError as error:
            self._problems.append(f"the expression for {column}: {error}")
            return text
        if unknown:
            contract = short(self._origin.contract)
            self._problems.append(f"the expression for {column} reads {', '.join(unknown)}, unknown at {contract}")
        return text

    def _loses(self, how: How | None) -> Iterator[str]:
        if how is How.REPLACE_EMPTY:
            yield "all rows"
        elif not derivable(self._want):
            yield from (f"column {each.column}" for each in self._dropped())

    def _permitted(self, how: How | None, loses: Sequence[str]) -> None:
        """Protection forbids what loses something, and nothing else."""
        name, reason = self._want.obj.name, self._want.protect
        if not loses:
            return
        if reason is not None:
            self._problems.append(f"protected: {reason}; refused, since {', '.join(loses)} would be lost")
        elif how is How.REPLACE_EMPTY and not self._policies.accepts_loss(name, self._want.uuid):
            self._problems.append(f"all rows would be lost; say accept_data_loss: {name} if that is meant")
        elif self._by_hand and not self._policies.accepts_loss(name, self._want.uuid):
            self._problems.append(f"{', '.join(loses)} would be lost; say accept_data_loss: {name}, or adopt it")

    def _details(self, how: How | None, expressions: Mapping[str, str]) -> dict[str, Any]:
        if how is None:
            return {}
        found = schema_updates(self._origin.columns, self._target, self._renames).to_json()
        if expressions:
            found["expressions"] = dict(expressions)
        if not same_names(self._origin.partitioning, self._want.obj.partitioning):
            found["partitioning"] = list(self._want.obj.partitioning)
        if not same_names(self._origin.keys, self._want.obj.keys):
            found["keys"] = list(self._want.obj.keys)
        found |= {"contract": self._after, "from": self._origin.contract}
        if how is How.SHADOW:
            found["shadow"] = self._shadow(found)
        return found

    def _shadow(self, details: Mapping[str, Any]) -> str:
        """A name that says what is built there: a later deploy uses it only for the very same change."""
        ours = self._want.fingerprints
        texts = (ours.contract.text, ours.constraints.text, ours.meta.text)
        digest = hashlib.sha256(dumps((self._want.uuid, details, texts))).hexdigest()
        return f"{self._want.obj.name}{SHADOW}{digest[:8]}"


def _column(expression: str) -> str | None:
    try:
        return bare_column(expression)
    except ValueError:
        return None
