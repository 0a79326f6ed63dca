"""From a declaration to what is wanted: final names, fingerprints, what is read, stars written out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.fingerprint import Fingerprints
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Column, Kind
from airflow_provider_rfr.builtins.state import Dependency, Live, LiveObject, Recorded, RecordedObject
from airflow_provider_rfr.builtins.wanted import (
    CycleError,
    Generator,
    Graph,
    Tools,
    Want,
    Wanted,
    is_gone,
    rank,
    relation,
)
from airflow_provider_rfr.exceptions import PlanError, RfrError


def resolve(spec: CatalogSpec, recorded: Recorded, live: Live, tools: Tools) -> Wanted:
    """Everything that is wanted.

    :raises PlanError: objects read each other in a circle
    """
    return _Resolver(spec, recorded, live, tools).resolve()


class _Resolver:
    def __init__(self, spec: CatalogSpec, recorded: Recorded, live: Live, tools: Tools) -> None:
        self._spec = spec
        self._recorded = recorded
        self._live = live
        self._tools = tools
        self._problems: dict[UUID, list[str]] = defaultdict(list)
        self._wants: dict[UUID, Want] = {}
        self._objects: dict[str, BuiltinObject] = {}
        self._templates: dict[str, BuiltinObject] = {}
        self._names: Set[str] = frozenset()
        self._ids = recorded.by_uuid.keys() | {each.id for each in spec.objects} | live.unfinished

    def resolve(self) -> Wanted:
        present = [each for each in self._spec.objects if not is_gone(each, self._spec.version)]
        self._templates = {each.key: each for each in present if each.per_instance is not None}
        generator = Generator(self._spec, present, self._recorded, self._live)
        unlisted = tuple(each for each in self._templates.values() if each.per_instance not in self._spec.instances)
        objects: list[tuple[BuiltinObject, str | None]] = []
        for each in present:
            objects += [(each, None)] if each.per_instance is None else generator.objects(each)
        objects = [(self._spelled(obj), instance) for obj, instance in objects]
        self._objects = {obj.key: obj for obj, _ in objects}
        self._names = self._objects.keys() | self._live.objects.keys()
        self._wants = {obj.id: self._want(obj, instance) for obj, instance in objects}
        graph = Graph({each.uuid: [read.uuid for read in each.reads if read.uuid] for each in self._wants.values()})
        ranks = {identity: rank(want) for identity, want in self._wants.items()}
        try:
            order = graph.order(ranks.__getitem__)
        except CycleError as error:
            names = [self._wants[identity].obj.name for identity in error.cycle]
            raise PlanError(f"objects read each other in a circle: {CycleError(names)}") from None
        return Wanted(
            {identity: self._finished(identity) for identity in order},
            graph,
            {each.id: each for each in self._spec.objects if is_gone(each, self._spec.version)},
            {identity: tuple(problems) for identity, problems in self._problems.items()},
            generator.kept(unlisted),
            unlisted,
        )

    def _spelled(self, obj: BuiltinObject) -> BuiltinObject:
        """A name is compared without case, but most catalogs find it only as it was written first."""
        known, there = self._recorded.by_uuid.get(obj.id), self._live.objects.get(obj.key)
        if known is not None:
            return replace(obj, name=known.name) if known.key == obj.key else obj
        ours = there is not None and there.marker == obj.id
        return replace(obj, name=there.name) if there is not None and ours else obj

    def _want(self, obj: BuiltinObject, instance: str | None) -> Want:
        known = self._recorded.by_uuid.get(obj.id)
        same = known if known is not None and obj.query is not None and self._same_text(obj, known) else None
        return Want(
            obj,
            self._fingerprints(obj, same),
            self._own(obj, self._reads(obj, known, same)),
            same.sql if same is not None and same.sql == same.raw_sql else None,
            known,
            self._there(obj, known),
            instance,
        )

    def _fingerprints(self, obj: BuiltinObject, same: RecordedObject | None) -> Fingerprints:
        """Reading SQL is what costs, so what the same canonicalizer made of the same text is taken as it is."""
        if same is None:
            return self._tools.fingerprints(obj, self._spec)
        rest = self._tools.fingerprints(replace(obj, query=None), self._spec)
        return Fingerprints(rest.contract, rest.constraints, same.fingerprints.logic, rest.meta)

    def _same_text(self, obj: BuiltinObject, known: RecordedObject) -> bool:
        return (
            known.raw_sql == obj.query
            and known.canonicalizer == self._tools.canonicalizer
            and known.kind is obj.kind
            and known.key == obj.key
        )

    def _there(self, obj: BuiltinObject, known: RecordedObject | None) -> LiveObject | None:
        """What is live under the recorded name; what is ours under another one, if a deploy did not finish."""
        if known is None:
            return self._live.objects.get(obj.key)
        at_home = self._live.objects.get(known.key)
        if at_home is not None and at_home.marker == obj.id and at_home.kind is relation(obj.kind):
            return at_home
        begun = obj.id in self._live.unfinished
        ours = [each for each in self._live.by_marker.get(obj.id, ()) if begun or not each.aside]
        named = [each for key in (known.key, obj.key) for each in ours if each.key == key]
        fitting = [each for each in named if each.kind is relation(obj.kind)]
        recorded = [each for each in ours if each.kind is relation(known.kind)]
        if not fitting and len(recorded) == 1 and relation(obj.kind) is relation(known.kind):
            # Put aside, to make room for what came to nothing: its rows are there.
            return recorded[0]
        if fitting or named:
            return (fitting or named)[0]
        if len(recorded) == 1 or at_home is None:
            return recorded[0] if len(recorded) == 1 else None
        # Another object of ours that has the name now is no trace of this one.
        return at_home if at_home.marker is None or at_home.marker not in self._ids else None

    def _reads(
        self, obj: BuiltinObject, known: RecordedObject | None, same: RecordedObject | None
    ) -> Sequence[Dependency]:
        if obj.sink is not None:
            return (self._sink_reads(obj, known),)
        if obj.query is None:
            return ()
        return self._read(obj) if same is None else same.deps

    def _read(self, obj: BuiltinObject) -> tuple[Dependency, ...]:
        try:
            found = list(self._tools.reads(obj, self._names))
        except (RfrError, ValueError) as error:
            self._problems[obj.id].append(f"its query can't be read ({error}); list what it reads in depends_on")
            return tuple(Dependency(name.casefold()) for name in obj.depends_on)
        return tuple(Dependency(each.name.casefold(), None, _folded(each.columns)) for each in found)

    def _sink_reads(self, obj: BuiltinObject, known: RecordedObject | None) -> Dependency:
        """The columns that are sent: as declared, else those that the source had when the sink was registered."""
        sink = obj.sink
        assert sink is not None
        name = sink.source.casefold()
        if sink.follow_schema or sink.columns:
            return Dependency(name, None, None if sink.follow_schema else _folded(sink.columns))
        before = next((each for each in known.deps if each.name == name), None) if known is not None else None
        if before is not None:
            return before
        source = self._objects.get(name)
        return Dependency(name, None, _folded([each.name for each in source.columns]) if source is not None else None)

    def _own(self, obj: BuiltinObject, reads: Sequence[Dependency]) -> tuple[Dependency, ...]:
        """With the ids of what is ours."""
        found = []
        for each in reads:
            if each.name in self._templates:
                template = self._templates[each.name]
                problem = f"reads {template.name}, which is not one object but one for each {template.per_instance}"
                self._problems[obj.id].append(problem)
            read = self._objects.get(each.name)
            identity = read.id if read is not None else None
            found.append(each if each.uuid == identity else Dependency(each.name, identity, each.columns))
        return tuple(found)

    def _finished(self, identity: UUID) -> Want:
        """With the query as it is to be executed; what it reads is finished already."""
        want = self._wants[identity]
        if want.obj.query is None or want.sql is not None:
            return want
        sql, reads = self._with_columns(want, self._kept_sql(want) or self._expanded(want)), want.reads
        if sql not in (want.obj.query, want.recorded.sql if want.recorded is not None else None):
            reads = self._own(want.obj, self._read(replace(want.obj, query=sql)))
        self._wants[identity] = want = replace(want, sql=sql, reads=reads)
        return want

    def _kept_sql(self, want: Want) -> str | None:
        """What its stars became when the query was registered; they are written out once, not on each deploy."""
        known = want.recorded
        if known is None or known.sql is None or known.raw_sql != want.obj.query or known.kind is not want.kind:
            return None
        if known.sql == known.raw_sql:
            return known.sql
        return None if want.obj.follow_star or self._vanished(known) else known.sql

    def _vanished(self, known: RecordedObject) -> bool:
        for each in known.deps:
            now = self._columns(each.name)
            if each.columns is not None and now is not None and not set(each.columns) <= set(_folded(now) or ()):
                return True
        return False

    def _with_columns(self, want: Want, sql: str) -> str:
        """Written out so that it gives the declared columns: who declares others asks for the stars of today, or for
        that part of them which was there when the declaration was written."""
        declared, known = _names(want.obj.columns), want.recorded
        if not declared or sql == want.obj.query:
            return sql
        if known is not None and (known.sql, known.columns) == (sql, want.obj.columns):
            return sql
        given = self._outputs(want, sql)
        if given is None or _folded(given) == _folded(declared):
            return sql
        for seen in ({}, {each.name: _folded(declared) for each in want.reads}):
            text = self._expanded(want, seen)
            if _folded(self._outputs(want, text)) == _folded(declared):
                return text
        told = f"its columns are {', '.join(declared)}, and its query gives {', '.join(given)}"
        self._problems[want.uuid].append(f"{told}; write them alike, in the same order")
        return sql

    def _expanded(self, want: Want, seen: Mapping[str, Sequence[str] | None] | None = None) -> str:
        """With its stars written out.

        :param seen: columns for which a star stands, by table; by default those of then, or else all
        """
        query = want.obj.query
        assert query is not None
        if "*" not in query and "natural" not in query.casefold():
            return query
        known = want.recorded
        if seen is None and known is not None and known.raw_sql == query and not want.obj.follow_star:
            seen = {each.name: each.columns for each in known.deps}

        def columns_of(name: str) -> tuple[str, ...] | None:
            return self._as_seen(name.casefold(), seen or {})

        try:
            return self._tools.expand(want.obj, columns_of)
        except (RfrError, ValueError) as error:
            self._problems[want.uuid].append(str(error))
            return query

    def _as_seen(self, name: str, seen: Mapping[str, Sequence[str] | None]) -> tuple[str, ...] | None:
        """Columns that were there when the stars were written out, by the names that they have now."""
        now, before = self._columns(name), seen.get(name)
        if now is None or before is None:
            return now
        obj = self._objects.get(name)
        columns = obj.columns if obj is not None else ()
        old = {each.name.casefold() for each in columns if (each.renamed_from or "").casefold() in before}
        return tuple(each for each in now if each.casefold() in before or each.casefold() in old)

    def _columns(self, name: str) -> tuple[str, ...] | None:
        obj = self._objects.get(name)
        if obj is None:
            there = self._live.objects.get(name)
            return tuple(each.name for each in there.columns) if there is not None and there.columns else None
        want = self._wants[obj.id]
        if want.obj.columns or want.kind not in (Kind.VIEW, Kind.MATERIALIZED_VIEW):
            return tuple(each.name for each in want.obj.columns)
        return self._outputs(want, want.sql or want.obj.query)

    def _outputs(self, want: Want, sql: str | None) -> tuple[str, ...] | None:
        try:
            return self._tools.outputs(replace(want.obj, query=sql), lambda each: self._columns(each.casefold()))
        except (RfrError, ValueError):
            return None


def _names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(each.name for each in columns)


def _folded(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(name.casefold() for name in names)
