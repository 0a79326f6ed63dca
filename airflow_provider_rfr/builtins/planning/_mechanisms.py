"""The strategy for a table's change: the gentlest one that loses nothing, by an instruction where it needs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.builtins.desired import DesiredObject
from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning._drift import Origin, same_names
from airflow_provider_rfr.builtins.planning.diff import (
    NEEDS_VALUES,
    Change,
    ColumnChange,
    diff_columns,
    folded,
    gentlest,
    instruction,
    pending_renames,
    possible_renames,
    rename_hints,
    schema_updates,
    short,
)
from airflow_provider_rfr.builtins.planning.plan import Policies
from airflow_provider_rfr.builtins.spec import Contents, Kind, Strategy
from airflow_provider_rfr.builtins.sql.parse import bare_column, columns_read, compose

_ORDER = tuple(Strategy)


@dataclass(frozen=True)
class Choice:
    """How a table changes.

    :ivar how: None: not at all
    :ivar changes: of its columns
    :ivar words: of everything, for people
    :ivar problems: with any of them, nothing may be done
    :ivar instructed: an instruction leads there
    :ivar paste: an instruction for the declaration, if one is missing
    """

    how: Strategy | None
    changes: tuple[ColumnChange, ...] = ()
    words: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    loses: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    paste: str | None = None
    instructed: bool = False


class Chooser:
    """The strategy that leads from the origin to the declaration."""

    def __init__(self, desired: DesiredObject, origin: Origin, policies: Policies) -> None:
        self._desired = desired
        self._origin = origin
        self._policies = policies
        self._target = (*desired.obj.columns, *origin.left)
        self._after = desired.fingerprints.contract.digest
        self._by_hand = origin.contract == self._after
        self._problems: list[str] = []
        self._paste = False
        self._chained: instructions.Chained | None = None
        found = None
        if origin.contract not in ("", self._after):
            found = instructions.path(desired.obj.migrations, origin.contract, self._after)
        if found is not None:
            try:
                self._chained = instructions.merge(found)
            except ValueError as error:
                self._problems.append(f"an instruction's {error}")
        # An instruction that evolves may name a column's old name as its expression.
        given = self._chained.expressions if self._chained is not None else {}
        renames = {name.casefold(): old for name, text in given.items() if (old := _column(text)) is not None}
        self._renames = pending_renames(origin.columns, self._target, renames, recorded=origin.remembered)
        self._changes = diff_columns(origin.columns, self._target, self._renames)
        self._dropped = [each for each in self._changes if each.what is Change.DROP]
        # Whether the contents can be had again from what they were made of.
        self._derivable = desired.obj.contents is Contents.DERIVABLE or desired.kind is Kind.MATERIALIZED_VIEW

    def choose(self) -> Choice:
        needed = gentlest(self._changes)
        words, constraints = list(map(str, self._changes)), {}
        for said, name in (("partitioned by", "partitioning"), ("keys", "keys")):
            old, new = getattr(self._origin, name), getattr(self._desired.obj, name)
            if not same_names(old, new):
                words.append(f"~ {said}: {', '.join(old) or 'nothing'} -> {', '.join(new) or 'nothing'}")
                constraints[name] = list(new)
                needed = max(needed or Strategy.METADATA, Strategy.EVOLVE, key=_ORDER.index)
        how = needed
        if self._chained is not None:
            how = self._instructed(self._chained, needed)
        elif needed is not None:
            self._check_uninstructed(needed)
            if needed is Strategy.REWRITE and self._derivable and self._desired.obj.query is not None:
                how = Strategy.RECOMPUTE
        expressions = self._expressions() if how is Strategy.REWRITE else {}
        loses = self._losses(how)
        before, paste = self._origin.contract, None
        if self._paste:
            self._problems += rename_hints(self._changes)
            paste = instruction(before, self._after, self._changes)
        details: dict[str, Any] = {}
        if how is not None:
            details = {**schema_updates(self._origin.columns, self._target, self._renames), **constraints}
            details |= {"expressions": expressions} if expressions else {}
            details |= {"contract": self._after, "from": before}
        problems = tuple(self._problems)
        return Choice(how, self._changes, tuple(words), details, loses, problems, paste, self._chained is not None)

    def _check_uninstructed(self, needed: Strategy) -> None:
        """Without an instruction, refuse what could lose a value or needs values that no row has."""
        hard = needed is Strategy.REWRITE
        if self._derivable and not (hard and self._desired.obj.query is None):
            return
        if self._by_hand:
            if hard:
                self._problems.append("changed by hand in a way that can't be undone without inventing values")
        elif hard or self._dropped:
            self._paste = True
            self._problems.append(f"contract changed, no migration from {short(self._origin.contract)}")

    def _instructed(self, chained: instructions.Chained, needed: Strategy | None) -> Strategy:
        if chained.how is Strategy.REPLACE_EMPTY:
            return chained.how
        if chained.how is Strategy.RECOMPUTE:
            if self._desired.obj.query is None:
                self._problems.append("the instruction says recompute, but there is no query to compute it from")
            return Strategy.RECOMPUTE
        # Whether any value becomes another one: an expression that is a column's old name only renames it.
        target = folded(self._target)
        computes = any(
            name.casefold() in target and not self._passes(name.casefold(), text)
            for name, text in chained.expressions.items()
        )
        if chained.how is Strategy.REWRITE and (needed is Strategy.REWRITE or computes):
            return Strategy.REWRITE
        if needed is Strategy.REWRITE:
            hard = "; ".join(str(each) for each in self._changes if each.what in NEEDS_VALUES)
            self._problems.append(f"the instruction says {chained.how.value}, which can't do: {hard}")
            self._paste = True
        # Over several versions, a dropped and an added column may be one that was renamed in between.
        old = {None, *folded(self._origin.columns)}
        said = {name.casefold() for name, text in chained.expressions.items() if _column(text) in old}
        added = [each for each in self._changes if each.what is Change.ADD and each.column.casefold() not in said]
        pairs = possible_renames([*added, *self._dropped])
        if chained.length > 1 and pairs and not self._derivable:
            contract = short(self._origin.contract)
            self._problems.append(f"versions are skipped, and the instructions from {contract} on say no old names")
            for before, after in pairs:
                entry = f"how: rewrite, expressions: {{{after}: {before}}}"
                self._problems.append(f"if {after} is {before} under a new name, say so: {entry}")
        return Strategy.EVOLVE

    def _expressions(self) -> dict[str, str]:
        """By new column, over the columns that there are."""
        given = self._chained.expressions if self._chained is not None else {}
        target, old, found = folded(self._target), folded(self._origin.columns), {}
        renamed = {new: old[source].name for new, source in self._renames.items() if new not in old}
        for name, text in given.items():
            if name.casefold() not in target or self._passes(name.casefold(), text):
                continue
            column = target[name.casefold()].name
            found[column] = text
            try:
                found[column] = text = compose(text, renamed)
                unknown = [each for each in columns_read(text) if each not in old]
            except ValueError as error:
                self._problems.append(f"the expression for {column}: {error}")
                continue
            if unknown:
                contract = short(self._origin.contract)
                self._problems.append(f"the expression for {column} reads {', '.join(unknown)}, unknown at {contract}")
        missing = [each for each in self._changes if each.what in NEEDS_VALUES and each.column not in found]
        if missing and self._chained is not None:
            self._paste = True
            self._problems += [f"the instruction has no expression for {each.column}" for each in missing]
        return found

    def _passes(self, column: str, text: str) -> bool:
        return _column(text) == self._renames.get(column, column)

    def _losses(self, how: Strategy | None) -> tuple[str, ...]:
        """What is lost. Protection forbids any loss; others need a permission."""
        name, protect = self._desired.obj.name, self._desired.protect
        loses: tuple[str, ...] = ()
        if how is Strategy.REPLACE_EMPTY:
            loses = ("all rows",)
        elif not self._derivable:
            loses = tuple(f"column {each.column}" for each in self._dropped)
        if loses and protect is not None:
            self._problems.append(f"protected: {protect}; refused, since {', '.join(loses)} would be lost")
        elif loses and not self._policies.accepts_loss(name, self._desired.uuid):
            if how is Strategy.REPLACE_EMPTY:
                self._problems.append(f"all rows would be lost; say accept_data_loss: {name} if that is meant")
            elif self._by_hand:
                self._problems.append(f"{', '.join(loses)} would be lost; say accept_data_loss: {name}, or adopt it")
        return loses


def _column(expression: str) -> str | None:
    try:
        return bare_column(expression)
    except ValueError:
        return None
