"""Declarations in a few words, and a small catalog in memory that does a plan's steps and refuses what Spark would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.desired import relation
from airflow_provider_rfr.builtins.model import (
    DEPLOY,
    WAS,
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Instance,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    Removed,
    UserView,
    Was,
    names_since,
    stable_id,
    was_mark,
)
from airflow_provider_rfr.builtins.plan import Plan, PlanStep, Policies, StepAction, exit_code
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.sinks import SinkSpec, SinkState

PROJECT = "ops"


def column(text: str, *was: Was) -> Column:
    """``id bigint``, ``id bigint!`` for a required one, ``c int < b < a`` for one that was called b, and a before."""
    words, *before = text.split(" < ")
    name, _, kind = words.partition(" ")
    return Column(name, kind.rstrip("!"), kind.endswith("!"), was=(*map(Was, before), *was))


def made(text: str, using: str, *, name: str | None = None, type: str | None = None) -> Column:
    """A column whose values are made by an expression from those of the column that it was."""
    return column(text, Was(name, type, using))


def columns(*columns: str | Column) -> tuple[Column, ...]:
    return tuple(column(item) if isinstance(item, str) else item for item in columns)


def obj(kind: Kind, name: str, *declared: str | Column, **more: Any) -> BuiltinObject:
    more.setdefault("id", stable_id(PROJECT, name))
    return BuiltinObject(kind=kind, name=name, columns=columns(*declared), **more)


def table(name: str, *declared: str | Column, **more: Any) -> BuiltinObject:
    return obj(Kind.TABLE, name, *declared, **more)


def view(name: str, query: str, *declared: str | Column, **more: Any) -> BuiltinObject:
    return obj(Kind.VIEW, name, *declared, query=query, **more)


def mview(name: str, query: str, *declared: str | Column, **more: Any) -> BuiltinObject:
    """Of which rows may be made again, as the loader has it."""
    return obj(Kind.MATERIALIZED_VIEW, name, *declared, query=query, **{"keep": False, **more})


def sink(name: str, source: str, *columns: str, **more: Any) -> BuiltinObject:
    settings = {"path": "s3://bucket/out", "format": "jsonl"}
    given: dict[str, Any] = {"source": source, "to": "files", "settings": settings, "columns": columns}
    given |= {key: more.pop(key) for key in ("on_replace", "follow_schema", "settings") if key in more}
    return obj(Kind.SINK, name, sink=SinkSpec(**given), **more)


def spec(version: str, *objects: BuiltinObject, removed: Iterable[str] = ()) -> CatalogSpec:
    """:param removed: names that documents of kind ``removed`` say"""
    gone = tuple(sorted(map(Removed, removed), key=lambda value: value.key))
    return CatalogSpec(PROJECT, version, tuple(sorted(objects, key=lambda obj: obj.key)), removed=gone)


def steps(found: Plan) -> list[PlanStep]:
    """All but bridges, which have tests of their own."""
    return [step for step in found.steps if step.how is not StepAction.BRIDGE]


def did(found: Plan) -> list[str]:
    """The steps, with the names of that moment."""
    return [f"{step.how.value} {step.name}" for step in steps(found)]


def problems(found: Plan) -> list[str]:
    """What stops a plan."""
    assert exit_code(found) == 1
    return [str(problem) for item in found.blocked for problem in item.problems]


def deployed(*objects: BuiltinObject) -> Catalog:
    """A catalog with version 1.0 of these objects."""
    catalog = Catalog()
    catalog.deploy(spec("1.0", *objects))
    return catalog


class CatalogError(Exception):
    """The catalog refuses."""


@dataclass(frozen=True)
class Thing:
    """What a name stands for.

    :ivar born: the deploy that created it
    """

    name: str
    kind: Kind
    marker: UUID | None
    columns: tuple[Column, ...] = ()
    used: tuple[tuple[str, tuple[str, ...] | None], ...] = ()
    query: str | None = None
    deploy: str = ""
    partitioning: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    born: str = ""
    rows: int = 10


class Catalog:
    """A catalog and a registry. Whatever a step does has to be possible at that moment."""

    def __init__(self) -> None:
        self.things: dict[str, Thing] = {}
        self.garbage: list[str] = []
        self.unfinished: frozenset[UUID] = frozenset()
        self.recorded = RegistryState()
        self.user_views: dict[str, UserView] = {}
        self.deploys = 0

    # What the planner sees

    def live(self) -> ActualState:
        found = {
            key: LiveObject(
                thing.name,
                thing.kind,
                thing.marker,
                thing.columns,
                {**thing.properties, **({DEPLOY: thing.deploy} if thing.deploy else {})},
                thing.partitioning,
                thing.keys,
                rows=thing.rows,
                query=thing.query,
                names=names_since(self.recorded.revision, thing.properties) if thing.kind is Kind.TABLE else None,
            )
            for key, thing in self.things.items()
        }
        return ActualState(found, tuple(self.user_views.values()), self.unfinished)

    def plan(
        self, wanted: CatalogSpec, *, instances: Mapping[str, tuple[Instance, ...]] | None = None, **policies: Any
    ) -> Plan:
        wanted = replace(wanted, instances=instances or {})
        return make_plan(wanted, self.recorded, self.live(), policies=Policies(**policies))

    def deploy(self, wanted: CatalogSpec, **policies: Any) -> Plan:
        found = self.plan(wanted, **policies)
        assert found.applicable, [*found.blocked, *found.drift]
        self.apply(found)
        return found

    # What a user does by hand

    def user_view(self, name: str, query: str, *reads: Any) -> None:
        self.user_views[name.casefold()] = UserView(name, query, tuple(reads))

    def put(self, name: str, *columns: Column, kind: Kind = Kind.TABLE, marker: UUID | None = None) -> None:
        """A table or view of somebody else."""
        self.things[name.casefold()] = Thing(name, kind, marker, columns)

    def edit(self, name: str, **changes: Any) -> None:
        """By hand: the table's own stamp stays what it was."""
        self.things[name] = replace(self.things[name], **changes)

    def attach(self, name: str, source: UUID, **more: Any) -> None:
        state = SinkState(stable_id("users", name), name, source, **more)
        self.recorded = replace(self.recorded, sinks=(*self.recorded.sinks, state))

    # A deploy

    def apply(self, found: Plan, *, until: int | None = None) -> None:
        """Do the steps, and write the registry if none is left out."""
        self.deploys += 1
        deploy = f"d{self.deploys}"
        records = {record.uuid: record for record in found.records}
        for step in found.steps[:until]:
            self._do(step, records, deploy)
        if until is not None:
            self.unfinished |= {step.uuid for step in found.steps[:until] if step.uuid is not None}
            return
        self.unfinished = frozenset()
        objects = {obj.uuid: obj for obj in self.recorded.objects if obj.uuid not in found.forgotten}
        done = {step.uuid for step in found.steps}
        objects |= {
            record.uuid: replace(record, deploy_id=deploy) if record.uuid in done else record
            for record in found.records
        }
        self.recorded = replace(
            self.recorded,
            revision=self.recorded.revision + 1,
            version=found.version,
            objects=tuple(sorted(objects.values(), key=lambda obj: obj.key)),
        )

    def _do(self, step: PlanStep, records: Mapping[UUID, RecordedObject], deploy: str) -> None:
        if step.kind is Kind.SINK:
            return
        if step.how is StepAction.BRIDGE:
            self._bridge(step, deploy)
        elif step.how in (StepAction.DROP, StepAction.REMOVE):
            self._drop(step)
        elif step.how is StepAction.RENAME:
            self._rename(step, deploy)
        elif step.user:
            self._user_step(step)
        else:
            assert step.uuid is not None
            self._change(step, records[step.uuid], deploy)

    def _bridge(self, step: PlanStep, deploy: str) -> None:
        """The view has casts around its text until it is defined again."""
        key = step.name.casefold()
        if step.user:
            self.user_views[key] = replace(self.user_views[key], bridged=True)
        else:
            self.things[key] = replace(self._own(step), deploy=deploy, query=f"SELECT 1 FROM ({step.details['sql']})")

    def _user_step(self, step: PlanStep) -> None:
        """A user's view is marked as broken, or defined again, which takes such a mark away."""
        key = step.name.casefold()
        view, broken = self.user_views[key], None
        if step.how is StepAction.MARK_BROKEN:
            broken = step.details["broken"]
        else:
            self._resolve(key, [(item.name, item.columns) for item in view.reads or ()])
        self.user_views[key] = replace(view, broken=broken, bridged=False)

    def _own(self, step: PlanStep) -> Thing:
        thing = self.things.get(step.name.casefold())
        if thing is None:
            raise CatalogError(f"{step.how.value} {step.name}: it is not there")
        if thing.marker != step.uuid:
            raise CatalogError(f"{step.how.value} {step.name}: it is not ours")
        return thing

    def _drop(self, step: PlanStep) -> None:
        thing = self._own(step)
        del self.things[step.name.casefold()]
        if thing.kind is Kind.TABLE:
            aside = f"{thing.name}__g{self.deploys:08x}"
            self.garbage.append(aside)
            self.things[aside.casefold()] = replace(thing, name=aside)

    def _rename(self, step: PlanStep, deploy: str) -> None:
        thing, target = self._own(step), step.details["to"]
        if target.casefold() in self.things:
            raise CatalogError(f"rename to {target}: it is there already")
        del self.things[step.name.casefold()]
        self.things[target.casefold()] = replace(thing, name=target, deploy=deploy)

    def _change(self, step: PlanStep, record: RecordedObject, deploy: str) -> None:
        key, kind = step.name.casefold(), relation(step.kind)
        before = self.things.get(key)
        if step.how is StepAction.CREATE and before is not None:
            raise CatalogError(f"create {step.name}: it is there already")
        if step.how not in (StepAction.CREATE, StepAction.ADOPT) and not (before is None and kind is Kind.VIEW):
            before = self._own(step)
        if before is not None and before.kind is not kind:
            raise CatalogError(f"{step.how.value} {step.name}: it is a {before.kind.value}")
        used = [(dep.name, dep.columns) for dep in record.deps]
        asks = step.kind in (Kind.VIEW, Kind.MATERIALIZED_VIEW) and step.how not in (
            StepAction.METADATA,
            StepAction.EVOLVE,
        )
        if asks:
            self._resolve(key, used)
        columns = self._columns(step, record, before) if kind is Kind.TABLE else record.columns
        said = {"comment": record.comment, "owner": record.owner, **record.properties}
        self.things[key] = Thing(
            step.name,
            Kind(kind),
            step.uuid,
            columns,
            tuple(used) if kind is Kind.VIEW else (),
            record.sql if kind is Kind.VIEW else None,
            deploy,
            *((record.partitioning, record.keys) if kind is Kind.TABLE else ((), ())),
            {name: value for name, value in said.items() if value is not None}
            | {WAS: was_mark(self.recorded.revision, record.columns)},
            before.born if before is not None else deploy,
            0 if step.how in (StepAction.CREATE, StepAction.REPLACE_EMPTY) and step.kind is Kind.SOURCE else 10,
        )

    def _columns(self, step: PlanStep, record: RecordedObject, before: Thing | None) -> tuple[Column, ...]:
        if step.how is StepAction.CREATE:
            return record.columns
        assert before is not None
        columns = run_updates(before.columns, step.details)
        wanted = [(column.name, column.type, column.required) for column in record.columns]
        assert [(column.name, column.type, column.required) for column in columns][: len(wanted)] == wanted, step
        said = {column.name: column for column in record.columns}
        return tuple(
            replace(column, comment=said[column.name].comment) if column.name in said else column for column in columns
        )

    def _resolve(self, key: str, used: Any) -> None:
        """What Spark does when a view is made: names and columns have to be there, and it may not read itself."""
        for name, columns in used:
            thing = self.things.get(name)
            if thing is None:
                theirs = self.user_views.get(name)
                if theirs is None or theirs.broken is not None:
                    raise CatalogError(f"{key}: missing table {name}, or a broken view")
                continue
            known = {column.name.casefold() for column in thing.columns}
            if columns is not None and known and not set(columns) <= known:
                raise CatalogError(f"{key}: {name} has no column {sorted(set(columns) - known)}")
        waiting, seen = [name for name, _ in used], set()
        while waiting:
            name = waiting.pop()
            if name == key:
                raise CatalogError(f"{key}: recursive view")
            if name not in seen and name in self.things:
                seen.add(name)
                waiting += [read for read, _ in self.things[name].used]

    def check(self) -> None:
        """Every view can be read, those of users too, unless they are marked as broken."""
        for key, thing in self.things.items():
            if thing.kind is Kind.VIEW and key not in self.garbage:
                self._resolve(key, thing.used)
        for key, view in self.user_views.items():
            if view.broken is None:
                self._resolve(key, [(item.name, item.columns) for item in view.reads or ()])


def run_updates(columns: tuple[Column, ...], details: Mapping[str, Any]) -> tuple[Column, ...]:
    """Schema updates as Iceberg does them: within one of them, names are those at its beginning."""
    current = list(columns)
    for batch in (*details.get("updates", ()), details.get("tighten", ())):
        named = {item.name.casefold(): item for item in current}
        after = list(current)
        added: list[Column] = []
        for operation in batch:
            _operate(operation, named, after, added)
        current = [*after, *added]
        names = [item.name.casefold() for item in current]
        assert len(set(names)) == len(names), (batch, names)
    return tuple(current)


def _operate(operation: Mapping[str, Any], named: dict[str, Column], after: list[Column], added: list[Column]) -> None:
    what, name = operation["op"], operation["column"].casefold()
    if what == "add":
        assert name not in named, f"add {name}: there is one"
        added.append(Column(operation["column"], operation["type"]))
        return
    assert name in named, f"{what} {name}: there is none among {sorted(named)}"
    place = next(i for i, item in enumerate(after) if item.name.casefold() == name or item is named[name])
    old = after[place]
    if what == "drop":
        del after[place]
    elif what == "rename":
        assert operation["to"].casefold() not in named, f"rename to {operation['to']}: there is one"
        named[name] = after[place] = replace(old, name=operation["to"])
    elif what in ("widen", "narrow"):
        named[name] = after[place] = replace(old, type=operation["type"])
    elif what in ("relax", "require"):
        named[name] = after[place] = replace(old, required=what == "require")
    elif what == "comment":
        named[name] = after[place] = replace(old, comment=operation["comment"])
    else:
        assert what == "move", what
        del after[place]
        behind = operation["after"]
        at = 0 if behind is None else 1 + [item.name.casefold() for item in after].index(behind.casefold())
        after.insert(at, old)
