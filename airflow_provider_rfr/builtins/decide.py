"""The decision about one object: the origin of its change, the differences from its record, the action, the effects.

A change starts from the recorded state, or from the state in the catalog. Objects that an unfinished deploy changed
also differ from their records. This is not drift: the deploy's journal, which is written before a change, names these
objects, and the next deploy starts from their actual state.

For a table, the least invasive action that loses nothing is chosen. A change that makes values or rows unreachable is a
loss: it stops the deploy until somebody accepts it by name. A change that needs values that no row has stops the deploy
until the column's ``was`` says how they are computed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Any, Final
from uuid import UUID

import yaml

from airflow_provider_rfr.builtins.columns import ALL, EVERYTHING, ChangeKind, ColumnDiff, Effects, affected, folded
from airflow_provider_rfr.builtins.desired import (
    DesiredObject,
    DesiredState,
    definition_of,
    relation,
    release,
    same_query,
)
from airflow_provider_rfr.builtins.model import (
    STORED,
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    Was,
    namespace_of,
)
from airflow_provider_rfr.builtins.plan import PlanFinding, PlanStep, Policies, Reason, StepAction, Why, because
from airflow_provider_rfr.builtins.queries import output_columns
from airflow_provider_rfr.exceptions import QueryError

FORMAT: Final = "format-version"
"""Property that is compared as a constraint, not as metadata: REST catalogs take it, but do not list it afterwards."""


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
        """Return the accepted losses: case-folded names of objects, or of columns such as ``ops.runs.note``."""
        return self.policies.accept_data_loss | {entry.key for entry in self.spec.removed}

    @cached_property
    def downgrade(self) -> Reason | None:
        """Return the reason that stops all changes, if a newer version than this one is recorded."""
        before, now = self.recorded.version, self.spec.version
        is_older = before is not None and release(now) < release(before)
        return because(Why.DOWNGRADE, before, now) if is_older else None


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The state from which a change of an object starts.

    :ivar there: False if the object has to be created
    :ivar left: columns that were added by hand and stay
    :ivar note: why the state is not the recorded one
    :ivar conflicts: reasons that stop any change of the object
    :ivar rewrite_text: a view's text is neither the recorded nor the declared one, and is to be restored
    :ivar was_known: former states of the columns are known; else a rename counts as done once the new name exists
    :ivar moved: present name -> recorded name of columns that an unfinished deploy renamed
    """

    there: bool = False
    columns: tuple[Column, ...] = ()
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    left: tuple[Column, ...] = ()
    note: Reason | None = None
    drift: tuple[Reason, ...] = ()
    conflicts: tuple[Reason, ...] = ()
    adopted: bool = False
    rewrite_text: bool = False
    was_known: bool = True
    moved: Mapping[str, str] = field(default_factory=dict)


def find_origin(desired: DesiredObject, states: States, leaving: Container[UUID | None]) -> ChangeOrigin:
    """Find the origin of a change; ``leaving`` has the ids of objects that give up their names in this deploy."""
    policies, unfinished = states.policies, desired.uuid in states.live.unfinished
    record, live, kind = desired.recorded, desired.live, relation(desired.kind)
    if record is not None and relation(record.kind) is None:
        return _from_record(record)
    if record is not None and live is not None and live.marker == desired.uuid:
        return _marked_origin(desired, record, live, policies.drift, unfinished)
    if record is not None and live is None:
        # The rows of a missing table are lost. So it is drift, which is not repaired silently, whatever the cause.
        conflicts = (because(Why.GONE_ADOPT),) if policies.drift == "adopt" else ()
        again = unfinished and relation(record.kind) is Kind.VIEW
        return ChangeOrigin() if again else ChangeOrigin(drift=(because(Why.GONE),), conflicts=conflicts)
    if live is None or (record is None and (kind is None or live.marker in leaving)):
        return ChangeOrigin()
    if live.marker == desired.uuid:
        return _from_live(desired, live, because(Why.NOT_RECORDED)) if live.kind is kind else ChangeOrigin()
    named = live.marker is None and desired.key in policies.adopt
    problems = list(_adoption_obstacles(desired, live)) if named else []
    if named and not problems:
        return _from_live(desired, live, None, adopted=True)
    if record is not None:
        problem = ownership_problem(live, desired.uuid)
        return _from_record(record, drift=(problem,), conflicts=(problem,))
    if problems:
        return ChangeOrigin(conflicts=(because(Why.NOT_ADOPTABLE, live.name, "; ".join(map(str, problems))),))
    taken = because(Why.NAME_TAKEN, desired.kind.value, desired.obj.name, ownership_problem(live, desired.uuid))
    return ChangeOrigin(conflicts=(taken,))


def ownership_problem(live: LiveObject, expected: UUID) -> Reason:
    """Return the reason why a table or view is not the expected object: no marker, or that of another id."""
    if live.marker is None:
        return because(Why.NOT_OURS, live.kind.value, live.name)
    return because(Why.MARKED_OTHER, live.kind.value, live.name, live.marker, expected)


def _adoption_obstacles(desired: DesiredObject, live: LiveObject) -> Iterator[Reason]:
    """Yield the reasons against adopting an existing object without our marker."""
    if live.kind is not relation(desired.kind):
        yield because(Why.IS_OTHER_KIND, live.kind.value, desired.kind.value)
    elif live.name != desired.obj.name:
        yield because(Why.DECLARE_NAME, live.name)
    elif desired.obj.columns:
        yield from _columns(desired.obj, live)


def _marked_origin(
    desired: DesiredObject, known: RecordedObject, live: LiveObject, policy: str, unfinished: bool
) -> ChangeOrigin:
    """Return the origin of a recorded object that carries our marker."""
    drift = tuple(_drift(desired, known, live))
    # Columns may have exchanged their names. Only the former names that the deploy noted in the table show this.
    if unfinished and (drift or live.names is not None):
        if live.kind is not relation(known.kind) and live.kind is not relation(desired.kind):
            return ChangeOrigin()
        text = live.kind is relation(known.kind) is Kind.VIEW and not _is_text(live, desired.sql)
        return _from_live(desired, live, because(Why.UNFINISHED), rewrite_text=text)
    if not drift or policy == "fail":
        return _from_record(known, drift=drift)
    if live.key not in (known.key, desired.key) and policy == "adopt":
        return _from_record(known, drift=drift, conflicts=(because(Why.DECLARE_NAME, live.name),))
    note = because(Why.CHANGED_BY_HAND)
    if relation(known.kind) is Kind.VIEW:
        return _from_record(known, note=note, drift=drift, rewrite_text=policy == "repair")
    if policy == "repair":
        return _from_live(desired, live, note, drift=drift)
    # By policy adopt, added columns stay; any other manual change has to be declared.
    recorded, declared = folded(known.columns), folded(desired.obj.columns)
    left = tuple(column for column in live.columns if column.name.casefold() not in {*recorded, *declared})
    both = recorded.keys() & declared.keys()
    free = {f"column {column.name}" for column in live.columns if column.name.casefold() not in both}
    otherwise = {difference.facts[0] for difference in _differences(desired.obj, live)} - free
    conflicts = tuple(because(Why.DECLARE_IT, reason) for reason in drift if otherwise.intersection(reason.facts[:1]))
    return _from_live(desired, live, note, drift=drift, left=left, conflicts=conflicts)


def _drift(desired: DesiredObject, record: RecordedObject, live: LiveObject) -> Iterator[Reason]:
    if live.kind is not relation(record.kind):
        yield because(Why.IS_OTHER_KIND, live.kind.value, record.kind.value)
        return
    if live.key not in (record.key, desired.key):
        yield because(Why.CALLED, live.name)
    yield from _differences(record, live)
    texts = [query for query in (record.sql, desired.sql) if query is not None]
    if live.query is not None and texts and not _is_text(live, *texts):
        yield because(Why.VIEW_TEXT)


def _is_text(live: LiveObject, *texts: str | None) -> bool:
    """Tell whether a view has one of the texts, compared by canonical text; an unknown text counts as equal."""
    return any(text is None or same_query(live.query or "", text) for text in texts)


def _differences(wanted: BuiltinObject | RecordedObject, live: LiveObject) -> Iterator[Reason]:
    """Yield the parts of a table, and the metadata, that differ from the declaration or the record.

    A comment or owner counts only if one is declared: otherwise, users may set their own.
    """
    if live.kind is Kind.TABLE:
        yield from _columns(wanted, live) if live.columns else ()
        yield from different("partitioned by", wanted.partitioning, live.partitioning)
        yield from different("keys", wanted.keys, live.keys)
        present = folded(live.columns)
        for column in wanted.columns:
            comment = present.get(column.name.casefold(), column).comment
            if column.comment is not None and comment != column.comment:
                yield because(Why.DIFFERS, f"comment of {column.name}", _shown(column.comment), _shown(comment))
    for label, value in _metadata(wanted).items() if live.properties else ():
        there = live.properties.get(label.removeprefix("property "))
        # A declared property with the name of a field, such as comment, overrides the field.
        if label not in wanted.properties and value is not None and there != value:
            yield because(Why.DIFFERS, label, _shown(value), _shown(there))


def _columns(wanted: BuiltinObject | RecordedObject, live: LiveObject) -> Iterator[Reason]:
    for change in ColumnDiff(wanted.columns, live.columns).changes:
        if change.what is not ChangeKind.COMMENT:
            yield because(Why.DIFFERS, f"column {change.column}", change.before or "nothing", change.after or "nothing")


def _from_record(record: RecordedObject, **more: Any) -> ChangeOrigin:
    return ChangeOrigin(True, record.columns, record.partitioning, record.keys, **more)


def _from_live(desired: DesiredObject, live: LiveObject, note: Reason | None, **more: Any) -> ChangeOrigin:
    """Return the live state as the origin, completed with facts that no catalog keeps."""
    known, recorded = desired.recorded or desired.obj, desired.recorded
    recorded_columns, live_columns = folded(recorded.columns if recorded is not None else ()), folded(live.columns)
    if live.names is not None:
        columns, moved = _unfinished_columns(live_columns, live.names, recorded_columns)
        more |= {"moved": moved}
    else:
        columns = tuple(
            _completed(column, recorded_columns[name]) if name in recorded_columns else column
            for name, column in live_columns.items()
        )
        # The former names of columns that no deploy made are not known.
        more |= {"was_known": recorded is not None and live.marker is not None}
    rest = live if live.kind is Kind.TABLE else known
    return ChangeOrigin(True, columns or known.columns, rest.partitioning, rest.keys, note=note, **more)


def _completed(column: Column, record: Column) -> Column:
    """Return a live column with its recorded former states, and without a comment that nobody declared."""
    return replace(column, was=record.was, comment=None if record.comment is None else column.comment)


def _unfinished_columns(
    columns: Mapping[str, Column], names: Mapping[str, Sequence[str]], recorded: Mapping[str, Column]
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Return a table's columns as an unfinished deploy left them, and its renames: present name -> recorded name.

    Each column has the former names that the deploy noted for it and those that are recorded.
    """
    noted = {name: tuple(map(Was, names.get(name, ()))) for name in columns}
    for path, former in names.items():
        column, _, inside = path.partition(".")
        if inside and column in noted:
            noted[column] += tuple(Was(fields={inside: name}) for name in former)
    left = tuple(replace(column, was=noted[name]) for name, column in columns.items())
    renamed = ColumnDiff(tuple(recorded.values()), left).renames
    # If two former names of a column are recorded, it is not known which of them it had.
    moved = {new: old for new, old in renamed.items() if recorded.keys() & {*names[new]} == {old}}
    # Renames that were done before that deploy stay done.
    before = {name: name for name in recorded.keys() - moved.values()} | moved
    older = {name: recorded[was].was for name, was in before.items()}
    return tuple(replace(column, was=(*noted[name], *older.get(name, ()))) for name, column in columns.items()), moved


def different(what: str, old: Sequence[str], new: Sequence[str]) -> list[Reason]:
    """Return a reason if two lists of names, or of expressions over names, differ; compared without case."""
    same = [column.casefold() for column in old] == [column.casefold() for column in new]
    return [] if same else [because(Why.DIFFERS, what, ", ".join(old) or "nothing", ", ".join(new) or "nothing")]


def _metadata(obj: BuiltinObject | RecordedObject) -> dict[str, str | None]:
    properties = {f"property {name}": value for name, value in obj.properties.items() if name != FORMAT}
    return {"comment": obj.comment, "owner": obj.owner, **properties}


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


@dataclass(slots=True)
class Decision:
    """The decision about one object, while a plan is made.

    :ivar differences: differences from its record; their reasons are among ``reasons``, too
    :ivar words: changes field by field, for display
    :ivar losses: what would be lost, by the names that have to be accepted
    :ivar leaves: its table or view is dropped before the object is created as another kind
    :ivar was_used: columns of which a ``was`` matches the live table
    :ivar shape: by input id, the columns with another type or name; ``contents``: those whose rows may differ
    :ivar done: an unfinished deploy has made the change already
    """

    desired: DesiredObject
    how: StepAction | None = None
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
        """Return the name that readers use before this deploy."""
        return (self.desired.recorded or self.desired.obj).name

    @property
    def noticed(self) -> dict[UUID, Reason]:
        """Return the reasons that come from the object's inputs, by input id; for a view, changed rows are none."""
        return self.shape if self.desired.kind is Kind.VIEW else {**self.contents, **self.shape}

    def note_inputs(self, decisions: Decisions) -> None:
        """Note how the object's inputs change, and a problem for each column that it reads and that no longer exists.

        :param decisions: those about all inputs, which have to be made before
        """
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
            if columns := affected(effects.shape, dependency.columns):
                self.shape[dependency.uuid] = reads(name, columns)
            if columns := affected(effects.contents, dependency.columns):
                self.contents[dependency.uuid] = reads(name, columns)
            gone = [(old, now) for old, now in effects.gone.items() if old in (dependency.columns or ())]
            # A sink knows columns by their field ids, so a rename is no problem.
            kept = desired.kind is Kind.SINK
            self.problems += [lost_column(name, old, now) for old, now in gone if not (now and kept)]

    def note_differences(self) -> None:
        """Compare the object with its record, field by field."""
        obj, record, sql = self.desired.obj, self.desired.recorded, self.desired.sql
        if record is None:
            return
        self.diff = ColumnDiff(record.columns, obj.columns)
        same = same_query(obj.query, record.raw_sql)
        changes = {change.what for change in self.diff.changes}
        # Sources of sinks are compared by id: a renamed source is the same one.
        source, before = (tuple(dependency.uuid for dependency in some) for some in (self.desired.reads, record.deps))
        fed = obj.kind is not Kind.SINK or source == before
        policies = (obj.keep, obj.exportable) == (record.keep, record.exportable)
        conditions = {
            Why.KIND_CHANGED: obj.kind is not record.kind,
            Why.RENAMED: obj.key != record.key,
            Why.COLUMNS_CHANGED: bool(changes - {ChangeKind.RELAX, ChangeKind.REQUIRE, ChangeKind.COMMENT}),
            Why.CONSTRAINTS_CHANGED: bool(
                changes & {ChangeKind.RELAX, ChangeKind.REQUIRE}
                or different("keys", record.keys, obj.keys)
                or different("partitioned by", record.partitioning, obj.partitioning)
                or obj.properties.get(FORMAT) != record.properties.get(FORMAT)
            ),
            Why.QUERY_CHANGED: not same,
            Why.DEFINITION_CHANGED: definition_of(obj) != record.definition or not fed,
            Why.STAR_CHANGED: same and None not in (sql, record.sql) and sql != record.sql,
            Why.METADATA_CHANGED: ChangeKind.COMMENT in changes or not policies or _metadata(obj) != _metadata(record),
        }
        facts = {Why.KIND_CHANGED: (record.kind.value, obj.kind.value), Why.RENAMED: (record.name,)}
        self.differences = {why: because(why, *facts.get(why, ())) for why, is_so in conditions.items() if is_so}
        self.reasons += self.differences.values()

    def note_metadata(self) -> None:
        """Note the metadata that a step has to write and to remove, if the metadata changed."""
        record, obj = self.desired.recorded, self.desired.obj
        if record is None or Why.METADATA_CHANGED not in self.differences:
            return
        before, now = _metadata(record), _metadata(obj)
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                self.words.append(f"~ {name}: {_shown(before.get(name))} -> {_shown(now.get(name))}")
        if gone := sorted(record.properties.keys() - obj.properties.keys()):
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
        record, obj = self.desired.recorded, self.desired.obj
        if record is None:
            return Effects(EVERYTHING, contents)
        if not record.columns or not obj.columns:
            before, now = self.outputs() if record.sql != self.desired.sql else ((), ())
            return Effects(EVERYTHING, contents, {name: "" for name in before if now and name not in now})
        return self.diff.effects(contents)

    def outputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the case-folded names of the object's columns before and after the deploy; empty if unknown."""
        record, live = self.desired.recorded, self.desired.live
        now = _outputs(self.desired.obj, self.desired.sql)
        if record is None:
            return (), now
        before = _outputs(record, record.sql)
        if record.kind in STORED and live is not None and live.kind is Kind.TABLE and live.columns:
            live_names = tuple(folded(live.columns))
            # Columns that were added by hand stay, as the last ones. Otherwise, their readers would break.
            return live_names, (*now, *(name for name in live_names if name not in before and name not in now))
        return before, now

    def clear_action(self) -> None:
        """Clear the action, because an unfinished deploy has done all of it; the effects on readers stay."""
        self.how, self.details, self.words, self.losses = None, {}, [], {}
        self.done = True

    def step(self, how: StepAction) -> PlanStep:
        """Return the step that creates or changes the object."""
        obj, live = self.desired.obj, self.desired.live
        # If another step drops the object before, the losses are that step's.
        losses = {} if self.leaves else self.losses
        reasons, size = tuple(dict.fromkeys(self.reasons)), (live.rows, live.bytes) if live is not None else ()
        return PlanStep(obj.id, obj.name, obj.kind, how, reasons, tuple(self.words), self.details, losses, *size)

    def finding(self) -> PlanFinding:
        """Return the finding that stops the deploy."""
        obj, problems = self.desired.obj, tuple(dict.fromkeys(self.problems))
        return PlanFinding(obj.name, obj.kind, problems, obj.id, tuple(self.words), tuple(self.paste), str(obj.place))


Decisions = Mapping[UUID, Decision]


def _outputs(obj: BuiltinObject | RecordedObject, sql: str | None) -> tuple[str, ...]:
    if obj.columns or sql is None:
        return tuple(folded(obj.columns))
    try:
        names = output_columns(sql, lambda name: None, namespace_of(obj.name))
    except QueryError:
        return ()
    return tuple(column.casefold() for column in names)


def reads(name: str, columns: list[str]) -> Reason:
    return because(Why.READS, name if columns == [ALL] else ", ".join(f"{name}.{column}" for column in columns))


def lost_column(name: str, column: str, now: str) -> Reason:
    """Return the reason for a read of a column that no longer exists; ``now`` is its new name, empty if dropped."""
    return because(Why.READS_RENAMED if now else Why.READS_REMOVED, f"{name}.{column}", *([now] if now else []))


def decide_table(decision: Decision, origin: ChangeOrigin, states: States) -> None:
    """Decide about an object that is stored as a table."""
    desired, record = decision.desired, decision.desired.recorded
    # A deploy that did not finish may have made the table already.
    is_table = desired.live is not None and desired.live.kind is Kind.TABLE and desired.live.marker == desired.uuid
    was_no_table = record is not None and relation(record.kind) is not Kind.TABLE and not is_table
    if origin.there and not was_no_table:
        _TableChange(decision, origin, states).decide()
    else:
        decision.how = StepAction.CREATE
        if desired.sql is not None:
            decision.details["sql"] = desired.sql
        if record is None:
            decision.reasons.append(because(Why.NEW))
        else:
            decision.reasons += origin.drift if not was_no_table else ()
            decision.effects = decision.becomes()
    if desired.kind is Kind.SOURCE:
        _decide_load(decision, unfinished=desired.uuid in states.live.unfinished)


class _TableChange:
    """The change of an existing table to the declared one."""

    def __init__(self, decision: Decision, origin: ChangeOrigin, states: States) -> None:
        self._decision, self._origin, self._states = decision, origin, states
        self._desired, self._obj = decision.desired, decision.desired.obj
        columns, nulls = (*self._obj.columns, *origin.left), self._desired.live.nulls if self._desired.live else ()
        self._origin_diff = ColumnDiff(
            origin.columns, columns, recorded=origin.was_known, moved=origin.moved, nulls=frozenset(nulls)
        )
        self._losses: dict[str, str] = {}

    def decide(self) -> None:
        decision, origin, record = self._decision, self._origin, self._desired.recorded
        decision.words += map(str, self._origin_diff.changes)
        how = self._with_the_rest(self._columns_and_layout())
        # Not for a manual change that is adopted: a metadata step writes all that is declared, and would revert it.
        if how is None and (self._states.policies.drift == "repair" if origin.drift else origin.note is not None):
            how = StepAction.METADATA
        decision.how = how = StepAction.ADOPT if origin.adopted else how
        if how is StepAction.RECOMPUTE and self._obj.query is not None:
            decision.details["sql"] = self._desired.sql
        inside = {change.column for change in self._origin_diff.changes if change.what is ChangeKind.RENAME_FIELDS}
        decision.was_used = {*self._origin_diff.called.values()} | self._origin_diff.texts.keys() | inside
        written = frozenset(map(str.casefold, self._origin_diff.texts)) if how is StepAction.REWRITE else frozenset()
        contents = EVERYTHING if how in (StepAction.RECOMPUTE, StepAction.REPLACE_EMPTY) else written
        decision.effects = self._origin_diff.effects(contents)
        decision.lose(self._losses, self._states.accepted)
        decision.problems += [
            because(Why.FIELD_TAKEN, column) for column in self._origin_diff.fields_with_taken_names.values()
        ]
        decision.problems += self._maybe_renamed()
        if record is not None and origin.note is not None and Why.COLUMNS_CHANGED in decision.differences:
            # The table may be as declared already, but the deploy died before it changed the readers.
            decision.effects |= decision.becomes()
        if how is not None and origin.note is not None:
            decision.reasons.append(origin.note)
        if origin.adopted:
            decision.reasons.append(because(Why.ADOPTED))

    def _maybe_renamed(self) -> Iterator[Reason]:
        """Yield a hint how to declare a rename, for each lost column or field if one of the same type is added."""
        diff, accepted = self._origin_diff, self._states.accepted
        added = (change for change in diff.changes if change.what in (ChangeKind.ADD, ChangeKind.ADD_REQUIRED))
        dropped = (change for change in diff.changes if change.what is ChangeKind.DROP)
        pairs = product(added, dropped)
        like = [(old.column, new.column, old.column) for new, old in pairs if new.after == old.before]
        for column, old, new in diff.possible_field_renames:
            was = f"{{fields: {{{new}: {old.rpartition('.')[2]}}}}}"
            like.append((f"{column}.{old}", f"{column}.{new}", was))
        for old, new, was in like:
            lost = f"{self._obj.name}.{old}"
            is_made = new.partition(".")[0] in diff.texts
            if lost in self._losses and lost.casefold() not in accepted and not is_made:
                yield because(Why.MAYBE_RENAMED, new, old, was)

    def _columns_and_layout(self) -> StepAction | None:
        """Return the action that columns, partitioning and keys need; note its details, losses and problems."""
        layout, how = dict[str, list[str]](), self._origin_diff.how
        for label, name in (("partitioned by", "partitioning"), ("keys", "keys")):
            wanted = getattr(self._obj, name)
            for reason in different(label, getattr(self._origin, name), wanted):
                self._decision.words.append(f"~ {reason}")
                layout[name] = list(wanted)
        if layout and how is not StepAction.REWRITE:
            how = StepAction.EVOLVE
        if how is StepAction.REWRITE or self._origin_diff.texts or self._origin_diff.missing:
            how = self._make_values()
        if self._desired.keeps_rows:
            dropped = (change for change in self._origin_diff.changes if change.what is ChangeKind.DROP)
            self._losses = {f"{self._obj.name}.{change.column}": f"column {change.column}" for change in dropped}
            self._losses |= {f"{self._obj.name}.{path}": f"field {path}" for path in self._origin_diff.lost_fields}
            for column in self._origin_diff.narrowed_columns if how is StepAction.REWRITE else ():
                self._losses[f"{self._obj.name}.{column.name}"] = f"values of {column.name} that are no {column.type}"
        if how is not None:
            self._decision.details |= {**self._origin_diff.updates(), **layout}
        if how is StepAction.REWRITE:
            self._decision.details["expressions"] = {**self._origin_diff.carried_fields, **self._origin_diff.texts}
        return how

    def _make_values(self) -> StepAction:
        """Choose the action where values are needed that no row has, and note a problem for each column without values.

        The values come from the query or from a ``using``.
        """
        decision, diff, note = self._decision, self._origin_diff, self._origin.note
        if self._obj.query is not None:
            return StepAction.RECOMPUTE
        decision.problems += [because(Why.USING_UNREADABLE, *item) for item in diff.unreadable.items()]
        if diff.missing and not self._desired.keeps_rows:
            # The rows can be made again, so the table is emptied, and nobody has to write an expression.
            return StepAction.REPLACE_EMPTY
        for column in diff.missing:
            if note is not None and note.why is Why.CHANGED_BY_HAND:
                decision.problems.append(because(Why.NOT_UNDONE, column.column))
                continue
            decision.problems.append(because(Why.NEEDS_USING, column.column, column.before or "nothing", column.after))
            if (was := diff.draft_was(column)) is not None:
                decision.paste.append(_entry(diff.wanted[column.column.casefold()], was))
        return StepAction.REWRITE

    def _with_the_rest(self, how: StepAction | None) -> StepAction | None:
        """Return the action for the whole table, which may need more than its columns do."""
        decision, record = self._decision, self._desired.recorded
        decision.note_metadata()
        if how is None and decision.differences.keys() - {Why.RENAMED}:
            how = StepAction.METADATA
        kind = self._desired.kind
        options = (self._obj.refresh or {}).get("options")
        appends = isinstance(options, Mapping) and options.get("mode") == "append"
        is_filled = kind in (Kind.MATERIALIZED_VIEW, Kind.SOURCE) and not appends
        if is_filled and record is not None and record.kind is not kind and record.keep is not False:
            # Rows that can't be made again are overwritten by a query's result, or by the first refresh.
            self._losses = {self._obj.name: "all rows"}
        if kind is not Kind.MATERIALIZED_VIEW:
            return how
        decision.reasons += decision.noticed.values()
        is_new = decision.differences.keys() & {Why.KIND_CHANGED, Why.QUERY_CHANGED, Why.STAR_CHANGED}
        return StepAction.RECOMPUTE if decision.noticed or is_new else how


def _decide_load(decision: Decision, *, unfinished: bool) -> None:
    """Note why a source has to be loaded after the deploy, if it has to: its rows come from refreshes."""
    record, live = decision.desired.recorded, decision.desired.live
    redefined = Why.DEFINITION_CHANGED in decision.differences
    if redefined:
        decision.words.append("~ definition: the next refresh starts a new generation")
    if record is None or record.kind is not Kind.SOURCE or decision.how is StepAction.CREATE:
        why = "created"
    elif redefined:
        why = "redefined"
    elif decision.how is StepAction.REPLACE_EMPTY or (live is not None and not live.rows and unfinished):
        # An earlier deploy may have emptied it, and died before it could ask for the refresh.
        why = "emptied"
    else:
        return
    if decision.how is None and decision.problems:
        return
    decision.details["load_anew"] = why
    decision.how = decision.how or StepAction.METADATA


def _entry(column: Column, was: Was) -> str:
    """Return the column with its ``was`` as a line of YAML to paste."""
    both = (replace(column, was=()), was)
    present, before = ({name: text for name, text in asdict(part).items() if text} for part in both)
    entry = {**present, "was": before}
    text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, allow_unicode=True, width=inf)
    return f"- {text.strip()}"
