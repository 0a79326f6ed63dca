"""What becomes of a table, from first to last: what it starts from, what differs, how that is done, and what it costs.

The gentlest action that loses nothing is taken. What would make values or rows unreachable is a loss: it is counted,
and nothing is done before somebody accepts it by name. What needs values that no row has stops the deploy until the
column says, in its ``was``, how they are made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.builtins.desired import DesiredObject, relation
from airflow_provider_rfr.builtins.planning._decision import Accepted, Decision, Difference, Inputs, becomes
from airflow_provider_rfr.builtins.planning._origin import Found, Origin, is_unfinished, same_names
from airflow_provider_rfr.builtins.planning.columns import (
    EVERYTHING,
    NOTHING,
    Change,
    ColumnChange,
    ColumnSet,
    Effects,
    Expressions,
    diff_columns,
    expressions_of,
    folded,
    gentlest,
    gone_of,
    pending_renames,
    possible_renames,
    proposed,
    schema_updates,
    shape_of,
    widened_of,
)
from airflow_provider_rfr.builtins.planning.plan import Action, Load, Policies
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import BuiltinObject, Column, Kind, Was
from airflow_provider_rfr.builtins.state import LiveKind, RecordedObject
from airflow_provider_rfr.lake.types import is_plain

_ORDER = (Action.METADATA, Action.EVOLVE, Action.REWRITE, Action.RECOMPUTE, Action.REPLACE_EMPTY)
"""The gentlest first."""


def decide_table(decision: Decision, found: Found, inputs: Inputs, policies: Policies, accepted: Accepted) -> None:
    """Decide about an object with a table behind it."""
    desired, known = decision.desired, decision.desired.recorded
    # A deploy that did not finish may have made the table already.
    is_table = desired.live is not None and desired.live.kind is LiveKind.TABLE and desired.live.marker == desired.uuid
    was_no_table = known is not None and relation(known.kind) is not LiveKind.TABLE and not is_table
    if found.origin is not None and not was_no_table:
        _decide_change(decision, found, found.origin, inputs, policies, accepted)
    else:
        decision.how = Action.CREATE
        if desired.sql is not None:
            decision.details["sql"] = desired.sql
        if known is None:
            decision.reasons.append(because(Why.NEW))
        else:
            decision.reasons += found.drift if not was_no_table else ()
            decision.effects = becomes(desired, known)
    if desired.kind is Kind.SOURCE:
        _decide_load(decision)


@dataclass
class _Change:
    """How the table's columns and layout become the declared ones.

    :ivar how: None: not at all
    :ivar changes: of its columns
    :ivar words: of everything, for people
    :ivar losses: what would be lost: a name to accept, and what it stands for
    """

    desired: DesiredObject
    origin: Origin
    how: Action | None = None
    changes: tuple[ColumnChange, ...] = ()
    words: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)
    problems: list[Reason] = field(default_factory=list)
    paste: list[str] = field(default_factory=list)
    expressions: Expressions = field(default_factory=lambda: Expressions({}, {}, (), {}))

    @classmethod
    def of(cls, desired: DesiredObject, origin: Origin) -> _Change:
        found = cls(desired, origin)
        target = (*desired.obj.columns, *origin.left)
        renames = pending_renames(origin.columns, target, recorded=origin.remembered)
        found.changes = diff_columns(origin.columns, target, renames)
        found.expressions = expressions_of(origin.columns, target, found.changes, renames)
        found.words += map(str, found.changes)
        constraints = found._constraints()
        found.how = gentlest(found.changes)
        if constraints:
            found.how = max(found.how or Action.METADATA, Action.EVOLVE, key=_ORDER.index)
        if found.expressions.texts:
            found.how = Action.REWRITE
        found._make_values()
        found._note_losses()
        if found.how is not None:
            found.details = {**schema_updates(origin.columns, target, renames), **constraints}
            if found.how is Action.REWRITE:
                found.details["expressions"] = dict(found.expressions.texts)
            found.details |= {"contract": desired.fingerprints.contract.digest, "from": origin.contract}
        return found

    def _constraints(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for said, name in (("partitioned by", "partitioning"), ("keys", "keys")):
            old, new = getattr(self.origin, name), getattr(self.desired.obj, name)
            if not same_names(old, new):
                self.words.append(f"~ {said}: {', '.join(old) or 'nothing'} -> {', '.join(new) or 'nothing'}")
                found[name] = list(new)
        return found

    def _make_values(self) -> None:
        """Where values are needed that no row has: from the query, from a ``using``, or not at all."""
        if self.how is not Action.REWRITE:
            return
        if self.desired.obj.query is not None:
            self.how = Action.RECOMPUTE
            return
        for name, problem in self.expressions.unreadable.items():
            self.problems.append(because(Why.USING_UNREADABLE, name, problem))
        if self.expressions.missing and not self.desired.keeps_rows:
            # Rows that may be made again are not worth an expression.
            self.how = Action.REPLACE_EMPTY
            return
        declared = folded(self.desired.obj.columns)
        for each in self.expressions.missing:
            if self.origin.by_hand:
                self.problems.append(because(Why.NOT_UNDONE, each.column))
                continue
            was = proposed(each, self.changes)
            self.problems.append(because(Why.NEEDS_USING, each.column, each.before or "nothing", each.after))
            self.paste.append(_entry(declared[each.column.casefold()], was))

    def maybe_renamed(self, accepted: Accepted) -> Iterator[Reason]:
        """Questions about columns that nobody let go, while others like them come."""
        for old, new in possible_renames(self.changes):
            lost = f"{self.desired.obj.name}.{old}"
            if lost in self.losses and lost not in accepted:
                yield because(Why.MAYBE_RENAMED, new, old, old)

    def _note_losses(self) -> None:
        name = self.desired.obj.name
        if not self.desired.keeps_rows:
            return
        for each in self.changes:
            if each.what is Change.DROP:
                self.losses[f"{name}.{each.column}"] = f"column {each.column}"
        for column in self.desired.obj.columns if self.how is Action.REWRITE else ():
            if column.name in self.expressions.narrowed:
                self.losses[f"{name}.{column.name}"] = f"values of {column.name} that are no {column.type}"


def _entry(column: Column, was: Was) -> str:
    """The column with its ``was``, as a line of YAML to paste."""
    parts = {name: value for name, value in (("name", was.name), ("type", was.type), ("using", was.using)) if value}
    said = ", ".join(f"{name}: {_scalar(value)}" for name, value in parts.items())
    required = ", required: true" if column.required else ""
    comment = f", comment: {_scalar(column.comment)}" if column.comment else ""
    return f"- {{name: {_scalar(column.name)}, type: {_scalar(column.type)}{required}{comment}, was: {{{said}}}}}"


def _scalar(text: str) -> str:
    # JSON is YAML: texts in double quotes where a plain word might be read as something else.
    is_word = is_plain(text) and text.casefold() not in ("null", "true", "false")
    return text if is_word else json.dumps(text, ensure_ascii=False)


def _decide_change(
    decision: Decision, found: Found, origin: Origin, inputs: Inputs, policies: Policies, accepted: Accepted
) -> None:
    desired, known = decision.desired, decision.desired.recorded
    change = _Change.of(desired, origin)
    how = change.how
    if known is not None:
        how = _with_the_rest(decision, change, known)
    if desired.kind is Kind.MATERIALIZED_VIEW:
        decision.input_reasons = {**inputs.contents, **inputs.shape}
        decision.reasons += decision.input_reasons.values()
        new_query = {Difference.LOGIC, Difference.STAR} & decision.differences.keys()
        if decision.input_reasons or new_query or how is Action.REWRITE:
            how = Action.RECOMPUTE
    # An adopted manual change is kept: writing everything that is declared would revert it.
    if how is None and (policies.drift == "repair" if found.drift else origin.note is not None):
        how = Action.METADATA
    if found.adopted:
        how = Action.ADOPT
    _take(decision, change, how)
    decision.lose(change.losses, accepted)
    decision.problems += change.maybe_renamed(accepted)
    if known is not None and origin.note is not None and Difference.CONTRACT in decision.differences:
        # The table may be as declared already; its readers saw the recorded one, and the deploy died before them.
        decision.effects |= becomes(desired, known)
    if how is not None and origin.note is not None:
        decision.reasons.append(origin.note)
    if found.adopted:
        decision.reasons.append(because(Why.ADOPTED))


def _with_the_rest(decision: Decision, change: _Change, known: RecordedObject) -> Action | None:
    """The action for a recorded table: there may be more to do than its columns ask for."""
    desired = decision.desired
    beside_rows = {Difference.METADATA, Difference.CONSTRAINTS, Difference.CONTRACT, Difference.DEFINITION}
    decision.note_metadata()
    filled = desired.kind in (Kind.MATERIALIZED_VIEW, Kind.SOURCE) and known.kind is not desired.kind
    if filled and known.keep is not False and not _appends(desired.obj):
        # Rows that nothing can make again are overwritten by a query's result, or by the first refresh.
        change.losses = {desired.obj.name: "all rows"}
    if filled and desired.kind is Kind.MATERIALIZED_VIEW:
        return Action.RECOMPUTE
    if change.how is None and (beside_rows & decision.differences.keys() or desired.kind is not known.kind):
        return Action.METADATA
    return change.how


def _appends(obj: BuiltinObject) -> bool:
    """Whether a refresh leaves the rows that are there."""
    options = (obj.refresh or {}).get("options")
    return isinstance(options, Mapping) and options.get("mode") == "append"


def _take(decision: Decision, change: _Change, how: Action | None) -> None:
    """Put the change into the decision, with its effects on readers."""
    desired = decision.desired
    decision.how = how
    decision.words = [*change.words, *decision.words]
    decision.details |= change.details if how is not None else {}
    if how is Action.RECOMPUTE and desired.obj.query is not None:
        decision.details["sql"] = desired.sql
    decision.problems += change.problems
    decision.paste += change.paste
    renamed = {each.column for each in change.changes if each.what is Change.RENAME}
    decision.was_used = renamed | change.expressions.used.keys()
    if how is None and not change.changes:
        return
    contents = NOTHING
    if how in (Action.RECOMPUTE, Action.REPLACE_EMPTY):
        contents = EVERYTHING
    elif how is Action.REWRITE:
        contents = ColumnSet(frozenset(name.casefold() for name in change.expressions.texts))
    gone = gone_of(change.origin.columns, desired.obj.columns, change.changes) if change.changes else ()
    decision.effects = Effects(shape_of(change.changes), contents, gone, widened_of(change.changes))


def _decide_load(decision: Decision) -> None:
    """Rows of a source come from a refresh: note why one has to run after the deploy."""
    known, live = decision.desired.recorded, decision.desired.live
    redefined = Difference.DEFINITION in decision.differences
    if redefined:
        decision.words.append("~ definition: the next refresh starts a new generation")
    if known is None or known.kind is not Kind.SOURCE or decision.how is Action.CREATE:
        why = Load.CREATED
    elif redefined:
        why = Load.REDEFINED
    elif decision.how is Action.REPLACE_EMPTY or (live is not None and not live.rows and is_unfinished(known, live)):
        # An earlier deploy may have emptied it, and died before it could ask for the refresh.
        why = Load.EMPTIED
    else:
        return
    if decision.how is None and decision.problems:
        return
    decision.details["load_anew"] = why.value
    if decision.how is None:
        decision.how = Action.METADATA
