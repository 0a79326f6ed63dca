"""The inputs of a plan, drift, and the origin of a change: the state in the catalog, or the recorded state.

Objects that an unfinished deploy left also differ from their record; its journal, which is written before a change,
names them. This is not drift, and the next deploy starts from their actual state.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from airflow_provider_rfr.builtins.columns import ChangeKind, ColumnDiff, folded
from airflow_provider_rfr.builtins.desired import DesiredObject, DesiredState, relation, release, same_query
from airflow_provider_rfr.builtins.model import (
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    Was,
)
from airflow_provider_rfr.builtins.plan import Policies, Reason, Why, because

FORMAT: Final = "format-version"
"""Property that says how a table is made: a constraint. REST catalogs take it, and do not keep it as a property."""


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


@dataclass(frozen=True, slots=True)
class ChangeOrigin:
    """The state in which an object was found, from which a change of it starts.

    :ivar there: False: it is to be made
    :ivar left: columns that were added by hand and stay
    :ivar note: why this is not what is recorded
    :ivar conflicts: what stops any change of it
    :ivar rewrite_text: a view's text is neither the recorded nor the declared one, and is to be restored
    :ivar was_known: what the columns were before is known; else a rename counts as done once the new name is there
    :ivar moved: present name -> recorded one, of columns that an unfinished deploy renamed
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


def find(desired: DesiredObject, states: States, leaving: Container[UUID | None]) -> ChangeOrigin:
    """Find the origin of the object; ``leaving`` has the ids of objects that give up their names in this deploy."""
    policies, unfinished = states.policies, desired.uuid in states.live.unfinished
    record, live, kind = desired.recorded, desired.live, relation(desired.kind)
    if record is not None and relation(record.kind) is None:
        return _from_record(record)
    if record is not None and live is not None and live.marker == desired.uuid:
        return _ours(desired, record, live, policies.drift, unfinished)
    if record is not None and live is None:
        # A table that does not exist any more took its rows along: never repaired silently, whatever the cause.
        conflicts = (because(Why.GONE_ADOPT),) if policies.drift == "adopt" else ()
        again = unfinished and relation(record.kind) is Kind.VIEW
        return ChangeOrigin() if again else ChangeOrigin(drift=(because(Why.GONE),), conflicts=conflicts)
    if live is None or (record is None and (kind is None or live.marker in leaving)):
        return ChangeOrigin()
    if live.marker == desired.uuid:
        return _from_live(desired, live, because(Why.NOT_RECORDED)) if live.kind is kind else ChangeOrigin()
    named = live.marker is None and desired.key in policies.adopt
    problems = list(_not_as_declared(desired, live)) if named else []
    if named and not problems:
        return _from_live(desired, live, None, adopted=True)
    if record is not None:
        return _from_record(record, drift=(whose(live, desired.uuid),), conflicts=(whose(live, desired.uuid),))
    if problems:
        return ChangeOrigin(conflicts=(because(Why.NOT_ADOPTABLE, live.name, "; ".join(map(str, problems))),))
    taken = because(Why.NAME_TAKEN, desired.kind.value, desired.obj.name, whose(live, desired.uuid))
    return ChangeOrigin(conflicts=(taken,))


def whose(live: LiveObject, expected: UUID) -> Reason:
    """Return the reason that says whose object this is: not ours, or ours with another id than expected."""
    if live.marker is None:
        return because(Why.NOT_OURS, live.kind.value, live.name)
    return because(Why.MARKED_OTHER, live.kind.value, live.name, live.marker, expected)


def _not_as_declared(desired: DesiredObject, live: LiveObject) -> Iterator[Reason]:
    if live.kind is not relation(desired.kind):
        yield because(Why.IS_OTHER_KIND, live.kind.value, desired.kind.value)
    elif live.name != desired.obj.name:
        yield because(Why.DECLARE_NAME, live.name)
    elif desired.obj.columns:
        yield from _columns(desired.obj, live)


def _ours(
    desired: DesiredObject, known: RecordedObject, live: LiveObject, policy: str, unfinished: bool
) -> ChangeOrigin:
    """Return the origin of a recorded object that carries our marker."""
    drift = tuple(_drift(desired, known, live))
    # Columns may have exchanged their names, which nothing but the deploy's own word shows.
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
    # Added columns are left, all else has to be declared.
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
    """Tell whether a view has one of the texts; a text that is not known counts as equal.

    The comparison is that which decides whether a declared query changed.
    """
    return any(text is None or same_query(live.query or "", text) for text in texts)


def _differences(wanted: BuiltinObject | RecordedObject, live: LiveObject) -> Iterator[Reason]:
    """Yield the parts of a table, and the properties, that differ from the declaration or the record."""
    if live.kind is Kind.TABLE:
        yield from _columns(wanted, live) if live.columns else ()
        yield from different("partitioned by", wanted.partitioning, live.partitioning)
        yield from different("keys", wanted.keys, live.keys)
    for name, value in wanted.properties.items() if live.properties else ():
        if name != FORMAT and live.properties.get(name) != value:
            yield because(Why.DIFFERS, f"property {name}", repr(value), repr(live.properties.get(name)))


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
        columns, moved = _as_left(live_columns, live.names, recorded_columns)
        more |= {"moved": moved}
    else:
        columns = tuple(
            replace(column, was=recorded_columns[name].was, comment=recorded_columns[name].comment)
            if name in recorded_columns
            else column
            for name, column in live_columns.items()
        )
        # Nobody knows what columns were that we did not make.
        more |= {"was_known": recorded is not None and live.marker is not None}
    rest = live if live.kind is Kind.TABLE else known
    return ChangeOrigin(True, columns or known.columns, rest.partitioning, rest.keys, note=note, **more)


def _as_left(
    there: Mapping[str, Column], names: Mapping[str, Sequence[str]], said: Mapping[str, Column]
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Return a table's columns as an unfinished deploy left them, and present names by which it renamed recorded ones.

    Each column has the former names that the deploy noted for it and those that are recorded.
    """
    noted = {name: tuple(map(Was, names.get(name, ()))) for name in there}
    for path, former in names.items():
        column, _, inside = path.partition(".")
        if inside and column in noted:
            noted[column] += tuple(Was(fields={inside: name}) for name in former)
    left = tuple(replace(column, was=noted[name]) for name, column in there.items())
    renamed = ColumnDiff(tuple(said.values()), left).renames
    # Where two of its names are recorded, only the deploy knew which of them it was.
    moved = {new: old for new, old in renamed.items() if said.keys() & {*names[new]} == {old}}
    # What was done before that deploy is still done.
    before = {name: name for name in said.keys() - moved.values()} | moved
    older = {name: said[was].was for name, was in before.items()}
    return tuple(replace(column, was=(*noted[name], *older.get(name, ()))) for name, column in there.items()), moved


def different(what: str, old: Sequence[str], new: Sequence[str]) -> list[Reason]:
    """Return a reason if two lists of names, or of expressions over names, differ; compared without case."""
    same = [column.casefold() for column in old] == [column.casefold() for column in new]
    return [] if same else [because(Why.DIFFERS, what, ", ".join(old) or "nothing", ", ".join(new) or "nothing")]
