"""From declarations to the desired state: final names, reads, and stars written out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.desired import (
    CycleError,
    DesiredObject,
    DesiredState,
    Generator,
    Graph,
    rank,
    relation,
)
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import (
    QUERIED,
    BuiltinObject,
    CatalogSpec,
    Dependency,
    is_retired,
    namespace_of,
    present_names,
)
from airflow_provider_rfr.builtins.sql.facts import expand_stars, object_reads, output_columns
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.builtins.state import ActualState, LiveObject, RecordedObject, RegistryState
from airflow_provider_rfr.exceptions import PlanError, RfrError
from airflow_provider_rfr.sinks.spec import SinkSpec


class Resolver:
    """Makes the desired state."""

    def __init__(self, spec: CatalogSpec, recorded: RegistryState, live: ActualState) -> None:
        self._spec = spec
        self._recorded = recorded
        self._live = live
        self._problems: dict[UUID, list[Reason]] = defaultdict(list)
        self._resolved: dict[UUID, DesiredObject] = {}
        self._objects: dict[str, BuiltinObject] = {}
        self._templates: dict[str, BuiltinObject] = {}
        self._names: Set[str] = frozenset()
        self._ids = recorded.by_uuid.keys() | {each.id for each in spec.objects} | live.unfinished

    def resolve(self) -> DesiredState:
        """The desired state.

        :raises PlanError: objects read each other in a cycle
        """
        declared = self._spec.objects
        self._templates = {each.key: each for each in declared if each.per_instance is not None}
        generator = Generator(self._spec, declared, self._recorded, self._live)
        unlisted = tuple(each for each in self._templates.values() if each.per_instance not in self._spec.instances)
        objects: list[tuple[BuiltinObject, str | None]] = []
        for each in declared:
            objects += [(each, None)] if each.per_instance is None else generator.objects(each)
        objects = [(self._spelled(obj), instance) for obj, instance in objects]
        self._objects = {obj.key: obj for obj, _ in objects}
        self._names = self._objects.keys() | self._live.objects.keys()
        self._resolved = {obj.id: self._desired(obj, instance) for obj, instance in objects}
        graph = Graph({each.uuid: [read.uuid for read in each.reads if read.uuid] for each in self._resolved.values()})
        ranks = {identity: rank(desired) for identity, desired in self._resolved.items()}
        try:
            order = graph.order(ranks.__getitem__)
        except CycleError as error:
            names = [self._resolved[identity].obj.name for identity in error.cycle]
            raise PlanError(f"objects read each other in a circle: {CycleError(names)}") from None
        return DesiredState(
            {identity: self._finished(identity) for identity in order},
            graph,
            {identity: tuple(problems) for identity, problems in self._problems.items()},
            generator.kept(unlisted),
            unlisted,
        )

    def _problem(self, identity: UUID, problem: str) -> None:
        self._problems[identity].append(because(Why.TEXT, problem))

    def _spelled(self, obj: BuiltinObject) -> BuiltinObject:
        """A name is compared without case, but most catalogs find it only as it was written first."""
        known, there = self._recorded.by_uuid.get(obj.id), self._live.objects.get(obj.key)
        if known is not None:
            return replace(obj, name=known.name) if known.key == obj.key else obj
        ours = there is not None and there.marker == obj.id
        return replace(obj, name=there.name) if there is not None and ours else obj

    def _desired(self, obj: BuiltinObject, instance: str | None) -> DesiredObject:
        known = self._recorded.by_uuid.get(obj.id)
        # Reading SQL is what costs: what the same canonicalizer made of the same text is taken from the record.
        same = None
        if known is not None and obj.query is not None and known.canonicalizer == CANONICALIZER:
            is_same = (known.raw_sql, known.kind, known.key) == (obj.query, obj.kind, obj.key)
            same = known if is_same else None
        reads: Sequence[Dependency] = ()
        if obj.sink is not None:
            reads = (self._sink_reads(obj.sink, known),)
        elif obj.query is not None:
            reads = self._read(obj) if same is None else same.deps
        return DesiredObject(
            obj,
            self._own(obj, reads),
            same.sql if same is not None and same.sql == same.raw_sql else None,
            known,
            self._there(obj, known),
            instance,
        )

    def _there(self, obj: BuiltinObject, known: RecordedObject | None) -> LiveObject | None:
        """What is live under the recorded name; what is ours under another one, if a deploy did not finish."""
        if known is None:
            return self._live.objects.get(obj.key)
        at_home = self._live.objects.get(known.key)
        if at_home is not None and at_home.marker == obj.id and at_home.kind is relation(obj.kind):
            return at_home
        begun = obj.id in self._live.unfinished
        ours = [each for each in self._live.by_marker.get(obj.id, ()) if begun or not is_retired(each.name)]
        named = [each for key in (known.key, obj.key) for each in ours if each.key == key]
        fitting = [each for each in named if each.kind is relation(obj.kind)]
        recorded = [each for each in ours if each.kind is relation(known.kind)]
        if not fitting and len(recorded) == 1 and relation(obj.kind) is relation(known.kind):
            # Retired to make room for an object that was never created: its rows are there.
            return recorded[0]
        if fitting or named:
            return (fitting or named)[0]
        if len(recorded) == 1 or at_home is None:
            return recorded[0] if len(recorded) == 1 else None
        # Another object of ours under that name is not this one.
        return at_home if at_home.marker is None or at_home.marker not in self._ids else None

    def _read(self, obj: BuiltinObject) -> tuple[Dependency, ...]:
        try:
            return object_reads(obj, known=self._names)
        except (RfrError, ValueError) as error:
            self._problem(obj.id, f"its query can't be read ({error}); list what it reads in depends_on")
            return tuple(Dependency(name.casefold()) for name in obj.depends_on)

    def _sink_reads(self, sink: SinkSpec, known: RecordedObject | None) -> Dependency:
        """The sent columns, in order, as the source calls them: the declared ones, else those that it had when the
        sink was registered, as it called them then."""
        name = sink.source.casefold()
        source = self._objects.get(name)
        columns = source.columns if source is not None else ()
        if sink.follow_schema or sink.columns:
            declared = _folded(present_names(sink.columns, columns))
            return Dependency(name, None, None if sink.follow_schema else declared)
        before = next((each for each in known.deps if each.name == name), None) if known is not None else None
        if before is not None:
            return before
        return Dependency(name, None, _folded([each.name for each in columns]) if source is not None else None)

    def _own(self, obj: BuiltinObject, reads: Sequence[Dependency]) -> tuple[Dependency, ...]:
        """With the ids of what is ours."""
        found = []
        for each in reads:
            if each.name in self._templates:
                template = self._templates[each.name]
                problem = f"reads {template.name}, which is not one object but one for each {template.per_instance}"
                self._problem(obj.id, problem)
            read = self._objects.get(each.name)
            identity = read.id if read is not None else None
            found.append(each if each.uuid == identity else Dependency(each.name, identity, each.columns))
        return tuple(found)

    def _finished(self, identity: UUID) -> DesiredObject:
        """With the query to execute; what it reads is finished already."""
        desired = self._resolved[identity]
        if desired.obj.query is None or desired.sql is not None:
            return desired
        sql, reads = self._with_columns(desired, self._kept_sql(desired) or self._expanded(desired)), desired.reads
        if sql not in (desired.obj.query, desired.recorded.sql if desired.recorded is not None else None):
            reads = self._own(desired.obj, self._read(replace(desired.obj, query=sql)))
        self._resolved[identity] = desired = replace(desired, sql=sql, reads=reads)
        return desired

    def _kept_sql(self, desired: DesiredObject) -> str | None:
        """What its stars became when the query was registered; they are written out once, not on each deploy."""
        known = desired.recorded
        if known is None or known.sql is None or known.raw_sql != desired.obj.query or known.kind is not desired.kind:
            return None
        if known.sql == known.raw_sql:
            return known.sql
        for each in known.deps:
            now = self._columns(each.name)
            if each.columns is not None and now is not None and not set(each.columns) <= set(_folded(now) or ()):
                # A column that a star stood for is dropped, so the star is expanded again.
                return None
        return known.sql

    def _with_columns(self, desired: DesiredObject, sql: str) -> str:
        """Written out so that it gives the declared columns: who declares others asks for the stars of today, or for
        that part of them which was there when the declaration was written."""
        declared, known = tuple(each.name for each in desired.obj.columns), desired.recorded
        if not declared or sql == desired.obj.query:
            return sql
        if known is not None and (known.sql, known.columns) == (sql, desired.obj.columns):
            return sql
        given = self._outputs(desired, sql)
        if given is None or _folded(given) == _folded(declared):
            return sql
        for seen in ({}, {each.name: _folded(declared) for each in desired.reads}):
            text = self._expanded(desired, seen)
            if _folded(self._outputs(desired, text)) == _folded(declared):
                return text
        problem = f"its columns are {', '.join(declared)}, and its query gives {', '.join(given)}"
        self._problem(desired.uuid, f"{problem}; write them alike, in the same order")
        return sql

    def _expanded(self, desired: DesiredObject, seen: Mapping[str, Sequence[str] | None] | None = None) -> str:
        """With its stars written out.

        :param seen: columns that a star expands to, by table; by default those that were recorded, or else all
        """
        query = desired.obj.query
        assert query is not None
        if "*" not in query and "natural" not in query.casefold():
            return query
        known = desired.recorded
        if seen is None and known is not None and known.raw_sql == query:
            seen = {each.name: each.columns for each in known.deps}

        def columns_of(name: str) -> tuple[str, ...] | None:
            """Columns that were there when the stars were written out, by the names that they have now."""
            now, before = self._columns(name.casefold()), (seen or {}).get(name.casefold())
            if now is None or before is None:
                return now
            obj = self._objects.get(name.casefold())
            columns = obj.columns if obj is not None else ()
            old = {
                each.name.casefold() for each in columns for was in each.was if (was.name or "").casefold() in before
            }
            return tuple(each for each in now if each.casefold() in before or each.casefold() in old)

        try:
            return expand_stars(query, columns_of, namespace_of(desired.obj.name))
        except (RfrError, ValueError) as error:
            self._problem(desired.uuid, str(error))
            return query

    def _columns(self, name: str) -> tuple[str, ...] | None:
        obj = self._objects.get(name)
        if obj is None:
            there = self._live.objects.get(name)
            return tuple(each.name for each in there.columns) if there is not None and there.columns else None
        desired = self._resolved[obj.id]
        if desired.obj.columns or desired.kind not in QUERIED:
            return tuple(each.name for each in desired.obj.columns)
        return self._outputs(desired, desired.sql or desired.obj.query)

    def _outputs(self, desired: DesiredObject, sql: str | None) -> tuple[str, ...] | None:
        try:
            return output_columns(
                sql or "", lambda name: self._columns(name.casefold()), namespace_of(desired.obj.name)
            )
        except (RfrError, ValueError):
            return None


def _folded(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(name.casefold() for name in names)
