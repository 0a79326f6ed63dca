"""The decision about a table, from first to last: its origin, its differences, the action for them, and the losses.

The gentlest action that loses nothing is chosen. A change that makes values or rows unreachable is a loss: it is
counted, and nothing is done before somebody accepts it by name. A change that needs values that no row has stops the
deploy until the column's ``was`` says how they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from math import inf

import yaml

from airflow_provider_rfr.builtins.desired import relation
from airflow_provider_rfr.builtins.planning._decision import Decision, States, different
from airflow_provider_rfr.builtins.planning._origin import Origin
from airflow_provider_rfr.builtins.planning.columns import EVERYTHING, Change, ColumnDiff
from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Column, Kind, Was


def decide_table(decision: Decision, origin: Origin, states: States) -> None:
    """Decide about an object with a table behind it."""
    desired, known = decision.desired, decision.desired.recorded
    # A deploy that did not finish may have made the table already.
    is_table = desired.live is not None and desired.live.kind is Kind.TABLE and desired.live.marker == desired.uuid
    was_no_table = known is not None and relation(known.kind) is not Kind.TABLE and not is_table
    if origin.there and not was_no_table:
        _Change(decision, origin, states).decide()
    else:
        decision.how = Action.CREATE
        if desired.sql is not None:
            decision.details["sql"] = desired.sql
        if known is None:
            decision.reasons.append(because(Why.NEW))
        else:
            decision.reasons += origin.drift if not was_no_table else ()
            decision.effects = decision.becomes()
    if desired.kind is Kind.SOURCE:
        _decide_load(decision, unfinished=desired.uuid in states.live.unfinished)


class _Change:
    """The change of an existing table to the declared one."""

    def __init__(self, decision: Decision, origin: Origin, states: States) -> None:
        self._decision, self._origin, self._states = decision, origin, states
        self._desired, self._obj = decision.desired, decision.desired.obj
        columns, nulls = (*self._obj.columns, *origin.left), self._desired.live.nulls if self._desired.live else ()
        self._diff = ColumnDiff(origin.columns, columns, origin.told, origin.moved, frozenset(nulls))
        self._losses: dict[str, str] = {}

    def decide(self) -> None:
        decision, origin, known = self._decision, self._origin, self._desired.recorded
        decision.words += map(str, self._diff.changes)
        how = self._with_the_rest(self._columns_and_layout())
        # An adopted manual change is kept: writing everything that is declared would revert it.
        if how is None and (self._states.policies.drift == "repair" if origin.drift else origin.note is not None):
            how = Action.METADATA
        decision.how = how = Action.ADOPT if origin.adopted else how
        if how is Action.RECOMPUTE and self._obj.query is not None:
            decision.details["sql"] = self._desired.sql
        inside = {change.column for change in self._diff.changes if change.what is Change.RENAME_FIELDS}
        decision.was_used = {*self._diff.called.values()} | self._diff.texts.keys() | inside
        written = frozenset(map(str.casefold, self._diff.texts)) if how is Action.REWRITE else frozenset()
        contents = EVERYTHING if how in (Action.RECOMPUTE, Action.REPLACE_EMPTY) else written
        decision.effects = self._diff.effects(contents)
        decision.lose(self._losses, self._states.accepted)
        decision.problems += [because(Why.FIELD_TAKEN, column) for column in self._diff.taken_fields.values()]
        decision.problems += self._maybe_renamed()
        if known is not None and origin.note is not None and Why.COLUMNS_CHANGED in decision.differences:
            # The table may be as declared already; its readers saw the recorded one, and the deploy died before them.
            decision.effects |= decision.becomes()
        if how is not None and origin.note is not None:
            decision.reasons.append(origin.note)
        if origin.adopted:
            decision.reasons.append(because(Why.ADOPTED))

    def _maybe_renamed(self) -> Iterator[Reason]:
        """Yield a reason for each lost column or field that may be a rename: one of the same type is added.

        The reason says how to declare the rename.
        """
        diff, accepted = self._diff, self._states.accepted
        added = (change for change in diff.changes if change.what in (Change.ADD, Change.ADD_REQUIRED))
        dropped = (change for change in diff.changes if change.what is Change.DROP)
        pairs = product(added, dropped)
        like = [(old.column, new.column, old.column) for new, old in pairs if new.after == old.before]
        for column, old, new in diff.like_fields:
            was = f"{{fields: {{{new}: {old.rpartition('.')[2]}}}}}"
            like.append((f"{column}.{old}", f"{column}.{new}", was))
        for old, new, was in like:
            lost = f"{self._obj.name}.{old}"
            is_made = new.partition(".")[0] in diff.texts
            if lost in self._losses and lost.casefold() not in accepted and not is_made:
                yield because(Why.MAYBE_RENAMED, new, old, was)

    def _columns_and_layout(self) -> Action | None:
        """Return the action that columns, partitioning and keys need; note its details, losses and problems."""
        layout, how = dict(self._layout()), self._diff.how
        if layout and how is not Action.REWRITE:
            how = Action.EVOLVE
        if how is Action.REWRITE or self._diff.texts or self._diff.missing:
            how = self._make_values()
        self._losses = dict(self._lost(how))
        if how is not None:
            self._decision.details |= {**self._diff.updates(), **layout}
        if how is Action.REWRITE:
            self._decision.details["expressions"] = {**self._diff.carried, **self._diff.texts}
        return how

    def _layout(self) -> Iterator[tuple[str, list[str]]]:
        for said, name in (("partitioned by", "partitioning"), ("keys", "keys")):
            for reason in different(said, getattr(self._origin, name), getattr(self._obj, name)):
                self._decision.words.append(f"~ {reason}")
                yield name, list(getattr(self._obj, name))

    def _make_values(self) -> Action:
        """Choose the action where values are needed that no row has, and note a problem for each column without values.

        The values come from the query or from a ``using``.
        """
        decision, diff, note = self._decision, self._diff, self._origin.note
        if self._obj.query is not None:
            return Action.RECOMPUTE
        decision.problems += [because(Why.USING_UNREADABLE, *item) for item in diff.unreadable.items()]
        if diff.missing and not self._desired.keeps_rows:
            # Rows that may be made again are not worth an expression.
            return Action.REPLACE_EMPTY
        for column in diff.missing:
            if note is not None and note.why is Why.CHANGED_BY_HAND:
                decision.problems.append(because(Why.NOT_UNDONE, column.column))
                continue
            decision.problems.append(because(Why.NEEDS_USING, column.column, column.before or "nothing", column.after))
            if (was := diff.proposed(column)) is not None:
                decision.paste.append(_entry(diff.wanted[column.column.casefold()], was))
        return Action.REWRITE

    def _lost(self, how: Action | None) -> Iterator[tuple[str, str]]:
        """Yield the names of losses to accept, and their descriptions."""
        if not self._desired.keeps_rows:
            return
        for change in self._diff.changes:
            if change.what is Change.DROP:
                yield f"{self._obj.name}.{change.column}", f"column {change.column}"
        for path in self._diff.lost_fields:
            yield f"{self._obj.name}.{path}", f"field {path}"
        for column in self._diff.narrowed if how is Action.REWRITE else ():
            yield f"{self._obj.name}.{column.name}", f"values of {column.name} that are no {column.type}"

    def _with_the_rest(self, how: Action | None) -> Action | None:
        """Return the action for the whole table, which may need more than its columns do."""
        decision, known = self._decision, self._desired.recorded
        decision.note_metadata()
        if how is None and decision.differences.keys() - {Why.RENAMED}:
            how = Action.METADATA
        kind = self._desired.kind
        options = (self._obj.refresh or {}).get("options")
        appends = isinstance(options, Mapping) and options.get("mode") == "append"
        is_filled = kind in (Kind.MATERIALIZED_VIEW, Kind.SOURCE) and not appends
        if is_filled and known is not None and known.kind is not kind and known.keep is not False:
            # Rows that nothing can make again are overwritten by a query's result, or by the first refresh.
            self._losses = {self._obj.name: "all rows"}
        if kind is not Kind.MATERIALIZED_VIEW:
            return how
        decision.reasons += decision.noticed.values()
        is_new = decision.differences.keys() & {Why.KIND_CHANGED, Why.QUERY_CHANGED, Why.STAR_CHANGED}
        return Action.RECOMPUTE if decision.noticed or is_new else how


def _entry(column: Column, was: Was) -> str:
    """Return the column with its ``was`` as a line of YAML to paste."""
    both = (replace(column, was=()), was)
    said, before = ({name: text for name, text in asdict(policies).items() if text} for policies in both)
    entry = {**said, "was": before}
    text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    return f"- {text.strip()}"


def _decide_load(decision: Decision, *, unfinished: bool) -> None:
    """Note why a refresh of a source has to run after the deploy: its rows come from refreshes."""
    known, live = decision.desired.recorded, decision.desired.live
    redefined = Why.DEFINITION_CHANGED in decision.differences
    if redefined:
        decision.words.append("~ definition: the next refresh starts a new generation")
    if known is None or known.kind is not Kind.SOURCE or decision.how is Action.CREATE:
        why = "created"
    elif redefined:
        why = "redefined"
    elif decision.how is Action.REPLACE_EMPTY or (live is not None and not live.rows and unfinished):
        # An earlier deploy may have emptied it, and died before it could ask for the refresh.
        why = "emptied"
    else:
        return
    if decision.how is None and decision.problems:
        return
    decision.details["load_anew"] = why
    decision.how = decision.how or Action.METADATA
