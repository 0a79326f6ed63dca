"""The decision about one object: the differences from its record, the action, and the effects on its readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, DesiredState, release
from airflow_provider_rfr.builtins.fingerprint import contract_of, definition_of, same_query
from airflow_provider_rfr.builtins.planning.columns import ALL, EVERYTHING, Change, ColumnDiff, Effects, folded, met
from airflow_provider_rfr.builtins.planning.plan import Action, Finding, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, BuiltinObject, CatalogSpec, Kind, namespace_of
from airflow_provider_rfr.builtins.sql.facts import output_columns
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.builtins.state import ActualState, RecordedObject, RegistryState
from airflow_provider_rfr.exceptions import QueryError

FORMAT: Final = "format-version"
"""Property that says how a table is made: a constraint. REST catalogs take it, and do not keep it as a property."""
_SAID: Final = ("name", "kind", "columns", "keep", "partitioning", "keys", "comment", "owner", "exportable")
"""What a record has from the declaration as it is."""


def different(what: str, old: Sequence[str], new: Sequence[str]) -> list[Reason]:
    """Return a reason if two lists of names, or of expressions over names, differ; compared without case."""
    same = [column.casefold() for column in old] == [column.casefold() for column in new]
    return [] if same else [because(Why.DIFFERS, what, ", ".join(old) or "nothing", ", ".join(new) or "nothing")]


def _metadata(obj: BuiltinObject | RecordedObject) -> dict[str, str | None]:
    properties = {f"property {name}": value for name, value in obj.properties.items() if name != FORMAT}
    return {"comment": obj.comment, "owner": obj.owner, **properties}


@dataclass(slots=True)
class Decision:
    """One object's part of a plan, while it is made.

    :ivar differences: from its record, with their sentences; those are among ``reasons``, too
    :ivar words: changes field by field, for display
    :ivar losses: names that have to be accepted, and what they stand for
    :ivar leaves: its table or view is dropped before it is created as another kind
    :ivar was_used: columns of which a ``was`` met what is live
    :ivar shape: by the ids of its inputs, where a column has another type or name; ``contents``: where rows may differ
    :ivar done: a deploy that did not finish has done it
    """

    desired: DesiredObject
    how: Action | None = None
    differences: Mapping[Why, Reason] = field(default_factory=dict)
    diff: ColumnDiff = field(default_factory=ColumnDiff)
    reasons: list[Reason] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, str] = field(default_factory=dict)
    problems: list[Reason] = field(default_factory=list)
    paste: list[str] = field(default_factory=list)
    effects: Effects = field(default_factory=Effects)
    leaves: bool = False
    renamed: bool = False
    was_used: Set[str] = frozenset()
    drift: tuple[Reason, ...] = ()
    shape: dict[UUID, Reason] = field(default_factory=dict)
    contents: dict[UUID, Reason] = field(default_factory=dict)
    done: bool = False

    @property
    def touched(self) -> bool:
        return self.how is not None or self.renamed or self.leaves

    @property
    def old_name(self) -> str:
        """Return the name that readers knew before this deploy."""
        return (self.desired.recorded or self.desired.obj).name

    @property
    def noticed(self) -> dict[UUID, Reason]:
        """Return the reasons that come from the object's inputs, by their ids; for a view, rows are no reason."""
        return self.shape if self.desired.kind is Kind.VIEW else {**self.contents, **self.shape}

    def note_inputs(self, decisions: Decisions) -> None:
        """Note the changes of the object's inputs, which are decided already, and the columns that it will not find."""
        desired = self.desired
        before = {dep.name: dep.uuid for dep in desired.recorded.deps} if desired.recorded is not None else {}
        for dependency in desired.reads:
            read = decisions.get(dependency.uuid) if dependency.uuid is not None else None
            if read is None or dependency.uuid is None:
                continue
            name, effects = read.desired.obj.name, read.effects
            if before.get(dependency.name) not in (None, dependency.uuid):
                self.shape[dependency.uuid] = self.contents[dependency.uuid] = because(Why.READS_ANOTHER, name)
                continue
            if columns := met(effects.shape, dependency.columns):
                self.shape[dependency.uuid] = reads(name, columns)
            if columns := met(effects.contents, dependency.columns):
                self.contents[dependency.uuid] = reads(name, columns)
            gone = [(old, now) for old, now in effects.gone.items() if old in (dependency.columns or ())]
            # A sink knows columns by their ids: a new name stops nothing.
            kept = desired.kind is Kind.SINK
            self.problems += [lost_column(name, old, now) for old, now in gone if not (now and kept)]

    def note_differences(self) -> None:
        """Compare the object with its record, field by field."""
        obj, known, sql = self.desired.obj, self.desired.recorded, self.desired.sql
        if known is None:
            return
        self.diff = ColumnDiff(known.columns, obj.columns)
        same = same_query(obj.query, known.raw_sql)
        changes = {change.what for change in self.diff.changes}
        # A sink has another source if that has another id; a new name does not make it another one.
        source, before = (tuple(dependency.uuid for dependency in some) for some in (self.desired.reads, known.deps))
        fed = obj.kind is not Kind.SINK or source == before
        policies = (obj.keep, obj.exportable) == (known.keep, known.exportable)
        found = {
            Why.KIND_CHANGED: obj.kind is not known.kind,
            Why.RENAMED: obj.key != known.key,
            Why.COLUMNS_CHANGED: bool(changes - {Change.RELAX, Change.REQUIRE, Change.COMMENT}),
            Why.CONSTRAINTS_CHANGED: bool(
                changes & {Change.RELAX, Change.REQUIRE}
                or different("keys", known.keys, obj.keys)
                or different("partitioned by", known.partitioning, obj.partitioning)
                or obj.properties.get(FORMAT) != known.properties.get(FORMAT)
            ),
            Why.QUERY_CHANGED: not same,
            Why.DEFINITION_CHANGED: definition_of(obj) != known.definition or not fed,
            Why.STAR_CHANGED: same and None not in (sql, known.sql) and sql != known.sql,
            Why.METADATA_CHANGED: Change.COMMENT in changes or not policies or _metadata(obj) != _metadata(known),
        }
        facts = {Why.KIND_CHANGED: (known.kind.value, obj.kind.value), Why.RENAMED: (known.name,)}
        self.differences = {why: because(why, *facts.get(why, ())) for why, is_so in found.items() if is_so}
        self.reasons += self.differences.values()

    def note_metadata(self) -> None:
        """Note the metadata that a step has to write and to remove, if the metadata changed."""
        known, obj = self.desired.recorded, self.desired.obj
        if known is None or Why.METADATA_CHANGED not in self.differences:
            return
        before, now = _metadata(known), _metadata(obj)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                old, new = (
                    "nothing" if properties.get(name) is None else repr(properties[name])
                    for properties in (before, now)
                )
                self.words.append(f"~ {name}: {old} -> {new}")
        if gone := sorted(known.properties.keys() - obj.properties.keys()):
            self.details["unset"] = gone

    def lose(self, losses: Mapping[str, str], accepted: Set[str]) -> None:
        """Note the losses (names to accept, and descriptions), and a problem for each loss that is not accepted."""
        reason = self.desired.keep_reason
        for name, what in losses.items():
            if reason is not None:
                self.problems.append(because(Why.KEPT, what, reason))
            elif name.casefold() not in accepted:
                self.problems.append(because(Why.WOULD_LOSE, what, name, name))
        self.losses |= losses

    def becomes(self, contents: frozenset[str] = EVERYTHING) -> Effects:
        """Return the effects of an object that is created again: all contents, and the columns that changed."""
        known, obj = self.desired.recorded, self.desired.obj
        if known is None:
            return Effects(EVERYTHING, contents)
        if not known.columns or not obj.columns:
            before, now = self.outputs() if known.sql != self.desired.sql else ((), ())
            return Effects(EVERYTHING, contents, {name: "" for name in before if now and name not in now})
        return self.diff.effects(contents)

    def outputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the object's columns before and after the deploy, as compared; empty if unknown."""
        known, live = self.desired.recorded, self.desired.live
        now = _outputs(self.desired.obj, self.desired.sql)
        if known is None:
            return (), now
        before = _outputs(known, known.sql)
        if known.kind in STORED and live is not None and live.kind is Kind.TABLE and live.columns:
            there = tuple(folded(live.columns))
            # What was added by hand stays behind the others, or its readers break.
            return there, (*now, *(name for name in there if name not in before and name not in now))
        return before, now

    def nothing_left(self) -> None:
        """Note that everything that was decided has been done already; the effects on readers stay."""
        self.how, self.details, self.words, self.losses = None, {}, [], {}
        self.done = True

    def step(self, how: Action) -> Step:
        """Return the step that creates or changes the object."""
        obj, live = self.desired.obj, self.desired.live
        # What leaves before it comes is lost by the step that drops it.
        losses = {} if self.leaves else self.losses
        reasons, size = tuple(dict.fromkeys(self.reasons)), (live.rows, live.bytes) if live is not None else ()
        return Step(obj.id, obj.name, obj.kind, how, reasons, tuple(self.words), self.details, losses, *size)

    def finding(self) -> Finding:
        """Return the finding that stops the deploy."""
        obj, problems = self.desired.obj, tuple(dict.fromkeys(self.problems))
        return Finding(obj.name, obj.kind, problems, obj.id, tuple(self.words), tuple(self.paste), str(obj.place))


Decisions = Mapping[UUID, Decision]


@dataclass(frozen=True)
class States:
    """The inputs of a plan."""

    spec: CatalogSpec
    wanted: DesiredState
    recorded: RegistryState
    live: ActualState
    policies: Policies

    @cached_property
    def accepted(self) -> frozenset[str]:
        """Return the losses that somebody accepted: names of objects, or of columns behind them, as compared."""
        return self.policies.accept_data_loss | {entry.key for entry in self.spec.removed}

    @cached_property
    def downgrade(self) -> Reason | None:
        """Return the reason why nothing may be changed, if an older version plans."""
        before, now = self.recorded.version, self.spec.version
        is_older = before is not None and release(now) < release(before)
        return because(Why.DOWNGRADE, before, now) if is_older else None


def _outputs(obj: BuiltinObject | RecordedObject, sql: str | None) -> tuple[str, ...]:
    if obj.columns or sql is None:
        return tuple(folded(obj.columns))
    try:
        found = output_columns(sql, lambda name: None, namespace_of(obj.name))
    except QueryError:
        return ()
    return tuple(column.casefold() for column in found)


def record_of(desired: DesiredObject, revision: int) -> RecordedObject:
    """Return the record that the registry will hold for an object; :func:`apply` adds the id of its deploy."""
    obj = desired.obj
    said: dict[str, Any] = {name: getattr(obj, name) for name in _SAID}
    return RecordedObject(
        uuid=obj.id,
        contract=contract_of(obj.columns),
        definition=definition_of(obj),
        canonicalizer=CANONICALIZER,
        raw_sql=obj.query,
        deps=desired.reads,
        revision=revision,
        deploy_id=desired.recorded.deploy_id if desired.recorded is not None else "",
        sql=desired.sql,
        properties=dict(obj.properties),
        instance=desired.instance,
        **said,
    )


def reads(name: str, columns: list[str]) -> Reason:
    return because(Why.READS, name if columns == [ALL] else ", ".join(f"{name}.{column}" for column in columns))


def lost_column(name: str, column: str, now: str) -> Reason:
    """Return the reason for a read of a column that no longer exists; ``now`` is its new name, empty if dropped."""
    return because(Why.READS_RENAMED if now else Why.READS_REMOVED, f"{name}.{column}", *([now] if now else []))
