"""The desired state: declared objects with final names, dependencies and expanded queries; and dependency orders.

Columns, queries and definitions are compared by digests or canonical texts. The case of names, the layout of queries
and the order of a mapping's keys make no difference.

Objects with ``per_instance`` become one object for each instance. Their ids come from the instance's id. Their names
are generated once, made unique by a number, and kept in the registry from then on, even if the instance is renamed.
"""

from __future__ import annotations

import graphlib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain, count
from typing import Any, Final, TypeVar
from uuid import UUID

from airflow_provider_rfr.builtins.model import (
    LONGEST_PART,
    QUERIED,
    STORED,
    ActualState,
    BuiltinObject,
    CatalogSpec,
    Column,
    Dependency,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    instance_id,
    namespace_of,
    present_names,
    retired_by,
)
from airflow_provider_rfr.builtins.plan import Reason, Why, because
from airflow_provider_rfr.builtins.queries import expand_stars, object_reads, output_columns
from airflow_provider_rfr.builtins.sql import CANONICALIZER, NamedTable, canonical_sql, identifier, replace_tables
from airflow_provider_rfr.exceptions import PlanError, QueryError, RfrError
from airflow_provider_rfr.http.redaction import is_secret
from airflow_provider_rfr.lake.types import parse_type, quoted
from airflow_provider_rfr.sinks import SinkSpec


def contract_of(columns: Sequence[Column]) -> str:
    """Return the digest of positions, names and types of the columns; its prefix is the version of the format."""
    text = "\n".join(
        f"{number} {quoted(column.name.casefold())} {parse_type(column.type).folded()}"
        for number, column in enumerate(columns, 1)
    )
    return f"c1:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def same_query(one: str | None, other: str | None) -> bool:
    """Tell whether two queries differ at most in whitespace, comments and case."""
    if one is None or other is None or one == other:
        return one == other
    return canonical_sql(one) == canonical_sql(other)


def definition_of(obj: BuiltinObject) -> str | None:
    """Return the definition of a source or a sink as JSON, without secrets; None for another kind.

    A sink's source is not part of it: the sink's dependency holds the source's id, which survives a rename.
    """
    definition: Any = obj.source
    if (sink := obj.sink) is not None:
        columns = [name.casefold() for name in sink.columns]
        rest = {"columns": columns, "follow_schema": sink.follow_schema, "on_replace": sink.on_replace}
        definition = {"to": sink.to, "settings": sink.settings, **rest}
    if definition is None:
        return None
    return json.dumps(_masked(definition), ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def _masked(value: Any, name: str = "") -> Any:
    """Mask secrets: definitions are stored, and another password does not make another definition.

    Any header may hold a secret, whatever its name. Templates are kept: they name a secret and do not hold it.
    """
    if isinstance(value, Mapping):
        is_of_headers = name.casefold() == "headers"
        return {str(key): _masked(inner, "secret" if is_of_headers else str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(inner, name) for inner in value]
    return "***" if isinstance(value, str) and is_secret(name) and "{{" not in value else value


Node = TypeVar("Node", bound=Hashable)
_NUMBER: Final = 8
"""Characters of a generated name that are reserved for an underscore and a number."""


class CycleError(ValueError):
    """A cycle of nodes: each one reads the next, the last one the first."""

    def __init__(self, cycle: Iterable[Any]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(" reads ".join(map(str, (*self.cycle, *self.cycle[:1]))))


def in_order(reads: Mapping[Node, Iterable[Node]], rank: Callable[[Node], Any]) -> tuple[Node, ...]:
    """Return the nodes in dependency order: each comes after the nodes that it reads.

    Among the nodes that could come next, the one with the lowest rank comes first.

    :param reads: the nodes that each node reads; those without an entry of their own are ignored
    :param rank: a sort key that differs for each node
    :raises CycleError: there is no such order
    """
    nodes = sorted(reads, key=rank)
    # Nodes become numbers, because UUIDs are slow to compare.
    numbers = {node: number for number, node in enumerate(nodes)}
    graph = {numbers[node]: [numbers[read] for read in reads[node] if read in numbers] for node in nodes}
    sorter, ready, order = graphlib.TopologicalSorter(graph), list[int](), list[Node]()
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][:0:-1]
        first = cycle.index(min(cycle))
        raise CycleError(nodes[number] for number in cycle[first:] + cycle[:first]) from None
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, number)
        order.append(nodes[ready[0]])
        sorter.done(heappop(ready))
    return tuple(order)


def readers_of(roots: Iterable[Node], order: Iterable[Node], reads: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """Return the roots and all their direct and indirect readers; ``order`` is that of :func:`in_order`."""
    readers = set(roots)
    for node in order:
        if not readers.isdisjoint(reads[node]):
            readers.add(node)
    return readers


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """The desired state of one object, next to its recorded and its actual state.

    :ivar obj: the declaration, with its final name and id
    :ivar sql: the query to execute, with expanded stars
    :ivar live: its table or view in the catalog
    :ivar instance: id of the instance for which it is generated from a template
    """

    obj: BuiltinObject
    reads: tuple[Dependency, ...] = ()
    sql: str | None = None
    recorded: RecordedObject | None = None
    live: LiveObject | None = None
    instance: str | None = None

    @property
    def uuid(self) -> UUID:
        return self.obj.id

    @property
    def key(self) -> str:
        return self.obj.key

    @property
    def kind(self) -> Kind:
        return self.obj.kind

    @property
    def keeps_rows(self) -> bool:
        """Tell whether a loss of rows has to be accepted; a new ``keep: false`` counts only from the next deploy on."""
        return self.obj.keep is not False or (self.recorded is not None and self.recorded.keep is not False)

    @property
    def keep_reason(self) -> str | None:
        """Return why no loss can be accepted, or None; a removed reason still counts in the deploy that removes it."""
        policies = (self.obj.keep, self.recorded.keep if self.recorded is not None else None)
        return next((name for name in policies if isinstance(name, str)), None)


@dataclass(frozen=True)
class DesiredState:
    """The desired state of all objects by id, in dependency order: inputs come before their readers.

    :ivar problems: reasons that stop the deploy, by id
    :ivar untouched: ids of objects of unlisted templates, which are recorded and must not be removed
    :ivar unlisted: templates whose instances are not listed
    """

    objects: Mapping[UUID, DesiredObject]
    problems: Mapping[UUID, Sequence[Reason]] = field(default_factory=dict)
    untouched: frozenset[UUID] = frozenset()
    unlisted: tuple[BuiltinObject, ...] = ()


def relation(kind: Kind) -> Kind | None:
    """Return the kind of relation that a catalog has for an object of this kind; None if it has none, as for a sink."""
    if kind in STORED:
        return Kind.TABLE
    return Kind.VIEW if kind is Kind.VIEW else None


def release(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version; a development version belongs to the release that it leads to."""
    numbers = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", numbers.group(1)).split("."))) if numbers is not None else ()


def _declared(
    spec: CatalogSpec, recorded: RegistryState, live: ActualState
) -> Iterator[tuple[BuiltinObject, str | None]]:
    """Yield the declared objects; for a template (``per_instance``), one for each instance, with the instance's id."""
    live_names = {obj.marker: obj.name for obj in live.objects.values() if obj.marker and retired_by(obj.name) is None}
    taken = {*live.objects, *(obj.key for obj in (*spec.objects, *recorded.objects, *live.user_views))}
    for obj in spec.objects:
        if obj.per_instance is None:
            yield obj, None
            continue
        for instance in sorted(spec.instances.get(obj.per_instance, ()), key=lambda listed: listed.id):
            identity = instance_id(obj.id, instance.id)
            record = recorded.by_uuid.get(identity)
            name = record.name if record is not None else live_names.get(identity)
            if name is None:
                longest = LONGEST_PART - _NUMBER - len(obj.name.rpartition(".")[2])
                ending = re.sub(r"\W+", "_", instance.name, flags=re.ASCII)[: max(longest, 1)].strip("_") or "_"
                base = f"{obj.name}_{ending}"
                free = chain([base], (f"{base}_{number}" for number in count(1)))
                name = next(name for name in free if name.casefold() not in taken)
                taken.add(name.casefold())
            yield replace(obj, id=identity, name=name), instance.id


class Resolver:
    """A computation of the desired state from declarations, registry and catalog."""

    def __init__(self, spec: CatalogSpec, recorded: RegistryState, live: ActualState) -> None:
        self._spec = spec
        self._recorded = recorded
        self._live = live
        self._problems: dict[UUID, list[Reason]] = defaultdict(list)
        self._ids = recorded.by_uuid.keys() | {obj.id for obj in spec.objects} | live.unfinished
        objects = [(self._spelled(obj), instance) for obj, instance in _declared(spec, recorded, live)]
        self._objects = {obj.key: obj for obj, _ in objects}
        self._spelling = {obj.key: obj.name for obj in chain(live.objects.values(), self._objects.values())}
        self._names = self._spelling.keys()
        self._resolved = {obj.id: self._desired(obj, instance) for obj, instance in objects}

    def resolve(self) -> DesiredState:
        """Return the desired state.

        :raises PlanError: objects read each other in a cycle
        """
        reads = {obj.key: [read.name for read in obj.reads] for obj in self._resolved.values()}
        try:
            order = in_order(reads, str)
        except CycleError as error:
            raise PlanError(f"objects read each other in a circle: {error}") from None
        finished = {(uuid := self._objects[key].id): self._finished(uuid) for key in order}
        # If a template's instances are not listed, they are unknown, which does not mean that they were removed.
        templates = (obj for obj in self._spec.objects if obj.per_instance is not None)
        unlisted = tuple(template for template in templates if template.per_instance not in self._spec.instances)
        kept = frozenset(
            obj.uuid
            for obj in self._recorded.objects
            if obj.instance and obj.uuid in [instance_id(template.id, obj.instance) for template in unlisted]
        )
        return DesiredState(finished, self._problems, kept, unlisted)

    def _problem(self, uuid: UUID, problem: str) -> None:
        self._problems[uuid].append(because(Why.TEXT, problem))

    def _spelled(self, obj: BuiltinObject) -> BuiltinObject:
        """Return the object under its recorded or live spelling, because most catalogs are case-sensitive."""
        record, live = self._recorded.by_uuid.get(obj.id), self._live.objects.get(obj.key)
        same = record or (live if live is not None and live.marker == obj.id else None)
        return obj if same is None or same.key != obj.key else replace(obj, name=same.name)

    def _desired(self, obj: BuiltinObject, instance: str | None) -> DesiredObject:
        record: RecordedObject | None = self._recorded.by_uuid.get(obj.id)
        reads: Sequence[Dependency] = ()
        sql: str | None = None
        if obj.sink is not None:
            reads = (self._sink_reads(obj.sink, record),)
        elif obj.query is not None:
            written = record.sql if record is not None and same_query(record.raw_sql, obj.query) else None
            unchanged = obj.kind, obj.key, CANONICALIZER
            # Parsing is slow. If the same parser read the same text before, its result is taken from the record.
            if record is not None and written and (record.kind, record.key, record.canonicalizer) == unchanged:
                is_spelled = all(self._spelling.get(read.name, "") in written for read in record.deps)
                reads, sql = record.deps, written if written == obj.query and is_spelled else None
            else:
                # The recorded text has the columns in the place of its stars.
                reads = self._read(replace(obj, query=written or obj.query))
        return DesiredObject(obj, self._own(reads), sql, record, self._find_live(obj, record), instance)

    def _find_live(self, obj: BuiltinObject, known: RecordedObject | None) -> LiveObject | None:
        """Return the object's table or view: by its recorded name or, after an unfinished deploy, by its marker."""
        if known is None:
            return self._live.objects.get(obj.key)
        at_home, before, now = self._live.objects.get(known.key), relation(known.kind), relation(obj.kind)
        ours = self._live.by_marker.get(obj.id, ())
        named = [place for key in (known.key, obj.key) for place in ours if place.key == key]
        fitting = [place for place in named if place.kind is now]
        recorded = [place for place in ours if place.kind is before]
        only = recorded if len(recorded) == 1 else []
        # An unfinished deploy may have retired the table and not yet created its successor. It still has the rows.
        if candidates := fitting or (only if now is before else []) or named or only:
            return candidates[0]
        # A table or view with the marker of another known object is not this one.
        return at_home if at_home is not None and at_home.marker not in self._ids else None

    def _read(self, obj: BuiltinObject) -> tuple[Dependency, ...]:
        try:
            return object_reads(obj, known=self._names)
        except (RfrError, ValueError) as error:
            self._problem(obj.id, f"its query can't be read ({error}); list what it reads in depends_on")
            return tuple(Dependency(name.casefold()) for name in obj.depends_on)

    def _sink_reads(self, sink: SinkSpec, known: RecordedObject | None) -> Dependency:
        """Return the sink's dependency: the sent columns, in order, under their present names in the source.

        These are the declared columns. If the sink declares none, they are the source's columns at the time when the
        sink was registered, under their names of that time. For a sink that follows the schema, the columns are None.
        """
        name = sink.source.casefold()
        if sink.follow_schema:
            return Dependency(name)
        source = self._objects.get(name)
        columns = source.columns if source is not None else ()
        if sink.columns:
            return Dependency(name, None, _folded(present_names(sink.columns, columns)))
        sent = _folded([column.name for column in columns]) if source is not None else None
        before = (dep for dep in (known.deps if known is not None else ()) if dep.name == name)
        return next(before, Dependency(name, None, sent))

    def _own(self, reads: Sequence[Dependency]) -> tuple[Dependency, ...]:
        """Return the dependencies, with ids for those that are declared objects."""
        pairs = ((read, self._objects.get(read.name)) for read in reads)
        return tuple(Dependency(read.name, obj.id if obj else None, read.columns) for read, obj in pairs)

    def _finished(self, uuid: UUID) -> DesiredObject:
        """Return the object with the query to execute; the objects that it reads must be finished before."""
        desired = self._resolved[uuid]
        if desired.obj.query is None or desired.sql is not None:
            return desired

        def spelled(table: NamedTable) -> str | None:
            name = self._spelling.get(table.name, table.name).split(".")[-len(table.parts) :]
            written = re.sub(r"[`\s]", "", table.written)
            is_other = written != ".".join(name) and written.casefold() == ".".join(name).casefold()
            return ".".join(map(identifier, name)) if is_other else None

        sql, reads = self._written_out(desired), desired.reads
        # Spark finds a table or view only under its spelling in the catalog.
        with suppress(QueryError):
            sql = replace_tables(sql, namespace_of(desired.obj.name), spelled)
        if sql not in (desired.obj.query, desired.recorded.sql if desired.recorded is not None else None):
            reads = self._own(self._read(replace(desired.obj, query=sql)))
        self._resolved[uuid] = desired = replace(desired, sql=sql, reads=reads)
        return desired

    def _written_out(self, desired: DesiredObject) -> str:
        """Return the query with its stars expanded.

        Stars are expanded when the query is registered, not on each deploy, and again when a column that a star stood
        for is dropped. The query has to return the declared columns. If it returns others, its stars are expanded to
        all present columns, or to those of them that are declared.
        """
        obj, record = desired.obj, desired.recorded
        same = record if record is not None and same_query(record.raw_sql, obj.query) else None
        if same is not None and same.sql and same.kind is obj.kind and all(map(self._is_there, same.deps)):
            sql = same.sql
        else:
            sql = self._expanded(desired, {dep.name: dep.columns for dep in same.deps} if same is not None else {})
        # The recorded query is known to return the recorded columns, so it need not be parsed.
        is_recorded = record is not None and (record.sql, record.columns) == (sql, obj.columns)
        outputs = None if not obj.columns or sql == obj.query or is_recorded else self._outputs(desired, sql)
        names = [column.name for column in obj.columns]
        declared = _folded(names)
        if outputs is None or _folded(outputs) == declared:
            return sql
        for seen in ({}, {read.name: declared for read in desired.reads}):
            text = self._expanded(desired, seen, declared)
            if _folded(self._outputs(desired, text)) == declared:
                return text
        problem = f"its columns are {', '.join(names)}, and its query gives {', '.join(outputs)}"
        self._problem(desired.uuid, f"{problem}; write them alike, in the same order")
        return sql

    def _is_there(self, read: Dependency) -> bool:
        """Tell whether the object still has all columns that are read from it, as far as they are known."""
        now = self._columns(read.name)
        return read.columns is None or now is None or {*read.columns}.issubset(_folded(now))

    def _expanded(
        self, desired: DesiredObject, seen: Mapping[str, Sequence[str] | None], order: Sequence[str] = ()
    ) -> str:
        """Return the query with its stars expanded; if that fails, note the problem and return the query unchanged.

        :param seen: the columns to which the stars are limited, by table; a table without an entry has all its columns
        :param order: order of the query's columns; it is needed, because a view that the query reads may have the
            order of columns with which it was registered
        """

        def columns_of(name: str) -> tuple[str, ...] | None:
            """Return the columns that existed when the stars were expanded, under their present names."""
            now, before, obj = self._columns(name), seen.get(name), self._objects.get(name)
            if now is None or before is None:
                return now
            columns = obj.columns if obj is not None else ()
            came = [
                column.name for column in columns for was in column.was if was.name and was.name.casefold() in before
            ]
            stay = {*before, *_folded(came)}
            return tuple(name for name in now if name.casefold() in stay)

        query = desired.obj.query or ""
        try:
            return expand_stars(query, columns_of, namespace_of(desired.obj.name), order=order)
        except (RfrError, ValueError) as error:
            self._problem(desired.uuid, str(error))
            return query

    def _columns(self, name: str) -> tuple[str, ...] | None:
        obj = self._objects.get(name)
        if obj is None:
            live = self._live.objects.get(name)
            return tuple(column.name for column in live.columns) if live is not None and live.columns else None
        if obj.columns or obj.kind not in QUERIED:
            return tuple(column.name for column in obj.columns)
        desired = self._resolved[obj.id]
        return self._outputs(desired, desired.sql or obj.query)

    def _outputs(self, desired: DesiredObject, sql: str | None) -> tuple[str, ...] | None:
        try:
            return output_columns(sql or "", self._columns, namespace_of(desired.obj.name))
        except (RfrError, ValueError):
            return None


def _folded(names: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name.casefold() for name in names or ())
